//! Sends responses: passes the head and the body through the filter [chain](crate::response::chain)
//! to the exchange.
//!
//! Bodies are sequences of [`Piece`]s. Filters transform pieces synchronously. The functions of
//! this file do everything that is asynchronous: they read the source, run the subrequests of
//! `Include` pieces and send their responses in order, and read `File` pieces into memory if a
//! filter needs their bytes.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use engine::PooledFuture;
use engine::file::File;
use engine::select::{Either, either};
use proto::method::Method;

use crate::exchange::Exchange;
use crate::exchange::abort::Abort;
use crate::logging::subject::DetachedSubject;
use crate::logging::{self, request_log};
use crate::request::activity::WHILE_SENDING_ON;
use crate::request::body::reading;
use crate::request::phases;
use crate::request::{Request, Step};
use crate::response::chain::{Chain, FilterRejection, Parts};
use crate::response::piece::{Include, Piece, Purpose, READ_SIZE};
use crate::response::source::{Body, BodyError, Source, SourceEvent};
use crate::subrequest::included::IncludedSubrequest;

impl Body {
    /// The activity for log lines when the response begins, in nginx's words. It depends on the
    /// kind of the body.
    fn sending(&self, request: &Request) -> &'static str {
        match self {
            Body::Source(source) => source.beginning(),
            Body::Empty | Body::Pieces(_) if request.activity.sending.is_empty() => {
                request.activity.doing
            }
            Body::Empty | Body::Pieces(_) => request.activity.sending,
        }
    }

    /// The last activity for log lines if only the head of the response is needed.
    fn head_only_activity(&self, request: &Request) -> &'static str {
        match self {
            Body::Source(_) => WHILE_SENDING_ON,
            Body::Empty | Body::Pieces(_) => self.sending(request),
        }
    }
}

/// Sends the response in `request.response` with this body. For a subrequest only the body is sent,
/// at the current position in the main response.
///
/// Returns a step if a filter rejects the response (412, 416), since an error page may follow.
///
/// The futures that send pieces are allocated separately, so that requests that wait for an
/// upstream need no memory for them.
pub async fn respond(
    request: &mut Request,
    exchange: &mut Exchange,
    body: Body,
) -> Result<Option<Step>, Abort> {
    keep_error_status(request);
    if request.nesting.head_only {
        request.activity.doing = body.head_only_activity(request);
        return Ok(None);
    }
    if let Err(status) = reading::discard_received(request, exchange).await {
        // As in nginx, the body is checked before the response has any fields.
        request.response.clear_file_fields();
        return Ok(Some(Step::Finish(status)));
    }
    request.keepalive.on = exchange.keeps_alive(request);
    request.activity.sending = body.sending(request);
    request.activity.doing = request.activity.sending;
    let mut chain = match Chain::of_response(request) {
        Ok(chain) => chain,
        Err(FilterRejection::Status(status)) => return Ok(Some(Step::Finish(status))),
        Err(FilterRejection::Abort(abort)) => return Err(abort),
    };
    let mut body = body;
    if let Some(mut encoder) = chain.take_encoder() {
        let known = chain.is_plain().then(|| encoder.known()).flatten();
        match known {
            Some(encoded) => {
                // As in nginx, the encoder logs nothing for a body that is not sent.
                if request.method != Method::Head {
                    encoder.end(request);
                }
                body = Body::bytes(encoded);
            }
            None => exchange.set_encoder(encoder),
        }
    }
    if request.is_main() {
        request.start_background();
        logging::debug::response(request);
        exchange.send_head(request)?;
        if request.response.header_only {
            // As in nginx, an upstream's 204 or 304 has trailers, which logs may contain.
            let by_status =
                request.response.status_text.is_some() && request.method != Method::Head;
            if by_status && request.response.expect_trailers {
                request.activity.doing = WHILE_SENDING_ON;
                chain.add_trailers(request);
            }
            exchange.end(request).await?;
            return Ok(None);
        }
    }
    // As in nginx, the subrequests for text behind the body start as soon as the whole body is
    // available, concurrently with those for text before it.
    let joins_end = chain.appends_to_body();
    let mut last = None;
    match body {
        Body::Empty => {}
        Body::Pieces(mut pieces) => {
            if joins_end {
                last = pieces.pop();
            }
            for piece in pieces {
                if let Err(piece) = send_at_once(request, exchange, &chain, piece) {
                    let sent = send_piece(request, exchange, &mut chain, piece);
                    PooledFuture::new(sent).await?;
                }
            }
        }
        Body::Source(mut source) => {
            request.activity.sending = WHILE_SENDING_ON;
            request.activity.doing = WHILE_SENDING_ON;
            // Only made if the source is not ready.
            let mut reader: Option<DetachedSubject> = None;
            loop {
                let given = source.next();
                let next = match given {
                    SourceEvent::Piece(piece) => Ok(Some(piece)),
                    SourceEvent::End => Ok(None),
                    given => {
                        let reader = reader.get_or_insert_with(|| DetachedSubject::of(request));
                        let next = next_piece(given, &mut *source, reader, request, exchange);
                        PooledFuture::new(next).await
                    }
                };
                let piece = match next {
                    Ok(Some(piece)) => piece,
                    Ok(None) => {
                        request.response.trailers.extend(source.trailers());
                        break;
                    }
                    Err(abort) => {
                        if matches!(abort, Abort::Upstream) {
                            Box::pin(send_stub(request, exchange, &mut chain)).await?;
                        }
                        return Err(abort);
                    }
                };
                if joins_end && source.is_whole() {
                    last = Some(piece);
                } else {
                    exchange.set_queued_max(source.queued_max());
                    if let Err(piece) = send_at_once(request, exchange, &chain, piece) {
                        let reader = reader.get_or_insert_with(|| DetachedSubject::of(request));
                        let sent = send_piece(request, exchange, &mut chain, piece);
                        let sent = pin!(PooledFuture::new(sent));
                        wait_while_source_runs(&mut *source, reader, sent).await?;
                    }
                }
            }
        }
    }
    if request.nesting.stub.is_some() {
        Box::pin(send_stub(request, exchange, &mut chain)).await?;
    }
    if let Some(parts) = chain.take_parts() {
        Box::pin(send_parts(request, exchange, &mut chain, parts)).await?;
    }
    chain.add_trailers(request);
    match last {
        Some(piece) => {
            PooledFuture::new(send_last(request, exchange, &mut chain, piece)).await?;
        }
        None => {
            if let Err(piece) = send_at_once(request, exchange, &chain, Piece::Last) {
                PooledFuture::new(send_piece(request, exchange, &mut chain, piece)).await?;
            }
        }
    }
    if request.is_main() {
        exchange.end(request).await?;
    }
    Ok(None)
}

