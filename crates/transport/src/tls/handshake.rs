//! The TLS handshake with a client of a `listen … ssl` port: determines the protocol, selects the
//! server, and negotiates.
//!
//! As in nginx, the first byte distinguishes TLS from a plain request, which gets an unencrypted
//! error page (497). The host name in the ClientHello selects the virtual server and all of its
//! settings; the connection handler knows the servers ([`ServerSelector`]).

use std::cell::Cell;
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use engine::Buffer;
use framework::counters::HandshakeFault;
use framework::generation::GenerationView;
use framework::panics;
use proto::tls::{ClientHello, HelloScan, HelloSearch};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, HandshakeKind, PeerIncompatible, ServerConfig};

use crate::incoming::Incoming;
use crate::tls::dynamic::CertificateError;
use crate::tls::lenient_sni::HiddenName;
use crate::tls::messages::{self, HandshakeCall};
use crate::tls::server::ServerTls;
use crate::tls::session::Session;
use crate::tls::variables::OF_HELLO;

/// The `unrecognized_name` alert (RFC 6066 section 3).
const UNRECOGNIZED_NAME: u8 = 112;

/// The `internal_error` alert, for errors on our side (RFC 8446 section 6.2).
const INTERNAL_ERROR: u8 = 80;

/// The result of [`accept`].
pub enum HandshakeStart {
    /// The connection is secure; requests may follow.
    Secure,
    /// The client speaks plain HTTP. The buffer has its first bytes.
    Plain(Buffer),
    /// The connection ends; the reason has been logged.
    Ended,
}

/// A connection in its handshake, with the servers that its client may ask for: implemented by
/// protocols.
pub trait ServerSelector {
    /// The type of the connection.
    type Incoming: Incoming;

    /// A virtual server, as the protocol represents it.
    type Server;

    /// Whether clients may only speak TLS, so that their first byte is not examined.
    const ONLY_TLS: bool;

    /// The connection.
    fn incoming(&self) -> &Self::Incoming;

    /// The default server, for clients that ask for no other; `None` if the address is no longer
    /// listened on.
    fn default_server(&self, local: &GenerationView) -> Option<Self::Server>;

    /// The server with this name, in lower case without port; `None` if no server has it.
    ///
    /// # Errors
    /// If the server cannot be determined, in nginx's words.
    fn server_named(
        &self,
        local: &GenerationView,
        host: &[u8],
    ) -> Result<Option<Self::Server>, String>;

    /// A server's TLS settings; `None` if it has none of its own.
    fn tls(server: &Self::Server) -> Option<&Arc<ServerTls>>;

    /// Whether clients of a server may use HTTP/2 on this connection.
    fn speaks_http2(&self, local: &GenerationView, server: &Self::Server) -> bool;

    /// The deadline of the handshake, for a client that has not named a server yet.
    fn deadline(&self, server: &Self::Server) -> Instant;

    /// Whether the configuration uses a variable, so that its value must be kept.
    fn shows(&self, local: &GenerationView, variable: &str) -> bool;

    /// The server's certificates whose paths contain variables, for a client with this ClientHello;
    /// `None` if the server has no such certificates.
    ///
    /// # Errors
    /// If a certificate cannot be loaded.
    fn certificates(
        &self,
        local: &Rc<GenerationView>,
        owner: &Self::Server,
        asked: &Self::Server,
        hello: &mut Option<Box<ClientHello>>,
    ) -> impl Future<Output = Result<Option<Vec<Arc<CertifiedKey>>>, CertificateError>>;

    /// Called when the TLS session exists, with the settings of the requested server, which apply
    /// from now on.
    fn agreed(&self);
}

/// Recognizes by its ClientHello a handshake that is not meant for any server (such as an ACME
/// challenge), and returns the settings for it; `None` for all other handshakes.
pub type Intercept = fn(&ClientHello) -> Option<Arc<ServerTls>>;

