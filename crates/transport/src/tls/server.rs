//! The compiled TLS settings of a virtual server.

use std::sync::{Arc, OnceLock};

use rustls::sign::CertifiedKey;

use crate::tls::certificates::{Resolver, Slot};
use crate::tls::ocsp::StatusCheck;
use crate::tls::stapling::Stapling;
use crate::tls::verify::ClientVerification;

/// The ALPN identifier of HTTP/2 (RFC 9113, section 3.2).
pub const HTTP2: &[u8] = b"h2";

/// TLS settings of one virtual server. Only servers with a certificate, or with
/// `ssl_reject_handshake`, have them.
pub struct ServerTls {
    /// Certificates, versions, algorithms and sessions, as a rustls configuration.
    pub config: Arc<rustls::ServerConfig>,
    /// The configuration that also offers HTTP/2, made at its first use.
    pub with_http2: OnceLock<Arc<rustls::ServerConfig>>,
    /// How client certificates are verified; `None` if clients are not asked for a certificate.
    pub clients: Option<Arc<ClientVerification>>,
    /// The OCSP check of client certificates (`ssl_ocsp`); `None` if it is off.
    pub status: Option<Arc<StatusCheck>>,
    /// Certificates whose OCSP responses are fetched (`ssl_stapling`); usually none.
    pub stapled: Box<[Arc<Stapling>]>,
    /// Whether a client that prefers ChaCha20 gets it in spite of the server's order of preference:
    /// if `ssl_prefer_server_ciphers` is not set.
    pub prefers_client_chacha20: bool,
    /// The value of `ssl_reject_handshake` in this scope.
    pub rejects: bool,
    /// Whether the server has any certificate.
    pub has_certificate: bool,
    /// Whether the kernel takes over sessions to send files.
    pub kernel_tls: bool,
}

impl ServerTls {
    /// The configuration for a client that may use HTTP/2, or may not.
    pub fn config_for(&self, http2: bool) -> &Arc<rustls::ServerConfig> {
        if http2 {
            self.with_http2.get_or_init(|| {
                let mut config = rustls::ServerConfig::clone(&self.config);
                config.alpn_protocols.insert(0, HTTP2.to_vec());
                Arc::new(config)
            })
        } else {
            &self.config
        }
    }

    /// A copy of the configuration with these certificates.
    pub fn with_certificates(
        &self,
        http2: bool,
        certificates: Vec<Arc<CertifiedKey>>,
    ) -> rustls::ServerConfig {
        let slots = certificates
            .into_iter()
            .map(|one| Arc::new(Slot::new(Some(one))));
        let mut config = rustls::ServerConfig::clone(self.config_for(http2));
        config.cert_resolver = Arc::new(Resolver(slots.collect()));
        config
    }
}
