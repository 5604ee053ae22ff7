//! What differs between protocols that have `upstream` blocks.

use ::upstream::Timed;
use conf::{Contexts, Fault, Line, ScopeRef, Setting};
use framework::compile::Compiler;
use variables::Context;

/// Where a directive stands that all groups have.
pub(super) const BLOCKS: Contexts = Contexts::UPSTREAM.or(Contexts::STREAM_UPSTREAM);

/// What lines of `server` may say in the groups of a protocol.
#[derive(Clone, Copy, Debug)]
pub struct Servers {
    /// The port of one that is written without; `None` where one has to be written.
    pub default_port: Option<u16>,
    /// Whether something names a server: `sticky` by `route`, also while it drains (`drain`), and
    /// `metrics` by `id`.
    pub are_named: bool,
}

/// What `upstream` blocks are to one protocol.
pub trait Upstreams: Sized + Send + Sync + 'static {
    /// What is placed among the servers: a request, a session.
    type Context: Context;

    /// How servers of sessions are found again.
    type Sticky: Send + Sync;

    /// The block that they stand in. Groups of one name in different blocks share nothing.
    const BLOCK: &'static str;

    /// What lines of `server` may say.
    const SERVERS: Servers;

    /// Whether connections may serve again once they have served.
    const KEEPS_CONNECTIONS: bool;

    /// `least_time`: what can be measured of an answer.
    fn least_time() -> &'static Setting<Timed>;

    /// The line of `sticky` of a block, if there is one.
    fn sticky_line(block: ScopeRef<'_>) -> Option<&Line>;

    /// Parses the line `sticky`.
    ///
    /// # Errors
    /// Those of the line `sticky`.
    fn sticky(
        compiler: &Compiler<'_>,
        block: ScopeRef<'_>,
        name: &str,
    ) -> Result<Option<Self::Sticky>, Fault>;
}
