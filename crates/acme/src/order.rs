//! An order for a certificate: its identifiers and the type of its key.

use std::fmt;
use std::net::IpAddr;

use sha2::{Digest, Sha256};

/// A name or an address that a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identifier {
    /// A domain name in lower case, with or without a leading `*.`.
    Dns(String),
    /// An address (RFC 8738).
    Ip(IpAddr),
}

impl fmt::Display for Identifier {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identifier::Dns(name) => out.write_str(name),
            Identifier::Ip(address) => write!(out, "{address}"),
        }
    }
}

/// Why a text is not a valid identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidName {
    /// A byte other than printable ASCII, and its position.
    Byte(u8, usize),
    /// A character that is not allowed at its position.
    Unexpected(char, usize),
    /// The name ends with a dot or an asterisk, or is empty.
    NotALabel,
}

impl fmt::Display for InvalidName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidName::Byte(byte, at) => {
                write!(out, "invalid character {byte:x} at position {at}")
            }
            InvalidName::Unexpected(character, at) => {
                write!(out, "unexpected character '{character}' at position {at}")
            }
            InvalidName::NotALabel => out.write_str("does not end with a label"),
        }
    }
}

impl Identifier {
    /// Parses one configured identifier: an address, a name, or `.example.com`, which means the two
    /// names `www.example.com` and `example.com`.
    ///
    /// # Errors
    /// The defect of the name. ACME servers are stricter; this refuses only names that no host can
    /// have.
    pub fn parse(text: &[u8]) -> Result<Vec<Identifier>, InvalidName> {
        if let Some(address) = std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse().ok())
        {
            return Ok(vec![Identifier::Ip(address)]);
        }
        check_name(text)?;
        let name = String::from_utf8_lossy(text).to_ascii_lowercase();
        Ok(match name.strip_prefix('.') {
            Some(host) => vec![
                Identifier::Dns(format!("www.{host}")),
                Identifier::Dns(host.to_owned()),
            ],
            None => vec![Identifier::Dns(name)],
        })
    }
}

/// Accepts labels separated by single dots; the first may be `*` or empty. The wildcard follows RFC
/// 8555 section 7.1.3; otherwise all characters are allowed that a `Host` field may contain.
fn check_name(name: &[u8]) -> Result<(), InvalidName> {
    let mut previous = None;
    for (at, &byte) in name.iter().enumerate() {
        let unexpected = Err(InvalidName::Unexpected(char::from(byte), at));
        match byte {
            0..=b' ' | 0x7f.. => return Err(InvalidName::Byte(byte, at)),
            b'.' if previous != Some(b'.') => {}
            _ if previous == Some(b'*') => return unexpected,
            b'*' if at == 0 => {}
            byte if byte.is_ascii_alphanumeric() || b"-_~%!$&'()+,;=".contains(&byte) => {}
            _ => return unexpected,
        }
        previous = Some(byte);
    }
    match previous {
        None | Some(b'.' | b'*') => Err(InvalidName::NotALabel),
        Some(_) => Ok(()),
    }
}

/// The type of a certificate's private key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyKind {
    /// An ECDSA key on the curve P-256.
    #[default]
    Ecdsa256,
    /// An ECDSA key on the curve P-384.
    Ecdsa384,
    /// An ECDSA key on the curve P-521.
    Ecdsa521,
    /// RSA with 2,048 bits.
    Rsa2048,
    /// RSA with 3,072 bits.
    Rsa3072,
    /// RSA with 4,096 bits.
    Rsa4096,
}

/// Why a text is not a valid type of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownKey {
    /// `ecdsa:` with an unsupported curve.
    Curve,
    /// `rsa:` with an unsupported size.
    Size,
    /// Neither `ecdsa` nor `rsa`.
    Other,
}

impl KeyKind {
    /// Parses `ecdsa[:256|384|521]` or `rsa[:2048|3072|4096]`.
    ///
    /// # Errors
    /// Which part is not valid.
    pub fn parse(text: &[u8]) -> Result<KeyKind, UnknownKey> {
        match text {
            b"ecdsa" | b"ecdsa:256" => Ok(KeyKind::Ecdsa256),
            b"ecdsa:384" => Ok(KeyKind::Ecdsa384),
            b"ecdsa:521" => Ok(KeyKind::Ecdsa521),
            b"rsa" | b"rsa:2048" => Ok(KeyKind::Rsa2048),
            b"rsa:3072" => Ok(KeyKind::Rsa3072),
            b"rsa:4096" => Ok(KeyKind::Rsa4096),
            _ if text.starts_with(b"ecdsa:") => Err(UnknownKey::Curve),
            _ if text.starts_with(b"rsa:") => Err(UnknownKey::Size),
            _ => Err(UnknownKey::Other),
        }
    }

    fn name(self) -> &'static str {
        match self {
            KeyKind::Ecdsa256 => "ecdsa:256",
            KeyKind::Ecdsa384 => "ecdsa:384",
            KeyKind::Ecdsa521 => "ecdsa:521",
            KeyKind::Rsa2048 => "rsa:2048",
            KeyKind::Rsa3072 => "rsa:3072",
            KeyKind::Rsa4096 => "rsa:4096",
        }
    }
}

