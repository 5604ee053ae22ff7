//! The head of a CGI response (RFC 3875, section 6), as carried by FastCGI, uwsgi and SCGI: fields
//! without a status line, parsed into the same [`ResponseHead`] as an HTTP response.
//!
//! As in nginx: lines end with CR LF or with LF alone. The status is that of the field `Status`,
//! else 302 if there is a `Location`, else 200.

use super::{Framing, LineProgress, Phase, ResponseError, ResponseHead, StatusLine};
use crate::Span;
use crate::header::KnownField;

/// The possible beginning of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Fields, for FastCGI. A line that begins with `HTTP/` is skipped, wherever it stands.
    Fields,
    /// An HTTP status line, which then takes precedence over `Status`, or fields, for uwsgi and
    /// SCGI. A line that begins with `HTTP/` but is not a status line is skipped.
    StatusLineOrFields,
}

/// The default status of a response with `Location`: 302 (RFC 9110, section 15.4.3).
const FOUND: u16 = 302;
const OK: u16 = 200;
const SWITCHING_PROTOCOLS: u16 = 101;

/// Parses a head from all bytes received since its beginning, which the caller limits
/// (`fastcgi_buffer_size` and the like). Returns the head's length once it is complete, `None` if
/// more bytes are needed.
///
/// Until then the status is 0, unless there is a status line. Afterwards the head differs from that
/// of an HTTP response:
///
/// - [`ResponseHead::status_line`] is the value of `Status`, if that is longer than three digits.
///   Otherwise it is empty, and the caller uses nginx's reason phrase for the status
///   ([`crate::status::line`]).
/// - [`ResponseHead::version`] is HTTP/0.9 without a status line, and [`ResponseHead::closes`]
///   depends on the field `Connection` only: whether a connection is reused is decided by the
///   protocol that carries the head.
/// - [`ResponseHead::body`] is never chunked: as in nginx, `Transfer-Encoding: chunked` is accepted
///   without effect.
///
/// # Errors
/// The first error in the head. The status must have three digits and be that of a final response:
/// 101 or 200 to 599. nginx accepts 000 to 999, and sends a 1xx to the client as if it were the
/// final response.
pub fn parse(
    bytes: &[u8],
    head: &mut ResponseHead,
    form: Form,
) -> Result<Option<usize>, ResponseError> {
    let bytes = bytes.get(..u32::MAX as usize).unwrap_or(bytes);
    if head.phase == Phase::Done {
        head.clear();
    }
    if head.phase == Phase::Line {
        if form == Form::StatusLineOrFields {
            match head.line.advance(bytes, &mut head.at) {
                LineProgress::More => return Ok(None),
                LineProgress::None => {
                    head.line = StatusLine::default();
                    head.at = 0;
                }
                LineProgress::Line if !is_final(head.line.status) => {
                    return Err(ResponseError::InvalidStatus(head.line.text));
                }
                LineProgress::Line => {}
            }
        }
        head.phase = Phase::Fields;
    }
    let length = head.read_fields(bytes)?;
    if length.is_some() {
        head.settle(bytes)?;
    }
    Ok(length)
}

/// Whether a response with this status is final, or switches protocols.
fn is_final(status: u16) -> bool {
    matches!(status, SWITCHING_PROTOCOLS | 200..=599)
}

/// The status code at the beginning of a `Status` value, and the span of the value if it contains
/// more than the code.
fn status(value: &[u8], place: Span) -> Option<(u16, Span)> {
    let (digits, more) = value.split_first_chunk::<3>()?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let status = digits.iter().fold(0, |number, digit| {
        number * 10 + u16::from(digit.wrapping_sub(b'0'))
    });
    let text = if more.is_empty() {
        Span::default()
    } else {
        place
    };
    is_final(status).then_some((status, text))
}

