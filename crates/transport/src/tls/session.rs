//! The TLS session of one connection: records in and out, with our buffers.
//!
//! Uses rustls's interface without internal buffers (`rustls::unbuffered`), so that an idle
//! connection holds its keys and nothing else. Received records are decrypted in place. Sent data
//! waits unencrypted until the end of the event loop's turn, when the loop starts to send, so that
//! small pieces share a record.
//!
//! With `ssl_conf_command Options KTLS`, the first larger file makes the kernel take over sending,
//! for the rest of the connection:
//!
//! ```text
//!              takes_file
//! Side::Ours ─────┬──────▶ Side::Kernel
//!                 └──────▶ Side::Lost, if rustls fails
//! ```
//!
//! Not here: the selection of a configuration (`handshake.rs`), the session in the kernel
//! (`kernel.rs`).

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use base::pieces::join;
use bytes::Bytes;
use engine::net::{Segment, Stream};
use engine::{Buffer, Event};
use framework::generation::GenerationView;
use logs::Subject;
use proto::tls::ClientHello;
use rustls::ProtocolVersion;
use rustls::pki_types::UnixTime;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};

use crate::tls::agreed::HandshakeParameters;
use crate::tls::kernel::{self, KernelSession};
use crate::tls::lenient_sni::HiddenName;
use crate::tls::server::ServerTls;
use crate::tls::verify::CertificateStatus;

/// Length of a record header, in bytes: type, version and length.
const HEADER: usize = 5;

/// Overhead of a record, in bytes: header, nonce, type and tag.
const RECORD_OVERHEAD: usize = HEADER + 8 + 1 + 16;

/// Maximum plaintext of one record, in bytes (RFC 8446 section 5.1).
const RECORD_MAX: usize = 16 * 1024;

/// Maximum plaintext that is encrypted in one piece, in several records.
const SEALED_MAX: usize = 2 * RECORD_MAX;

/// Size of the reused buffers for pieces longer than a record, in bytes.
const SPARE_SIZE: usize = sealed_size(SEALED_MAX);

/// Maximum number of buffers of [`SPARE_SIZE`] that a thread keeps for reuse.
const SPARE_MAX: usize = 16;

/// Amount of waiting data, in bytes, from which on it is encrypted at once, instead of at the end
/// of the turn.
const WAITING_MAX: usize = 64 * 1024;

/// Number of queued pieces from which on a small piece is appended to the last one by copying.
const OUTGOING_MAX: usize = 64;

/// Room for the alert that ends a connection, in bytes.
const ALERT_MAX: usize = 64;

/// The TLS session of a client's connection: see the module's description.
pub struct Session {
    /// The settings under which the connection was accepted. A reload does not change them.
    pub server: Arc<ServerTls>,
    /// The host name that the client requested, in lower case, whether or not a server has it.
    pub server_name: Option<Bytes>,
    /// The ClientHello, if variables use it.
    pub hello: Option<Box<ClientHello>>,
    /// The status of the client's certificate.
    pub verdict: Cell<CertificateStatus>,
    /// The settings that determined the status: those of the handshake, or of a reload since.
    judged_by: RefCell<Arc<ServerTls>>,
    /// While a request checks the client's certificate again: the event that is set at the end of
    /// the check.
    look: RefCell<Option<Rc<Event>>>,
    /// Whether a request was received before the handshake ended.
    pub early: Cell<bool>,
    /// The session ID, once it is known.
    number: OnceCell<Box<[u8]>>,
    inner: RefCell<Inner>,
}

/// Encryption of sent data: by rustls, or by the kernel.
#[expect(
    clippy::large_enum_variant,
    reason = "most sessions are rustls's until they end"
)]
enum Side {
    Ours(UnbufferedServerConnection),
    /// The kernel, from the first larger file on.
    Kernel(KernelSession),
    /// Nobody: the session was lost during the hand-over.
    Lost,
}

