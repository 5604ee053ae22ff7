//! A certificate with its private key: parsed, generated and inspected.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_ECDSA_P384_SHA384, PKCS_ECDSA_P521_SHA512, PKCS_RSA_SHA256, RsaKeySize,
};
use rustls::InconsistentKeys;
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_cert::der::Decode;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{AuthorityKeyIdentifier, SubjectAltName};

use crate::order::{Identifier, KeyKind};
use crate::schedule::Window;

/// Lifetime of a self-signed certificate that is served until the first one is issued.
const STAND_IN_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);

/// Tolerance for clients whose clocks are slow: certificates that we sign are valid from this much
/// before now.
const CLOCKS_DIFFER: Duration = Duration::from_secs(24 * 3600);

/// Common name of the temporary self-signed certificate.
const STAND_IN_NAME: &str = "tidegate temporary certificate";

/// A certificate chain with the private key of its leaf.
pub struct Certificate {
    /// Chain and key in the form that rustls uses.
    pub key: Arc<CertifiedKey>,
    /// The chain as PEM, leaf first.
    pub chain_pem: String,
    /// The key as PEM.
    pub key_pem: String,
    /// The validity period of the leaf.
    pub validity: Window,
    identifiers: Vec<Identifier>,
    /// Authority key identifier and serial number of the leaf; `None` if it has no authority key
    /// identifier.
    renewal: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Certificate({:?})", self.identifiers)
    }
}

/// Why a certificate chain or a key cannot be used or generated.
#[derive(Debug)]
pub enum CertificateError {
    /// The text contains no certificate.
    NoCertificate,
    /// The text contains no private key.
    NoKey,
    /// A certificate cannot be parsed.
    Malformed(x509_cert::der::Error),
    /// Chain and key do not match, or the type of key is not supported.
    Key(rustls::Error),
    /// A key, a certificate or a signing request could not be generated.
    Making(rcgen::Error),
}

impl fmt::Display for CertificateError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateError::NoCertificate => out.write_str("no certificates"),
            CertificateError::NoKey => out.write_str("no private key"),
            CertificateError::Malformed(error) => write!(out, "malformed certificate: {error}"),
            CertificateError::Key(error) => write!(out, "unusable key: {error}"),
            CertificateError::Making(error) => write!(out, "cannot be made: {error}"),
        }
    }
}

impl std::error::Error for CertificateError {}

