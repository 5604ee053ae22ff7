//! Servers that are asked on behalf of clients: which one is asked, how they have done, and
//! connections to them that are kept.
//!
//! Nothing here knows a protocol or a directive: modules say what a [`Group`] consists of, and
//! speak over what they get. A [`Roster`] has the list of a group's peers now, a [`Peers`]; its
//! [`Peer`]s have a [`State`] that all threads share and that a reload hands on to the peer of the
//! same identity ([`Remembered`]), and a [`Health`] where checks are made of them. A [`Selection`]
//! is one request's way through a group: it asks the group's balancer for a peer and gives a
//! [`Lease`], which counts until it is dropped, so that every way to end gives back exactly once.
//! Where a group bounds how many requests are under way towards it, a request has to be
//! [`Admitted`] first. What a thread keeps of connections is its [`pool`]. All of it comes together
//! in [`try_peers`], the loop over peers, for a request or a session ([`Caller`]) and whatever is
//! asked ([`PeerProtocol`]).

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
pub use lease::Lease;
pub use members::{
    Availability, Edit, Keep, MEMBERS_MAX, Member, MemberChange, MemberError, Patch,
};
pub use outliers::{Cause, Outliers, PutOut};
pub use peer::{Peer, PeerSet, Standing};
pub use peers::{Peers, SideOf};
pub use queue::QueueTicket;
pub use remembered::Remembered;
pub use retries::RetryBudget;
pub use roster::{Host, ResolvedAddress, Roster};
pub use selection::{FailureEffect, Selection};
pub use state::State;
pub use try_peers::{Answered, CONNECTING, TryResult, try_peers, unless_gone};
