//! nginx's words for what peers do wrong. Where it has none they say who and what all the same.

use proto::h2::response::ResponseFault;
use proto::h2::{StreamFault, Violation};

use super::flow::End;

/// What there is to log of a head that is not within `*_buffer_size`.
pub(super) const TOO_LARGE: &str = "upstream sent too large http2 header";

/// What there is to log of a stream that has ended so before its answer was whole.
pub(super) fn text(end: End) -> String {
    match end {
        End::Whole => "upstream prematurely closed stream".to_owned(),
        End::Reset(_, Some(fault)) => of_stream(fault),
        End::Reset(code, None) => {
            format!("upstream rejected request with error {}", code.number())
        }
        End::NotServed(code) => format!("upstream sent goaway with error {}", code.number()),
        End::Violated(violation) => of_connection(violation),
        End::Lost(..) => "upstream prematurely closed connection".to_owned(),
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
        StreamFault::Response(_, fault) => match fault {
            ResponseFault::Status => "upstream sent no :status header".to_owned(),
            ResponseFault::TooLarge => TOO_LARGE.to_owned(),
            ResponseFault::Interim => "upstream sent unexpected :status".to_owned(),
            fault => format!("upstream sent {fault}"),
        },
        fault => format!("upstream {fault}"),
    }
}

fn of_connection(violation: Violation) -> String {
    match violation {
        Violation::FrameTooLong(length) => {
            format!("upstream sent too large http2 frame: {length}")
        }
        Violation::PushPromise => "upstream sent unexpected push promise frame".to_owned(),
        Violation::ContinuationExpected
        | Violation::UnexpectedContinuation
        | Violation::ContinuationIdentifier => "upstream sent unexpected http2 frame: 9".to_owned(),
        Violation::BlockTooLong | Violation::TooManyContinuations => TOO_LARGE.to_owned(),
        Violation::ConnectionFlow(length, window) => format!(
            "upstream violated connection flow control, received {length} data frame with window {window}"
        ),
        Violation::NoIncrement => "upstream sent zero window update".to_owned(),
        Violation::WindowOverflow(..) => "upstream sent too large window update".to_owned(),
        Violation::Setting("INITIAL_WINDOW_SIZE", value) | Violation::SettingOverflows(value) => {
            format!("upstream sent settings frame with too large initial window size: {value}")
        }
        Violation::HeadersIdentifier(stream, _) | Violation::HeadersAfterEnd(stream) => {
            format!("upstream sent frame for unknown stream {stream}")
        }
        Violation::Padding(_, length, padding) => {
            format!("upstream sent http2 frame with too long padding: {padding} in frame {length}")
        }
        Violation::Length(kind, length) => {
            let kind = kind.to_ascii_lowercase().replace('_', " ");
            format!("upstream sent {kind} frame with invalid length: {length}")
        }
        violation => format!("upstream {violation}"),
    }
}
