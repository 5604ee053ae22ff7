//! What differs between protocols that have `upstream` blocks.

use ::upstream::Timed;
use conf::{Contexts, Fault, Line, ScopeRef};
use framework::compile::Compiler;
use variables::Context;

/// Where a directive stands that all groups have.
pub(super) const BLOCKS: Contexts = Contexts::UPSTREAM.or(Contexts::STREAM_UPSTREAM);

/// What `upstream` blocks are to one protocol.
pub trait Upstreams: Sized + Send + Sync + 'static {
    /// What is placed among the servers: a request, a session.
    type Context: Context;

    /// How servers of sessions are found again.
    type Sticky: Send + Sync;

    /// The block that they stand in. Groups of one name in different blocks share nothing.
    const BLOCK: &'static str;

    /// The port of a server that is written without one; `None` where one has to be written.
    const DEFAULT_PORT: Option<u16>;

    /// Whether connections may serve again once they have served.
    const KEEPS_CONNECTIONS: bool;

    /// What `least_time` of a block goes by, where it is written.
    ///
    /// # Errors
    /// Those of its line.
    fn least_time(block: ScopeRef<'_>) -> Result<Option<Timed>, Fault>;

    /// The line of `sticky` of a block, if there is one.
    fn sticky_line(block: ScopeRef<'_>) -> Option<&Line>;

    /// What that line says.
    ///
    /// # Errors
    /// Those of its line.
    fn sticky(
        compiler: &Compiler<'_>,
        block: ScopeRef<'_>,
        name: &str,
    ) -> Result<Option<Self::Sticky>, Fault>;
}
