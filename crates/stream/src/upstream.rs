//! `upstream` in `stream`: groups of servers that sessions are passed on to.
//!
//! <https://nginx.org/en/docs/stream/ngx_stream_upstream_module.html>. What a block says is the
//! business of `rules::upstream`; here is what differs from groups that answer requests.

use ::upstream::{Timed, Until};
use conf::{Arity, Contexts, Declared, Fault, Line, ScopeRef, Setting, parse};
use framework::compile::Compiler;
use rules::upstream::{Servers, Upstreams, timed};

use crate::session::Session;

static UPSTREAM: Setting<()> = Setting::new("upstream", &["name { ... }"], parse::nothing)
    .contexts(Contexts::STREAM)
    .arity(Arity::exactly(1))
    .block()
    .opens(Contexts::STREAM_UPSTREAM)
    .manual(
        "A group of servers under a name that `proxy_pass` takes in place of an address. Sessions \
         are shared out by weighted round robin, unless the block names another method. All \
         threads know what each has seen of a server, and a reload forgets nothing of it. A group \
         of `http` that has the same name is another one.",
    );

static LEAST_TIME: Setting<Timed> = Setting::new(
    "least_time",
    &["connect | first_byte | last_byte [inflight]"],
    |setter| {
        let words = [
            ("connect", Until::Connected),
            ("first_byte", Until::Head),
            ("last_byte", Until::LastByte),
        ];
        timed(setter, &words)
    },
)
.contexts(Contexts::STREAM_UPSTREAM)
.arity(Arity::between(1, 2))
.manual(
    "Passes a session to the server that would be done first, by its sessions under way and by how \
     long it has needed to take a connection, to send its first byte, or its last one. With \
     `inflight` sessions that are not there yet count as well.",
);

/// The directives of this file.
pub(crate) const DIRECTIVES: &[&dyn Declared] = &[&UPSTREAM, &LEAST_TIME];

/// What `upstream` blocks are to sessions.
pub(crate) struct OfSessions;

impl Upstreams for OfSessions {
    type Context = Session;

    // Sessions have nothing yet by which a server could be found again.
    type Sticky = ();

    const BLOCK: &'static str = "stream";

    const SERVERS: Servers = Servers {
        default_port: None,
        are_named: false,
    };

    const KEEPS_CONNECTIONS: bool = false;

    fn least_time() -> &'static Setting<Timed> {
        &LEAST_TIME
    }

    fn sticky_line(_: ScopeRef<'_>) -> Option<&Line> {
        None
    }

    fn sticky(_: &Compiler<'_>, _: ScopeRef<'_>, _: &str) -> Result<Option<()>, Fault> {
        Ok(None)
    }
}

/// Peers, and what sessions are placed among them by.
pub(crate) type Group = rules::upstream::Group<OfSessions>;

/// The groups of one configuration.
pub(crate) type Groups = rules::upstream::Groups<OfSessions>;
