//! Reads a request's body: whole into memory or a temporary file ([`read`]), or piece by piece
//! ([`read_some`]). Also drops a body that no handler reads ([`discard_received`]).

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use base::pieces::Pieces;
use bytes::Bytes;
use engine::PooledFuture;
use engine::file::File;
use engine::select::at_once;
use proto::header::KnownField;
use proto::method::Method;

use crate::exchange::Exchange;
use crate::exchange::abort::Abort;
use crate::logging;
use crate::request::Request;
use crate::request::body::{BodyDestination, BufferedBody, InFileOnly, TemporaryFile};
use crate::request::interrupt::Interrupt;

/// Number of bytes of a body in memory while the body is copied from one file to another.
const COPY_SIZE: usize = 64 * 1024;

/// Reads the whole body.
///
/// # Errors
/// The status of the response (400, 413, 500 or 502), or the reason why no response is possible.
pub async fn read(request: &mut Request, exchange: &mut Exchange) -> Result<(), Interrupt> {
    if request.body.is_read() || !request.is_main() {
        return Ok(());
    }
    refuse_lost_body(request)?;
    if request.body.is_given_up() {
        drop_refused(request, exchange).await;
        return Ok(());
    }
    // Most requests have no body and no `Expect` field.
    if request.body.is_none() && !request.client.has(KnownField::Expect) {
        request.body.stored = BufferedBody::Memory(Pieces::new());
        return Ok(());
    }
    // A future of its own, so that requests without a body need no memory for it.
    PooledFuture::new(read_whole(request, exchange)).await
}

async fn read_whole(request: &mut Request, exchange: &mut Exchange) -> Result<(), Interrupt> {
    let mut parts = Pieces::new();
    let mut held = 0;
    let mut head_buffer_room = head_buffer_room(request) as u64;
    let mut beside_head = 0;
    let mut stored = None;
    loop {
        // The head's buffer may have more room than one receive has filled.
        if head_buffer_room > 0 && !exchange.receive_available(request).await {
            head_buffer_room = 0;
        }
        let before = request.body.received_framed();
        let bytes = match next(request, exchange).await {
            Ok(bytes) => bytes,
            Err(ended) => {
                keep_for_log(request, parts, stored);
                return Err(ended);
            }
        };
        // As in nginx, the framing of chunks occupies the buffer too.
        let taken = request.body.received_framed().saturating_sub(before);
        let placed = head_buffer_room.min(taken);
        head_buffer_room -= placed;
        beside_head += placed;
        held += taken - placed;
        request.body.note_beside_head(beside_head);
        let ended = bytes.is_none();
        bytes.into_iter().for_each(|bytes| parts.push(bytes));
        if held > memory_max(request, beside_head) {
            if stored.is_none() {
                let temporary = create(request).await?;
                log_temporary_file(request, &temporary.path);
                stored = Some((temporary, 0));
            }
            if let Some((temporary, offset)) = &mut stored {
                write(request, &temporary.file, offset, &mut parts).await?;
                held = 0;
            }
        }
        if ended {
            break;
        }
    }
    store(request, parts, stored).await?;
    Ok(())
}

/// Refuses a request whose body is lost, because the handler that consumed the body has failed.
/// Requests without effects (GET and HEAD) go on without the body.
fn refuse_lost_body(request: &Request) -> Result<(), Interrupt> {
    if !request.body.is_lost() || matches!(request.method, Method::Get | Method::Head) {
        return Ok(());
    }
    logs::error!(
        request,
        Error,
        "the body of the request is lost, and cannot be passed on again"
    );
    Err(502.into())
}

/// Drops the received part of a body that was refused for its length. As in nginx, a body that has
/// been received whole then counts as read, and as empty.
async fn drop_refused(request: &mut Request, exchange: &mut Exchange) {
    let had_length = request.body.availability.had_length();
    if had_length
        && exchange.discard_received_body(request).await.is_ok()
        && request.body.has_ended()
    {
        request.body.stored = BufferedBody::Memory(Pieces::new());
    }
}

