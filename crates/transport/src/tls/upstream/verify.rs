//! Verifies the certificate chain and the name of an upstream.
//!
//! RFC 9525, with wildcards only as whole labels. `chain` validates the chain. This file implements
//! rustls's verifiers, and matches names.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, OtherError, SignatureScheme};
use x509_cert::Certificate;
use x509_cert::der::asn1::{Ia5StringRef, PrintableStringRef, Utf8StringRef};
use x509_cert::der::oid::db::rfc4519::CN;
use x509_cert::der::{Decode, Tagged};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::tls::chain::{self, Purpose, Reason, Trust};

/// The reason why the chain was rejected; `None` if the handshake failed for another reason.
pub fn unverified(error: &rustls::Error) -> Option<&Reason> {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(error))) => {
            error.downcast_ref()
        }
        _ => None,
    }
}

/// Accepts any certificate: for upstreams without verification.
///
/// Handshake signatures are not verified either: they would only prove that the peer has the key of
/// a certificate, which anybody may have made.
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
        chain::schemes()
    }
}

/// Accepts certificates with a chain to a trusted certificate. The name is checked after the
/// handshake: [`matches_name`].
#[derive(Debug)]
pub struct Trusted(pub Trust);

impl ServerCertVerifier for Trusted {
    fn verify_server_cert(
        &self,
        first: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.0.verify(first, others, Purpose::Server, now);
        verified.map_err(|reason| CertificateError::Other(OtherError(Arc::new(reason))))?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        chain::verify_tls12(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        chain::verify_tls13(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        chain::schemes()
    }
}

fn parsed(certificate: &CertificateDer<'_>) -> Option<Certificate> {
    Certificate::from_der(certificate).ok()
}

/// Whether a certificate is for this name, as in OpenSSL's `X509_check_host`: by the DNS names in
/// its subject alternative names or, if there are no DNS names, by its common name. An address,
/// too, is compared with DNS names. A wildcard within a label (`w*.example.com`), which OpenSSL
/// accepts, matches nothing: RFC 9525 section 6.3.
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

/// Whether a certificate has this address among its subject alternative names (RFC 9525, section
/// 6.5).
pub fn matches_address(certificate: &CertificateDer<'_>, address: IpAddr) -> bool {
    let Some(certificate) = parsed(certificate) else {
        return false;
    };
    let alternative = certificate
        .tbs_certificate()
        .get_extension::<SubjectAltName>();
    let Ok(Some((_, alternative))) = alternative else {
        return false;
    };
    let octets = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let mut names = alternative.0.iter();
    names.any(|name| matches!(name, GeneralName::IpAddress(known) if known.as_bytes() == octets))
}

/// The text of a common name in one of the usual encodings.
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

/// Whether a name matches a pattern: equal except for case, or `*.` and a domain of two or more
/// labels, with one label in place of `*`.
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

    /// The same results as OpenSSL's `X509_check_host(3)`, except for wildcards within a label.
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
            ("w*.example.com", "www.example.com"),
            ("*w.example.com", "www.example.com"),
            ("w*w.example.com", "www.example.com"),
            ("*", "example"),
            ("", ""),
        ] {
            assert!(
                !fits(pattern.as_bytes(), name.as_bytes()),
                "{pattern} {name}"
            );
        }
    }
}
