//! uwsgi, the protocol of uWSGI, the web server's side: encodes the packet with the variables of a
//! request.
//!
//! The specification is <https://uwsgi-docs.readthedocs.io/en/latest/Protocol.html>; the reference
//! is `ngx_http_uwsgi_module`. The request's body follows the packet unchanged. The response is a
//! head ([`crate::cgi::parse`], with [`crate::cgi::Form::StatusLineOrFields`]) and a body, without
//! frames.

use std::fmt;

use crate::cgi::{VariableName, Variables};

/// Length of the packet's header, in bytes: `modifier1`, the length (low byte first), `modifier2`.
const HEADER_LENGTH: usize = 4;

/// Maximum length of a packet after its header, in bytes.
pub const LENGTH_MAX: usize = 0xffff;

/// Writes the packet of a request. Add the variables through [`Variables`], then call
/// [`finish`](Self::finish); before that, the output is incomplete.
#[must_use = "a packet has its length when it is finished"]
#[derive(Debug)]
pub struct RequestWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Offset of the packet in `out`.
    start: usize,
}

/// A packet exceeds [`LENGTH_MAX`]. Holds its length after the header, in bytes. The upstream is
/// not at fault: as in nginx, the response is 500, and no other server is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTooLong(pub usize);

impl fmt::Display for RequestTooLong {
    /// nginx's log message, at level `alert`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "uwsgi request is too big: {}", self.0)
    }
}

impl<'a> RequestWriter<'a> {
    /// Begins a packet at the end of `out`. The modifiers are `uwsgi_modifier1` and
    /// `uwsgi_modifier2`; 0 and 0 mean WSGI.
    pub fn new(out: &'a mut Vec<u8>, modifier1: u8, modifier2: u8) -> RequestWriter<'a> {
        let start = out.len();
        out.extend_from_slice(&[modifier1, 0, 0, modifier2]);
        RequestWriter { out, start }
    }

    /// Adds raw bytes after the variables: `uwsgi_string`.
    pub fn push_string(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Completes the packet.
    ///
    /// # Errors
    /// The packet is too long. The incomplete packet is removed from the output.
    pub fn finish(self) -> Result<(), RequestTooLong> {
        let length = self.out.len().saturating_sub(self.start + HEADER_LENGTH);
        let Ok(short) = u16::try_from(length) else {
            self.out.truncate(self.start);
            return Err(RequestTooLong(length));
        };
        if let Some(place) = self.out.get_mut(self.start + 1..self.start + 3) {
            place.copy_from_slice(&short.to_le_bytes());
        }
        Ok(())
    }
}

/// A length in two bytes. A larger length is truncated; such a packet is rejected by `finish`.
fn short(length: usize) -> [u8; 2] {
    (length.min(LENGTH_MAX) as u16).to_le_bytes()
}

impl Variables for RequestWriter<'_> {
    /// The length of the name, the name, and space for the length of the value.
    fn begin(name: VariableName<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(&short(name.len()));
        name.append(out);
        out.extend_from_slice(&short(0));
    }

    fn out(&mut self) -> &mut Vec<u8> {
        self.out
    }

    fn end(&mut self, _: usize, value: usize) {
        let length = short(self.out.len().saturating_sub(value));
        let place = value.saturating_sub(length.len())..value;
        if let Some(place) = self.out.get_mut(place) {
            place.copy_from_slice(&length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes from the specification; the first case was captured from nginx.
    #[test]
    fn packets() {
        for (case, modifiers, variables, expected) in [
            (
                "what nginx sends",
                (5, 7),
                &[
                    ("REQUEST_METHOD", "POST"),
                    ("HTTP_HOST", "h"),
                    ("HTTP_CONNECTION", "close"),
                ][..],
                &b"\x05\x3c\0\x07\x0e\0REQUEST_METHOD\x04\0POST\x09\0HTTP_HOST\x01\0h\x0f\0HTTP_CONNECTION\x05\0close"[..],
            ),
            ("no variable", (0, 0), &[], b"\0\0\0\0"),
            ("an empty value", (0, 0), &[("E", "")], b"\0\x05\0\0\x01\0E\0\0"),
            ("an empty name", (255, 255), &[("", "v")], b"\xff\x05\0\xff\0\0\x01\0v"),
        ] {
            let mut out = Vec::new();
            let mut writer = RequestWriter::new(&mut out, modifiers.0, modifiers.1);
            for (name, value) in variables {
                writer.push(name.as_bytes(), value.as_bytes());
            }
            writer.finish().expect(case);
            assert_eq!(
                out.escape_ascii().to_string(),
                expected.escape_ascii().to_string(),
                "{case}"
            );
        }
    }

    #[test]
    fn lengths_have_the_low_byte_first() {
        let value = "v".repeat(0x0201);
        let mut out = b"before".to_vec();
        let mut writer = RequestWriter::new(&mut out, 0, 0);
        writer.push(b"N", value.as_bytes());
        writer.push_string(b"raw");
        writer.finish().expect("short enough");
        let expected = [
            b"before\0\x09\x02\0\x01\0N\x01\x02",
            value.as_bytes(),
            b"raw",
        ]
        .concat();
        assert_eq!(out, expected);
    }

    #[test]
    fn fields_become_variables() {
        let mut out = Vec::new();
        let mut writer = RequestWriter::new(&mut out, 0, 0);
        writer.push_field(b"cookie", [&b"a=1"[..], b"b=2"].into_iter());
        writer.finish().expect("short enough");
        assert_eq!(out, b"\0\x17\0\0\x0b\0HTTP_COOKIE\x08\0a=1; b=2");
    }

    #[test]
    fn packets_that_are_too_long() {
        let longest = "v".repeat(LENGTH_MAX - 5);
        for (value, fault) in [
            (longest.clone(), None),
            (
                longest.clone() + "v",
                Some("uwsgi request is too big: 65536"),
            ),
            (
                longest.clone() + &longest,
                Some("uwsgi request is too big: 131065"),
            ),
        ] {
            let mut out = b"before".to_vec();
            let mut writer = RequestWriter::new(&mut out, 0, 0);
            writer.push(b"N", value.as_bytes());
            let finished = writer.finish().map_err(|fault| fault.to_string());
            assert_eq!(finished.err().as_deref(), fault);
            match fault {
                None => assert_eq!(out.get(6..10), Some(&b"\0\xff\xff\0"[..])),
                Some(_) => assert_eq!(out, b"before"),
            }
        }
    }
}
