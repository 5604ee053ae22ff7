//! Responses from header blocks (RFC 9113, section 8.3.2), and their trailers.
//!
//! Lenient like nginx where that is harmless: names may contain any visible byte, and values may
//! begin or end with whitespace. Strict where another implementation could interpret the response
//! differently: framing, uppercase names, and connection-specific fields.

use std::fmt;

use super::hpack::{Decoded, DecodedBlock, Faults, NameKind};
use crate::Span;
use crate::h1::Field;
use crate::header::{KnownField, KnownSet};

/// The head of a response, or its trailers.
#[derive(Debug, Default)]
pub struct ResponseHead {
    status: u16,
    content_length: Option<u64>,
    fields: Vec<Field>,
    known: KnownSet,
    bytes: Vec<u8>,
    /// Name and value of the field that caused the fault.
    culprit: Option<(Span, Span)>,
}

/// Why a head or trailers are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFault {
    /// There is no `:status`, or it does not come first.
    NoStatus,
    /// `:status` is not three digits, or is less than 100.
    Status,
    /// The head has a second `:status`.
    SecondStatus,
    /// Another pseudo-header field, or any in trailers.
    Pseudo,
    /// An invalid field name.
    Name,
    /// An invalid field value.
    Value,
    /// A connection-specific field, which HTTP/2 forbids.
    OfConnection(&'static str),
    /// An invalid Content-Length, or more than one.
    ContentLength,
    /// Status 101, which HTTP/2 does not have, or an interim response that ends the stream.
    Interim,
    /// The head exceeds the limit.
    TooLarge,
}

impl fmt::Display for ResponseFault {
    /// The log message, without "sent " in front.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResponseFault::NoStatus => write!(out, "no :status"),
            ResponseFault::Status => write!(out, "invalid :status"),
            ResponseFault::SecondStatus => write!(out, "duplicate :status"),
            ResponseFault::Pseudo => write!(out, "invalid pseudo-header"),
            ResponseFault::Name => write!(out, "invalid header name"),
            ResponseFault::Value => write!(out, "header with invalid value"),
            ResponseFault::OfConnection(name) => write!(out, "\"{name}\" header"),
            ResponseFault::ContentLength => write!(out, "invalid \"Content-Length\" header"),
            ResponseFault::Interim => write!(out, "invalid interim response"),
            ResponseFault::TooLarge => write!(out, "too big header"),
        }
    }
}

impl ResponseHead {
    /// The status; 0 for trailers.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The value of `content-length`.
    #[must_use]
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// The fields in the order received, as spans of [`bytes`](Self::bytes).
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The bytes to which the spans refer.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The value of the first field with this name.
    #[must_use]
    pub fn value(&self, known: KnownField) -> Option<&[u8]> {
        if !self.known.contains(known) {
            return None;
        }
        let mut fields = self.fields.iter();
        let found = fields.find(|field| field.known == known);
        found.map(|field| field.value(&self.bytes))
    }

    /// Name and value of the field that caused the fault, if any.
    #[must_use]
    pub fn culprit(&self) -> Option<(&[u8], &[u8])> {
        let (name, value) = self.culprit?;
        Some((name.of(&self.bytes), value.of(&self.bytes)))
    }

    /// Reads a block with `decode`, which must append the bytes of each field to the buffer, then
    /// call the sink with the field.
    pub(super) fn read<E>(
        &mut self,
        is_trailers: bool,
        decode: impl FnOnce(&mut Vec<u8>, &mut dyn FnMut(Decoded, &[u8])) -> Result<DecodedBlock, E>,
    ) -> Result<Result<(), ResponseFault>, E> {
        self.status = 0;
        self.content_length = None;
        self.fields.clear();
        self.known = KnownSet::default();
        self.culprit = None;
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        let mut fault = None;
        let outcome = decode(&mut bytes, &mut |field, bytes| {
            if fault.is_none() {
                fault = self.take(field, bytes, is_trailers).err();
                self.culprit = fault.and(Some((field.name, field.value)));
            }
        });
        self.bytes = bytes;
        Ok(match (fault, outcome?) {
            (Some(fault), _) => Err(fault),
            (None, DecodedBlock::TooLarge) => Err(ResponseFault::TooLarge),
            (None, DecodedBlock::Whole) if self.status == 0 && !is_trailers => {
                Err(ResponseFault::NoStatus)
            }
            (None, DecodedBlock::Whole) => Ok(()),
        })
    }

