//! Certificates, keys and revocation lists from PEM files.
//!
//! RFC 7468. Text between the sections is skipped, as `openssl` does. Encrypted keys are supported
//! in PKCS #8 (RFC 5958, PBES2), which OpenSSL has written since 1.0, but not in the older format
//! with header lines (`DEK-Info`). This module does not read files.

mod auxiliary;

use std::fmt;

use proto::base64::{self, Alphabet};
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs1KeyDer,
    PrivatePkcs8KeyDer, PrivateSec1KeyDer,
};

pub use auxiliary::TrustedFor;

/// Why a PEM file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PemError {
    /// The file has no section of this kind.
    Missing,
    /// A section has no end, or is not base64.
    Malformed,
    /// The key is encrypted, and none of the passwords decrypts it.
    WrongPassword,
    /// The key's encryption is not supported.
    UnknownEncryption,
}

impl fmt::Display for PemError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            PemError::Missing => "no start line",
            PemError::Malformed => "bad base64 decode",
            PemError::WrongPassword => "bad decrypt",
            PemError::UnknownEncryption => "unsupported encryption",
        })
    }
}

impl PemError {
    /// The reason in the words of OpenSSL 3 for a missing section with this label, as nginx shows
    /// it.
    pub fn reason(self, expected: &'static str) -> impl fmt::Display {
        fmt::from_fn(move |out| match self {
            PemError::Missing => write!(
                out,
                "error:0480006C:PEM routines::{self}:Expecting: {expected}"
            ),
            PemError::Malformed => write!(out, "error:04800064:PEM routines::{self}"),
            PemError::WrongPassword | PemError::UnknownEncryption => fmt::Display::fmt(&self, out),
        })
    }
}

/// One section of a file.
struct Section<'a> {
    label: &'a [u8],
    /// Whether header lines precede the content, as in a key in the older encrypted format.
    has_head: bool,
    content: Vec<u8>,
}

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"-----END ";
const DASHES: &[u8] = b"-----";

/// The file's sections with a wanted label, in order.
fn sections<'a>(file: &'a [u8], wanted: fn(&[u8]) -> bool) -> Result<Vec<Section<'a>>, PemError> {
    let mut found = Vec::new();
    let mut lines = file.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    while let Some(line) = lines.next() {
        let label = line.strip_prefix(BEGIN);
        let Some(label) = label.and_then(|label| label.strip_suffix(DASHES)) else {
            continue;
        };
        let (mut has_head, mut text) = (false, Vec::new());
        loop {
            let line = lines.next().ok_or(PemError::Malformed)?;
            if line.starts_with(END) {
                break;
            }
            if line.contains(&b':') {
                has_head = true;
            } else {
                text.extend_from_slice(line)
            }
        }
        if wanted(label) {
            let content = if has_head { Vec::new() } else { decode(&text)? };
            found.push(Section {
                label,
                has_head,
                content,
            });
        }
    }
    if found.is_empty() {
        Err(PemError::Missing)
    } else {
        Ok(found)
    }
}

fn decode(text: &[u8]) -> Result<Vec<u8>, PemError> {
    let mut content = Vec::with_capacity(text.len());
    if base64::decode(text, Alphabet::Standard, &mut content) {
        Ok(content)
    } else {
        Err(PemError::Malformed)
    }
}

/// OpenSSL's label for a certificate followed by its trust settings (X509_AUX).
const TRUSTED: &[u8] = b"TRUSTED CERTIFICATE";

fn is_certificate(label: &[u8]) -> bool {
    matches!(label, b"CERTIFICATE" | b"X509 CERTIFICATE")
}

/// The certificates of a file, in order.
///
/// # Errors
/// If the file has no certificate, or a section is not base64. The certificates themselves are not
/// parsed.
pub fn certificates(file: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let sections = sections(file, |label| is_certificate(label) || label == TRUSTED)?;
    let contents = sections.into_iter().map(|section| section.content);
    Ok(contents
        .map(|content| auxiliary::split(&content).0.to_vec().into())
        .collect())
}