struct Inner {
    side: Side,
    /// Whether data has been received since data was last encrypted, so that rustls may have to
    /// reply before it encrypts more.
    may_owe_reply: bool,
    /// Received bytes that do not form a complete record yet. Usually empty and without memory.
    partial: Vec<u8>,
    /// Decrypted data that has not been taken yet.
    received: VecDeque<Buffer>,
    /// Data that waits to be encrypted.
    outgoing: VecDeque<Bytes>,
    /// Number of bytes in `outgoing`.
    waiting: usize,
    /// Whether the client has sent `close_notify` or closed the connection.
    ended: bool,
    /// The error after which the session cannot continue.
    failure: Option<rustls::Error>,
    /// Whether this side has sent `close_notify`.
    closed: bool,
    /// Whether received data is passed on without decryption, because the caller drops it.
    drops: bool,
    /// Whether the session ID is stored.
    stores_session_id: bool,
    /// The session ID in the first message that this side sent, if it is to be stored.
    number: Box<[u8]>,
    /// The client's host name, hidden from rustls until the handshake has ended.
    hidden: Option<HiddenName>,
}

impl Session {
    /// A new session with these settings.
    ///
    /// # Errors
    /// rustls's error for an invalid configuration.
    pub fn new(
        server: &Arc<ServerTls>,
        config: &Arc<rustls::ServerConfig>,
        server_name: Option<Bytes>,
        hello: Option<Box<ClientHello>>,
    ) -> Result<Session, rustls::Error> {
        Ok(Session {
            server: Arc::clone(server),
            server_name,
            hello,
            verdict: Cell::new(CertificateStatus::Missing),
            judged_by: RefCell::new(Arc::clone(server)),
            look: RefCell::default(),
            early: Cell::new(false),
            number: OnceCell::new(),
            inner: RefCell::new(Inner {
                side: Side::Ours(UnbufferedServerConnection::new(Arc::clone(config))?),
                may_owe_reply: false,
                partial: Vec::new(),
                received: VecDeque::new(),
                outgoing: VecDeque::new(),
                waiting: 0,
                ended: false,
                failure: None,
                closed: false,
                drops: false,
                stores_session_id: false,
                number: Box::default(),
                hidden: None,
            }),
        })
    }

    /// Stores the session ID, for variables. Must be called before the handshake starts.
    pub fn keep_number(&self) {
        self.inner.borrow_mut().stores_session_id = true;
    }

    /// Registers a hidden host name, so that the handshake is verified with the ClientHello as the
    /// client sent it. Must be called before the handshake starts.
    pub fn hide_name(&self, hidden: HiddenName) {
        self.inner.borrow_mut().hidden = Some(hidden);
    }

    /// The session ID, if it is stored and there is one: in TLS 1.2 the negotiated session ID. TLS
    /// 1.3 has no session IDs, so a random ID is generated, as by OpenSSL.
    pub fn number(&self) -> &[u8] {
        let version = self.with(|agreed| agreed.version);
        self.number.get_or_init(|| {
            let mut number = [0; 32];
            match version {
                Some(ProtocolVersion::TLSv1_3) if aws_lc_rs::rand::fill(&mut number).is_ok() => {
                    number.into()
                }
                _ => std::mem::take(&mut self.inner.borrow_mut().number),
            }
        })
    }

