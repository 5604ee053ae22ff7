//! `listen … ssl`: TLS of clients, which is terminated before any of their bytes are processed.
//!
//! <https://nginx.org/en/docs/stream/ngx_stream_ssl_module.html>. `transport::tls` has the
//! handshake and its directives; this file selects the server by name, and rejects clients with an
//! invalid certificate.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use conf::{Contexts, Declared, Setting, parse};
use engine::Buffer;
use framework::generation::GenerationView;
use proto::tls::ClientHello;
use rules::session_zones::SessionHandshake;
use rustls::HandshakeKind;
use rustls::sign::CertifiedKey;
use transport::Transport;
use transport::tls::dynamic::CertificateError;
use transport::tls::handshake::{self, HandshakeStart, ServerSelector};
use transport::tls::server::ServerTls;
use transport::tls::settings;

use crate::incoming::IncomingSession;
use crate::plan::Server;
use crate::session::{Session, Status};

pub(crate) static SSL_HANDSHAKE_TIMEOUT: Setting<Duration> =
    Setting::new("ssl_handshake_timeout", &["time"], parse::milliseconds)
        .contexts(Contexts::STREAM.or(Contexts::STREAM_SERVER))
        .default("60s")
        .manual("How long a client may take to shake hands.");

/// The directives of this file.
pub(crate) const DIRECTIVES: &[&dyn Declared] = &[&SSL_HANDSHAKE_TIMEOUT];

impl settings::TlsProtocol for Session {
    const NAME: &'static str = "STREAM";

    // The ALPN protocols of clients are ignored.
    const ALPN: &'static [&'static [u8]] = &[];
}

/// Performs the handshake with a session's client, and selects the server by the requested name.
/// `received` are the bytes that have already been read.
///
/// # Errors
/// The final status of the session.
pub(crate) async fn accept(session: &mut Session, received: Buffer) -> Result<(), Status> {
    let connection = Rc::clone(&session.connection);
    let Some(transport) = connection.transport() else {
        return Ok(()); // no configuration has TLS for datagrams
    };
    let incoming = IncomingSession::new(session, transport);
    let began = handshake::accept(&incoming, received).await;
    let named = incoming.into_server();
    let HandshakeStart::Secure = began else {
        session.count_handshake(SessionHandshake::Failed);
        session.server = named;
        return Err(Status::InternalServerError);
    };
    let name = transport.session().and_then(|tls| tls.server_name.clone());
    if let Some(name) = name {
        session.find_server(&name);
    }
    session.doing = " while SSL handshaking";
    let admitted = admit(session, transport);
    let resumed = transport
        .session()
        .is_some_and(|tls| tls.with(|agreed| agreed.kind == Some(HandshakeKind::Resumed)));
    session.count_handshake(match (&admitted, resumed) {
        (Err(_), _) => SessionHandshake::Failed,
        (Ok(()), true) => SessionHandshake::Resumed,
        (Ok(()), false) => SessionHandshake::Full,
    });
    admitted
}

/// Checks the client's certificate.
fn admit(session: &Session, transport: &Transport) -> Result<(), Status> {
    let (Some(tls), Some(wanted)) = (transport.session(), session.server.verify_client) else {
        return Ok(());
    };
    tls.verdict.get().admit(wanted).map_err(|refused| {
        logs::error!(session, Info, "{refused}");
        Status::InternalServerError
    })
}

impl ServerSelector for IncomingSession<'_> {
    type Incoming = Self;
    type Server = Arc<Server>;

    const ONLY_TLS: bool = true;

    fn incoming(&self) -> &Self {
        self
    }

    fn default_server(&self, _: &GenerationView) -> Option<Arc<Server>> {
        Some(Arc::clone(&self.session.server))
    }

    fn server_named(&self, _: &GenerationView, host: &[u8]) -> Result<Option<Arc<Server>>, String> {
        let Some(names) = &self.session.servers.names else {
            return Ok(None);
        };
        let found = names.find_name(host);
        let found = found.map_err(|(regex, cause)| regex.undecided(host, cause))?;
        if let Some(server) = &found {
            self.log_as(server);
        }
        Ok(found)
    }

    fn tls(server: &Arc<Server>) -> Option<&Arc<ServerTls>> {
        server.tls.as_ref()
    }

    fn speaks_http2(&self, _: &GenerationView, _: &Arc<Server>) -> bool {
        false
    }

    fn deadline(&self, server: &Arc<Server>) -> Instant {
        engine::now() + server.handshake_timeout
    }

    fn shows(&self, _: &GenerationView, variable: &str) -> bool {
        self.session.stream.variables.find(variable).is_some()
    }

    async fn certificates(
        &self,
        _: &Rc<GenerationView>,
        owner: &Arc<Server>,
        asked: &Arc<Server>,
        hello: &mut Option<Box<ClientHello>>,
    ) -> Result<Option<Vec<Arc<CertifiedKey>>>, CertificateError> {
        let Some(certificates) = &owner.certificates else {
            return Ok(None);
        };
        let mut context = self.session.beginning_of(asked);
        context.hello = hello.take();
        let loaded = certificates.load(&mut context).await;
        *hello = context.hello.take();
        loaded.map(Some)
    }

    fn agreed(&self) {}
}
