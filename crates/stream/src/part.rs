//! The protocol part for `stream`: its directives, its block, and the connection handler of its
//! addresses.

use std::rc::Rc;

use conf::{Declared, ScopeRef};
use framework::compile::{Compiler, Feature as _};
use framework::connection_handler::ConnectionHandler;
use framework::generation::Generation;
use framework::network::DebugConnections;
use framework::protocol_part::{CompiledPart, Directives, ListenSocket, ProtocolPart};
use rules::keyval;
use rules::limit_conn::{self, LimitConn};
use rules::realip::{self, ByHeader};
use rules::session_zones::SessionZones;
use transport::resolver::Resolving;
use transport::tls::settings::TlsSettings;
use variables::{Find, TableBuilder, process};

use crate::plan::Stream;
use crate::preread::seen;
use crate::proxy_protocol::SessionRealIp;
use crate::session::Session;
use crate::upstream::{self, OfSessions};
use crate::{
    compile, connection_handler, handover, health_check, preread, proxy, proxy_protocol, returned,
    set, tls,
};

/// The protocol part that serves the block `stream`.
pub const STREAM: &dyn ProtocolPart = &StreamPart;

/// The sources of the predefined variables of sessions.
const VARIABLES: &[Find<Session>] = &[
    crate::variables::find,
    proxy::variables::find,
    transport::client::find,
    transport::tls::variables::find,
    transport::proxy_protocol::find,
    seen::find,
    realip::find::<Session, SessionRealIp>,
    limit_conn::find::<Session, Session>,
    process::find,
];

/// Directives that declare zones.
const ZONES: &[&dyn Declared] = &[&limit_conn::LIMIT_CONN_ZONE];

struct StreamPart;

impl ProtocolPart for StreamPart {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn directives(&self) -> Vec<Directives> {
        vec![
            compile::DIRECTIVES,
            rules::server_name::DIRECTIVES,
            proxy::settings::DIRECTIVES,
            proxy::tls::DIRECTIVES,
            &proxy::tls::FAMILY_DIRECTIVES,
            returned::DIRECTIVES,
            tls::DIRECTIVES,
            proxy_protocol::DIRECTIVES,
            preread::DIRECTIVES,
            proxy::mqtt::DIRECTIVES,
            set::DIRECTIVES,
            handover::DIRECTIVES,
            ZONES,
            LimitConn::<Session>::DIRECTIVES,
            ByHeader::DIRECTIVES,
            Resolving::DIRECTIVES,
            TlsSettings::<Session>::DIRECTIVES,
            upstream::DIRECTIVES,
            health_check::DIRECTIVES,
            keyval::DIRECTIVES,
        ]
    }

    fn module_names(&self) -> Vec<&'static str> {
        vec!["ngx_stream_module"]
    }

    fn has_variable(&self, name: &str) -> bool {
        VARIABLES.iter().any(|find| find(name).is_some())
    }

    fn declare(&self, compiler: &Compiler<'_>) {
        let variables = compiler.registry::<TableBuilder<Session>>();
        variables.borrow_mut().builtins = VARIABLES.into();
    }

    fn compile(
        &self,
        compiler: &Compiler<'_>,
        root: ScopeRef<'_>,
    ) -> Option<Box<dyn CompiledPart>> {
        Some(Box::new(Compiled(compile::stream(compiler, root)?)))
    }

    fn unknown_variables(&self, compiler: &Compiler<'_>) -> Vec<Box<str>> {
        compiler
            .registry::<TableBuilder<Session>>()
            .borrow()
            .unknown()
    }

    fn handler(&self) -> Rc<dyn ConnectionHandler> {
        connection_handler::handler()
    }
}

/// The compiled `stream` block before it is added to a generation.
struct Compiled(Stream);

impl CompiledPart for Compiled {
    fn add_to(
        mut self: Box<Self>,
        compiler: &Compiler<'_>,
        generation: &mut Generation,
    ) -> Vec<ListenSocket> {
        // Undefined names have already been reported.
        let variables = compiler.registries.take::<TableBuilder<Session>>();
        self.0.variables = variables.finish().unwrap_or_default();
        self.0.debug_connections = generation.part::<DebugConnections>().unwrap_or_default();
        rules::upstream::add::<OfSessions>(compiler, generation);
        health_check::add(compiler, generation);
        generation.add(compiler.registries.take::<SessionZones>());
        let listening = self.0.bindings.iter().map(|binding| ListenSocket {
            id: binding.id.clone(),
            options: binding.options.clone(),
        });
        let listening = listening.collect();
        generation.add(self.0);
        listening
    }
}
