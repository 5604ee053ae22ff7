//! Sends a request on an HTTP/2 stream, reads the head of the response, and delivers the response.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use engine::Buffer;
use engine::select::{Either, either};
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::request::body::reading;
use http::request::interrupt::Interrupt;
use http::request::{Request, Step};
use http_client::{StreamEnd, StreamFlow, StreamHandle, StreamHead, TOO_LARGE};
use proto::base64::Decoder;
use proto::h2::ErrorCode;
use proto::h2::client::RequestStart;

use super::body::StreamBody;
use super::head::RequestHead;
use super::upload::{RequestBody, StreamUpload};
use crate::activity::{READING, SENDING};
use crate::body::{BodyDelimiter, BodyPrefix};
use crate::connection::UpstreamConnection;
use crate::deliver::Delivery;
use crate::failures::{AttemptError, client_left, failed, note};
use crate::family::Causes;
use crate::interim::Informational;
use crate::peer_attempts::Dialogue;
use crate::response::{
    ResponseHeadReader, UpstreamResponse, bad, examine, is_informational, note_head, remember,
};
use crate::sending::handle_aborted_body;
use crate::settings::PassSettings;
use crate::stopped::{NOT_BASE64, UploadError};
use crate::upload::{RefusedWith, RestOfBody};
use ::upstream::AttemptFailure;

/// How often a request is sent again without counting as an attempt, if peers have not processed
/// it.
const UNSERVED_MAX: u32 = 3;

/// The dialogue with one peer about one request; see the module.
pub struct Http2Dialogue<'a> {
    /// The `*_pass` settings of the scope.
    pub(crate) passing: &'a Arc<PassSettings>,
    /// The head of the request.
    pub(crate) head: &'a RequestHead,
    /// The response has no body, whatever its head says.
    pub is_head: bool,
    /// The body of the request.
    pub(crate) body: &'a RequestBody,
    /// A complete response counts even if its stream is reset afterwards.
    keeps_complete_response: bool,
    /// If present, receives the error code of the last attempt whose stream the peer has reset
    /// before a response.
    reset: Option<&'a Cell<Option<ErrorCode>>>,
    /// How often a peer has refused the request without processing it.
    unserved: Cell<u32>,
    /// Whether a shared connection has ended before a response, so that the next end counts as any
    /// other failure.
    has_lost: Cell<bool>,
}

/// A response whose head has been received.
pub struct Http2Answer {
    /// The head, and the data that was received with it.
    pub read: UpstreamResponse,
    /// Receives the status for a failed upload of the request's body, if a part of the body is
    /// left.
    refused: Option<RefusedWith>,
    flow: Rc<StreamFlow>,
}

/// Tells why the body of a response was broken off, after the fact.
pub struct BodyFault {
    flow: Rc<StreamFlow>,
    refused: Option<RefusedWith>,
}

impl BodyFault {
    /// The error code with which the peer has reset the stream, if it has.
    pub fn reset(&self) -> Option<ErrorCode> {
        match self.flow.end() {
            Some(StreamEnd::Reset(code, None)) => Some(code),
            _ => None,
        }
    }

    /// The status that the failed upload of the request's body has caused, if that broke off the
    /// response.
    pub fn refused(&self) -> Option<u16> {
        self.refused.as_ref()?.get()
    }
}

impl<'a> Http2Dialogue<'a> {
    /// A dialogue about one request with this head.
    pub fn new(
        passing: &'a Arc<PassSettings>,
        head: &'a RequestHead,
        is_head: bool,
        body: &'a RequestBody,
    ) -> Http2Dialogue<'a> {
        Http2Dialogue {
            passing,
            head,
            is_head,
            body,
            keeps_complete_response: false,
            reset: None,
            unserved: Cell::new(0),
            has_lost: Cell::new(false),
        }
    }

    /// Adapts the dialogue to a gRPC call. A complete response counts even if a reset follows,
    /// while in nginx the reset ends the call. `reset` receives the peer's error code, which gRPC
    /// maps to a status.
    pub fn of_call(self, reset: Option<&'a Cell<Option<ErrorCode>>>) -> Http2Dialogue<'a> {
        Http2Dialogue {
            keeps_complete_response: true,
            reset,
            ..self
        }
    }

    /// Stores the error code of a reset for the creator of the dialogue.
    fn note_reset(&self, code: Option<ErrorCode>) {
        if let Some(reset) = self.reset {
            reset.set(code);
        }
    }
}

