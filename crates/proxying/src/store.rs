//! `proxy_store`: saves responses of upstreams as files.
//!
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html#proxy_store>. The body of a 200 is
//! written to a temporary file while it is sent to the client. When the body is complete, the file
//! is renamed before the client gets the end of the body, so a client that has the response finds
//! the file. The body is read to its end even if the client leaves. As in nginx, only buffered
//! responses are saved. A response to HEAD is not saved; nginx saves it unless a Content-Length
//! prevents that.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::future::{Future, poll_fn};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::exchange::abort::Abort;
use http::files::temporary_file::Directory;
use http::request::Request;
use http::response::Field;
use http::response::piece::Piece;
use http::response::source::{BodyError, DeferredLog, Source, SourceEvent};
use logs::{Errno, Level};
use logs::{ErrorLog, Subject, Subsystem};

use super::READING_BODY;
use super::body::UpstreamBody;
use super::store_settings::Store;
use http::files::rename::{Rename, RenameResult, remove_temporary, shown};

/// Maximum number of bytes of a body that wait to be written, besides those being written.
const QUEUED_MAX: usize = 64 * 1024;

impl Store {
    /// Saves the body of a 200 while it is sent, if the response is buffered and the method is not
    /// HEAD. `modified` is the response's Last-Modified.
    pub(super) fn begin(
        &self,
        request: &mut Request,
        modified: Option<i64>,
        body: UpstreamBody,
    ) -> Box<dyn Source> {
        let target = match &self.path {
            Some(text) => text.evaluate(request).to_vec(),
            None if request.has_filename() => request.filename(),
            None => Vec::new(),
        };
        if target.is_empty() {
            return Box::new(body);
        }
        Box::new(StoredSource(Some(StoringBody {
            body,
            writer: Writer {
                target: Target {
                    directory: Arc::clone(&self.directory),
                    path: Request::path_of(&target),
                    access: self.access,
                    modified,
                },
                queue: Vec::new(),
                queued: 0,
                work: StoreTask::Idle(None),
            },
            held: None,
            begun: false,
            body_waits: false,
            told: VecDeque::new(),
            about: StoreLogContext::of(request),
        })))
    }
}

/// Where and how a file is saved.
#[derive(Clone)]
struct Target {
    directory: Arc<Directory>,
    path: PathBuf,
    /// The permissions of the file.
    access: u32,
    /// The modification time of the file in seconds since 1970, if the response states it.
    modified: Option<i64>,
}

/// A file that has not been renamed yet. Dropping it removes the file.
struct Temporary {
    file: File,
    /// `None` once the file has been renamed or removed.
    path: Option<PathBuf>,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            engine::background(move || {
                let _ = std::fs::remove_file(path);
            });
        }
    }
}

impl Temporary {
    fn create(directory: &Directory) -> Result<Temporary, RenameResult> {
        match directory.create(0o600, true) {
            Ok((path, file)) => Ok(Temporary {
                file,
                path: Some(path),
            }),
            Err(failure) => {
                let mut done = RenameResult::default();
                done.failed(Level::Crit, failure.call, &failure.path, &failure.error);
                Err(done)
            }
        }
    }

    /// Writes more of the file, which is created first if necessary.
    fn write(
        begun: Option<Temporary>,
        target: &Target,
        parts: &[StoredPiece],
    ) -> Result<Temporary, RenameResult> {
        let mut temporary = match begun {
            Some(temporary) => temporary,
            None => Temporary::create(&target.directory)?,
        };
        for part in parts {
            if let Err(error) = part.write_to(&mut temporary.file) {
                let mut done = RenameResult::default();
                let path = shown(temporary.path.as_deref().unwrap_or(Path::new("")));
                let error = Errno(&error);
                done.line(Level::Crit, format!("write() \"{path}\" failed {error}"));
                return Err(done);
            }
        }
        Ok(temporary)
    }

    /// Renames the file into place. Returns lines for the log.
    fn place(mut self, target: &Target) -> RenameResult {
        let mut done = RenameResult::default();
        let Some(path) = self.path.take() else {
            return done;
        };
        let rename = Rename {
            source: &path,
            target: &target.path,
            access: Some(target.access),
            path_access: target.access,
            modified: target.modified,
            create_path: true,
        };
        if !rename.run(&mut done) {
            remove_temporary(&path, &mut done);
        }
        done
    }
}

/// A part of a body.
enum StoredPiece {
    Bytes(Bytes),
    /// A range of the temporary file that holds data for a slow client.
    Spilled {
        file: engine::file::File,
        offset: u64,
        length: u64,
    },
}

