//! Upstream servers: load balancing, the state of servers, and idle connections to them.
//!
//! This crate knows no protocol and no directive: modules define a [`Group`] and talk over its
//! connections. A [`Roster`] holds the current list of a group's peers, a [`Peers`]. Each [`Peer`]
//! has a [`State`] that all threads share and that a reload passes on to the peer with the same
//! identity ([`Remembered`]), and a [`Health`] if it has health checks. A [`Selection`] chooses the
//! peers of one request: it asks the group's balancer for a peer and returns a [`Lease`], which
//! counts as a request of the peer until it is dropped, so that the peer is released exactly once,
//! however the request ends. If a group limits the requests in flight, a request must first be
//! [`Admitted`]. The idle connections of a thread are in its [`pool`]. [`try_peers`] combines all
//! of this in the loop over peers, for a request or session ([`Caller`]) and any protocol
//! ([`PeerProtocol`]).

mod admission;
mod answers;
pub mod backlog;
mod balancer;
mod caller;
mod causes;
pub mod connecting;
mod gate;
mod group;
mod handover;
mod health;
mod hosts;
mod in_flight;
mod latency;
mod lease;
mod limiter;
mod members;
mod moment;
mod outage;
mod outliers;
mod peer;
mod peers;
pub mod pool;
mod queue;
mod remembered;
mod retries;
mod roster;
mod selection;
mod slow_start;
mod sparing;
mod state;
mod tried_peers;
mod try_peers;
mod wait_queue;

#[cfg(test)]
mod tests;

pub use answers::{AnswerCounts, Answers, RESPONSE_BOUNDS, count_answers};
pub use balancer::{Bound, Method, Timed, Until};
pub use caller::{
    AttemptError, AttemptFailure, AttemptStart, Caller, ConnectionRoom, PeerProtocol, RetryPolicy,
    Socket, Unanswered,
};
pub use causes::Causes;
pub use gate::{Admitted, Concurrency, Entry, Load, Patience, WaitingRequest};
pub use group::{Group, Keepalive, Queueing};
pub use health::{Check, CheckCounts, Checks, Finding, Health, HealthChange};
pub use hosts::{Host, ListedHost, ResolvedAddress};
pub use lease::Lease;
pub use members::{
    Availability, Edit, Keep, MEMBERS_MAX, Member, MemberChange, MemberError, Origin, Patch,
};
pub use outliers::{Cause, Outliers, PutOut};
pub use peer::{Peer, PeerSet, Standing};
pub use peers::{PeerSide, Peers};
pub use queue::QueueTicket;
pub use remembered::Remembered;
pub use retries::RetryBudget;
pub use roster::{HostLookup, Roster};
pub use selection::{FailureEffect, Selection};
pub use state::State;
pub use try_peers::{Answered, CONNECTING, TryResult, try_peers, unless_gone};
