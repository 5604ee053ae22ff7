//! A parsed certificate for building chains: RFC 5280 section 4.
//!
//! Versions 1 and 2 are accepted as well; they have no extensions. A duplicate or malformed
//! extension makes the whole certificate unreadable.

use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::oid::db::rfc5280;
use x509_cert::der::{self, Decode, Encode};
use x509_cert::ext::pkix::{
    AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, SubjectKeyIdentifier,
};
use x509_cert::name::Name;
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::SubjectPublicKeyInfoRef;
use x509_cert::{TbsCertificate, Version};

use super::signature::Signed;
use super::{Purpose, Reason};

/// Extensions that are understood here, or by webpki, which checks name constraints.
const KNOWN: [ObjectIdentifier; 10] = [
    rfc5280::ID_CE_KEY_USAGE,
    rfc5280::ID_CE_SUBJECT_ALT_NAME,
    rfc5280::ID_CE_BASIC_CONSTRAINTS,
    rfc5280::ID_CE_NAME_CONSTRAINTS,
    rfc5280::ID_CE_CERTIFICATE_POLICIES,
    rfc5280::ID_CE_CRL_DISTRIBUTION_POINTS,
    rfc5280::ID_CE_EXT_KEY_USAGE,
    rfc5280::ID_CE_POLICY_CONSTRAINTS,
    rfc5280::ID_CE_POLICY_MAPPINGS,
    rfc5280::ID_CE_INHIBIT_ANY_POLICY,
];

/// A parsed certificate.
#[derive(Clone, Debug)]
pub(in crate::tls) struct Certificate {
    /// The whole certificate, in DER.
    pub(in crate::tls) der: Box<[u8]>,
    signed: Signed,
    is_version_1: bool,
    pub(in crate::tls) subject: Name,
    pub(in crate::tls) issuer: Name,
    pub(in crate::tls) serial: SerialNumber,
    /// In seconds since 1970.
    not_before: u64,
    not_after: u64,
    /// The public key with its algorithm (`SubjectPublicKeyInfo`), in DER.
    key: Box<[u8]>,
    basic_constraints: Option<BasicConstraints>,
    key_usage: Option<KeyUsage>,
    extended_key_usage: Option<ExtendedKeyUsage>,
    key_identifier: Option<SubjectKeyIdentifier>,
    issuer_identifier: Option<AuthorityKeyIdentifier>,
    pub(in crate::tls) limits_names: bool,
    /// Whether the certificate has a critical extension that we do not understand.
    pub(in crate::tls) has_unknown_critical_extension: bool,
}

impl PartialEq for Certificate {
    fn eq(&self, other: &Certificate) -> bool {
        self.der == other.der
    }
}

impl Certificate {
    /// Parses a certificate.
    ///
    /// # Errors
    /// If the bytes are not a certificate.
    pub(in crate::tls) fn read(bytes: &[u8]) -> der::Result<Certificate> {
        let signed = Signed::read(bytes)?;
        let content = TbsCertificate::from_der(&signed.content)?;
        signed.must_be_by(content.signature())?;
        let validity = content.validity();
        let extensions = content.extensions().map_or(&[][..], Vec::as_slice);
        let is_there = |id| extensions.iter().any(|extension| extension.extn_id == id);
        Ok(Certificate {
            der: bytes.into(),
            is_version_1: content.version() == Version::V1,
            subject: content.subject().clone(),
            issuer: content.issuer().clone(),
            serial: content.serial_number().clone(),
            not_before: validity.not_before.to_unix_duration().as_secs(),
            not_after: validity.not_after.to_unix_duration().as_secs(),
            key: content.subject_public_key_info().to_der()?.into(),
            basic_constraints: content.get_extension()?.map(|(_, found)| found),
            key_usage: content.get_extension()?.map(|(_, found)| found),
            extended_key_usage: content.get_extension()?.map(|(_, found)| found),
            key_identifier: content.get_extension()?.map(|(_, found)| found),
            issuer_identifier: content.get_extension()?.map(|(_, found)| found),
            limits_names: is_there(rfc5280::ID_CE_NAME_CONSTRAINTS),
            has_unknown_critical_extension: extensions
                .iter()
                .any(|extension| extension.critical && !KNOWN.contains(&extension.extn_id)),
            signed,
        })
    }

    /// The public key of a certificate, in DER.
    ///
    /// # Errors
    /// If the bytes are not a certificate.
    pub(in crate::tls) fn key_of(bytes: &[u8]) -> der::Result<Vec<u8>> {
        let signed = Signed::read(bytes)?;
        let content = TbsCertificate::from_der(&signed.content)?;
        content.subject_public_key_info().to_der()
    }

