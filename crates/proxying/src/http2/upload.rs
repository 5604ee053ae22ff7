//! Sends a request's body to a peer while the response is awaited or received: a body that is being
//! received from the client, or one in a file.

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
use http::exchange::upload::Upload;
use http_client::{Sender, StreamFlow};
use proto::base64::{Decoder, NotBase64};

use crate::request_framing::BACKLOG_MAX;
use crate::stopped::UploadError;

/// Maximum number of bytes of a streamed body that are kept for another attempt, in addition to
/// those received before the first attempt.
const KEPT_MAX: usize = 64 * 1024;

/// The body of a request.
pub enum RequestBody {
    /// No body.
    None,
    /// A body that Tidegate has made.
    Text(Bytes),
    /// The client's body, which has been read completely.
    Stored,
    /// The client's body, read completely into a file as base64 text, which is decoded when sent.
    InBase64,
    /// The client's body while it is being received, with the part received so far.
    Begun(Rc<ReplayableUpload>),
}

/// A body that is being sent in the background of other work. `poll` continues to send.
pub struct StreamUpload {
    /// The future that sends the body.
    way: Pin<Box<dyn Future<Output = Result<(), UploadError>>>>,
    flow: Rc<StreamFlow>,
    /// The body is still being received from the client.
    is_of_client: bool,
}

impl StreamUpload {
    /// Sends a body that is received from the client.
    pub(super) fn of_client(
        client: Upload,
        sender: Sender,
        begun: Rc<ReplayableUpload>,
        timeout: Duration,
    ) -> StreamUpload {
        StreamUpload {
            flow: Rc::clone(sender.flow()),
            way: Box::pin(pass_on(client, sender, begun, timeout)),
            is_of_client: true,
        }
    }

    /// Sends a body from a file of this length. `decoder` decodes a body that is base64 text.
    pub(super) fn of_file(
        file: File,
        length: u64,
        decoder: Option<Decoder>,
        sender: Sender,
        timeout: Duration,
    ) -> StreamUpload {
        StreamUpload {
            flow: Rc::clone(sender.flow()),
            way: Box::pin(read(file, length, decoder, sender, timeout)),
            is_of_client: false,
        }
    }

    /// Continues to send; ready when the body has been sent or cannot be sent.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), UploadError>> {
        self.way.as_mut().poll(context)
    }

    /// Whether the body is still being received from the client.
    pub(crate) fn is_of_client(&self) -> bool {
        self.is_of_client
    }

    /// Bytes of the body that have been queued.
    pub(crate) fn sent(&self) -> u64 {
        self.flow.sent() + self.flow.queued() as u64
    }
}

/// The part of a streamed client's body that has been received before a response, kept so that it
/// can be sent to the next peer if a peer has not processed the request.
pub struct ReplayableUpload {
    parts: RefCell<Pieces>,
    /// Bytes received after the initial part.
    length: Cell<usize>,
    /// Whether the kept parts end the body.
    has_ended: Cell<bool>,
    /// Whether a part of the body has been discarded, so that the body cannot be sent again.
    is_lost: Cell<bool>,
    /// Decodes the received bytes, if they are base64 text.
    decoder: RefCell<Option<Decoder>>,
}

impl ReplayableUpload {
    fn new(parts: Pieces, decoder: Option<Decoder>) -> ReplayableUpload {
        ReplayableUpload {
            parts: RefCell::new(parts),
            length: Cell::new(0),
            has_ended: Cell::new(false),
            is_lost: Cell::new(false),
            decoder: RefCell::new(decoder),
        }
    }

    /// Decodes the next received part. `ends` says that the body ends with this part. The result
    /// may be empty if no base64 group is complete.
    fn decoded(&self, part: Option<Bytes>, ends: bool) -> Result<Option<Bytes>, NotBase64> {
        let mut decoder = self.decoder.borrow_mut();
        let Some(decoder) = &mut *decoder else {
            return Ok(part);
        };
        let decoded = part.map(|part| decode_part(decoder, &part)).transpose()?;
        if ends {
            decoder.finish()?;
        }
        Ok(decoded)
    }

    /// Keeps parts that are being passed on, and notes whether they end the body.
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

