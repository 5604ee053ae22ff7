//! `upstream` in `http`: groups of servers to which requests are passed on.
//!
//! `rules::upstream` compiles the blocks; this module adds what only HTTP has: sticky sessions
//! (`sticky`), and measuring the time to the response's head.

mod selection;
mod sticky;

use ::upstream::Timed;
use conf::{Arity, Contexts, Declared, Fault, Line, ScopeRef, Setting, parse};
use framework::compile::Compiler;
use framework::generation::Generation;
use http::request::Request;
use rules::upstream::{LEAST_TIME, Servers, Upstreams};

pub use selection::Selection;
pub use sticky::LearnOnDrop;
pub use sticky::StickyRequest;
use sticky::{STICKY, Sticky};

static UPSTREAM: Setting<()> = Setting::new("upstream", &["name { ... }"], parse::nothing)
    .contexts(Contexts::HTTP)
    .arity(Arity::exactly(1))
    .block()
    .opens(Contexts::UPSTREAM)
    .manual(
        "A group of servers under a name that `proxy_pass` takes in place of a host. Requests \
         are shared out by weighted round robin, unless the block names another method. All threads know what each has \
         seen of a server, and a reload forgets nothing of it.",
    );

/// The directives of this module.
pub const DIRECTIVES: &[&dyn Declared] = &[&UPSTREAM, &STICKY];

/// The directives inside a block.
pub use rules::upstream::DIRECTIVES as DIRECTIVES_OF_BLOCKS;

/// The `upstream` blocks of HTTP.
pub struct HttpUpstreams;

impl Upstreams for HttpUpstreams {
    type Context = Request;

    type Sticky = Sticky;

    const BLOCK: &'static str = "http";

    const SERVERS: Servers = Servers {
        default_port: Some(80),
        are_named: true,
    };

    const KEEPS_CONNECTIONS: bool = true;

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
    ) -> Result<Option<Sticky>, Fault> {
        let Some(written) = block.own(&STICKY)? else {
            return Ok(None);
        };
        let sticky = Sticky::compile(compiler, written, name);
        let sticky = sticky.map_err(|fault| match Self::sticky_line(block) {
            Some(line) => fault.or_at(line.position).while_reading(),
            None => fault,
        })?;
        Ok(Some(sticky))
    }
}

/// A group: its peers, and its load-balancing method.
pub type Group = rules::upstream::Group<HttpUpstreams>;

/// The groups of one configuration.
pub type Groups = rules::upstream::Groups<HttpUpstreams>;

/// The health checks of groups.
pub type WrittenChecks = rules::upstream::WrittenChecks<HttpUpstreams>;

/// Compiles all `upstream` blocks.
pub fn compile(compiler: &Compiler<'_>, http: ScopeRef<'_>) {
    rules::upstream::compile::<HttpUpstreams>(compiler, http);
}

/// Adds the groups and the resolution of their names to the generation.
pub fn add(compiler: &Compiler<'_>, generation: &mut Generation) {
    rules::upstream::add::<HttpUpstreams>(compiler, generation);
}

/// Starts the selection of peers for a request, with at most `tries_max` attempts; 0 for as many as
/// there are peers.
pub fn select(group: &Group, request: &mut Request, tries_max: usize) -> Selection {
    let peers = group.select(request, tries_max);
    let sticking = group.sticky().map(|sticky| sticky.begin(request));
    Selection::new(peers, sticking)
}
