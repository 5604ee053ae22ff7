//! Why a request's body is not sent to its end.

use http::exchange::abort::Abort;
use http::exchange::upload::Upload;
use http::response::source::DeferredLog;
use logs::Level;

use crate::activity::SENDING;

/// What the log says of a body that is said to be text in base64, which only gRPC-Web has.
pub const NOT_BASE64: &str = "client sent a call of gRPC-Web that is not base64";

/// Why a body is not sent to its end.
pub enum Stopped {
    /// By the client, on a stream of HTTP/2.
    Stream(Abort),
    /// By the client, on a connection of HTTP/1.
    Connection(Abort),
    /// The peer has taken nothing for `*_send_timeout`.
    TimedOut,
    /// The file cannot be read; what there is to log.
    File(String),
    /// The value is not valid base64.
    NotBase64,
}

impl Stopped {
    /// What a client's body was ended by.
    pub(super) fn by(client: &Upload, abort: Abort) -> Stopped {
        match client {
            Upload::H1(_) => Stopped::Connection(abort),
            Upload::H2(_) => Stopped::Stream(abort),
        }
    }

    /// The status that the request would have been answered with, and what there is to log; `None`
    /// where what sends to the client finds out that it has left.
    pub(super) fn told(self) -> Option<(u16, Option<DeferredLog>)> {
        let (status, fault) = match self {
            Stopped::Stream(Abort::Closed(_)) => return None,
            Stopped::Stream(abort) => (
                status_of(&abort),
                http::logging::body_fault::body_fault(&abort, false),
            ),
            Stopped::Connection(abort) => (
                status_of(&abort),
                http::logging::body_fault::body_fault(&abort, true),
            ),
            Stopped::TimedOut => {
                let text = "upstream timed out (110: Connection timed out)".to_owned();
                (504, Some((Level::Error, text)))
            }
            Stopped::File(text) => (500, Some((Level::Crit, text))),
            Stopped::NotBase64 => (400, Some((Level::Info, NOT_BASE64.to_owned()))),
        };
        let told = fault.map(|(level, text)| DeferredLog::new(level, format!("{text} {SENDING}")));
        Some((status, told))
    }
}

/// The status of a request whose body the client has broken off so.
fn status_of(abort: &Abort) -> u16 {
    match abort {
        Abort::BodyTimedOut => 408,
        Abort::BodyTooLarge { .. } => 413,
        _ => 400,
    }
}
