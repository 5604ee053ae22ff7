//! Responses to range requests: 206, `multipart/byteranges` and 416.
//!
//! RFC 9110, section 14, with the rules of nginx's range filter
//! (<https://nginx.org/en/docs/http/ngx_http_core_module.html#max_ranges>). Only a handler that can
//! serve any part of a body of known length allows ranges. Filters that change the body forbid
//! them.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use proto::etag;
use proto::h1::Version;
use proto::header::KnownField;
use proto::range::{self, ByteRange, RangeDecision};

use crate::config::plan_builder::PlanBuilder;
use crate::exchange::abort::Abort;
use crate::request::Request;
use crate::response::chain::{Chain, FilterRejection};
use crate::response::piece::Piece;
use crate::response::{Response, last_modified};

/// The number of the next boundary of a multipart response. A boundary only has to be absent from
/// the body.
static BOUNDARY: AtomicU64 = AtomicU64::new(1);

/// Registers the head filter with a plan.
pub fn register(plan: &mut PlanBuilder<'_>) -> Option<()> {
    plan.own_filter("Range", head);
    Some(())
}

/// Turns the response into a 206 if the client requests ranges, and rejects it with 416 if no range
/// is within the body.
fn head(request: &mut Request, chain: &mut Chain) -> Result<(), FilterRejection> {
    if request.is_main()
        && let Some(cut) = begin(request)?
    {
        chain.cut_out(cut);
    }
    Ok(())
}

/// Parses the client's ranges. Returns the cutter for them if the response becomes a 206, and
/// `None` if the whole body is sent.
fn begin(request: &mut Request) -> Result<Option<RangeCutter>, FilterRejection> {
    let max = if request.response.single_range {
        Some(1)
    } else {
        request.plan.core.max_ranges
    };
    let response = &request.response;
    let (true, true, Some(size)) = (
        response.allow_ranges,
        response.status == 200,
        response.content_length,
    ) else {
        return Ok(None);
    };
    if request.plan.core.max_ranges == Some(0) || request.version() < Version::Http10 {
        return Ok(None);
    }
    let outcome = match request.header(KnownField::Range) {
        Some(value) if if_range_matches(request) => range::parse(value, size, max),
        _ => RangeDecision::Whole,
    };
    let response = &mut request.response;
    match outcome {
        RangeDecision::Whole => {
            response.set_accept_ranges("bytes");
            Ok(None)
        }
        RangeDecision::One(range) => Ok(Some(one(response, range, size))),
        RangeDecision::Many(ranges) => Ok(Some(many(
            response,
            &ranges,
            size,
            BOUNDARY.fetch_add(1, Ordering::Relaxed),
        ))),
        RangeDecision::Unsatisfiable => {
            // `$status` is 416 when the URI of `error_page 416 = …` is evaluated.
            response.status = 416;
            response.set_content_range(format!("bytes */{size}"));
            response.clear_content_length();
            Err(FilterRejection::Status(416))
        }
    }
}

/// Whether `If-Range`, if sent, matches the representation of the response.
fn if_range_matches(request: &Request) -> bool {
    request.header(KnownField::IfRange).is_none_or(|value| {
        let tag = request.response.field(b"ETag").map(|tag| &tag[..]);
        etag::if_range_holds(value, tag, last_modified(&request.response))
    })
}

/// Turns the response into a 206 with one range of a body of `size` bytes, and returns the cutter
/// for the range. The range must lie within the body.
pub fn one(response: &mut Response, range: ByteRange, size: u64) -> RangeCutter {
    response.status = 206;
    response.status_text = None;
    response.set_content_range(format!("bytes {}-{}/{size}", range.start, range.end - 1));
    response.content_length = Some(range.len());
    RangeCutter {
        offset: 0,
        parts: Parts::One(range),
    }
}

/// Turns the response into a multipart 206 with several ranges of a body of `size` bytes, and
/// returns the cutter for the ranges. The ranges must lie within the body, and the boundary must be
/// absent from the body.
pub fn many(
    response: &mut Response,
    ranges: &[ByteRange],
    size: u64,
    boundary: u64,
) -> RangeCutter {
    let mut delimiter = format!("\r\n--{boundary:020}").into_bytes();
    let closing = Bytes::from([&delimiter, &b"--\r\n"[..]].concat());
    delimiter.extend_from_slice(b"\r\n");
    if !response.content_type.is_empty() {
        delimiter.extend_from_slice(b"Content-Type: ");
        delimiter.extend_from_slice(&response.content_type);
        if !response.content_type_parameters.is_empty() {
            delimiter.extend_from_slice(&response.content_type_parameters);
        } else if !response.charset.is_empty() {
            delimiter.extend_from_slice(b"; charset=");
            delimiter.extend_from_slice(&response.charset);
        }
        delimiter.extend_from_slice(b"\r\n");
    }
    delimiter.extend_from_slice(b"Content-Range: bytes ");

    let mut length = closing.len() as u64;
    let parts: Vec<RangePart> = ranges
        .iter()
        .map(|&range| {
            let mut head = delimiter.clone();
            // Writing to a vector does not fail.
            let _ = write!(head, "{}-{}/{size}\r\n\r\n", range.start, range.end - 1);
            length += head.len() as u64 + range.len();
            RangePart {
                head: head.into(),
                range,
            }
        })
        .collect();

    response.status = 206;
    response.status_text = None;
    response.remove_content_range();
    response.content_type = format!("multipart/byteranges; boundary={boundary:020}").into();
    response.content_type_parameters = Bytes::new();
    response.charset = Bytes::new();
    response.content_length = Some(length);
    RangeCutter {
        offset: 0,
        parts: Parts::Many { parts, closing },
    }
}

