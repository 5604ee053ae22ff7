//! Signatures, checked with a key as certificates hold it.
//!
//! webpki has the algorithms and knows which keys fit; it would also read whole certificates, but
//! of X.509 version 3 only. SHA-1, keys of RSA below 2048 bits, and what else is broken are not
//! among the algorithms.

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

/// What certificates, revocation lists and responses about certificates have in common: something
/// that is signed, and how.
#[derive(Clone, Debug, Default)]
pub(in crate::tls) struct Signed {
    /// What is signed, in DER.
    pub(in crate::tls) content: Box<[u8]>,
    /// The algorithm's number and parameters.
    algorithm: Box<[u8]>,
    signature: Box<[u8]>,
}

impl Signed {
    /// Takes the three parts of a signed structure apart (RFC 5280 section 4.1.1).
    ///
    /// # Errors
    /// Where it is none.
    pub(in crate::tls) fn read(bytes: &[u8]) -> der::Result<Signed> {
        let mut reader = SliceReader::new(bytes)?;
        let signed = reader.sequence(Signed::decode)?;
        reader.finish()?;
        Ok(signed)
    }

    /// Reads the three parts where more may follow.
    ///
    /// # Errors
    /// Where they are not there.
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

    /// Whether what is signed names the same algorithm.
    ///
    /// # Errors
    /// Where it does not.
    pub(in crate::tls) fn must_be_by(&self, algorithm: &AlgorithmIdentifier) -> der::Result<()> {
        let algorithm = algorithm.to_der()?;
        if AnyRef::from_der(&algorithm)?.value() == &*self.algorithm {
            Ok(())
        } else {
            Err(der::ErrorKind::Failed.into())
        }
    }

    /// Whether the holder of this key, as a certificate holds it, has signed.
    pub(in crate::tls) fn is_signed_by(&self, key: &[u8]) -> bool {
        let fitting = algorithms()
            .all
            .iter()
            .filter(|algorithm| algorithm.signature_alg_id().as_ref() == &*self.algorithm);
        is_signed(key, fitting, &self.content, &self.signature).is_ok()
    }
}

/// The algorithms for signatures that there are.
pub(in crate::tls) fn algorithms() -> WebPkiSupportedAlgorithms {
    provider().signature_verification_algorithms
}

/// Tries the algorithms that a signature may be of until one takes such keys.
fn is_signed<'a>(
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

/// Whether the other end of a TLS 1.2 handshake has the key of the certificate that it has shown.
///
/// # Errors
/// Where it has not, or the certificate cannot be read.
pub fn verify_tls12(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    let key = Certificate::key_of(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let mapping = algorithms().mapping;
    let Some((_, fitting)) = mapping.iter().find(|(scheme, _)| *scheme == signed.scheme) else {
        return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
    };
    is_signed(&key, fitting.iter(), message, signed.signature())?;
    Ok(HandshakeSignatureValid::assertion())
}

/// The same for TLS 1.3.
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

/// What we tell the other end to sign with.
pub fn schemes() -> Vec<SignatureScheme> {
    algorithms().supported_schemes()
}
