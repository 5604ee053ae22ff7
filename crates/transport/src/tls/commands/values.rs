//! The values that OpenSSL accepts for a command, as far as the text alone decides, and the files
//! that must exist.
//!
//! <https://docs.openssl.org/master/man3/SSL_CONF_cmd/>. Values that only OpenSSL 3.5 accepts are
//! accepted, too. The contents of files are not checked.

use std::io;
use std::path::Path;

use conf::{Fault, Word};
use framework::compile::Compiler;

use crate::tls::files::system_reason;
use crate::tls::suites;

/// The type of a command's value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    /// `Ciphersuites`, which have an effect and are parsed elsewhere.
    Suites,
    /// A list of TLS 1.2 ciphers.
    Ciphers,
    /// A list of groups; `automatic` if the word for all groups is allowed.
    Groups { automatic: bool },
    /// A list of signature algorithms.
    Signatures,
    /// One of these words, case-sensitive.
    One(&'static [&'static str]),
    /// A comma-separated list of these words in any case, each switched on by `+` or off by `-`.
    Switches(&'static [&'static str]),
    /// A number from 0 to this limit.
    Number(i64),
    /// A file, by a path that may be relative to the configuration, and how OpenSSL opens it.
    File(FileOpener),
    /// A folder that is read at once, by a path that may be relative to the configuration.
    Folder,
    /// A folder that is read only when needed.
    LateFolder,
    /// A URI, or a path that may be relative to the working directory.
    Store,
}

/// The part of OpenSSL that opens a file. The parts differ in how they report a missing file.
#[derive(Clone, Copy, Debug)]
pub(super) enum FileOpener {
    /// Opens a certificate, its key, or a file that is sent with the certificate.
    OfCertificate,
    /// Opens a file with names of authorities, or with parameters.
    Plain,
    /// Opens a file with certificates of authorities that verify other certificates.
    OfAuthorities,
}

/// Protocol versions as `MinProtocol` and `MaxProtocol` name them.
pub(super) const PROTOCOLS: &[&str] = &[
    "None", "SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3", "DTLSv1", "DTLSv1.2",
];

/// Protocol versions as `Protocol` names them.
pub(super) const PROTOCOL_SWITCHES: &[&str] = &[
    "ALL", "SSLv2", "SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3", "DTLSv1", "DTLSv1.2",
];

/// The values of `VerifyMode`.
pub(super) const VERIFY_MODES: &[&str] = &[
    "Once",
    "Peer",
    "Request",
    "RequestPostHandshake",
    "Require",
    "RequirePostHandshake",
];

/// Signature algorithms by the names of RFC 8446, 4.2.3, and OpenSSL.
const SIGNATURES: &[&str] = &[
    "ecdsa_brainpoolP256r1tls13_sha256",
    "ecdsa_brainpoolP384r1tls13_sha384",
    "ecdsa_brainpoolP512r1tls13_sha512",
    "ecdsa_secp256r1_sha256",
    "ecdsa_secp384r1_sha384",
    "ecdsa_secp521r1_sha512",
    "ed25519",
    "ed448",
    "mldsa44",
    "mldsa65",
    "mldsa87",
    "rsa_pkcs1_sha1",
    "rsa_pkcs1_sha224",
    "rsa_pkcs1_sha256",
    "rsa_pkcs1_sha384",
    "rsa_pkcs1_sha512",
    "rsa_pss_pss_sha256",
    "rsa_pss_pss_sha384",
    "rsa_pss_pss_sha512",
    "rsa_pss_rsae_sha256",
    "rsa_pss_rsae_sha384",
    "rsa_pss_rsae_sha512",
];

/// Key types, and whether they combine with digests of 160 and 224 bits too: the parts of
/// `RSA+SHA256`.
const KEYS: &[(&str, bool)] = &[
    ("RSA", true),
    ("RSA-PSS", false),
    ("PSS", false),
    ("DSA", true),
    ("ECDSA", true),
];

/// Digests, and whether they have 256 bits or more.
const DIGESTS: &[(&str, bool)] = &[
    ("SHA1", false),
    ("SHA224", false),
    ("SHA256", true),
    ("SHA384", true),
    ("SHA512", true),
];

impl Value {
    /// OpenSSL's specific reason for refusing a value, which precedes the general reason in the
    /// error; empty if there is only the general reason. `None` if OpenSSL accepts the value.
    pub(super) fn refusal(self, value: &Word) -> Option<String> {
        let text = value.text();
        let when = |refused: bool| refused.then(String::new);
        match self {
            Value::Ciphers => {
                let chosen = suites::ciphers(&text);
                let is_none = chosen.found.is_empty()
                    && !chosen.missing.iter().any(|names| suites::are_known(names));
                let no_match = || String::from("error:0A0000B9:SSL routines::no cipher match");
                chosen.refused.or_else(|| is_none.then(no_match))
            }
            Value::Groups { automatic } => {
                let all = ["automatic", "+automatic"];
                let is_all = all.iter().any(|all| text.eq_ignore_ascii_case(all));
                if automatic && is_all {
                    None
                } else {
                    suites::groups(&text).refused
                }
            }
            Value::Signatures => when(!text.split(':').map(str::trim).all(is_signature)),
            Value::One(words) => when(!words.contains(&text.as_ref())),
            Value::Switches(words) => {
                let is_word = |name: &str| words.iter().any(|word| word.eq_ignore_ascii_case(name));
                when(!switches(&text).all(|(name, _)| is_word(name)))
            }
            Value::Number(most) => when(!(0..=most).contains(&number(&text))),
            Value::Suites | Value::File(_) | Value::Folder | Value::LateFolder | Value::Store => {
                None
            }
        }
    }