/// Keeps the received part of a body that breaks off, for the log. As in nginx, the bytes of the
/// last receive are not kept if chunks are refused.
fn keep_for_log(request: &mut Request, mut parts: Pieces, stored: Option<(TemporaryFile, u64)>) {
    if let Some((temporary, _)) = stored {
        request.body.kept_file_for_log = Some(temporary.path.clone());
        return;
    }
    if let Some(refused) = request.body.refused {
        let mut whole = parts.concat();
        whole.truncate(usize::try_from(refused.data).unwrap_or(usize::MAX));
        parts.clear();
        parts.push(whole.into());
    }
    request.body.kept_for_log = parts;
}

/// Reads the whole body into a file that has a name until the request ends: see
/// [`take_file`](super::RequestBody::take_file).
pub async fn read_into_file(
    request: &mut Request,
    exchange: &mut Exchange,
) -> Result<(), Interrupt> {
    request.body.destination = BodyDestination::NamedFile;
    match std::mem::take(&mut request.body.stored) {
        BufferedBody::Memory(parts) => return Ok(store(request, parts, None).await?),
        BufferedBody::File(unnamed) if unnamed.in_file_only == InFileOnly::Off => {
            return Ok(copy(request, &unnamed.file).await?);
        }
        stored => request.body.stored = stored,
    }
    read(request, exchange).await
}

/// Copies a body from an unlinked file to a file with a name.
async fn copy(request: &mut Request, unnamed: &File) -> Result<(), u16> {
    let temporary = create(request).await?;
    let mut offset = 0;
    loop {
        let mut part = Pieces::new();
        match unnamed.read_at(offset, COPY_SIZE).await {
            Ok(bytes) if bytes.is_empty() => break,
            Ok(bytes) => part.push(bytes),
            Err(error) => {
                let error = logs::Errno(&error);
                logs::error!(request, Crit, "pread() of a request body failed {error}");
                return Err(500);
            }
        }
        write(request, &temporary.file, &mut offset, &mut part).await?;
    }
    request.body.stored = BufferedBody::File(Rc::new(temporary));
    Ok(())
}

/// Reads the whole body before the request has a location, so the location's
/// `client_body_in_file_only` does not apply.
pub async fn read_early(request: &mut Request, exchange: &mut Exchange) -> Result<(), Interrupt> {
    request.body.destination = BodyDestination::BeforeLocation;
    let read = read(request, exchange).await;
    request.body.destination = BodyDestination::ByLocation;
    read
}

/// Reads the part of the body that has already been received. Returns `None` if this is the whole
/// body, which is then kept in memory; else returns the received part, for a handler that reads the
/// rest itself.
pub async fn read_received(
    request: &mut Request,
    exchange: &mut Exchange,
) -> Result<Option<Pieces>, Interrupt> {
    if request.body.is_read() || !request.is_main() {
        return Ok(None);
    }
    refuse_lost_body(request)?;
    if request.body.is_given_up() {
        return Ok(None);
    }
    let received_with_head = request.body.received_with_head() as u64;
    let room = match received_with_head {
        0 => 0,
        _ => head_buffer_room(request) as u64,
    };
    let before = request.body.received_framed();
    let mut parts = Pieces::new();
    let mut held = 0;
    loop {
        // The head's buffer may have more room than one receive has filled.
        let beside_head = room.min(received_with_head.max(held));
        let held_max = memory_max(request, beside_head).saturating_add(beside_head);
        if held > held_max || !exchange.receive_available(request).await {
            break;
        }
        // If only an incomplete chunk size line has been received, the rest of the line is not
        // awaited.
        let Some(read) = at_once(next(request, exchange)).await else {
            break;
        };
        let Some(bytes) = read? else {
            // As in nginx, a body that was received whole is not written to a file here, not even
            // with `client_body_in_file_only`.
            request.body.note_end();
            request.body.stored = BufferedBody::Memory(parts);
            return Ok(None);
        };
        // As in nginx, the framing of chunks occupies the buffer too.
        held = request.body.received_framed().saturating_sub(before);
        parts.push(bytes);
    }
    Ok(Some(parts))
}

