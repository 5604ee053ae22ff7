//! The TLS session of one connection: records in and out, with our buffers.
//!
//! rustls's interface without buffers of its own (`rustls::unbuffered`) is used, so that an idle
//! connection holds keys and nothing else. Received records are opened where they lie; what is
//! sent waits as it was pushed until the turn's sending, so that small pieces share a record.
//!
//! Where `ssl_conf_command Options KTLS` asks for it, the first larger file makes the kernel take
//! over what is sent, for the rest of the connection:
//!
//! ```text
//!              takes_file
//! Side::Ours ─────┬──────▶ Side::Kernel
//!                 └──────▶ Side::Lost, if rustls fails
//! ```
//!
//! Not here: the choice of a configuration (`handshake.rs`), the session in the kernel
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
use crate::tls::hidden_name::HiddenName;
use crate::tls::kernel::{self, KernelSession};
use crate::tls::server::ServerTls;
use crate::tls::verify::CertificateStatus;

/// Bytes before a record's content: type, version and length.
const HEADER: usize = 5;

/// What a record adds to what it carries: header, nonce, type and tag, in bytes.
const RECORD_OVERHEAD: usize = HEADER + 8 + 1 + 16;

/// Most bytes that one record carries (RFC 8446 section 5.1).
const RECORD_MAX: usize = 16 * 1024;

/// Most bytes that are sealed in one piece, in several records.
const SEALED_MAX: usize = 2 * RECORD_MAX;

/// Bytes of the memory that is used again and again for pieces of more than a record.
const SPARE_SIZE: usize = sealed_size(SEALED_MAX);

/// Pieces of such memory that a thread keeps for later.
const SPARE_MAX: usize = 16;

/// Where what waits to be sealed is sealed without being asked for, in bytes.
const WAITING_MAX: usize = 64 * 1024;

/// Pieces that wait to be sealed beyond which small ones are copied together.
const OUTGOING_MAX: usize = 64;

/// Room for the alert that ends a connection.
const ALERT_MAX: usize = 64;

/// A session; see the module.
pub struct Session {
    /// The settings that the connection was accepted under. They stay its own over a reload.
    pub server: Arc<ServerTls>,
    /// The host that the client asked for, in lower case, whether it leads to a server or not.
    pub server_name: Option<Bytes>,
    /// What it has offered, where variables show that.
    pub hello: Option<Box<ClientHello>>,
    /// What is to be said of its certificate.
    pub verdict: Cell<CertificateStatus>,
    /// The settings that this was found by: those of the handshake, or of a reload since.
    judged_by: RefCell<Arc<ServerTls>>,
    /// The end of the look at it that a request has begun.
    look: RefCell<Option<Rc<Event>>>,
    /// Whether a request was received before the handshake had ended.
    pub early: Cell<bool>,
    /// The number of the session, once it is known.
    number: OnceCell<Box<[u8]>>,
    inner: RefCell<Inner>,
}

/// Who seals what is sent.
#[expect(
    clippy::large_enum_variant,
    reason = "most sessions are rustls's until they end"
)]
enum Side {
    Ours(UnbufferedServerConnection),
    /// The kernel, from a larger file on.
    Kernel(KernelSession),
    /// Nobody any more: the session was lost on the way there.
    Lost,
}

struct Inner {
    side: Side,
    /// Something was received since something was sealed last: rustls may have to answer before
    /// what is sealed next.
    owes: bool,
    /// Received bytes that are no whole record yet. Empty, and without memory, most of the time.
    partial: Vec<u8>,
    /// Opened and not yet taken.
    received: VecDeque<Buffer>,
    /// Waits to be sealed.
    outgoing: VecDeque<Bytes>,
    /// How many bytes that are.
    waiting: usize,
    /// The client has ended its side.
    ended: bool,
    /// Why the session cannot go on.
    failure: Option<rustls::Error>,
    /// We have said that nothing more follows.
    closed: bool,
    /// What is received is passed on as it is, to be dropped.
    drops: bool,
    /// Whether the session's number is of interest.
    keeps_number: bool,
    /// What our first message says it is.
    number: Box<[u8]>,
    /// The client's host, where rustls must not see it, until the handshake has ended.
    hidden: Option<HiddenName>,
}

