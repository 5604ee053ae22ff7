//! The client side of memcached's text protocol, as far as nginx's `memcached_pass` needs it:
//! retrieval of one value.
//!
//! The specification is <https://github.com/memcached/memcached/blob/master/doc/protocol.txt>
//! (*Retrieval command*). The reference for accepted responses and log messages is
//! `ngx_http_memcached_module`.
//!
//! The server side is in [`command`], [`meta`] (the meta protocol) and [`binary`]; [`datagram`] is
//! the framing of all of them over UDP.
//!
//! Not here: storage commands, and requests for more than one key.

pub mod binary;
pub mod command;
pub mod datagram;
pub mod meta;

use std::ops::Range;

use crate::Span;
use crate::uri::{Escape, escape};

/// nginx's log message for a request without a key, at level `error`; the response is 500.
pub const NO_KEY: &str = "the \"$memcached_key\" variable is not set";

/// nginx's log message for [`Fault::InvalidTrailer`], at level `error`.
pub const INVALID_TRAILER: &str = "memcached sent invalid trailer";

const GET: &[u8] = b"get ";
const LINE_END: &[u8] = b"\r\n";
const VALUE: &[u8] = b"VALUE ";
const NOT_FOUND: &[u8] = b"END";
/// The trailer after a value's bytes.
const TRAILER: &[u8] = b"\r\nEND\r\n";

/// A request for one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Get {
    line: Vec<u8>,
}

impl Get {
    /// The request for the value of a key, whose control bytes, spaces and `%` are escaped as
    /// `%XX`. `None` if the key is empty.
    ///
    /// The length is not checked: memcached rejects a key of more than 250 bytes, which leads to
    /// [`Fault::InvalidResponse`].
    #[must_use]
    pub fn new(key: &[u8]) -> Option<Get> {
        if key.is_empty() {
            return None;
        }
        let mut line = GET.to_vec();
        escape(key, Escape::Memcached, &mut line);
        line.extend_from_slice(LINE_END);
        Some(Get { line })
    }

    /// The line to send, with its line break.
    #[must_use]
    pub fn line(&self) -> &[u8] {
        &self.line
    }

    /// The key as sent, which the response repeats and log messages show.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        let end = self.line.len().saturating_sub(LINE_END.len());
        self.line.get(GET.len()..end).unwrap_or_default()
    }

    /// nginx's log message for [`FirstReply::NotFound`], at level `info`.
    #[must_use]
    pub fn not_found_text(&self) -> Vec<u8> {
        [b"key: \"", self.key(), b"\" was not found by memcached"].concat()
    }
}

/// The first line of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstReply {
    /// A value follows ([`Body`]).
    Value {
        /// Length of the value in bytes, up to 2⁶³ - 1.
        length: u64,
        /// The flags that the value was stored with, if requested. `memcached_gzip_flag` is a mask
        /// of them.
        flags: Option<u64>,
    },
    /// There is no value (`END`); nothing follows, and the connection can be reused. The response
    /// to the client is 404.
    NotFound,
}

/// Why a response is invalid: the server's fault. Faults of the first line are nginx's
/// `invalid_header`: the client receives 502, or the next server is tried. Each fault except the
/// last holds that line, without its line break if that is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Neither a complete `VALUE` line nor `END`; for example `ERROR`.
    InvalidResponse(Span),
    /// The key differs from the requested one.
    InvalidKey(Span),
    /// The flags are not a number of at most 63 bits.
    InvalidFlags(Span),
    /// The length is not a number of at most 63 bits, or is followed by more text.
    InvalidLength(Span),
    /// The value is not followed by a line with `END`. All of the value has been received: nginx
    /// ends the response normally, but does not reuse the connection.
    InvalidTrailer,
}

impl Fault {
    /// nginx's log message, at level `error`. `bytes` are those of the response, `get` is the
    /// request.
    #[must_use]
    pub fn log_text(self, bytes: &[u8], get: &Get) -> Vec<u8> {
        let for_key = |what: &str, line: Span| {
            [
                b"memcached sent invalid ",
                what.as_bytes(),
                b" in response \"",
                line.of(bytes),
                b"\" for key \"",
                get.key(),
                b"\"",
            ]
            .concat()
        };
        match self {
            Fault::InvalidResponse(line) => [
                b"memcached sent invalid response: \"",
                line.of(bytes),
                b"\"",
            ]
            .concat(),
            Fault::InvalidKey(line) => for_key("key", line),
            Fault::InvalidFlags(line) => for_key("flags", line),
            Fault::InvalidLength(line) => for_key("length", line),
            Fault::InvalidTrailer => INVALID_TRAILER.as_bytes().to_vec(),
        }
    }
}

