//! `Vary`: which of several responses with the same key a request gets.
//!
//! A varying response is stored under the id of its key, or under an id that is derived from the
//! key and the request fields that its `Vary` names. The second id is nginx's, bit for bit, so that
//! directories can be shared.

use http::request::Request;
use store::disk::EntryId;

use super::lookup::CacheLookup;
use super::rules::selecting;

/// Fields whose lists are compared without spaces and empty elements.
const LISTS: [&[u8]; 3] = [b"accept-charset", b"accept-encoding", b"accept-language"];

impl CacheLookup {
    /// The id under which a response with this `Vary` to this request is stored as a variant.
    pub(super) fn variant_of(&self, request: &Request, vary: &[u8]) -> EntryId {
        let append = match self.policy {
            Some(_) => |name: &[u8], values: &mut dyn Iterator<Item = &[u8]>, out: &mut Vec<u8>| {
                selecting::append(name, values, out);
            },
            None => |name: &[u8], values: &mut dyn Iterator<Item = &[u8]>, out: &mut Vec<u8>| {
                append_values(values, LISTS.contains(&name), out);
            },
        };
        variant(request, &self.main, vary, append)
    }
}

/// The variant id for a request and a `Vary`, under the key with the id `main`. `append` appends
/// the normalized values of a field.
fn variant(
    request: &Request,
    main: &EntryId,
    vary: &[u8],
    append: fn(&[u8], &mut dyn Iterator<Item = &[u8]>, &mut Vec<u8>),
) -> EntryId {
    let mut text = main.0.to_vec();
    let lower = vary.to_ascii_lowercase();
    let names = lower.split(|byte| matches!(byte, b',' | b' '));
    for name in names.filter(|name| !name.is_empty()) {
        text.extend_from_slice(name);
        text.push(b':');
        let fields = request.client.known_headers();
        let of_name = fields.filter(|(_, other, _)| other.eq_ignore_ascii_case(name));
        append(name, &mut of_name.map(|(_, _, value)| value), &mut text);
        text.extend_from_slice(b"\r\n");
    }
    EntryId::of(&[&text])
}

/// Appends the values of a field, separated by commas.
fn append_values<'a>(values: impl Iterator<Item = &'a [u8]>, is_list: bool, out: &mut Vec<u8>) {
    let mut has_one = false;
    let mut append = |value: &[u8]| {
        if std::mem::replace(&mut has_one, true) {
            out.push(b',');
        }
        out.extend_from_slice(value);
    };
    for value in values {
        if !is_list {
            append(value);
            continue;
        }
        let elements = value.split(|byte| matches!(byte, b',' | b' '));
        elements
            .filter(|element| !element.is_empty())
            .for_each(&mut append);
    }
}

/// Checks that nginx's lists are the elements of their lines, joined by commas, and other values
/// their lines.
#[cfg(any(test, feature = "testing"))]
pub(super) fn check_values(lines: &[&[u8]]) {
    let appended = |is_list| {
        let mut out = Vec::new();
        append_values(lines.iter().copied(), is_list, &mut out);
        out
    };
    assert_eq!(appended(false), lines.join(&b","[..]));
    let mut elements = appended(false);
    for byte in elements.iter_mut().filter(|byte| **byte == b' ') {
        *byte = b',';
    }
    let text: Vec<&[u8]> = elements
        .split(|byte| *byte == b',')
        .filter(|element| !element.is_empty())
        .collect();
    assert_eq!(appended(true), text.join(&b","[..]));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn appended(values: &[&'static str], is_list: bool) -> String {
        let mut out = Vec::new();
        append_values(
            values.iter().map(|value| value.as_bytes()),
            is_list,
            &mut out,
        );
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lists_are_compared_without_their_spaces() {
        assert_eq!(appended(&["gzip,  br", ", de"], true), "gzip,br,de");
        assert_eq!(appended(&["gzip,  br", ", de"], false), "gzip,  br,, de");
        assert_eq!(appended(&[], true), "");
    }
}
