//! The errors of a peer, by cause: each has an error code of RFC 9113, and a log message, which is
//! nginx's where nginx has one.

use std::fmt;

use super::hpack;
use super::response::ResponseFault;

/// Error codes: why a stream or a connection ends (RFC 9113, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// Not an error: a graceful end.
    NoError,
    /// The peer violates the protocol.
    ProtocolError,
    /// An internal error on our side.
    InternalError,
    /// The peer has sent more than the window allowed.
    FlowControlError,
    /// SETTINGS were not acknowledged in time.
    SettingsTimeout,
    /// A frame was received for a half-closed stream.
    StreamClosed,
    /// A frame has an invalid length.
    FrameSizeError,
    /// The request was not processed, and may be retried.
    RefusedStream,
    /// The stream is not wanted any more.
    Cancel,
    /// A header block could not be decoded, so that no later one can be.
    CompressionError,
    /// The connection of a CONNECT request was reset or closed abnormally.
    ConnectError,
    /// The peer causes excessive load.
    EnhanceYourCalm,
    /// TLS does not meet the requirements of RFC 9113, section 9.2.
    InadequateSecurity,
    /// The request must be sent over HTTP/1.1.
    Http11Required,
    /// An undefined code.
    Unknown(u32),
}

impl ErrorCode {
    /// The number of the error code.
    pub fn number(self) -> u32 {
        match self {
            ErrorCode::NoError => 0x0,
            ErrorCode::ProtocolError => 0x1,
            ErrorCode::InternalError => 0x2,
            ErrorCode::FlowControlError => 0x3,
            ErrorCode::SettingsTimeout => 0x4,
            ErrorCode::StreamClosed => 0x5,
            ErrorCode::FrameSizeError => 0x6,
            ErrorCode::RefusedStream => 0x7,
            ErrorCode::Cancel => 0x8,
            ErrorCode::CompressionError => 0x9,
            ErrorCode::ConnectError => 0xa,
            ErrorCode::EnhanceYourCalm => 0xb,
            ErrorCode::InadequateSecurity => 0xc,
            ErrorCode::Http11Required => 0xd,
            ErrorCode::Unknown(number) => number,
        }
    }

    /// The error code with this number.
    pub fn from_number(number: u32) -> ErrorCode {
        match number {
            0x0 => ErrorCode::NoError,
            0x1 => ErrorCode::ProtocolError,
            0x2 => ErrorCode::InternalError,
            0x3 => ErrorCode::FlowControlError,
            0x4 => ErrorCode::SettingsTimeout,
            0x5 => ErrorCode::StreamClosed,
            0x6 => ErrorCode::FrameSizeError,
            0x7 => ErrorCode::RefusedStream,
            0x8 => ErrorCode::Cancel,
            0x9 => ErrorCode::CompressionError,
            0xa => ErrorCode::ConnectError,
            0xb => ErrorCode::EnhanceYourCalm,
            0xc => ErrorCode::InadequateSecurity,
            0xd => ErrorCode::Http11Required,
            number => ErrorCode::Unknown(number),
        }
    }
}

