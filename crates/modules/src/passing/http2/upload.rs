//! A request's body on its way to a peer, beside whatever else is done for the request: as it comes from the client, or from a file.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::pieces::Pieces;
use bytes::Bytes;
use engine::file::File;
use engine::select::{Either, either};
use http::exchange::Abort;
use http::http2::upload::Upload as ClientUpload;
use http::log::{self, Level};
use http::response::Field;
use http::source::{Break, Given, Source, Told};

use super::conversation::RequestBody;
use super::stream::Sender;
use crate::passing::READING_BODY;
use crate::passing::sending::{BACKLOG_MAX, SENDING};

/// Bytes of a body beyond those that it was begun with which are kept to be sent again.
const KEPT_MAX: usize = 64 * 1024;

/// Why a body is not sent to its end.
pub(super) enum Stopped {
    /// By the client.
    Client(Abort),
    /// The peer has taken nothing for `*_send_timeout`.
    TimedOut,
    /// The file cannot be read; what there is to log.
    File(String),
}

/// A body on its way; see the module. It goes on whenever it is polled.
pub(crate) struct Upload(Pin<Box<dyn Future<Output = Result<(), Stopped>>>>);

impl Upload {
    /// As it comes from the client.
    pub(super) fn of_client(
        client: ClientUpload,
        sender: Sender,
        begun: Rc<Begun>,
        timeout: Duration,
    ) -> Upload {
        Upload(Box::pin(pass_on(client, sender, begun, timeout)))
    }

    /// From a file of this length.
    pub(super) fn of_file(file: File, length: u64, sender: Sender, timeout: Duration) -> Upload {
        Upload(Box::pin(read(file, length, sender, timeout)))
    }

    /// Goes on; ready at its end.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Stopped>> {
        self.0.as_mut().poll(context)
    }
}

/// What has come of a client's body that is passed on as it comes, for as long as there is no answer: should a peer not have looked at the
/// request, it is sent again from here.
pub(crate) struct Begun {
    parts: RefCell<Pieces>,
    /// Bytes that have come since it was begun.
    length: Cell<usize>,
    has_ended: Cell<bool>,
    /// Some of it is not kept.
    is_lost: Cell<bool>,
}

impl Begun {
    fn new(parts: Pieces) -> Begun {
        Begun {
            parts: RefCell::new(parts),
            length: Cell::new(0),
            has_ended: Cell::new(false),
            is_lost: Cell::new(false),
        }
    }

    /// Notes parts that are passed on, and whether they are the last.
    pub(super) fn note<'a>(&self, parts: impl IntoIterator<Item = &'a Bytes>, ends: bool) {
        self.has_ended.set(ends);
        for part in parts {
            self.length.set(self.length.get() + part.len());
            if self.length.get() > KEPT_MAX {
                self.forget();
            }
            if !self.is_lost.get() {
                self.parts.borrow_mut().push(part.clone());
            }
        }
    }

    /// Sends all that has come; whether that is the whole body.
    pub(super) fn push(&self, sender: &Sender) -> bool {
        sender.push(self.parts.borrow().iter().cloned(), self.has_ended.get());
        self.has_ended.get()
    }

    /// It is not sent again.
    pub(super) fn forget(&self) {
        self.is_lost.set(true);
        self.parts.take();
    }

    /// Whether it cannot be sent again.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.get()
    }
}

impl From<Pieces> for RequestBody {
    fn from(parts: Pieces) -> RequestBody {
        RequestBody::Begun(Rc::new(Begun::new(parts)))
    }
}

async fn pass_on(
    mut client: ClientUpload,
    sender: Sender,
    begun: Rc<Begun>,
    timeout: Duration,
) -> Result<(), Stopped> {
    while sender.flow().end().is_none() {
        let part = either(client.next(), ended(&sender)).await;
        let part = match part {
            Either::First(part) => part.map_err(Stopped::Client)?,
            Either::Second(()) => return Ok(()),
        };
        let ends = part.is_none() || client.is_read();
        begun.note(&part, ends);
        sender.push(part, ends);
        let limit = if ends { 0 } else { BACKLOG_MAX };
        drained(&sender, limit, timeout).await?;
        if ends {
            break;
        }
    }
    Ok(())
}

async fn read(file: File, length: u64, sender: Sender, timeout: Duration) -> Result<(), Stopped> {
    let mut offset = 0;
    while sender.flow().end().is_none() {
        let wanted = (length - offset).min(BACKLOG_MAX as u64) as usize;
        let part = match file.read_at(offset, wanted).await {
            Ok(part) if !part.is_empty() => part,
            Ok(_) => return Err(Stopped::File("pread() read nothing".to_owned())),
            Err(error) => {
                let error = log::Errno(&error);
                return Err(Stopped::File(format!("pread() failed {error}")));
            }
        };
        offset += part.len() as u64;
        let ends = offset == length;
        sender.push([part], ends);
        drained(&sender, if ends { 0 } else { BACKLOG_MAX }, timeout).await?;
        if ends {
            break;
        }
    }
    Ok(())
}

