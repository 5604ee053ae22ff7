//! Stores responses while they are delivered: a task reads the body from the upstream at the
//! upstream's pace, and the client reads the received part. The task continues if the client
//! leaves.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use engine::file::File;
use framework::workers::WorkGuard;
use http::exchange::abort::Abort;
use http::request::activity::WHILE_SENDING;
use http::request::{Request, Step};
use http::response::Field;
use http::response::piece::Piece;
use http::response::source::Body;
use http::response::source::{BodyError, DeferredLog, Source, SourceEvent};
use logs::Level;
use proto::h1::response::BodyFraming;
use proto::method::Method;
use store::disk::{
    Claim, EntryId, EntryTimes, FillChunk, Filler, NewHead, Reader, Stage, StoreError, WriteOutcome,
};

use super::clock::{now, wall};
use super::freshness::Freshness;
use super::keeping::StoredTimes;
use super::lookup::CacheLookup;
use super::semantics;
use super::settings::{Cache, Zone, any_holds};
use super::status::CacheStatus;
use super::{partial_entry, stored_head};
use crate::READING_BODY;
use crate::activity::WHILE_READING;
use crate::answer::AnswerHead;
use crate::attempts::Attempts;
use crate::failures::client_closed_log;
use crate::response::is_buffered;
use crate::settings::PassSettings;
use crate::store::StoreLogContext;

/// Maximum number of bytes of a stored body that are passed to a client at once.
const PART_MAX: usize = 256 * 1024;

/// Maximum number of bytes that are read at once from the temporary file of an upstream body.
const READ: usize = 64 * 1024;

impl CacheLookup {
    /// Stores the body of a response while it is delivered, if it is to be stored.
    pub fn keep(
        mut self: Box<CacheLookup>,
        request: &mut Request,
        passing: &Arc<PassSettings>,
        delivered: Step,
    ) -> Step {
        let Step::Respond(Body::Source(source)) = delivered else {
            self.refuse();
            return delivered;
        };
        let source = self.joined(source);
        let begun = self.begin(request, passing);
        self.refuse();
        let zone = self.outcome.zone();
        Step::Respond(Body::Source(match begun {
            Some(begun) => {
                let notices = StoreFailureLog::of(request, zone, Some(self.outcome.status));
                store(request, passing, notices, source, begun)
            }
            None => source,
        }))
    }

    /// Begins to store the response. `None` if the response is not stored.
    fn begin(
        &mut self,
        request: &mut Request,
        passing: &PassSettings,
    ) -> Option<(Box<Filler>, Reader)> {
        let cache = passing.cache.as_ref()?;
        let (head, keeping) = self.answer.take()?;
        if any_holds(&cache.no_cache, request) {
            self.refuse_once();
            return None;
        }
        if !is_buffered(passing, &head) {
            return None;
        }
        let (times, vary) = match keeping {
            StoredTimes::Rfc(stored, vary) => (semantics::times_of(&stored), vary),
            StoredTimes::Nginx(freshness) => {
                let said = freshness.valid_until;
                let valid = || {
                    let seconds = i64::try_from(cache.valid(head.status())?);
                    Some(wall().saturating_add(seconds.unwrap_or(i64::MAX)))
                };
                let micro = || {
                    let seconds = self.micro_fresh(passing, &head)?;
                    Some(wall().saturating_add(seconds))
                };
                let until = said.or_else(valid).or_else(micro)?;
                (times(&freshness, until), freshness.vary)
            }
        };
        let variant = (!vary.is_empty()).then(|| self.variant_of(request, &vary));
        // The id of a variant only holds a response that is this variant.
        let id = self
            .variant
            .filter(|id| variant == Some(*id))
            .unwrap_or(self.main);
        let is_part = self.stores_partial && head.status() == 206;
        if is_part && partial_entry::part_of(&head).is_none() {
            return None;
        }
        let id = if is_part {
            partial_entry::part_id(&id)
        } else {
            id
        };
        // Requests for the same key are served from the fill once it is complete.
        let sought = self.variant.unwrap_or(self.main);
        let claim = || {
            if is_part {
                // No request waits for a part.
                return Box::new(self.store.filler(&id));
            }
            match self.store.claim_newer(&sought, now()) {
                Claim::Won(filler) => filler,
                Claim::Taken(_) => Box::new(self.store.filler(&sought)),
            }
        };
        let mut filler = self.filler.take().unwrap_or_else(claim);
        let new = NewHead {
            key: self.key.clone(),
            group: self.group.clone(),
            tags: match self.policy {
                Some(_) => semantics::tags_of(&head),
                None => Vec::new(),
            },
            vary: vary.into(),
            variant,
            times,
            text: match self.policy {
                Some(_) => semantics::text_of(&head).into(),
                None => text_of(&head).into(),
            },
            body_length: self.body_length(request, &head),
        };
        if filler.begin(id, new).is_err() {
            self.filler = Some(filler);
            logs::error!(
                request,
                Error,
                "head of the answer is too large to be stored"
            );
            return None;
        }
        self.note_file(cache, id, &head, self.body_length(request, &head));
        if variant.is_some() {
            self.make_room_for_variant(cache, id);
        }
        let reader = filler.fill().reader()?;
        Some((filler, reader))
    }

