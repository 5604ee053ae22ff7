//! Verifies signatures of certificates, revocation lists, OCSP responses and handshakes.
//!
//! webpki provides the algorithms and knows which keys each accepts. webpki's certificate parser is
//! not used, since it only accepts X.509 version 3. The list of algorithms excludes SHA-1, RSA keys
//! below 2048 bits and everything else that is broken.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer};
use rustls::{CertificateError, DigitallySignedStruct, PeerMisbehaved, SignatureScheme};
use webpki::RawPublicKeyEntity;
use x509_cert::AlgorithmIdentifier;
use x509_cert::der::asn1::{AnyRef, BitStringRef};
use x509_cert::der::{self, Decode, Encode, Reader, SliceReader};

use super::certificate::Certificate;
use crate::tls::provider;

/// The outer structure that certificates, revocation lists and OCSP responses have in common:
/// content, algorithm, signature.
#[derive(Clone, Debug, Default)]
pub(in crate::tls) struct Signed {
    /// The signed content, in DER.
    pub(in crate::tls) content: Box<[u8]>,
    /// The contents of the `AlgorithmIdentifier` in DER: object identifier and parameters.
    algorithm: Box<[u8]>,
    signature: Box<[u8]>,
}

impl Signed {
    /// Parses a signed structure (RFC 5280 section 4.1.1).
    ///
    /// # Errors
    /// If the bytes are not a signed structure, or more bytes follow.
    pub(in crate::tls) fn read(bytes: &[u8]) -> der::Result<Signed> {
        let mut reader = SliceReader::new(bytes)?;
        let signed = reader.sequence(Signed::decode)?;
        reader.finish()?;
        Ok(signed)
    }

    /// Parses the three parts; more may follow in the reader.
    ///
    /// # Errors
    /// If a part is missing or malformed.
    pub(in crate::tls) fn decode<'r, R: Reader<'r>>(reader: &mut R) -> der::Result<Signed> {
        let content = reader.tlv_bytes()?;
        let algorithm = AnyRef::decode(reader)?;
        let signature = BitStringRef::decode(reader)?;
        Ok(Signed {
            content: content.into(),
            algorithm: algorithm.value().into(),
            signature: signature.raw_bytes().into(),
        })
    }

    /// Checks that the signed content names the same algorithm as the signature does (RFC 5280
    /// section 4.1.1.2).
    ///
    /// # Errors
    /// If the algorithms differ.
    pub(in crate::tls) fn must_be_by(&self, algorithm: &AlgorithmIdentifier) -> der::Result<()> {
        let algorithm = algorithm.to_der()?;
        if AnyRef::from_der(&algorithm)?.value() == &*self.algorithm {
            Ok(())
        } else {
            Err(der::ErrorKind::Failed.into())
        }
    }

    /// Whether the signature verifies with this key, a `SubjectPublicKeyInfo` in DER.
    pub(in crate::tls) fn is_signed_by(&self, key: &[u8]) -> bool {
        let candidates = algorithms()
            .all
            .iter()
            .filter(|algorithm| algorithm.signature_alg_id().as_ref() == &*self.algorithm);
        verify(key, candidates, &self.content, &self.signature).is_ok()
    }
}

/// The signature algorithms that the crypto provider supports.
pub(in crate::tls) fn algorithms() -> WebPkiSupportedAlgorithms {
    provider().signature_verification_algorithms
}

/// Verifies a signature with the first of the algorithms that accepts this type of key.
fn verify<'a>(
    key: &[u8],
    algorithms: impl Iterator<Item = &'a &'static dyn SignatureVerificationAlgorithm>,
    message: &[u8],
    signature: &[u8],
) -> Result<(), rustls::Error> {
    let key = SubjectPublicKeyInfoDer::from(key);
    let key = RawPublicKeyEntity::try_from(&key).map_err(|_| CertificateError::BadEncoding)?;
    for algorithm in algorithms {
        match key.verify_signature(*algorithm, message, signature) {
            Ok(()) => return Ok(()),
            Err(webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_)) => {}
            Err(_) => break,
        }
    }
    Err(CertificateError::BadSignature.into())
}

/// Verifies the signature of a TLS 1.2 handshake: whether the peer has the private key of its
/// certificate.
///
/// # Errors
/// If the signature does not verify, or the certificate cannot be parsed.
pub fn verify_tls12(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    let key = Certificate::key_of(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let mapping = algorithms().mapping;
    let Some((_, candidates)) = mapping.iter().find(|(scheme, _)| *scheme == signed.scheme) else {
        return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
    };
    verify(&key, candidates.iter(), message, signed.signature())?;
    Ok(HandshakeSignatureValid::assertion())
}

/// Verifies the signature of a TLS 1.3 handshake.
///
/// # Errors
/// As [`verify_tls12`].
pub fn verify_tls13(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    let key = Certificate::key_of(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let key = SubjectPublicKeyInfoDer::from(key);
    verify_tls13_signature_with_raw_key(message, &key, signed, &algorithms())
}

/// The signature schemes that we offer to the peer.
pub fn schemes() -> Vec<SignatureScheme> {
    algorithms().supported_schemes()
}
