//! The common parts of FastCGI, uwsgi and SCGI: the variables of a request, and the head of a
//! response (RFC 3875, the Common Gateway Interface).
//!
//! Each protocol encodes variables in its own way ([`crate::fastcgi`], [`crate::uwsgi`],
//! [`crate::scgi`]). The modules decide which variables a request has, and their order.

pub use crate::h1::response::cgi::{Form, parse};

/// Prefix of the variable of a request's header field.
const PREFIX: &[u8] = b"HTTP_";

/// The name of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariableName<'a> {
    /// The literal name, such as `REQUEST_METHOD`.
    Plain(&'a [u8]),
    /// The variable of a request's header field with this name (RFC 3875, section 4.1.18): `HTTP_`
    /// and the field's name in upper case, with `_` for each dash.
    Field(&'a [u8]),
}

impl VariableName<'_> {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            VariableName::Plain(name) => name.len(),
            VariableName::Field(name) => PREFIX.len() + name.len(),
        }
    }

    /// Whether the name is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the name to a buffer.
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

/// Encodes the variables of a request, in the order added.
pub trait Variables {
    /// Appends the beginning of a variable's encoding, up to its value: the same for every value.
    fn begin(name: VariableName<'_>, out: &mut Vec<u8>);

    /// The complete encoding of a variable with a constant value, if it can be created before there
    /// is a request.
    fn constant(name: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        let _ = (name, value);
        None
    }

    /// The output buffer.
    fn out(&mut self) -> &mut Vec<u8>;

    /// Completes the encoding of a variable whose [beginning](Variables::begin) is at
    /// `start..value` in the buffer, and whose value follows.
    fn end(&mut self, start: usize, value: usize);

    /// Adds a variable whose value `write` appends to the output buffer. `write` must not change
    /// what is already in the buffer.
    fn add(&mut self, name: VariableName<'_>, write: impl FnOnce(&mut Vec<u8>)) {
        let out = self.out();
        let start = out.len();
        Self::begin(name, out);
        let value = out.len();
        write(out);
        self.end(start, value);
    }

    /// Adds a variable whose [beginning](Variables::begin) has been encoded before.
    fn add_begun(&mut self, begun: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        let out = self.out();
        let start = out.len();
        out.extend_from_slice(begun);
        let value = out.len();
        write(out);
        self.end(start, value);
    }

    /// Adds a variable with a given value.
    fn push(&mut self, name: &[u8], value: &[u8]) {
        self.add(VariableName::Plain(name), |out| {
            out.extend_from_slice(value)
        });
    }

    /// Adds the variable of a request's header field, with all values of this field joined.
    fn push_field<'v>(&mut self, name: &[u8], values: impl Iterator<Item = &'v [u8]>) {
        self.add(VariableName::Field(name), |out| {
            append_joined(name, values, out)
        });
    }
}

/// Appends the joined values of a repeated field, separated by `; ` for `Cookie`, and by `, ` for
/// other fields (nginx since 1.23; RFC 3875, section 4.1.18).
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

    /// Expected separators from `ngx_http_fastcgi_create_request`.
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
