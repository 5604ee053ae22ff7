//! The framing of a request's body (RFC 9112, section 6), and requests that are refused because of
//! it.

use super::Version;
use super::head::Head;
use crate::header::KnownField;
use crate::method::Method;

/// The framing of a request's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyLength {
    /// No body was announced.
    #[default]
    None,
    /// `Content-Length`, which may be 0.
    Length(u64),
    /// The body is framed by `Transfer-Encoding: chunked`.
    Chunked,
}

/// Why a complete head is refused: nginx's final checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramingError {
    /// An HTTP/1.1 request without `Host`.
    NoHost,
    /// `Content-Length` is not a number of at most 63 bits.
    InvalidContentLength,
    /// An HTTP/1.0 request with `Transfer-Encoding`.
    TransferEncodingInHttp10,
    /// Both `Transfer-Encoding: chunked` and `Content-Length`: a sign of request smuggling.
    LengthAndChunked,
    /// A transfer coding other than `chunked` alone.
    UnknownTransferEncoding,
    /// CONNECT that the server does not allow, or whose version is not HTTP/1.1.
    Connect,
    /// CONNECT with a body.
    ConnectWithBody,
    /// TRACE, with the framing of its body, which must be read nevertheless.
    Trace(BodyLength),
}

impl FramingError {
    /// The status of the response.
    pub fn status(self) -> u16 {
        match self {
            FramingError::UnknownTransferEncoding => 501,
            FramingError::Connect | FramingError::Trace(_) => 405,
            _ => 400,
        }
    }

    /// nginx's log message, at level `info`.
    pub fn log_text(self, head: &Head, bytes: &[u8]) -> Vec<u8> {
        let text = match self {
            FramingError::NoHost => "client sent HTTP/1.1 request without \"Host\" header",
            FramingError::InvalidContentLength => "client sent invalid \"Content-Length\" header",
            FramingError::TransferEncodingInHttp10 => {
                "client sent HTTP/1.0 request with \"Transfer-Encoding\" header"
            }
            FramingError::LengthAndChunked => {
                "client sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time"
            }
            FramingError::UnknownTransferEncoding => {
                let value = head
                    .value(KnownField::TransferEncoding, bytes)
                    .unwrap_or_default();
                return [
                    b"client sent unknown \"Transfer-Encoding\": \"",
                    value,
                    b"\"",
                ]
                .concat();
            }
            FramingError::Connect => "client sent CONNECT method",
            FramingError::ConnectWithBody => "client sent CONNECT request with body",
            FramingError::Trace(_) => "client sent TRACE method",
        };
        text.as_bytes().to_vec()
    }
}

/// The framing of the body after a complete head. `allow_connect` says whether the server supports
/// CONNECT.
///
/// # Errors
/// The first of nginx's checks that fails.
#[inline]
pub fn body_length(
    head: &Head,
    bytes: &[u8],
    allow_connect: bool,
) -> Result<BodyLength, FramingError> {
    if head.version() == Version::Http09 {
        return Ok(BodyLength::None);
    }
    if head.version() == Version::Http11 && !head.has(KnownField::Host) {
        return Err(FramingError::NoHost);
    }
    let mut length = BodyLength::None;
    if let Some(value) = head.value(KnownField::ContentLength, bytes) {
        length =
            BodyLength::Length(content_length(value).ok_or(FramingError::InvalidContentLength)?);
    }
    if let Some(value) = head.value(KnownField::TransferEncoding, bytes) {
        if head.version() < Version::Http11 {
            return Err(FramingError::TransferEncodingInHttp10);
        }
        if !value.eq_ignore_ascii_case(b"chunked") {
            return Err(FramingError::UnknownTransferEncoding);
        }
        if head.has(KnownField::ContentLength) {
            return Err(FramingError::LengthAndChunked);
        }
        length = BodyLength::Chunked;
    }
    match head.method() {
        Method::Connect if !allow_connect || !head.is_exactly_http11() => {
            Err(FramingError::Connect)
        }
        Method::Connect if !matches!(length, BodyLength::None | BodyLength::Length(0)) => {
            Err(FramingError::ConnectWithBody)
        }
        Method::Trace => Err(FramingError::Trace(length)),
        _ => Ok(length),
    }
}

/// Parses a number of at most 63 bits, digits only.
pub(super) fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    let mut length: i64 = 0;
    for digit in value {
        if !digit.is_ascii_digit() {
            return None;
        }
        length = length
            .checked_mul(10)?
            .checked_add(i64::from(digit - b'0'))?;
    }
    Some(length as u64)
}