impl ResponseHead {
    /// Determines the status of a complete head, and removes framing that only HTTP has.
    fn settle(&mut self, bytes: &[u8]) -> Result<(), ResponseError> {
        if self.line.status == 0 {
            (self.line.status, self.line.text) = if let Some(field) = self.find(KnownField::Status)
            {
                status(field.value(bytes), field.value)
                    .ok_or(ResponseError::InvalidStatus(field.value))?
            } else if self.find(KnownField::Location).is_some() {
                (FOUND, Span::default())
            } else {
                (OK, Span::default())
            };
        }
        if self.is_upgrade() && self.framing != Framing::Unknown {
            let framed = self.find(KnownField::ContentLength);
            if let Some(field) = framed.or_else(|| self.find(KnownField::TransferEncoding)) {
                return Err(ResponseError::FramedUpgrade(field));
            }
        }
        if self.framing == Framing::Chunked {
            self.framing = Framing::Unknown;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BodyFraming, parse as parse_http};
    use super::*;
    use crate::h1::Version;

    /// The result of parsing a head in short form: status, status line, framing and fields; or the
    /// log message of the error.
    fn describe(
        result: Result<Option<usize>, ResponseError>,
        head: &ResponseHead,
        bytes: &[u8],
    ) -> String {
        match result {
            Ok(None) => "more".to_owned(),
            Err(error) => error.log_text(bytes).escape_ascii().to_string(),
            Ok(Some(length)) => {
                let line = head.status_line(bytes).escape_ascii().to_string();
                let mut text = format!("{} [{line}] {:?}", head.status(), head.body(false));
                for field in head.fields() {
                    let (name, value) = (field.name(bytes), field.value(bytes));
                    text += &format!("|{}:{}", name.escape_ascii(), value.escape_ascii());
                }
                let rest = bytes.get(length..).unwrap_or_default();
                if !rest.is_empty() {
                    text += &format!(" +{}", rest.escape_ascii());
                }
                text
            }
        }
    }

    /// Parses a head at once, and incrementally byte by byte: the results must be equal.
    fn read(bytes: &[u8], form: Form) -> String {
        let mut growing = ResponseHead::default();
        for end in 0..=bytes.len() {
            let here = &bytes[..end];
            let result = parse(here, &mut growing, form);
            let text = describe(result, &growing, here);
            let mut fresh = ResponseHead::default();
            let whole = parse(here, &mut fresh, form);
            assert_eq!(
                text,
                describe(whole, &fresh, here),
                "{}",
                here.escape_ascii()
            );
            if result != Ok(None) {
                break;
            }
        }
        let mut head = ResponseHead::default();
        let result = parse(bytes, &mut head, form);
        describe(result, &head, bytes)
    }

    /// Expected values from RFC 3875, section 6, and `ngx_http_fastcgi_process_header`.
    #[test]
    fn heads_without_a_status_line() {
        for (case, bytes, expected) in [
            ("CR LF", "A: b\r\n\r\nbody", "200 [] UntilClose|A:b +body"),
            ("bare LF", "A: b\n\nbody", "200 [] UntilClose|A:b +body"),
            (
                "mixed line ends",
                "A: b\nC: d\r\n\n",
                "200 [] UntilClose|A:b|C:d",
            ),
            ("no field at all", "\n", "200 [] UntilClose"),
            ("no field, CR LF", "\r\nx", "200 [] UntilClose +x"),
            (
                "a status with its reason",
                "Status: 404 Not Found\r\n\r\n",
                "404 [404 Not Found] UntilClose|Status:404 Not Found",
            ),
            (
                "a status without a reason has nginx's",
                "Status: 404\n\n",
                "404 [] UntilClose|Status:404",
            ),
            (
                "a status and a space, which is trimmed",
                "status: 404 \n\n",
                "404 [] UntilClose|status:404",
            ),
            (
                "whatever follows three digits",
                "Status: 4041\n\n",
                "404 [4041] UntilClose|Status:4041",
            ),
            (
                "a location",
                "Location: /a\n\n",
                "302 [] UntilClose|Location:/a",
            ),
            (
                "an empty location",
                "location:\n\n",
                "302 [] UntilClose|location:",
            ),
            (
                "a status outweighs a location",
                "Location: /a\nStatus: 201 Created\n\n",
                "201 [201 Created] UntilClose|Location:/a|Status:201 Created",
            ),
            (
                "the first status counts",
                "Status: 201\nStatus: x\n\n",
                "201 [] UntilClose|Status:201|Status:x",
            ),
            (
                "a length",
                "Content-Length: 5\n\nhello",
                "200 [] Length(5)|Content-Length:5 +hello",
            ),
            (
                "no body",
                "Status: 204\nContent-Length: 5\n\n",
                "204 [] None|Status:204|Content-Length:5",
            ),
            (
                "not modified",
                "Status: 304 Not Modified\n\n",
                "304 [304 Not Modified] None|Status:304 Not Modified",
            ),
            (
                "chunks are none",
                "Transfer-Encoding: chunked\n\n5\r\n",
                "200 [] UntilClose|Transfer-Encoding:chunked +5\\r\\n",
            ),
            (
                "a status line is skipped",
                "HTTP/1.1 500 No\r\nA: b\r\n\r\n",
                "200 [] UntilClose|A:b",
            ),
            (
                "so is one among the fields",
                "A: b\nHTTP/1.1 500 No\nC: d\n\n",
                "200 [] UntilClose|A:b|C:d",
            ),
            (
                "a line without a colon",
                "BAD\n\n",
                "200 [] UntilClose|BAD:",
            ),
            ("no empty line yet", "A: b\r\n", "more"),
            ("half of the empty line", "A: b\r\n\r", "more"),
        ] {
            assert_eq!(read(bytes.as_bytes(), Form::Fields), expected, "{case}");
        }
    }

    /// nginx's log messages; `ngx_atoi` is given exactly three digits.
    #[test]
    fn faults() {
        for (case, bytes, expected) in [
            (
                "no digits",
                "Status: OK\n\n",
                "upstream sent invalid status \\\"OK\\\"",
            ),
            (
                "two digits",
                "Status: 20\n\n",
                "upstream sent invalid status \\\"20\\\"",
            ),
            (
                "two digits and a reason",
                "Status: 20 OK\n\n",
                "upstream sent invalid status \\\"20 OK\\\"",
            ),
            (
                "nothing",
                "Status:\n\n",
                "upstream sent invalid status \\\"\\\"",
            ),
            (
                "a sign",
                "Status: +20\n\n",
                "upstream sent invalid status \\\"+20\\\"",
            ),
            (
                "below all statuses (ours)",
                "Status: 099\n\n",
                "upstream sent invalid status \\\"099\\\"",
            ),
            (
                "above all statuses (ours)",
                "Status: 600 No\n\n",
                "upstream sent invalid status \\\"600 No\\\"",
            ),
            (
                "what another head would have to follow (ours)",
                "Status: 103 Early Hints\n\n",
                "upstream sent invalid status \\\"103 Early Hints\\\"",
            ),
            (
                "an upgrade with a body (ours)",
                "Content-Length: 0\nStatus: 101\n\n",
                "upstream sent 101 response with \\\"Content-Length\\\" header",
            ),
            (
                "an upgrade in chunks (ours)",
                "Transfer-Encoding: chunked\nStatus: 101\n\n",
                "upstream sent 101 response with \\\"Transfer-Encoding\\\" header",
            ),
            (
                "a space in a name",
                "A b: c\n",
                "upstream sent invalid header: \\\"A\\\\x20...\\\"",
            ),
            (
                "a zero byte",
                "A: b\0\n",
                "upstream sent invalid header: \\\"A: b\\\\x00...\\\"",
            ),
            (
                "two lengths",
                "Content-Length: 1\nContent-Length: 1\n",
                "upstream sent duplicate header line: \\\"Content-Length: 1\\\", \
                 previous value: \\\"Content-Length: 1\\\"",
            ),
            (
                "a length and chunks",
                "Transfer-Encoding: chunked\nContent-Length: 1\n",
                "upstream sent \\\"Content-Length\\\" and \\\"Transfer-Encoding\\\" headers at the same time",
            ),
            (
                "a length that is none",
                "Content-Length: -1\n",
                "upstream sent invalid \\\"Content-Length\\\" header: \\\"Content-Length: -1\\\"",
            ),
            (
                "another coding",
                "Transfer-Encoding: gzip\n",
                "upstream sent unknown \\\"Transfer-Encoding\\\": \\\"gzip\\\"",
            ),
        ] {
            for form in [Form::Fields, Form::StatusLineOrFields] {
                assert_eq!(read(bytes.as_bytes(), form), expected, "{case}, {form:?}");
            }
        }
    }

    /// Expected values from `ngx_http_uwsgi_process_status_line` and
    /// `ngx_http_uwsgi_process_header`; SCGI's functions are equivalent.
    #[test]
    fn heads_with_or_without_a_status_line() {
        for (case, bytes, expected) in [
            ("fields alone", "A: b\n\n", "200 [] UntilClose|A:b"),
            (
                "a name that begins as a status line does",
                "HTTP-A: b\n\n",
                "200 [] UntilClose|HTTP-A:b",
            ),
            ("no field", "\n", "200 [] UntilClose"),
            (
                "a status line",
                "HTTP/1.1 404 Not Found\r\nA: b\r\n\r\n",
                "404 [404 Not Found] UntilClose|A:b",
            ),
            (
                "a status line with bare LF",
                "HTTP/1.0 404 Gone Away\nA: b\n\n",
                "404 [404 Gone Away] UntilClose|A:b",
            ),
            (
                "a status line without a reason",
                "HTTP/1.1 404\r\n\r\n",
                "404 [404] UntilClose",
            ),
            (
                "the field counts beside fields alone",
                "HTTP/1.1 404 Not Found\r\nStatus: 500\r\nLocation: /\r\n\r\n",
                "404 [404 Not Found] UntilClose|Status:500|Location:/",
            ),
            (
                "an invalid field is not looked at then",
                "HTTP/1.1 404 Not Found\r\nStatus: x\r\n\r\n",
                "404 [404 Not Found] UntilClose|Status:x",
            ),
            (
                "a malformed status line is skipped",
                "HTTP/1.1 20x\r\nStatus: 404\r\n\r\n",
                "404 [] UntilClose|Status:404",
            ),
            (
                "so is one whose status has a gap",
                "HTTP/1.1 20 0 OK\r\nStatus: 404\r\n\r\n",
                "404 [] UntilClose|Status:404",
            ),
            (
                "so is one of another version",
                "HTTP/0.9 200 OK\r\nA: b\r\n\r\n",
                "200 [] UntilClose|A:b",
            ),
            (
                "chunks are none",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                "200 [200 OK] UntilClose|Transfer-Encoding:chunked",
            ),
            (
                "an upgrade",
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: a\r\n\r\n",
                "101 [101 Switching Protocols] None|Upgrade:a",
            ),
            (
                "an interim response (ours)",
                "HTTP/1.1 100 Continue\r\n\r\n",
                "upstream sent invalid status \\\"100 Continue\\\"",
            ),
            (
                "no status (ours)",
                "HTTP/1.1 999 No\r\n\r\n",
                "upstream sent invalid status \\\"999 No\\\"",
            ),
            ("half of a status line", "HTTP/1.1 200", "more"),
            ("its first byte", "H", "more"),
        ] {
            let read = read(bytes.as_bytes(), Form::StatusLineOrFields);
            assert_eq!(read, expected, "{case}");
        }
    }

    #[test]
    fn the_connection_is_not_the_heads_business() {
        for (bytes, form, version, closes) in [
            ("A: b\n\n", Form::Fields, Version::Http09, false),
            ("Connection: close\n\n", Form::Fields, Version::Http09, true),
            (
                "HTTP/1.0 200 OK\n\n",
                Form::StatusLineOrFields,
                Version::Http10,
                false,
            ),
        ] {
            let mut head = ResponseHead::default();
            let length = parse(bytes.as_bytes(), &mut head, form);
            assert_eq!(length, Ok(Some(bytes.len())));
            assert_eq!((head.version(), head.closes()), (version, closes));
        }
    }

    #[test]
    fn one_value_serves_heads_of_every_kind() {
        let mut head = ResponseHead::default();
        let first = b"Status: 404 Not Found\nContent-Length: 3\n\n";
        assert_eq!(parse(first, &mut head, Form::Fields), Ok(Some(first.len())));
        let second = b"A: b\n\n";
        assert_eq!(
            parse(second, &mut head, Form::Fields),
            Ok(Some(second.len()))
        );
        assert_eq!((head.status(), head.fields().len()), (200, 1));
        assert_eq!(head.body(false), BodyFraming::UntilClose);
        let third = b"HTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(parse_http(third, &mut head), Ok(Some(third.len())));
        assert_eq!(
            parse(b"\n", &mut head, Form::StatusLineOrFields),
            Ok(Some(1))
        );
        assert_eq!((head.status(), head.status_line(b"\n")), (200, &b""[..]));
        assert_eq!(head.version(), Version::Http09);
    }
}
