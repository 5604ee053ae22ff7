//! The beginning of a connection to a port with `listen … ssl`: what does the client speak, whom
//! does it ask for, and do we agree?
//!
//! As in nginx the first byte tells TLS from a plain request, which is answered with an error page
//! (497) in the clear. The host that the client names chooses the virtual server, and everything
//! of its settings. The time for it all is `client_header_timeout`.

use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use engine::Buffer;
use proto::tls::{ClientHello, Found, Search};
use rustls::ServerConfig;

use crate::http::connection::Connection;
use crate::http::handshake::Handshake;
use crate::http::local::HttpLocal;
use crate::http::modules::acme;
use crate::http::plan::Server;
use crate::log::{self, HandshakeCall};
use crate::panics;
use crate::tls::hidden_name::HiddenName;
use crate::tls::server::ServerTls;
use crate::tls::session::Session;
use crate::tls::variables::OF_HELLO;

/// The alert that refuses a name (RFC 6066 section 3).
const UNRECOGNIZED_NAME: u8 = 112;

/// The alert for what is wrong on our side (RFC 8446 section 6.2).
const INTERNAL_ERROR: u8 = 80;

/// How the beginning ended.
pub enum Begun {
    /// The connection is secure; requests may follow.
    Secure,
    /// The client speaks plain HTTP. These are its first bytes.
    Plain(Buffer),
    /// Nothing follows; the reason has been logged.
    Ended,
}

/// Shakes hands with a client. `received` is what has been read of it already.
pub async fn accept(connection: &Rc<Connection>, received: Buffer) -> Begun {
    match panics::catch(Box::pin(shake_hands(connection, received))).await {
        Ok(begun) => begun,
        Err(panicked) => {
            connection.worker.counts().panics.add(1);
            log::handshake_panicked(connection, &panicked);
            match connection.stream.is_secure() {
                true => Begun::Ended, // the alert would have to be sealed
                false => refuse(connection, INTERNAL_ERROR),
            }
        }
    }
}

async fn shake_hands(connection: &Rc<Connection>, received: Buffer) -> Begun {
    let local = connection.generation();
    let Some(default) = connection.first_server(&local) else {
        return Begun::Ended;
    };
    let call = call(&default);
    let deadline = Some(connection.client.started + default.core.client_header_timeout);
    let mut received = received;
    let mut gathered = Vec::new();
    let mut search = Search::default();
    let hello = loop {
        if received.is_empty() {
            received = match receive(connection, deadline, gathered.is_empty()).await {
                Some(buffer) => buffer,
                None => return Begun::Ended,
            };
        }
        if gathered.is_empty() && !received.first().is_some_and(|first| is_tls(*first)) {
            return Begun::Plain(received);
        }
        gathered.extend_from_slice(&received);
        received = Buffer::empty();
        let refusal = match search.go_on(&gathered) {
            Found::Incomplete => continue,
            Found::Other => break None,
            Found::Refused(refusal) => refusal,
            Found::Hello { hello, length } => {
                let following = gathered.get(length..).unwrap_or_default();
                let checked = proto::tls::check_following(following);
                match checked.and_then(|()| hello.check_server_name()) {
                    Ok(()) => break Some(hello),
                    Err(refusal) => refusal,
                }
            }
        };
        log::handshake_refused(connection, call, refusal);
        return refuse(connection, refusal.alert());
    };
    if let Some(name) = hello.as_deref().and_then(ClientHello::server_name) {
        connection.client.set_asked_name(name);
    }
    let hidden = hello
        .as_deref()
        .and_then(|hello| HiddenName::hide(hello, &mut gathered));
    let first = Buffer::copy_of(&gathered);
    drop(gathered);
    let Some(session) = begin(connection, &default, hello).await else {
        return Begun::Ended;
    };
    let Some(session) = connection.stream.secure(Box::new(session)) else {
        return Begun::Ended; // it is an upstream's, which is not accepted from
    };
    if let Some(hidden) = hidden {
        session.hide_name(hidden);
    }
    connection.forget_servers();
    session.feed(connection.stream.stream(), first);
    while session.is_handshaking() && !session.has_received() {
        if let Some(failure) = session.failure() {
            log::handshake_failed(connection, call, &failure);
            return Begun::Ended;
        }
        match receive(connection, deadline, false).await {
            Some(buffer) => session.feed(connection.stream.stream(), buffer),
            None => return Begun::Ended,
        }
    }
    session.early.set(session.is_handshaking());
    session.look_at_client();
    session.ask_about_client(connection).await;
    Begun::Secure
}

/// Whether a connection that begins with this byte speaks TLS, or the SSL of 1995.
fn is_tls(first: u8) -> bool {
    first == 0x16 || first & 0x80 != 0
}

/// The next bytes of a handshake; `None`, and a line in the log, where none come.
async fn receive(
    connection: &Rc<Connection>,
    deadline: Option<std::time::Instant>,
    first: bool,
) -> Option<Buffer> {
    if first {
        connection.set_idle(true);
    }
    let received = connection.stream.stream().recv(deadline).await;
    connection.set_idle(false);
    match received {
        Ok(buffer) if !buffer.is_empty() => return Some(buffer),
        Ok(_) => log::handshake_left(connection, first),
        Err(error) if error.kind() == ErrorKind::TimedOut => log::handshake_timed_out(connection),
        Err(error) => log::handshake_broken(connection, &error),
    }
    None
}

