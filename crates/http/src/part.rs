//! HTTP's part of the server: its modules, its configuration block, and its handler for accepted
//! connections.

use std::rc::Rc;
use std::sync::Arc;

use conf::{Declared, ScopeRef};
use framework::compile::Compiler;
use framework::connection_handler::ConnectionHandler;
use framework::generation::Generation;
use framework::network::DebugConnections;
use framework::protocol_part::{CompiledPart, Directives, ListenSocket, ProtocolPart};
use transport::tls::handshake::Intercepts;
use variables::Find;

use crate::config::compile;
use crate::config::plan::Http;
use crate::connection_handler;
use crate::handshake::Handshake;
use crate::module::Entry;
use crate::request::Request;
use crate::response::memory;
use crate::variables::{BuiltinVariable, TableBuilder};

/// The list of all modules, in nginx's order.
#[derive(Clone, Copy)]
pub struct Modules(pub &'static [Entry]);

impl Modules {
    /// All directives, by module. A directive that several modules use is listed more than once.
    pub fn directives(self) -> impl Iterator<Item = &'static dyn Declared> {
        let tables = self.0.iter().flat_map(|entry| entry.directives);
        tables.copied().flatten().copied()
    }

    /// The functions that find built-in variables of requests.
    pub fn variables(self) -> impl Iterator<Item = Find<Request>> {
        self.0.iter().flat_map(|entry| entry.variables).copied()
    }

    /// The built-in variable of requests with this name in lower case, without `$`.
    pub fn variable(self, name: &str) -> Option<BuiltinVariable> {
        self.variables().find_map(|find| find(name))
    }

    fn of_handshakes(self) -> impl Iterator<Item = Find<Handshake>> {
        self.0.iter().flat_map(|entry| entry.of_handshakes).copied()
    }
}

impl ProtocolPart for Modules {
    fn name(&self) -> &'static str {
        "http"
    }

    fn directives(&self) -> Vec<Directives> {
        let tables = self.0.iter().flat_map(|entry| entry.directives);
        tables.copied().collect()
    }

    fn module_names(&self) -> Vec<&'static str> {
        let names = self.0.iter().flat_map(|entry| entry.names);
        names.copied().collect()
    }

    fn has_variable(&self, name: &str) -> bool {
        self.variable(name).is_some()
    }

    fn declare(&self, compiler: &Compiler<'_>) {
        let of_requests = compiler.registry::<TableBuilder>();
        of_requests.borrow_mut().builtins = self.variables().collect();
        let of_handshakes = compiler.registry::<variables::TableBuilder<Handshake>>();
        of_handshakes.borrow_mut().builtins = self.of_handshakes().collect();
    }

    fn compile(
        &self,
        compiler: &Compiler<'_>,
        root: ScopeRef<'_>,
    ) -> Option<Box<dyn CompiledPart>> {
        let http = compile::http(compiler, root, self.0)?;
        Some(Box::new(Compiled {
            modules: *self,
            http,
        }))
    }

    // A variable that handshakes do not have is evaluated for an empty request, so only names that
    // requests do not have are unknown.
    fn unknown_variables(&self, compiler: &Compiler<'_>) -> Vec<Box<str>> {
        compiler.registry::<TableBuilder>().borrow().unknown()
    }

    fn handler(&self) -> Rc<dyn ConnectionHandler> {
        connection_handler::handler()
    }
}

/// The compiled `http` block before it is added to a generation.
struct Compiled {
    modules: Modules,
    http: Http,
}

impl CompiledPart for Compiled {
    fn add_to(
        mut self: Box<Self>,
        compiler: &Compiler<'_>,
        generation: &mut Generation,
    ) -> Vec<ListenSocket> {
        let registries = &compiler.registries;
        // Undefined names have been reported already.
        let variables = registries.take::<TableBuilder>();
        self.http.variables = variables.finish().unwrap_or_default();
        let of_handshakes = registries.take::<variables::TableBuilder<Handshake>>();
        self.http.of_handshakes = of_handshakes.finish().unwrap_or_default();
        self.http.debug_connections = generation.part::<DebugConnections>().unwrap_or_default();
        let listening = self.http.bindings.iter().map(|binding| ListenSocket {
            id: binding.id.clone(),
            options: binding.options.clone(),
        });
        let listening = listening.collect();
        let bound = memory::ResponseMemoryLimit(self.http.response_memory);
        generation.services.push(Arc::new(bound));
        generation.add(self.http);
        let entries = self.modules.0.iter();
        let intercepts = entries.clone().flat_map(|entry| entry.intercepts);
        generation.add(Intercepts(intercepts.copied().collect()));
        let gathered = entries.filter_map(|entry| entry.gathered);
        gathered.for_each(|add| add(compiler, generation));
        listening
    }
}
