//! What FastCGI, uwsgi and SCGI have in common, because they carry the same: a request as
//! variables, and the head of a response (RFC 3875, the Common Gateway Interface).
//!
//! Each protocol writes variables in its own way ([`crate::fastcgi`], [`crate::uwsgi`],
//! [`crate::scgi`]); which ones a request has, and their order, is the business of the modules.

pub use crate::h1::response::cgi::{Form, parse};

/// What stands before the name of a request's field in a variable's.
const PREFIX: &[u8] = b"HTTP_";

/// The name of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariableName<'a> {
    /// As it is, such as `REQUEST_METHOD`.
    Plain(&'a [u8]),
    /// The variable of a request's header field (RFC 3875, section 4.1.18). Takes the field's name
    /// as it came: the variable's name is `HTTP_` and the field's name in upper case, with `_` for
    /// each dash.
    Field(&'a [u8]),
}

impl VariableName<'_> {
    /// How many bytes it has.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            VariableName::Plain(name) => name.len(),
            VariableName::Field(name) => PREFIX.len() + name.len(),
        }
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the name of the variable to a buffer.
    pub fn append(&self, out: &mut Vec<u8>) {
        match self {
            VariableName::Plain(name) => out.extend_from_slice(name),
            VariableName::Field(name) => {
                out.extend_from_slice(PREFIX);
                let start = out.len();
                out.extend_from_slice(name);
                for byte in out.get_mut(start..).unwrap_or_default() {
                    *byte = match *byte {
                        b'-' => b'_',
                        byte => byte.to_ascii_uppercase(),
                    };
                }
            }
        }
    }
}

/// What takes the variables of a request, in the order in which they are to be sent, whatever
/// protocol carries them.
pub trait Variables {
    /// Appends what a variable begins with, up to its value: the same for each of a name.
    fn begin(name: VariableName<'_>, out: &mut Vec<u8>);

    /// A whole variable that is the same for each request, where such a one can be written before
    /// there is a request.
    fn constant(name: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        let _ = (name, value);
        None
    }

    /// Where variables are written.
    fn out(&mut self) -> &mut Vec<u8>;

    /// Ends a variable: what [begins](Variables::begin) it has been written from `start` to
    /// `value`, and its value behind that.
    fn end(&mut self, start: usize, value: usize);

    /// Adds a variable, whose value `write` appends to what it is given, where it is sent from; it
    /// leaves alone what is there.
    fn add(&mut self, name: VariableName<'_>, write: impl FnOnce(&mut Vec<u8>)) {
        let out = self.out();
        let start = out.len();
        Self::begin(name, out);
        let value = out.len();
        write(out);
        self.end(start, value);
    }

    /// Adds a variable of which what it [begins](Variables::begin) with has been written before.
    fn add_begun(&mut self, begun: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        let out = self.out();
        let start = out.len();
        out.extend_from_slice(begun);
        let value = out.len();
        write(out);
        self.end(start, value);
    }

    /// Adds a variable whose value is there.
    fn push(&mut self, name: &[u8], value: &[u8]) {
        self.add(VariableName::Plain(name), |out| {
            out.extend_from_slice(value)
        });
    }

    /// Adds the variable of a request's field, with all values that the request has under that
    /// name, joined.
    fn push_field<'v>(&mut self, name: &[u8], values: impl Iterator<Item = &'v [u8]>) {
        self.add(VariableName::Field(name), |out| {
            append_joined(name, values, out)
        });
    }
}

/// Appends the values of a field that came several times as one: `; ` between those of `Cookie`,
/// `, ` between others (nginx since 1.23; RFC 3875, section 4.1.18).
fn append_joined<'v>(
    field_name: &[u8],
    mut values: impl Iterator<Item = &'v [u8]>,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(values.next().unwrap_or_default());
    for value in values {
        out.extend_from_slice(if field_name.eq_ignore_ascii_case(b"cookie") {
            b"; "
        } else {
            b", "
        });
        out.extend_from_slice(value);
    }
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
            let name = VariableName::Field(name.as_bytes());
            let mut written = Vec::new();
            name.append(&mut written);
            assert_eq!(written, expected.as_bytes());
            assert_eq!(name.len(), expected.len());
        }
        let mut written = Vec::new();
        VariableName::Plain(b"a-b").append(&mut written);
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
            let mut text = Vec::new();
            let values = values.iter().map(|value| value.as_bytes());
            append_joined(name.as_bytes(), values, &mut text);
            assert_eq!(text, expected.as_bytes(), "{name}");
        }
    }
}