    /// Evicts another variant, if there are too many with this one.
    fn make_room_for_variant(&self, cache: &Cache, id: EntryId) {
        let variants = cache.sharing.variants.as_ref();
        let Some(gone) = variants.and_then(|variants| variants.keep(self.main, id)) else {
            return;
        };
        let store = Arc::clone(&self.store);
        engine::background(move || {
            // If the entry cannot be removed, the failure is logged when the entry is opened next.
            let _ = store.purge(&gone);
        });
    }
}

impl CacheLookup {
    /// The expected length of the body, if it is known. An application may send a body even in
    /// response to HEAD.
    fn body_length(&self, request: &Request, head: &AnswerHead) -> Option<u64> {
        let is_head = request.method == Method::Head && !self.is_head_converted;
        match head.body(is_head && !self.is_of_application) {
            BodyFraming::None => Some(0),
            BodyFraming::Length(length) => Some(length),
            BodyFraming::Chunked | BodyFraming::UntilClose => None,
        }
    }
}

/// The times that are stored with a response by nginx's rules; `until` is in seconds since 1970.
pub(super) fn times(freshness: &Freshness, until: i64) -> EntryTimes {
    EntryTimes {
        valid_until: until.saturating_mul(1000),
        received: i64::try_from(engine::wall().as_millis()).unwrap_or(i64::MAX),
        age: 0,
        updating: freshness.updating,
        error: freshness.error,
        flags: 0,
    }
}