impl StoredPiece {
    fn len(&self) -> usize {
        match self {
            StoredPiece::Bytes(bytes) => bytes.len(),
            StoredPiece::Spilled { length, .. } => usize::try_from(*length).unwrap_or(usize::MAX),
        }
    }

    /// Copies the part to a file; blocks on the disk.
    fn write_to(&self, to: &mut File) -> io::Result<()> {
        match self {
            StoredPiece::Bytes(bytes) => to.write_all(bytes),
            StoredPiece::Spilled {
                file,
                offset,
                length,
            } => file.copy_to(*offset, *length, to),
        }
    }
}

/// A job on the thread pool.
type Job<T> = Pin<Box<dyn Future<Output = T>>>;

enum StoreTask {
    /// No job is running; the temporary file, once it has been created.
    Idle(Option<Temporary>),
    /// A job writes queued pieces to the temporary file.
    Writing(Job<Result<Temporary, RenameResult>>),
    /// A job renames the complete file.
    Placing(Job<RenameResult>),
    /// The file has been renamed, or could not be saved.
    Over,
}

/// Writes a body to its file, by one job at a time.
struct Writer {
    target: Target,
    /// Pieces for the next job.
    queue: Vec<StoredPiece>,
    /// Total length of `queue` in bytes.
    queued: usize,
    work: StoreTask,
}

impl Writer {
    fn add(&mut self, part: StoredPiece) {
        if !self.is_over() {
            self.queued += part.len();
            self.queue.push(part);
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.work, StoreTask::Over)
    }

    fn give_up(&mut self) {
        self.work = StoreTask::Over;
        self.queue.clear();
        self.queued = 0;
    }

    /// Continues until everything is written and, if the body has `ended`, the file has been
    /// renamed. Returns lines for the log.
    fn poll(&mut self, ended: bool, context: &mut Context<'_>) -> Poll<Vec<(Level, String)>> {
        loop {
            match &mut self.work {
                StoreTask::Writing(job) => match ready!(job.as_mut().poll(context)) {
                    Ok(temporary) => self.work = StoreTask::Idle(Some(temporary)),
                    Err(done) => {
                        self.give_up();
                        return Poll::Ready(done.lines);
                    }
                },
                StoreTask::Placing(job) => {
                    let done = ready!(job.as_mut().poll(context));
                    self.give_up();
                    return Poll::Ready(done.lines);
                }
                StoreTask::Over => return Poll::Ready(Vec::new()),
                StoreTask::Idle(_) if self.queue.is_empty() && !ended => {
                    return Poll::Ready(Vec::new());
                }
                StoreTask::Idle(begun) => {
                    let begun = begun.take();
                    let target = self.target.clone();
                    let parts = std::mem::take(&mut self.queue);
                    self.queued = 0;
                    self.work = match begun {
                        Some(temporary) if parts.is_empty() => {
                            // A rename to another file system is a copy.
                            StoreTask::Placing(Box::pin(engine::blocking_long(move || {
                                temporary.place(&target)
                            })))
                        }
                        begun => StoreTask::Writing(Box::pin(engine::blocking(move || {
                            Temporary::write(begun, &target, &parts)
                        }))),
                    };
                }
            }
        }
    }
}

/// A body that is saved while it is sent.
struct StoringBody {
    body: UpstreamBody,
    writer: Writer,
    /// The last piece or the end of the body, held back until the file has been renamed.
    held: Option<SourceEvent>,
    /// Whether the body has been polled at least once.
    begun: bool,
    /// Whether the body had nothing ready at the last poll.
    body_waits: bool,
    /// Log lines that have not been passed on yet.
    told: VecDeque<DeferredLog>,
    /// The request, for log lines after its end.
    about: StoreLogContext,
}

/// The parts of a request that log lines need, kept beyond the end of the request.
pub(super) struct StoreLogContext {
    log: Arc<ErrorLog>,
    is_debugged: bool,
    serial: Option<u64>,
    /// The fields that follow the text.
    fields: String,
}

impl StoreLogContext {
    pub(super) fn of(request: &Request) -> StoreLogContext {
        let mut fields = String::new();
        let _ = request.describe(&mut fields); // writing to a string cannot fail
        StoreLogContext {
            log: Arc::clone(request.error_log()),
            is_debugged: request.is_debugged(),
            serial: request.serial(),
            fields,
        }
    }
}

impl Subject for StoreLogContext {
    fn admits(&self, level: Level) -> bool {
        self.log.admits(level, Subsystem::Http) || self.is_debugged
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        write(&self.log);
    }

