//! Certificates of clients: `ssl_verify_client` and its family.
//!
//! As in nginx, a certificate that does not hold does not end the handshake: the request gets an
//! error page, and `$ssl_client_verify` says why. So rustls is told to take any certificate whose
//! key the client has, and the verdict is made here when hands have been shaken, with OpenSSL's
//! numbers and texts.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use sha2::{Digest, Sha256};
use webpki::{
    EndEntityCert, KeyUsage, OwnedCertRevocationList, RevocationCheckDepth,
    RevocationOptionsBuilder, UnknownStatusPolicy, VerifiedPath,
};
use x509_cert::Certificate;
use x509_cert::der::Decode;

use crate::tls::provider;

/// What `ssl_verify_client` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `on`: a certificate that holds.
    Required,
    /// `optional`: none, or one that holds.
    Optional,
    /// `optional_no_ca`: the same, but whoever has signed it.
    OptionalNoCa,
}

/// Why a certificate does not hold: OpenSSL's number and text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(pub u8, pub &'static str);

impl Reason {
    /// Whether it only says that nobody we know has signed the certificate.
    pub fn is_unknown_issuer(self) -> bool {
        matches!(self.0, 18..=21)
    }
}

/// What is known of a client's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is none.
    Missing,
    /// It holds.
    Good,
    /// It does not.
    Bad(Reason),
}

/// How a server looks at the certificates of its clients.
#[derive(Debug)]
pub struct ClientVerification {
    /// `ssl_verify_client`.
    pub mode: Mode,
    /// `ssl_verify_depth`: how many certificates may stand between the client's and a trusted one.
    pub depth: usize,
    trusted: Vec<CertificateDer<'static>>,
    anchors: Vec<TrustAnchor<'static>>,
    names: Vec<DistinguishedName>,
    revoked: Vec<webpki::CertRevocationList<'static>>,
}

impl ClientVerification {
    /// Trusts the certificates of `ssl_client_certificate`, whose names clients are told, and of
    /// `ssl_trusted_certificate`. What is no certificate of an authority is trusted for itself alone.
    pub fn new(
        mode: Mode,
        depth: usize,
        told: Vec<CertificateDer<'static>>,
        others: Vec<CertificateDer<'static>>,
        revoked: Vec<OwnedCertRevocationList>,
    ) -> ClientVerification {
        let anchor = |certificate: &CertificateDer<'_>| {
            let anchor = webpki::anchor_from_trusted_cert(certificate).ok()?;
            Some(anchor.to_owned())
        };
        let told_anchors: Vec<_> = told.iter().filter_map(anchor).collect();
        let names = told_anchors
            .iter()
            .map(|anchor| DistinguishedName::in_sequence(&anchor.subject))
            .collect();
        let other_anchors = others.iter().filter_map(anchor);
        ClientVerification {
            mode,
            depth,
            names,
            anchors: told_anchors.iter().cloned().chain(other_anchors).collect(),
            trusted: told.into_iter().chain(others).collect(),
            revoked: revoked.into_iter().map(Into::into).collect(),
        }
    }

    /// Adds what tells it from others: whom it trusts, and how far.
    pub fn identify(&self, digest: &mut Sha256) {
        digest.update([self.mode as u8]);
        digest.update(self.depth.to_be_bytes());
        for trusted in &self.trusted {
            digest.update(trusted);
        }
    }

    /// What is to be said of the chain that a client has sent.
    pub fn verdict(&self, chain: Option<&[CertificateDer<'_>]>, now: UnixTime) -> Verdict {
        let Some((first, intermediates)) = chain.and_then(<[_]>::split_first) else {
            return Verdict::Missing;
        };
        let checked = match self.trusted.iter().any(|trusted| trusted == first) {
            true => check_time(first, now),
            false => self.check(first, intermediates, now),
        };
        checked.map_or_else(Verdict::Bad, |()| Verdict::Good)
    }

    fn check(
        &self,
        first: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Reason> {
        let certificate = EndEntityCert::try_from(first).map_err(|error| reason(&error))?;
        let lists: Vec<&webpki::CertRevocationList<'_>> = self.revoked.iter().collect();
        let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|builder| {
            builder
                .with_depth(RevocationCheckDepth::Chain)
                .with_status_policy(UnknownStatusPolicy::Deny)
                .build()
        });
        let too_long = std::cell::Cell::new(false);
        let is_short = |path: &VerifiedPath<'_>| {
            let long = path.intermediate_certificates().count() > self.depth;
            too_long.set(long);
            match long {
                true => Err(webpki::Error::MaximumPathDepthExceeded),
                false => Ok(()),
            }
        };
        let verified = certificate.verify_for_usage(
            provider().signature_verification_algorithms.all,
            &self.anchors,
            intermediates,
            now,
            KeyUsage::client_auth(),
            revocation,
            Some(&is_short),
        );
        match verified {
            Ok(_) => Ok(()),
            Err(_) if too_long.get() => Err(Reason(22, "certificate chain too long")),
            Err(webpki::Error::UnknownIssuer) => Err(unknown_issuer(first, intermediates)),
            Err(error) => Err(reason(&error)),
        }
    }
}

