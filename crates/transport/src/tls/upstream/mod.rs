//! TLS to upstreams, with Tidegate as the client.
//!
//! RFC 8446, 5246. [`do_handshake`] performs the handshake, `session` handles the records,
//! [`verify`] verifies the peer. [`settings`] has the directives, which every module with upstreams
//! declares.

mod session;
pub mod settings;
pub mod verify;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustls::client::ResolvesClientCert;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, SignatureScheme};

use crate::tls::chain::Reason;
use crate::transport::Transport;

pub use session::ClientSession;

/// Why the handshake failed.
#[derive(Debug)]
pub enum HandshakeError {
    /// The peer closed the connection, or the connection failed with this error.
    Closed(Option<io::Error>),
    /// The handshake timed out.
    TimedOut,
    /// The received bytes are not TLS, both ends have no parameters in common, or the peer's
    /// certificate was rejected.
    Tls(rustls::Error),
}

impl HandshakeError {
    /// Why the peer's certificate was rejected, if that is the cause.
    pub fn unverified(&self) -> Option<&Reason> {
        match self {
            HandshakeError::Tls(error) => verify::unverified(error),
            _ => None,
        }
    }
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::Closed(None) => {
                out.write_str("peer closed connection in SSL handshake")
            }
            HandshakeError::Closed(Some(error)) => {
                let error = logs::Errno(error);
                write!(out, "peer closed connection in SSL handshake {error}")
            }
            HandshakeError::TimedOut => out.write_str("upstream timed out"),
            HandshakeError::Tls(error) => write!(out, "SSL_do_handshake() failed (SSL: {error})"),
        }
    }
}

/// Performs the handshake on a new connection, which uses TLS from then on.
///
/// # Errors
/// See [`HandshakeError`]; the connection cannot be used any more.
pub async fn do_handshake(
    transport: &Transport,
    config: &Arc<ClientConfig>,
    name: ServerName<'static>,
    deadline: Instant,
) -> Result<(), HandshakeError> {
    let session = ClientSession::new(config, name).map_err(HandshakeError::Tls)?;
    let Some(session) = transport.secure_as_client(Box::new(session)) else {
        return Err(HandshakeError::Closed(None)); // a client's connection
    };
    let stream = transport.stream();
    session.begin(stream);
    while session.is_handshaking() {
        let received = stream.recv(Some(deadline)).await;
        match received {
            Ok(buffer) if buffer.is_empty() => return Err(HandshakeError::Closed(None)),
            Ok(buffer) => session.feed(stream, &buffer),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                return Err(HandshakeError::TimedOut);
            }
            Err(error) => return Err(HandshakeError::Closed(Some(error))),
        }
        if let Some(failure) = session.failure() {
            return Err(HandshakeError::Tls(failure));
        }
    }
    Ok(())
}

/// The only certificate that we present to servers that request one.
#[derive(Debug)]
pub struct OwnCertificate(pub Arc<CertifiedKey>);

impl ResolvesClientCert for OwnCertificate {
    fn resolve(
        &self,
        _acceptable_issuers: &[&[u8]],
        schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        let fits = self.0.key.choose_scheme(schemes).is_some();
        fits.then(|| Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}