/// All intercepts: a part of a generation.
pub struct Intercepts(pub Box<[Intercept]>);

/// Performs the handshake with a client. `received` holds the bytes that have been read already.
pub async fn accept<N: ServerSelector>(names: &N, received: Buffer) -> HandshakeStart {
    let course = HandshakeTrace {
        has_client_sent: Cell::new(!received.is_empty()),
        fault: Cell::new(HandshakeFault::Other),
    };
    let begun = begin_with(names, received, &course).await;
    count(names.incoming(), &begun, &course);
    begun
}

/// What is known of a handshake, to count its failure.
struct HandshakeTrace {
    /// Whether the client has sent anything.
    has_client_sent: Cell<bool>,
    fault: Cell<HandshakeFault>,
}

/// The kind of fault for the error with which rustls fails a handshake.
fn fault_of(error: &rustls::Error) -> HandshakeFault {
    match error {
        rustls::Error::PeerIncompatible(why) => match why {
            PeerIncompatible::NoCipherSuitesInCommon
            | PeerIncompatible::NoKxGroupsInCommon
            | PeerIncompatible::NoEcPointFormatsInCommon
            | PeerIncompatible::NoSignatureSchemesInCommon
            | PeerIncompatible::NoCertificateRequestSignatureSchemesInCommon => {
                HandshakeFault::NoCommonCipher
            }
            PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::Tls13RequiredForQuic
            | PeerIncompatible::SupportedVersionsExtensionRequired => {
                HandshakeFault::NoCommonProtocol
            }
            _ => HandshakeFault::Other,
        },
        rustls::Error::AlertReceived(
            AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA,
        ) => HandshakeFault::PeerRejectedCertificate,
        _ => HandshakeFault::Other,
    }
}

/// Counts a finished handshake. If the client left without sending a byte, there was no handshake.
fn count<I: Incoming>(connection: &I, begun: &HandshakeStart, course: &HandshakeTrace) {
    let counts = connection.counts();
    match begun {
        HandshakeStart::Secure => {
            counts.handshakes.add(1);
            let session = connection.transport().session();
            let kind = session.and_then(|session| session.with(|agreed| agreed.kind));
            if kind == Some(HandshakeKind::Resumed) {
                counts.sessions_reused.add(1);
            }
        }
        HandshakeStart::Ended if course.has_client_sent.get() => {
            counts.handshakes_failed.add(1);
            counts.note_fault(course.fault.get());
        }
        HandshakeStart::Ended | HandshakeStart::Plain(_) => {}
    }
}

async fn begin_with<N: ServerSelector>(
    names: &N,
    received: Buffer,
    course: &HandshakeTrace,
) -> HandshakeStart {
    match panics::catch(Box::pin(do_handshake(names, received, course))).await {
        Ok(begun) => begun,
        Err(panicked) => {
            let connection = names.incoming();
            connection.counts().panics.add(1);
            messages::handshake_panicked(connection, &panicked);
            if connection.transport().is_secure() {
                // the alert would have to be sealed
                HandshakeStart::Ended
            } else {
                refuse(connection, INTERNAL_ERROR)
            }
        }
    }
}

