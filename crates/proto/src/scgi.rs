//! SCGI, the Simple Common Gateway Interface, the web server's side: encodes the variables of a
//! request as a netstring.
//!
//! The specification is <https://python.ca/scgi/protocol.txt>; the reference is
//! `ngx_http_scgi_module`. The request's body follows the netstring unchanged; its length is the
//! first variable. The response is a head ([`crate::cgi::parse`], with
//! [`crate::cgi::Form::StatusLineOrFields`]) and a body, without frames.
//!
//! Not here: the variable `SCGI`, which the specification requires; nginx leaves it to the
//! configuration (`scgi_params`).

use std::fmt;
use std::io::Write;

use crate::cgi::{VariableName, Variables};

/// Writes the head of a request. Add the variables through [`Variables`], then call
/// [`finish`](Self::finish); before that, the output is incomplete.
#[must_use = "a head has its length when it is finished"]
#[derive(Debug)]
pub struct RequestWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Offset of the head in `out`.
    start: usize,
    has_zero: bool,
}

/// A name or value contains a zero byte, which would end it, so that the rest could pass for other
/// variables. The upstream is not at fault: the response is 500. nginx does not check this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroByte;

impl fmt::Display for ZeroByte {
    /// The log message, at level `alert`; nginx has none.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "scgi request has a parameter with a zero byte")
    }
}

impl<'a> RequestWriter<'a> {
    /// Begins a head at the end of `out`, with `CONTENT_LENGTH`: the length of the body in bytes, 0
    /// if there is none.
    pub fn new(out: &'a mut Vec<u8>, content_length: u64) -> RequestWriter<'a> {
        let start = out.len();
        // Writing to a vector cannot fail.
        let _ = write!(out, "CONTENT_LENGTH\0{content_length}\0");
        RequestWriter {
            out,
            start,
            has_zero: false,
        }
    }

    /// Completes the head, whose length is not limited, as in nginx.
    ///
    /// # Errors
    /// A variable contains a zero byte. The incomplete head is removed from the output.
    pub fn finish(self) -> Result<(), ZeroByte> {
        if self.has_zero {
            self.out.truncate(self.start);
            return Err(ZeroByte);
        }
        let length = format!("{}:", self.out.len().saturating_sub(self.start));
        let start = self.start.min(self.out.len()); // it is less
        self.out.splice(start..start, length.into_bytes());
        self.out.push(b',');
        Ok(())
    }
}

impl Variables for RequestWriter<'_> {
    /// The name and its terminator.
    fn begin(name: VariableName<'_>, out: &mut Vec<u8>) {
        name.append(out);
        out.push(0);
    }

    fn out(&mut self) -> &mut Vec<u8> {
        self.out
    }

    fn end(&mut self, start: usize, value: usize) {
        let name = start..value.saturating_sub(1);
        for text in [self.out.get(name), self.out.get(value..)] {
            self.has_zero |= text.is_some_and(|text| memchr::memchr(0, text).is_some());
        }
        self.out.push(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(content_length: u64, variables: &[(&str, &str)]) -> Result<Vec<u8>, ZeroByte> {
        let mut out = b"before ".to_vec();
        let mut writer = RequestWriter::new(&mut out, content_length);
        for (name, value) in variables {
            writer.push(name.as_bytes(), value.as_bytes());
        }
        let finished = writer.finish();
        let written = out.strip_prefix(b"before ").expect("left alone").to_vec();
        match finished {
            Ok(()) => Ok(written),
            Err(fault) => {
                assert!(written.is_empty());
                Err(fault)
            }
        }
    }

    #[test]
    fn netstrings() {
        for (case, content_length, variables, expected) in [
            (
                "the example of the specification",
                27,
                &[
                    ("SCGI", "1"),
                    ("REQUEST_METHOD", "POST"),
                    ("REQUEST_URI", "/deepthought"),
                ][..],
                "70:CONTENT_LENGTH\x0027\0SCGI\x001\0REQUEST_METHOD\0POST\0REQUEST_URI\0/deepthought\0,",
            ),
            (
                "what nginx sends",
                3,
                &[
                    ("REQUEST_METHOD", "POST"),
                    ("SCGI", "1"),
                    ("HTTP_HOST", "h"),
                ],
                "56:CONTENT_LENGTH\x003\0REQUEST_METHOD\0POST\0SCGI\x001\0HTTP_HOST\0h\0,",
            ),
            ("nothing", 0, &[], "17:CONTENT_LENGTH\x000\0,"),
            (
                "an empty value",
                u64::MAX,
                &[("E", "")],
                "39:CONTENT_LENGTH\x0018446744073709551615\0E\0\0,",
            ),
        ] {
            let head = head(content_length, variables).expect(case);
            assert_eq!(
                head.escape_ascii().to_string(),
                expected.as_bytes().escape_ascii().to_string(),
                "{case}"
            );
        }
    }

    #[test]
    fn fields_become_variables() {
        let mut out = Vec::new();
        let mut writer = RequestWriter::new(&mut out, 0);
        writer.push_field(b"X-A", [&b"1"[..], b"2"].into_iter());
        writer.finish().expect("no zero byte");
        assert_eq!(out, b"31:CONTENT_LENGTH\x000\0HTTP_X_A\x001, 2\0,");
    }

    #[test]
    fn long_heads_are_taken() {
        let value = "v".repeat(100_000);
        let head = head(0, &[("N", &value)]).expect("no zero byte");
        assert!(head.starts_with(b"100020:CONTENT_LENGTH\x000\0N\0vvv"));
        assert_eq!(head.len(), 7 + 100_020 + 1);
    }

    #[test]
    fn zero_bytes_make_no_other_variables() {
        for variables in [
            ("A\0B", "c"),
            ("A", "b\0HTTP_C\0d"),
            ("A", "\0"),
            ("\0", ""),
        ] {
            let fault = head(0, &[("X", "y"), variables, ("Z", "")]).expect_err("a zero byte");
            assert_eq!(
                fault.to_string(),
                "scgi request has a parameter with a zero byte"
            );
        }
    }
}