/// Parses the first line of a response from all bytes received since its beginning, which the
/// caller limits (`memcached_buffer_size`). Returns the line's length and its content once it is
/// complete, `None` if more bytes are needed. `with_flags` says that the flags are needed: nginx
/// checks them only if `memcached_gzip_flag` is set, and else accepts anything.
///
/// # Errors
/// The first error in the line.
pub fn parse(
    bytes: &[u8],
    get: &Get,
    with_flags: bool,
) -> Result<Option<(usize, FirstReply)>, Fault> {
    let bytes = bytes.get(..u32::MAX as usize).unwrap_or(bytes);
    let Some(end) = memchr::memchr(b'\n', bytes) else {
        return Ok(None);
    };
    let whole = bytes.get(..end).unwrap_or_default();
    let Some(line) = whole.strip_suffix(b"\r") else {
        return Err(Fault::InvalidResponse(Span::new(0, whole.len())));
    };
    let place = Span::new(0, line.len());
    let answer = if let Some(value) = line.strip_prefix(VALUE) {
        value_line(value, place, get.key(), with_flags)?
    } else if line == NOT_FOUND {
        FirstReply::NotFound
    } else {
        return Err(Fault::InvalidResponse(place));
    };
    Ok(Some((end + 1, answer)))
}

/// Parses `KEY FLAGS LENGTH`, the rest of a line after `VALUE `, whose span is `place`.
fn value_line(rest: &[u8], place: Span, key: &[u8], with_flags: bool) -> Result<FirstReply, Fault> {
    let rest = rest.strip_prefix(key).ok_or(Fault::InvalidKey(place))?;
    let rest = rest.strip_prefix(b" ");
    let rest = rest.ok_or(Fault::InvalidResponse(place))?;
    // As in nginx, a zero byte in the flags ends the search for the space.
    let (flags, length) = match memchr::memchr2(b' ', 0, rest) {
        Some(at) if rest.get(at) == Some(&b' ') => (rest.get(..at), rest.get(at + 1..)),
        _ => return Err(Fault::InvalidResponse(place)),
    };
    let flags = match (with_flags, flags.and_then(number)) {
        (false, _) => None,
        (true, None) => return Err(Fault::InvalidFlags(place)),
        (true, flags) => flags,
    };
    let length = length.and_then(number);
    let length = length.ok_or(Fault::InvalidLength(place))?;
    Ok(FirstReply::Value { length, flags })
}

/// Parses a number of at most 63 bits, digits only.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let number = text.iter().try_fold(0_i64, |number, byte| {
        let digit = char::from(*byte).to_digit(10)?;
        number.checked_mul(10)?.checked_add(i64::from(digit))
    });
    number.and_then(|number| u64::try_from(number).ok())
}

/// The result of a call of [`Body::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Consumed bytes of the input, including `data`.
    pub consumed: usize,
    /// The range of the value's bytes in the input; may be empty.
    pub data: Range<usize>,
    /// The response is complete. If bytes follow, the connection must not be reused; nginx logs
    /// [`INVALID_TRAILER`] for bytes that arrive together with the trailer's last byte, and ignores
    /// later ones.
    pub done: bool,
}

/// Decodes a value and its trailer. Call [`decode`](Body::decode) with the remaining input until it
/// is `done`, or has consumed everything.
#[derive(Clone, Debug)]
pub struct Body {
    /// Bytes of the value that were not received.
    remaining: u64,
    /// Number of received bytes of the trailer.
    trailer: usize,
    is_faulty: bool,
}

impl Body {
    /// A decoder for a value of `length` bytes.
    #[must_use]
    pub fn new(length: u64) -> Body {
        Body {
            remaining: length,
            trailer: 0,
            is_faulty: false,
        }
    }

