//! Validates certificate chains, for the certificates of clients and of upstreams.
//!
//! RFC 5280 section 6, in OpenSSL's interpretation, with its numbers and texts for errors
//! (`X509_V_ERR_…`), because configurations and certificates were made for OpenSSL:
//! <https://docs.openssl.org/master/man3/X509_STORE_CTX_get_error/>. As with nginx, every check is
//! made, and the last error is reported. Only self-signed certificates are trust anchors.
//!
//! webpki, which rustls uses by default, applies the rules of the public Web: it refuses
//! certificates of version 1, and an authority as the first certificate. So webpki is only used for
//! name constraints. This module does not check policies, proxy certificates (RFC 3820), or whether
//! a certificate is for the right host name.

mod certificate;
mod revocation;
mod signature;

use std::fmt;

use rustls::DistinguishedName;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage};
use x509_cert::der::{self, Encode};

pub(in crate::tls) use certificate::Certificate;
use revocation::RevocationList;
pub(in crate::tls) use signature::Signed;
pub use signature::{schemes, verify_tls12, verify_tls13};

/// Maximum number of issuers with one name that are tried for a certificate. A chain with more is
/// unusual, or an attack on our CPU time.
const ISSUERS_MAX: usize = 16;

/// Why a chain is not valid: OpenSSL's number and text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(pub u8, pub &'static str);

impl Reason {
    /// Whether the reason is only that the issuer is unknown.
    pub fn is_unknown_issuer(self) -> bool {
        matches!(self.0, 18..=21)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "({}:{})", self.0, self.1)
    }
}

impl std::error::Error for Reason {}

const UNSPECIFIED: Reason = Reason(1, "unspecified certificate verification error");
const INVALID_AUTHORITY: Reason = Reason(79, "invalid CA certificate");
const WRONG_PURPOSE: Reason = Reason(26, "unsuitable certificate purpose");

/// The role in which a certificate is presented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The owner of the certificate is a client.
    Client,
    /// The owner of the certificate is a server.
    Server,
}

/// The trust anchors of a server or location, and their revocation lists.
#[derive(Debug)]
pub struct Trust {
    certificates: Vec<Certificate>,
    revocations: Vec<RevocationList>,
    /// Maximum number of certificates between the first and the trusted one.
    depth: usize,
}

/// The certificates of a chain, from the presented certificate upwards, until an issuer is missing.
type Path<'a> = Vec<&'a Certificate>;

impl Trust {
    /// Trusts these certificates. If there are revocation lists, each certificate of a chain needs
    /// the list of its issuer.
    ///
    /// # Errors
    /// If an entry is not a certificate or not a revocation list.
    pub fn new(
        certificates: &[CertificateDer<'_>],
        revocations: &[CertificateRevocationListDer<'_>],
        depth: usize,
    ) -> der::Result<Trust> {
        let certificates = certificates.iter().map(|one| Certificate::read(one));
        let revocations = revocations.iter().map(|one| RevocationList::read(one));
        Ok(Trust {
            certificates: certificates.collect::<der::Result<_>>()?,
            revocations: revocations.collect::<der::Result<_>>()?,
            depth,
        })
    }

    /// Validates the certificate `first`, which a peer has presented together with `others`.
    ///
    /// # Errors
    /// The reason why the chain is not valid.
    pub fn verify(
        &self,
        first: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        purpose: Purpose,
        now: UnixTime,
    ) -> Result<(), Reason> {
        let first = Certificate::read(first).map_err(|_| UNSPECIFIED)?;
        // A certificate that cannot be parsed issues nothing.
        let others: Vec<_> = others
            .iter()
            .filter_map(|one| Certificate::read(one).ok())
            .collect();
        let mut found = None;
        let mut note = |reason: Reason| found = Some(reason);
        let path = self.build(&first, &others, now.as_secs(), &mut note);
        check_authorities(&path, purpose, &mut note);
        if !self.revocations.is_empty() {
            revocation::check(&path, &self.revocations, now.as_secs(), &mut note);
        }
        check_signatures(&path, now.as_secs(), &mut note);
        match found {
            Some(reason) => Err(reason),
            None => check_names(&path, purpose, now),
        }
    }

    /// The certificates of the chain from `first` up to a trust anchor. The chain must be valid;
    /// otherwise the list ends where the chain does.
    pub fn path(
        &self,
        first: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Vec<CertificateDer<'static>> {
        let Ok(first) = Certificate::read(first) else {
            return Vec::new();
        };
        let others = others.iter().map(|one| Certificate::read(one));
        let others: Vec<_> = others.filter_map(Result::ok).collect();
        let path = self.build(&first, &others, now.as_secs(), &mut |_| {});
        path.iter()
            .map(|one| CertificateDer::from(one.der.to_vec()))
            .collect()
    }

    /// Builds the path from the first certificate to a self-signed trusted certificate. Trusted
    /// issuers are preferred to issuers that the peer has sent.
    fn build<'a>(
        &'a self,
        first: &'a Certificate,
        others: &'a [Certificate],
        now: u64,
        note: &mut dyn FnMut(Reason),
    ) -> Path<'a> {
        let mut path = vec![first];
        let mut top = first;
        // Whether the path has reached trusted certificates.
        let mut trusted = false;
        loop {
            let is_long = path.len() > self.depth.saturating_add(1);
            if top.is_self_signed() {
                // A certificate with the name of a trusted one must be the trusted one.
                let is_known = self.certificates.contains(top);
                trusted |= is_known && !is_long;
                break;
            }
            if is_long {
                break; // as OpenSSL, which then misses the next issuer
            }
            if let Some(issuer) = issuer_of(top, &self.certificates, &path, now) {
                trusted = true;
                path.push(issuer);
                top = issuer;
                continue;
            }
            if trusted {
                break;
            }
            let Some(issuer) = issuer_of(top, others, &path, now) else {
                break;
            };
            path.push(issuer);
            top = issuer;
        }
        match (trusted, top.is_self_signed()) {
            (true, true) => {}
            (false, true) if path.len() == 1 => note(Reason(18, "self-signed certificate")),
            (false, true) => note(Reason(19, "self-signed certificate in certificate chain")),
            (false, false) => note(Reason(20, "unable to get local issuer certificate")),
            (true, false) => note(Reason(2, "unable to get issuer certificate")),
        }
        path
    }
}