    /// Queues the kept parts. Returns whether they are the whole body.
    pub(super) fn push(&self, sender: &Sender) -> bool {
        sender.push(self.parts.borrow().iter().cloned(), self.has_ended.get());
        self.has_ended.get()
    }

    /// Whether any bytes were received after the initial part.
    pub(super) fn has_come(&self) -> bool {
        self.length.get() > 0
    }

    /// Discards the kept parts: the body will not be sent again.
    pub(super) fn forget(&self) {
        self.is_lost.set(true);
        self.parts.take();
    }

    /// Whether the body cannot be sent again.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.get()
    }
}

impl From<Pieces> for RequestBody {
    fn from(parts: Pieces) -> RequestBody {
        RequestBody::Begun(Rc::new(ReplayableUpload::new(parts, None)))
    }
}

impl RequestBody {
    /// The client's body while it is received in base64, with the received and decoded part.
    pub fn begun_in_base64(parts: Pieces, decoder: Decoder) -> RequestBody {
        RequestBody::Begun(Rc::new(ReplayableUpload::new(parts, Some(decoder))))
    }
}

/// Decodes a part of a base64 text, as far as its groups are complete.
pub fn decode_part(decoder: &mut Decoder, part: &[u8]) -> Result<Bytes, NotBase64> {
    let mut bytes = Vec::new();
    decoder.decode(part, &mut bytes)?;
    Ok(bytes.into())
}

/// Sends a client's body as it is received, as fast as the peer reads it.
async fn pass_on(
    mut client: Upload,
    sender: Sender,
    begun: Rc<ReplayableUpload>,
    timeout: Duration,
) -> Result<(), UploadError> {
    while sender.flow().end().is_none() {
        let part = either(client.next(), ended(&sender)).await;
        let part = match part {
            Either::First(part) => part.map_err(|abort| UploadError::by(&client, abort))?,
            Either::Second(()) => return Ok(()),
        };
        let ends = part.is_none() || client.is_read();
        let part = begun
            .decoded(part, ends)
            .map_err(|NotBase64| UploadError::NotBase64)?;
        begun.note(&part, ends);
        sender.push(part, ends);
        if ends {
            break;
        }
        drained(&sender, BACKLOG_MAX, timeout).await?;
    }
    drop(client); // a client that leaves now is noticed by the sender of the response
    drained(&sender, 0, timeout).await
}

/// Sends a body from a file, as fast as the peer reads it.
async fn read(
    file: File,
    length: u64,
    mut decoder: Option<Decoder>,
    sender: Sender,
    timeout: Duration,
) -> Result<(), UploadError> {
    let mut offset = 0;
    while sender.flow().end().is_none() {
        let wanted = (length - offset).min(BACKLOG_MAX as u64) as usize;
        let part = match file.read_at(offset, wanted).await {
            Ok(part) if !part.is_empty() => part,
            Ok(_) => return Err(UploadError::File("pread() read nothing".to_owned())),
            Err(error) => {
                let error = logs::Errno(&error);
                return Err(UploadError::File(format!("pread() failed {error}")));
            }
        };
        offset += part.len() as u64;
        let ends = offset == length;
        let part = match &mut decoder {
            Some(decoder) => decode_part(decoder, &part)
                .and_then(|part| {
                    if ends {
                        decoder.finish().map(|()| part)
                    } else {
                        Ok(part)
                    }
                })
                .map_err(|NotBase64| UploadError::NotBase64)?,
            None => part,
        };
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

/// Waits until at most `limit` bytes are queued. Fails if the peer reads nothing for `timeout`.
async fn drained(sender: &Sender, limit: usize, timeout: Duration) -> Result<(), UploadError> {
    let flow = sender.flow();
    while flow.queued() > limit {
        let before = flow.sent();
        let progress = poll_fn(|context| match flow.poll_drained(limit, context.waker()) {
            Poll::Pending if flow.sent() == before => Poll::Pending,
            _ => Poll::Ready(()),
        });
        if let Either::Second(()) = either(progress, engine::sleep(timeout)).await {
            sender.suspect_dead();
            return Err(UploadError::TimedOut);
        }
        if flow.end().is_some() {
            return Ok(());
        }
    }
    Ok(())
}