async fn do_handshake<N: ServerSelector>(
    names: &N,
    received: Buffer,
    course: &HandshakeTrace,
) -> HandshakeStart {
    let connection = names.incoming();
    let transport = connection.transport();
    let local = connection.generation();
    let Some(default) = names.default_server(&local) else {
        return HandshakeStart::Ended;
    };
    let call = call::<N>(&default);
    let deadline = Some(names.deadline(&default));
    let mut received = received;
    let mut gathered = Vec::new();
    let mut search = HelloSearch::default();
    let hello = loop {
        if received.is_empty() {
            let first = gathered.is_empty() && !N::ONLY_TLS;
            received = match receive(connection, deadline, first, course).await {
                Some(buffer) => buffer,
                None => return HandshakeStart::Ended,
            };
        }
        if gathered.is_empty() && !received.first().is_some_and(|first| is_tls(*first)) {
            if !N::ONLY_TLS {
                return HandshakeStart::Plain(received);
            }
            messages::handshake_without_tls(connection, call);
            return HandshakeStart::Ended;
        }
        course.has_client_sent.set(true);
        gathered.extend_from_slice(&received);
        received = Buffer::empty();
        let refusal = match search.go_on(&gathered) {
            HelloScan::Incomplete => continue,
            HelloScan::Other => break None,
            HelloScan::Refused(refusal) => refusal,
            HelloScan::Hello { hello, length } => {
                let following = gathered.get(length..).unwrap_or_default();
                let checked = proto::tls::check_following(following);
                match checked.and_then(|()| hello.check_server_name()) {
                    Ok(()) => break Some(hello),
                    Err(refusal) => refusal,
                }
            }
        };
        messages::handshake_refused(connection, call, refusal);
        return refuse(connection, refusal.alert());
    };
    if let Some(name) = hello.as_deref().and_then(ClientHello::server_name) {
        connection.client().set_sni_name(name);
    }
    let hidden = hello
        .as_deref()
        .and_then(|hello| HiddenName::hide(hello, &mut gathered));
    let first = Buffer::copy_of(&gathered);
    drop(gathered);
    let Some(session) = begin(names, &default, hello).await else {
        return HandshakeStart::Ended;
    };
    let Some(session) = transport.secure(Box::new(session)) else {
        return HandshakeStart::Ended; // an upstream's connection
    };
    if let Some(hidden) = hidden {
        session.hide_name(hidden);
    }
    names.agreed();
    session.feed(transport.stream(), first);
    while session.is_handshaking() && !session.has_received() {
        if let Some(failure) = session.failure() {
            messages::handshake_failed(connection, call, &failure);
            course.fault.set(fault_of(&failure));
            return HandshakeStart::Ended;
        }
        match receive(connection, deadline, false, course).await {
            Some(buffer) => session.feed(transport.stream(), buffer),
            None => return HandshakeStart::Ended,
        }
    }
    session.early.set(session.is_handshaking());
    let local = connection.generation();
    let settings = &session.server;
    session
        .check_client_certificate(settings, connection, &local)
        .await;
    HandshakeStart::Secure
}

/// Whether a connection with this first byte speaks TLS, or SSL 2.0.
fn is_tls(first: u8) -> bool {
    first == 0x16 || first & 0x80 != 0
}

/// The next bytes of a handshake; `None`, with a log message, if none arrive.
async fn receive<I: Incoming>(
    connection: &I,
    deadline: Option<Instant>,
    first: bool,
    course: &HandshakeTrace,
) -> Option<Buffer> {
    if first {
        connection.set_idle(true);
    }
    let received = connection.transport().stream().recv(deadline).await;
    connection.set_idle(false);
    match received {
        Ok(buffer) if !buffer.is_empty() => return Some(buffer),
        Ok(_) => messages::handshake_left(connection, first),
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            course.fault.set(HandshakeFault::Timeout);
            messages::handshake_timed_out(connection)
        }
        Err(error) => messages::handshake_broken(connection, &error),
    }
    None
}

