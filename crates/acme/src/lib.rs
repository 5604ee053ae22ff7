//! Automatic HTTPS: an ACME client with accounts, orders, renewals and state on disk.
//!
//! An [`Issuer`] is one ACME server with one account. [`Issuer::start`] starts its thread, which
//! obtains a certificate for each [`Order`] and renews it in time. The thread passes certificates
//! to a [`Host`], which also answers the challenges. All functions here block; no thread that
//! serves requests calls them.
//!
//! RFC 8555 (ACME), RFC 8737 (`tls-alpn-01`), RFC 8738 (addresses), RFC 9773 (renewal information).
//! The crate `instant-acme` encodes and signs the messages. This crate sends them (`http`),
//! schedules them, and handles the responses.
//!
//! Deliberately not here: directives, listeners, the choice of a certificate for a connection.

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
pub use certificate::{Certificate, CertificateError};
pub use challenge::{Challenge, ChallengeReply, DnsProgram, Host, RunProgram, run_programs_by};
pub use http::is_url;
pub use issuer::{Issuer, IssuerThread, Profile};
pub use order::{Identifier, InvalidName, KeyKind, Order, UnknownKey};
pub use schedule::Window;
pub use store::{Memory, StateFolder, Store};
pub use trust::{NoRoots, trust};
