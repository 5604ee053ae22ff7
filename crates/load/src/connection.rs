//! The byte stream to a server: the engine's stream, with or without TLS.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use engine::Buffer;
use engine::net::Stream;

use crate::tally::RequestError;
use crate::tls::{Session, SessionProgress};

/// A connection to a server, with or without TLS.
pub(crate) struct Connection {
    stream: Stream,
    session: Option<RefCell<Session>>,
}

impl Connection {
    pub(crate) fn new(stream: Stream, session: Option<Session>) -> Connection {
        Connection {
            stream,
            session: session.map(RefCell::new),
        }
    }

    /// The underlying stream, to receive from.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Queues bytes for sending, encrypted if there is a session. If encryption fails, the next
    /// receive returns an error.
    pub(crate) fn push(&self, scratch: &mut BytesMut, bytes: &Bytes) {
        match &self.session {
            None => self.stream.push(bytes.clone()),
            Some(session) => {
                if session
                    .borrow_mut()
                    .seal(&self.stream, scratch, bytes)
                    .is_err()
                {
                    self.stream.shutdown_read();
                }
            }
        }
    }

    /// Starts sending the queued bytes.
    pub(crate) fn start_send(&self) {
        self.stream.start_send();
    }

    /// Passes the contents of a received buffer to `take`, after decryption and possibly in several
    /// pieces.
    ///
    /// # Errors
    /// [`RequestError::TlsBroken`].
    pub(crate) fn open(
        &self,
        buffer: Buffer,
        mut take: impl FnMut(&[u8]),
    ) -> Result<SessionProgress, RequestError> {
        let Some(session) = &self.session else {
            take(&buffer);
            return Ok(SessionProgress::Open);
        };
        let opened = session.borrow_mut().open(&self.stream, buffer, take);
        opened.map_err(|_| RequestError::TlsBroken)
    }

    /// Application data that arrived together with the handshake, before the first request.
    pub(crate) fn take_early(&self) -> Vec<u8> {
        let early = |session: &RefCell<Session>| session.borrow_mut().take_early();
        self.session.as_ref().map(early).unwrap_or_default()
    }

    /// Whether the end of the connection may delimit a response. Over TLS this requires a
    /// close_notify; without TLS it is always allowed.
    pub(crate) fn may_end(&self) -> bool {
        let ended = |session: &RefCell<Session>| session.borrow().has_ended();
        self.session.as_ref().is_none_or(ended)
    }

    /// Waits until unrequested bytes arrive or the connection ends. Returns whether bytes arrived.
    pub(crate) async fn surplus(&self) -> bool {
        while let Ok(buffer) = self.stream.recv_idle(None).await
            && !buffer.is_empty()
        {
            let mut came = false;
            match self.open(buffer, |bytes| came |= !bytes.is_empty()) {
                _ if came => return true,
                Ok(SessionProgress::Open) => self.start_send(),
                Ok(SessionProgress::Ended) | Err(_) => return false,
            }
        }
        false
    }

    /// Closes the connection. Over TLS it first sends a close_notify, unless the server has closed
    /// the connection already.
    pub(crate) fn close(self: Rc<Connection>) {
        // Another reference exists if a queued request has not been sent yet; the request is then
        // dropped.
        let Some(Connection {
            stream,
            session: Some(session),
        }) = Rc::into_inner(self)
        else {
            return;
        };
        if let Some(alert) = session.into_inner().closing() {
            stream.push(alert);
            stream.finish();
        }
    }
}