/// Sends the head in `request.response`, after which the connection is a tunnel. Returns a step if
/// a filter rejects the response.
pub fn respond_with_upgrade(
    request: &mut Request,
    exchange: &mut Exchange,
) -> Result<Option<Step>, Abort> {
    keep_error_status(request);
    match Chain::of_response(request) {
        Ok(_) => {} // a tunnel has no body for filters
        Err(FilterRejection::Status(status)) => return Ok(Some(Step::Finish(status))),
        Err(FilterRejection::Abort(abort)) => return Err(abort),
    }
    logging::debug::response(request);
    exchange.send_head(request)?;
    Ok(None)
}

/// Gives the response of an error page the status of the error, or the status that `error_page`
/// sets.
fn keep_error_status(request: &mut Request) {
    if request.routing.error_status != 0 {
        request.response.status = request.routing.error_status;
        request.response.status_text = None;
    }
}

/// Sends a piece of an unfiltered main response, if no wait is needed. Any other piece is returned.
fn send_at_once(
    request: &mut Request,
    exchange: &mut Exchange,
    chain: &Chain,
    piece: Piece,
) -> Result<(), Piece> {
    if !chain.is_empty() || !request.is_main() {
        return Err(piece);
    }
    let is_output = piece.is_output();
    exchange.send_at_once(request, piece)?;
    request.sent.begun |= is_output;
    Ok(())
}