/// Returns the head as it is stored by nginx's rules.
pub(super) fn text_of(head: &AnswerHead) -> Vec<u8> {
    let mut text = stored_head::first_line(head);
    for (name, value) in head.pairs() {
        text.extend_from_slice(name);
        text.extend_from_slice(b": ");
        text.extend_from_slice(value);
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(b"\r\n");
    text
}

/// Starts a task that stores the body, and returns the body for the client.
fn store(
    request: &mut Request,
    passing: &Arc<PassSettings>,
    notices: StoreFailureLog,
    source: Box<dyn Source>,
    (filler, reader): (Box<Filler>, Reader),
) -> Box<dyn Source> {
    let broken = Rc::new(Cell::new(BodyError::Unfinished));
    let mut fetch = Fetch {
        source,
        filler,
        notices,
        _held: WorkGuard::new(),
        broken: Rc::clone(&broken),
        rest: None,
        state: Fetching::Coming,
        writing: None,
    };
    // The part of the body that came with the head is available at once; often that is the whole
    // body.
    fetch.take();
    if fetch.is_ended() {
        fetch.store_rest();
    } else {
        engine::spawn(fetch.run());
    }
    Box::new(FillingBody {
        followed: FollowerBody::new(reader),
        broken,
        seen: Attempts::enter(request),
        passing: Arc::clone(passing),
    })
}

/// The stored body of an entry.
pub(super) enum StoredBody {
    /// A body in memory.
    Memory(Bytes),
    /// A file, and the range of the body in it.
    File(File, Range<u64>),
}

/// Starts a task that stores the body of an entry again, because its head has changed.
pub(super) fn copy(request: &Request, zone: &Arc<Zone>, body: StoredBody, filler: Box<Filler>) {
    let (bytes, rest) = match body {
        StoredBody::Memory(bytes) => (Some(bytes), None),
        StoredBody::File(file, body) => {
            let length = body.end.saturating_sub(body.start);
            let rest = (length > 0).then_some((file, body.start, length));
            (None, rest)
        }
    };
    let fetch = Fetch {
        source: Box::new(FromMemory(bytes)),
        filler,
        notices: StoreFailureLog::of(request, zone, None),
        _held: WorkGuard::new(),
        broken: Rc::new(Cell::new(BodyError::Unfinished)),
        rest,
        state: Fetching::Coming,
        writing: None,
    };
    engine::spawn(fetch.run());
}

/// The body of an entry if the body is in memory, else no bytes.
#[derive(Debug)]
struct FromMemory(Option<Bytes>);

impl Source for FromMemory {
    fn next(&mut self) -> SourceEvent {
        match self.0.take() {
            Some(bytes) if !bytes.is_empty() => SourceEvent::Piece(Piece::Bytes(bytes)),
            _ => SourceEvent::End,
        }
    }

    fn poll_more(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    fn give_up(&mut self, _: &Abort) -> DeferredLog {
        DeferredLog::new(Level::Info, "copy of a cache entry given up")
    }

    fn beginning(&self) -> &'static str {
        WHILE_READING
    }
}

/// Returns the pieces of a body that has been received completely and is still being written.
pub(super) fn pieces_of(mut reader: Reader) -> Option<Vec<Piece>> {
    let (mut pieces, mut known) = (Vec::new(), None);
    loop {
        match reader.next(usize::MAX) {
            FillChunk::Bytes(bytes) => pieces.push(Piece::Bytes(bytes)),
            FillChunk::File {
                file,
                offset,
                length,
            } => pieces.push(Piece::File {
                file: file_of(&mut known, &file)?,
                offset,
                length,
            }),
            FillChunk::End => return Some(pieces),
            FillChunk::Nothing | FillChunk::Broken => return None,
        }
    }
}

/// Returns the file of the body, reopened for the first piece that is in the file.
fn file_of(known: &mut Option<File>, file: &OwnedFd) -> Option<File> {
    if known.is_none() {
        *known = Some(File::from(file.try_clone().ok()?));
    }
    known.clone()
}

/// The progress of a body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fetching {
    /// The body is being received.
    Coming,
    /// The whole body has been received; a part of it may still have to be written.
    Ended,
    /// The body is broken off.
    Broken,
}

/// The task that stores a body.
struct Fetch {
    /// The body that is stored.
    source: Box<dyn Source>,
    /// Stores the body, and passes it to the clients that wait.
    filler: Box<Filler>,
    notices: StoreFailureLog,
    /// Keeps the thread alive until the task has ended.
    _held: WorkGuard,
    /// How the body was broken off; the client's body reads this cell.
    broken: Rc<Cell<BodyError>>,
    /// The part of a file that the source has returned, and that is yet to be read.
    rest: Option<(File, u64, u64)>,
    state: Fetching,
    /// The write in progress on the thread pool.
    writing: Option<Pin<Box<dyn Future<Output = WriteOutcome>>>>,
}