/// Waits for more of the body, and takes everything that has been received by then, for a handler
/// that streams the body. True if the body has ended. Cancel-safe: if the future is dropped while
/// it waits, no bytes are lost.
pub async fn read_some(
    request: &mut Request,
    exchange: &mut Exchange,
    parts: &mut Pieces,
) -> Result<bool, Interrupt> {
    let mut read = read_next(request, exchange).await?;
    while let Some(bytes) = read {
        parts.push(bytes);
        if !exchange.has_buffered_body() {
            return Ok(false);
        }
        read = match at_once(read_next(request, exchange)).await {
            Some(read) => read?,
            None => return Ok(false),
        };
    }
    Ok(true)
}

/// Drops the received part of a body that no handler reads, before a response that does not depend
/// on the body. Returns 400 if the framing is malformed, which closes the connection. A body that a
/// handler has begun to read, or that was refused for its length, causes no second error.
pub async fn discard_received(request: &mut Request, exchange: &mut Exchange) -> Result<(), u16> {
    if !request.is_main() || request.body.is_read() {
        return Ok(());
    }
    match exchange.discard_received_body(request).await {
        Err(Abort::BadBody(_)) if request.body.has_answer() => Ok(()),
        Err(Abort::BadBody(text)) => {
            logs::error!(request, Error, "{text}");
            request.body.give_up_dropped();
            Err(400)
        }
        _ => Ok(()),
    }
}

/// Stores a body that has been read whole. `parts` is the part that has not been written to the
/// file of `begun`.
async fn store(
    request: &mut Request,
    mut parts: Pieces,
    begun: Option<(TemporaryFile, u64)>,
) -> Result<(), u16> {
    request.body.note_end();
    let in_file = in_file_only(request) != InFileOnly::Off && request.body.is_announced();
    let begun = match begun {
        None if in_file => {
            let temporary = create(request).await?;
            // As in nginx, an empty body is neither written nor logged.
            if parts.iter().any(|bytes| !bytes.is_empty()) {
                log_temporary_file(request, &temporary.path);
            }
            Some((temporary, 0))
        }
        begun => begun,
    };
    request.body.stored = match begun {
        None => BufferedBody::Memory(parts),
        Some((temporary, mut offset)) => {
            write(request, &temporary.file, &mut offset, &mut parts).await?;
            BufferedBody::File(Rc::new(temporary))
        }
    };
    Ok(())
}

/// The number of bytes of a body that fit behind its head into the buffer in which the head ends.
/// As in nginx, a head that fills its buffer continues in a large buffer, to which its unfinished
/// line is moved.
pub fn head_buffer_room(request: &Request) -> usize {
    let limits = request.server.core.head_limits();
    let head = request.client.bytes.as_slice();
    // The first buffer is allocated before the client has named its host.
    let first = request.connection.first_server(&request.local);
    let first_size = first
        .map_or(limits, |server| server.core.head_limits())
        .buffer_size;
    let (mut start, mut size) = (0, first_size);
    let mut is_large = false;
    while let Some(full) = head
        .get(..start + size)
        .filter(|full| full.len() < head.len())
    {
        let line = memchr::memrchr(b'\n', full).map_or(0, |at| at + 1);
        if is_large && line <= start {
            break; // no buffer holds this line
        }
        (start, size) = (line.max(start), limits.large_buffer_size);
        is_large = true;
    }
    (start + size).saturating_sub(head.len())
}

/// Maximum number of bytes of a body that stay in memory in addition to those in the head's buffer.
/// As in nginx, the whole rest of the body stays there if it fits into the head's buffer, or
/// exceeds `client_body_buffer_size` by less than a quarter.
fn memory_max(request: &Request, beside_head: u64) -> u64 {
    let buffer_size = request.plan.core.client_body_buffer_size as u64;
    let generous = buffer_size.saturating_add(buffer_size / 4);
    let left_beside_head = match beside_head {
        0 => 0, // the head's buffer takes no part
        taken => (head_buffer_room(request) as u64).saturating_sub(taken),
    };
    match request.body.announced_length() {
        Some(length) => {
            let rest = length.saturating_sub(beside_head);
            if rest < generous.max(left_beside_head) {
                u64::MAX
            } else {
                buffer_size
            }
        }
        None => buffer_size,
    }
}