/// The next piece of a source, whose last event is `given`; `None` at the end of the body. Flushes
/// to the client before it waits for more. The wait ends if the client leaves, unless the source is
/// to continue without a client.
async fn next_piece(
    given: SourceEvent,
    source: &mut dyn Source,
    reader: &DetachedSubject,
    request: &mut Request,
    exchange: &mut Exchange,
) -> Result<Option<Piece>, Abort> {
    let mut given = Some(given);
    loop {
        match given.take().unwrap_or_else(|| source.next()) {
            SourceEvent::Piece(piece) => return Ok(Some(piece)),
            SourceEvent::End => return Ok(None),
            SourceEvent::Told(told) => {
                told.write(request);
                continue;
            }
            SourceEvent::Broken(BodyError::Unfinished) => {
                // The client still gets the part that has been received.
                wait_while_source_runs(source, reader, pin!(exchange.flush(request))).await?;
                // As in nginx, `$request_completion` is `OK` nevertheless.
                request.sent.complete = true;
                return Err(Abort::Upstream);
            }
            SourceEvent::Broken(BodyError::Reset) => {
                request.sent.complete = false;
                // If the end of the connection marks the end of the body, the client would regard
                // the part as the whole body, so the rest of the queue is not sent. As in nginx, a
                // client that has been sent nothing yet gets no response.
                if !exchange.ends_with_connection() {
                    wait_while_source_runs(source, reader, pin!(exchange.flush(request))).await?;
                }
                return Err(Abort::UpstreamFraming);
            }
            SourceEvent::Broken(
                BodyError::Framing | BodyError::BufferFailed | BodyError::Request,
            ) => {
                request.sent.complete = false;
                return Err(Abort::UpstreamFraming);
            }
            SourceEvent::Nothing => {}
        }
        // Data that has been received by now is sent together with the queue.
        if poll_fn(|context| Poll::Ready(source.poll_more(context).is_ready())).await {
            continue;
        }
        let waited = wait_while_source_runs(source, reader, pin!(exchange.flush(request))).await?;
        if waited {
            continue; // the source may have more by now
        }
        let outlives_client = source.outlives_client();
        let more = more_or_late(source, exchange.flush_at());
        let is_late = if outlives_client {
            more.await
        } else {
            match either(more, exchange.client_gone()).await {
                Either::First(is_late) => is_late,
                Either::Second(left) => {
                    source.give_up(&left).write(request);
                    return Err(request.client_left(exchange));
                }
            }
        };
        if is_late {
            let flushed = pin!(exchange.send(request, Piece::Flush));
            wait_while_source_runs(source, reader, flushed).await?;
        }
    }
}

/// Waits until the source has more. True if the deadline passes first.
async fn more_or_late(source: &mut dyn Source, deadline: Option<Instant>) -> bool {
    let more = poll_fn(|context| source.poll_more(context));
    match deadline {
        None => {
            more.await;
            false
        }
        Some(deadline) => {
            let late = engine::sleep_until(deadline);
            matches!(either(more, late).await, Either::Second(()))
        }
    }
}

/// Waits for `other` while the source reads ahead. True if `other` was not ready at once.
async fn wait_while_source_runs(
    source: &mut dyn Source,
    reader: &DetachedSubject,
    mut other: Pin<&mut impl Future<Output = Result<(), Abort>>>,
) -> Result<bool, Abort> {
    let mut has_waited = false;
    poll_fn(|context| {
        let done = other.as_mut().poll(context);
        if done.is_pending() {
            has_waited = true;
            while let Poll::Ready(come) = source.poll_prefetch(context) {
                match come {
                    Ok(told) => told.write(reader),
                    Err(_) => return Poll::Ready(Err(Abort::UpstreamFraming)),
                }
            }
        }
        done
    })
    .await?;
    Ok(has_waited)
}

/// Fetches and sends the further parts of a response that is fetched in parts (`slice`).
async fn send_parts(
    request: &mut Request,
    exchange: &mut Exchange,
    chain: &mut Chain,
    mut parts: Box<dyn Parts>,
) -> Result<(), Abort> {
    while let Some((mut part, start)) = parts.next(request)? {
        chain.seek(start);
        let sent = send_part(request, exchange, chain, &mut *parts, &mut part);
        let outcome = Box::pin(sent).await;
        if part.plan.core.log_subrequest {
            request_log::log(&mut part);
        }
        parts.end(request, &mut part);
        outcome?;
    }
    Ok(())
}

async fn send_part(
    request: &mut Request,
    exchange: &mut Exchange,
    chain: &mut Chain,
    parts: &mut dyn Parts,
    part: &mut Request,
) -> Result<(), Abort> {
    let body = match phases::content(part, exchange).await? {
        Step::Respond(body) => body,
        Step::Finish(status) => {
            part.response.status = status;
            Body::Empty
        }
        _ => Body::Empty,
    };
    parts.judge(part)?;
    match body {
        Body::Empty => {}
        Body::Pieces(pieces) => {
            for piece in pieces {
                send_piece(request, exchange, chain, piece).await?;
            }
        }
        Body::Source(mut source) => {
            let reader = DetachedSubject::of(part);
            loop {
                let given = source.next();
                let next = next_piece(given, &mut *source, &reader, part, exchange);
                let Some(piece) = next.await? else { break };
                exchange.set_queued_max(source.queued_max());
                let sent = pin!(send_piece(request, exchange, chain, piece));
                wait_while_source_runs(&mut *source, &reader, sent).await?;
            }
        }
    }
    Ok(())
}

