//! `CDN-Cache-Control`: RFC 9213, a dictionary of structured fields (RFC 9651, section 4.2.2).
//!
//! If the field is valid and not empty, it replaces Cache-Control and Expires (section 2.2); if any
//! part is not a valid structured field, the whole field is ignored (section 2.1).

use super::SECONDS_MAX;
use super::directives::ResponseDirectives;

/// Parses the value of the field, with all lines joined by commas; `None` if the field is invalid
/// or empty.
pub(super) fn parse(value: &[u8]) -> Option<ResponseDirectives> {
    let mut text = Text(value);
    let mut directives = ResponseDirectives::default();
    let mut has_one = false;
    text.skip_spaces();
    while !text.0.is_empty() {
        let key = text.key()?;
        let item = if text.take(b'=') {
            text.member()?
        } else {
            Item::Boolean(true)
        };
        text.parameters()?;
        take(&mut directives, key, &item);
        has_one = true;
        text.skip_optional_whitespace();
        if text.0.is_empty() {
            break;
        }
        // A trailing comma is invalid.
        (text.take(b',')).then_some(())?;
        text.skip_optional_whitespace();
        (!text.0.is_empty()).then_some(())?;
    }
    has_one.then_some(directives)
}

/// The value of a member: its type matters only where a directive uses that type.
#[derive(Debug, PartialEq, Eq)]
enum Item {
    Integer(i64),
    Boolean(bool),
    Text(Vec<u8>),
    /// A type that no directive uses.
    Other,
}

/// Adds a member. A directive whose value has the wrong type is ignored.
fn take(directives: &mut ResponseDirectives, key: &[u8], item: &Item) {
    match (key, item) {
        (
            b"max-age" | b"s-maxage" | b"stale-while-revalidate" | b"stale-if-error",
            Item::Integer(seconds),
        ) => {
            let seconds = u64::try_from(*seconds).unwrap_or(0).min(SECONDS_MAX);
            directives.take_one(key, Some(seconds.to_string().as_bytes()));
        }
        (b"no-cache" | b"private", Item::Text(fields)) => directives.take_one(key, Some(fields)),
        (
            b"no-store" | b"no-cache" | b"private" | b"public" | b"must-revalidate"
            | b"proxy-revalidate" | b"must-understand",
            Item::Boolean(true),
        ) => directives.take_one(key, None),
        _ => {}
    }
}

/// The part of a field that has not been parsed.
struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Skips this byte if it follows; false if it does not.
    fn take(&mut self, byte: u8) -> bool {
        let is_it = self.peek() == Some(byte);
        if is_it {
            self.next();
        }
        is_it
    }

    fn skip_spaces(&mut self) {
        while self.take(b' ') {}
    }

    fn skip_optional_whitespace(&mut self) {
        while self.take(b' ') || self.take(b'\t') {}
    }

    fn take_while(&mut self, is_part: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.0.iter().position(|byte| !is_part(*byte));
        let (part, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        self.0 = rest;
        part
    }

    /// Parses a key (RFC 9651, section 4.2.3.3).
    fn key(&mut self) -> Option<&'a [u8]> {
        let first = self.peek()?;
        (first.is_ascii_lowercase() || first == b'*').then_some(())?;
        Some(self.take_while(|byte| {
            let is_letter = byte.is_ascii_lowercase() || byte.is_ascii_digit();
            is_letter || matches!(byte, b'_' | b'-' | b'.' | b'*')
        }))
    }

    /// Parses an item, or an inner list in parentheses (section 4.2.1.2).
    fn member(&mut self) -> Option<Item> {
        if !self.take(b'(') {
            return self.item();
        }
        loop {
            self.skip_spaces();
            if self.take(b')') {
                return Some(Item::Other);
            }
            self.item()?;
            self.parameters()?;
            matches!(self.peek(), Some(b' ' | b')')).then_some(())?;
        }
    }

    /// Parses a bare item, without parameters (section 4.2.3.1).
    fn item(&mut self) -> Option<Item> {
        match self.peek()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string().map(Item::Text),
            b'?' => {
                self.next();
                match self.next()? {
                    b'0' => Some(Item::Boolean(false)),
                    b'1' => Some(Item::Boolean(true)),
                    _ => None,
                }
            }
            b':' => {
                self.next();
                self.take_while(|byte| {
                    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=')
                });
                self.take(b':').then_some(Item::Other)
            }
            b'@' => {
                self.next();
                let Item::Integer(_) = self.number()? else {
                    return None;
                };
                Some(Item::Other)
            }
            b'%' => {
                self.next();
                self.string().map(|_| Item::Other)
            }
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => {
                let token = self.take_while(|byte| {
                    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
                });
                Some(Item::Text(token.to_vec()))
            }
            _ => None,
        }
    }

    /// Parses a number (section 4.2.4): up to 15 digits, or up to 12 with up to 3 after the decimal
    /// point.
    fn number(&mut self) -> Option<Item> {
        let is_negative = self.take(b'-');
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        (1..=15).contains(&digits.len()).then_some(())?;
        if self.take(b'.') {
            let behind = self.take_while(|byte| byte.is_ascii_digit());
            let fits = digits.len() <= 12 && (1..=3).contains(&behind.len());
            return fits.then_some(Item::Other);
        }
        let number: i64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
        Some(Item::Integer(if is_negative { -number } else { number }))
    }

    fn string(&mut self) -> Option<Vec<u8>> {
        self.take(b'"').then_some(())?;
        let mut string = Vec::new();
        loop {
            match self.next()? {
                b'"' => return Some(string),
                b'\\' => string.push(self.next().filter(|byte| b"\"\\".contains(byte))?),
                byte @ b' '..=b'~' => string.push(byte),
                _ => return None,
            }
        }
    }

    /// Skips parameters (section 4.2.3.2), which no directive uses.
    fn parameters(&mut self) -> Option<()> {
        while self.take(b';') {
            self.skip_spaces();
            self.key()?;
            if self.take(b'=') {
                self.item()?;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9213, section 2.1, and RFC 9651, section 4.2.
    #[test]
    fn it_is_a_dictionary_or_nothing() {
        for (value, expected) in [
            ("max-age=3600", Some(Some(3600))),
            ("foobar, max-age=3600", Some(Some(3600))),
            ("a=(1 \"b\" :YQ==:);c=?0, max-age=5;d=e", Some(Some(5))),
            ("max-age=99999999999", Some(Some(1 << 31))),
            ("max-age=-1", Some(Some(0))),
            ("foo", Some(None)),
            // A value of the wrong type.
            ("max-age=\"10000\"", Some(None)),
            ("max-age=1.5", Some(None)),
            ("max-age=?1", Some(None)),
            // Invalid structured fields.
            ("max-age=10000, &&&&&", None),
            ("max-age =100", None),
            ("max-age= 100", None),
            ("MaX-aGe=3600", None),
            ("max-age=1,", None),
            ("max-age=1234567890123456", None),
            ("max-age=1 s-maxage=2", None),
            ("a=\"b", None),
            ("", None),
            ("  ", None),
        ] {
            let parsed = parse(value.as_bytes()).map(|directives| directives.max_age);
            assert_eq!(parsed, expected, "{value}");
        }
    }

    /// RFC 9213, section 2.1.
    #[test]
    fn flags_are_booleans_and_fields_are_strings() {
        let said = parse(b"no-store, private=\"a, b\", must-revalidate=?0, no-cache=?1").unwrap();
        assert!(said.no_store && said.no_cache && !said.must_revalidate && !said.private);
        assert_eq!(said.withheld, [b"a".to_vec(), b"b".to_vec()]);
    }
}