/// Reads the next bytes for a handler that needs the whole body. If the client has left, sets the
/// status that is logged.
async fn next(request: &mut Request, exchange: &mut Exchange) -> Result<Option<Bytes>, Interrupt> {
    let read = read_next(request, exchange).await;
    match read {
        Err(Interrupt::Abort(Abort::Closed(_))) => {
            request.response.status = match request.client.h1() {
                Some(_) => 400,
                None => 499,
            };
            request.body.arrival.break_off();
        }
        Err(Interrupt::Status(_)) => request.body.arrival.break_off(),
        _ => {}
    }
    read
}

/// Reads the next bytes. An error with status 400 if the framing is malformed, and with 413 if a
/// chunked body is too long. An announced length has been checked when the location was found.
async fn read_next(
    request: &mut Request,
    exchange: &mut Exchange,
) -> Result<Option<Bytes>, Interrupt> {
    let read = exchange.read_body(request).await;
    if matches!(&read, Ok(Some(bytes)) if !bytes.is_empty()) {
        request.body.note_taken();
    }
    read.map_err(|abort| refuse(request, abort))
}

/// The interrupt with the status for a body that is malformed or too long; other aborts are passed
/// through.
pub fn refuse(request: &mut Request, abort: Abort) -> Interrupt {
    let status = match abort {
        Abort::BadBody(_) => 400,
        Abort::BodyTooLarge { received, .. } => {
            request.body.before_refused = Some(received);
            413
        }
        abort => return Interrupt::Abort(abort),
    };
    logging::client::abort(request, &abort);
    request.body.give_up();
    Interrupt::Status(status)
}

/// Writes parts to the file at `offset`, and advances `offset`. An error with status 500 after a
/// failure, which is logged.
async fn write(
    request: &mut Request,
    file: &File,
    offset: &mut u64,
    parts: &mut Pieces,
) -> Result<(), u16> {
    let parts: Vec<Bytes> = parts.drain().collect();
    let length: usize = parts.iter().map(Bytes::len).sum();
    if let Err(error) = file.write_at(*offset, parts).await {
        logs::error!(
            request,
            Crit,
            "pwrite() of a request body failed {}",
            logs::Errno(&error)
        );
        return Err(500);
    }
    *offset += length as u64;
    Ok(())
}

/// Creates a temporary file, which is unlinked unless its name is needed. An error with status 500
/// after a failure, which is logged.
async fn create(request: &mut Request) -> Result<TemporaryFile, u16> {
    let directory = Arc::clone(&request.plan.body.directory);
    let in_file_only = in_file_only(request);
    let mode = match request.body.destination {
        BodyDestination::NamedFile => 0o660,
        BodyDestination::ByLocation | BodyDestination::BeforeLocation => 0o600,
    };
    let keeps_name = in_file_only != InFileOnly::Off;
    match engine::blocking(move || directory.create(mode, keeps_name)).await {
        Ok((path, file)) => Ok(TemporaryFile {
            taken: Cell::new(false),
            file: File::from(file),
            path,
            in_file_only,
        }),
        Err(failure) => {
            logs::error!(request, Crit, "{failure}");
            Err(500)
        }
    }
}

/// Logs that a body is written to a temporary file.
fn log_temporary_file(request: &Request, path: &Path) {
    const TEXT: &str = "a client request body is buffered to a temporary file";
    let shown = path.display();
    if request.body.destination != BodyDestination::ByLocation {
        // Not logged: the handler asked for the file or, as in nginx, no location has been found.
    } else if request.plan.body.in_file_only == InFileOnly::Off {
        logs::error!(request, Warn, "{TEXT} {shown}");
    } else {
        logs::error!(request, Notice, "{TEXT} {shown}");
    }
}

/// The `client_body_in_file_only` that applies to the request: a handler that needs a named file
/// overrides the directive, and so does reading before the location is found.
fn in_file_only(request: &Request) -> InFileOnly {
    match (request.body.destination, request.plan.body.in_file_only) {
        (BodyDestination::NamedFile, _) => InFileOnly::Removed,
        (BodyDestination::BeforeLocation, _) => InFileOnly::Off,
        (BodyDestination::ByLocation, InFileOnly::Off) => {
            request.body.left_in_file_only.unwrap_or(InFileOnly::Off)
        }
        (BodyDestination::ByLocation, in_file_only) => in_file_only,
    }
}