/// A certificate and the chain that follows it. As with OpenSSL, only the first certificate may
/// have trust settings; later certificates with trust settings are skipped.
///
/// # Errors
/// As [`certificates`].
pub fn chain(file: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let sections = sections(file, |label| is_certificate(label) || label == TRUSTED)?;
    let mut sections = sections.into_iter();
    let first = sections.next().ok_or(PemError::Missing)?;
    let others = sections.filter(|section| is_certificate(section.label));
    let contents = std::iter::once(first)
        .chain(others)
        .map(|section| section.content);
    Ok(contents
        .map(|content| auxiliary::split(&content).0.to_vec().into())
        .collect())
}

/// The certificates of a file that are trusted for a purpose: all certificates whose trust settings
/// do not exclude the purpose.
///
/// # Errors
/// As [`certificates`].
pub fn authorities(
    file: &[u8],
    purpose: TrustedFor,
) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let sections = sections(file, |label| is_certificate(label) || label == TRUSTED)?;
    let contents = sections.into_iter().map(|section| section.content);
    Ok(contents
        .filter_map(|content| {
            let (certificate, auxiliary) = auxiliary::split(&content);
            let trusted = auxiliary::is_trusted(auxiliary, purpose);
            trusted.then(|| certificate.to_vec().into())
        })
        .collect())
}

/// The revocation lists of a file, in order.
///
/// # Errors
/// If the file has no revocation list, or a section is not base64.
pub fn revocation_lists(
    file: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, PemError> {
    let sections = sections(file, |label| label == b"X509 CRL")?;
    Ok(sections
        .into_iter()
        .map(|section| section.content.into())
        .collect())
}

/// Checks that a file has Diffie-Hellman parameters.
///
/// # Errors
/// If the file has none, or they are not base64.
pub fn dh_parameters(file: &[u8]) -> Result<(), PemError> {
    let wanted = |label: &[u8]| matches!(label, b"DH PARAMETERS" | b"X9.42 DH PARAMETERS");
    sections(file, wanted).map(drop)
}

/// The first private key of a file. An encrypted key is decrypted with the first password that
/// fits.
///
/// # Errors
/// If the file has no private key, or the key cannot be decrypted.
pub fn private_key<P: AsRef<[u8]>>(
    file: &[u8],
    passwords: &[P],
) -> Result<PrivateKeyDer<'static>, PemError> {
    let wanted = |label: &[u8]| label.ends_with(b"PRIVATE KEY");
    let section = sections(file, wanted)?.into_iter().next();
    let section = section.ok_or(PemError::Missing)?;
    if section.has_head {
        return Err(PemError::UnknownEncryption);
    }
    match section.label {
        b"RSA PRIVATE KEY" => Ok(PrivatePkcs1KeyDer::from(section.content).into()),
        b"EC PRIVATE KEY" => Ok(PrivateSec1KeyDer::from(section.content).into()),
        b"PRIVATE KEY" => Ok(PrivatePkcs8KeyDer::from(section.content).into()),
        b"ENCRYPTED PRIVATE KEY" => decrypt(&section.content, passwords),
        _ => Err(PemError::Missing),
    }
}

fn decrypt<P: AsRef<[u8]>>(
    encrypted: &[u8],
    passwords: &[P],
) -> Result<PrivateKeyDer<'static>, PemError> {
    let info = pkcs8::EncryptedPrivateKeyInfoRef::try_from(encrypted)
        .map_err(|_| PemError::UnknownEncryption)?;
    let opened = passwords
        .iter()
        .find_map(|password| info.decrypt(password.as_ref()).ok())
        .ok_or(PemError::WrongPassword)?;
    Ok(PrivatePkcs8KeyDer::from(opened.as_bytes().to_vec()).into())
}
