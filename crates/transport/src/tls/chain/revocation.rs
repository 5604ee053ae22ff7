//! Certificate revocation lists: RFC 5280 section 5, versions 1 and 2.
//!
//! A list that covers only a part of an authority's certificates, or only changes to another list,
//! has a critical extension that says so. Such extensions are not supported, and a list with one
//! never makes a chain valid.

use std::sync::OnceLock;

use base::hash::Set;
use x509_cert::AlgorithmIdentifier;
use x509_cert::der::asn1::{Any, ContextSpecific};
use x509_cert::der::oid::db::rfc5280::ID_CE_AUTHORITY_KEY_IDENTIFIER;
use x509_cert::der::{self, Decode, Reader, SliceReader, Tag, TagNumber};
use x509_cert::ext::Extensions;
use x509_cert::ext::pkix::AuthorityKeyIdentifier;
use x509_cert::name::Name;
use x509_cert::serial_number::SerialNumber;
use x509_cert::time::Time;

use super::Reason;
use super::certificate::Certificate;
use super::signature::Signed;

/// A parsed list.
#[derive(Debug)]
pub(super) struct RevocationList {
    signed: Signed,
    /// The key that has signed the list, cached because every handshake needs it.
    signer: OnceLock<Box<[u8]>>,
    issuer: Name,
    issuer_identifier: Option<AuthorityKeyIdentifier>,
    /// The time from which on the list is valid, in seconds since 1970.
    from: u64,
    /// The time at which a newer list is due, in seconds since 1970.
    until: Option<u64>,
    /// The serial numbers of revoked certificates.
    revoked: Set<Box<[u8]>>,
    /// Whether the list or one of its entries has a critical extension. No critical extension is
    /// supported.
    has_unknown_critical_extension: bool,
}

impl RevocationList {
    /// Parses a list.
    ///
    /// # Errors
    /// If the bytes are not a list.
    pub(super) fn read(bytes: &[u8]) -> der::Result<RevocationList> {
        let signed = Signed::read(bytes)?;
        let mut reader = SliceReader::new(&signed.content)?;
        let content = reader.sequence(read_content)?;
        reader.finish()?;
        Ok(RevocationList { signed, ..content })
    }

    /// Whether this authority has issued the list.
    fn is_of(&self, issuer: &Certificate) -> bool {
        let identifier = self.issuer_identifier.as_ref();
        self.issuer == issuer.subject
            && identifier.is_none_or(|named| issuer.is_identified_by(named))
    }

    /// Whether this key has signed the list. Only a matching key is cached: other keys come from
    /// whatever certificates a client sends.
    fn is_signed_by(&self, key: &[u8]) -> bool {
        if self.signer.get().is_some_and(|signer| **signer == *key) {
            return true;
        }
        let is_signed = self.signed.is_signed_by(key);
        if is_signed {
            self.signer.get_or_init(|| key.into());
        }
        is_signed
    }

    /// Why the list is not valid at this time; `None` if it is.
    fn check_time(&self, now: u64) -> Option<Reason> {
        if now < self.from {
            return Some(Reason(11, "CRL is not yet valid"));
        }
        let is_over = self.until.is_some_and(|until| now >= until);
        is_over.then_some(Reason(12, "CRL has expired"))
    }
}

