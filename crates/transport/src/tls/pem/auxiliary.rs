//! The trust settings that OpenSSL stores after a certificate: permitted and rejected uses.
//!
//! `X509_CERT_AUX ::= SEQUENCE { trust SEQUENCE OF OID OPTIONAL, reject [0] SEQUENCE OF OID
//! OPTIONAL, ... }`, as `openssl x509 -trustout` writes it with `-addtrust` and `-addreject`; see
//! openssl-verification-options(1), "Trust Anchors". Not here: the alias and the key identifier,
//! which may follow.

const SEQUENCE: u8 = 0x30;
const OBJECT_IDENTIFIER: u8 = 0x06;
const REJECTED: u8 = 0xa0;

/// `anyExtendedKeyUsage` (RFC 5280 section 4.2.1.12).
const ANY: &[u8] = &[0x55, 0x1d, 0x25, 0];

/// The certificates for which an authority may be trusted (RFC 5280 section 4.2.1.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustedFor {
    /// Trusted to issue server certificates.
    Servers,
    /// Trusted to issue client certificates.
    Clients,
}

impl TrustedFor {
    fn identifier(self) -> [u8; 8] {
        let last = match self {
            TrustedFor::Servers => 1,
            TrustedFor::Clients => 2,
        };
        [0x2b, 6, 1, 5, 5, 7, 3, last]
    }
}

/// Splits a certificate from its trust settings, which are usually empty.
pub(super) fn split(content: &[u8]) -> (&[u8], &[u8]) {
    let behind = element(content).map_or(&[][..], |element| element.behind);
    let length = content.len() - behind.len();
    content.split_at_checked(length).unwrap_or((content, &[]))
}

/// Whether the trust settings allow a purpose: the purpose is not listed as rejected, and is listed
/// as permitted if the settings list any permitted purposes.
pub(super) fn is_trusted(auxiliary: &[u8], purpose: TrustedFor) -> bool {
    let Some(whole) = element(auxiliary).filter(|whole| whole.tag == SEQUENCE) else {
        return auxiliary.is_empty();
    };
    let names = |list: &[u8]| {
        let mut identifiers = elements(list).filter(|one| one.tag == OBJECT_IDENTIFIER);
        identifiers.any(|one| one.content == purpose.identifier() || one.content == ANY)
    };
    elements(whole.content).all(|list| match list.tag {
        REJECTED => !names(list.content),
        SEQUENCE => list.content.is_empty() || names(list.content),
        _ => true,
    })
}

/// A DER element.
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    /// The bytes that follow the element.
    behind: &'a [u8],
}

fn elements(mut bytes: &[u8]) -> impl Iterator<Item = Element<'_>> {
    std::iter::from_fn(move || {
        let element = element(bytes)?;
        bytes = element.behind;
        Some(element)
    })
}

/// The first element, if it is complete.
fn element(bytes: &[u8]) -> Option<Element<'_>> {
    let (&[tag, length], rest) = bytes.split_first_chunk()?;
    let (length, rest) = match length {
        0..0x80 => (usize::from(length), rest),
        _ => {
            let (digits, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            let length = digits.iter().try_fold(0_usize, |length, digit| {
                length.checked_mul(256)?.checked_add(usize::from(*digit))
            })?;
            (length, rest)
        }
    };
    let (content, behind) = rest.split_at_checked(length)?;
    Some(Element {
        tag,
        content,
        behind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trust settings that `openssl x509 -trustout` writes with these options.
    const CASES: [(&[u8], [bool; 2]); 6] = [
        // Without trust settings, and with -setalias x: trusted for servers, for clients.
        (b"", [true, true]),
        (b"\x30\x03\x0c\x01x", [true, true]),
        // -addtrust clientAuth
        (
            b"\x30\x0c\x30\x0a\x06\x08\x2b\x06\x01\x05\x05\x07\x03\x02",
            [false, true],
        ),
        // -addreject clientAuth
        (
            b"\x30\x0c\xa0\x0a\x06\x08\x2b\x06\x01\x05\x05\x07\x03\x02",
            [true, false],
        ),
        // -addtrust anyExtendedKeyUsage
        (b"\x30\x08\x30\x06\x06\x04\x55\x1d\x25\x00", [true, true]),
        // Settings that cannot be parsed allow nothing.
        (b"\x04\x01x", [false, false]),
    ];

    #[test]
    fn what_a_certificate_is_trusted_for() {
        for (auxiliary, expected) in CASES {
            let trusted = [TrustedFor::Servers, TrustedFor::Clients]
                .map(|purpose| is_trusted(auxiliary, purpose));
            assert_eq!(trusted, expected, "{auxiliary:?}");
        }
    }

    #[test]
    fn a_certificate_ends_where_it_says() {
        assert_eq!(
            split(b"\x30\x02ab\x30\x00"),
            (&b"\x30\x02ab"[..], &b"\x30\x00"[..])
        );
        assert_eq!(
            split(b"\x30\x81\x02abc"),
            (&b"\x30\x81\x02ab"[..], &b"c"[..])
        );
        for whole in [
            &b""[..],
            b"\x30",
            b"\x30\x05ab",
            b"\x30\x89\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ] {
            assert_eq!(split(whole), (whole, &b""[..]));
        }
    }
}