/// Creates the session with the settings of the server that the client asks for.
async fn begin<N: ServerSelector>(
    names: &N,
    default: &N::Server,
    hello: Option<Box<ClientHello>>,
) -> Option<Session> {
    let connection = names.incoming();
    let local = connection.generation();
    let asked = hello.as_deref().and_then(ClientHello::server_name);
    let name = asked.and_then(host);
    let call = call::<N>(default);
    let intercepted = hello
        .as_deref()
        .and_then(|hello| intercepted(&local, hello));
    if let Some(settings) = intercepted {
        return make(connection, &settings, &settings.config, name, None, call);
    }
    let named = match &name {
        Some(name) => match names.server_named(&local, name) {
            Ok(named) => named,
            Err(cause) => {
                messages::name_undecided(connection, &cause);
                refuse(connection, INTERNAL_ERROR);
                return None;
            }
        },
        None => None,
    };
    let server = named.as_ref().unwrap_or(default);
    let (settings, owner) = match N::tls(server) {
        Some(settings) => (settings, server),
        None => (N::tls(default)?, default), // an address without TLS settings is refused
    };
    if settings.rejects {
        return reject(connection, call);
    }
    for stapling in &settings.stapled {
        stapling.refresh(&local);
    }
    let http2 = names.speaks_http2(&local, server);
    let shows_number = names.shows(&local, "ssl_session_id");
    let wants_chacha20 = hello.as_deref().is_some_and(ClientHello::prefers_chacha20);
    let mut hello = hello;
    let certificates = names.certificates(&local, owner, server, &mut hello).await;
    let hello = hello.filter(|_| OF_HELLO.iter().any(|name| names.shows(&local, name)));
    let config = match certificates {
        Ok(None) => Arc::clone(settings.config_for(http2)),
        Ok(Some(loaded)) => Arc::new(settings.with_certificates(http2, loaded)),
        Err(failed) => {
            messages::certificate_not_loaded(connection, &failed);
            refuse(connection, INTERNAL_ERROR);
            return None;
        }
    };
    let config = if settings.prefers_client_chacha20 && wants_chacha20 {
        Arc::new(by_clients_order(&config))
    } else {
        config
    };
    let session = make(connection, settings, &config, name, hello, call)?;
    if shows_number {
        session.keep_number();
    }
    Some(session)
}

/// The settings for a handshake that is not meant for a server.
fn intercepted(local: &GenerationView, hello: &ClientHello) -> Option<Arc<ServerTls>> {
    let all = local.generation.part::<Intercepts>()?;
    all.0.iter().find_map(|intercept| intercept(hello))
}

/// The same configuration, with ciphers chosen in the client's order of preference.
fn by_clients_order(config: &ServerConfig) -> ServerConfig {
    let mut config = ServerConfig::clone(config);
    config.ignore_client_order = false;
    config
}

fn make<I: Incoming>(
    connection: &I,
    settings: &Arc<ServerTls>,
    config: &Arc<ServerConfig>,
    name: Option<Bytes>,
    hello: Option<Box<ClientHello>>,
    call: HandshakeCall,
) -> Option<Session> {
    match Session::new(settings, config, name, hello) {
        Ok(session) => Some(session),
        Err(error) => {
            messages::handshake_failed(connection, call, &error);
            None
        }
    }
}

/// The OpenSSL function that nginx would call, for error messages. The default server of the
/// address decides, because nginx calls the function before the client has named a server.
fn call<N: ServerSelector>(default: &N::Server) -> HandshakeCall {
    if N::tls(default).is_some_and(|tls| tls.config.max_early_data_size > 0) {
        HandshakeCall::EarlyData
    } else {
        HandshakeCall::Plain
    }
}

/// Ends a handshake with a server that refuses it (`ssl_reject_handshake`).
fn reject<I: Incoming>(connection: &I, call: HandshakeCall) -> Option<Session> {
    messages::handshake_rejected(connection, call);
    refuse(connection, UNRECOGNIZED_NAME);
    None
}

/// Ends a handshake before rustls has started it, with this alert.
fn refuse<I: Incoming>(connection: &I, alert: u8) -> HandshakeStart {
    let stream = connection.transport().stream();
    // Record header, level fatal.
    stream.push(Bytes::copy_from_slice(&[21, 3, 3, 0, 2, 2, alert]));
    stream.start_send();
    HandshakeStart::Ended
}

/// A host name in the form for lookup, as nginx parses it: in lower case, without port or trailing
/// dot; `None` for an invalid host name.
pub fn host(name: &[u8]) -> Option<Bytes> {
    let host = proto::host::validate(name).ok()?;
    Some(host.name.of(name).to_ascii_lowercase().into())
}