impl Fetch {
    /// Takes all available pieces from the source.
    fn take(&mut self) {
        while self.state == Fetching::Coming && self.rest.is_none() && self.filler.has_room() {
            match self.source.next() {
                SourceEvent::Piece(Piece::Bytes(bytes)) => self.filler.push(bytes),
                SourceEvent::Piece(Piece::File {
                    file,
                    offset,
                    length,
                }) => self.rest = Some((file, offset, length)),
                SourceEvent::Piece(_) => {}
                SourceEvent::Told(told) => told.write(&self.notices.about),
                SourceEvent::Nothing => return,
                SourceEvent::End => {
                    self.state = Fetching::Ended;
                    if let Err(fault) = self.filler.finish(now()) {
                        self.state = Fetching::Broken;
                        let text = format!("answer not stored: {fault}");
                        self.notices.tell(Level::Warn, &text);
                    } else if let Err(error) = self.filler.commit_in_memory(now()) {
                        self.notices.log_unstored(error);
                    } else if !self.filler.is_to_be_stored() {
                        self.notices.count_written(&self.filler);
                    }
                }
                SourceEvent::Broken(broken) => {
                    self.broken.set(broken);
                    self.state = Fetching::Broken;
                }
            }
        }
    }

    async fn run(mut self) {
        loop {
            self.take();
            if let Some((file, offset, length)) = self.rest.take() {
                self.read(file, offset, length).await;
                continue;
            }
            if self.state == Fetching::Broken || self.filler.is_pointless() {
                return;
            }
            if self.is_ended() {
                self.store_rest();
                return;
            }
            if self.writing.is_none()
                && let Some(write) = self.filler.next_write()
            {
                self.writing = Some(Box::pin(engine::blocking(move || write.run())));
            }
            if let Some(written) = poll_fn(|context| self.poll(context)).await {
                self.writing = None;
                match self.filler.wrote(written) {
                    Ok(Stage::More) => {}
                    Ok(Stage::Committed) => {
                        self.notices.count_written(&self.filler);
                        return;
                    }
                    Err(error) => self.notices.log_unstored(error),
                }
            }
        }
    }

    /// Whether the whole body has been received, and no write is in progress.
    fn is_ended(&self) -> bool {
        self.state == Fetching::Ended && self.writing.is_none()
    }

    /// Writes the rest of a complete response in the background, without reporting the outcome to
    /// the thread.
    fn store_rest(self) {
        let Fetch {
            mut filler,
            notices,
            ..
        } = self;
        if !filler.is_to_be_stored() {
            return;
        }
        engine::unhurried(move || match filler.store() {
            Ok(()) => notices.count_written(&filler),
            Err(error) => notices.log_unstored(error),
        });
    }

    /// Waits until there is more to take or something has been written.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<WriteOutcome>> {
        if let Some(writing) = &mut self.writing
            && let Poll::Ready(written) = writing.as_mut().poll(context)
        {
            return Poll::Ready(Some(written));
        }
        let polled = match self.state {
            Fetching::Coming if self.filler.has_room() => self.source.poll_more(context),
            Fetching::Coming if self.writing.is_none() => self.filler.poll_room(context),
            _ => Poll::Pending,
        };
        polled.map(|()| None)
    }

    /// Reads a part of the range that the source has left in a file.
    async fn read(&mut self, file: File, offset: u64, length: u64) {
        let wanted = usize::try_from(length).unwrap_or(usize::MAX).min(READ);
        match file.read_at(offset, wanted).await {
            Ok(bytes) if !bytes.is_empty() => {
                let read = bytes.len() as u64;
                self.filler.push(bytes);
                let left = length.saturating_sub(read);
                self.rest = (left > 0).then_some((file, offset + read, left));
            }
            _ => {
                self.broken.set(BodyError::BufferFailed);
                self.state = Fetching::Broken;
            }
        }
    }
}

/// Logs why a response was not stored, from any thread.
struct StoreFailureLog {
    /// The request whose response is stored, for log lines.
    about: StoreLogContext,
    zone: Arc<Zone>,
    /// The cache status of the response, for the counters; `None` if a stored body is written
    /// again.
    status: Option<CacheStatus>,
}

