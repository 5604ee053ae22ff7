//! The differences between protocols with `upstream` blocks.

use ::upstream::Timed;
use conf::{Contexts, Fault, Line, ScopeRef, Setting};
use framework::compile::Compiler;
use variables::Context;

/// The contexts of the directives that are allowed in the `upstream` blocks of all protocols.
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
    /// The request or session for which a peer is chosen.
    type Context: Context;

    /// The compiled form of `sticky`.
    type Sticky: Send + Sync;

    /// The name of the block that contains the protocol's `upstream` blocks, such as `http`. Groups
    /// with the same name in different such blocks are independent.
    const BLOCK: &'static str;

    /// The parameters of `server`.
    const SERVERS: Servers;

    /// Whether idle connections are kept for later requests.
    const KEEPS_CONNECTIONS: bool;

    /// The protocol's declaration of `least_time`, with the times that it can measure.
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
