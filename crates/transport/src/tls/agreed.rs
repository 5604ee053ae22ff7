//! What the two ends of a session have agreed on, wherever the session is kept.

use std::borrow::Cow;

use rustls::crypto::SupportedKxGroup;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::{HandshakeKind, ProtocolVersion, SupportedCipherSuite};

/// What is known of it so far; all of it once the handshake has ended.
#[derive(Default)]
pub struct HandshakeParameters<'a> {
    /// The version of TLS.
    pub version: Option<ProtocolVersion>,
    /// How records are sealed.
    pub suite: Option<SupportedCipherSuite>,
    /// The group of the key exchange.
    pub group: Option<&'static dyn SupportedKxGroup>,
    /// Whether an earlier session goes on.
    pub kind: Option<HandshakeKind>,
    /// What is spoken over it (ALPN).
    pub protocol: Option<Cow<'a, [u8]>>,
    /// The client's certificate, and those that it has sent with it.
    pub certificates: Option<Cow<'a, [CertificateDer<'static>]>>,
}

impl<'a> HandshakeParameters<'a> {
    /// What rustls knows of it.
    pub fn of(tls: &'a UnbufferedServerConnection) -> HandshakeParameters<'a> {
        HandshakeParameters {
            version: tls.protocol_version(),
            suite: tls.negotiated_cipher_suite(),
            group: tls.negotiated_key_exchange_group(),
            kind: tls.handshake_kind(),
            protocol: tls.alpn_protocol().map(Cow::Borrowed),
            certificates: tls.peer_certificates().map(Cow::Borrowed),
        }
    }

    /// A copy that owns its data.
    pub fn into_owned(self) -> HandshakeParameters<'static> {
        HandshakeParameters {
            version: self.version,
            suite: self.suite,
            group: self.group,
            kind: self.kind,
            protocol: self.protocol.map(|name| Cow::Owned(name.into_owned())),
            certificates: self
                .certificates
                .map(|chain| Cow::Owned(chain.into_owned())),
        }
    }
}
