//! Whether the other end is who it should be: its chain of certificates, and its name.
//!
//! RFC 9525, whose wildcards are whole labels. What makes a chain hold is `chain`'s business; here
//! is what rustls asks, and the name.

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

/// What is wrong with a chain, if that is what a handshake has failed with.
pub fn unverified(error: &rustls::Error) -> Option<&Reason> {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(error))) => {
            error.downcast_ref()
        }
        _ => None,
    }
}

/// Takes whatever certificate comes: for upstreams that nobody asks about.
///
/// Signatures are not looked at either. They would show that the other end has the key of a
/// certificate that anybody may have made.
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

/// Takes certificates with a chain to one that is trusted. The name is asked for afterwards:
/// [`matches_name`].
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

/// Whether a certificate is for this name, as OpenSSL's `X509_check_host` says: by the DNS names
/// among its alternative names, or by its common name where it has none. Addresses are looked for
/// among the names as well. A wildcard that is only a part of a label (`w*.example.com`), which
/// OpenSSL takes, fits nothing: RFC 9525 section 6.3.
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

/// Whether a certificate is for this address, which is one of its alternative names (RFC 9525,
/// section 6.5).
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

/// Whether a name fits a pattern: equal but for case, or `*.` and a domain of two or more labels in
/// the place of one label.
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

    /// As OpenSSL's `X509_check_host(3)` takes them, but for wildcards within a label.
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
