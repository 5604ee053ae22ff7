//! The differences between protocols with `upstream` blocks.

use ::upstream::Timed;
use conf::{Contexts, Fault, Line, ScopeRef, Setting};
use framework::compile::Compiler;
use variables::Context;

/// The contexts of directives that all groups have.
pub(super) const BLOCKS: Contexts = Contexts::UPSTREAM.or(Contexts::STREAM_UPSTREAM);

/// The parameters of `server` that a protocol supports.
#[derive(Clone, Copy, Debug)]
pub struct Servers {
    /// The port of a server without a port; `None` if a port is required.
    pub default_port: Option<u16>,
    /// Whether servers have names: for `sticky` (`route`, and `drain`) and for `metrics` (`id`).
    pub are_named: bool,
}

/// The properties of a protocol's `upstream` blocks.
pub trait Upstreams: Sized + Send + Sync + 'static {
    /// The context that is balanced: a request or a session.
    type Context: Context;

    /// The stickiness of a group.
    type Sticky: Send + Sync;

    /// The surrounding block. Groups with the same name in different blocks share nothing.
    const BLOCK: &'static str;

    /// The parameters of `server`.
    const SERVERS: Servers;

    /// Whether idle connections may be reused.
    const KEEPS_CONNECTIONS: bool;

    /// `least_time`, with the times that can be measured.
    fn least_time() -> &'static Setting<Timed>;

    /// The line of `sticky` of a block, if there is one.
    fn sticky_line(block: ScopeRef<'_>) -> Option<&Line>;

    /// Compiles the line of `sticky`, if there is one.
    ///
    /// # Errors
    /// An invalid line.
    fn sticky(
        compiler: &Compiler<'_>,
        block: ScopeRef<'_>,
        name: &str,
    ) -> Result<Option<Self::Sticky>, Fault>;
}