/// Cuts the requested ranges out of a body.
pub struct RangeCutter {
    /// The offset of the next piece in the body.
    offset: u64,
    parts: Parts,
}

enum Parts {
    One(ByteRange),
    Many {
        parts: Vec<RangePart>,
        closing: Bytes,
    },
}

struct RangePart {
    /// The delimiter, the part's own head, and the empty line.
    head: Bytes,
    range: ByteRange,
}

impl RangeCutter {
    /// Sets the offset of the next piece in the whole body.
    pub(crate) fn seek(&mut self, offset: u64) {
        self.offset = offset;
    }

    /// The range, if it is the only one.
    pub(crate) fn asked(&self) -> Option<ByteRange> {
        match &self.parts {
            Parts::One(range) => Some(*range),
            Parts::Many { .. } => None,
        }
    }

    /// Appends the requested ranges of the next piece to `out`. If there are several ranges, the
    /// whole body must be in one piece.
    pub fn apply(&mut self, piece: Piece, out: &mut Vec<Piece>) -> Result<(), Abort> {
        let length = match &piece {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::File { length, .. } => *length,
            Piece::Include(_) | Piece::Flush | Piece::Last => {
                out.push(piece);
                return Ok(());
            }
        };
        let start = self.offset;
        let end = start.saturating_add(length);
        self.offset = end;
        match &mut self.parts {
            Parts::One(range) => {
                let (from, to) = (range.start.max(start), range.end.min(end));
                if from < to {
                    out.extend(stretch(&piece, from - start, to - start));
                }
            }
            Parts::Many { parts, closing } => {
                // Ranges may overlap and may be in any order, so the whole body must be in one
                // piece, as in nginx.
                if start > 0 || parts.iter().any(|part| part.range.end > end) {
                    return Err(Abort::Internal("range in overlapped buffers"));
                }
                for part in std::mem::take(parts) {
                    out.push(Piece::Bytes(part.head));
                    out.extend(stretch(&piece, part.range.start, part.range.end));
                }
                out.push(Piece::Bytes(std::mem::take(closing)));
            }
        }
        Ok(())
    }
}

/// The bytes `from..to` of a piece; `None` if they are outside the piece.
fn stretch(piece: &Piece, from: u64, to: u64) -> Option<Piece> {
    match piece {
        Piece::Bytes(bytes) => {
            let (from, to) = (usize::try_from(from).ok()?, usize::try_from(to).ok()?);
            (from <= to && to <= bytes.len()).then(|| Piece::Bytes(bytes.slice(from..to)))
        }
        Piece::File { file, offset, .. } => Some(Piece::File {
            file: file.clone(),
            offset: offset.checked_add(from)?,
            length: to.checked_sub(from)?,
        }),
        Piece::Include(_) | Piece::Flush | Piece::Last => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pieces: &[Piece]) -> String {
        let mut text = String::new();
        for piece in pieces {
            if let Piece::Bytes(bytes) = piece {
                text.push_str(std::str::from_utf8(bytes).unwrap());
            }
        }
        text
    }

    fn body(cut: &mut RangeCutter, pieces: &[&'static str]) -> String {
        let mut out = Vec::new();
        for piece in pieces {
            cut.apply(Piece::Bytes(Bytes::from_static(piece.as_bytes())), &mut out)
                .unwrap();
        }
        cut.apply(Piece::Last, &mut out).unwrap();
        assert!(matches!(out.last(), Some(Piece::Last)));
        text(&out)
    }

    #[test]
    fn one_range_over_any_pieces() {
        for pieces in [
            &["0123456789"][..],
            &["01", "23", "45", "6789"],
            &["0", "123456", "789"],
        ] {
            let mut response = Response {
                status: 200,
                content_length: Some(10),
                ..Response::default()
            };
            let mut cut = one(&mut response, ByteRange { start: 2, end: 6 }, 10);
            assert_eq!(body(&mut cut, pieces), "2345");
            assert_eq!((response.status, response.content_length), (206, Some(4)));
            assert_eq!(response.field(b"content-range").unwrap(), "bytes 2-5/10");
        }
    }

    #[test]
    fn many_ranges_as_nginx_writes_them() {
        let mut response = Response {
            status: 200,
            content_type: "text/plain".into(),
            charset: "utf-8".into(),
            content_length: Some(10),
            ..Response::default()
        };
        let ranges = [
            ByteRange { start: 0, end: 2 },
            ByteRange { start: 9, end: 10 },
        ];
        let mut cut = many(&mut response, &ranges, 10, 7);
        assert_eq!(
            response.content_type,
            "multipart/byteranges; boundary=00000000000000000007"
        );
        let expected = "\r\n--00000000000000000007\r\n\
                        Content-Type: text/plain; charset=utf-8\r\n\
                        Content-Range: bytes 0-1/10\r\n\r\n\
                        01\
                        \r\n--00000000000000000007\r\n\
                        Content-Type: text/plain; charset=utf-8\r\n\
                        Content-Range: bytes 9-9/10\r\n\r\n\
                        9\
                        \r\n--00000000000000000007--\r\n";
        assert_eq!(body(&mut cut, &["0123456789"]), expected);
        assert_eq!(response.content_length, Some(expected.len() as u64));
    }

    #[test]
    fn many_ranges_need_the_body_in_one_piece() {
        let mut response = Response {
            status: 200,
            content_length: Some(10),
            ..Response::default()
        };
        let ranges = [
            ByteRange { start: 0, end: 2 },
            ByteRange { start: 9, end: 10 },
        ];
        let mut cut = many(&mut response, &ranges, 10, 7);
        assert!(
            cut.apply(Piece::Bytes(Bytes::from_static(b"01234")), &mut Vec::new())
                .is_err()
        );
    }
}