/// The subject names of these certificates, without duplicates.
pub fn names(certificates: &[CertificateDer<'_>]) -> Vec<DistinguishedName> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    for certificate in certificates {
        let name = Certificate::read(certificate).and_then(|one| one.subject.to_der());
        match name {
            Ok(name) if !names.contains(&name) => names.push(name),
            _ => {}
        }
    }
    names.into_iter().map(DistinguishedName::from).collect()
}

/// The issuer of a certificate. Of several candidates with the issuer's name, one that has really
/// signed the certificate and is valid now is preferred. Certificates on the path are excluded,
/// since authorities may have signed each other.
fn issuer_of<'a>(
    certificate: &Certificate,
    among: &'a [Certificate],
    path: &[&Certificate],
    now: u64,
) -> Option<&'a Certificate> {
    let named =
        |issuer: &&Certificate| issuer.is_named_as_issuer_of(certificate) && !path.contains(issuer);
    let candidates = || among.iter().filter(named).take(ISSUERS_MAX);
    let fits =
        |issuer: &&Certificate| issuer.check_time(now).is_none() && issuer.has_signed(certificate);
    let mut two = candidates();
    match (two.next(), two.next()) {
        (only, None) => only, // nothing to choose from
        _ => candidates().find(fits).or_else(|| candidates().next()),
    }
}

/// Checks whether all certificates except the first may issue others, and whether all are for this
/// purpose.
fn check_authorities(path: &[&Certificate], purpose: Purpose, note: &mut dyn FnMut(Reason)) {
    let mut below = 0_usize;
    for (at, certificate) in path.iter().enumerate() {
        if certificate.has_unknown_critical_extension {
            note(Reason(34, "unhandled critical extension"));
        }
        if at > 0 && !certificate.is_authority() {
            note(INVALID_AUTHORITY);
        }
        if !certificate.is_for(purpose, at > 0) {
            note(WRONG_PURPOSE);
        }
        if at > 1 && certificate.path_length_max().is_some_and(|max| below > max) {
            note(Reason(25, "path length constraint exceeded"));
        }
        if at > 0 && !certificate.is_self_issued() {
            below += 1;
        }
    }
}

/// Checks whether each certificate is signed by the next one, and all are valid now.
fn check_signatures(path: &[&Certificate], now: u64, note: &mut dyn FnMut(Reason)) {
    let Some((top, rest)) = path.split_last() else {
        return;
    };
    if top.is_self_signed() {
        top.check_time(now).map(&mut *note);
    } else if rest.is_empty() {
        note(Reason(21, "unable to verify the first certificate"));
        top.check_time(now).map(&mut *note);
    }
    let mut issuer = top;
    for certificate in rest.iter().rev() {
        if !issuer.may_sign_certificates() {
            note(Reason(32, "key usage does not include certificate signing"));
        }
        if !issuer.has_signed(certificate) {
            note(Reason(7, "certificate signature failure"));
        }
        certificate.check_time(now).map(&mut *note);
        issuer = certificate;
    }
}

/// Checks name constraints, with webpki. A chain that only this module accepts fails as an
/// unsupported constraint.
fn check_names(path: &[&Certificate], purpose: Purpose, now: UnixTime) -> Result<(), Reason> {
    let Some((first, authorities)) = path.split_first() else {
        return Err(UNSPECIFIED);
    };
    if !authorities.iter().any(|authority| authority.limits_names) {
        return Ok(());
    }
    let unsupported = Reason(51, "unsupported name constraint type");
    let (anchor, between) = authorities.split_last().ok_or(unsupported)?;
    let [first, anchor] = [first, anchor].map(|one| CertificateDer::from(&*one.der));
    let between: Vec<_> = between
        .iter()
        .map(|one| CertificateDer::from(&*one.der))
        .collect();
    let anchors = [webpki::anchor_from_trusted_cert(&anchor).map_err(|_| unsupported)?];
    let certificate = EndEntityCert::try_from(&first).map_err(|_| unsupported)?;
    let usage = match purpose {
        Purpose::Client => KeyUsage::client_auth(),
        Purpose::Server => KeyUsage::server_auth(),
    };
    let algorithms = signature::algorithms().all;
    let verified =
        certificate.verify_for_usage(algorithms, &anchors, &between, now, usage, None, None);
    match verified {
        Ok(_) => Ok(()),
        Err(webpki::Error::NameConstraintViolation) => {
            Err(Reason(47, "permitted subtree violation"))
        }
        Err(_) => Err(unsupported),
    }
}

#[cfg(test)]
mod tests;
