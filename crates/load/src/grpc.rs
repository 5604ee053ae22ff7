//! Unary gRPC calls: the framing of messages, the validation of responses, and the names of
//! statuses.
//!
//! <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>. Messages are opaque bytes;
//! their encoding, usually Protocol Buffers, is not interpreted. Not here: the frames of HTTP/2,
//! streaming calls, decompression (of a compressed message, the framing is checked).

use proto::base64::{self, Alphabet};
use proto::h2::response::ResponseHead;
use proto::header::KnownField;

use crate::tally::{RequestError, STATUSES};

/// The media type of requests and responses, which the message encoding may follow (`+proto`).
pub(crate) const MEDIA_TYPE: &str = "application/grpc";

/// Length of a message's prefix in bytes: the compressed flag and the length.
const PREFIX_LENGTH: usize = 5;

/// The trailer with the status of the call.
const STATUS: &[u8] = b"grpc-status";

/// The names of the statuses, by number:
/// <https://grpc.github.io/grpc/core/md_doc_statuscodes.html>.
const STATUS_NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The name of a status, or its number if it has no name.
#[must_use]
pub fn status_name(status: usize) -> String {
    match STATUS_NAMES.get(status) {
        Some(name) => (*name).to_owned(),
        None => status.to_string(),
    }
}

/// A message with its prefix; `None` if the length does not fit into the prefix.
#[must_use]
pub fn framed(message: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(message.len()).ok()?;
    let mut framed = Vec::with_capacity(PREFIX_LENGTH + message.len());
    framed.push(0);
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(message);
    Some(framed)
}

/// Parses the messages of a file: one per line in Base64 (RFC 4648, section 4); an empty line is an
/// empty message.
///
/// # Errors
/// Names the first invalid line, or says that there is no line.
pub fn messages(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let read = |(index, line): (usize, &str)| {
        let fault = || format!("line {}: no message in Base64", index + 1);
        message(line.trim()).ok_or_else(fault)
    };
    let messages: Vec<Vec<u8>> = text
        .lines()
        .enumerate()
        .map(read)
        .collect::<Result<_, _>>()?;
    if messages.is_empty() {
        Err("there is no message".to_owned())
    } else {
        Ok(messages)
    }
}

fn message(line: &str) -> Option<Vec<u8>> {
    let unpadded = line.trim_end_matches('=');
    // The decoder would ignore text after the padding.
    let is_whole = !unpadded.contains('=') && line.len() - unpadded.len() <= 2;
    let mut message = Vec::new();
    let is_read = base64::decode(unpadded.as_bytes(), Alphabet::Standard, &mut message);
    (is_whole && is_read).then_some(message)
}

/// Whether a path ends with a service and a method.
#[must_use]
pub fn is_method(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let mut part = || parts.next().is_some_and(|part| !part.is_empty());
    let (method, service) = (part(), part());
    method && service && parts.next().is_some() && !path.contains('?')
}

/// The state of a response, without the length of its body.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallProgress {
    is_grpc: bool,
    status: Option<u16>,
    prefix: [u8; PREFIX_LENGTH],
}

impl CallProgress {
    /// The state after the head. If `ends` is set, there is no body, and the head contains the
    /// fields of the trailers.
    pub(crate) fn new(head: &ResponseHead, ends: bool) -> CallProgress {
        let media_type = head.value(KnownField::ContentType).unwrap_or_default();
        CallProgress {
            is_grpc: is_media_type(media_type),
            status: if ends { status_in(head) } else { None },
            prefix: [0; PREFIX_LENGTH],
        }
    }

    /// Processes bytes of the body, which follow `before` earlier ones.
    pub(crate) fn data(&mut self, before: u64, bytes: &[u8]) {
        let begin = usize::try_from(before).unwrap_or(PREFIX_LENGTH);
        let missing = self.prefix.get_mut(begin..).unwrap_or_default();
        for (place, byte) in missing.iter_mut().zip(bytes) {
            *place = *byte;
        }
    }

    /// Processes trailers with this status, as parsed by [`status_in`].
    pub(crate) fn ends(&mut self, status: Option<u16>) {
        self.status = status;
    }

    /// The status, if the response is a gRPC response.
    pub(crate) fn status(self) -> Option<u16> {
        self.status.filter(|_| self.is_grpc)
    }

    /// The error of a complete response with a body of `length` bytes, if there is one. `expected`
    /// is the expected status.
    pub(crate) fn fault(self, length: u64, expected: u16) -> Option<RequestError> {
        let Some(status) = self.status() else {
            return Some(RequestError::NotGrpc);
        };
        if status != expected {
            return Some(RequestError::GrpcStatus);
        }
        // A failed call needs no message.
        let is_whole = status != 0 || self.is_one_message(length);
        (!is_whole).then_some(RequestError::GrpcMessage)
    }

