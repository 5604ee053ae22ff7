//! The rest of a request's body, which is sent while the response is received.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http::exchange::upload::Upload;
use http::response::source::DeferredLog;
use transport::Transport;

use super::http2::upload::StreamUpload;
use super::stopped::UploadError;
use crate::request_framing::{BACKLOG_MAX, BodyFraming};

/// Receives the status with which the request would have ended, when its body is broken off.
pub type RefusedWith = Rc<Cell<Option<u16>>>;

/// How the upload of a body has ended.
pub(super) enum Uploaded {
    /// The whole body has been sent, or the HTTP/2 stream has ended before.
    Whole,
    /// The peer has closed the connection, so the rest of the body is not sent. The reader of the
    /// response reports the end.
    Ended,
    /// The client has left, so the rest of the body is missing. The sender of the response reports
    /// the end.
    Left,
    /// The body was broken off, which breaks off the response; with a log line, if there is one.
    Broken(Option<DeferredLog>),
}

/// The rest of a body that is sent while the response is read. `poll` continues to send.
pub struct RestOfBody {
    /// The connection or stream on which the body is sent.
    way: UploadPath,
    /// Receives the status with which the request would have ended.
    refused: RefusedWith,
}

enum UploadPath {
    /// On an unshared connection.
    Connection {
        client: Upload,
        framing: &'static dyn BodyFraming,
        sent: u64,
    },
    /// On a stream of a shared connection (HTTP/2).
    Stream(StreamUpload),
}

impl RestOfBody {
    /// Continues to send the client's body on a connection, with this framing.
    pub(super) fn of_client(client: Upload, framing: &'static dyn BodyFraming) -> RestOfBody {
        RestOfBody::by(UploadPath::Connection {
            client,
            framing,
            sent: 0,
        })
    }

    /// Continues an upload on a stream.
    pub(super) fn on_stream(upload: StreamUpload) -> RestOfBody {
        RestOfBody::by(UploadPath::Stream(upload))
    }

    fn by(way: UploadPath) -> RestOfBody {
        RestOfBody {
            way,
            refused: RefusedWith::default(),
        }
    }

    /// The cell that receives the status with which the request would have ended.
    pub(super) fn refused(&self) -> RefusedWith {
        Rc::clone(&self.refused)
    }

    /// Whether the body is still being received from the client.
    pub(super) fn is_of_client(&self) -> bool {
        match &self.way {
            UploadPath::Connection { .. } => true,
            UploadPath::Stream(upload) => upload.is_of_client(),
        }
    }

    /// Bytes that have been queued for the peer.
    pub(super) fn sent(&self) -> u64 {
        match &self.way {
            UploadPath::Connection { sent, .. } => *sent,
            UploadPath::Stream(upload) => upload.sent(),
        }
    }

    /// Continues to send. `stream` is the connection, for a body that is not on an HTTP/2 stream.
    pub(super) fn poll(&mut self, stream: &Transport, context: &mut Context<'_>) -> Poll<Uploaded> {
        let ended = match &mut self.way {
            UploadPath::Connection {
                client,
                framing,
                sent,
            } => ready!(poll_forward(client, *framing, sent, stream, context)),
            UploadPath::Stream(upload) => ready!(upload.poll(context)).map(|()| true),
        };
        Poll::Ready(match ended {
            Ok(true) => Uploaded::Whole,
            Ok(false) => Uploaded::Ended,
            Err(stopped) => match stopped.deferred_log() {
                None => Uploaded::Left,
                Some((status, deferred_log)) => {
                    self.refused.set(Some(status));
                    Uploaded::Broken(deferred_log)
                }
            },
        })
    }
}

/// Passes received bytes on as fast as the peer reads them. Ready when the body has ended.
fn poll_forward(
    client: &mut Upload,
    framing: &dyn BodyFraming,
    sent: &mut u64,
    stream: &Transport,
    context: &mut Context<'_>,
) -> Poll<Result<bool, UploadError>> {
    loop {
        if stream.backlog() > BACKLOG_MAX {
            match ready!(stream.poll_drained(BACKLOG_MAX, context)) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    return Poll::Ready(Err(UploadError::TimedOut));
                }
                Err(_) => return Poll::Ready(Ok(false)),
                Ok(()) => {}
            }
        }
        let part = match ready!(client.poll_next(context)) {
            Ok(part) => part,
            Err(abort) => return Poll::Ready(Err(UploadError::by(client, abort))),
        };
        let ends = part.is_none() || client.is_read();
        if let Some(part) = part {
            *sent += framing.push(stream, &[part]);
        }
        if ends {
            *sent += framing.end(stream);
        }
        stream.start_send();
        if ends {
            return Poll::Ready(Ok(true));
        }
    }
}
