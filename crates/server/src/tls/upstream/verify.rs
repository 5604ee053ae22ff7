//! Whether the other end is who it should be: its chain of certificates, and its name.
//!
//! RFC 5280, RFC 6125. Errors have OpenSSL's numbers and words (`X509_V_ERR_…`), as nginx logs them:
//! <https://docs.openssl.org/master/man3/X509_STORE_CTX_get_error/>. Chains are built by webpki, which is stricter than
//! OpenSSL: certificates of X.509 version 1, for instance, are refused.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, OtherError, SignatureScheme};
use webpki::{CertRevocationList, EndEntityCert, KeyUsage, RevocationOptionsBuilder, VerifiedPath};
use x509_cert::Certificate;
use x509_cert::der::asn1::{Ia5StringRef, PrintableStringRef, Utf8StringRef};
use x509_cert::der::oid::db::rfc4519::CN;
use x509_cert::der::{Decode, Tagged};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::tls::provider;

/// Why a chain of certificates is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyError {
    /// OpenSSL's number of the error.
    pub number: u8,
    /// OpenSSL's words for it.
    pub text: &'static str,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "({}:{})", self.number, self.text)
    }
}

impl std::error::Error for VerifyError {}

impl VerifyError {
    const fn new(number: u8, text: &'static str) -> VerifyError {
        VerifyError { number, text }
    }

    /// The one that a handshake has failed with, if it has.
    pub fn of(error: &rustls::Error) -> Option<&VerifyError> {
        match error {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(error))) => {
                error.downcast_ref()
            }
            _ => None,
        }
    }

    /// In OpenSSL's words, which say of an unknown issuer what the chain ends with.
    fn from_webpki(error: &webpki::Error, chain: Chain) -> VerifyError {
        use webpki::Error;
        match error {
            Error::CertExpired { .. } => VerifyError::new(10, "certificate has expired"),
            Error::CertNotValidYet { .. } => VerifyError::new(9, "certificate is not yet valid"),
            Error::CertRevoked => VerifyError::new(23, "certificate revoked"),
            Error::CrlExpired { .. } => VerifyError::new(12, "CRL has expired"),
            Error::UnknownRevocationStatus => VerifyError::new(3, "unable to get certificate CRL"),
            Error::UnknownIssuer | Error::CaUsedAsEndEntity if chain == Chain::SelfSigned => {
                VerifyError::new(18, "self-signed certificate")
            }
            Error::UnknownIssuer if chain == Chain::WithRoot => {
                VerifyError::new(19, "self-signed certificate in certificate chain")
            }
            Error::UnknownIssuer if chain == Chain::Single => {
                VerifyError::new(21, "unable to verify the first certificate")
            }
            // OpenSSL looks no further than the depth says, and then misses the next issuer.
            Error::UnknownIssuer | Error::MaximumPathDepthExceeded => {
                VerifyError::new(20, "unable to get local issuer certificate")
            }
            Error::RequiredEkuNotFoundContext(_) => {
                VerifyError::new(26, "unsuitable certificate purpose")
            }
            Error::PathLenConstraintViolated => {
                VerifyError::new(25, "path length constraint exceeded")
            }
            Error::EndEntityUsedAsCa => VerifyError::new(79, "invalid CA certificate"),
            Error::NameConstraintViolation => VerifyError::new(47, "permitted subtree violation"),
            Error::InvalidSignatureForPublicKey => {
                VerifyError::new(7, "certificate signature failure")
            }
            _ => VerifyError::new(1, "unspecified certificate verification error"),
        }
    }
}

/// What an upstream has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chain {
    /// One certificate, which nobody else has signed.
    SelfSigned,
    /// One certificate.
    Single,
    /// Several, and the last one is nobody else's.
    WithRoot,
    /// Several.
    Long,
}

impl Chain {
    fn of(end_entity: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]) -> Chain {
        match intermediates.last() {
            None if is_self_signed(end_entity) => Chain::SelfSigned,
            None => Chain::Single,
            Some(last) if is_self_signed(last) => Chain::WithRoot,
            Some(_) => Chain::Long,
        }
    }
}

