//! What a server behind is told of a client's TLS, by the PROXY protocol in version 2.
//!
//! The algorithms of the certificate that the client was shown (`PP2_SUBTYPE_SSL_SIG_ALG` and
//! `_KEY_ALG`), which nginx tells, are not told.

use proto::proxy_protocol::{ClientCertificate, ClientTls, append_client_tls};
use rustls::HandshakeKind;
use x509_cert::Certificate;
use x509_cert::der::Decode;

use crate::tls::names;
use crate::tls::session::Session;
use crate::tls::variables::{cipher, protocol};
use crate::tls::verify::CertificateStatus;

/// OpenSSL's numbers for a certificate of which nothing else is known, and for one that has been
/// revoked.
const UNSPECIFIED: u32 = 1;
const REVOKED: u32 = 23;

/// Appends TLVs of a session whose client has asked for this host.
pub fn append(session: &Session, asked_name: Option<&[u8]>, out: &mut Vec<u8>) {
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
            authority: asked_name,
            alpn: agreed.protocol.as_deref().unwrap_or_default(),
            version: &version,
            cipher: &suite,
            certificate,
        };
        append_client_tls(&tls, out);
    });
}