impl Certificate {
    /// Parses a chain and the key of its leaf, both PEM.
    ///
    /// # Errors
    /// If either cannot be parsed, or if they do not match.
    pub fn from_pem(
        chain_pem: String,
        key_pem: String,
        provider: &CryptoProvider,
    ) -> Result<Certificate, CertificateError> {
        let chain = CertificateDer::pem_slice_iter(chain_pem.as_bytes());
        let chain: Vec<CertificateDer<'static>> =
            chain.collect::<Result<_, _>>().unwrap_or_default();
        let leaf = chain.first().ok_or(CertificateError::NoCertificate)?;
        let leaf = Leaf::read(leaf)?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes());
        let key = key.map_err(|_| CertificateError::NoKey)?;
        let key = certified(chain, key, provider)?;
        Ok(Certificate {
            key: Arc::new(key),
            chain_pem,
            key_pem,
            validity: leaf.validity,
            identifiers: leaf.identifiers,
            renewal: leaf.renewal,
        })
    }

    /// Parses the output of [`Certificate::file`].
    ///
    /// # Errors
    /// As [`Certificate::from_pem`].
    pub fn from_file(
        bytes: &[u8],
        provider: &CryptoProvider,
    ) -> Result<Certificate, CertificateError> {
        let text = String::from_utf8_lossy(bytes);
        let (chain, key) = match text.find(KEY_BEGINS) {
            Some(at) => text.split_at(at),
            None => return Err(CertificateError::NoKey),
        };
        Certificate::from_pem(chain.to_owned(), key.to_owned(), provider)
    }

    /// Chain and key in one PEM text, as stored on disk.
    pub fn file(&self) -> Vec<u8> {
        let newline = if self.chain_pem.ends_with('\n') {
            ""
        } else {
            "\n"
        };
        format!("{}{newline}{}", self.chain_pem, self.key_pem).into()
    }

    /// Generates a self-signed certificate, which is served until a trusted one has been issued.
    ///
    /// # Errors
    /// If an identifier cannot be encoded in a certificate.
    pub fn stand_in(
        identifiers: &[Identifier],
        provider: &CryptoProvider,
    ) -> Result<Certificate, CertificateError> {
        let mut parameters = parameters(identifiers, STAND_IN_LIFETIME)?;
        let name = &mut parameters.distinguished_name;
        name.push(DnType::CommonName, STAND_IN_NAME);
        let key = new_key(KeyKind::Ecdsa256)?;
        let certificate = parameters
            .self_signed(&key)
            .map_err(CertificateError::Making)?;
        Certificate::from_pem(certificate.pem(), key.serialize_pem(), provider)
    }

    /// Whether the certificate covers all the identifiers.
    pub fn is_for(&self, identifiers: &[Identifier]) -> bool {
        let mut all = identifiers.iter();
        all.all(|wanted| self.identifiers.contains(wanted))
    }

    /// The certificate's identity in requests for renewal information (RFC 9773 section 4.1): the
    /// authority key identifier and the encoded serial number.
    pub fn renewal(&self) -> Option<(&[u8], &[u8])> {
        let (authority, serial) = self.renewal.as_ref()?;
        Some((authority, serial))
    }
}

/// The first line of the key in our files; `rcgen` and `openssl` write PKCS#8.
const KEY_BEGINS: &str = "-----BEGIN PRIVATE KEY-----";

/// The fields of a leaf certificate that we use.
struct Leaf {
    validity: Window,
    identifiers: Vec<Identifier>,
    renewal: Option<(Vec<u8>, Vec<u8>)>,
}

impl Leaf {
    fn read(der: &[u8]) -> Result<Leaf, CertificateError> {
        let certificate =
            x509_cert::Certificate::from_der(der).map_err(CertificateError::Malformed)?;
        let leaf = certificate.tbs_certificate();
        let names = leaf.get_extension::<SubjectAltName>();
        let names = names.map_err(CertificateError::Malformed)?;
        let names = names.map(|(_, SubjectAltName(names))| names);
        let authority = leaf.get_extension::<AuthorityKeyIdentifier>();
        let authority = authority.ok().flatten();
        let authority = authority.and_then(|(_, authority)| authority.key_identifier);
        let time = |time: &x509_cert::time::Time| SystemTime::UNIX_EPOCH + time.to_unix_duration();
        Ok(Leaf {
            validity: Window {
                start: time(&leaf.validity().not_before),
                end: time(&leaf.validity().not_after),
            },
            identifiers: names.iter().flatten().filter_map(identifier).collect(),
            renewal: authority.map(|authority| {
                let serial = encoded_integer(leaf.serial_number().as_bytes());
                (authority.as_bytes().to_vec(), serial)
            }),
        })
    }
}

/// The content of a DER INTEGER: if the first bit is set, a zero byte precedes the number, because
/// otherwise it would be negative.
fn encoded_integer(bytes: &[u8]) -> Vec<u8> {
    let negative = bytes.first().is_none_or(|byte| byte & 0x80 != 0);
    let zero = negative.then_some(0);
    zero.into_iter().chain(bytes.iter().copied()).collect()
}

fn identifier(name: &GeneralName) -> Option<Identifier> {
    match name {
        GeneralName::DnsName(name) => Some(Identifier::Dns(name.as_str().to_ascii_lowercase())),
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            let address = four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
            address.ok().map(Identifier::Ip)
        }
        _ => None,
    }
}

