//! The reasons for which a request's body is not sent completely.

use http::exchange::abort::Abort;
use http::exchange::upload::Upload;
use http::response::source::DeferredLog;
use logs::Level;

use crate::activity::SENDING;

/// The log text about an invalid body that is declared as base64 text, as only gRPC-Web does.
pub const NOT_BASE64: &str = "client sent a call of gRPC-Web that is not base64";

/// Why a request's body is not sent completely.
pub enum UploadError {
    /// An HTTP/2 client has broken off the body.
    Stream(Abort),
    /// An HTTP/1 client has broken off the body.
    Connection(Abort),
    /// The peer has read nothing for `*_send_timeout`.
    TimedOut,
    /// The temporary file of the body cannot be read; the log text.
    File(String),
    /// The body is not valid base64.
    NotBase64,
}

impl UploadError {
    /// The reason if this client has broken off the body.
    pub(super) fn by(client: &Upload, abort: Abort) -> UploadError {
        match client {
            Upload::H1(_) => UploadError::Connection(abort),
            Upload::H2(_) => UploadError::Stream(abort),
        }
    }

    /// The status with which the request would have ended, and a line for the log. `None` if the
    /// client has left, which the sender of the response notices.
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