    /// Reads the negotiated parameters.
    pub fn with<R>(&self, look: impl FnOnce(&HandshakeParameters<'_>) -> R) -> R {
        match &self.inner.borrow().side {
            Side::Ours(tls) => look(&HandshakeParameters::of(tls)),
            Side::Kernel(kernel) => look(kernel.agreed()),
            Side::Lost => look(&HandshakeParameters::default()),
        }
    }

    /// Whether the settings of the last certificate check request a client certificate.
    pub fn asks_for_certificate(&self) -> bool {
        self.judged_by.borrow().clients.is_some()
    }

    /// Whether the client's certificate must be checked under these settings: they differ from the
    /// settings of the last check, and the settings before or after the change request a
    /// certificate.
    pub fn must_recheck_under(&self, settings: &Arc<ServerTls>) -> bool {
        !Arc::ptr_eq(&self.judged_by.borrow(), settings)
            && (settings.clients.is_some() || self.asks_for_certificate())
    }

    /// Whether the certificate was checked under other settings than those of the handshake.
    pub fn was_rechecked(&self) -> bool {
        !Arc::ptr_eq(&self.judged_by.borrow(), &self.server)
    }

    /// Checks the client's certificate under these settings, after the handshake, including its
    /// OCSP status if the settings require that.
    pub async fn check_client_certificate(
        &self,
        settings: &Arc<ServerTls>,
        client: &dyn Subject,
        local: &GenerationView,
    ) {
        let mut verdict = CertificateStatus::Missing;
        if let Some(clients) = &settings.clients {
            let now = UnixTime::since_unix_epoch(engine::wall());
            verdict = self.with(|agreed| clients.verdict(agreed.certificates.as_deref(), now));
            if let Some(status) = settings.status.as_ref()
                && verdict == CertificateStatus::Good
            {
                let path = self.with(|agreed| clients.path(agreed.certificates.as_deref(), now));
                if let Err(text) = status.check(client, local, &path).await {
                    verdict = CertificateStatus::Revoked(text);
                }
            }
        }
        if let Some(fault) = verdict.fault() {
            local.counts.note_fault(fault);
        }
        self.verdict.set(verdict);
        *self.judged_by.borrow_mut() = Arc::clone(settings);
    }

    /// Checks the client's certificate under these settings if necessary. If another request is
    /// already checking, waits for that check.
    pub async fn recheck_client_certificate(
        &self,
        settings: &Arc<ServerTls>,
        client: &dyn Subject,
        local: &GenerationView,
    ) {
        while let Some(look) = self.running_check() {
            look.wait().await;
        }
        if self.must_recheck_under(settings) {
            let _look = CertificateCheck::begin(self);
            self.check_client_certificate(settings, client, local).await;
        }
    }

    fn running_check(&self) -> Option<Rc<Event>> {
        self.look.borrow().clone()
    }

    /// Whether the handshake is in progress.
    pub fn is_handshaking(&self) -> bool {
        self.inner.borrow().is_handshaking()
    }

    /// Whether the kernel encrypts sent data.
    pub fn is_in_kernel(&self) -> bool {
        matches!(self.inner.borrow().side, Side::Kernel(_))
    }

    /// Whether a file segment of `length` bytes may be pushed as it is, for the kernel to encrypt.
    /// Hands the session over to the kernel if this is configured, worthwhile and possible now.
    pub fn can_sendfile(&self, stream: &Stream, length: u64) -> bool {
        let inner = &mut *self.inner.borrow_mut();
        match inner.side {
            Side::Kernel(_) => true,
            Side::Ours(_) if self.server.kernel_tls && length >= kernel::FILE_MIN => {
                inner.hand_over(stream, length)
            }
            _ => false,
        }
    }

    /// Whether decrypted data waits to be taken.
    pub fn has_received(&self) -> bool {
        !self.inner.borrow().received.is_empty()
    }

    /// The error after which the session cannot continue.
    pub fn failure(&self) -> Option<rustls::Error> {
        self.inner.borrow().failure.clone()
    }

    /// The next received data: an empty buffer at the end, an error if the session failed; `None`
    /// if more must be received first.
    pub fn take_received(&self) -> Option<io::Result<Buffer>> {
        let inner = &mut *self.inner.borrow_mut();
        if let Some(buffer) = inner.received.pop_front() {
            if inner.received.is_empty() {
                inner.received = VecDeque::new();
            }
            return Some(Ok(buffer));
        }
        if inner.ended {
            return Some(Ok(Buffer::empty()));
        }
        let failure = inner.failure.clone()?;
        Some(Err(io::Error::new(io::ErrorKind::InvalidData, failure)))
    }

    /// Processes data from the socket. An empty buffer means that the client has closed the
    /// connection. Replies (alerts, tickets, handshake messages) are sent.
    pub fn feed(&self, stream: &Stream, mut buffer: Buffer) {
        let inner = &mut *self.inner.borrow_mut();
        if buffer.is_empty() {
            inner.ended = true;
            return;
        }
        if inner.failure.is_some() {
            return; // data after a failure is ignored
        }
        if inner.drops {
            inner.received.push_back(buffer); // the caller drops it
            return;
        }
        if inner.partial.is_empty() {
            let taken = inner.advance(stream, &mut buffer);
            inner
                .partial
                .extend_from_slice(buffer.get(taken..).unwrap_or_default());
        } else {
            inner.partial.extend_from_slice(&buffer);
            inner.advance_partial(stream);
        }
        // If a request has arrived with the end of the handshake, session tickets are sent together
        // with its response.
        let response_follows = !inner.received.is_empty() && !inner.is_handshaking();
        if !response_follows || inner.failure.is_some() {
            stream.start_send();
        }
    }

    /// Stops decrypting received data, which is to be dropped; only its arrival matters. So data
    /// that a client sends after its response costs little and cannot fail the session.
    pub fn drop_received(&self) {
        self.inner.borrow_mut().drops = true;
    }

    /// Queues a segment for the client. Bytes are encrypted when the turn's sends start, or when
    /// enough of them wait. A file may only be pushed if [`Session::can_sendfile`] allowed it;
    /// otherwise the stream fails.
    pub fn push(&self, stream: &Stream, segment: Segment) {
        let inner = &mut *self.inner.borrow_mut();
        if segment.is_empty() || inner.closed {
            return;
        }
        let bytes = match (&inner.side, segment) {
            (Side::Ours(_), Segment::Bytes(bytes)) => bytes,
            (Side::Kernel(_), segment) => return inner.push_to_kernel(stream, segment),
            // No caller pushes such a segment. If one did, aborting prevents that it is sent
            // unencrypted.
            (Side::Ours(_) | Side::Lost, _) => return stream.abort(),
        };
        inner.waiting += bytes.len();
        let is_long = inner.outgoing.len() >= OUTGOING_MAX;
        let last = inner.outgoing.back_mut().filter(|_| is_long);
        if last.and_then(|last| join(last, &bytes)).is_none() {
            inner.outgoing.push_back(bytes);
        }
        if inner.waiting >= WAITING_MAX {
            inner.advance_partial(stream);
        }
    }

    /// Number of bytes that wait to be encrypted.
    pub fn waiting(&self) -> usize {
        self.inner.borrow().waiting
    }

    /// Encrypts the waiting data and pushes it to the stream, which does not start to send yet.
    pub fn seal(&self, stream: &Stream) {
        let inner = &mut *self.inner.borrow_mut();
        if inner.waiting > 0 {
            inner.advance_partial(stream);
        }
    }

    /// Encrypts the waiting data, then sends `close_notify`.
    pub fn close(&self, stream: &Stream) {
        let inner = &mut *self.inner.borrow_mut();
        if inner.waiting > 0 {
            inner.advance_partial(stream);
        }
        if std::mem::replace(&mut inner.closed, true) || inner.failure.is_some() {
            return;
        }
        let Inner { side, partial, .. } = inner;
        let tls = match side {
            Side::Ours(tls) => tls,
            Side::Kernel(_) => return KernelSession::close(&mut |segment| stream.push(segment)),
            Side::Lost => return,
        };
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) =
            tls.process_tls_records(partial).state
        {
            let mut alert = vec![0; ALERT_MAX];
            if let Ok(length) = traffic.queue_close_notify(&mut alert) {
                alert.truncate(length);
                stream.push(Bytes::from(alert));
            }
        }
    }
}

