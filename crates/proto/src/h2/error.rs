//! What the other end of a connection may do wrong, by cause: the error code that RFC 9113 names
//! for it, and the words for the log, which are nginx's where it has some.

use std::fmt;

use super::hpack;
use super::response::ResponseFault;

/// Why a stream or a connection ends (RFC 9113, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// It ends as it should.
    NoError,
    /// The other end breaks the protocol.
    ProtocolError,
    /// Something of ours has failed.
    InternalError,
    /// The other end has sent more than it had credit for.
    FlowControlError,
    /// Settings were not answered in time.
    SettingsTimeout,
    /// A frame came for a stream whose other half had ended.
    StreamClosed,
    /// A frame has a length that it cannot have.
    FrameSizeError,
    /// Nothing was done for the request: it may be sent again.
    RefusedStream,
    /// The stream is not wanted any more.
    Cancel,
    /// A header block cannot be decoded, so that no later one can.
    CompressionError,
    /// The connection of a CONNECT has broken.
    ConnectError,
    /// The other end does too much of what costs us more than it.
    EnhanceYourCalm,
    /// TLS does not protect as section 9.2 asks.
    InadequateSecurity,
    /// The request is to be sent by HTTP/1.1.
    Http11Required,
    /// A number that has no meaning (yet).
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

    /// The code of a number.
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

/// What ends the whole connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// What came first is no preface.
    Preface,
    /// The server's first frame is not SETTINGS.
    NoSettings,
    /// A frame is longer than we take: its length.
    FrameTooLong(u32),
    /// A frame cannot have this length: its kind and length.
    Length(&'static str, u32),
    /// A padded frame is shorter than its padding: its kind, length and padding.
    Padding(&'static str, u32, u32),
    /// A frame of this kind cannot be for that stream, or for none.
    Identifier(&'static str),
    /// A request's stream has a number that was used already, or that the other end may not use:
    /// the number, and the last one.
    HeadersIdentifier(u32, u32),
    /// HEADERS for a stream that has ended.
    HeadersAfterEnd(u32),
    /// A stream depends on itself (RFC 7540, section 5.3.1).
    Dependency(&'static str, u32),
    /// Something else came within a header block.
    ContinuationExpected,
    /// CONTINUATION where no header block is open.
    UnexpectedContinuation,
    /// CONTINUATION of another stream than the open header block's.
    ContinuationIdentifier,
    /// A header block takes more frames than anything needs.
    TooManyContinuations,
    /// A header block is longer, as it comes, than any that could be served.
    BlockTooLong,
    /// A header block cannot be decoded.
    Compression(hpack::Error),
    /// A setting has a value that it cannot have.
    Setting(&'static str, u32),
    /// A new initial window makes one of a stream too large.
    SettingOverflows(u32),
    /// A client sent PUSH_PROMISE, which only servers may.
    PushPromise,
    /// More bytes of DATA than there was credit for on the connection: the length and the credit.
    ConnectionFlow(u32, u32),
    /// Credit of no bytes for the connection.
    NoIncrement,
    /// More credit for the connection than a window holds: the increment and the window.
    WindowOverflow(u32, u32),
    /// The value of a PRIORITY_UPDATE cannot be read, or is too long.
    PriorityUpdate,
    /// More frames of a kind in one second than there may be: they cost us more than the other end.
    TooMany(&'static str),
    /// Frames with nothing in them.
    Flood,
}

impl Violation {
    /// The code of the GOAWAY.
    pub fn code(self) -> ErrorCode {
        match self {
            Violation::FrameTooLong(_) | Violation::Length(..) => ErrorCode::FrameSizeError,
            // As in nginx: what the last number says is not there.
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
    /// The words for the log, which begin with what the other end is called.
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

/// What ends one stream, by a reset; the others go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFault {
    /// DATA or HEADERS behind the end of the other end's half: the kind and the stream.
    HalfClosed(&'static str, u32),
    /// More bytes of DATA than there was credit for: the stream, the length and the credit.
    Flow(u32, u32, u32),
    /// More credit than a window holds: the stream, the increment and the window.
    WindowOverflow(u32, u32, i64),
    /// Credit of no bytes.
    NoIncrement(u32),
    /// A body is not as long as its Content-Length says.
    BodyLength(u32),
    /// Trailers that do not end the stream, or hold what no trailers may.
    Trailers(u32),
    /// More streams at once than we serve.
    TooManyStreams(u32),
    /// A stream with a body that begins before our settings have been heard.
    TooEarly(u32),
    /// A body ends before it is as long as its Content-Length says.
    BodyShort(u32),
    /// A response's body before its head.
    NoHead(u32),
    /// A response's head, or its trailers, are malformed.
    Response(u32, ResponseFault),
}

impl StreamFault {
    /// The code of the reset.
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
    /// The words for the log, which begin with what the other end is called.
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
