//! Automatic HTTPS: an ACME client with its accounts, orders, renewals and state on disk.
//!
//! An [`Issuer`] is one ACME server with one account; [`Issuer::start`] gives it a thread that asks
//! for a certificate for each [`Order`] and renews it in time. What is made is handed to a
//! [`Host`], which also shows the answers to challenges. The thread only ever waits for the
//! network, so everything here blocks: it is no part of the way of a request.
//!
//! RFC 8555 (ACME), RFC 8737 (`tls-alpn-01`), RFC 8738 (addresses), RFC 9773 (renewal information).
//! The messages and their signatures are those of the crate `instant-acme`; ours is how they are
//! sent (`http`), when, and what becomes of the answers.
//!
//! Deliberately not here: directives, listeners, which server a certificate is for.

mod account;
mod authority;
mod certificate;
mod challenge;
mod http;
mod issue;
mod issuer;
mod order;
mod schedule;
mod store;
mod trust;
mod wait;

pub use account::{AccountKey, ExternalAccount, revoke};
pub use authority::{AUTHORITY_CERTIFICATE, Authority};
pub use base::level::Level;
pub use certificate::{Certificate, Unusable};
pub use challenge::{Challenge, ChallengeReply, DnsProgram, Host, RunProgram, run_programs_by};
pub use http::is_url;
pub use issuer::{Issuer, IssuerThread, Profile};
pub use order::{Identifier, InvalidName, KeyKind, Order, UnknownKey};
pub use schedule::Window;
pub use store::{Memory, StateFolder, Store};
pub use trust::{NoRoots, trust};