/// Parses `TBSCertList`; the caller fills in the signed bytes.
fn read_content<'r, R: Reader<'r>>(reader: &mut R) -> der::Result<RevocationList> {
    if Tag::peek(reader)? == Tag::Integer {
        Any::decode(reader)?; // the version number, only present in version 2
    }
    AlgorithmIdentifier::decode(reader)?;
    let issuer = Name::decode(reader)?;
    let from = Time::decode(reader)?.to_unix_duration().as_secs();
    let until = Option::<Time>::decode(reader)?;
    let mut list = RevocationList {
        signed: Signed::default(),
        signer: OnceLock::new(),
        issuer,
        issuer_identifier: None,
        from,
        until: until.map(|time| time.to_unix_duration().as_secs()),
        revoked: Set::default(),
        has_unknown_critical_extension: false,
    };
    if !reader.is_finished() && Tag::peek(reader)? == Tag::Sequence {
        reader.sequence(|reader| read_revoked(reader, &mut list))?;
    }
    let extensions = ContextSpecific::<Extensions>::decode_explicit(reader, TagNumber(0))?;
    for extension in extensions
        .map(|explicit| explicit.value)
        .unwrap_or_default()
    {
        if extension.extn_id == ID_CE_AUTHORITY_KEY_IDENTIFIER {
            let identifier = AuthorityKeyIdentifier::from_der(extension.extn_value.as_bytes())?;
            list.issuer_identifier = Some(identifier);
        } else {
            list.has_unknown_critical_extension |= extension.critical;
        }
    }
    Ok(list)
}

fn read_revoked<'r, R: Reader<'r>>(reader: &mut R, list: &mut RevocationList) -> der::Result<()> {
    while !reader.is_finished() {
        let (number, has_unknown_critical_extension) = reader.sequence(|reader: &mut R| {
            let number = <SerialNumber>::decode(reader)?;
            Time::decode(reader)?;
            let extensions = Option::<Extensions>::decode(reader)?.unwrap_or_default();
            let has_unknown_critical_extension =
                extensions.iter().any(|extension| extension.critical);
            Ok::<_, der::Error>((Box::from(number.as_bytes()), has_unknown_critical_extension))
        })?;
        list.revoked.insert(number);
        list.has_unknown_critical_extension |= has_unknown_critical_extension;
    }
    Ok(())
}

/// Checks that each certificate of a chain is covered by a valid list, and not revoked.
pub(super) fn check(
    path: &[&Certificate],
    lists: &[RevocationList],
    now: u64,
    note: &mut dyn FnMut(Reason),
) {
    for (at, certificate) in path.iter().enumerate() {
        let Some(issuer) = path.get(at + 1).or(Some(certificate)) else {
            continue;
        };
        if !issuer.is_named_as_issuer_of(certificate) {
            // The chain is incomplete.
            note(Reason(3, "unable to get certificate CRL"));
            continue;
        }
        let mut of_issuer = lists.iter().filter(|list| list.is_of(issuer));
        let in_time = of_issuer
            .clone()
            .filter(|list| list.check_time(now).is_none());
        let newest = in_time.max_by_key(|list| list.from);
        let Some(list) = newest.or_else(|| of_issuer.next()) else {
            note(Reason(3, "unable to get certificate CRL"));
            continue;
        };
        if !issuer.may_sign_lists() {
            note(Reason(35, "key usage does not include CRL signing"));
        }
        list.check_time(now).map(&mut *note);
        if !list.is_signed_by(issuer.key()) {
            note(Reason(8, "CRL signature failure"));
        }
        if list.has_unknown_critical_extension {
            note(Reason(36, "unhandled critical CRL extension"));
        }
        if list.revoked.contains(certificate.serial.as_bytes()) {
            note(Reason(23, "certificate revoked"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::pem;

    #[test]
    fn a_signature_is_checked_once() {
        let file = |name: &str| {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tls/chain/samples");
            std::fs::read(format!("{folder}/{name}")).unwrap()
        };
        let key = |name: &str| {
            let certificates = pem::certificates(&file(name)).unwrap();
            Certificate::read(&certificates[0]).unwrap()
        };
        let (root, mimic) = (key("root.pem"), key("mimic.pem"));
        let lists = pem::revocation_lists(&file("empty.crl")).unwrap();
        let mut list = RevocationList::read(&lists[0]).unwrap();
        assert!(!list.is_signed_by(mimic.key()));
        assert!(list.signer.get().is_none());
        assert!(list.is_signed_by(root.key()));
        // Nothing is left to check.
        list.signed = Signed::default();
        assert!(list.is_signed_by(root.key()));
        assert!(!list.is_signed_by(mimic.key()));
    }
}