    fn take(
        &mut self,
        field: Decoded,
        bytes: &[u8],
        is_trailers: bool,
    ) -> Result<(), ResponseFault> {
        const OF_NAMES: Faults = Faults::NAME_EMPTY
            .or(Faults::NAME_CAPITAL)
            .or(Faults::NAME_INVALID)
            .or(Faults::NAME_NOT_ASCII);
        let value = field.value.of(bytes);
        let known = match field.which {
            NameKind::Status if self.status == 0 && !is_trailers => {
                self.status = status(value).ok_or(ResponseFault::Status)?;
                return Ok(());
            }
            NameKind::Status if !is_trailers => return Err(ResponseFault::SecondStatus),
            NameKind::Field(_) if self.status == 0 && !is_trailers => {
                return Err(ResponseFault::NoStatus);
            }
            NameKind::Field(known) => known,
            _ => return Err(ResponseFault::Pseudo),
        };
        if !field.faults.is_none() {
            if field.faults.has(OF_NAMES) {
                return Err(ResponseFault::Name);
            }
            if field.faults.has(Faults::VALUE_INVALID) {
                return Err(ResponseFault::Value);
            }
        }
        match known {
            KnownField::Connection
            | KnownField::KeepAlive
            | KnownField::ProxyConnection
            | KnownField::TransferEncoding
            | KnownField::Upgrade => return Err(ResponseFault::OfConnection(known.name())),
            KnownField::ContentLength if !is_trailers => {
                let length = content_length(value).ok_or(ResponseFault::ContentLength)?;
                if self.content_length.replace(length).is_some() {
                    return Err(ResponseFault::ContentLength);
                }
            }
            _ => {}
        }
        self.known.insert(known);
        self.fields.push(Field {
            name: field.name,
            value: field.value,
            known,
        });
        Ok(())
    }
}

/// Parses three digits, the first of which is not 0.
fn status(value: &[u8]) -> Option<u16> {
    let [hundreds @ b'1'..=b'9', tens, units] = value else {
        return None;
    };
    if !tens.is_ascii_digit() || !units.is_ascii_digit() {
        return None;
    }
    let digit = |byte: &u8| u16::from(byte - b'0');
    Some(digit(hundreds) * 100 + digit(tens) * 10 + digit(units))
}

/// Parses a number of at most 63 bits.
fn content_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    let number = value.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })?;
    (number <= i64::MAX as u64).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2::hpack::{Decoder, Encoder};

    fn read(
        fields: &[(&str, &str)],
        is_trailers: bool,
    ) -> (ResponseHead, Result<(), ResponseFault>) {
        let mut block = Vec::new();
        let fields = fields
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()).into());
        Encoder::new(4096).encode(fields, &mut block);
        let mut head = ResponseHead::default();
        let result = head.read(is_trailers, |bytes, sink| {
            Decoder::new().decode(&block, 1000, bytes, |field, bytes| sink(field, bytes))
        });
        (head, result.unwrap())
    }

    #[test]
    fn heads_and_trailers_are_read() {
        let (head, result) = read(
            &[
                (":status", "206"),
                ("server", " x"),
                ("content-length", "12"),
                ("a!", ""),
            ],
            false,
        );
        assert_eq!(result, Ok(()));
        assert_eq!((head.status(), head.content_length()), (206, Some(12)));
        assert_eq!(head.value(KnownField::Server), Some(&b" x"[..]));
        assert_eq!(head.value(KnownField::Date), None);
        assert_eq!(head.fields().len(), 3);
        let (trailers, result) = read(&[("grpc-status", "0")], true);
        assert_eq!(
            (result, trailers.status(), trailers.fields().len()),
            (Ok(()), 0, 1)
        );
    }

    #[test]
    fn malformed_heads_have_their_fault() {
        let long = "x".repeat(1000);
        for (fields, fault) in [
            (&[("server", "x")][..], ResponseFault::NoStatus),
            (&[], ResponseFault::NoStatus),
            (&[(":status", "20")], ResponseFault::Status),
            (&[(":status", "2000")], ResponseFault::Status),
            (&[(":status", "2x0")], ResponseFault::Status),
            (&[(":status", "000")], ResponseFault::Status),
            (
                &[(":status", "200"), (":status", "200")],
                ResponseFault::SecondStatus,
            ),
            (&[("a", "b"), (":status", "200")], ResponseFault::NoStatus),
            (&[(":status", "200"), (":path", "/")], ResponseFault::Pseudo),
            (&[(":status", "200"), ("X-Own", "x")], ResponseFault::Name),
            (&[(":status", "200"), ("a b", "x")], ResponseFault::Name),
            (&[(":status", "200"), ("a", "x\ny")], ResponseFault::Value),
            (
                &[(":status", "200"), ("transfer-encoding", "chunked")],
                ResponseFault::OfConnection("transfer-encoding"),
            ),
            (
                &[(":status", "200"), ("content-length", "1x")],
                ResponseFault::ContentLength,
            ),
            (
                &[(":status", "200"), ("content-length", "")],
                ResponseFault::ContentLength,
            ),
            (
                &[
                    (":status", "200"),
                    ("content-length", "9223372036854775808"),
                ],
                ResponseFault::ContentLength,
            ),
            (
                &[
                    (":status", "200"),
                    ("content-length", "1"),
                    ("content-length", "1"),
                ],
                ResponseFault::ContentLength,
            ),
            (&[(":status", "200"), ("a", &long)], ResponseFault::TooLarge),
        ] {
            assert_eq!(read(fields, false).1, Err(fault), "{fields:?}");
        }
        assert_eq!(
            read(&[(":status", "200")], true).1,
            Err(ResponseFault::Pseudo)
        );
        let culprit = |fields| {
            let (head, _) = read(fields, false);
            let culprit = head.culprit();
            culprit.map(|(name, value)| [name, b"=", value].concat())
        };
        let fields = &[(":status", "200"), ("a", "b"), ("X-Own", "x"), ("c", "d")][..];
        assert_eq!(culprit(fields).as_deref(), Some(&b"X-Own=x"[..]));
        assert_eq!(culprit(&[(":status", "200"), ("a", "b")]), None);
    }
}
