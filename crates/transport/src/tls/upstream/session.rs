//! The TLS session of one connection to an upstream: records in and out.
//!
//! Pushed data is encrypted at once. As with nginx, the end of the connection counts as the end of
//! the data, with or without `close_notify`: HTTP frames its own messages.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, BufRead, Write};
use std::sync::Arc;

use bytes::Bytes;
use engine::Buffer;
use engine::net::Stream;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection};

/// The TLS session of a connection to an upstream: see the module's description.
pub struct ClientSession {
    inner: RefCell<Inner>,
    /// Keeps the configuration alive, so that its address in memory is not reused: shared
    /// connections are told apart by this address.
    _config: Arc<ClientConfig>,
}

struct Inner {
    tls: ClientConnection,
    /// Decrypted data that has not been taken yet.
    received: VecDeque<Buffer>,
    /// Whether the upstream has sent `close_notify` or closed the connection.
    ended: bool,
    /// Why the session cannot continue.
    failure: Option<rustls::Error>,
}

impl ClientSession {
    /// A new session with these settings.
    ///
    /// # Errors
    /// rustls's error for an invalid configuration.
    pub fn new(
        config: &Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<ClientSession, rustls::Error> {
        let mut tls = ClientConnection::new(Arc::clone(config), name)?;
        tls.set_buffer_limit(None); // callers limit the stream's backlog
        Ok(ClientSession {
            inner: RefCell::new(Inner {
                tls,
                received: VecDeque::new(),
                ended: false,
                failure: None,
            }),
            _config: Arc::clone(config),
        })
    }

    /// Sends the ClientHello.
    pub fn begin(&self, stream: &Stream) {
        self.inner.borrow_mut().flush(stream);
        stream.start_send();
    }

    /// Whether the handshake is in progress.
    pub fn is_handshaking(&self) -> bool {
        self.inner.borrow().tls.is_handshaking()
    }

    /// The upstream's own certificate, once it has been received.
    pub fn certificate(&self) -> Option<CertificateDer<'static>> {
        let inner = self.inner.borrow();
        let chain = inner.tls.peer_certificates()?;
        Some(chain.first()?.clone().into_owned())
    }

    /// Why the session cannot continue.
    pub fn failure(&self) -> Option<rustls::Error> {
        self.inner.borrow().failure.clone()
    }

    /// The next received data: an empty buffer at the end, an error if the session failed; `None`
    /// if more must be received first.
    pub fn take_received(&self) -> Option<io::Result<Buffer>> {
        let inner = &mut *self.inner.borrow_mut();
        if let Some(buffer) = inner.received.pop_front() {
            return Some(Ok(buffer));
        }
        if let Some(failure) = inner.failure.clone() {
            return Some(Err(io::Error::new(io::ErrorKind::InvalidData, failure)));
        }
        inner.ended.then(|| Ok(Buffer::empty()))
    }

    /// Processes data from the socket, and sends replies. An empty buffer means that the upstream
    /// has closed the connection.
    pub fn feed(&self, stream: &Stream, bytes: &[u8]) {
        let inner = &mut *self.inner.borrow_mut();
        if bytes.is_empty() {
            inner.ended = true;
            return;
        }
        inner.take_in(bytes);
        inner.flush(stream);
        stream.start_send();
    }

    /// Encrypts bytes and pushes them to the stream, which does not start to send yet.
    pub fn push(&self, stream: &Stream, bytes: &Bytes) {
        let inner = &mut *self.inner.borrow_mut();
        // The writer has no limit, so it accepts all bytes.
        let _ = inner.tls.writer().write_all(bytes);
        inner.flush(stream);
    }

    /// Sends `close_notify`.
    pub fn close(&self, stream: &Stream) {
        let inner = &mut *self.inner.borrow_mut();
        inner.tls.send_close_notify();
        inner.flush(stream);
    }
}

impl Inner {
    fn take_in(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.failure.is_none() && !self.ended {
            if !matches!(self.tls.read_tls(&mut bytes), Ok(1..)) {
                return; // nothing that follows a closing alert counts
            }
            match self.tls.process_new_packets() {
                Ok(state) => self.ended |= state.peer_has_closed(),
                Err(error) => self.failure = Some(error),
            }
            self.open();
        }
    }

    /// Takes decrypted data from rustls.
    fn open(&mut self) {
        let mut reader = self.tls.reader();
        while let Ok(opened) = reader.fill_buf()
            && !opened.is_empty()
        {
            let length = opened.len();
            self.received.push_back(Buffer::copy_of(opened));
            reader.consume(length);
        }
    }

    /// Pushes rustls's pending data to the stream.
    fn flush(&mut self, stream: &Stream) {
        let mut records = Vec::new();
        while self.tls.wants_write() {
            if !matches!(self.tls.write_tls(&mut records), Ok(1..)) {
                break;
            }
        }
        if !records.is_empty() {
            stream.push(Bytes::from(records));
        }
    }
}
