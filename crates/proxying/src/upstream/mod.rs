//! `upstream` in `http`: groups of servers that requests are passed on to.
//!
//! What a block says is the business of `rules::upstream`; here is what only requests have:
//! sessions that stay with a server (`sticky`), and what is measured of an answer that has a head.

mod selection;
mod sticky;

use ::upstream::Timed;
use conf::{Arity, Contexts, Declared, Fault, Line, ScopeRef, Setting, parse};
use framework::compile::Compiler;
use framework::generation::Generation;
use http::request::Request;
use rules::upstream::{LEAST_TIME, Servers, Upstreams};

pub use selection::Selection;
pub use sticky::AtEnd;
pub use sticky::Sticking;
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

/// The directives that stand in a block.
pub use rules::upstream::DIRECTIVES as DIRECTIVES_OF_BLOCKS;

/// What `upstream` blocks are to requests.
pub struct OfRequests;

impl Upstreams for OfRequests {
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

/// Peers, and what requests are placed among them by.
pub type Group = rules::upstream::Group<OfRequests>;

/// The groups of one configuration.
pub type Groups = rules::upstream::Groups<OfRequests>;

/// The checks that are made of groups.
pub type WrittenChecks = rules::upstream::WrittenChecks<OfRequests>;

/// Makes the groups of all `upstream` blocks.
pub fn compile(compiler: &Compiler<'_>, http: ScopeRef<'_>) {
    rules::upstream::compile::<OfRequests>(compiler, http);
}

/// Adds the groups to the generation, and what looks up their names.
pub fn add(compiler: &Compiler<'_>, generation: &mut Generation) {
    rules::upstream::add::<OfRequests>(compiler, generation);
}

/// A request's way through a group, of so many tries at most; 0 is as many as there are peers.
pub fn select(group: &Group, request: &mut Request, tries_max: usize) -> Selection {
    let peers = group.select(request, tries_max);
    let sticking = group.sticky().map(|sticky| sticky.begin(request));
    Selection::new(peers, sticking)
}
