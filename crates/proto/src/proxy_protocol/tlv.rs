//! The TLVs of a version 2 header: a list of types, lengths and values (section 2.2 of the
//! specification).
//!
//! Names are those of nginx's `$proxy_protocol_tlv_NAME`:
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#var_proxy_protocol_tlv_>. A list is
//! parsed only when a variable is evaluated, so that a malformed list does not affect connections
//! that do not use it.

use std::fmt;

const NAMES: [(&[u8], u64); 5] = [
    (b"alpn", 0x01),
    (b"authority", 0x02),
    (b"unique_id", 0x05),
    (b"ssl", SSL),
    (b"netns", 0x30),
];

/// A TLV that contains a list of its own (section 2.2.6).
const SSL: u64 = 0x20;

/// Names of types within [`SSL`].
const SSL_NAMES: [(&[u8], u64); 5] = [
    (b"version", 0x21),
    (b"cn", 0x22),
    (b"cipher", 0x23),
    (b"sig_alg", 0x24),
    (b"key_alg", 0x25),
];

/// The TLVs after the addresses of a header, not validated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tlvs<'a>(pub &'a [u8]);

/// The value of a named TLV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// The bytes of a TLV.
    Bytes(&'a [u8]),
    /// `ssl_verify`: 0 if the client sent a certificate that was verified successfully.
    Verify(u32),
}

/// Why a lookup failed. `Display` is nginx's log message without the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlvError {
    /// A TLV extends beyond the end of its list, or the TLV `SSL` is shorter than its fixed part.
    Broken,
    /// A name that nginx does not define.
    UnknownName,
    /// `0x` without hexadecimal digits, or with too many.
    InvalidNumber,
}

impl fmt::Display for TlvError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            TlvError::Broken => "broken PROXY protocol TLV",
            TlvError::UnknownName => "unknown PROXY protocol TLV",
            TlvError::InvalidNumber => "invalid PROXY protocol TLV",
        })
    }
}

impl<'a> Tlvs<'a> {
    /// Looks up a name: one of nginx's, or `0x` and a type in hexadecimal digits; with the prefix
    /// `ssl_`, in the list within the TLV `SSL`. `None` if the list has no such TLV.
    ///
    /// # Errors
    /// See [`TlvError`].
    pub fn named(self, name: &[u8]) -> Result<Option<Value<'a>>, TlvError> {
        let Some(name) = name.strip_prefix(b"ssl_") else {
            return self.of_type(type_of(name, &NAMES)?);
        };
        let Some(ssl) = self.find(SSL)? else {
            return Ok(None);
        };
        // One byte of flags, then the result of verifying the client's certificate.
        let ([_, verify @ ..], rest) = ssl.split_first_chunk::<5>().ok_or(TlvError::Broken)?;
        if name == b"verify" {
            return Ok(Some(Value::Verify(u32::from_be_bytes(*verify))));
        }
        Tlvs(rest).of_type(type_of(name, &SSL_NAMES)?)
    }

    fn of_type(self, wanted: u64) -> Result<Option<Value<'a>>, TlvError> {
        Ok(self.find(wanted)?.map(Value::Bytes))
    }

    /// The value of the first TLV with the type `wanted`, if the header has one.
    fn find(self, wanted: u64) -> Result<Option<&'a [u8]>, TlvError> {
        let mut list = self.0;
        while !list.is_empty() {
            let (head, rest) = list.split_first_chunk::<3>().ok_or(TlvError::Broken)?;
            let [kind, high, low] = *head;
            let length = usize::from(u16::from_be_bytes([high, low]));
            let (value, rest) = rest.split_at_checked(length).ok_or(TlvError::Broken)?;
            if u64::from(kind) == wanted {
                return Ok(Some(value));
            }
            list = rest;
        }
        Ok(None)
    }
}

/// Parses a name. As in nginx, a type may be any number of 63 bits; one above 255 never matches.
fn type_of(name: &[u8], names: &[(&[u8], u64)]) -> Result<u64, TlvError> {
    if let Some(digits) = name.strip_prefix(b"0x") {
        return number(digits).ok_or(TlvError::InvalidNumber);
    }
    let found = names.iter().find(|(known, _)| *known == name);
    found.map(|(_, kind)| *kind).ok_or(TlvError::UnknownName)
}