    /// The public key with its algorithm (`SubjectPublicKeyInfo`), in DER.
    pub(in crate::tls) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The bits of the public key alone, over which key digests are computed.
    pub(in crate::tls) fn key_bits(&self) -> Option<&[u8]> {
        let key = SubjectPublicKeyInfoRef::from_der(&self.key).ok()?;
        Some(key.subject_public_key.raw_bytes())
    }

    /// Whether subject and issuer are the same name.
    pub(in crate::tls) fn is_self_issued(&self) -> bool {
        self.subject == self.issuer
    }

    /// Whether the certificate is self-signed.
    pub(in crate::tls) fn is_self_signed(&self) -> bool {
        self.is_self_issued() && self.is_named_as_issuer_of(self)
    }

    /// Whether this certificate matches what `certificate` says of its issuer: the name, and the
    /// key identifier and serial number if present (RFC 5280 section 4.2.1.1).
    pub(in crate::tls) fn is_named_as_issuer_of(&self, certificate: &Certificate) -> bool {
        if self.subject != certificate.issuer {
            return false;
        }
        let named = certificate.issuer_identifier.as_ref();
        named.is_none_or(|named| self.is_identified_by(named))
    }

    /// Whether this certificate's key identifier and serial number are those that `named`, another
    /// certificate's identifier of its issuer, has. Parts that either does not have count as equal.
    pub(in crate::tls) fn is_identified_by(&self, named: &AuthorityKeyIdentifier) -> bool {
        let other_key = match (&named.key_identifier, &self.key_identifier) {
            (Some(named), Some(own)) => *named != own.0,
            _ => false,
        };
        let number = named.authority_cert_serial_number.as_ref();
        let other_number = number.is_some_and(|number| *number != self.serial);
        !other_key && !other_number
    }

    /// Whether this certificate's key has signed the other certificate.
    pub(in crate::tls) fn has_signed(&self, certificate: &Certificate) -> bool {
        certificate.signed.is_signed_by(&self.key)
    }

    /// Why the certificate is not valid at this time; `None` if it is.
    pub(in crate::tls) fn check_time(&self, now: u64) -> Option<Reason> {
        if now < self.not_before {
            return Some(Reason(9, "certificate is not yet valid"));
        }
        (now >= self.not_after).then_some(Reason(10, "certificate has expired"))
    }

    /// Whether the certificate may issue others: its basic constraints say so or, if it has none,
    /// it is a self-signed certificate of version 1.
    pub(in crate::tls) fn is_authority(&self) -> bool {
        if self.key_usage.is_some_and(|usage| !usage.key_cert_sign()) {
            return false;
        }
        match &self.basic_constraints {
            Some(constraints) => constraints.ca,
            None => self.is_version_1 && self.is_self_signed(),
        }
    }

    /// Whether the key usage allows signing certificates.
    pub(in crate::tls) fn may_sign_certificates(&self) -> bool {
        self.key_usage.is_none_or(|usage| usage.key_cert_sign())
    }

    /// Whether the key usage allows signing revocation lists.
    pub(in crate::tls) fn may_sign_lists(&self) -> bool {
        self.key_usage.is_none_or(|usage| usage.crl_sign())
    }

    /// The path length constraint, if there is one.
    pub(in crate::tls) fn path_length_max(&self) -> Option<usize> {
        let constraints = self.basic_constraints.as_ref()?;
        constraints.path_len_constraint.map(usize::from)
    }

    /// Whether the extended key usage lists this purpose.
    pub(in crate::tls) fn may_be_used_for(&self, purpose: &ObjectIdentifier) -> bool {
        let uses = self.extended_key_usage.as_ref();
        uses.is_some_and(|uses| uses.0.contains(purpose))
    }

    /// Whether the certificate may be used in this role or, with `as_authority`, may issue
    /// certificates for this role.
    pub(in crate::tls) fn is_for(&self, purpose: Purpose, as_authority: bool) -> bool {
        let wanted = match purpose {
            Purpose::Client => rfc5280::ID_KP_CLIENT_AUTH,
            Purpose::Server => rfc5280::ID_KP_SERVER_AUTH,
        };
        let uses = self.extended_key_usage.as_ref();
        if uses.is_some_and(|uses| !uses.0.contains(&wanted)) {
            return false;
        }
        if as_authority {
            return self.is_authority();
        }
        self.key_usage.is_none_or(|usage| {
            usage.digital_signature()
                || usage.key_agreement()
                || (purpose == Purpose::Server && usage.key_encipherment())
        })
    }
}