/// The events that a request awaits until its response.
enum DialogueEvent {
    /// A head was received, or the stream has ended without one.
    Head(Result<StreamHead, StreamEnd>),
    /// The upload of the request's body has ended.
    Uploaded(Result<(), UploadError>),
    /// The queued part of the body has been sent.
    Sent,
}

impl Dialogue for Http2Dialogue<'_> {
    type Answer = Http2Answer;

    async fn talk(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        peer: &mut UpstreamConnection,
    ) -> Result<Http2Answer, AttemptError> {
        let Some(stream) = peer.shared() else {
            return Err(AttemptError::Refused(500)); // connections of HTTP/2 are always shared
        };
        let ends = match self.body {
            RequestBody::None => true,
            RequestBody::Text(text) => text.is_empty(),
            RequestBody::Stored | RequestBody::InBase64 => {
                request.body.length().unwrap_or_default() == 0
            }
            RequestBody::Begun(_) => false,
        };
        let opening = RequestStart {
            ends,
            is_head: self.is_head,
        };
        if self.keeps_complete_response {
            stream.flow().keep_complete_response();
        }
        if !stream.open(self.head.fields(), self.head.list_size(), opening) {
            return Err(self.not_served());
        }
        let mut upload = if ends {
            None
        } else {
            self.send_body(request, exchange, stream)?
        };
        let sent = stream.flow().sent_in_all();
        note(request, |attempt, _| attempt.bytes_sent += sent);
        let mut reading = ResponseHeadReader::default();
        let read = self
            .read_head(request, exchange, stream, &mut upload, &mut reading)
            .await;
        let flow = Rc::clone(stream.flow());
        // A reset discards the queue of the stream, which may reduce the total.
        let more = flow.sent_in_all().saturating_sub(sent);
        note(request, |attempt, _| attempt.bytes_sent += more);
        let answer = reading.end();
        match read {
            Ok(()) => {
                if let RequestBody::Begun(begun) = self.body {
                    begun.forget();
                }
                let upload = upload.map(RestOfBody::on_stream);
                let refused = upload.as_ref().map(RestOfBody::refused);
                peer.upload = upload.map(Box::new);
                Ok(Http2Answer {
                    read: answer,
                    refused,
                    flow,
                })
            }
            Err(ended) => {
                remember(request, &answer.head);
                Err(ended)
            }
        }
    }

    fn status(&self, answer: &Http2Answer) -> Option<u16> {
        Some(answer.read.head.status())
    }

    fn can_be_repeated(&self) -> bool {
        !matches!(self.body, RequestBody::Begun(_))
    }

    fn head_size(&self) -> usize {
        self.head.list_size()
    }

    fn try_begins(&self) {
        self.note_reset(None);
    }
}

