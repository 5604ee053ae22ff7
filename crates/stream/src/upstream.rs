//! `upstream` in `stream`: the groups of servers for sessions.
//!
//! <https://nginx.org/en/docs/stream/ngx_stream_upstream_module.html>. `rules::upstream` compiles
//! the blocks; this file has the differences from groups of `http`.

use ::upstream::{Timed, Until};
use conf::{Arity, Contexts, Declared, Fault, Line, ScopeRef, Setter, Setting, parse};
use framework::compile::Compiler;
use rules::upstream::sticky::Affinity;
use rules::upstream::sticky::line::{self, LearnLine, LearnedFrom};
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

static STICKY: Setting<StickyLine> = Setting::new(
    "sticky",
    &[
        "route $variable ...",
        "learn lookup=$variable ... zone=name:size [create=$variable ...] [timeout=time]",
    ],
    sticky_line,
)
.contexts(Contexts::STREAM_UPSTREAM)
.arity(Arity::at_least(2))
.manual(
    "Sessions that belong together go to one server, as long as that may be asked; else the method \
     chooses another. It stands behind the line that names the method. With `route` the first \
     variable that is not empty names the server: by what `route` says on its line, else by the \
     MD5 hash of its address. With `learn` the first variable of `lookup` that is not empty is \
     remembered together with the server that the session is connected to, and a session that brings the \
     same goes there: `$remote_addr` for clients, `$ssl_preread_server_name` for names. `create` \
     names other variables to be remembered than those that are looked up. All threads know what is \
     remembered in the zone, a megabyte of which holds about 4,000, and reloads keep it. What is \
     not used for `timeout` (10m) is forgotten, counted from the beginning and the end of each \
     session, and where the zone is full, what was used longest ago. nginx does not have it in \
     `stream`.",
);

/// A `sticky` directive.
enum StickyLine {
    Route(Vec<String>),
    Learn(LearnLine),
}

fn sticky_line(setter: &Setter<'_>) -> Result<StickyLine, Fault> {
    let kind = setter.word()?;
    let rest = setter.args().get(1..).unwrap_or_default();
    match &*kind.bytes {
        b"route" => line::route(rest).map(StickyLine::Route),
        b"learn" => line::learn(setter, rest, LearnedFrom::Connections).map(StickyLine::Learn),
        _ => Err(line::unknown_parameter(kind)),
    }
}

/// The directives of this file.
pub(crate) const DIRECTIVES: &[&dyn Declared] = &[&UPSTREAM, &LEAST_TIME, &STICKY];

/// The kind of `upstream` blocks for sessions.
pub(crate) struct OfSessions;

impl Upstreams for OfSessions {
    type Context = Session;

    type Sticky = Affinity<Session>;

    const BLOCK: &'static str = "stream";

    const SERVERS: Servers = Servers {
        default_port: None,
        are_named: true,
    };

    const KEEPS_CONNECTIONS: bool = false;

    fn least_time() -> &'static Setting<Timed> {
        &LEAST_TIME
    }

    fn sticky_line(block: ScopeRef<'_>) -> Option<&Line> {
        block.own_lines(&STICKY.spec).first().copied()
    }

    fn sticky(
        compiler: &Compiler<'_>,
        block: ScopeRef<'_>,
        name: &str,
    ) -> Result<Option<Affinity<Session>>, Fault> {
        Ok(match block.own(&STICKY)? {
            None => None,
            Some(StickyLine::Route(names)) => Some(Affinity::by_name(compiler, &names)),
            Some(StickyLine::Learn(line)) => {
                let learned = Affinity::learned(compiler, &line, name);
                Some(learned.map_err(|fault| match Self::sticky_line(block) {
                    Some(line) => fault.or_at(line.position).while_reading(),
                    None => fault,
                })?)
            }
        })
    }
}

/// A group of peers for sessions.
pub(crate) type Group = rules::upstream::Group<OfSessions>;

/// The groups of one configuration.
pub(crate) type Groups = rules::upstream::Groups<OfSessions>;
