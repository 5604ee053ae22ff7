//! The classification of a decoded field: which name it has, and its faults (RFC 9113, section
//! 8.2.1).
//!
//! Computed once, when the field is received as a literal, and stored in the dynamic table with it.
//! The caller decides which faults make a request invalid.

use crate::byte_table::ByteTable;
use crate::header::KnownField;

/// The name of a field. Names that begin with a colon are pseudo-header fields (RFC 9113, section
/// 8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// The pseudo-field `:method` of a request.
    Method,
    /// The pseudo-field `:scheme` of a request.
    Scheme,
    /// The pseudo-field `:authority` of a request.
    Authority,
    /// The pseudo-field `:path` of a request.
    Path,
    /// The pseudo-field `:status` of a response.
    Status,
    /// The pseudo-field `:protocol` of an extended CONNECT (RFC 8441).
    Protocol,
    /// Another name that begins with a colon.
    UnknownPseudo,
    /// A regular field, as in HTTP/1.
    Field(KnownField),
}

impl NameKind {
    /// Classifies a name.
    #[inline]
    #[must_use]
    pub fn of(name: &[u8]) -> NameKind {
        match name {
            [b':', pseudo @ ..] => match pseudo {
                b"method" => NameKind::Method,
                b"scheme" => NameKind::Scheme,
                b"authority" => NameKind::Authority,
                b"path" => NameKind::Path,
                b"status" => NameKind::Status,
                b"protocol" => NameKind::Protocol,
                _ => NameKind::UnknownPseudo,
            },
            _ => NameKind::Field(KnownField::from_name(name)),
        }
    }

    /// Whether the name begins with a colon.
    #[inline]
    #[must_use]
    pub fn is_pseudo(self) -> bool {
        !matches!(self, NameKind::Field(_))
    }
}

/// A set of faults of a field. Some are faults by the RFC but not for nginx, or the reverse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults(u8);

impl Faults {
    /// No faults.
    pub const NONE: Faults = Faults(0);
    /// The name has no bytes.
    pub const NAME_EMPTY: Faults = Faults(1);
    /// The name has a capital letter.
    pub const NAME_CAPITAL: Faults = Faults(1 << 1);
    /// The name has a control byte, a space, a DEL, or a colon that is not its first byte.
    pub const NAME_INVALID: Faults = Faults(1 << 2);
    /// The name has a byte beyond ASCII: malformed by the RFC, only unusual to nginx.
    pub const NAME_NOT_ASCII: Faults = Faults(1 << 3);
    /// The name has an underscore. Not malformed by the RFC.
    pub const NAME_UNDERSCORE: Faults = Faults(1 << 4);
    /// The name has another byte that is not a letter, digit or dash. Not malformed by the RFC.
    pub const NAME_UNUSUAL: Faults = Faults(1 << 5);
    /// The value has a NUL, CR or LF.
    pub const VALUE_INVALID: Faults = Faults(1 << 6);
    /// The value begins or ends with a space or a tab: malformed by the RFC, accepted by nginx.
    pub const VALUE_SPACE: Faults = Faults(1 << 7);

    /// The faults that the RFC calls malformed.
    pub const MALFORMED: Faults = Faults::NAME_EMPTY
        .or(Faults::NAME_CAPITAL)
        .or(Faults::NAME_INVALID)
        .or(Faults::NAME_NOT_ASCII)
        .or(Faults::VALUE_INVALID)
        .or(Faults::VALUE_SPACE);

    const OF_NAMES: Faults = Faults::NAME_EMPTY
        .or(Faults::NAME_CAPITAL)
        .or(Faults::NAME_INVALID)
        .or(Faults::NAME_NOT_ASCII)
        .or(Faults::NAME_UNDERSCORE)
        .or(Faults::NAME_UNUSUAL);

    /// The union of both sets.
    #[must_use]
    pub const fn or(self, other: Faults) -> Faults {
        Faults(self.0 | other.0)
    }

    /// Whether the set contains at least one of `others`.
    #[inline]
    #[must_use]
    pub const fn has(self, others: Faults) -> bool {
        self.0 & others.0 != 0
    }

    /// Whether the set is empty.
    #[inline]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Only the faults of the name.
    #[inline]
    pub(super) const fn of_its_name(self) -> Faults {
        Faults(self.0 & Faults::OF_NAMES.0)
    }

    /// The faults of a name.
    #[inline]
    #[must_use]
    pub fn of_name(name: &[u8]) -> Faults {
        let rest = match name {
            [] => return Faults::NAME_EMPTY,
            [b':', rest @ ..] => rest,
            _ => name,
        };
        let faults = rest.iter().map(|byte| OF_BYTE.of(*byte));
        Faults(faults.fold(0, |all, one| all | one))
    }

    /// The faults of a value.
    #[inline]
    #[must_use]
    pub fn of_value(value: &[u8]) -> Faults {
        let mut faults = Faults::NONE;
        if let ([b' ' | b'\t', ..], _) | (_, [.., b' ' | b'\t']) = (value, value) {
            faults = faults.or(Faults::VALUE_SPACE);
        }
        if has_control(value) && value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) {
            faults = faults.or(Faults::VALUE_INVALID);
        }
        faults
    }
}

