//! Recognition of gRPC calls, their deadlines and their statuses.
//!
//! <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>.

use std::time::{Duration, Instant};

use http::request::Request;
use http::response::Field;
use proto::header::KnownField;
use proto::method::Method;

use super::errors::{self, STATUS};
use proxying::attempts::Attempts;

/// The media type of every call starts with this.
pub(super) const MEDIA_TYPE: &[u8] = b"application/grpc";

/// Whether a request is a call.
pub(super) fn is_call(request: &Request) -> bool {
    request.method == Method::Post && media_type(request).is_some()
}

/// The rest of a request's media type after `application/grpc`; `None` for other media types.
pub(super) fn media_type(request: &Request) -> Option<&[u8]> {
    let value = request.header(KnownField::ContentType)?;
    let (begin, rest) = value.split_at_checked(MEDIA_TYPE.len())?;
    begin.eq_ignore_ascii_case(MEDIA_TYPE).then_some(rest)
}

/// The member of `TE` that clients send to accept trailers.
const TRAILERS: &[u8] = b"trailers";

/// Whether a client accepts trailers.
pub(super) fn accepts_trailers(request: &Request) -> bool {
    let value = request.header(KnownField::Te).unwrap_or_default();
    let mut parts = value.windows(TRAILERS.len());
    parts.any(|part| part.eq_ignore_ascii_case(TRAILERS))
}

/// The deadline of a call: now plus `grpc-timeout`.
pub(super) fn deadline(request: &Request) -> Option<Instant> {
    if !is_call(request) {
        return None;
    }
    let timeout = timeout(request.client.value_named(b"grpc-timeout")?)?;
    engine::now().checked_add(timeout)
}

/// Parses at most eight digits and a unit.
fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The status of a finished call, with `None` inside if the call ended without one. Other requests
/// have no status.
pub fn status_of(request: &Request) -> Option<Option<u16>> {
    if !is_call(request) {
        return None;
    }
    let find = |fields: &[Field]| {
        let mut fields = fields.iter();
        let found = fields.find(|field| field.name.eq_ignore_ascii_case(STATUS));
        found.and_then(|field| number(&field.value))
    };
    if let Some(status) = errors::status_of_broken(request) {
        return Some(Some(status));
    }
    let in_trailers = Attempts::of(request).and_then(|seen| find(&seen.borrow().trailers));
    Some(in_trailers.or_else(|| find(&request.response.fields)))
}

/// Parses a status code.
pub(super) fn number(value: &[u8]) -> Option<u16> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_units() {
        for (text, expected) in [
            ("1S", Some(Duration::from_secs(1))),
            ("2M", Some(Duration::from_secs(120))),
            ("3H", Some(Duration::from_secs(10_800))),
            ("250m", Some(Duration::from_millis(250))),
            ("7u", Some(Duration::from_micros(7))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("0m", Some(Duration::ZERO)),
            ("999999999n", None),
            ("S", None),
            ("", None),
            ("1", None),
            ("-1S", None),
            ("1s", None),
            ("1 S", None),
        ] {
            assert_eq!(timeout(text.as_bytes()), expected, "{text}");
        }
    }
}
