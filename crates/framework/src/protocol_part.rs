//! The interface of one protocol to the code that assembles a server, which names no protocol.
//!
//! A configuration is processed in this order: each part [declares](ProtocolPart::declare) what
//! other blocks may refer to; each part [compiles](ProtocolPart::compile) its block and reports
//! [undefined variables](ProtocolPart::unknown_variables); without errors, each compiled part is
//! [added](CompiledPart::add_to) to the generation. Parts request log files, directories and zones
//! from the [`Compiler`], as every module does. Services, and values that threads look up, go into
//! the [`Generation`].

use std::rc::Rc;

use conf::{Declared, ScopeRef};
use engine::net::ListenOptions;

use crate::compile::Compiler;
use crate::connection_handler::{ConnectionHandler, ListenerId};
use crate::generation::Generation;

/// A table of directives, declared beside the code that uses them.
pub type Directives = &'static [&'static dyn Declared];

/// A socket that a configuration listens on.
#[derive(Clone, Debug)]
pub struct ListenSocket {
    /// Identifies the socket across generations.
    pub id: ListenerId,
    /// How the socket is opened.
    pub options: ListenOptions,
}

/// A protocol: its directives, its block, and the connection handler for its connections.
pub trait ProtocolPart: Sync {
    /// The name of the protocol's block, such as `http`.
    fn name(&self) -> &'static str;

    /// The protocol's tables of directives. A directive that several modules use may be listed
    /// twice.
    fn directives(&self) -> Vec<Directives>;

    /// The built-in modules, by the names that `load_module` uses.
    fn module_names(&self) -> Vec<&'static str>;

    /// Whether the protocol has a built-in variable of this name (in lower case, without `$`).
    fn has_variable(&self, name: &str) -> bool;

    /// Declares what other blocks may refer to, before any block is compiled.
    fn declare(&self, compiler: &Compiler<'_>);

    /// Compiles the protocol's block, which may be absent; `None` if errors were reported.
    fn compile(&self, compiler: &Compiler<'_>, root: ScopeRef<'_>)
    -> Option<Box<dyn CompiledPart>>;

    /// The variables that the protocol's block uses but nothing defines. Called after all blocks
    /// have been compiled.
    fn unknown_variables(&self, compiler: &Compiler<'_>) -> Vec<Box<str>>;

    /// A thread's connection handler for connections of this protocol.
    fn handler(&self) -> Rc<dyn ConnectionHandler>;
}

/// A protocol's compiled block, to be added to a generation.
pub trait CompiledPart {
    /// Adds the block, and the collections of its modules, to the generation. Returns the sockets
    /// to listen on.
    fn add_to(
        self: Box<Self>,
        compiler: &Compiler<'_>,
        generation: &mut Generation,
    ) -> Vec<ListenSocket>;
}