/// A check of a client's certificate in progress. The check ends when the value is dropped, even if
/// the request is aborted.
struct CertificateCheck<'a>(&'a Session);

impl CertificateCheck<'_> {
    fn begin(session: &Session) -> CertificateCheck<'_> {
        *session.look.borrow_mut() = Some(Rc::default());
        CertificateCheck(session)
    }
}

impl Drop for CertificateCheck<'_> {
    fn drop(&mut self) {
        let look = self.0.look.take();
        look.iter().for_each(|look| look.set());
    }
}

impl Inner {
    fn is_handshaking(&self) -> bool {
        matches!(&self.side, Side::Ours(tls) if tls.is_handshaking())
    }

    /// Hands sending over to the kernel, if possible now: the handshake has ended, no partial
    /// record is buffered, rustls has nothing left to send, and the kernel supports the negotiated
    /// parameters.
    fn hand_over(&mut self, stream: &Stream, length: u64) -> bool {
        if self.waiting > 0 {
            self.advance_partial(stream);
        }
        let Side::Ours(tls) = &mut self.side else {
            return false;
        };
        let is_between_records = self.partial.is_empty() && !self.may_owe_reply;
        let is_over = self.ended || self.closed || self.failure.is_some();
        let is_possible = is_between_records
            && !is_over
            && !tls.is_handshaking()
            && KernelSession::can_send(tls, length)
            && matches!(
                tls.process_tls_records(&mut []).state,
                Ok(ConnectionState::WriteTraffic(_))
            );
        // The socket is prepared last: once it is prepared, there is no way back to rustls's
        // session.
        if !is_possible || stream.prepare_kernel_tls().is_err() {
            return false;
        }
        if let Side::Ours(tls) = std::mem::replace(&mut self.side, Side::Lost) {
            match KernelSession::take_over(tls, &mut |segment| stream.push(segment)) {
                Ok(kernel) => self.side = Side::Kernel(kernel),
                Err(error) => self.failure = Some(error),
            }
        }
        true
    }