fn number(digits: &[u8]) -> Option<u64> {
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None; // `from_str_radix` also accepts a sign
    }
    let number = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    i64::try_from(number).is_ok().then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len()).unwrap().to_be_bytes();
        [&[kind][..], &length, value].concat()
    }

    /// A list as in section 2.2: ALPN, authority, checksum, unique ID, TLS, network namespace, and
    /// an unknown type.
    fn list() -> Vec<u8> {
        let ssl = [
            &[0x01, 0, 0, 0, 255][..],
            &tlv(0x21, b"TLSv1.2"),
            &tlv(0x22, b"example.com"),
            &tlv(0x23, b"AES256-SHA"),
            &tlv(0x24, b"SHA1"),
            &tlv(0x25, b"RSA512"),
        ]
        .concat();
        [
            tlv(0x01, b"h2"),
            tlv(0x02, b"localhost"),
            tlv(0x03, b"4321"),
            tlv(0x05, b"UNIQ"),
            tlv(SSL as u8, &ssl),
            tlv(0x30, b"NETNS"),
            tlv(0xae, b""),
            tlv(0xae, b"second"),
        ]
        .concat()
    }

    #[test]
    fn names_and_numbers() {
        let list = list();
        let named = |name: &str| Tlvs(&list).named(name.as_bytes());
        let bytes = |text: &'static [u8]| Ok(Some(Value::Bytes(text)));
        for (name, value) in [
            ("alpn", &b"h2"[..]),
            ("0x01", b"h2"),
            ("0x1", b"h2"),
            ("authority", b"localhost"),
            ("0x00000000000000000003", b"4321"),
            ("unique_id", b"UNIQ"),
            ("netns", b"NETNS"),
            ("0xae", b""),
            ("0xAE", b""),
            ("ssl_version", b"TLSv1.2"),
            ("ssl_cn", b"example.com"),
            ("ssl_cipher", b"AES256-SHA"),
            ("ssl_sig_alg", b"SHA1"),
            ("ssl_key_alg", b"RSA512"),
            ("ssl_0x21", b"TLSv1.2"),
        ] {
            assert_eq!(named(name), bytes(value), "{name}");
        }
        assert_eq!(named("ssl_verify"), Ok(Some(Value::Verify(255))));
        let whole = named("ssl").unwrap();
        assert!(matches!(whole, Some(Value::Bytes(bytes)) if bytes.len() == 5 + 53));
        for missing in ["0x0e", "0x1ae", "0x7fffffffffffffff", "ssl_0x01"] {
            assert_eq!(named(missing), Ok(None), "{missing}");
        }
    }

    #[test]
    fn what_is_no_name() {
        let list = list();
        let named = |name: &str| Tlvs(&list).named(name.as_bytes());
        for unknown in ["", "crc32c", "ssl_", "ssl_verified", "version", "0", "ALPN"] {
            assert_eq!(named(unknown), Err(TlvError::UnknownName), "{unknown}");
        }
        for invalid in ["0x", "0x+1", "0xg", "0x8000000000000000", "ssl_0x"] {
            assert_eq!(named(invalid), Err(TlvError::InvalidNumber), "{invalid}");
        }
        // Without a TLV `SSL`, the name is not checked.
        assert_eq!(Tlvs(b"").named(b"ssl_nonsense"), Ok(None));
    }

    #[test]
    fn what_is_no_list() {
        let named = |list: &[u8], name: &[u8]| Tlvs(list).named(name).map(|_| ());
        assert_eq!(named(b"\x01\0", b"alpn"), Err(TlvError::Broken));
        assert_eq!(named(b"\x01\0\x03h2", b"alpn"), Err(TlvError::Broken));
        // The TLV precedes the malformed part.
        assert_eq!(named(b"\x01\0\x02h2\x02", b"alpn"), Ok(()));
        let short = tlv(SSL as u8, b"\x01\0\0\0");
        assert_eq!(named(&short, b"ssl_verify"), Err(TlvError::Broken));
        let broken = tlv(SSL as u8, b"\x01\0\0\0\0\x21\0");
        assert_eq!(named(&broken, b"ssl_cn"), Err(TlvError::Broken));
        assert_eq!(named(&broken, b"ssl_verify"), Ok(()));
    }
}
