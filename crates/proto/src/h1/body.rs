//! How long a request's body is (RFC 9112, section 6), and the requests that are refused for what
//! their head says about it.

use super::Version;
use super::head::Head;
use crate::header::KnownField;
use crate::method::Method;

/// The framing of a request's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyLength {
    /// Nothing was announced: there is no body.
    #[default]
    None,
    /// `Content-Length`, which may be 0.
    Length(u64),
    /// The body is framed by `Transfer-Encoding: chunked`.
    Chunked,
}

/// Why a complete head is refused: nginx's last checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramingError {
    /// A request of HTTP/1.1 has no `Host`.
    NoHost,
    /// `Content-Length` is no number of 63 bits.
    InvalidContentLength,
    /// A request of HTTP/1.0 has a `Transfer-Encoding`.
    TransferEncodingInHttp10,
    /// `Transfer-Encoding: chunked` and `Content-Length`: one of them is a lie (request smuggling).
    LengthAndChunked,
    /// A transfer coding other than `chunked` alone.
    UnknownTransferEncoding,
    /// CONNECT where it is not allowed, or not in HTTP/1.1.
    Connect,
    /// CONNECT with a body.
    ConnectWithBody,
    /// TRACE, with the body that comes with it all the same.
    Trace(BodyLength),
}

impl FramingError {
    /// The status of the answer.
    pub fn status(self) -> u16 {
        match self {
            FramingError::UnknownTransferEncoding => 501,
            FramingError::Connect | FramingError::Trace(_) => 405,
            _ => 400,
        }
    }

    /// nginx's words for the log, at level `info`.
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

/// The framing of the body that follows a complete head of HTTP/1.0 or 1.1. `allow_connect` tells
/// whether the server makes tunnels.
///
/// # Errors
/// The first of nginx's checks that the head fails.
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

/// Digits only, up to what 63 bits hold.
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