/// Sends the stub of an included response that turned out to be empty.
async fn send_stub(
    request: &mut Request,
    exchange: &mut Exchange,
    chain: &mut Chain,
) -> Result<(), Abort> {
    match request.nesting.stub.take() {
        Some(stub) if !request.sent.begun => {
            send_piece(request, exchange, chain, Piece::Bytes(stub.text)).await
        }
        _ => Ok(()),
    }
}

/// Sends a piece of the source through the request's filters. Ranges are cut first. Files are then
/// read into memory if a filter needs their bytes.
async fn send_piece(
    request: &mut Request,
    exchange: &mut Exchange,
    chain: &mut Chain,
    piece: Piece,
) -> Result<(), Abort> {
    if chain.is_empty() && !matches!(piece, Piece::Include(_)) {
        // The usual case, which needs no lists.
        request.sent.begun |= piece.is_output();
        return send_one(request, exchange, piece).await;
    }
    let mut cut = Vec::new();
    chain.cut(piece, &mut cut)?;
    for piece in cut {
        match piece {
            Piece::File {
                file,
                offset,
                length,
            } if chain.needs_bytes() => {
                let mut reading = FileReader::new(file, offset, length);
                while !reading.is_done() {
                    exchange.room(request).await?;
                    if let Some(piece) = reading.next(READ_SIZE).await? {
                        send_filtered(request, exchange, chain, piece, false).await?;
                    }
                }
            }
            piece => send_filtered(request, exchange, chain, piece, false).await?,
        }
    }
    Ok(())
}

/// Sends the last piece of the source together with the end of the body.
async fn send_last(
    request: &mut Request,
    exchange: &mut Exchange,
    chain: &mut Chain,
    piece: Piece,
) -> Result<(), Abort> {
    let piece = match piece {
        Piece::File {
            file,
            offset,
            length,
        } if chain.needs_bytes() => {
            let mut reading = FileReader::new(file, offset, length);
            let mut last = None;
            while let Some(piece) = reading.next(READ_SIZE).await? {
                if let Some(before) = last.replace(piece) {
                    send_filtered(request, exchange, chain, before, false).await?;
                }
            }
            last.unwrap_or(Piece::Last)
        }
        piece => piece,
    };
    let ends = !matches!(piece, Piece::Last);
    send_filtered(request, exchange, chain, piece, ends).await
}

/// Sends a piece through the body filters. If the piece `ends` the body, the end follows at once,
/// except that a filter that waits for the response of a subrequest resumes first.
async fn send_filtered(
    request: &mut Request,
    exchange: &mut Exchange,
    chain: &mut Chain,
    piece: Piece,
    ends: bool,
) -> Result<(), Abort> {
    request.sent.begun |= piece.is_output();
    let mut out = Vec::new();
    let mut rest = Some(piece);
    while let Some(mut piece) = rest.take() {
        rest = chain.split(&mut piece);
        chain.apply(request, piece, &mut out)?;
        if ends && rest.is_none() {
            chain.apply(request, Piece::Last, &mut out)?;
        }
        loop {
            send_all(request, exchange, &mut out).await?;
            if !chain.resume(request, &mut out)? {
                break;
            }
        }
        if rest.is_some() {
            engine::yield_now().await;
        }
    }
    Ok(())
}

/// Sends pieces that have passed the filters. The subrequests of all includes are started together,
/// and their responses are sent in order.
async fn send_all(
    request: &mut Request,
    exchange: &mut Exchange,
    pieces: &mut Vec<Piece>,
) -> Result<(), Abort> {
    let mut started = VecDeque::new();
    for piece in pieces.iter() {
        if let Piece::Include(include) = piece
            && IncludedSubrequest::has_room(request)
        {
            started.push_back(start(request, include));
        }
    }
    for piece in pieces.drain(..) {
        match piece {
            Piece::Include(include) => {
                let running = match started.pop_front() {
                    Some(running) => running,
                    None => start(request, &include),
                };
                if let Some(running) = running {
                    resolve(request, exchange, running, include.purpose).await?;
                }
            }
            piece => send_one(request, exchange, piece).await?,
        }
    }
    Ok(())
}

/// Passes a piece to the exchange. The end of a subrequest's body is left out, since it does not
/// end the response.
async fn send_one(
    request: &mut Request,
    exchange: &mut Exchange,
    piece: Piece,
) -> Result<(), Abort> {
    match piece {
        Piece::Last if !request.is_main() => Ok(()),
        Piece::File {
            file,
            offset,
            length,
        } if !exchange.can_sendfile(length) => {
            let mut reading = FileReader::new(file, offset, length);
            while !reading.is_done() {
                let room = exchange.room(request).await?;
                if let Some(piece) = reading.next(room).await? {
                    exchange.send(request, piece).await?;
                }
            }
            Ok(())
        }
        piece => exchange.send(request, piece).await,
    }
}