    fn is_debugged(&self) -> bool {
        self.is_debugged
    }

    fn subsystem(&self) -> Subsystem {
        Subsystem::Http
    }

    fn serial(&self) -> Option<u64> {
        self.serial
    }

    fn describe(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str(&self.fields)
    }
}

impl StoringBody {
    /// Whether the next piece must wait for the writer.
    fn must_wait(&self) -> bool {
        !self.writer.is_over() && (self.held.is_some() || self.writer.queued >= QUEUED_MAX)
    }

    fn next(&mut self) -> SourceEvent {
        self.begun = true;
        if let Some(told) = self.told.pop_front() {
            return SourceEvent::Told(told);
        }
        if self.must_wait() {
            return SourceEvent::Nothing;
        }
        if let Some(held) = self.held.take() {
            return held;
        }
        let given = self.body.next();
        self.body_waits = matches!(given, SourceEvent::Nothing);
        let is_last = match &given {
            SourceEvent::Piece(Piece::Bytes(bytes)) => {
                self.writer.add(StoredPiece::Bytes(bytes.clone()));
                self.body.has_passed_all()
            }
            SourceEvent::Piece(Piece::File {
                file,
                offset,
                length,
            }) => {
                self.writer.add(StoredPiece::Spilled {
                    file: file.clone(),
                    offset: *offset,
                    length: *length,
                });
                self.body.has_passed_all()
            }
            SourceEvent::End => true,
            SourceEvent::Broken(_) => {
                self.writer.give_up();
                false
            }
            _ => false,
        };
        if is_last && !self.writer.is_over() {
            self.held = Some(given);
            return SourceEvent::Nothing;
        }
        given
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let written = self.writer.poll(self.held.is_some(), context);
        if let Poll::Ready(lines) = written {
            let lines = lines
                .into_iter()
                .map(|(level, text)| DeferredLog::new(level, format!("{text} {READING_BODY}")));
            self.told.extend(lines);
            if !self.told.is_empty() {
                return Poll::Ready(());
            }
        }
        if self.must_wait() {
            Poll::Pending
        } else if self.body_waits {
            self.body.poll_more(context)
        } else {
            Poll::Ready(())
        }
    }

    /// Reads the rest of the body, which is only saved.
    async fn finish(mut self) {
        while !self.writer.is_over() {
            match self.next() {
                SourceEvent::End | SourceEvent::Broken(_) => break,
                SourceEvent::Nothing => poll_fn(|context| self.poll_more(context)).await,
                SourceEvent::Told(told) => told.write(&self.about),
                SourceEvent::Piece(_) => {}
            }
        }
        self.told.drain(..).for_each(|told| told.write(&self.about));
    }
}

/// A [`StoringBody`] as the source of the client's response. If it is dropped early, a task reads
/// and saves the rest.
struct StoredSource(Option<StoringBody>);

impl fmt::Debug for StoredSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stored")
    }
}

impl Drop for StoredSource {
    fn drop(&mut self) {
        if let Some(mut storing) = self.0.take()
            && storing.begun
            && !storing.writer.is_over()
        {
            storing.body.abort_client_upload();
            engine::spawn(storing.finish());
        }
    }
}

impl Source for StoredSource {
    fn next(&mut self) -> SourceEvent {
        self.0.as_mut().map_or(SourceEvent::End, StoringBody::next)
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let storing = self.0.as_mut();
        storing.map_or(Poll::Ready(()), |storing| storing.poll_more(context))
    }

    fn poll_prefetch(&mut self, context: &mut Context<'_>) -> Poll<Result<DeferredLog, BodyError>> {
        match &mut self.0 {
            Some(storing) => storing.body.poll_prefetch(context),
            None => Poll::Pending,
        }
    }

    fn queued_max(&self) -> Option<usize> {
        self.0.as_ref()?.body.queued_max()
    }

    fn is_whole(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(|storing| storing.body.is_whole())
    }

    fn outlives_client(&self) -> bool {
        true
    }

    fn trailers(&mut self) -> Vec<Field> {
        let storing = self.0.as_mut();
        storing.map_or(Vec::new(), |storing| storing.body.trailers())
    }

    fn give_up(&mut self, left: &Abort) -> DeferredLog {
        match &mut self.0 {
            Some(storing) => storing.body.give_up(left),
            None => super::failures::client_closed_log(left, READING_BODY),
        }
    }

    fn beginning(&self) -> &'static str {
        super::activity::WHILE_READING
    }
}
