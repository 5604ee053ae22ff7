//! The log lines about request bodies that break off or are malformed.

use logs::network::TIMED_OUT;
use logs::{Errno, Level};

use crate::exchange::abort::Abort;

/// nginx's log text for the reason why a client's body broke off; `None` if nginx does not log it.
/// `is_http1`: whether the request uses HTTP/1.
pub fn body_fault(abort: &Abort, is_http1: bool) -> Option<(Level, String)> {
    Some(match abort {
        // Only malformed chunks of HTTP/1 are logged as an error.
        Abort::BadBody(text) if is_http1 => (Level::Error, (*text).to_owned()),
        Abort::BadBody(text) => (Level::Info, (*text).to_owned()),
        Abort::BodyTooLarge { received, chunk } => {
            let length = if is_http1 {
                format!("{received}+{chunk}")
            } else {
                received.saturating_add(*chunk).to_string()
            };
            let text = format!("client intended to send too large chunked body: {length} bytes");
            (Level::Error, text)
        }
        // nginx logs this timeout for HTTP/2 only.
        Abort::BodyTimedOut if is_http1 => return None,
        Abort::BodyTimedOut => (Level::Info, format!("client timed out {TIMED_OUT}")),
        Abort::Closed(error) => match error.raw_os_error() {
            Some(_) => (Level::Info, format!("recv() failed {}", Errno(error))),
            None => {
                let text = "client prematurely closed connection";
                (Level::Info, text.to_owned())
            }
        },
        _ => (Level::Info, "client broke off its body".to_owned()),
    })
}