/// Waits for the end of the stream.
async fn ended(sender: &Sender) {
    poll_fn(|context| sender.flow().poll_ended(context.waker())).await;
}

/// Waits until no more than so much waits to be sent, for as long as the peer takes some of it.
pub(super) async fn drained(
    sender: &Sender,
    limit: usize,
    timeout: Duration,
) -> Result<(), Stopped> {
    let flow = sender.flow();
    while flow.queued() > limit {
        let before = flow.sent();
        let progress = poll_fn(|context| match flow.poll_drained(limit, context.waker()) {
            Poll::Pending if flow.sent() == before => Poll::Pending,
            _ => Poll::Ready(()),
        });
        if let Either::Second(()) = either(progress, engine::sleep(timeout)).await {
            sender.doubt();
            return Err(Stopped::TimedOut);
        }
        if flow.end().is_some() {
            return Ok(());
        }
    }
    Ok(())
}

/// The status with which a request would have been answered for what has become of its body, once that has been broken off.
pub(super) type Refused = Rc<Cell<Option<u16>>>;

/// The body of an answer that has begun before the request's own body had ended: both go on beside each other.
pub(super) struct BesideUpload {
    source: Box<dyn Source>,
    upload: Option<Upload>,
    told: Option<Told>,
    is_broken: bool,
    refused: Refused,
}

impl BesideUpload {
    pub(super) fn new(source: Box<dyn Source>, upload: Upload, refused: Refused) -> BesideUpload {
        BesideUpload {
            source,
            upload: Some(upload),
            told: None,
            is_broken: false,
            refused,
        }
    }

    /// Goes on with the upload; whether there is something to be said of it.
    fn advance(&mut self, context: &mut Context<'_>) -> bool {
        let Some(upload) = &mut self.upload else {
            return false;
        };
        let Poll::Ready(ended) = upload.poll(context) else {
            return false;
        };
        self.upload = None;
        let (status, told) = match ended {
            // That a client has left is found out by what sends to it.
            Ok(()) | Err(Stopped::Client(Abort::Closed(_))) => return false,
            Err(Stopped::Client(Abort::BodyTimedOut)) => {
                let text = format!("client timed out (110: Connection timed out) {READING_BODY}");
                (408, Told::new(Level::Info, text))
            }
            Err(Stopped::Client(Abort::BodyTooLarge { received, chunk })) => {
                let length = received + chunk;
                let text =
                    format!("client intended to send too large chunked body: {length} bytes");
                (413, Told::new(Level::Error, text))
            }
            Err(Stopped::Client(Abort::BadBody(text))) => (400, Told::new(Level::Info, text)),
            Err(Stopped::Client(_)) => (400, Told::new(Level::Info, "client broke off its body")),
            Err(Stopped::TimedOut) => {
                let text = format!("upstream timed out (110: Connection timed out) {SENDING}");
                (504, Told::new(Level::Error, text))
            }
            Err(Stopped::File(text)) => (500, Told::new(Level::Crit, format!("{text} {SENDING}"))),
        };
        self.refused.set(Some(status));
        self.told = Some(told);
        self.is_broken = true;
        true
    }
}

impl std::fmt::Debug for BesideUpload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BesideUpload")
    }
}

impl Source for BesideUpload {
    fn next(&mut self) -> Given {
        if let Some(told) = self.told.take() {
            return Given::Told(told);
        }
        if self.is_broken {
            return Given::Broken(Break::Framing);
        }
        self.source.next()
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.advance(context) {
            return Poll::Ready(());
        }
        self.source.poll_more(context)
    }

    fn poll_ahead(&mut self, context: &mut Context<'_>) -> Poll<Result<Told, Break>> {
        if self.advance(context) {
            return Poll::Ready(Err(Break::Framing));
        }
        self.source.poll_ahead(context)
    }

    fn queued_max(&self) -> Option<usize> {
        self.source.queued_max()
    }

    fn is_whole(&self) -> bool {
        self.source.is_whole()
    }

    fn outlives_client(&self) -> bool {
        self.source.outlives_client()
    }

    fn trailers(&mut self) -> Vec<Field> {
        self.source.trailers()
    }

    fn give_up(&mut self, left: &Abort) -> Told {
        self.source.give_up(left)
    }

    fn beginning(&self) -> &'static str {
        self.source.beginning()
    }
}
