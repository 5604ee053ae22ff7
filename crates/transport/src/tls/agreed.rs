//! The negotiated parameters of a session, wherever the session is kept.

use std::borrow::Cow;

use rustls::crypto::SupportedKxGroup;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::{HandshakeKind, ProtocolVersion, SupportedCipherSuite};

/// The parameters known so far; complete once the handshake has ended.
#[derive(Default)]
pub struct HandshakeParameters<'a> {
    /// The TLS version.
    pub version: Option<ProtocolVersion>,
    /// The cipher suite.
    pub suite: Option<SupportedCipherSuite>,
    /// The group of the key exchange.
    pub group: Option<&'static dyn SupportedKxGroup>,
    /// Whether the handshake was a full one or resumed a session.
    pub kind: Option<HandshakeKind>,
    /// The application protocol (ALPN).
    pub protocol: Option<Cow<'a, [u8]>>,
    /// The client's certificate, followed by the other certificates that the client sent.
    pub certificates: Option<Cow<'a, [CertificateDer<'static>]>>,
}

impl<'a> HandshakeParameters<'a> {
    /// The parameters that rustls knows so far.
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
