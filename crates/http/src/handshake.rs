//! TLS handshakes of HTTP clients: the servers that a client may name, and the variables in the
//! names of certificates.
//!
//! nginx evaluates these variables after the ClientHello, for an empty request. Variables for which
//! a handshake is sufficient (about the client, the ClientHello, the time) are defined here and by
//! modules ([`of_handshakes`](crate::module::Entry::of_handshakes)). Blocks such as `map` are
//! compiled for handshakes if the name of a certificate refers to them. All other variables have
//! values that depend on settings of requests, so they are evaluated for an empty request, which is
//! created when the first of them is evaluated.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use conf::ScopeRef;
use engine::net::{Address, TcpInfo};
use framework::compile::Compiler;
use framework::generation::GenerationView;
use proto::tls::ClientHello;
use rustls::sign::CertifiedKey;
use transport::client::{Client, HasClient};
use transport::tls::dynamic::CertificateError;
use transport::tls::handshake::ServerSelector;
use transport::tls::server::ServerTls;
use transport::tls::session::Session;
use transport::tls::settings::TlsProtocol;
use variables::blocks;
use variables::write::text;
use variables::{
    BuiltinVariable, Captures, Compiling as _, Context, Evaluate, Scope, Scratch, Source, Table,
    TableBuilder, Values,
};

use crate::config::address::AddressServers;
use crate::config::plan::Server;
use crate::connection::Connection;
use crate::request::Request;
use crate::thread_state::HttpThreadState;

/// A client's TLS handshake with the server that the client has named.
pub struct Handshake {
    /// The generation that serves the handshake.
    local: Rc<GenerationView>,
    http: Rc<HttpThreadState>,
    /// The connection on which the handshake takes place.
    pub connection: Rc<Connection>,
    /// The server whose certificates are chosen.
    pub server: Arc<Server>,
    /// The ClientHello.
    hello: Option<Box<ClientHello>>,
    values: RefCell<Values>,
    captures: Captures,
    scratch: Scratch,
    /// The empty request for variables that only requests have, once such a variable has been
    /// evaluated.
    empty: Option<Box<Request>>,
}

impl Handshake {
    /// Whether an empty request has been created.
    #[cfg(any(test, feature = "testing"))]
    pub fn has_made_a_request(&self) -> bool {
        self.empty.is_some()
    }

    /// The handshake of this connection's client with a server.
    pub fn new(
        local: &Rc<GenerationView>,
        connection: &Rc<Connection>,
        server: &Arc<Server>,
    ) -> Handshake {
        Handshake {
            local: Rc::clone(local),
            http: HttpThreadState::of(local),
            connection: Rc::clone(connection),
            server: Arc::clone(server),
            hello: None,
            values: RefCell::default(),
            captures: Captures::default(),
            scratch: Scratch::default(),
            empty: None,
        }
    }
}

impl Scope<Handshake> for HttpThreadState {
    fn variables(&self) -> &Table<Handshake> {
        &self.of_handshakes
    }
}

impl Context for Handshake {
    type Scope = HttpThreadState;

    fn scope(&self) -> Rc<HttpThreadState> {
        Rc::clone(&self.http)
    }

    fn values(&self) -> &RefCell<Values> {
        &self.values
    }

    fn captures(&self) -> &Captures {
        &self.captures
    }

    fn captures_mut(&mut self) -> &mut Captures {
        &mut self.captures
    }

    fn scratch(&mut self) -> &mut Scratch {
        &mut self.scratch
    }

    fn peer(&self) -> &Address {
        self.connection.peer()
    }
}

impl TlsProtocol for Handshake {
    const NAME: &'static str = "HTTP";

    // The ALPN protocols in order of preference. `h2` is put before them if HTTP/2 is enabled for
    // the server.
    const ALPN: &'static [&'static [u8]] = &[b"http/1.1", b"http/1.0", b"http/0.9"];
}

impl HasClient for Handshake {
    fn client(&self) -> &Client {
        &self.connection.client
    }

    fn local(&self) -> &Address {
        self.connection.local()
    }

    fn session(&self) -> Option<&Session> {
        self.connection.stream.session()
    }

    fn hello(&self) -> Option<&ClientHello> {
        self.hello.as_deref()
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        self.connection.stream.tcp_info()
    }
}

/// The servers that a connection's client may name in a handshake.
pub struct ConnectionServers<'a>(pub &'a Rc<Connection>);