/// The common name in the issuer field of a chain's last certificate.
pub(crate) fn topmost_issuer(chain_pem: &str) -> Option<String> {
    use x509_cert::der::asn1::{PrintableStringRef, Utf8StringRef};
    const COMMON_NAME: &str = "2.5.4.3";

    let chain = CertificateDer::pem_slice_iter(chain_pem.as_bytes());
    let last = chain.filter_map(Result::ok).last()?;
    let certificate = x509_cert::Certificate::from_der(&last).ok()?;
    let issuer = certificate.tbs_certificate().issuer();
    let mut attributes = issuer.iter_rdn().flat_map(|name| name.iter());
    let name = attributes.find(|attribute| attribute.oid.to_string() == COMMON_NAME)?;
    let text = Utf8StringRef::try_from(&name.value).map(|text| text.as_str().to_owned());
    let text = text.or_else(|_| {
        PrintableStringRef::try_from(&name.value).map(|text| text.as_str().to_owned())
    });
    text.ok()
}

/// Generates a private key.
pub(crate) fn new_key(kind: KeyKind) -> Result<KeyPair, CertificateError> {
    let key = match kind {
        KeyKind::Ecdsa256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
        KeyKind::Ecdsa384 => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384),
        KeyKind::Ecdsa521 => KeyPair::generate_for(&PKCS_ECDSA_P521_SHA512),
        KeyKind::Rsa2048 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
        KeyKind::Rsa3072 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_3072),
        KeyKind::Rsa4096 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_4096),
    };
    key.map_err(CertificateError::Making)
}

/// Encodes a certificate signing request (RFC 2986), as DER.
pub(crate) fn signing_request(
    identifiers: &[Identifier],
    common_name: Option<&Identifier>,
    key: &KeyPair,
) -> Result<Vec<u8>, CertificateError> {
    let mut parameters = parameters(identifiers, Duration::ZERO)?;
    if let Some(name) = common_name {
        let distinguished = &mut parameters.distinguished_name;
        distinguished.push(DnType::CommonName, name.to_string());
    }
    let request = parameters
        .serialize_request(key)
        .map_err(CertificateError::Making)?;
    Ok(request.der().to_vec())
}

