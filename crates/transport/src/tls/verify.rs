//! Verification of client certificates: `ssl_verify_client` and its family.
//!
//! As in nginx, an invalid certificate does not fail the handshake: the request gets an error page,
//! and `$ssl_client_verify` gives the reason. So rustls is told to accept any certificate whose key
//! the client has, and the certificate is verified after the handshake. `chain` verifies the chain.

use std::fmt;
use std::sync::Arc;

use framework::counters::HandshakeFault;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use sha2::{Digest, Sha256};
use x509_cert::der;

use crate::tls::chain::{self, Purpose, Reason, Trust};
use crate::tls::lenient_sni;

/// The mode of `ssl_verify_client`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `on`: a valid certificate is required.
    Required,
    /// `optional`: the client may have no certificate, but not an invalid one.
    Optional,
    /// `optional_no_ca`: like `optional`, but the issuer may be unknown.
    OptionalNoCa,
}

/// The status of a client's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateStatus {
    /// The client has sent no certificate.
    Missing,
    /// The chain is valid.
    Good,
    /// The chain is not valid.
    Bad(Reason),
    /// The chain is valid, but a certificate is revoked, or its status is unknown: nginx's text.
    Revoked(&'static str),
}

/// Why a client is not admitted, in the words of nginx's log message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificateError {
    /// The client's certificate is not valid.
    Bad(Reason),
    /// The client's certificate is revoked, or its revocation status is unknown.
    Revoked(&'static str),
    /// The client has sent no certificate.
    Missing,
}

impl fmt::Display for ClientCertificateError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BAD: &str = "client SSL certificate verify error";
        match self {
            ClientCertificateError::Bad(reason) => write!(out, "{BAD}: {reason}"),
            ClientCertificateError::Revoked(text) => write!(out, "{BAD}: {text}"),
            ClientCertificateError::Missing => {
                out.write_str("client sent no required SSL certificate")
            }
        }
    }
}

/// OpenSSL's numbers for reasons of rejection.
const NOT_YET_VALID: u8 = 9;
const EXPIRED: u8 = 10;
const REVOKED: u8 = 23;

impl CertificateStatus {
    /// The kind of fault of the client's certificate, for the counters.
    pub fn fault(self) -> Option<HandshakeFault> {
        match self {
            CertificateStatus::Missing | CertificateStatus::Good => None,
            CertificateStatus::Bad(Reason(NOT_YET_VALID | EXPIRED, _)) => {
                Some(HandshakeFault::ExpiredCertificate)
            }
            CertificateStatus::Bad(Reason(REVOKED, _)) | CertificateStatus::Revoked(_) => {
                Some(HandshakeFault::RevokedCertificate)
            }
            CertificateStatus::Bad(_) => Some(HandshakeFault::UnverifiedCertificate),
        }
    }

    /// Decides whether a client is admitted by a server with this mode.
    ///
    /// # Errors
    /// Why the client is not admitted.
    pub fn admit(self, mode: Mode) -> Result<(), ClientCertificateError> {
        match self {
            CertificateStatus::Bad(reason)
                if mode == Mode::OptionalNoCa && reason.is_unknown_issuer() =>
            {
                Ok(())
            }
            CertificateStatus::Bad(reason) => Err(ClientCertificateError::Bad(reason)),
            CertificateStatus::Revoked(text) => Err(ClientCertificateError::Revoked(text)),
            CertificateStatus::Missing if mode == Mode::Required => {
                Err(ClientCertificateError::Missing)
            }
            CertificateStatus::Good | CertificateStatus::Missing => Ok(()),
        }
    }
}

/// A server's verification of client certificates.
#[derive(Debug)]
pub struct ClientVerification {
    trust: Trust,
    names: Vec<DistinguishedName>,
    /// Digest of the mode, the maximum depth and the trusted certificates.
    identity: Box<[u8]>,
}

impl ClientVerification {
    /// Trusts the certificates of `ssl_client_certificate`, whose names are sent to clients, and of
    /// `ssl_trusted_certificate`.
    ///
    /// # Errors
    /// If one of the certificates or lists cannot be parsed.
    pub fn new(
        mode: Mode,
        depth: usize,
        told: Vec<CertificateDer<'static>>,
        others: Vec<CertificateDer<'static>>,
        revocations: &[CertificateRevocationListDer<'_>],
    ) -> der::Result<ClientVerification> {
        let names = chain::names(&told);
        let trusted: Vec<_> = told.into_iter().chain(others).collect();
        let mut identity = Sha256::new();
        identity.update([mode as u8]);
        identity.update(depth.to_be_bytes());
        for certificate in &trusted {
            identity.update(certificate);
        }
        Ok(ClientVerification {
            trust: Trust::new(&trusted, revocations, depth)?,
            names,
            identity: identity.finalize().as_slice().into(),
        })
    }

    /// Adds the identity of this verification to a digest: the mode, the maximum depth and the
    /// trusted certificates.
    pub fn identify(&self, digest: &mut Sha256) {
        digest.update(&self.identity);
    }

    /// The status of the chain that a client has sent.
    pub fn verdict(
        &self,
        chain: Option<&[CertificateDer<'_>]>,
        now: UnixTime,
    ) -> CertificateStatus {
        let Some((first, others)) = chain.and_then(<[_]>::split_first) else {
            return CertificateStatus::Missing;
        };
        let checked = self.trust.verify(first, others, Purpose::Client, now);
        checked.map_or_else(CertificateStatus::Bad, |()| CertificateStatus::Good)
    }

    /// The certificates of a valid chain, from the client's certificate to the trusted one.
    pub fn path(
        &self,
        chain: Option<&[CertificateDer<'_>]>,
        now: UnixTime,
    ) -> Vec<CertificateDer<'static>> {
        match chain.and_then(<[_]>::split_first) {
            Some((first, others)) => self.trust.path(first, others, now),
            None => Vec::new(),
        }
    }
}

/// rustls's verifier, which accepts every certificate whose key the client has: the chain is
/// verified after the handshake.
#[derive(Debug)]
pub struct AcceptAnyClientCertificate(pub Arc<ClientVerification>);

impl ClientCertVerifier for AcceptAnyClientCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.0.names
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        chain::verify_tls12(&lenient_sni::as_sent(message), certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        chain::verify_tls13(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        chain::schemes()
    }
}
