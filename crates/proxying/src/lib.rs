//! Requests passed on to servers, whatever is spoken with them.
//!
//! Here is what `proxy`, `fastcgi`, `uwsgi`, `scgi`, `memcached` and `tunnel` have in common.
//! `settings` is what a scope says of it (`family` declares the directives, `buffers`, `fields`,
//! `ssl`, `socket` and `store_settings` those of their own kind), `destination` reads addresses,
//! `locate` looks names up. `peer_attempts` is a request in the loop over the peers of a group,
//! which is `::upstream::try_peers`, `connect_target` says how they are reached, and `connection`
//! is what leads to one; a module's `Dialogue` is had with each, to which `sending` gives the
//! client's body (`request_framing`), of which `upload` sends the rest once the answer comes,
//! unless it is `stopped`. `response` takes the head of an answer (`answer`), `rewriting` is what
//! changes in it, `deliver` makes it the response. `body` streams the rest at its `pace`, as
//! `answer_framing` finds it, with its `trailers`, unless it is `whole` already; `store` keeps it
//! as a file, `cache` to give it again; `tunnel` carries upgraded connections. `interim` is what
//! may come before an answer, `http2` what a request says on a connection that it shares. `probe`
//! asks a server on our own account. `driver` is the whole way of a request to an upstream and
//! back, which goes step by step as its protocol says. `attempts` and `variables` are what a
//! request tells of it, `failures` what is logged and noted where it comes to nothing, `activity`
//! how log lines end meanwhile. Which server of a group is asked is the business of `upstream`.
//!
//! What a scope says stands below what requests do with it: no settings import what acts by
//! them.

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

/// What is done last.
pub const READING_BODY: &str = "while reading upstream";

/// Ends what was asked of upstreams with a status; its page is what is being sent then.
pub fn finish(request: &mut Request, status: u16) -> Step {
    request.activity.doing = WHILE_SENDING_ON;
    Step::Finish(status)
}