impl Http2Dialogue<'_> {
    /// Starts to send the body: a body in memory is queued at once, any other is sent while the
    /// response is awaited.
    fn send_body(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        stream: &StreamHandle,
    ) -> Result<Option<StreamUpload>, AttemptError> {
        let (sender, timeout) = (stream.sender(), self.passing.tries.send_timeout);
        match self.body {
            RequestBody::None => {}
            RequestBody::Text(text) => sender.push([text.clone()], true),
            RequestBody::Stored | RequestBody::InBase64 => {
                if let Some(parts) = request.body.in_memory() {
                    sender.push(parts.iter().cloned(), true);
                } else if let Some(file) = request.body.file().cloned() {
                    let length = request.body.received();
                    let decoder = match self.body {
                        RequestBody::InBase64 => Some(Decoder::default()),
                        _ => None,
                    };
                    let upload = StreamUpload::of_file(file, length, decoder, sender, timeout);
                    return Ok(Some(upload));
                }
            }
            RequestBody::Begun(begun) => {
                if begun.push(&sender) {
                    return Ok(None);
                }
                // Without the rest of the upload, the body could not be completed.
                let client = exchange.upload(request).ok_or(AttemptError::Refused(500))?;
                let upload = StreamUpload::of_client(client, sender, Rc::clone(begun), timeout);
                return Ok(Some(upload));
            }
        }
        Ok(None)
    }

    /// Reads heads up to that of the final response, while the body is still being sent.
    async fn read_head(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        stream: &StreamHandle,
        upload: &mut Option<StreamUpload>,
        reading: &mut ResponseHeadReader,
    ) -> Result<(), AttemptError> {
        let passing = self.passing;
        let mut informational = Informational::default();
        loop {
            let head = self.wait(request, exchange, stream, upload).await?;
            let length = head.bytes.len();
            let received = stream.flow().received().in_all;
            note(request, |attempt, _| attempt.bytes_received = received);
            *reading = ResponseHeadReader::of(head.head, head.bytes);
            if length > passing.buffer_size {
                logs::error!(request, Error, "{} {READING}", TOO_LARGE);
                return Err(bad(Causes::INVALID_HEADER));
            }
            examine(request, passing, reading);
            if is_informational(&reading.head) {
                informational.take(request, exchange, passing, reading, length)?;
                continue;
            }
            note_head(request, reading.head.status());
            return Ok(());
        }
    }

    /// Waits for a head, the progress of the upload, or the end of the queue.
    async fn wait(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        stream: &StreamHandle,
        upload: &mut Option<StreamUpload>,
    ) -> Result<StreamHead, AttemptError> {
        let tries = &self.passing.tries;
        let flow = stream.flow();
        loop {
            // As in nginx, the read timeout begins once the request has been sent.
            let (timeout, sent) = match (&upload, flow.queued()) {
                (Some(_), _) => (Duration::MAX, flow.sent()),
                (None, 0) => (self.passing.read_timeout, flow.sent()),
                (None, _) => (tries.send_timeout, flow.sent()),
            };
            let is_sending = upload.is_none() && flow.queued() > 0;
            let coming = poll_fn(|context| {
                if let Some(uploading) = upload {
                    let uploaded = uploading.poll(context);
                    // Noted at once, since the waiting future may be dropped.
                    if matches!(self.body, RequestBody::Begun(begun) if begun.has_come()) {
                        request.body.note_taken();
                    }
                    if let Poll::Ready(uploaded) = uploaded {
                        *upload = None;
                        return Poll::Ready(DialogueEvent::Uploaded(uploaded));
                    }
                }
                if let Poll::Ready(head) = stream.poll_head(context) {
                    return Poll::Ready(DialogueEvent::Head(head));
                }
                if is_sending && flow.poll_drained(0, context.waker()).is_ready() {
                    Poll::Ready(DialogueEvent::Sent)
                } else {
                    Poll::Pending
                }
            });
            let coming = either(coming, engine::sleep(timeout));
            let came = if tries.ignore_client_abort {
                coming.await
            } else {
                match either(coming, exchange.client_gone()).await {
                    Either::First(came) => came,
                    Either::Second(abort) => {
                        return Err(client_left(request, exchange, &abort, SENDING).into());
                    }
                }
            };
            match came {
                Either::First(DialogueEvent::Head(Ok(head))) => return Ok(head),
                Either::First(DialogueEvent::Head(Err(end))) => {
                    return Err(self.ended(request, stream, end));
                }
                Either::First(DialogueEvent::Uploaded(Ok(())) | DialogueEvent::Sent) => {}
                Either::First(DialogueEvent::Uploaded(Err(stopped))) => {
                    return Err(not_sent(request, exchange, stopped));
                }
                Either::Second(()) if flow.sent() > sent => {}
                Either::Second(()) => {
                    stream.suspect_dead();
                    let doing = if flow.queued() > 0 { SENDING } else { READING };
                    let error = std::io::ErrorKind::TimedOut.into();
                    let failure = failed(request, &error, "recv()", doing);
                    return Err(AttemptError::Failed(failure));
                }
            }
        }
    }

    /// The error for a stream that has ended without a response head.
    fn ended(&self, request: &Request, stream: &StreamHandle, end: StreamEnd) -> AttemptError {
        if let Some(most) = stream.warns_of(self.head.list_size()) {
            let size = self.head.list_size();
            logs::error!(
                request,
                Error,
                "request header of {size} bytes is larger than the {most} bytes that \
                 upstream takes {READING}"
            );
        }
        if let Some(error) = end.error() {
            let failure = failed(request, &error, "recv()", READING);
            if failure.cause == Causes::ERROR && self.has_connection_ended(stream, end) {
                return connection_lost();
            }
            return AttemptError::Failed(failure);
        }
        logs::error!(request, Error, "{} {READING}", stream.flow().words(end));
        if self.has_connection_ended(stream, end) {
            return connection_lost();
        }
        if let StreamEnd::Reset(code, None) = end {
            self.note_reset(Some(code));
        }
        match end {
            StreamEnd::NotServed(_) | StreamEnd::Reset(ErrorCode::RefusedStream, None) => {
                self.not_served()
            }
            StreamEnd::Lost(..) => bad(Causes::ERROR),
            _ => bad(Causes::INVALID_HEADER),
        }
    }

    /// Whether the shared connection has ended, possibly because of other requests. Only true for
    /// the first such end in this request.
    fn has_connection_ended(&self, stream: &StreamHandle, end: StreamEnd) -> bool {
        let is_of_connection = matches!(end, StreamEnd::Lost(..) | StreamEnd::Violated(_));
        is_of_connection && stream.has_served_others() && !self.has_lost.replace(true)
    }

    /// The error for a request that the peer has not processed: the request may be sent again if
    /// its whole body is still available. The first [`UNSERVED_MAX`] times are no failure of the
    /// peer.
    fn not_served(&self) -> AttemptError {
        let before = self.unserved.replace(self.unserved.get() + 1);
        let is_patient = before < UNSERVED_MAX;
        let is_lost = matches!(self.body, RequestBody::Begun(begun) if begun.is_lost());
        AttemptError::Failed(AttemptFailure {
            cause: Causes::ERROR,
            status: 502,
            doing: READING,
            sent: is_lost,
            kept: is_patient,
            again: false,
            is_busy: is_patient,
            is_of_others: false,
        })
    }
}