impl From<VerifyError> for rustls::Error {
    fn from(error: VerifyError) -> rustls::Error {
        CertificateError::Other(OtherError(Arc::new(error))).into()
    }
}

/// Takes whatever certificate comes: for upstreams that nobody asks about.
///
/// Signatures are not looked at either. They would show that the other end has the key of a certificate that anybody may
/// have made.
#[derive(Debug)]
pub struct Unverified;

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    provider().signature_verification_algorithms
}

/// Takes certificates with a chain to one that is trusted. The name is asked for afterwards: [`matches_name`].
#[derive(Debug)]
pub struct Trusted {
    certificates: Vec<CertificateDer<'static>>,
    anchors: Vec<TrustAnchor<'static>>,
    revocations: Vec<CertRevocationList<'static>>,
    /// Most intermediate certificates of a chain.
    depth: usize,
}

impl Trusted {
    /// Trusts these certificates. With revocation lists, every certificate below them must be on none of them.
    ///
    /// # Errors
    /// webpki's, where one of the certificates or lists is none.
    pub fn new(
        certificates: Vec<CertificateDer<'static>>,
        revocations: &[rustls::pki_types::CertificateRevocationListDer<'static>],
        depth: usize,
    ) -> Result<Trusted, webpki::Error> {
        let anchors = certificates
            .iter()
            .map(|certificate| Ok(webpki::anchor_from_trusted_cert(certificate)?.to_owned()))
            .collect::<Result<_, webpki::Error>>()?;
        let revocations = revocations
            .iter()
            .map(|list| webpki::OwnedCertRevocationList::from_der(list).map(Into::into))
            .collect::<Result<_, webpki::Error>>()?;
        Ok(Trusted {
            certificates,
            anchors,
            revocations,
            depth,
        })
    }

    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), webpki::Error> {
        let lists: Vec<&CertRevocationList<'_>> = self.revocations.iter().collect();
        let revocation = RevocationOptionsBuilder::new(&lists).ok();
        let depth = |path: &VerifiedPath<'_>| match path.intermediate_certificates().count() {
            count if count > self.depth => Err(webpki::Error::MaximumPathDepthExceeded),
            _ => Ok(()),
        };
        let certificate = EndEntityCert::try_from(end_entity)?;
        let verified = certificate.verify_for_usage(
            algorithms().all,
            &self.anchors,
            intermediates,
            now,
            KeyUsage::server_auth(),
            revocation.map(RevocationOptionsBuilder::build),
            Some(&depth),
        );
        match verified {
            // OpenSSL also takes a trusted certificate itself, be it a CA's.
            Err(webpki::Error::CaUsedAsEndEntity | webpki::Error::UnknownIssuer)
                if self.certificates.iter().any(|known| known == end_entity) =>
            {
                is_in_time(end_entity, now)
            }
            verified => verified.map(drop),
        }
    }
}