    /// Pushes a segment for the kernel to encrypt.
    fn push_to_kernel(&mut self, stream: &Stream, segment: Segment) {
        let Side::Kernel(kernel) = &mut self.side else {
            return;
        };
        if self.failure.is_some() {
            return;
        }
        if let Err(error) = kernel.send(segment, &mut |segment| stream.push(segment)) {
            logs::event!(
                Error,
                "{error}: a client's connection ends within a response"
            );
            self.failure = Some(error);
            stream.abort();
        }
    }

    /// Decrypts received records while the kernel encrypts sent ones. Returns the number of bytes
    /// consumed.
    fn receive(&mut self, stream: &Stream, incoming: &mut [u8]) -> usize {
        let Side::Kernel(kernel) = &mut self.side else {
            return incoming.len();
        };
        let push = &mut |segment| stream.push(segment);
        match kernel.receive(incoming, &mut self.received, push) {
            Ok(progress) => {
                self.ended |= progress.ended;
                progress.used
            }
            Err(error) => {
                KernelSession::send_alert(&error, push);
                self.failure = Some(error);
                incoming.len()
            }
        }
    }

    /// Continues with received bytes that did not form a complete record before.
    fn advance_partial(&mut self, stream: &Stream) {
        let mut partial = std::mem::take(&mut self.partial);
        let taken = self.advance(stream, &mut partial);
        if taken < partial.len() {
            partial.drain(..taken);
            self.partial = partial;
        }
    }

