//! The TLS fields of a version 2 PROXY protocol header for an upstream.
//!
//! Unlike nginx, Tidegate does not send the algorithms of the server's certificate
//! (`PP2_SUBTYPE_SSL_SIG_ALG` and `_KEY_ALG`).

use proto::proxy_protocol::{ClientCertificate, ClientTls, append_client_tls};
use rustls::HandshakeKind;
use x509_cert::Certificate;
use x509_cert::der::Decode;

use crate::tls::names;
use crate::tls::session::Session;
use crate::tls::variables::{cipher, protocol};
use crate::tls::verify::CertificateStatus;

/// OpenSSL's `X509_V_ERR_UNSPECIFIED` and `X509_V_ERR_CERT_REVOKED`.
const UNSPECIFIED: u32 = 1;
const REVOKED: u32 = 23;

/// Appends the TLVs (type-length-value fields) of a client's session. `sni_name`: the host name
/// that the client has requested.
pub fn append(session: &Session, sni_name: Option<&[u8]>, out: &mut Vec<u8>) {
    let (mut version, mut suite) = (Vec::new(), Vec::new());
    protocol(session, &mut version);
    cipher(session, &mut suite);
    let verify = match session.verdict.get() {
        CertificateStatus::Good => 0,
        CertificateStatus::Bad(reason) => u32::from(reason.0),
        CertificateStatus::Revoked(_) => REVOKED,
        CertificateStatus::Missing => UNSPECIFIED,
    };
    session.with(|agreed| {
        let first = agreed.certificates.as_deref().and_then(|all| all.first());
        let parsed = first.and_then(|first| Certificate::from_der(first).ok());
        let common_name =
            parsed.and_then(|parsed| names::common_name(parsed.tbs_certificate().subject()));
        let certificate = first.map(|_| ClientCertificate {
            common_name: common_name.as_deref(),
            on_connection: agreed.kind != Some(HandshakeKind::Resumed),
            verify,
        });
        let tls = ClientTls {
            authority: sni_name,
            alpn: agreed.protocol.as_deref().unwrap_or_default(),
            version: &version,
            cipher: &suite,
            certificate,
        };
        append_client_tls(&tls, out);
    });
}
