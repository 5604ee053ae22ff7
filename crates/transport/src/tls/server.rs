//! What a virtual server's TLS settings amount to.

use std::sync::{Arc, OnceLock};

use rustls::sign::CertifiedKey;

use crate::tls::certificates::{Resolver, Slot};
use crate::tls::ocsp::StatusCheck;
use crate::tls::stapling::Stapling;
use crate::tls::verify::ClientVerification;

/// HTTP/2 as it is called in handshakes (RFC 9113, section 3.2).
pub const HTTP2: &[u8] = b"h2";

/// TLS as one virtual server wants it. Only servers with a certificate, or with
/// `ssl_reject_handshake`, have one.
pub struct ServerTls {
    /// Certificates, versions, algorithms, sessions: as rustls takes them.
    pub config: Arc<rustls::ServerConfig>,
    /// The configuration for clients that may speak HTTP/2, once one may.
    pub with_http2: OnceLock<Arc<rustls::ServerConfig>>,
    /// How the certificates of clients are looked at; `None` where none is asked for.
    pub clients: Option<Arc<ClientVerification>>,
    /// The OCSP check of client certificates (`ssl_ocsp`); `None` if it is off.
    pub status: Option<Arc<StatusCheck>>,
    /// Certificates whose OCSP responses are fetched (`ssl_stapling`); usually none.
    pub stapled: Box<[Arc<Stapling>]>,
    /// Whether clients that want ChaCha20 first get it, although the order is ours: nobody has
    /// written `ssl_prefer_server_ciphers`.
    pub yields_to_chacha20: bool,
    /// The value of `ssl_reject_handshake` in this scope.
    pub rejects: bool,
    /// Whether there is any certificate.
    pub has_certificate: bool,
    /// Whether sessions are handed to the kernel to send files.
    pub kernel_tls: bool,
}

impl ServerTls {
    /// What a client is offered that may speak HTTP/2, or may not.
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