/// Starts an included subrequest. `None` if includes nest too deeply, so that nothing is included.
fn start(request: &mut Request, include: &Include) -> Option<IncludedSubrequest> {
    let (uri, args) = (include.uri.clone(), include.args.clone());
    let mut child = request.subrequest(uri, args, false)?;
    child.body = request.body.shared();
    match &include.purpose {
        Purpose::Output => {}
        Purpose::OutputOr(stub) => child.nesting.stub = Some(stub.clone()),
        Purpose::Value { .. } => {
            child.nesting.in_memory = true;
            child.sent.body_bytes = 0;
        }
    }
    Some(IncludedSubrequest::start(request, child))
}

/// Sends the response of an included subrequest, or passes it to the function that it is meant for.
async fn resolve(
    request: &mut Request,
    exchange: &mut Exchange,
    running: IncludedSubrequest,
    purpose: Purpose,
) -> Result<(), Abort> {
    let Purpose::Value { name, put } = purpose else {
        while let Some(piece) = running.next(exchange).await {
            send_one(request, exchange, piece).await?;
        }
        let ended = running.ended().await?;
        request.activity.sending = ended.sending;
        request.activity.doing = ended.sending;
        return Ok(());
    };
    let mut value = Vec::new();
    while let Some(piece) = running.next(exchange).await {
        match piece {
            Piece::Bytes(bytes) => value.extend_from_slice(&bytes),
            Piece::File {
                file,
                offset,
                length,
            } => {
                let mut reading = FileReader::new(file, offset, length);
                while let Some(Piece::Bytes(bytes)) = reading.next(READ_SIZE).await? {
                    value.extend_from_slice(&bytes);
                }
            }
            _ => {}
        }
    }
    let ended = running.ended().await?;
    request.activity.sending = ended.sending;
    request.activity.doing = ended.sending;
    if ended.status < 300 && !value.is_empty() {
        put(request, &name, value.into());
    }
    Ok(())
}

/// Reads a range of a file into memory, piece by piece.
struct FileReader {
    file: File,
    range: Range<u64>,
}

impl FileReader {
    fn new(file: File, offset: u64, length: u64) -> FileReader {
        FileReader {
            file,
            range: offset..offset.saturating_add(length),
        }
    }

    /// Whether the end of the range has been reached.
    fn is_done(&self) -> bool {
        self.range.is_empty()
    }

    /// The next piece, of at most `most` bytes; `None` at the end of the range.
    async fn next(&mut self, most: u64) -> Result<Option<Piece>, Abort> {
        if self.is_done() {
            return Ok(None);
        }
        let length = (self.range.end - self.range.start).min(most);
        let bytes = self
            .file
            .read_at(self.range.start, length as usize)
            .await
            .map_err(Abort::File)?;
        if bytes.is_empty() {
            return Err(Abort::FileTruncated);
        }
        self.range.start += bytes.len() as u64;
        Ok(Some(Piece::Bytes(bytes)))
    }
}

/// Runs a subrequest without a body to its end, and returns it for its status and head. The
/// subrequest shares variables and captures with the main request.
pub async fn subrequest(
    request: &mut Request,
    exchange: &mut Exchange,
    uri: Vec<u8>,
    args: Vec<u8>,
    head_only: bool,
) -> Result<Option<Box<Request>>, Abort> {
    let Some(mut child) = request.subrequest(uri, args, head_only) else {
        return Ok(None);
    };
    child.body = request.body.withheld();
    let outcome = Box::pin(phases::handle(&mut child, exchange)).await;
    if child.plan.core.log_subrequest {
        request_log::log(&mut child);
    }
    request.absorb(&mut child);
    request.activity.doing = child.activity.doing;
    outcome.map(|()| Some(child))
}

/// Answers a failed subrequest with its stub.
pub fn respond_with_stub(request: &mut Request) -> Step {
    let Some(stub) = request.nesting.stub.take() else {
        return Step::Finish(500); // not reached: callers check for a stub
    };
    // As in nginx, the stub has no status, since it is not a response of its own.
    request.response.status = 0;
    request.response.content_type = stub.content_type;
    request.response.content_length = None;
    Step::Respond(Body::bytes(stub.text))
}

/// A step that sends a response with this status, type and body.
pub fn page(request: &mut Request, status: u16, content_type: Bytes, body: Bytes) -> Step {
    request.response.status = status;
    request.response.content_type = content_type;
    request.response.content_length = Some(body.len() as u64);
    Step::Respond(Body::bytes(body))
}
