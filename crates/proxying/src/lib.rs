//! Passes requests on to upstream servers, with any protocol.
//!
//! This crate is the common part of `proxy`, `fastcgi`, `uwsgi`, `scgi`, `memcached` and `tunnel`.
//! `driver` is the whole way of a request to an upstream and back, whose steps a protocol defines.
//! `settings` holds the settings of a scope (`family` declares the directives; `buffers`, `fields`,
//! `ssl` and `store_settings` those of their kind), `destination` parses addresses, and `locate`
//! resolves names. `peer_attempts` runs the loop over the peers of a group
//! (`::upstream::try_peers`), `connect_target` describes how peers are reached, and `connection` is
//! the connection to one. A module's `Dialogue` talks to each peer: `sending` sends the client's
//! body (framed by `request_framing`), and `upload` the rest once the response has begun, unless it
//! is `stopped`. `response` reads the head of a response (`answer`), `rewriting` changes its
//! fields, and `deliver` makes it the client's response. `body` streams the body at its `pace`,
//! decoded by `answer_framing`, with its `trailers`; `whole` is a body that is already complete.
//! `store` saves responses as files, `cache` stores them for reuse, and `tunnel` carries upgraded
//! connections. `interim` handles 1xx responses, `http2` requests on shared connections, and
//! `probe` sends Tidegate's requests. `attempts` and `variables` record what a request tells of its
//! upstreams, `failures` logs and notes failures, and `activity` holds the phrases of log lines.
//! The crate `upstream` chooses the server of a group.
//!
//! Settings are below the code that uses them: no settings module imports that code.

pub mod activity;
pub mod answer;
pub mod answer_framing;
pub mod attempts;
pub mod body;
pub mod buffers;
pub mod cache;
pub mod connect_target;
pub mod connection;
pub mod deliver;
pub mod destination;
pub mod driver;
pub mod early_hints;
pub mod failures;
pub mod family;
pub mod fields;
pub mod http2;
pub mod interim;
pub mod locate;
mod pace;
pub mod peer_attempts;
pub mod probe;
pub mod request_framing;
pub mod response;
pub mod rewriting;
pub mod sending;
pub mod settings;
pub mod ssl;
pub mod stopped;
pub mod store;
mod store_settings;
mod trailers;
pub mod tunnel;
pub mod upload;
pub mod upstream;
pub mod variables;
mod whole;

use http::request::activity::WHILE_SENDING_ON;
use http::request::{Request, Step};

/// The activity of reading the response body, at the end of log lines.
pub const READING_BODY: &str = "while reading upstream";

/// Ends the use of upstreams, and the request with this status. The activity in log lines is then
/// that of sending the response for the status.
pub fn finish(request: &mut Request, status: u16) -> Step {
    request.activity.doing = WHILE_SENDING_ON;
    Step::Finish(status)
}
