//! Encodes fields with reference to the static table only (RFC 7541, section 6): every connection
//! can decode them at any time, so that they can be encoded once and sent many times.

use super::check::NameKind;
use super::{huffman, integer, static_table};
use crate::header::KnownField;

/// The first bits of an indexed field, and how many bits of the first byte remain for the index.
pub(super) const INDEXED: (u8, u32) = (0x80, 7);
/// The same for a literal that is added to the dynamic table.
pub(super) const KEPT: (u8, u32) = (0x40, 6);
/// The same for a literal that is not added to the dynamic table.
pub(super) const NOT_KEPT: (u8, u32) = (0, 4);
/// The same for a literal that no hop may add to a dynamic table.
pub(super) const NEVER_INDEXED: (u8, u32) = (0x10, 4);
/// The same for a dynamic table size update.
pub(super) const SIZE_UPDATE: (u8, u32) = (0x20, 5);

/// A field name to encode: an index of the static table, or the name itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldName<'a> {
    /// The index of an entry of the static table with this name.
    Index(u8),
    /// The name in any case; it is encoded in lower case.
    Text(&'a [u8]),
}

impl<'a> FieldName<'a> {
    /// The shortest encoding of a name, which may be in any case.
    #[must_use]
    pub fn of(name: &'a [u8]) -> FieldName<'a> {
        FieldName::find(NameKind::of(name), name)
    }

    /// The shortest encoding of a known field's name.
    #[must_use]
    pub fn of_known(known: KnownField) -> FieldName<'static> {
        FieldName::find(NameKind::Field(known), known.name().as_bytes())
    }

    fn find(which: NameKind, name: &[u8]) -> FieldName<'_> {
        match static_table::index_of_name(which, name) {
            Some(index) => FieldName::Index(index as u8),
            None => FieldName::Text(name),
        }
    }
}

/// Encodes a field that equals an entry of the static table: 2 is `:method: GET`, 8 is `:status:
/// 200`.
pub fn indexed(index: u8, out: &mut Vec<u8>) {
    put_number(usize::from(index), INDEXED, out);
}

/// Encodes a field that is not added to the peer's dynamic table.
pub fn field(name: FieldName<'_>, value: &[u8], out: &mut Vec<u8>) {
    put_field(name, value, NOT_KEPT, out);
}

/// Encodes a field that no hop may add to a dynamic table (RFC 7541, section 7.1.3).
pub fn never_indexed(name: FieldName<'_>, value: &[u8], out: &mut Vec<u8>) {
    put_field(name, value, NEVER_INDEXED, out);
}

/// Encodes `:status`. Only the last three digits are written.
pub fn status(status: u16, out: &mut Vec<u8>) {
    let digit = |power: u16| b'0' + (status / power % 10) as u8;
    let digits = [digit(100), digit(10), digit(1)];
    let first = static_table::STATUS;
    match static_table::index_of_value(first, &digits) {
        Some(index) => put_number(index, INDEXED, out),
        None => field(FieldName::Index(first as u8), &digits, out),
    }
}

/// Appends an integer after the given first bits.
#[inline]
pub(super) fn put_number(number: usize, (flags, prefix): (u8, u32), out: &mut Vec<u8>) {
    integer::put(number, prefix, flags, out);
}

/// Appends a string, Huffman-coded if that is shorter.
pub(super) fn put_text(text: &[u8], out: &mut Vec<u8>) {
    put_bytes(text.iter().copied(), text.len(), out);
}

fn put_field(name: FieldName<'_>, value: &[u8], kind: (u8, u32), out: &mut Vec<u8>) {
    match name {
        FieldName::Index(index) => put_number(usize::from(index), kind, out),
        FieldName::Text(name) => {
            put_number(0, kind, out);
            let lower = name.iter().map(u8::to_ascii_lowercase);
            put_bytes(lower, name.len(), out);
        }
    }
    put_text(value, out);
}

#[inline]
fn put_bytes(text: impl Iterator<Item = u8> + Clone, length: usize, out: &mut Vec<u8>) {
    let encoded = huffman::encoded_length(text.clone());
    if encoded < length {
        put_number(encoded, (0x80, 7), out);
        huffman::encode(text, out);
    } else {
        put_number(length, (0, 7), out);
        out.extend(text);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{decode_all, hex};
    use super::super::{Decoder, Faults};
    use super::*;

    #[test]
    fn a_status() {
        let written = |code| {
            let mut out = Vec::new();
            status(code, &mut out);
            out
        };
        let indexed = [
            (200, 0x88),
            (204, 0x89),
            (206, 0x8a),
            (304, 0x8b),
            (400, 0x8c),
            (404, 0x8d),
            (500, 0x8e),
        ];
        for (code, byte) in indexed {
            assert_eq!(written(code), [byte]);
        }
        // The value "302" as in RFC 7541, appendix C.6.1.
        assert_eq!(written(302), hex("0882 6402"));
        for code in 100..=999 {
            let fields = decode_all(&mut Decoder::new(), &written(code)).unwrap();
            assert_eq!(fields, [(":status".into(), code.to_string())]);
        }
    }

    #[test]
    fn fields_with_and_without_a_name_in_the_table() {
        let mut out = Vec::new();
        indexed(2, &mut out);
        field(FieldName::of(b"Retry-After"), b"120", &mut out);
        field(
            FieldName::of_known(KnownField::Server),
            b"tidegate",
            &mut out,
        );
        field(FieldName::of(b"X-Own"), b"\x01\x02", &mut out);
        field(
            FieldName::of_known(KnownField::XAccelRedirect),
            b"",
            &mut out,
        );
        never_indexed(FieldName::of(b"set-cookie"), b"a=b", &mut out);
        let expected = [
            (":method", "GET"),
            ("retry-after", "120"),
            ("server", "tidegate"),
            ("x-own", "\x01\x02"),
            ("x-accel-redirect", ""),
            ("set-cookie", "a=b"),
        ];
        let expected = expected.map(|(name, value)| (name.to_string(), value.to_string()));
        let mut decoder = Decoder::new();
        assert_eq!(decode_all(&mut decoder, &out).unwrap(), expected);
        let (mut bytes, mut flags) = (Vec::new(), Vec::new());
        let sink = |field: super::super::Decoded, _: &[u8]| {
            assert_eq!(field.faults, Faults::NONE);
            flags.push((field.static_index, field.never_indexed));
        };
        decoder.decode(&out, usize::MAX, &mut bytes, sink).unwrap();
        assert_eq!(flags[0], (Some(2), false));
        assert_eq!(flags[1..5], [(None, false); 4]);
        assert_eq!(flags[5], (None, true));
        assert_eq!(FieldName::of(b"ETag"), FieldName::Index(34));
        assert_eq!(FieldName::of(b"te"), FieldName::Text(b"te"));
        assert_eq!(FieldName::of_known(KnownField::Vary), FieldName::Index(59));
    }
}
