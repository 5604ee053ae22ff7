//! Requests passed on to servers, whatever is spoken with them.
//!
//! Here is what `proxy`, `fastcgi`, `uwsgi`, `scgi`, `memcached` and `tunnel` have in common.
//! `settings` is what a scope says of it (`family` declares the directives, `buffers`, `fields`,
//! `ssl`, `socket` and `store` those of their own kind), `destination` reads addresses, `locate`
//! looks names up. `peer_attempts` is a request in the loop over the peers of a group, which is
//! `::upstream::ask`, and `connection` what leads to one; a
//! module's `Conversation` is had with each, to which `sending` gives the client's body, of which
//! `upload` sends the rest once the answer comes. `response` takes the head of an answer
//! (`answer`), `rewriting` is what changes in it, `deliver` makes it the response. `body` streams
//! the rest at its `pace`, with its `trailers`, unless it is `whole` already; `store` keeps it as a
//! file, `cache` to give it again; `tunnel` carries upgraded connections. `interim` is what may
//! come before an answer, `http2` how requests share connections. `probe` asks a server on our own
//! account. `driver` is the whole way of a request to an upstream and back, which goes step by step
//! as its protocol says, `attempts` and `variables` are what a request tells of it. Which server of
//! a group is asked is the business of `upstream`.

pub mod answer;
pub mod attempts;
pub mod body;
pub mod buffers;
pub mod cache;
pub mod connection;
pub mod deliver;
pub mod destination;
pub mod driver;
pub mod early_hints;
pub mod family;
pub mod fields;
pub mod http2;
pub mod interim;
pub mod locate;
mod pace;
pub mod peer_attempts;
pub mod probe;
pub mod response;
pub mod rewriting;
pub mod sending;
pub mod settings;
pub mod socket;
pub mod ssl;
pub mod store;
mod trailers;
pub mod tunnel;
pub mod upload;
pub mod upstream;
pub mod variables;
mod whole;

use http::activity::WHILE_SENDING_ON;
use http::request::{Request, Step};

/// What is done last.
pub const READING_BODY: &str = "while reading upstream";

/// Ends what was asked of upstreams with a status; its page is what is being sent then.
pub fn finish(request: &mut Request, status: u16) -> Step {
    request.activity.doing = WHILE_SENDING_ON;
    Step::Finish(status)
}
