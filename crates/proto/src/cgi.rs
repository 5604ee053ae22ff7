//! What FastCGI, uwsgi and SCGI have in common, because they carry the same: a request as variables, and the head of a response
//! (RFC 3875, the Common Gateway Interface).
//!
//! Each protocol writes variables in its own way ([`crate::fastcgi`], [`crate::uwsgi`], [`crate::scgi`]); which ones a request
//! has, and their order, is the business of the modules.

pub use crate::h1::response::cgi::{Form, parse};

/// What stands before the name of a request's field in a variable's.
const PREFIX: &[u8] = b"HTTP_";

/// The name of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name<'a> {
    /// As it is, such as `REQUEST_METHOD`.
    Plain(&'a [u8]),
    /// That of a request's field (RFC 3875, section 4.1.18), which is given as it came: `HTTP_` before it, in capitals, `_` for each
    /// dash.
    Field(&'a [u8]),
}

impl Name<'_> {
    /// How many bytes it has.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Name::Plain(name) => name.len(),
            Name::Field(name) => PREFIX.len() + name.len(),
        }
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends it.
    pub fn append(&self, out: &mut Vec<u8>) {
        match self {
            Name::Plain(name) => out.extend_from_slice(name),
            Name::Field(name) => {
                out.extend_from_slice(PREFIX);
                out.extend(name.iter().map(|byte| match byte {
                    b'-' => b'_',
                    byte => byte.to_ascii_uppercase(),
                }));
            }
        }
    }
}

/// What takes the variables of a request, in the order in which they are to be sent, whatever protocol carries them.
pub trait Variables {
    /// Adds a variable. Its value is what the parts are together; they are gone through twice, first for their length.
    fn add<'v>(&mut self, name: Name<'_>, value: impl Iterator<Item = &'v [u8]> + Clone);

    /// Adds a variable whose value is in one part.
    fn push(&mut self, name: &[u8], value: &[u8]) {
        self.add(Name::Plain(name), std::iter::once(value));
    }

    /// Adds the variable of a request's field, with all values that the request has under that name, [`joined`].
    fn push_field<'v>(&mut self, name: &[u8], values: impl Iterator<Item = &'v [u8]> + Clone) {
        self.add(Name::Field(name), joined(name, values));
    }
}

/// The values of a field that came several times as the parts of one: `; ` between those of `Cookie`, `, ` between others (nginx
/// since 1.23; RFC 3875, section 4.1.18).
pub fn joined<'v>(
    field_name: &[u8],
    values: impl Iterator<Item = &'v [u8]> + Clone,
) -> impl Iterator<Item = &'v [u8]> + Clone {
    let separator: &[u8] = match field_name.eq_ignore_ascii_case(b"cookie") {
        true => b"; ",
        false => b", ",
    };
    values.enumerate().flat_map(move |(index, value)| {
        let before = if index == 0 { &b""[..] } else { separator };
        [before, value]
    })
}

/// How many bytes parts have together.
pub(crate) fn length_of<'v>(parts: impl Iterator<Item = &'v [u8]>) -> usize {
    parts.fold(0, |length, part| length.saturating_add(part.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_fields() {
        for (name, expected) in [
            ("Host", "HTTP_HOST"),
            ("x-Forwarded-for", "HTTP_X_FORWARDED_FOR"),
            ("a_b.c1", "HTTP_A_B.C1"),
            ("", "HTTP_"),
        ] {
            let name = Name::Field(name.as_bytes());
            let mut written = Vec::new();
            name.append(&mut written);
            assert_eq!(written, expected.as_bytes());
            assert_eq!(name.len(), expected.len());
        }
        let mut written = Vec::new();
        Name::Plain(b"a-b").append(&mut written);
        assert_eq!(written, b"a-b");
    }

    /// Separators by `ngx_http_fastcgi_create_request`.
    #[test]
    fn values_are_joined() {
        for (name, values, expected) in [
            ("X-A", &["1"][..], "1"),
            ("X-A", &["1", "2", "3"], "1, 2, 3"),
            ("Cookie", &["a=1", "b=2"], "a=1; b=2"),
            ("cookie", &["a=1", "b=2"], "a=1; b=2"),
            ("Cookie2", &["a=1", "b=2"], "a=1, b=2"),
            ("X-A", &["", ""], ", "),
            ("X-A", &[], ""),
        ] {
            let parts = joined(name.as_bytes(), values.iter().map(|value| value.as_bytes()));
            assert_eq!(length_of(parts.clone()), expected.len());
            let text: Vec<u8> = parts.flatten().copied().collect();
            assert_eq!(text, expected.as_bytes(), "{name}");
        }
    }
}