/// An error that ends the whole connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The client's connection preface is invalid.
    Preface,
    /// The server's first frame is not SETTINGS.
    NoSettings,
    /// A frame exceeds the maximum size: its length.
    FrameTooLong(u32),
    /// A frame has a length that is invalid for its type: type and length.
    Length(&'static str, u32),
    /// The padding is longer than its frame: type, length and padding.
    Padding(&'static str, u32, u32),
    /// A frame of this type has an invalid stream identifier.
    Identifier(&'static str),
    /// HEADERS has an invalid stream identifier, such as one that was skipped: the identifier, and
    /// the last one.
    HeadersIdentifier(u32, u32),
    /// HEADERS for a closed stream.
    HeadersAfterEnd(u32),
    /// A stream depends on itself (RFC 7540, section 5.3.1).
    Dependency(&'static str, u32),
    /// Another frame between the frames of a header block.
    ContinuationExpected,
    /// CONTINUATION without a header block before it.
    UnexpectedContinuation,
    /// CONTINUATION with another stream identifier than its header block.
    ContinuationIdentifier,
    /// A header block with too many CONTINUATION frames.
    TooManyContinuations,
    /// The encoded header block exceeds the limit.
    BlockTooLong,
    /// A header block cannot be decoded.
    Compression(hpack::Error),
    /// A setting has an invalid value.
    Setting(&'static str, u32),
    /// A new initial window makes a stream's window too large.
    SettingOverflows(u32),
    /// A client sent PUSH_PROMISE, which only servers may.
    PushPromise,
    /// DATA exceeds the connection's window: the length and the window.
    ConnectionFlow(u32, u32),
    /// WINDOW_UPDATE with increment 0 for the connection.
    NoIncrement,
    /// WINDOW_UPDATE makes the connection's window too large: the increment and the window.
    WindowOverflow(u32, u32),
    /// A PRIORITY_UPDATE frame is invalid, or was sent by a server.
    PriorityUpdate,
    /// The peer exceeds a rate limit of [`meter`](super::meter): the kind of frames.
    TooMany(&'static str),
    /// Too many frames without effect.
    Flood,
}

impl Violation {
    /// The error code of the GOAWAY.
    pub fn code(self) -> ErrorCode {
        match self {
            Violation::FrameTooLong(_) | Violation::Length(..) => ErrorCode::FrameSizeError,
            // As in nginx: the last integer is incomplete.
            Violation::Compression(hpack::Error::IntegerTruncated) => ErrorCode::FrameSizeError,
            Violation::HeadersAfterEnd(_) => ErrorCode::StreamClosed,
            Violation::Compression(_) => ErrorCode::CompressionError,
            Violation::Setting("INITIAL_WINDOW_SIZE", _)
            | Violation::SettingOverflows(_)
            | Violation::ConnectionFlow(..)
            | Violation::WindowOverflow(..) => ErrorCode::FlowControlError,
            Violation::TooManyContinuations
            | Violation::BlockTooLong
            | Violation::TooMany(_)
            | Violation::Flood => ErrorCode::EnhanceYourCalm,
            _ => ErrorCode::ProtocolError,
        }
    }
}

impl fmt::Display for Violation {
    /// The log message, without the name of the peer in front.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Preface => write!(out, "sent an invalid connection preface"),
            Violation::NoSettings => write!(out, "sent no SETTINGS frame first"),
            Violation::FrameTooLong(length) => write!(out, "sent too large frame: {length}"),
            Violation::Length(kind, length) => {
                write!(out, "sent {kind} frame with incorrect length {length}")
            }
            Violation::Padding(kind, length, padding) => write!(
                out,
                "sent padded {kind} frame with incorrect length: {length}, padding: {padding}"
            ),
            Violation::Identifier(kind) => {
                write!(out, "sent {kind} frame with incorrect identifier")
            }
            Violation::HeadersIdentifier(stream, last) => write!(
                out,
                "sent HEADERS frame with incorrect identifier {stream}, the last was {last}"
            ),
            Violation::HeadersAfterEnd(stream) => {
                write!(out, "sent HEADERS frame for closed stream {stream}")
            }
            Violation::Dependency(kind, stream) => write!(
                out,
                "sent {kind} frame for stream {stream} with incorrect dependency"
            ),
            Violation::ContinuationExpected => write!(
                out,
                "sent inappropriate frame while CONTINUATION was expected"
            ),
            Violation::UnexpectedContinuation => write!(out, "sent unexpected CONTINUATION frame"),
            Violation::ContinuationIdentifier => {
                write!(out, "sent CONTINUATION frame with incorrect identifier")
            }
            Violation::TooManyContinuations => write!(out, "sent too many CONTINUATION frames"),
            Violation::BlockTooLong => write!(out, "sent too large header"),
            Violation::Compression(cause) => write!(out, "sent invalid header block: {cause}"),
            Violation::Setting(name, value) => {
                write!(
                    out,
                    "sent SETTINGS frame with incorrect {name} value {value}"
                )
            }
            Violation::SettingOverflows(value) => write!(
                out,
                "sent SETTINGS frame with INITIAL_WINDOW_SIZE value {value} that makes a window too large"
            ),
            Violation::PushPromise => write!(out, "sent PUSH_PROMISE frame"),
            Violation::ConnectionFlow(length, window) => write!(
                out,
                "violated connection flow control: received DATA frame length {length}, available window {window}"
            ),
            Violation::NoIncrement => write!(
                out,
                "sent WINDOW_UPDATE frame with incorrect window increment 0"
            ),
            Violation::WindowOverflow(increment, window) => write!(
                out,
                "violated connection flow control: received WINDOW_UPDATE frame with window increment {increment} not allowed for window {window}"
            ),
            Violation::PriorityUpdate => write!(out, "sent invalid PRIORITY_UPDATE frame"),
            Violation::TooMany(what) => write!(out, "sent too many {what}"),
            Violation::Flood => write!(out, "sent too many empty frames"),
        }
    }
}

/// An error that ends one stream, by a reset; the others continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFault {
    /// DATA or HEADERS on a half-closed or closed stream: the type and the stream.
    HalfClosed(&'static str, u32),
    /// DATA exceeds the stream's window: the stream, the length and the window.
    Flow(u32, u32, u32),
    /// WINDOW_UPDATE makes the stream's window too large: the stream, the increment and the window.
    WindowOverflow(u32, u32, i64),
    /// WINDOW_UPDATE with increment 0.
    NoIncrement(u32),
    /// A body is longer than its Content-Length or, from a client, of a different length.
    BodyLength(u32),
    /// Trailers without END_STREAM, or with a field that is not allowed in trailers.
    Trailers(u32),
    /// The limit of concurrent streams is exceeded.
    TooManyStreams(u32),
    /// A stream with a body was opened before the client acknowledged our SETTINGS.
    TooEarly(u32),
    /// A body is shorter than its Content-Length.
    BodyShort(u32),
    /// DATA before the head of a response.
    NoHead(u32),
    /// The head or the trailers of a response are malformed.
    Response(u32, ResponseFault),
}

impl StreamFault {
    /// The error code of the reset.
    pub fn code(self) -> ErrorCode {
        match self {
            StreamFault::HalfClosed(..) => ErrorCode::StreamClosed,
            StreamFault::Flow(..) | StreamFault::WindowOverflow(..) => ErrorCode::FlowControlError,
            StreamFault::TooManyStreams(_) | StreamFault::TooEarly(_) => ErrorCode::RefusedStream,
            _ => ErrorCode::ProtocolError,
        }
    }
}

impl fmt::Display for StreamFault {
    /// The log message, without the name of the peer in front.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamFault::HalfClosed(kind, stream) => {
                write!(out, "sent {kind} frame for half-closed stream {stream}")
            }
            StreamFault::Flow(stream, length, window) => write!(
                out,
                "violated flow control for stream {stream}: received DATA frame length {length}, available window {window}"
            ),
            StreamFault::WindowOverflow(stream, increment, window) => write!(
                out,
                "violated flow control for stream {stream}: received WINDOW_UPDATE frame with window increment {increment} not allowed for window {window}"
            ),
            StreamFault::NoIncrement(stream) => write!(
                out,
                "sent WINDOW_UPDATE frame for stream {stream} with incorrect window increment 0"
            ),
            StreamFault::BodyLength(stream) => write!(
                out,
                "sent a body for stream {stream} that is not as long as its Content-Length says"
            ),
            StreamFault::Trailers(stream) => {
                write!(out, "sent invalid trailers for stream {stream}")
            }
            StreamFault::TooManyStreams(_) => write!(out, "sent too many streams at once"),
            StreamFault::TooEarly(_) => {
                write!(
                    out,
                    "sent stream with data before settings were acknowledged"
                )
            }
            StreamFault::BodyShort(stream) => write!(
                out,
                "sent a body for stream {stream} that is shorter than its Content-Length says"
            ),
            StreamFault::NoHead(stream) => {
                write!(out, "sent a body for stream {stream} without a head")
            }
            StreamFault::Response(stream, fault) => {
                write!(out, "sent {fault} for stream {stream}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_numbers_of_the_rfc() {
        for number in 0..20 {
            assert_eq!(ErrorCode::from_number(number).number(), number);
        }
        assert_eq!(ErrorCode::from_number(0xb), ErrorCode::EnhanceYourCalm);
        assert_eq!(ErrorCode::from_number(0xe), ErrorCode::Unknown(0xe));
    }
}