/// Whether now lies within the time of a certificate that is trusted as it is.
fn check_time(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Reason> {
    let parsed = Certificate::from_der(certificate).map_err(|_| UNSPECIFIED)?;
    let validity = parsed.tbs_certificate().validity();
    let now = now.as_secs();
    if now < validity.not_before.to_unix_duration().as_secs() {
        return Err(NOT_YET_VALID);
    }
    if now > validity.not_after.to_unix_duration().as_secs() {
        return Err(EXPIRED);
    }
    Ok(())
}

const UNSPECIFIED: Reason = Reason(1, "unspecified certificate verification error");
const NOT_YET_VALID: Reason = Reason(9, "certificate is not yet valid");
const EXPIRED: Reason = Reason(10, "certificate has expired");

/// What OpenSSL says where the chain leads to nobody: it depends on who has signed whom.
fn unknown_issuer(first: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]) -> Reason {
    let is_own = |certificate: &CertificateDer<'_>| {
        Certificate::from_der(certificate).is_ok_and(|parsed| {
            parsed.tbs_certificate().subject() == parsed.tbs_certificate().issuer()
        })
    };
    match intermediates {
        [] if is_own(first) => Reason(18, "self-signed certificate"),
        [] => Reason(21, "unable to verify the first certificate"),
        [.., last] if is_own(last) => Reason(19, "self-signed certificate in certificate chain"),
        _ => Reason(20, "unable to get local issuer certificate"),
    }
}

fn reason(error: &webpki::Error) -> Reason {
    use webpki::Error;
    match error {
        Error::CertExpired { .. } => EXPIRED,
        Error::CertNotValidYet { .. } => NOT_YET_VALID,
        Error::CertRevoked => Reason(23, "certificate revoked"),
        Error::UnknownRevocationStatus => Reason(3, "unable to get certificate CRL"),
        Error::CrlExpired { .. } => Reason(12, "CRL has expired"),
        Error::InvalidCrlSignatureForPublicKey => Reason(8, "CRL signature failure"),
        Error::InvalidSignatureForPublicKey => Reason(7, "certificate signature failure"),
        Error::MaximumPathDepthExceeded => Reason(22, "certificate chain too long"),
        Error::PathLenConstraintViolated => Reason(25, "path length constraint exceeded"),
        Error::EndEntityUsedAsCa => Reason(24, "invalid CA certificate"),
        Error::RequiredEkuNotFoundContext(_) | Error::CaUsedAsEndEntity => {
            Reason(26, "unsuitable certificate purpose")
        }
        _ => UNSPECIFIED,
    }
}

/// Takes every certificate whose key is there, for rustls: the verdict comes later.
#[derive(Debug)]
pub struct TakeAny(pub Arc<ClientVerification>);

impl ClientCertVerifier for TakeAny {
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
        let algorithms = &provider().signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &provider().signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