/// The session under the settings of the server that the client asks for.
async fn begin(
    connection: &Rc<Connection>,
    default: &Arc<Server>,
    hello: Option<Box<ClientHello>>,
) -> Option<Session> {
    let local = connection.generation();
    let asked = hello.as_deref().and_then(ClientHello::server_name);
    let name = asked.and_then(host);
    if let Some(validation) = hello.as_deref().and_then(validation) {
        return make(
            connection,
            &validation,
            &validation.config,
            name,
            None,
            call(default),
        );
    }
    let named = match &name {
        Some(name) => {
            let named = connection.with_servers(&local, |servers| servers.names.find_name(name))?;
            match named {
                Ok(named) => named,
                Err((regex, cause)) => {
                    log::name_undecided(connection, &regex.undecided(name, cause));
                    refuse(connection, INTERNAL_ERROR);
                    return None;
                }
            }
        }
        None => None,
    };
    let server = named.as_ref().unwrap_or(default);
    let (settings, certificates) = match (&server.tls, &default.tls) {
        (Some(tls), _) => (tls, &server.certificates),
        (None, Some(tls)) => (tls, &default.certificates),
        (None, None) => return None, // no configuration without is loaded
    };
    if settings.rejects {
        return reject(connection, call(default));
    }
    for stapling in &settings.stapled {
        stapling.refresh(&local);
    }
    let name = name.filter(|_| named.is_some());
    let http = HttpLocal::of(&local);
    let (of_requests, of_handshakes) = (&http.variables, &http.of_handshakes);
    let is_shown =
        |name: &str| of_requests.find(name).is_some() || of_handshakes.find(name).is_some();
    let shows_number = is_shown("ssl_session_id");
    let wants_chacha20 = hello.as_deref().is_some_and(ClientHello::prefers_chacha20);
    let hello = hello.filter(|_| OF_HELLO.iter().any(|name| is_shown(name)));
    let config = match certificates {
        None => Arc::clone(&settings.config),
        Some(dynamic) => {
            let mut handshake = Handshake::new(&local, connection, server);
            match dynamic.load(&mut handshake).await {
                Ok(loaded) => Arc::new(settings.with_certificates(loaded)),
                Err(failed) => {
                    log::certificate_not_loaded(connection, &failed);
                    refuse(connection, INTERNAL_ERROR);
                    return None;
                }
            }
        }
    };
    let config = match settings.yields_to_chacha20 && wants_chacha20 {
        false => config,
        true => Arc::new(by_clients_order(&config)),
    };
    let session = make(connection, settings, &config, name, hello, call(default))?;
    if shows_number {
        session.keep_number();
    }
    Some(session)
}

/// The same configuration, with the client's order of ciphers.
fn by_clients_order(config: &ServerConfig) -> ServerConfig {
    let mut config = ServerConfig::clone(config);
    config.ignore_client_order = false;
    config
}

/// What a client gets that validates a challenge of `tls-alpn-01`: it offers that protocol alone, and
/// every listener answers it (RFC 8737 section 3).
fn validation(hello: &ClientHello) -> Option<Arc<ServerTls>> {
    let mut protocols = hello.protocols();
    let only = protocols.next()? == acme::VALIDATION_PROTOCOL && protocols.next().is_none();
    only.then(|| acme::handshake(hello.server_name()?))
        .flatten()
}

fn make(
    connection: &Rc<Connection>,
    settings: &Arc<ServerTls>,
    config: &Arc<ServerConfig>,
    name: Option<Bytes>,
    hello: Option<Box<ClientHello>>,
    call: HandshakeCall,
) -> Option<Session> {
    match Session::new(settings, config, name, hello) {
        Ok(session) => Some(session),
        Err(error) => {
            log::handshake_failed(connection, call, &error);
            None
        }
    }
}

/// How nginx shakes hands: as the default server of the address has it, before the client has named another.
fn call(default: &Server) -> HandshakeCall {
    let tls = default.tls.as_ref();
    match tls.is_some_and(|tls| tls.config.max_early_data_size > 0) {
        true => HandshakeCall::EarlyData,
        false => HandshakeCall::Plain,
    }
}

/// Ends a handshake with a server that wants none (`ssl_reject_handshake`).
fn reject(connection: &Rc<Connection>, call: HandshakeCall) -> Option<Session> {
    log::handshake_rejected(connection, call);
    refuse(connection, UNRECOGNIZED_NAME);
    None
}

/// Ends a handshake that has not begun, with this alert.
fn refuse(connection: &Rc<Connection>, alert: u8) -> Begun {
    let stream = connection.stream.stream();
    // Record header, level fatal.
    stream.push(Bytes::copy_from_slice(&[21, 3, 3, 0, 2, 2, alert]));
    stream.start_send();
    Begun::Ended
}

/// A host as it is looked up, as nginx reads it: in lower case, without its port or a dot at its end; `None` for what is no
/// host.
fn host(name: &[u8]) -> Option<Bytes> {
    let host = proto::host::validate(name).ok()?;
    Some(host.name.of(name).to_ascii_lowercase().into())
}