    /// Lets rustls process these received bytes as far as it can, and encrypts the waiting data.
    /// Returns the number of bytes consumed.
    fn advance(&mut self, stream: &Stream, incoming: &mut [u8]) -> usize {
        self.may_owe_reply |= !incoming.is_empty();
        let mut taken = 0;
        let _shown = self.hidden.as_ref().map(|hidden| {
            hidden.hide_again(incoming);
            hidden.show()
        });
        loop {
            let Side::Ours(tls) = &mut self.side else {
                return self.receive(stream, incoming);
            };
            let rest = incoming.get_mut(taken..).unwrap_or_default();
            let UnbufferedStatus { mut discard, state } = tls.process_tls_records(rest);
            let mut blocked = false;
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(Ok(record)) = traffic.next_record() {
                        discard += record.discard;
                        self.received.push_back(Buffer::copy_of(record.payload));
                    }
                }
                Ok(ConnectionState::ReadEarlyData(mut traffic)) => {
                    while let Some(Ok(record)) = traffic.next_record() {
                        discard += record.discard;
                        self.received.push_back(Buffer::copy_of(record.payload));
                    }
                }
                Ok(ConnectionState::EncodeTlsData(encode)) => {
                    let message = send_message(stream, encode);
                    if std::mem::take(&mut self.stores_session_id) {
                        let number = proto::tls::session_number(&message);
                        self.number = number.unwrap_or_default().into();
                    }
                }
                Ok(ConnectionState::TransmitTlsData(transmit)) => transmit.done(),
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    let Inner {
                        outgoing, waiting, ..
                    } = self;
                    blocked = true;
                    self.may_owe_reply &= *waiting == 0;
                    // Encryption may require new keys, whose message is sent first.
                    if let Err(EncryptError::EncryptExhausted) =
                        seal(&mut traffic, outgoing, waiting, stream)
                    {
                        self.failure = Some(rustls::Error::EncryptError);
                    }
                }
                Ok(ConnectionState::PeerClosed) => self.ended = true,
                Ok(_) => blocked = true,
                Err(error) => {
                    self.failure = Some(error);
                    let rest = incoming.len().saturating_sub(taken);
                    self.send_alert(stream, rest);
                    return incoming.len();
                }
            }
            taken += discard;
            if blocked {
                if !self.is_handshaking() {
                    self.hidden = None;
                }
                return taken;
            }
        }
    }

    /// Sends the alert for a failure, after the messages that rustls has pending. `length`: number
    /// of received bytes on which rustls failed.
    fn send_alert(&mut self, stream: &Stream, length: usize) {
        let Side::Ours(tls) = &mut self.side else {
            return;
        };
        if self.closed {
            return; // no alert may follow `close_notify`
        }
        if !tls.wants_write() {
            // For some failures rustls has no alert (a message that is too long, another record
            // between its parts). An impossible record makes rustls produce an alert. The record
            // replaces the bytes on which rustls failed, and is at least as long, because rustls
            // relies on their number.
            let mut impossible = vec![0xff; length + HEADER];
            drop(tls.process_tls_records(&mut impossible));
        }
        // Once rustls has nothing left to write, it would continue with the received bytes, and
        // panic because they are missing.
        while tls.wants_write() {
            match tls.process_tls_records(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(encode)) => drop(send_message(stream, encode)),
                _ => return,
            }
        }
    }
}

/// Sends a message that rustls has ready, and returns the sent bytes.
fn send_message(stream: &Stream, mut encode: EncodeTlsData<'_, ServerConnectionData>) -> Bytes {
    let mut message = Vec::new();
    if let Err(EncodeError::InsufficientSize(needed)) = encode.encode(&mut []) {
        message.resize(needed.required_size, 0);
        if encode.encode(&mut message).is_err() {
            message.clear();
        }
    }
    let message = Bytes::from(message);
    if !message.is_empty() {
        stream.push(message.clone());
    }
    message
}

/// Encrypts all waiting data, merging small pieces.
fn seal(
    traffic: &mut WriteTraffic<'_, ServerConnectionData>,
    outgoing: &mut VecDeque<Bytes>,
    waiting: &mut usize,
    stream: &Stream,
) -> Result<(), EncryptError> {
    while let Some(bytes) = next_piece(outgoing) {
        *waiting = waiting.saturating_sub(bytes.len());
        let mut records = Records::new(bytes.len());
        let mut sealed = traffic.encrypt(&bytes, &mut records.memory);
        if let Err(EncryptError::InsufficientSize(needed)) = &sealed {
            // The message about new keys precedes the data.
            records.memory.resize(needed.required_size, 0);
            sealed = traffic.encrypt(&bytes, &mut records.memory);
        }
        records.length = sealed?;
        stream.push(records.into_bytes());
    }
    // Frees the memory of a queue that was long.
    *outgoing = VecDeque::new();
    Ok(())
}