/// The fault of a name that contains this byte.
#[expect(
    clippy::indexing_slicing,
    reason = "the compiler evaluates it, and refuses what lies outside"
)]
static OF_BYTE: ByteTable<u8> = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = match byte as u8 {
            b'a'..=b'z' | b'0'..=b'9' | b'-' => Faults::NONE,
            b'A'..=b'Z' => Faults::NAME_CAPITAL,
            0..=b' ' | 0x7f | b':' => Faults::NAME_INVALID,
            0x80.. => Faults::NAME_NOT_ASCII,
            b'_' => Faults::NAME_UNDERSCORE,
            _ => Faults::NAME_UNUSUAL,
        }
        .0;
        byte += 1;
    }
    ByteTable::new(table)
};

/// Whether the value may contain a byte up to CR; checks eight bytes at a time.
#[inline]
fn has_control(value: &[u8]) -> bool {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let (words, rest) = value.as_chunks::<8>();
    // Sets the high bit of the lowest byte that is below 14, if there is one; if there is none,
    // sets no high bit.
    let marks = words.iter().fold(0, |marks, word| {
        let word = u64::from_le_bytes(*word);
        marks | (word.wrapping_sub(LOW * (b'\r' as u64 + 1)) & !word)
    });
    marks & HIGH != 0 || rest.iter().any(|byte| *byte <= b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_name() {
        for byte in 0..=u8::MAX {
            let expected = match byte {
                b'a'..=b'z' | b'0'..=b'9' | b'-' => Faults::NONE,
                b'A'..=b'Z' => Faults::NAME_CAPITAL,
                0..=0x20 | 0x7f => Faults::NAME_INVALID,
                0x80..=0xff => Faults::NAME_NOT_ASCII,
                b':' => Faults::NAME_INVALID,
                b'_' => Faults::NAME_UNDERSCORE,
                _ => Faults::NAME_UNUSUAL,
            };
            assert_eq!(Faults::of_name(&[b'a', byte, b'b']), expected, "{byte}");
            assert_eq!(Faults::of_name(&[b':', byte]), expected, "{byte}");
            if byte != b':' {
                assert_eq!(Faults::of_name(&[byte, b'a']), expected, "{byte}");
            }
        }
        assert_eq!(Faults::of_name(b""), Faults::NAME_EMPTY);
        assert_eq!(Faults::of_name(b":"), Faults::NONE);
        let all = Faults::of_name(b"A:\xff_*");
        assert_eq!(all.of_its_name(), all);
        assert!(all.has(Faults::NAME_CAPITAL) && all.has(Faults::NAME_INVALID));
        assert!(all.has(Faults::NAME_NOT_ASCII) && all.has(Faults::NAME_UNDERSCORE));
        assert!(all.has(Faults::NAME_UNUSUAL) && !all.has(Faults::VALUE_INVALID));
        assert!(!Faults::of_name(b"a_*").has(Faults::MALFORMED));
        assert!(
            !Faults::of_value(b" \0")
                .of_its_name()
                .has(Faults::MALFORMED)
        );
    }

    #[test]
    fn every_byte_of_a_value_at_every_place() {
        for length in 3..=40 {
            for place in 1..length - 1 {
                for byte in 0..=u8::MAX {
                    let mut value = vec![b'x'; length];
                    value[place] = byte;
                    let expected = match byte {
                        b'\0' | b'\r' | b'\n' => Faults::VALUE_INVALID,
                        _ => Faults::NONE,
                    };
                    assert_eq!(Faults::of_value(&value), expected, "{byte} at {place}");
                }
            }
        }
        for value in [" ", "\t", "a ", " a", "a\t", "\ta"] {
            assert_eq!(Faults::of_value(value.as_bytes()), Faults::VALUE_SPACE);
        }
        assert_eq!(Faults::of_value(b"a b"), Faults::NONE);
        assert_eq!(Faults::of_value(b""), Faults::NONE);
        let both = Faults::of_value(b" \n");
        assert!(both.has(Faults::VALUE_SPACE) && both.has(Faults::VALUE_INVALID));
    }

    #[test]
    fn names_with_a_colon() {
        assert_eq!(NameKind::of(b":path"), NameKind::Path);
        assert_eq!(NameKind::of(b":protocol"), NameKind::Protocol);
        assert_eq!(NameKind::of(b":paths"), NameKind::UnknownPseudo);
        assert_eq!(NameKind::of(b":"), NameKind::UnknownPseudo);
        assert_eq!(NameKind::of(b"path"), NameKind::Field(KnownField::Other));
        assert_eq!(NameKind::of(b"cookie"), NameKind::Field(KnownField::Cookie));
        assert!(NameKind::of(b":status").is_pseudo() && !NameKind::of(b"status").is_pseudo());
        assert_eq!(size_of::<NameKind>(), 1);
    }
}
