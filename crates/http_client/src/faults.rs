//! Log texts for faults of peers: nginx's, if it has one for the fault.

use logs::Printable;
use proto::h2::response::{ResponseFault, ResponseHead};
use proto::h2::{StreamFault, Violation, hpack};

use crate::stream_end::StreamEnd;

/// The number of interim responses that may precede a response.
pub const INFORMATIONAL_MAX: u32 = 100;

/// The log text for more than [`INFORMATIONAL_MAX`] interim responses.
pub const TOO_MANY_INFORMATIONAL: &str = "upstream sent too many informational responses";

/// The log text for a head that exceeds `*_buffer_size`.
pub const TOO_LARGE: &str = "upstream sent too large http2 header";

/// The log line for a stream that has ended before its response was complete.
pub(crate) fn text(end: StreamEnd) -> String {
    match end {
        StreamEnd::Whole => "upstream prematurely closed stream".to_owned(),
        StreamEnd::Reset(_, Some(fault)) => of_stream(fault),
        StreamEnd::Reset(code, None) => {
            format!("upstream rejected request with error {}", code.number())
        }
        StreamEnd::NotServed(code) => format!("upstream sent goaway with error {}", code.number()),
        StreamEnd::Violated(violation) => of_connection(violation),
        StreamEnd::TooManyInterim => TOO_MANY_INFORMATIONAL.to_owned(),
        StreamEnd::Lost(..) => "upstream prematurely closed connection".to_owned(),
    }
}

fn of_stream(fault: StreamFault) -> String {
    match fault {
        StreamFault::Flow(_, length, window) => format!(
            "upstream violated stream flow control, received {length} data frame with window {window}"
        ),
        StreamFault::WindowOverflow(..) => "upstream sent too large window update".to_owned(),
        StreamFault::NoIncrement(_) => "upstream sent zero window update".to_owned(),
        StreamFault::BodyLength(_) => {
            "upstream sent response body larger than indicated content length".to_owned()
        }
        StreamFault::BodyShort(_) => "upstream prematurely closed stream".to_owned(),
        StreamFault::Trailers(_) => "upstream sent trailer without end stream flag".to_owned(),
        StreamFault::NoHead(_) => "upstream sent unexpected http2 frame: 0".to_owned(),
        StreamFault::HalfClosed(_, stream) => {
            format!("upstream sent frame for closed stream {stream}")
        }
        StreamFault::Response(_, fault) => format!("upstream sent {fault}"),
        fault => format!("upstream {fault}"),
    }
}

/// The log line for a malformed head or malformed trailers. Names the faulty field, as far as the
/// field has been parsed.
pub(crate) fn of_head(fault: ResponseFault, head: &ResponseHead, is_trailers: bool) -> String {
    let (name, value) = head.culprit().unwrap_or_default();
    let is_number = value.len() == 3 && value.iter().all(u8::is_ascii_digit);
    let field = [name, b": ", value].concat();
    let (field, value) = (Printable(&field), Printable(value));
    match fault {
        ResponseFault::NoStatus => "upstream sent no :status header".to_owned(),
        ResponseFault::SecondStatus => "upstream sent duplicate :status header".to_owned(),
        ResponseFault::Status if is_number => {
            format!("upstream sent unexpected :status \"{value}\"")
        }
        ResponseFault::Status => format!("upstream sent invalid :status \"{value}\""),
        ResponseFault::Interim if head.status() == 101 => {
            "upstream sent unexpected :status \"101\"".to_owned()
        }
        ResponseFault::Interim => "upstream prematurely closed stream".to_owned(),
        ResponseFault::Pseudo if is_trailers => {
            format!("upstream sent invalid trailer \"{field}\"")
        }
        ResponseFault::Pseudo => format!("upstream sent invalid header \"{field}\""),
        ResponseFault::Name if name.is_empty() => {
            "upstream sent zero http2 header name length".to_owned()
        }
        ResponseFault::Name | ResponseFault::Value | ResponseFault::OfConnection(_) => {
            let what = if is_trailers { "trailer" } else { "header" };
            format!("upstream sent invalid {what}: \"{field}\"")
        }
        ResponseFault::ContentLength => match head.content_length() {
            Some(length) => format!(
                "upstream sent duplicate header line: \"{field}\", previous value: \"content-length: {length}\""
            ),
            None => format!("upstream sent invalid \"Content-Length\" header: \"{field}\""),
        },
        ResponseFault::TooLarge => TOO_LARGE.to_owned(),
    }
}

fn of_connection(violation: Violation) -> String {
    match violation {
        Violation::FrameTooLong(length) => {
            format!("upstream sent too large http2 frame: {length}")
        }
        Violation::PushPromise => "upstream sent unexpected push promise frame".to_owned(),
        Violation::UnexpectedContinuation => "upstream sent unexpected http2 frame: 9".to_owned(),
        Violation::ContinuationExpected => {
            "upstream sent unexpected http2 frame within a header block".to_owned()
        }
        Violation::BlockTooLong | Violation::TooManyContinuations => TOO_LARGE.to_owned(),
        Violation::Compression(error) => of_compression(error),
        Violation::ConnectionFlow(length, window) => format!(
            "upstream violated connection flow control, received {length} data frame with window {window}"
        ),
        Violation::NoIncrement => "upstream sent zero window update".to_owned(),
        Violation::WindowOverflow(..) => "upstream sent too large window update".to_owned(),
        Violation::Setting("INITIAL_WINDOW_SIZE", value) | Violation::SettingOverflows(value) => {
            format!("upstream sent settings frame with too large initial window size: {value}")
        }
        Violation::HeadersIdentifier(stream, _) => {
            format!("upstream sent frame for unknown stream {stream}")
        }
        Violation::HeadersAfterEnd(stream) => {
            format!("upstream sent frame for closed stream {stream}")
        }
        Violation::Identifier("DATA") => "upstream sent data frame for unknown stream".to_owned(),
        Violation::Identifier(kind @ ("GOAWAY" | "PING" | "SETTINGS")) => {
            let kind = kind.to_ascii_lowercase();
            format!("upstream sent {kind} frame with non-zero stream id")
        }
        Violation::Identifier(_) | Violation::ContinuationIdentifier => {
            "upstream sent frame for unknown stream".to_owned()
        }
        // nginx counts the bytes after the padding's length field.
        Violation::Padding(_, length, padding) => {
            let rest = length.saturating_sub(1);
            format!("upstream sent http2 frame with too long padding: {padding} in frame {rest}")
        }
        Violation::Length("padded DATA", 0) => "upstream sent too short http2 frame".to_owned(),
        Violation::Length(kind, length) => {
            let kind = kind.to_ascii_lowercase().replace('_', " ");
            format!("upstream sent {kind} frame with invalid length: {length}")
        }
        Violation::TooMany(what) => format!("upstream sent too many {}", what.to_ascii_lowercase()),
        violation => format!("upstream {violation}"),
    }
}

fn of_compression(error: hpack::Error) -> String {
    use hpack::Error;
    match error {
        Error::Truncated | Error::IntegerTruncated => "upstream sent truncated http2 header",
        Error::IndexZero => "upstream sent invalid http2 table index: 0",
        Error::IndexOutOfBound => "upstream sent invalid http2 table index",
        Error::SizeUpdateTooLarge => "upstream sent invalid http2 dynamic table size update",
        Error::HuffmanEnd | Error::HuffmanPaddingTooLong | Error::HuffmanPadding => {
            "upstream sent invalid encoded header"
        }
        error => return format!("upstream sent invalid http2 header block: {error}"),
    }
    .to_owned()
}
