//! Log messages about failed handshakes: nginx's texts and levels, with rustls's reasons in the
//! place of OpenSSL's.

use std::io;

use framework::panics::Panicked;
use logs::network::{TIMED_OUT, failure_level};
use logs::{Errno, Level, Subject, write};
use proto::tls::HelloError;

/// The OpenSSL function that nginx calls for the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeCall {
    /// The function of a server without `ssl_early_data`.
    Plain,
    /// The function of a server with `ssl_early_data`, whether the client sends early data or not.
    EarlyData,
}

impl std::fmt::Display for HandshakeCall {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            HandshakeCall::Plain => "SSL_do_handshake()",
            HandshakeCall::EarlyData => "SSL_read_early_data()",
        })
    }
}

/// The client closed the connection before the handshake ended. `first`: without having sent
/// anything.
pub fn handshake_left(client: &dyn Subject, first: bool) {
    let text = if first {
        format_args!("client closed connection while SSL handshaking")
    } else {
        format_args!("peer closed connection in SSL handshake while SSL handshaking")
    };
    write(client, Level::Info, text);
}

/// The handshake timed out.
pub fn handshake_timed_out(client: &dyn Subject) {
    let text = format_args!("client timed out {TIMED_OUT} while SSL handshaking");
    write(client, Level::Info, text);
}

/// The connection failed during its handshake.
pub fn handshake_broken(client: &dyn Subject, cause: &io::Error) {
    let text = format_args!(
        "peer closed connection in SSL handshake {} while SSL handshaking",
        Errno(cause)
    );
    write(client, failure_level(cause), text);
}

/// The server for the name in the handshake could not be determined.
pub fn name_undecided(client: &dyn Subject, cause: &str) {
    let text = format_args!("{cause} while SSL handshaking");
    write(client, Level::Alert, text);
}

/// The server's certificate could not be loaded.
pub fn certificate_not_loaded(client: &dyn Subject, cause: &dyn std::fmt::Display) {
    let text = format_args!("{cause} while SSL handshaking");
    write(client, Level::Error, text);
}

/// Client and server have no parameters in common, or the received bytes are not valid TLS.
pub fn handshake_failed(client: &dyn Subject, call: HandshakeCall, cause: &rustls::Error) {
    let text = format_args!("{call} failed (SSL: {cause}) while SSL handshaking");
    write(client, level(cause), text);
}

/// The client does not speak TLS on an address where only TLS is served.
pub fn handshake_without_tls(client: &dyn Subject, call: HandshakeCall) {
    let cause = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
    handshake_failed(client, call, &cause);
}

/// The client has sent an invalid ClientHello, or a message that must not follow one.
pub fn handshake_refused(client: &dyn Subject, call: HandshakeCall, refusal: HelloError) {
    let text = format_args!("{call} failed (SSL: {refusal}) while SSL handshaking");
    write(client, Level::Info, text);
}

/// The handshake panicked: a bug in Tidegate.
pub fn handshake_panicked(client: &dyn Subject, panicked: &Panicked) {
    let Panicked { place, message } = panicked;
    let text =
        format_args!("panicked at {place}: {message}: the client is lost while SSL handshaking");
    write(client, Level::Alert, text);
}

/// No responder gave the revocation status of a client's certificate.
pub fn status_unknown(client: &dyn Subject, cause: &dyn std::fmt::Display) {
    let text = format_args!("{cause} while requesting certificate status");
    write(client, Level::Error, text);
}

/// The server refuses the handshake (`ssl_reject_handshake`).
pub fn handshake_rejected(client: &dyn Subject, call: HandshakeCall) {
    let text = match call {
        HandshakeCall::Plain => format_args!("handshake rejected while SSL handshaking"),
        HandshakeCall::EarlyData => format_args!(
            "{call} failed (SSL: error:0A0000EA:SSL routines::callback failed) while SSL handshaking"
        ),
    };
    write(client, Level::Info, text);
}

/// The level for a failure: low for mistakes of clients, high for mistakes on our side.
pub fn level(cause: &rustls::Error) -> Level {
    match cause {
        rustls::Error::General(_) | rustls::Error::EncryptError => Level::Crit,
        _ => Level::Info,
    }
}