    /// Whether a body of this length is exactly one message.
    fn is_one_message(self, length: u64) -> bool {
        let [is_compressed, l0, l1, l2, l3] = self.prefix;
        let announced = u32::from_be_bytes([l0, l1, l2, l3]);
        is_compressed <= 1 && length == PREFIX_LENGTH as u64 + u64::from(announced)
    }
}

/// The status in trailers, or in the head of a response without a body.
pub(crate) fn status_in(trailers: &ResponseHead) -> Option<u16> {
    let mut fields = trailers.fields().iter();
    let found = fields.find(|field| field.name(trailers.bytes()) == STATUS);
    found.and_then(|field| status(field.value(trailers.bytes())))
}

fn is_media_type(value: &[u8]) -> bool {
    let Some((begin, rest)) = value.split_at_checked(MEDIA_TYPE.len()) else {
        return false;
    };
    begin.eq_ignore_ascii_case(MEDIA_TYPE.as_bytes())
        && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
}

/// Parses a status. `None` if it is not a number below [`STATUSES`].
fn status(value: &[u8]) -> Option<u16> {
    let digits = std::str::from_utf8(value).ok()?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let status = digits.parse::<u16>().ok().filter(|_| is_number)?;
    (usize::from(status) < STATUSES).then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_framed() {
        assert_eq!(framed(b"").unwrap(), [0; 5]);
        assert_eq!(framed(b"abc").unwrap(), b"\0\0\0\0\x03abc");
        let long = framed(&[7; 70_000]).unwrap();
        assert_eq!(long[..6], [0, 0, 1, 0x11, 0x70, 7]);
    }

    #[test]
    fn a_file_has_a_message_a_line() {
        let read = messages("CgNhYmM=\n\n Zg== \r\nZg\n").unwrap();
        let expected: [&[u8]; 4] = [b"\x0a\x03abc", b"", b"f", b"f"];
        assert_eq!(read, expected);
        for (text, words) in [
            ("", "there is no message"),
            ("Zg==\n{}\n", "line 2: no message in Base64"),
            ("Zg==Zg==\n", "line 1"),
            ("Zg===\n", "line 1"),
            ("Z\n", "line 1"),
            ("Z g\n", "line 1"),
        ] {
            let fault = messages(text).unwrap_err();
            assert!(fault.starts_with(words), "{text:?}: {fault}");
        }
    }

    #[test]
    fn paths_of_methods_end_with_a_service_and_a_method() {
        for path in ["/a.B/C", "/behind/a.B/C"] {
            assert!(is_method(path), "{path}");
        }
        for path in ["/", "/a.B", "/a.B/", "//C", "/a.B/C?d", "a.B/C"] {
            assert!(!is_method(path), "{path}");
        }
    }

    #[test]
    fn media_types_may_name_a_format() {
        for (value, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/gRPC; charset=x", true),
            ("application/grpc-web", false),
            ("application/json", false),
            ("", false),
        ] {
            assert_eq!(is_media_type(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn statuses_are_numbers_with_names() {
        for (value, expected) in [
            ("0", Some(0)),
            ("14", Some(14)),
            ("999", Some(999)),
            ("1000", None),
            ("", None),
            ("+1", None),
            ("OK", None),
            ("70000", None),
        ] {
            assert_eq!(status(value.as_bytes()), expected, "{value}");
        }
        let names = [0, 14, 16, 17].map(status_name);
        assert_eq!(names, ["OK", "UNAVAILABLE", "UNAUTHENTICATED", "17"]);
    }

    #[test]
    fn a_message_must_be_whole_and_alone() {
        let answer = |status: Option<u16>, pieces: &[&[u8]]| {
            let mut answer = CallProgress {
                is_grpc: true,
                status,
                ..CallProgress::default()
            };
            let mut length = 0;
            for piece in pieces {
                answer.data(length, piece);
                length += piece.len() as u64;
            }
            answer.fault(length, 0)
        };
        for (pieces, expected) in [
            (&[&b"\0\0\0\0\0"[..]][..], None),
            (&[b"\0\0", b"\0\0", b"\x03a", b"bc"], None),
            (&[], Some(RequestError::GrpcMessage)),
            (&[b"\0\0\0\0"], Some(RequestError::GrpcMessage)),
            (&[b"\0\0\0\0\x03ab"], Some(RequestError::GrpcMessage)),
            (&[b"\0\0\0\0\0\0\0\0\0\0"], Some(RequestError::GrpcMessage)),
            (&[b"\x01\0\0\0\x01a"], None),
            (&[b"\x02\0\0\0\0"], Some(RequestError::GrpcMessage)),
        ] {
            assert_eq!(answer(Some(0), pieces), expected, "{pieces:?}");
        }
        assert_eq!(answer(Some(5), &[]), Some(RequestError::GrpcStatus));
        assert_eq!(answer(None, &[b"\0\0\0\0\0"]), Some(RequestError::NotGrpc));
        let not_found = CallProgress {
            is_grpc: true,
            status: Some(5),
            ..CallProgress::default()
        };
        assert_eq!(not_found.fault(0, 5), None);
    }
}
