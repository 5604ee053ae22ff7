//! `Cache-Control`: RFC 9111, section 5.2.
//!
//! A list of directives, each a name with or without a value. A value is a token or a quoted
//! string, which contains no directives. Names are case-insensitive; if a directive occurs twice,
//! the first counts (section 4.2.1). Unknown directives are ignored (section 5.2.3).

use super::delta_seconds;

/// The directives of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResponseDirectives {
    pub no_store: bool,
    /// `no-cache` without a list of fields (section 5.2.2.4).
    pub no_cache: bool,
    /// `private` without a list of fields (section 5.2.2.7).
    pub private: bool,
    /// Names in lower case of the fields in `no-cache="…"` and `private="…"`, which must not be
    /// stored.
    pub withheld: Vec<Vec<u8>>,
    pub public: bool,
    pub must_revalidate: bool,
    pub proxy_revalidate: bool,
    pub must_understand: bool,
    /// In seconds (section 5.2.2.1). An invalid value counts as 0, so that the response is stale
    /// (section 4.2.1).
    pub max_age: Option<u64>,
    /// In seconds (section 5.2.2.10); an invalid value counts as 0, too.
    pub s_maxage: Option<u64>,
    /// In seconds (RFC 5861, section 3); an invalid value counts as 0.
    pub stale_while_revalidate: Option<u64>,
    /// In seconds (RFC 5861, section 4); an invalid value counts as 0.
    pub stale_if_error: Option<u64>,
}

/// The directives of a request (section 5.2.1). A directive with an invalid value is ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestDirectives {
    pub no_cache: bool,
    pub no_store: bool,
    pub only_if_cached: bool,
    pub max_age: Option<u64>,
    pub min_fresh: Option<u64>,
    /// In seconds (section 5.2.1.2); without a value the client accepts any staleness.
    pub max_stale: Option<u64>,
}

impl ResponseDirectives {
    /// Adds the directives of one `Cache-Control` line.
    pub(crate) fn take(&mut self, value: &[u8]) {
        for (name, argument) in members(value) {
            self.take_one(&name.to_ascii_lowercase(), argument);
        }
    }

    /// Adds one directive, whose name is in lower case.
    pub(super) fn take_one(&mut self, name: &[u8], argument: Option<&[u8]>) {
        let seconds = || argument.and_then(delta_seconds).unwrap_or(0);
        match name {
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache |= !self.withhold(argument),
            b"private" => self.private |= !self.withhold(argument),
            b"public" => self.public = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"must-understand" => self.must_understand = true,
            b"max-age" => self.max_age = self.max_age.or_else(|| Some(seconds())),
            b"s-maxage" => self.s_maxage = self.s_maxage.or_else(|| Some(seconds())),
            b"stale-while-revalidate" => {
                let known = self.stale_while_revalidate;
                self.stale_while_revalidate = known.or_else(|| Some(seconds()));
            }
            b"stale-if-error" => {
                let known = self.stale_if_error;
                self.stale_if_error = known.or_else(|| Some(seconds()));
            }
            _ => {}
        }
    }

    /// Notes fields that must not be stored. False if the list is empty.
    fn withhold(&mut self, fields: Option<&[u8]>) -> bool {
        let fields = fields.unwrap_or_default();
        let names = fields.split(|byte| matches!(byte, b',' | b' ' | b'\t'));
        let mut has_one = false;
        for name in names.filter(|name| !name.is_empty()) {
            has_one = true;
            self.withheld.push(name.to_ascii_lowercase());
        }
        has_one
    }
}

impl RequestDirectives {
    /// Adds the directives of one `Cache-Control` line.
    pub(crate) fn take(&mut self, value: &[u8]) {
        for (name, argument) in members(value) {
            let seconds = || argument.and_then(delta_seconds);
            match &*name.to_ascii_lowercase() {
                b"no-cache" => self.no_cache = true,
                b"no-store" => self.no_store = true,
                b"only-if-cached" => self.only_if_cached = true,
                b"max-age" => self.max_age = self.max_age.or_else(seconds),
                b"min-fresh" => self.min_fresh = self.min_fresh.or_else(seconds),
                b"max-stale" if argument.is_none() => self.max_stale = Some(u64::MAX),
                b"max-stale" => self.max_stale = self.max_stale.or_else(seconds),
                _ => {}
            }
        }
    }
}

