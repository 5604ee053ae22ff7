//! Updates the entry that a 304 confirms: RFC 9111, sections 3.2 and 4.3.4.

use super::FieldLine;
use super::storing::ExcludedFields;

/// Fields that a 304 does not replace, since they describe the stored body.
const KEPT: [&[u8]; 4] = [
    b"content-length",
    b"content-encoding",
    b"content-range",
    b"set-cookie",
];

/// Which part of an entry a 304 changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Only fields about time, so that the body need not be rewritten.
    Times,
    /// Other fields, too.
    Fields,
}

/// Whether a 304 is about the entry: if both have an ETag, the two must be equal in a weak
/// comparison (section 4.3.4).
pub(crate) fn confirms_entry(stored: Option<&[u8]>, confirmed: Option<&[u8]>) -> bool {
    let bare = |tag: &'_ [u8]| -> Vec<u8> {
        let tag = tag.strip_prefix(b"W/").unwrap_or(tag);
        tag.to_vec()
    };
    match (stored, confirmed) {
        (Some(stored), Some(confirmed)) => bare(stored) == bare(confirmed),
        (_, None) | (None, Some(_)) => true,
    }
}

/// Returns the fields of an entry after a 304, whose fields replace stored fields with the same
/// name.
pub(crate) fn merged<'a>(
    stored: &[FieldLine<'a>],
    confirmed: &[FieldLine<'a>],
    withheld: &ExcludedFields,
) -> (Vec<FieldLine<'a>>, Change) {
    let is_kept = |name: &[u8]| {
        let kept = KEPT.iter().any(|kept| kept.eq_ignore_ascii_case(name));
        kept || withheld.contains(name)
    };
    let news: Vec<FieldLine<'a>> = confirmed
        .iter()
        .copied()
        .filter(|(name, _)| !is_kept(name))
        .collect();
    let is_named = |name: &[u8], pairs: &[FieldLine<'a>]| {
        pairs
            .iter()
            .any(|(other, _)| other.eq_ignore_ascii_case(name))
    };
    let of_name = |name: &[u8], pairs: &[FieldLine<'a>]| -> Vec<&'a [u8]> {
        let found = pairs
            .iter()
            .filter(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, value)| *value).collect()
    };
    let is_changed = news.iter().any(|(name, _)| {
        let tells_time = name.eq_ignore_ascii_case(b"date") || name.eq_ignore_ascii_case(b"age");
        !tells_time && of_name(name, &news) != of_name(name, stored)
    });
    let left = stored.iter().copied();
    let mut fields: Vec<FieldLine<'a>> = left.filter(|(name, _)| !is_named(name, &news)).collect();
    // An old Age does not apply to the confirmed response.
    if !is_named(b"age", &news) {
        fields.retain(|(name, _)| !name.eq_ignore_ascii_case(b"age"));
    }
    fields.extend(news);
    let change = if is_changed {
        Change::Fields
    } else {
        Change::Times
    };
    (fields, change)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pairs: &[FieldLine<'_>]) -> String {
        let lines = pairs
            .iter()
            .map(|(name, value)| format!("{}:{};", name.escape_ascii(), value.escape_ascii()));
        lines.collect()
    }

    /// Section 3.2.
    #[test]
    fn fields_of_the_304_replace() {
        let stored: [FieldLine<'_>; 6] = [
            (b"Date", b"1"),
            (b"A", b"1"),
            (b"a", b"2"),
            (b"B", b"3"),
            (b"Content-Length", b"4"),
            (b"Age", b"9"),
        ];
        let withheld = ExcludedFields::of([(&b"Connection"[..], &b"X"[..])].into_iter());
        for (confirmed, expected, change) in [
            (
                &[(&b"date"[..], &b"2"[..])][..],
                "A:1;a:2;B:3;Content-Length:4;date:2;",
                Change::Times,
            ),
            (
                &[(b"A", b"5"), (b"Content-Length", b"0"), (b"X", b"y")],
                "Date:1;B:3;Content-Length:4;A:5;",
                Change::Fields,
            ),
            (
                &[(b"B", b"3"), (b"Age", b"7"), (b"Set-Cookie", b"a=b")],
                "Date:1;A:1;a:2;Content-Length:4;B:3;Age:7;",
                Change::Times,
            ),
            (
                &[(b"C", b"1")],
                "Date:1;A:1;a:2;B:3;Content-Length:4;C:1;",
                Change::Fields,
            ),
        ] {
            let (fields, changed) = merged(&stored, confirmed, &withheld);
            assert_eq!((text(&fields).as_str(), changed), (expected, change));
        }
    }

    /// Section 4.3.4.
    #[test]
    fn a_304_of_another_tag_is_about_something_else() {
        assert!(confirms_entry(Some(b"\"a\""), Some(b"\"a\"")));
        assert!(confirms_entry(Some(b"W/\"a\""), Some(b"\"a\"")));
        assert!(confirms_entry(Some(b"\"a\""), None));
        assert!(confirms_entry(None, Some(b"\"a\"")));
        assert!(!confirms_entry(Some(b"\"a\""), Some(b"\"b\"")));
    }
}
