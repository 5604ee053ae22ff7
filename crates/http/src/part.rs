//! Http's part of a whole configuration: declared before anything is compiled, compiled, and added to the generation once
//! nothing has been found wrong.

use std::sync::Arc;

use conf::{Declared, ScopeRef};
use framework::compile::Compiler;
use framework::generation::Generation;
use framework::network::Peers;
use transport::tls::handshake::Intercepts;
use variables::Find;

use crate::address::Binding;
use crate::compile;
use crate::handshake::Handshake;
use crate::module::Entry;
use crate::plan::Http;
use crate::request::Request;
use crate::variables::{Found, Table, TableBuilder};

/// What modules bring together: the list of all of them, in nginx's order.
#[derive(Clone, Copy)]
pub struct Modules(pub &'static [Entry]);

impl Modules {
    /// Every directive, by module. One that several modules look at is there more than once.
    pub fn directives(self) -> impl Iterator<Item = &'static dyn Declared> {
        let tables = self.0.iter().flat_map(|entry| entry.directives);
        tables.copied().flatten().copied()
    }

    /// Where the variables of requests are found that are there without being defined.
    pub fn variables(self) -> impl Iterator<Item = Find<Request>> {
        self.0.iter().flat_map(|entry| entry.variables).copied()
    }

    /// The variable of requests that is there without being defined, by its name in lower case, without `$`.
    pub fn variable(self, name: &str) -> Option<Found> {
        self.variables().find_map(|find| find(name))
    }

    fn of_handshakes(self) -> impl Iterator<Item = Find<Handshake>> {
        self.0.iter().flat_map(|entry| entry.of_handshakes).copied()
    }

    /// Tells what is compiled of the variables that are there without being defined.
    pub fn declare(self, compiler: &Compiler<'_>) {
        let of_requests = compiler.registry::<TableBuilder>();
        of_requests.borrow_mut().builtins = self.variables().collect();
        let of_handshakes = compiler.registry::<variables::TableBuilder<Handshake>>();
        of_handshakes.borrow_mut().builtins = self.of_handshakes().collect();
    }

    /// Compiles the `http` block; `None` when there were errors (they have been reported).
    pub fn compile(self, compiler: &Compiler<'_>, root: ScopeRef<'_>) -> Option<Part> {
        let (http, bindings) = compile::http(compiler, root, self.0)?;
        Some(Part {
            modules: self,
            http,
            bindings,
        })
    }
}

/// All variables that were named while the `http` block was compiled.
#[derive(Default)]
pub struct Variables {
    of_requests: Table,
    of_handshakes: variables::Table<Handshake>,
}

impl Variables {
    /// Takes them from where they were gathered, once everything has been compiled. The error lists those that nothing defines.
    pub fn take(compiler: &Compiler<'_>) -> Result<Variables, Vec<Box<str>>> {
        let of_requests = compiler.registries.take::<TableBuilder>().finish()?;
        let of_handshakes = compiler
            .registries
            .take::<variables::TableBuilder<Handshake>>();
        Ok(Variables {
            of_requests,
            // Whatever a handshake does not have by itself is asked of a request, so that none of its names is unknown.
            of_handshakes: of_handshakes.finish().unwrap_or_default(),
        })
    }
}

/// The compiled `http` block on its way into a generation.
pub struct Part {
    modules: Modules,
    http: Http,
    /// What it listens on.
    pub bindings: Vec<Binding>,
}

impl Part {
    /// Adds it and what its modules have gathered; gives back what it listens on.
    pub fn add_to(
        mut self,
        generation: &mut Generation,
        compiler: &Compiler<'_>,
        variables: Variables,
        debug_connections: Arc<Peers>,
    ) -> Vec<Binding> {
        self.http.variables = variables.of_requests;
        self.http.of_handshakes = variables.of_handshakes;
        self.http.debug_connections = debug_connections;
        generation.add(self.http);
        let entries = self.modules.0.iter();
        let intercepts = entries.clone().flat_map(|entry| entry.intercepts);
        generation.add(Intercepts(intercepts.copied().collect()));
        let gathered = entries.filter_map(|entry| entry.gathered);
        gathered.for_each(|add| add(compiler, generation));
        self.bindings
    }
}
