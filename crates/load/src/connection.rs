//! A connection to a server as bytes: the engine's stream, in the clear or through TLS.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use engine::Buffer;
use engine::net::Stream;

use crate::tally::RequestError;
use crate::tls::{Session, SessionProgress};

/// A connection to a server, in the clear or through TLS.
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

    /// The stream underneath, to receive from.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Appends to what is to be sent. Where a session cannot go on, the next receive tells.
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

    /// Gives the kernel what was pushed.
    pub(crate) fn start_send(&self) {
        self.stream.start_send();
    }

    /// Gives what a received buffer holds to `take`, in pieces.
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

    /// What came with the handshake, before anything was asked.
    pub(crate) fn take_early(&self) -> Vec<u8> {
        let early = |session: &RefCell<Session>| session.borrow_mut().take_early();
        self.session.as_ref().map(early).unwrap_or_default()
    }

    /// Whether the server may end the connection now: over TLS it has to say so first
    /// (close_notify), in the clear it cannot.
    pub(crate) fn may_end(&self) -> bool {
        let ended = |session: &RefCell<Session>| session.borrow().has_ended();
        self.session.as_ref().is_none_or(ended)
    }

    /// Waits until something comes that no request has asked for, or the connection ends: whether
    /// something came.
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

    /// Ends the connection; through TLS the server is told that nothing more follows, unless it was
    /// first to say so.
    pub(crate) fn close(self: Rc<Connection>) {
        // It is someone else's too where a request is still to leave at the end of this turn: then
        // it is given up.
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