impl Session {
    /// A session that begins under these settings.
    ///
    /// # Errors
    /// rustls's, for a configuration that cannot work.
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
                owes: false,
                partial: Vec::new(),
                received: VecDeque::new(),
                outgoing: VecDeque::new(),
                waiting: 0,
                ended: false,
                failure: None,
                closed: false,
                drops: false,
                keeps_number: false,
                number: Box::default(),
                hidden: None,
            }),
        })
    }

    /// Has the session's number kept, which is to be shown. This must be said before the handshake
    /// begins.
    pub fn keep_number(&self) {
        self.inner.borrow_mut().keeps_number = true;
    }

    /// Has what was hidden in the client's hello proved as the client has sent it. This must be
    /// said before the handshake begins.
    pub fn hide_name(&self, hidden: HiddenName) {
        self.inner.borrow_mut().hidden = Some(hidden);
    }

    /// The number of the session, if it is kept and there is one: in TLS 1.2 the one that both ends
    /// have agreed on, in TLS 1.3, which has none, one that is drawn, as OpenSSL does.
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

    /// Looks at what has been agreed upon.
    pub fn with<R>(&self, look: impl FnOnce(&HandshakeParameters<'_>) -> R) -> R {
        match &self.inner.borrow().side {
            Side::Ours(tls) => look(&HandshakeParameters::of(tls)),
            Side::Kernel(kernel) => look(kernel.agreed()),
            Side::Lost => look(&HandshakeParameters::default()),
        }
    }

    /// Whether the settings that the client's certificate was looked at by last ask for one.
    pub fn asks_for_certificate(&self) -> bool {
        self.judged_by.borrow().clients.is_some()
    }

    /// Whether the client's certificate is to be looked at by these settings: they are others, and
    /// either ask for one.
    pub fn must_look_by(&self, settings: &Arc<ServerTls>) -> bool {
        !Arc::ptr_eq(&self.judged_by.borrow(), settings)
            && (settings.clients.is_some() || self.asks_for_certificate())
    }

    /// Whether it was looked at by others than those of the handshake.
    pub fn is_judged_anew(&self) -> bool {
        !Arc::ptr_eq(&self.judged_by.borrow(), &self.server)
    }

    /// Looks at the client's certificate by these settings, once the handshake has ended, and asks
    /// whether it is still good where they want that.
    pub async fn look_at_client(
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

    /// Looks at it by these settings if that must be. Where another request does so, that is waited
    /// for.
    pub async fn recheck_client_certificate(
        &self,
        settings: &Arc<ServerTls>,
        client: &dyn Subject,
        local: &GenerationView,
    ) {
        while let Some(look) = self.look_under_way() {
            look.wait().await;
        }
        if self.must_look_by(settings) {
            let _look = CertificateCheck::begin(self);
            self.look_at_client(settings, client, local).await;
        }
    }

    fn look_under_way(&self) -> Option<Rc<Event>> {
        self.look.borrow().clone()
    }

    /// Whether the handshake is still going on.
    pub fn is_handshaking(&self) -> bool {
        self.inner.borrow().is_handshaking()
    }

    /// Whether the kernel seals what is sent.
    pub fn is_in_kernel(&self) -> bool {
        matches!(self.inner.borrow().side, Side::Kernel(_))
    }

    /// Whether a stretch of a file of so many bytes may be pushed as it is, for the kernel to seal.
    /// The session is handed over for that, where it is asked for, worth it and possible now.
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

    /// Whether something has been received and opened that nobody has taken.
    pub fn has_received(&self) -> bool {
        !self.inner.borrow().received.is_empty()
    }

    /// Why the session cannot go on.
    pub fn failure(&self) -> Option<rustls::Error> {
        self.inner.borrow().failure.clone()
    }

    /// What has been received, an empty buffer at the end, an error where the session failed;
    /// `None`: more must come.
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

    /// Takes in what the socket has received; an empty buffer is its end. What that leads to
    /// (alerts, tickets, the next messages of the handshake) is sent.
    pub fn feed(&self, stream: &Stream, mut buffer: Buffer) {
        let inner = &mut *self.inner.borrow_mut();
        if buffer.is_empty() {
            inner.ended = true;
            return;
        }
        if inner.failure.is_some() {
            return; // nothing that follows counts
        }
        if inner.drops {
            inner.received.push_back(buffer); // who waits for it does not look at it
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
        // With a request the tickets came to be sent; they leave with its response.
        let response_follows = !inner.received.is_empty() && !inner.is_handshaking();
        if !response_follows || inner.failure.is_some() {
            stream.start_send();
        }
    }

    /// From now on what is received is not opened: it will be dropped, and only that it comes
    /// matters. So what a client sends behind its request, once it has its answer, costs little and
    /// cannot fail.
    pub fn drop_received(&self) {
        self.inner.borrow_mut().drops = true;
    }

    /// Queues a piece for the client. Bytes are sealed when the turn's sending starts, or when many
    /// have come together. A file must only come after [`Session::can_sendfile`] has said so; else
    /// the stream fails.
    pub fn push(&self, stream: &Stream, segment: Segment) {
        let inner = &mut *self.inner.borrow_mut();
        if segment.is_empty() || inner.closed {
            return;
        }
        let bytes = match (&inner.side, segment) {
            (Side::Ours(_), Segment::Bytes(bytes)) => bytes,
            (Side::Kernel(_), segment) => return inner.push_to_kernel(stream, segment),
            // Nobody does so; if somebody did, nothing would leave in the clear.
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

    /// How many bytes wait to be sealed.
    pub fn waiting(&self) -> usize {
        self.inner.borrow().waiting
    }

    /// Seals what waits and gives it to the stream, which does not start to send yet.
    pub fn seal(&self, stream: &Stream) {
        let inner = &mut *self.inner.borrow_mut();
        if inner.waiting > 0 {
            inner.advance_partial(stream);
        }
    }

    /// Seals what waits, then says that nothing more follows.
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

/// A look at a client's certificate: it ends with this, whatever becomes of the request.
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

    /// Gives the sending to the kernel, if that can be now: the handshake has ended, nothing of a
    /// record waits for its rest, rustls has nothing left to say, and the kernel can do what was
    /// agreed upon.
    fn hand_over(&mut self, stream: &Stream, length: u64) -> bool {
        if self.waiting > 0 {
            self.advance_partial(stream);
        }
        let Side::Ours(tls) = &mut self.side else {
            return false;
        };
        let is_between_records = self.partial.is_empty() && !self.owes;
        let is_over = self.ended || self.closed || self.failure.is_some();
        let is_possible = is_between_records
            && !is_over
            && !tls.is_handshaking()
            && KernelSession::can_send(tls, length)
            && matches!(
                tls.process_tls_records(&mut []).state,
                Ok(ConnectionState::WriteTraffic(_))
            );
        // The socket comes last: a session whose socket is prepared is given up here.
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

    /// Has the kernel send a piece.
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

    /// Opens received records while the kernel seals. How many bytes have been used up is returned.
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

    /// Goes on with what has been received and was no whole record before.
    fn advance_partial(&mut self, stream: &Stream) {
        let mut partial = std::mem::take(&mut self.partial);
        let taken = self.advance(stream, &mut partial);
        if taken < partial.len() {
            partial.drain(..taken);
            self.partial = partial;
        }
    }

    /// Lets rustls go as far as it can with these received bytes and seals what waits. How many
    /// bytes have been used up is returned.
    fn advance(&mut self, stream: &Stream, incoming: &mut [u8]) -> usize {
        self.owes |= !incoming.is_empty();
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
                    if std::mem::take(&mut self.keeps_number) {
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
                    self.owes &= *waiting == 0;
                    // A sealed piece may call for new keys, which are then sent first.
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

    /// Sends the alert that a failure has led to, and what of our answer goes before it. `length`:
    /// of the bytes that rustls has failed on.
    fn send_alert(&mut self, stream: &Stream, length: usize) {
        let Side::Ours(tls) = &mut self.side else {
            return;
        };
        if self.closed {
            return; // nothing follows what says that nothing follows
        }
        if !tls.wants_write() {
            // Of some failures rustls says nothing (a message that is too long, another record
            // between its parts). An impossible record makes it. It stands in the place of those
            // bytes, for rustls counts on their number.
            let mut impossible = vec![0xff; length + HEADER];
            drop(tls.process_tls_records(&mut impossible));
        }
        // Without anything to say it would go on with those bytes, and panic if they are not there.
        while tls.wants_write() {
            match tls.process_tls_records(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(encode)) => drop(send_message(stream, encode)),
                _ => return,
            }
        }
    }
}

/// Sends a message that rustls has ready, and gives what was sent.
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

/// Seals everything that waits, small pieces together.
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
            // New keys go before it.
            records.memory.resize(needed.required_size, 0);
            sealed = traffic.encrypt(&bytes, &mut records.memory);
        }
        records.length = sealed?;
        stream.push(records.into_bytes());
    }
    // A queue that once was long keeps no memory for it.
    *outgoing = VecDeque::new();
    Ok(())
}

/// What is sealed next: a part of a long piece, or several short ones that fit a record.
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

/// How many bytes so many take when they are sealed.
const fn sealed_size(bytes: usize) -> usize {
    bytes + bytes.div_ceil(RECORD_MAX) * RECORD_OVERHEAD
}

thread_local! {
    /// Memory for records. It was cleared once, and whoever takes it writes over what was there
    /// before.
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Sealed records on their way to the socket.
struct Records {
    memory: Vec<u8>,
    /// How much of it has been written.
    length: usize,
}

impl Records {
    /// Room for so many bytes and what sealing adds to them. Where that is more than a record, it
    /// is memory that is kept.
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
        // While the thread ends there may be no store any more; then the allocator gets the memory.
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
