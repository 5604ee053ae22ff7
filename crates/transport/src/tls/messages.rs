//! What is logged of handshakes that come to nothing: nginx's texts and levels, with rustls's
//! reasons in the place of OpenSSL's.

use std::io;

use framework::panics::Panicked;
use logs::network::{TIMED_OUT, failure_level};
use logs::{Errno, Level, Subject, write};
use proto::tls::HelloError;

/// The call of OpenSSL's by which nginx shakes hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeCall {
    /// The usual call of a handshake.
    Plain,
    /// The one that also reads early data, whether the client sends any or not.
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

/// The client closed its side before the handshake had ended; `first` when it had sent nothing.
pub fn handshake_left(client: &dyn Subject, first: bool) {
    let text = if first {
        format_args!("client closed connection while SSL handshaking")
    } else {
        format_args!("peer closed connection in SSL handshake while SSL handshaking")
    };
    write(client, Level::Info, text);
}

/// The client took too long.
pub fn handshake_timed_out(client: &dyn Subject) {
    let text = format_args!("client timed out {TIMED_OUT} while SSL handshaking");
    write(client, Level::Info, text);
}

/// The line for a connection that broke in its handshake.
pub fn handshake_broken(client: &dyn Subject, cause: &io::Error) {
    let text = format_args!(
        "peer closed connection in SSL handshake {} while SSL handshaking",
        Errno(cause)
    );
    write(client, failure_level(cause), text);
}

/// Which server a name in the handshake means could not be decided.
pub fn name_undecided(client: &dyn Subject, cause: &str) {
    let text = format_args!("{cause} while SSL handshaking");
    write(client, Level::Alert, text);
}

/// The server's certificate could not be loaded.
pub fn certificate_not_loaded(client: &dyn Subject, cause: &dyn std::fmt::Display) {
    let text = format_args!("{cause} while SSL handshaking");
    write(client, Level::Error, text);
}

/// The two could not agree, or what came was no TLS.
pub fn handshake_failed(client: &dyn Subject, call: HandshakeCall, cause: &rustls::Error) {
    let text = format_args!("{call} failed (SSL: {cause}) while SSL handshaking");
    write(client, level(cause), text);
}

/// A client speaks something else where there is nothing else to be spoken.
pub fn handshake_without_tls(client: &dyn Subject, call: HandshakeCall) {
    let cause = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
    handshake_failed(client, call, &cause);
}

/// A client has sent what is no ClientHello, or what cannot follow one.
pub fn handshake_refused(client: &dyn Subject, call: HandshakeCall, refusal: HelloError) {
    let text = format_args!("{call} failed (SSL: {refusal}) while SSL handshaking");
    write(client, Level::Info, text);
}

/// A bug of ours was met in a handshake.
pub fn handshake_panicked(client: &dyn Subject, panicked: &Panicked) {
    let Panicked { place, message } = panicked;
    let text =
        format_args!("panicked at {place}: {message}: the client is lost while SSL handshaking");
    write(client, Level::Alert, text);
}

/// No responder says whether a client's certificate has been revoked.
pub fn status_unknown(client: &dyn Subject, cause: &dyn std::fmt::Display) {
    let text = format_args!("{cause} while requesting certificate status");
    write(client, Level::Error, text);
}

/// The server wants no handshake (`ssl_reject_handshake`).
pub fn handshake_rejected(client: &dyn Subject, call: HandshakeCall) {
    let text = match call {
        HandshakeCall::Plain => format_args!("handshake rejected while SSL handshaking"),
        HandshakeCall::EarlyData => format_args!(
            "{call} failed (SSL: error:0A0000EA:SSL routines::callback failed) while SSL handshaking"
        ),
    };
    write(client, Level::Info, text);
}

/// What clients do wrong is no alarm, what we do wrong is.
pub fn level(cause: &rustls::Error) -> Level {
    match cause {
        rustls::Error::General(_) | rustls::Error::EncryptError => Level::Crit,
        _ => Level::Info,
    }
}