    /// Bytes of the value that were not received.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Decodes the input up to the end of the value, or of the trailer. After a fault, every call
    /// fails.
    ///
    /// # Errors
    /// [`Fault::InvalidTrailer`] at the first invalid byte.
    pub fn decode(&mut self, input: &[u8]) -> Result<Decoded, Fault> {
        if self.is_faulty {
            return Err(Fault::InvalidTrailer);
        }
        if self.remaining > 0 {
            let length = usize::try_from(self.remaining)
                .unwrap_or(usize::MAX)
                .min(input.len());
            self.remaining = self.remaining.saturating_sub(length as u64);
            return Ok(Decoded {
                consumed: length,
                data: 0..length,
                done: false,
            });
        }
        let awaited = TRAILER.get(self.trailer..).unwrap_or_default();
        let length = awaited.len().min(input.len());
        if awaited.get(..length) != input.get(..length) {
            self.is_faulty = true;
            return Err(Fault::InvalidTrailer);
        }
        self.trailer += length;
        Ok(Decoded {
            consumed: length,
            data: 0..0,
            done: self.trailer == TRAILER.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(key: &str) -> Get {
        Get::new(key.as_bytes()).expect("a key")
    }

    /// The second case was captured from nginx.
    #[test]
    fn requests() {
        for (key, line) in [
            ("/a?b=c#d", &b"get /a?b=c#d\r\n"[..]),
            ("/m/a b%c\x7fä\x01", b"get /m/a%20b%25c\x7f\xc3\xa4%01\r\n"),
            ("a\r\ndelete b\t\0", b"get a%0D%0Adelete%20b%09%00\r\n"),
        ] {
            let get = get(key);
            assert_eq!(get.line(), line);
            assert_eq!(get.key(), &line[4..line.len() - 2]);
        }
        assert_eq!(Get::new(b""), None);
        assert_eq!(
            get("a b").not_found_text(),
            b"key: \"a%20b\" was not found by memcached"
        );
    }

    /// The result of a line, or the log message of its fault. Every incomplete line must need more
    /// bytes.
    fn read(bytes: &[u8], get: &Get, with_flags: bool) -> String {
        let end = memchr::memchr(b'\n', bytes).map_or(bytes.len(), |at| at);
        for end in 0..=end {
            assert_eq!(parse(&bytes[..end], get, with_flags), Ok(None));
        }
        match parse(bytes, get, with_flags) {
            Ok(None) => "more".to_owned(),
            Ok(Some((length, answer))) => {
                let rest = bytes.get(length..).expect("within what came");
                match answer {
                    FirstReply::NotFound => format!("none +{}", rest.escape_ascii()),
                    FirstReply::Value { length, flags } => {
                        format!("{length} {flags:?} +{}", rest.escape_ascii())
                    }
                }
            }
            Err(fault) => fault.log_text(bytes, get).escape_ascii().to_string(),
        }
    }

    /// Lines from the specification, log messages from `ngx_http_memcached_process_header`. A
    /// second outcome is that with flags.
    #[test]
    fn answers() {
        for (case, line, outcomes) in [
            (
                "a value",
                "VALUE k 5 3\r\nabc",
                &["3 None +abc", "3 Some(5) +abc"][..],
            ),
            (
                "an empty value",
                "VALUE k 0 0\r\n",
                &["0 None +", "0 Some(0) +"],
            ),
            (
                "the longest",
                "VALUE k 9223372036854775807 9223372036854775807\r\n",
                &[
                    "9223372036854775807 None +",
                    "9223372036854775807 Some(9223372036854775807) +",
                ],
            ),
            ("no value", "END\r\nx", &["none +x"]),
            ("not all of a line", "VALUE k 5 3\r", &["more"]),
            ("no byte", "", &["more"]),
            ("another key", "VALUE x 5 3\r\n", &["invalid key in LINE"]),
            ("no key", "VALUE \r\n", &["invalid key in LINE"]),
            ("a longer key", "VALUE kk 5 3\r\n", &["invalid LINE"]),
            ("nothing behind the key", "VALUE k\r\n", &["invalid LINE"]),
            ("no length", "VALUE k 5\r\n", &["invalid LINE"]),
            (
                "an empty length",
                "VALUE k 5 \r\n",
                &["invalid length in LINE"],
            ),
            (
                "a length below 0",
                "VALUE k 5 -3\r\n",
                &["invalid length in LINE"],
            ),
            (
                "a length of 64 bits",
                "VALUE k 5 9223372036854775808\r\n",
                &["invalid length in LINE"],
            ),
            (
                "a unique number, which was not asked for",
                "VALUE k 5 3 7\r\n",
                &["invalid length in LINE"],
            ),
            (
                "flags that are none",
                "VALUE k x 3\r\n",
                &["3 None +", "invalid flags in LINE"],
            ),
            (
                "empty flags",
                "VALUE k  3\r\n",
                &["3 None +", "invalid flags in LINE"],
            ),
            (
                "neither is right: the flags come first",
                "VALUE k x y\r\n",
                &["invalid length in LINE", "invalid flags in LINE"],
            ),
            (
                "a zero byte in the flags",
                "VALUE k \0 3\r\n",
                &["invalid LINE"],
            ),
            (
                "an error",
                "SERVER_ERROR out of memory\r\n",
                &["invalid LINE"],
            ),
            ("no line end of memcached's", "END\n", &["invalid LINE"]),
            ("an empty line", "\n", &["invalid LINE"]),
            ("an empty line of memcached's", "\r\n", &["invalid LINE"]),
            ("more than END", "END \r\n", &["invalid LINE"]),
        ] {
            let text = line.trim_end_matches('\n').trim_end_matches('\r');
            let quoted = format!("\"{text}\"").as_bytes().escape_ascii().to_string();
            let full = |outcome: &&str| match outcome.strip_prefix("invalid ") {
                None => outcome.to_string(),
                Some("LINE") => format!("memcached sent invalid response: {quoted}"),
                Some(what) => {
                    let what = what.replace("LINE", &format!("response {quoted}"));
                    format!("memcached sent invalid {what} for key \\\"k\\\"")
                }
            };
            let expected = [outcomes.first(), outcomes.last()].map(|outcome| outcome.map(full));
            for (with_flags, expected) in [false, true].into_iter().zip(expected) {
                let read = read(line.as_bytes(), &get("k"), with_flags);
                assert_eq!(Some(read), expected, "{case}, flags: {with_flags}");
            }
        }
    }

    #[test]
    fn the_key_is_compared_as_it_was_sent() {
        let get = get("a b");
        assert_eq!(read(b"VALUE a%20b 0 1\r\n", &get, false), "1 None +");
        assert_eq!(
            read(b"VALUE a b 0 1\r\n", &get, false),
            "memcached sent invalid key in response \\\"VALUE a b 0 1\\\" for key \\\"a%20b\\\""
        );
    }

    /// Decodes input in pieces. Returns the value, the number of bytes consumed, and whether the
    /// response is complete.
    fn decode<'a>(
        length: u64,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> (Vec<u8>, Result<(usize, bool), Fault>) {
        let (mut body, mut value, mut consumed) = (Body::new(length), Vec::new(), 0);
        for piece in pieces {
            let mut rest = piece;
            while !rest.is_empty() {
                let decoded = match body.decode(rest) {
                    Ok(decoded) => decoded,
                    Err(fault) => {
                        // The fault is returned for any further input.
                        assert_eq!(body.decode(TRAILER), Err(fault));
                        return (value, Err(fault));
                    }
                };
                assert!(decoded.data.end <= decoded.consumed && decoded.consumed <= rest.len());
                value.extend_from_slice(&rest[decoded.data]);
                consumed += decoded.consumed;
                if decoded.done {
                    return (value, Ok((consumed, true)));
                }
                rest = &rest[decoded.consumed..];
            }
        }
        (value, Ok((consumed, false)))
    }

    #[test]
    fn values() {
        let invalid = Err(Fault::InvalidTrailer);
        for (case, length, input, value, end) in [
            ("a value", 3, "abc\r\nEND\r\n", "abc", Ok((10, true))),
            ("an empty value", 0, "\r\nEND\r\n", "", Ok((7, true))),
            (
                "one that looks like an end",
                7,
                "\r\nEND\r\n\r\nEND\r\n",
                "\r\nEND\r\n",
                Ok((14, true)),
            ),
            (
                "something behind it",
                1,
                "a\r\nEND\r\nVALUE",
                "a",
                Ok((8, true)),
            ),
            (
                "not all of the trailer",
                1,
                "a\r\nEND\r",
                "a",
                Ok((7, false)),
            ),
            ("not all of the value", 5, "abc", "abc", Ok((3, false))),
            ("more than its length", 1, "ab\r\nEND\r\n", "a", invalid),
            ("another value", 1, "a\r\nVALUE", "a", invalid),
            ("bare line ends", 1, "a\nEND\n", "a", invalid),
            (
                "no end of the last line",
                1,
                "a\r\nENDING\r\n",
                "a",
                invalid,
            ),
        ] {
            let input = input.as_bytes();
            let expected = (value.as_bytes().to_vec(), end);
            for split in 0..=input.len() {
                let (one, other) = input.split_at(split);
                let decoded = decode(length, [one, other].into_iter());
                assert_eq!(decoded, expected, "{case}, split at {split}");
            }
            for piece in 1..=input.len() {
                let decoded = decode(length, input.chunks(piece));
                assert_eq!(decoded, expected, "{case}, in pieces of {piece}");
            }
        }
        assert_eq!(
            Fault::InvalidTrailer.log_text(b"", &get("k")),
            b"memcached sent invalid trailer"
        );
        let mut long = Body::new(u64::MAX);
        long.decode(b"abc").expect("a value");
        assert_eq!(long.remaining(), u64::MAX - 3);
    }
}