/// The next plaintext to encrypt: a part of a long piece, or several short pieces that fit into one
/// record.
fn next_piece(outgoing: &mut VecDeque<Bytes>) -> Option<Bytes> {
    let first = outgoing.front_mut()?;
    if first.len() > SEALED_MAX {
        return Some(first.split_to(SEALED_MAX));
    }
    let mut together = outgoing.pop_front()?;
    let room = RECORD_MAX;
    if together.len() >= room || outgoing.is_empty() {
        return Some(together);
    }
    let mut gathered = Vec::with_capacity(room);
    loop {
        gathered.extend_from_slice(&together);
        let left = room - gathered.len();
        match outgoing.front_mut() {
            Some(_) if left == 0 => break,
            Some(next) if next.len() > left => together = next.split_to(left),
            Some(_) => together = outgoing.pop_front()?,
            None => break,
        }
    }
    Some(gathered.into())
}

/// Maximum size of this many bytes after encryption.
const fn sealed_size(bytes: usize) -> usize {
    bytes + bytes.div_ceil(RECORD_MAX) * RECORD_OVERHEAD
}

thread_local! {
    /// Buffers for records. A buffer was zeroed once; each user overwrites the previous contents.
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Encrypted records on their way to the socket.
struct Records {
    memory: Vec<u8>,
    /// Number of bytes written so far.
    length: usize,
}

impl Records {
    /// A buffer for the encrypted form of this many bytes. A reused buffer, if there is one, for
    /// bytes that take more than a record.
    fn new(bytes: usize) -> Records {
        let spare = if bytes > RECORD_MAX {
            SPARE.with_borrow_mut(Vec::pop)
        } else {
            None
        };
        let size = if bytes > RECORD_MAX {
            SPARE_SIZE.max(sealed_size(bytes))
        } else {
            sealed_size(bytes)
        };
        Records {
            memory: spare.unwrap_or_else(|| vec![0; size]),
            length: 0,
        }
    }

    fn into_bytes(mut self) -> Bytes {
        if self.memory.len() == SPARE_SIZE {
            return Bytes::from_owner(self);
        }
        self.memory.truncate(self.length);
        Bytes::from(std::mem::take(&mut self.memory))
    }
}

impl AsRef<[u8]> for Records {
    fn as_ref(&self) -> &[u8] {
        self.memory.get(..self.length).unwrap_or_default()
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        if memory.len() != SPARE_SIZE {
            return;
        }
        // While the thread ends, the list of buffers may be gone; the allocator then frees this
        // buffer.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_MAX {
                spare.push(memory);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_long_pieces_is_used_again() {
        let place = |bytes| {
            let mut records = Records::new(bytes);
            records.memory[..3].copy_from_slice(b"abc");
            records.length = 3;
            let bytes = records.into_bytes();
            assert_eq!(&bytes[..], b"abc");
            bytes.as_ptr()
        };
        let first = place(SEALED_MAX);
        assert_eq!(place(RECORD_MAX + 1), first);
        assert_ne!(place(RECORD_MAX), first);
        assert_eq!(SPARE.with_borrow(Vec::len), 1);
        let kept: Vec<Bytes> = (0..2 * SPARE_MAX)
            .map(|_| Records::new(SEALED_MAX).into_bytes())
            .collect();
        drop(kept);
        assert_eq!(SPARE.with_borrow(Vec::len), SPARE_MAX);
    }

    #[test]
    fn short_pieces_share_a_record() {
        let piece = |length: usize| Bytes::from(vec![b'x'; length]);
        let mut outgoing = VecDeque::from([300, 32 * 1024, 40 * 1024].map(piece));
        let lengths: Vec<usize> = std::iter::from_fn(|| next_piece(&mut outgoing))
            .map(|piece| piece.len())
            .collect();
        let rest = 32 * 1024 - (RECORD_MAX - 300);
        assert_eq!(lengths, [RECORD_MAX, rest, SEALED_MAX, 8 * 1024]);
    }
}
