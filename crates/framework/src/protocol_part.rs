//! One protocol's part of a server, as what puts a server together sees it: it knows no protocol by
//! name.
//!
//! A configuration passes its parts in this order: every part [declares](ProtocolPart::declare)
//! what its block may refer to, every part [compiles](ProtocolPart::compile) its block and says
//! which names [nothing defines](ProtocolPart::unknown_variables), and if nothing has been found
//! wrong each compiled part is [added](CompiledPart::add_to) to the generation. Log files, folders
//! and zones need nothing here: a part asks the [`Compiler`] for them, as every module does.
//! Services and what threads look up go into the [`Generation`].

use std::rc::Rc;

use conf::{Declared, ScopeRef};
use engine::net::ListenOptions;

use crate::compile::Compiler;
use crate::door::{Door, ListenerId};
use crate::generation::Generation;

/// A table of directives, declared beside the code that they steer.
pub type Directives = &'static [&'static dyn Declared];

/// A socket that a configuration listens on.
#[derive(Clone, Debug)]
pub struct ListenSocket {
    /// Identifies the socket over all generations.
    pub id: ListenerId,
    /// How the socket is opened.
    pub options: ListenOptions,
}

/// A protocol, as a server is put together of: its directives, its block, the door behind its
/// addresses.
pub trait ProtocolPart: Sync {
    /// The name of its block, as `http`.
    fn name(&self) -> &'static str;

    /// Its tables of directives. A directive that several modules look at may be there twice.
    fn directives(&self) -> Vec<Directives>;

    /// The modules that it has built in, by the names that `load_module` gives them.
    fn module_names(&self) -> Vec<&'static str>;

    /// Whether it has a variable of this name (in lower case, without `$`) that no line defines.
    fn has_variable(&self, name: &str) -> bool;

    /// Tells the compiler what blocks may refer to, before any of them is compiled.
    fn declare(&self, compiler: &Compiler<'_>);

    /// Compiles its block, or nothing where there is none; `None` when there were errors, which
    /// have been reported.
    fn compile(&self, compiler: &Compiler<'_>, root: ScopeRef<'_>)
    -> Option<Box<dyn CompiledPart>>;

    /// The variables that its block names and nothing defines, once all blocks have been compiled.
    fn unknown_variables(&self, compiler: &Compiler<'_>) -> Vec<Box<str>>;

    /// The door of a thread to connections of this protocol.
    fn door(&self) -> Rc<dyn Door>;
}

/// A protocol's compiled block on its way into a generation.
pub trait CompiledPart {
    /// Adds the block, and what its modules have gathered, to the generation; gives back what it
    /// listens on.
    fn add_to(
        self: Box<Self>,
        compiler: &Compiler<'_>,
        generation: &mut Generation,
    ) -> Vec<ListenSocket>;
}