impl ServerCertVerifier for Trusted {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.verify(end_entity, intermediates, now) {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            Err(error) => {
                let error = VerifyError::from_webpki(&error, Chain::of(end_entity, intermediates));
                Err(error.into())
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls12_signature(message, certificate, signature, &algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls13_signature(message, certificate, signature, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        algorithms().supported_schemes()
    }
}

fn parsed(certificate: &CertificateDer<'_>) -> Option<Certificate> {
    Certificate::from_der(certificate).ok()
}

fn is_self_signed(certificate: &CertificateDer<'_>) -> bool {
    parsed(certificate).is_some_and(|certificate| {
        let content = certificate.tbs_certificate();
        content.issuer() == content.subject()
    })
}

fn is_in_time(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), webpki::Error> {
    let certificate = parsed(certificate).ok_or(webpki::Error::BadDer)?;
    let validity = certificate.tbs_certificate().validity();
    let seconds =
        |time: &x509_cert::time::Time| UnixTime::since_unix_epoch(time.to_unix_duration());
    let (not_before, not_after) = (seconds(&validity.not_before), seconds(&validity.not_after));
    if now < not_before {
        return Err(webpki::Error::CertNotValidYet {
            time: now,
            not_before,
        });
    }
    if now > not_after {
        return Err(webpki::Error::CertExpired {
            time: now,
            not_after,
        });
    }
    Ok(())
}

/// Whether a certificate is for this name, as OpenSSL's `X509_check_host` says: by the DNS names among its alternative
/// names, or by its common name where it has none. Addresses are looked for among the names as well.
pub fn matches_name(certificate: &CertificateDer<'_>, name: &[u8]) -> bool {
    let Some(certificate) = parsed(certificate) else {
        return false;
    };
    let content = certificate.tbs_certificate();
    let alternative = content.get_extension::<SubjectAltName>();
    let Ok(alternative) = alternative else {
        return false;
    };
    let alternative = alternative.map(|(_, names)| names.0).unwrap_or_default();
    let mut dns = alternative.iter().filter_map(|name| match name {
        GeneralName::DnsName(name) => Some(name.as_bytes()),
        _ => None,
    });
    if let Some(first) = dns.next() {
        return std::iter::once(first)
            .chain(dns)
            .any(|pattern| fits(pattern, name));
    }
    let attributes = content.subject().iter();
    attributes
        .filter(|attribute| attribute.oid == CN)
        .any(|attribute| text(&attribute.value).is_some_and(|text| fits(text, name)))
}

/// The bytes of a common name in one of its usual encodings.
fn text(value: &x509_cert::der::Any) -> Option<&[u8]> {
    use x509_cert::der::Tag;
    let text = match value.tag() {
        Tag::Utf8String => value.decode_as::<Utf8StringRef<'_>>().ok()?.as_str(),
        Tag::PrintableString => value.decode_as::<PrintableStringRef<'_>>().ok()?.as_str(),
        Tag::Ia5String => value.decode_as::<Ia5StringRef<'_>>().ok()?.as_str(),
        _ => return None,
    };
    Some(text.as_bytes())
}

/// Whether a name fits a pattern: equal but for case, or `*.` and a domain of two or more labels in the place of one label.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    if pattern.eq_ignore_ascii_case(name) {
        return !name.is_empty();
    }
    let Some(domain) = pattern.strip_prefix(b"*") else {
        return false;
    };
    let dots = domain.iter().filter(|byte| **byte == b'.').count();
    let Some(dot) = memchr::memchr(b'.', name) else {
        return false;
    };
    domain.first() == Some(&b'.')
        && dots >= 2
        && dot > 0
        && name
            .get(dot..)
            .is_some_and(|rest| rest.eq_ignore_ascii_case(domain))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As OpenSSL's `X509_check_host(3)` takes them.
    #[test]
    fn names_and_patterns() {
        for (pattern, name) in [
            ("example.com", "example.com"),
            ("Example.COM", "eXample.com"),
            ("*.example.com", "a.example.com"),
            ("127.0.0.1", "127.0.0.1"),
        ] {
            assert!(
                fits(pattern.as_bytes(), name.as_bytes()),
                "{pattern} {name}"
            );
        }
        for (pattern, name) in [
            ("example.com", "a.example.com"),
            ("*.example.com", "example.com"),
            ("*.example.com", "a.b.example.com"),
            ("*.example.com", ".example.com"),
            ("*.com", "example.com"),
            ("*", "example"),
            ("", ""),
        ] {
            assert!(
                !fits(pattern.as_bytes(), name.as_bytes()),
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn openssls_numbers() {
        let shown = |error, chain| VerifyError::from_webpki(&error, chain).to_string();
        for (chain, text) in [
            (Chain::SelfSigned, "(18:self-signed certificate)"),
            (
                Chain::WithRoot,
                "(19:self-signed certificate in certificate chain)",
            ),
            (Chain::Long, "(20:unable to get local issuer certificate)"),
            (Chain::Single, "(21:unable to verify the first certificate)"),
        ] {
            assert_eq!(shown(webpki::Error::UnknownIssuer, chain), text);
        }
        let revoked = shown(webpki::Error::CertRevoked, Chain::Single);
        assert_eq!(revoked, "(23:certificate revoked)");
        let error = rustls::Error::from(VerifyError::new(10, "certificate has expired"));
        assert_eq!(VerifyError::of(&error).map(|error| error.number), Some(10));
    }
}