impl StoreFailureLog {
    fn of(request: &Request, zone: &Arc<Zone>, status: Option<CacheStatus>) -> StoreFailureLog {
        StoreFailureLog {
            about: StoreLogContext::of(request),
            zone: Arc::clone(zone),
            status,
        }
    }

    /// Counts a response that has been stored.
    fn count_written(&self, filler: &Filler) {
        if let Some(status) = self.status {
            let counters = self.zone.state().counters();
            counters.note_written(status, filler.fill().length());
        }
    }

    /// Logs why the response was not stored; for causes that affect many responses, at most once a
    /// second.
    fn log_unstored(&self, error: StoreError) {
        let counters = self.zone.state().counters();
        let (level, notices) = match error {
            // A purge has removed the first, and the second loses nothing.
            StoreError::Purged | StoreError::Superseded => (Level::Info, None),
            StoreError::NoRoom => (Level::Warn, Some(&counters.no_room)),
            StoreError::Failed(_) => (Level::Crit, Some(&counters.failed)),
        };
        let left_out = match notices {
            Some(notices) => notices.next(now()),
            None => Some(0),
        };
        match left_out {
            None => {}
            Some(0) => self.tell(level, &format!("answer not stored: {error}")),
            Some(others) => {
                let text = format!("answer not stored, nor were {others} others: {error}");
                self.tell(level, &text);
            }
        }
    }

    fn tell(&self, level: Level, text: &str) {
        logs::write(&self.about, level, format_args!("{text} {READING_BODY}"));
    }
}

/// The body of a response that another request has asked for, and that is still being received.
pub(super) struct FollowerBody {
    reader: Reader,
    /// The file of the body, once a part has been read from it.
    file: Option<File>,
}

impl FollowerBody {
    pub(super) fn new(reader: Reader) -> FollowerBody {
        FollowerBody { reader, file: None }
    }

    /// The next event of the body; `broken` is the event's cause if the body was broken off.
    fn given(&mut self, broken: BodyError) -> SourceEvent {
        match self.reader.next(PART_MAX) {
            FillChunk::Bytes(bytes) => SourceEvent::Piece(Piece::Bytes(bytes)),
            FillChunk::File {
                file,
                offset,
                length,
            } => match file_of(&mut self.file, &file) {
                Some(file) => SourceEvent::Piece(Piece::File {
                    file,
                    offset,
                    length,
                }),
                None => SourceEvent::Broken(BodyError::BufferFailed),
            },
            FillChunk::Nothing => SourceEvent::Nothing,
            FillChunk::End => SourceEvent::End,
            FillChunk::Broken => SourceEvent::Broken(broken),
        }
    }
}

impl fmt::Debug for FollowerBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Followed")
    }
}

impl Source for FollowerBody {
    fn next(&mut self) -> SourceEvent {
        self.given(BodyError::Unfinished)
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.reader.poll_more(context)
    }

    fn give_up(&mut self, _: &Abort) -> DeferredLog {
        let text = format!("client prematurely closed connection{WHILE_SENDING}");
        DeferredLog::new(Level::Info, text)
    }

    fn beginning(&self) -> &'static str {
        WHILE_SENDING
    }
}

/// The body of a response that is being stored, for the client whose request fetches it.
struct FillingBody {
    followed: FollowerBody,
    /// How the body was broken off, as noted by the task that stores it.
    broken: Rc<Cell<BodyError>>,
    /// The history of the request, which has the trailers of the upstream.
    seen: Rc<Attempts>,
    passing: Arc<PassSettings>,
}

impl fmt::Debug for FillingBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stored")
    }
}

impl Source for FillingBody {
    fn next(&mut self) -> SourceEvent {
        self.followed.given(self.broken.get())
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.followed.poll_more(context)
    }

    fn trailers(&mut self) -> Vec<Field> {
        self.passing.passed_trailers(&self.seen)
    }

    fn give_up(&mut self, left: &Abort) -> DeferredLog {
        client_closed_log(left, READING_BODY)
    }

    fn beginning(&self) -> &'static str {
        WHILE_READING
    }
}