impl ServerSelector for ConnectionServers<'_> {
    type Incoming = Connection;
    type Server = Arc<Server>;

    // A plaintext request gets an error page.
    const ONLY_TLS: bool = false;

    fn incoming(&self) -> &Connection {
        self.0
    }

    fn default_server(&self, local: &GenerationView) -> Option<Arc<Server>> {
        self.0.first_server(local)
    }

    fn server_named(
        &self,
        local: &GenerationView,
        host: &[u8],
    ) -> Result<Option<Arc<Server>>, String> {
        let found = self
            .0
            .with_servers(local, |servers| servers.names.find_name(host));
        let found = found.unwrap_or(Ok(None));
        found.map_err(|(regex, cause)| regex.undecided(host, cause))
    }

    fn tls(server: &Arc<Server>) -> Option<&Arc<ServerTls>> {
        server.tls.as_ref()
    }

    fn speaks_http2(&self, local: &GenerationView, server: &Arc<Server>) -> bool {
        let of_address = |servers: &AddressServers| servers.protocols.http2;
        server.core.http2.on || self.0.with_servers(local, of_address) == Some(true)
    }

    fn deadline(&self, server: &Arc<Server>) -> Instant {
        self.0.client.started() + server.core.client_header_timeout
    }

    fn shows(&self, local: &GenerationView, variable: &str) -> bool {
        let http = HttpThreadState::of(local);
        http.variables.find(variable).is_some() || http.of_handshakes.find(variable).is_some()
    }

    async fn certificates(
        &self,
        local: &Rc<GenerationView>,
        owner: &Arc<Server>,
        asked: &Arc<Server>,
        hello: &mut Option<Box<ClientHello>>,
    ) -> Result<Option<Vec<Arc<CertifiedKey>>>, CertificateError> {
        let Some(certificates) = &owner.certificates else {
            return Ok(None);
        };
        let mut handshake = Handshake::new(local, self.0, asked);
        handshake.hello = hello.take();
        let loaded = certificates.load(&mut handshake).await;
        *hello = handshake.hello;
        loaded.map(Some)
    }

    fn agreed(&self) {
        self.0.forget_servers();
    }
}

/// The built-in variable of handshakes with this name in lower case, without `$`.
pub fn find(name: &str) -> Option<BuiltinVariable<Handshake>> {
    let evaluate: Evaluate<Handshake> = match name {
        // For an empty request, the host is the server's name.
        "host" | "server_name" => |handshake, out| {
            out.extend_from_slice(&handshake.server.name);
            true
        },
        "https" => |_, out| text("on", out),
        "scheme" => |_, out| text("https", out),
        _ => return of_tls(name),
    };
    Some(BuiltinVariable::computed(evaluate))
}

/// The variables with the values that OpenSSL gives during a handshake. `$ssl_protocol` and others
/// are missing, since rustls agrees upon them later than OpenSSL.
fn of_tls(name: &str) -> Option<BuiltinVariable<Handshake>> {
    let evaluate: Evaluate<Handshake> = match name {
        "ssl_client_verify" => |_, out| text("NONE", out),
        "ssl_early_data" => |_, out| text("1", out),
        "ssl_session_reused" => |_, out| text(".", out),
        _ => return None,
    };
    Some(BuiltinVariable::computed(evaluate).assignable())
}

/// Resolves the variables in the names of certificates, once the servers have been compiled.
pub fn compile(compiler: &Compiler<'_>, http: ScopeRef<'_>) {
    blocks::compile_named::<Handshake>(compiler, http);
    let variables = compiler.registry::<TableBuilder<Handshake>>();
    let awaited = variables.borrow().awaited();
    for name in awaited {
        let mut variables = variables.borrow_mut();
        if variables.find_builtin(&name).is_some() {
            continue;
        }
        // The check of variables of requests reports unknown names.
        compiler.variable::<Request>(&name);
        let source = Source::Family(of_empty_request, name.as_bytes().into());
        // Cannot fail, since handshakes do not define this variable.
        let _ = variables.define(&name, source);
    }
}

/// The value of a variable for an empty request.
fn of_empty_request(handshake: &mut Handshake, name: &[u8], out: &mut Vec<u8>) -> bool {
    let Handshake {
        local,
        connection,
        server,
        empty,
        ..
    } = handshake;
    let request = || Box::new(Request::new(local, connection, server));
    let request = empty.get_or_insert_with(request);
    std::str::from_utf8(name).is_ok_and(|name| request.append_variable_named(name, out))
}
