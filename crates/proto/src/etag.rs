//! Entity tags, and the conditions that compare them (RFC 9110, sections 8.8.3 and 13.1), as in
//! nginx.

use crate::date;

/// Maximum length of a tag from [`of_file`], in bytes: two quotes, a dash and two 64-bit numbers.
const LENGTH_MAX: usize = 35;

/// A file's tag, stored inline.
#[derive(Clone, Copy, Debug)]
pub struct ETag {
    bytes: [u8; LENGTH_MAX],
    length: u8,
}

impl ETag {
    /// The tag with its quotes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes
            .get(..usize::from(self.length))
            .unwrap_or_default()
    }
}

/// The strong tag of a file: its modification time (in seconds) and size in hexadecimal digits,
/// such as `"5f3a-1c"`.
pub fn of_file(mtime: i64, size: u64) -> ETag {
    let mut bytes = [0; LENGTH_MAX];
    let tag = (b"\"".iter().copied())
        .chain(hexadecimal(mtime as u64))
        .chain(*b"-")
        .chain(hexadecimal(size))
        .chain(*b"\"");
    let mut length = 0;
    // Two numbers of at most 16 digits always fit.
    for (place, byte) in bytes.iter_mut().zip(tag) {
        *place = byte;
        length += 1;
    }
    ETag { bytes, length }
}

/// The hexadecimal digits of a number, without leading zeros. Formatting with `std` takes three
/// times as many instructions.
fn hexadecimal(number: u64) -> impl Iterator<Item = u8> {
    let digits = (u64::BITS - number.leading_zeros()).div_ceil(4).max(1);
    let digit = move |place: u32| (number >> (4 * place) & 15) as u8;
    (0..digits).rev().map(move |place| match digit(place) {
        digit @ 0..=9 => b'0' + digit,
        digit => b'a' + digit - 10,
    })
}

/// Whether the list of `If-Match` (`weak` is false) or `If-None-Match` (`weak` is true) contains
/// `etag`. `*` matches always; otherwise `None` (a response without a tag) never matches.
pub fn list_contains(list: &[u8], etag: Option<&[u8]>, weak: bool) -> bool {
    if list == b"*" {
        return true;
    }
    let Some(mut etag) = etag else { return false };
    if weak {
        etag = strip_weak(etag);
    }
    let mut rest = list;
    while !rest.is_empty() {
        if weak {
            rest = strip_weak(rest);
        }
        if etag.len() > rest.len() {
            return false;
        }
        if let Some(after) = rest.strip_prefix(etag) {
            rest = trim(after, b" \t");
            if rest.is_empty() || rest.starts_with(b",") {
                return true;
            }
        }
        let comma = rest
            .iter()
            .position(|&byte| byte == b',')
            .unwrap_or(rest.len());
        rest = trim(rest.get(comma..).unwrap_or_default(), b" \t,");
    }
    false
}

/// Whether `If-Range` matches this representation, so that a range of it may be sent.
pub fn if_range_holds(value: &[u8], etag: Option<&[u8]>, last_modified: Option<i64>) -> bool {
    if value.len() >= 2 && value.ends_with(b"\"") {
        return etag == Some(value);
    }
    last_modified.is_some() && date::parse_http(value) == last_modified
}

/// The tag without `W/`, unless nothing else is left.
fn strip_weak(tag: &[u8]) -> &[u8] {
    match tag.strip_prefix(b"W/") {
        Some(rest) if !rest.is_empty() => rest,
        _ => tag,
    }
}

fn trim<'a>(mut bytes: &'a [u8], blank: &[u8]) -> &'a [u8] {
    while let Some((first, rest)) = bytes.split_first()
        && blank.contains(first)
    {
        bytes = rest;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_files() {
        assert_eq!(of_file(0x5f3a_0000, 0x1c).as_bytes(), b"\"5f3a0000-1c\"");
        assert_eq!(
            of_file(-1, u64::MAX).as_bytes(),
            b"\"ffffffffffffffff-ffffffffffffffff\""
        );
        assert_eq!(of_file(0, 0).as_bytes(), b"\"0-0\"");
    }

    #[test]
    fn lists_of_tags() {
        for (list, etag, weak, expected) in [
            ("*", None, false, true),
            ("\"a\"", None, false, false),
            ("\"a\"", Some("\"a\""), false, true),
            ("\"a\"", Some("\"a\""), true, true),
            ("W/\"a\"", Some("\"a\""), false, false),
            ("W/\"a\"", Some("\"a\""), true, true),
            ("\"a\"", Some("W/\"a\""), true, true),
            ("W/\"a\"", Some("W/\"a\""), false, true),
            ("\"b\", \"a\"", Some("\"a\""), false, true),
            ("\"b\",\t\"a\" ,\"c\"", Some("\"a\""), false, true),
            ("\"b\", W/\"a\"", Some("\"a\""), true, true),
            ("\"a\"x, \"b\"", Some("\"a\""), false, false),
            ("\"aa\"", Some("\"a\""), false, false),
            (",, \"a\"", Some("\"a\""), false, true),
            ("\"a", Some("\"a\""), false, false),
            ("", Some("\"a\""), false, false),
            ("W/", Some("W/"), true, true),
        ] {
            assert_eq!(
                list_contains(list.as_bytes(), etag.map(str::as_bytes), weak),
                expected,
                "{list} {etag:?} {weak}"
            );
        }
    }

    #[test]
    fn if_range() {
        let date = b"Sun, 06 Nov 1994 08:49:37 GMT";
        assert!(if_range_holds(date, None, Some(784_111_777)));
        assert!(!if_range_holds(date, None, Some(784_111_776)));
        assert!(!if_range_holds(date, None, None));
        assert!(!if_range_holds(b"nonsense", None, None));
        assert!(if_range_holds(b"\"a\"", Some(b"\"a\""), None));
        assert!(!if_range_holds(b"\"a\"", Some(b"\"b\""), Some(0)));
        assert!(!if_range_holds(b"\"a\"", None, Some(0)));
        assert!(if_range_holds(b"W/\"a\"", Some(b"W/\"a\""), None));
        assert!(!if_range_holds(b"\"", Some(b"\""), Some(0)));
    }
}
