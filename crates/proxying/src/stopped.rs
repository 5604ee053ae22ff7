//! Why a request's body is not sent completely.

use http::exchange::abort::Abort;
use http::exchange::upload::Upload;
use http::response::source::DeferredLog;
use logs::Level;

use crate::activity::SENDING;

/// The log text about a body that is declared as base64 text, which only gRPC-Web has.
pub const NOT_BASE64: &str = "client sent a call of gRPC-Web that is not base64";

/// Why a body is not sent completely.
pub enum UploadError {
    /// Broken off by an HTTP/2 client.
    Stream(Abort),
    /// Broken off by an HTTP/1 client.
    Connection(Abort),
    /// The peer has read nothing for `*_send_timeout`.
    TimedOut,
    /// The file cannot be read; the text for the log.
    File(String),
    /// The value is not valid base64.
    NotBase64,
}

impl UploadError {
    /// The reason for a client's body that was broken off.
    pub(super) fn by(client: &Upload, abort: Abort) -> UploadError {
        match client {
            Upload::H1(_) => UploadError::Connection(abort),
            Upload::H2(_) => UploadError::Stream(abort),
        }
    }

    /// The status that the request would have ended with, and a line for the log; `None` if the
    /// sender of the response notices that the client has left.
    pub(super) fn deferred_log(self) -> Option<(u16, Option<DeferredLog>)> {
        let (status, fault) = match self {
            UploadError::Stream(Abort::Closed(_)) => return None,
            UploadError::Stream(abort) => (
                status_of(&abort),
                http::logging::body_fault::body_fault(&abort, false),
            ),
            UploadError::Connection(abort) => (
                status_of(&abort),
                http::logging::body_fault::body_fault(&abort, true),
            ),
            UploadError::TimedOut => {
                let text = "upstream timed out (110: Connection timed out)".to_owned();
                (504, Some((Level::Error, text)))
            }
            UploadError::File(text) => (500, Some((Level::Crit, text))),
            UploadError::NotBase64 => (400, Some((Level::Info, NOT_BASE64.to_owned()))),
        };
        let deferred_log =
            fault.map(|(level, text)| DeferredLog::new(level, format!("{text} {SENDING}")));
        Some((status, deferred_log))
    }
}

/// The status of a request whose body was broken off for this reason.
fn status_of(abort: &Abort) -> u16 {
    match abort {
        Abort::BodyTimedOut => 408,
        Abort::BodyTooLarge { .. } => 413,
        _ => 400,
    }
}