/// The self-signed certificate that answers a `tls-alpn-01` challenge: RFC 8737 section 3.
pub(crate) fn challenge_answer(
    identifier: &Identifier,
    digest: &[u8],
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, CertificateError> {
    let mut parameters = parameters(std::slice::from_ref(identifier), CLOCKS_DIFFER)?;
    let extension = CustomExtension::new_acme_identifier(digest);
    parameters.custom_extensions.push(extension);
    let key = new_key(KeyKind::Ecdsa256)?;
    let certificate = parameters
        .self_signed(&key)
        .map_err(CertificateError::Making)?;
    let chain = vec![certificate.der().clone()];
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    Ok(Arc::new(certified(chain, key, provider)?))
}

/// Combines a chain with the key of its leaf, and checks that they match.
fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, CertificateError> {
    let key = provider.key_provider.load_private_key(key);
    let certified = CertifiedKey::new(chain, key.map_err(CertificateError::Key)?);
    match certified.keys_match() {
        Err(error @ rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            Err(CertificateError::Key(error))
        }
        // Any other error means that rustls cannot parse the certificate, which other peers may
        // still accept.
        _ => Ok(certified),
    }
}

/// Parameters of a certificate for these identifiers, valid from [`CLOCKS_DIFFER`] before now, with
/// an empty subject.
pub(crate) fn parameters(
    identifiers: &[Identifier],
    lifetime: Duration,
) -> Result<CertificateParams, CertificateError> {
    let names: Vec<String> = identifiers.iter().map(Identifier::to_string).collect();
    let mut parameters = CertificateParams::new(names).map_err(CertificateError::Making)?;
    let now = time::OffsetDateTime::now_utc();
    parameters.not_before = now - CLOCKS_DIFFER;
    parameters.not_after = now + lifetime;
    parameters.distinguished_name = DistinguishedName::new();
    Ok(parameters)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn provider() -> CryptoProvider {
        rustls::crypto::aws_lc_rs::default_provider()
    }

    fn identifiers(names: &[&str]) -> Vec<Identifier> {
        let parse = |name: &&str| Identifier::parse(name.as_bytes()).unwrap();
        names.iter().flat_map(parse).collect()
    }

    #[test]
    fn a_stand_in_is_for_what_was_asked() {
        let names = identifiers(&["a.test", "*.b.test", "192.0.2.1", "2001:db8::1"]);
        let made = Certificate::stand_in(&names, &provider()).unwrap();
        assert!(made.is_for(&names) && made.is_for(&names[..1]));
        assert!(!made.is_for(&identifiers(&["c.test"])));
        let now = SystemTime::now();
        assert!(made.validity.start < now && made.validity.end > now);
        assert!(made.renewal().is_none());

        let read = Certificate::from_file(&made.file(), &provider()).unwrap();
        assert_eq!(read.chain_pem, made.chain_pem);
        assert_eq!(read.key_pem, made.key_pem);
    }

    #[test]
    fn chain_and_key_must_belong_together() {
        let names = identifiers(&["a.test"]);
        let one = Certificate::stand_in(&names, &provider()).unwrap();
        let two = Certificate::stand_in(&names, &provider()).unwrap();
        let mixed = Certificate::from_pem(one.chain_pem, two.key_pem.clone(), &provider());
        assert!(matches!(mixed, Err(CertificateError::Key(_))), "{mixed:?}");
        for text in [
            "",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            let made = Certificate::from_pem(text.into(), two.key_pem.clone(), &provider());
            assert!(made.is_err());
        }
        assert!(matches!(
            Certificate::from_file(two.chain_pem.as_bytes(), &provider()),
            Err(CertificateError::NoKey)
        ));
    }

    #[test]
    fn every_kind_of_key_signs_a_request() {
        let names = identifiers(&["a.test"]);
        for kind in [
            KeyKind::Ecdsa256,
            KeyKind::Ecdsa384,
            KeyKind::Ecdsa521,
            KeyKind::Rsa2048,
        ] {
            let key = new_key(kind).unwrap();
            let plain = signing_request(&names, None, &key).unwrap();
            let named = signing_request(&names, names.first(), &key).unwrap();
            assert!(named.len() > plain.len(), "{kind:?}");
        }
    }

    /// RFC 9773 section 4.1: the serial number 87:65:43:21 is encoded as 00:87:65:43:21.
    #[test]
    fn numbers_are_encoded_without_becoming_negative() {
        assert_eq!(encoded_integer(&[0x87, 0x65]), [0, 0x87, 0x65]);
        assert_eq!(encoded_integer(&[0x07, 0x65]), [0x07, 0x65]);
        assert_eq!(encoded_integer(&[]), [0]);
    }

    #[test]
    fn who_signed_the_last_of_a_chain() {
        let made = Certificate::stand_in(&identifiers(&["a.test"]), &provider()).unwrap();
        assert_eq!(
            topmost_issuer(&made.chain_pem).as_deref(),
            Some(STAND_IN_NAME)
        );
        assert_eq!(topmost_issuer("nothing"), None);
    }

    #[test]
    fn the_answer_to_a_challenge_holds_its_digest() {
        let name = Identifier::Dns("a.test".into());
        let answer = challenge_answer(&name, &[7; 32], &provider()).unwrap();
        let certificate = x509_cert::Certificate::from_der(&answer.cert[0]).unwrap();
        let extensions = certificate.tbs_certificate().extensions().unwrap();
        // id-pe-acmeIdentifier, RFC 8737 section 6.1.
        let found = extensions
            .iter()
            .find(|e| e.extn_id.to_string() == "1.3.6.1.5.5.7.1.31");
        let found = found.unwrap();
        assert!(found.critical && found.extn_value.as_bytes().ends_with(&[7; 32]));
    }
}