    /// The path of a file or folder that must exist, as errors show it.
    pub(super) fn shown(self, compiler: &Compiler<'_>, value: &Word) -> String {
        match self {
            Value::File(_) | Value::Folder | Value::LateFolder => {
                let path = compiler.conf_prefix.join(value.path());
                path.display().to_string()
            }
            _ => value.text().into_owned(),
        }
    }

    /// Whether the value is a file or folder that OpenSSL opens.
    pub(super) fn is_opened(self) -> bool {
        matches!(self, Value::File(_) | Value::Folder | Value::Store)
    }

    /// Why OpenSSL cannot open the path; `None` if it can.
    pub(super) fn unopened(self, shown: &str) -> Option<String> {
        let path = Path::new(shown);
        match self {
            Value::File(opening) => {
                let error = std::fs::File::open(path).err()?;
                let system = system_reason(&error, &format!("fopen({shown}, r)"));
                let behind = match opening {
                    FileOpener::OfCertificate => {
                        "error:10080002:BIO routines::system lib error:0A080002:SSL routines::system lib"
                    }
                    FileOpener::Plain => "error:10080002:BIO routines::system lib",
                    FileOpener::OfAuthorities if error.kind() == io::ErrorKind::NotFound => {
                        "error:10000080:BIO routines::no such file \
                         error:05880002:x509 certificate routines::system lib"
                    }
                    FileOpener::OfAuthorities => {
                        "error:10080002:BIO routines::system lib \
                         error:05880002:x509 certificate routines::system lib"
                    }
                };
                Some(format!("{system} {behind}"))
            }
            Value::Folder => {
                let error = std::fs::read_dir(path).err()?;
                let system = system_reason(&error, &format!("OPENSSL_dir_read({shown})"));
                Some(format!("{system} error:0A080002:SSL routines::system lib"))
            }
            // URIs of other schemes than `file` belong to other programs.
            Value::Store if !shown.contains(':') => {
                let error = std::fs::metadata(path).err()?;
                let system = system_reason(&error, &format!("stat({shown})"));
                let scheme = "error:16000069:STORE routines::unregistered scheme:scheme=file";
                Some(format!("{scheme} {system}"))
            }
            _ => None,
        }
    }
}

/// The words of a comma-separated list, and whether each is switched on.
pub(super) fn switches(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let words = text.split(',').map(str::trim);
    words.map(|word| match word.strip_prefix('-') {
        Some(bare) => (bare, false),
        None => (word.strip_prefix('+').unwrap_or(word), true),
    })
}

/// Whether OpenSSL knows a signature algorithm. A leading `?` marks one that it need not know.
fn is_signature(name: &str) -> bool {
    if name.len() > 1 && name.starts_with('?') || SIGNATURES.contains(&name) {
        return true;
    }
    let Some((one, other)) = name.split_once('+') else {
        return false;
    };
    let fits = |key: &str, digest: &str| {
        let key = KEYS.iter().find(|(known, _)| *known == key);
        let digest = DIGESTS
            .iter()
            .find(|(known, _)| *known == digest || known.to_ascii_lowercase() == digest);
        let both = key.zip(digest);
        both.is_some_and(|((_, takes_short), (_, is_long))| *takes_short || *is_long)
    };
    fits(one, other) || fits(other, one)
}

/// A number as atoi(3) parses it: text without leading digits is 0, and text after the digits is
/// ignored.
fn number(text: &str) -> i64 {
    let text = text.trim_start();
    let (digits, sign) = match text.strip_prefix('-') {
        Some(digits) => (digits, -1),
        None => (text.strip_prefix('+').unwrap_or(text), 1),
    };
    let end = digits.find(|c: char| !c.is_ascii_digit());
    let (digits, _) = digits.split_at(end.unwrap_or(digits.len()));
    let number = if digits.is_empty() {
        0
    } else {
        digits.parse().unwrap_or(i64::MAX)
    };
    sign * number
}

/// Checks that a path exists.
pub(super) fn check(
    compiler: &Compiler<'_>,
    name: &Word,
    value: &Word,
    kind: Value,
) -> Result<(), Fault> {
    let shown = kind.shown(compiler, value);
    match kind.unopened(&shown) {
        Some(reason) => Err(super::refused(name, &shown, &reason)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_by_their_names_and_by_their_parts() {
        for name in [
            "rsa_pkcs1_sha1",
            "RSA+SHA256",
            "SHA256+RSA",
            "RSA+sha256",
            "PSS+SHA384",
            "ECDSA+SHA1",
            "?new",
        ] {
            assert!(is_signature(name), "{name}");
        }
        for name in [
            "",
            "?",
            "off",
            "RSA",
            "ED25519",
            "rsa+SHA256",
            "ECDSA+MD5",
            "RSA-PSS+SHA1",
        ] {
            assert!(!is_signature(name), "{name}");
        }
    }

    #[test]
    fn numbers_with_what_stands_around_them() {
        let numbers = ["-1", " 5x", "foo", "+3", "", "-", "99999999999999999999"].map(number);
        assert_eq!(numbers, [-1, 5, 0, 3, 0, 0, i64::MAX]);
    }
}