/// One requested certificate. Equal orders share a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// The identifiers, in the order of the configuration.
    pub identifiers: Vec<Identifier>,
    /// The type of the certificate's key.
    pub key: KeyKind,
}

impl Order {
    /// A short identifier for log lines and file names. Depends only on the order and the directory
    /// URL.
    pub fn id(&self, directory: &str) -> String {
        let mut hash = Sha256::new();
        hash.update(directory);
        for identifier in &self.identifiers {
            hash.update(format!("\n{identifier}"));
        }
        hash.update(format!("\n\n{}", self.key.name()));
        let digest: String = hash
            .finalize()
            .iter()
            .take(6)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        match self.first_name() {
            // Replaces the characters that file names may not contain on every system.
            Some(name) => format!(
                "{}-{digest}",
                name.to_string().replace(['*', '/', ':'], "_")
            ),
            None => digest,
        }
    }

    /// The first name, or the first address where there is no name.
    pub fn first_name(&self) -> Option<&Identifier> {
        let is_name = |identifier: &&Identifier| matches!(identifier, Identifier::Dns(_));
        let name = self.identifiers.iter().find(is_name);
        name.or_else(|| self.identifiers.first())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<String>, InvalidName> {
        let parsed = Identifier::parse(text.as_bytes())?;
        Ok(parsed.iter().map(Identifier::to_string).collect())
    }

    #[test]
    fn names_are_those_that_a_host_can_have() {
        let one = |text: &str| Ok(vec![text.to_owned()]);
        for name in [
            "example",
            "_example",
            "exam_ple",
            "00.example.test",
            "xn--e1afmkfd.xn--80akhbyknj4f",
        ] {
            assert_eq!(names(name), one(name));
        }
        assert_eq!(names("Www1.Example.Test"), one("www1.example.test"));
        assert_eq!(names("*.example.test"), one("*.example.test"));
        let both = vec!["www.example.test".to_owned(), "example.test".to_owned()];
        assert_eq!(names(".example.test"), Ok(both));
        for (name, why) in [
            ("", InvalidName::NotALabel),
            ("*", InvalidName::NotALabel),
            ("*.", InvalidName::NotALabel),
            ("example.", InvalidName::NotALabel),
            ("www.example..test", InvalidName::Unexpected('.', 12)),
            ("*ww.example.test", InvalidName::Unexpected('w', 1)),
            ("ww*.example.test", InvalidName::Unexpected('*', 2)),
            ("www.example.*", InvalidName::Unexpected('*', 12)),
            ("a/b", InvalidName::Unexpected('/', 1)),
            ("E\x10ample", InvalidName::Byte(0x10, 1)),
            ("пример", InvalidName::Byte(0xd0, 0)),
        ] {
            assert_eq!(names(name), Err(why), "{name}");
        }
    }

    #[test]
    fn addresses_are_written_in_one_way() {
        assert_eq!(names("192.0.2.1"), Ok(vec!["192.0.2.1".to_owned()]));
        assert_eq!(names("2001:DB8:0::1"), Ok(vec!["2001:db8::1".to_owned()]));
    }

    #[test]
    fn kinds_of_keys() {
        assert_eq!(KeyKind::parse(b"ecdsa"), Ok(KeyKind::Ecdsa256));
        assert_eq!(KeyKind::parse(b"rsa:4096"), Ok(KeyKind::Rsa4096));
        assert_eq!(KeyKind::parse(b"ecdsa:234"), Err(UnknownKey::Curve));
        assert_eq!(KeyKind::parse(b"rsa:1024"), Err(UnknownKey::Size));
        assert_eq!(KeyKind::parse(b"file.key"), Err(UnknownKey::Other));
    }

    #[test]
    fn an_id_names_what_is_asked_and_whom() {
        let order = |names: &str, key| Order {
            identifiers: Identifier::parse(names.as_bytes()).unwrap(),
            key,
        };
        let wildcard = order("*.example.test", KeyKind::Ecdsa256);
        let id = wildcard.id("https://one/");
        assert!(
            id.starts_with("_.example.test-") && id.len() == 15 + 12,
            "{id}"
        );
        assert_eq!(id, wildcard.id("https://one/"));
        assert_ne!(id, wildcard.id("https://two/"));
        let rsa = order("*.example.test", KeyKind::Rsa2048);
        assert_ne!(id, rsa.id("https://one/"));
        let mixed = Order {
            identifiers: ["192.0.2.1", "a.test"]
                .iter()
                .flat_map(|text| Identifier::parse(text.as_bytes()).unwrap())
                .collect(),
            key: KeyKind::default(),
        };
        assert_eq!(mixed.first_name(), Some(&Identifier::Dns("a.test".into())));
        assert!(
            order("2001:db8::1", KeyKind::Ecdsa256)
                .id("")
                .starts_with("2001_db8__1-")
        );
    }
}