/// The error for the end of a shared connection, possibly because of other requests: the request is
/// sent again if it may be repeated. The error counts as a failure of the server.
fn connection_lost() -> AttemptError {
    AttemptError::Failed(AttemptFailure {
        cause: Causes::ERROR,
        status: 502,
        doing: READING,
        sent: true,
        kept: false,
        again: false,
        is_busy: false,
        is_of_others: true,
    })
}

/// The error for a body that could not be sent completely.
fn not_sent(request: &mut Request, exchange: &Exchange, stopped: UploadError) -> AttemptError {
    match stopped {
        UploadError::Connection(abort @ Abort::Closed(_)) => {
            AttemptError::Aborted(handle_aborted_body(request, abort))
        }
        UploadError::Stream(abort @ Abort::Closed(_)) => {
            client_left(request, exchange, &abort, SENDING).into()
        }
        UploadError::Stream(abort) | UploadError::Connection(abort) => {
            match reading::refuse(request, abort) {
                Interrupt::Status(status) => AttemptError::Refused(status),
                Interrupt::Abort(abort) => abort.into(),
            }
        }
        UploadError::TimedOut => {
            let error = std::io::ErrorKind::TimedOut.into();
            AttemptError::Failed(failed(request, &error, "send()", SENDING))
        }
        UploadError::NotBase64 => {
            logs::error!(request, Info, "{NOT_BASE64} {SENDING}");
            AttemptError::Refused(400)
        }
        UploadError::File(text) => {
            logs::error!(request, Crit, "{text} {SENDING}");
            AttemptError::Refused(500)
        }
    }
}

impl Http2Answer {
    /// Makes the rest of the response the body of the client's response.
    pub fn deliver(
        self,
        delivery: &Delivery<'_>,
        request: &mut Request,
        mut peer: UpstreamConnection,
    ) -> Step {
        let rest = peer
            .shared()
            .map_or(Buffer::empty(), |stream| stream.take_body());
        let arrived = BodyPrefix {
            rest,
            beyond: 0,
            may_reuse: true,
        };
        let delimited = BodyDelimiter::Stream(StreamBody(self.flow));
        delivery.respond(request, peer, &self.read.head, delimited, arrived)
    }

    /// A handle that tells, once the body has ended, why it was broken off.
    pub fn outcome(&self) -> BodyFault {
        BodyFault {
            flow: Rc::clone(&self.flow),
            refused: self.refused.clone(),
        }
    }

    /// Whether the complete response has neither body nor trailers.
    pub fn ends_with_head(&self) -> bool {
        self.flow.ends_with_head()
    }
}