/// The directives of a list with their values, without quotes.
fn members(value: &[u8]) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
    elements(value).map(|element| {
        let equals = memchr::memchr(b'=', element);
        let Some((name, argument)) = equals.and_then(|at| element.split_at_checked(at)) else {
            return (element, None);
        };
        let argument = argument.get(1..).unwrap_or_default();
        let quoted = argument.strip_prefix(b"\"");
        let quoted = quoted.and_then(|argument| argument.strip_suffix(b"\""));
        (name, Some(quoted.unwrap_or(argument)))
    })
}

/// The elements of a list, without surrounding spaces. A comma in a quoted string does not separate
/// elements.
pub(crate) fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(value);
    std::iter::from_fn(move || {
        let text = rest?;
        let end = element_end(text);
        rest = text.get(end + 1..);
        Some(text.get(..end).unwrap_or(text).trim_ascii())
    })
    .filter(|element| !element.is_empty())
}

/// The position of the next comma outside quoted strings.
fn element_end(text: &[u8]) -> usize {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b',' if !is_quoted => return at,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(value: &str) -> ResponseDirectives {
        let mut directives = ResponseDirectives::default();
        directives.take(value.as_bytes());
        directives
    }

    /// RFC 9111, sections 4.2.1 and 5.2.2.1.
    #[test]
    fn ages_are_numbers() {
        for (value, expected) in [
            ("max-age=3600", Some(3600)),
            ("MaX-aGe=3600", Some(3600)),
            ("max-age=\"3600\"", Some(3600)),
            ("foobar, max-age=3600", Some(3600)),
            (",, max-age=3600 ,", Some(3600)),
            ("max-age=003600", Some(3600)),
            ("max-age=99999999999", Some(1 << 31)),
            ("max-age=0", Some(0)),
            // Of two `max-age` the first counts.
            ("max-age=1, max-age=1800", Some(1)),
            // An invalid number makes the response stale.
            ("max-age=-3600", Some(0)),
            ("max-age=3600.0", Some(0)),
            ("max-age='3600'", Some(0)),
            ("max-age=a1", Some(0)),
            ("max-age=1a", Some(0)),
            ("max-age= 3600", Some(0)),
            ("max-age", Some(0)),
            // A longer name, or a name in quotes, is not `max-age`.
            ("max-age =3600", None),
            ("extension=\"max-age=3600\"", None),
            ("extension=\"a\\\", max-age=3600\"", None),
            ("extension=\"max-age=3600\", max-age=1", Some(1)),
            ("max-age=1, extension=\"max-age=3600\"", Some(1)),
            ("xmax-age=3600", None),
        ] {
            assert_eq!(response(value).max_age, expected, "{value}");
        }
    }

    /// RFC 9111, sections 5.2.2.4 and 5.2.2.7.
    #[test]
    fn fields_may_be_withheld_alone() {
        let directives = response("no-cache=\"Set-Cookie, a\", private=b, max-age=1");
        assert!(!directives.no_cache && !directives.private);
        let withheld: Vec<&[u8]> = directives.withheld.iter().map(Vec::as_slice).collect();
        assert_eq!(withheld, [&b"set-cookie"[..], b"a", b"b"]);
        assert!(response("No-CaChE").no_cache && response("no-cache=\"\"").no_cache);
        assert!(response("private, no-cache=\"a\"").private);
    }

    /// RFC 9111, section 5.2.1.
    #[test]
    fn requests_say_what_they_want() {
        let mut directives = RequestDirectives::default();
        directives.take(b"nothing-to-see-here");
        assert_eq!(directives, RequestDirectives::default());
        directives.take(b"max-age=5, MIN-FRESH=7");
        directives.take(b"max-stale, no-cache, no-store, only-if-cached, max-age=x");
        let expected = RequestDirectives {
            no_cache: true,
            no_store: true,
            only_if_cached: true,
            max_age: Some(5),
            min_fresh: Some(7),
            max_stale: Some(u64::MAX),
        };
        assert_eq!(directives, expected);
        let mut directives = RequestDirectives::default();
        directives.take(b"max-age=x, max-stale=9");
        assert_eq!((directives.max_age, directives.max_stale), (None, Some(9)));
    }
}
