//! Whether a client already has the response that a cache would send: RFC 9111, section 4.3.2.
//!
//! `If-Match` and `If-Unmodified-Since` are for the origin, and are not evaluated here.

use super::dates;

/// The conditions of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conditions<'a> {
    pub none_match: Option<&'a [u8]>,
    pub modified_since: Option<&'a [u8]>,
}

/// The validators that the conditions are compared with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Selected<'a> {
    pub etag: Option<&'a [u8]>,
    pub last_modified: Option<&'a [u8]>,
    pub date: Option<&'a [u8]>,
    /// When the response was received, in seconds since 1970.
    pub received: i64,
}

impl Conditions<'_> {
    /// Whether the client gets a 304. If-None-Match takes precedence (RFC 9110, section 13.2.2);
    /// for a stored response without Last-Modified its Date is compared.
    pub(crate) fn is_not_modified(&self, selected: &Selected<'_>) -> bool {
        if let Some(list) = self.none_match {
            return proto::etag::list_contains(list, selected.etag, true);
        }
        let date = |value: &[u8]| dates::parse(value, selected.received);
        let Some(since) = self.modified_since.and_then(date) else {
            return false;
        };
        let changed = match selected.last_modified.and_then(date) {
            Some(changed) => changed,
            None => selected.date.and_then(date).unwrap_or(selected.received),
        };
        changed <= since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const TIME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const LATE: &str = "Sun, 06 Nov 1994 08:49:38 GMT";
    const OBSOLETE: &str = "Sunday, 06-Nov-94 08:49:37 GMT";

    #[test]
    fn tags_go_before_times() {
        let with = |etag: Option<&'static str>, last_modified: Option<&'static str>| Selected {
            etag: etag.map(str::as_bytes),
            last_modified: last_modified.map(str::as_bytes),
            date: Some(TIME.as_bytes()),
            received: 784_111_777,
        };
        let both = with(Some("\"a\""), Some(TIME));
        for (selected, none_match, modified_since, expected) in [
            (both, Some("\"a\""), None, true),
            (both, Some("W/\"a\""), None, true),
            (both, Some("\"b\", \"a\""), None, true),
            (both, Some("*"), None, true),
            (both, Some("\"b\""), None, false),
            (both, Some("\"a\""), Some(EARLY), true),
            (both, Some("\"b\""), Some(TIME), false),
            (both, None, Some(TIME), true),
            (both, None, Some(OBSOLETE), true),
            (both, None, Some(LATE), true),
            (both, None, Some(EARLY), false),
            (both, None, Some("nonsense"), false),
            (both, None, None, false),
            (with(None, Some(TIME)), Some("\"a\""), Some(TIME), false),
            // Without Last-Modified the Date is compared.
            (with(None, None), None, Some(TIME), true),
            (with(None, None), None, Some(EARLY), false),
        ] {
            let conditions = Conditions {
                none_match: none_match.map(str::as_bytes),
                modified_since: modified_since.map(str::as_bytes),
            };
            let are_met = conditions.is_not_modified(&selected);
            assert_eq!(are_met, expected, "{none_match:?} {modified_since:?}");
        }
    }
}
