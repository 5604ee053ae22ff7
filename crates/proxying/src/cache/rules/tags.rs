//! Tags by which responses are purged together: `Surrogate-Key` and `Cache-Tag`.
//!
//! `Surrogate-Key` is a list separated by spaces (W3C's Edge Architecture), `Cache-Tag` one
//! separated by commas. Neither has an RFC; both follow the usage of the CDNs that support them.

use super::FieldLine;

/// Maximum number of tags of a response; further tags are ignored.
pub(crate) const TAGS_MAX: usize = 256;

/// Maximum length of a tag in bytes; longer tags are ignored.
pub(crate) const TAG_LENGTH_MAX: usize = 1024;

/// The tags in these fields, of a response or of a purge request.
pub(crate) fn all<'a>(fields: impl Iterator<Item = FieldLine<'a>>) -> Vec<&'a [u8]> {
    let mut tags: Vec<&[u8]> = Vec::new();
    for (name, value) in fields {
        let separator = if name.eq_ignore_ascii_case(b"surrogate-key") {
            b' '
        } else if name.eq_ignore_ascii_case(b"cache-tag") {
            b','
        } else {
            continue;
        };
        for tag in value.split(|byte| *byte == separator) {
            let tag = tag.trim_ascii();
            let counts = !tag.is_empty() && tag.len() <= TAG_LENGTH_MAX;
            if counts && tags.len() < TAGS_MAX && !tags.contains(&tag) {
                tags.push(tag);
            }
        }
    }
    tags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_fields_have_their_separators() {
        let long = "x".repeat(TAG_LENGTH_MAX + 1);
        let fields: [FieldLine<'_>; 5] = [
            (b"Surrogate-Key", b"a  b,c a"),
            (b"cache-tag", b"d e, f,,a"),
            (b"Cache-Tag", b""),
            (b"Surrogate-Key", long.as_bytes()),
            (b"X", b"y"),
        ];
        let tags = all(fields.into_iter());
        assert_eq!(tags, [&b"a"[..], b"b,c", b"d e", b"f"]);
    }

    #[test]
    fn there_are_so_many_and_no_more() {
        let value = (0..300)
            .map(|number| format!("t{number} "))
            .collect::<String>();
        let fields: [FieldLine<'_>; 1] = [(b"Surrogate-Key", value.as_bytes())];
        assert_eq!(all(fields.into_iter()).len(), TAGS_MAX);
    }
}
