//! The request's body: announced, read whole into memory or a temporary file, or left alone.
//!
//! Handlers that stream it read from the exchange themselves; [`read`] is for those that need
//! it whole, as nginx's `proxy_request_buffering on` does.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, ScopeRef, Setter, Setting};
use engine::file::File;
use proto::h1::BodyLength;

use crate::compile::{Compiler, Feature};
use crate::http::exchange::{Abort, Exchange};
use crate::http::request::Request;
use crate::log;

static CLIENT_BODY_TEMP_PATH: Setting<PathBuf> =
    Setting::new("client_body_temp_path", &["path [level1 [level2 [level3]]]"], path)
        .contexts(Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION))
        .arity(Arity::between(1, 4))
        .default("client_body_temp")
        .manual("Where request bodies go that are longer than client_body_buffer_size. The levels of subdirectories are accepted; files lie in the directory itself for the moment that they have a name.");

fn path(setter: &Setter<'_>) -> Result<PathBuf, Fault> {
    let word = setter.word()?;
    for level in setter.args().iter().skip(1) {
        if !matches!(&*level.bytes, b"1" | b"2" | b"3") {
            return Err(Fault::at(
                level,
                format!("invalid value \"{}\"", level.text()),
            ));
        }
    }
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(&word.bytes)))
}

/// `client_body_temp_path`.
pub struct BodySettings {
    /// The directory, absolute.
    pub directory: PathBuf,
}

impl Feature for BodySettings {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&CLIENT_BODY_TEMP_PATH];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        Ok(BodySettings {
            directory: compiler.directory(&scope.get(&CLIENT_BODY_TEMP_PATH)?),
        })
    }
}

/// A body that was read whole.
#[derive(Default)]
enum Stored {
    /// Not read.
    #[default]
    Nowhere,
    /// In memory, as it came.
    Memory(Vec<Bytes>),
    /// In a temporary file without a name any more.
    File { file: File, path: PathBuf },
}

/// What is known of a request's body.
#[derive(Default)]
pub struct RequestBody {
    announced: Option<u64>,
    chunked: bool,
    received: u64,
    framing: u64,
    ended: bool,
    stored: Stored,
    dropped: bool,
}

impl RequestBody {
    /// Notes what the head announces.
    pub fn begin(&mut self, length: BodyLength) {
        *self = RequestBody::default();
        match length {
            BodyLength::None => self.ended = true,
            BodyLength::Length(length) => self.announced = Some(length),
            BodyLength::Chunked => self.chunked = true,
        }
    }

    /// The announced length in bytes; 0 where there is none.
    pub fn announced(&self) -> u64 {
        self.announced.unwrap_or(0)
    }

    /// Whether a body may come: a length above zero, or chunks.
    pub fn expected(&self) -> bool {
        self.chunked || self.announced.is_some_and(|length| length > 0)
    }

    /// Whether the head announced a body at all, an empty one included.
    pub fn is_announced(&self) -> bool {
        self.chunked || self.announced.is_some()
    }

    /// Whether it comes in chunks.
    pub fn chunked(&self) -> bool {
        self.chunked
    }

    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Counts received bytes.
    pub fn note_received(&mut self, bytes: u64) {
        self.received += bytes;
    }

    /// Counts received bytes that only frame the body: sizes of chunks.
    pub fn note_framing(&mut self, bytes: u64) {
        self.framing += bytes;
    }

    /// Bytes received so far, framing included.
    pub fn received_framed(&self) -> u64 {
        self.received + self.framing
    }

    /// Notes that its last byte has come.
    pub fn note_end(&mut self) {
        self.ended = true;
    }

    /// Its length, once it has been read whole.
    pub fn length(&self) -> Option<u64> {
        match &self.stored {
            Stored::Nowhere => None,
            _ => Some(self.received),
        }
    }

    /// Marks it as one that will not be read: checks of its length are over.
    pub fn discard_without_reading(&mut self) {
        self.dropped = true;
    }

    /// Whether it has been given up.
    pub fn is_dropped(&self) -> bool {
        self.dropped
    }

    /// Whether it has been read whole.
    pub fn is_read(&self) -> bool {
        !matches!(self.stored, Stored::Nowhere)
    }

    /// The body in memory (`$request_body`); `None` where it was not read or lies in a file.
    pub fn in_memory(&self) -> Option<&[Bytes]> {
        match &self.stored {
            Stored::Memory(parts) => Some(parts),
            _ => None,
        }
    }

    /// The temporary file, where it lies in one.
    pub fn file(&self) -> Option<&File> {
        match &self.stored {
            Stored::File { file, .. } => Some(file),
            _ => None,
        }
    }

    /// The name that the temporary file had (`$request_body_file`).
    pub fn file_name(&self) -> Option<&Path> {
        match &self.stored {
            Stored::File { path, .. } => Some(path),
            _ => None,
        }
    }
}

/// Reads the body whole. `Err(Ok(status))` is a status to answer with (413, 500).
pub async fn read(
    request: &mut Request,
    exchange: &mut Exchange,
) -> Result<(), Result<u16, Abort>> {
    if request.body.is_read() || request.depth > 0 {
        return Ok(());
    }
    let core = Arc::clone(&request.plan.core);
    let mut parts: Vec<Bytes> = Vec::new();
    let mut held = 0;
    let mut stored: Option<(File, PathBuf, u64)> = None;
    while let Some(bytes) = exchange.read_body(request).await.map_err(Err)? {
        if core.client_max_body_size > 0 && request.body.received() > core.client_max_body_size {
            log::error!(
                request,
                Error,
                "client intended to send too large chunked body: {}+{} bytes",
                request.body.received() - bytes.len() as u64,
                bytes.len()
            );
            return Err(Ok(413));
        }
        held += bytes.len();
        parts.push(bytes);
        if held > core.client_body_buffer_size {
            if stored.is_none() {
                let (file, path) = create(request).await.map_err(Ok)?;
                stored = Some((file, path, 0));
            }
            if let Some((file, _, offset)) = &mut stored {
                write(request, file, offset, &mut parts).await.map_err(Ok)?;
                held = 0;
            }
        }
    }
    request.body.note_end();
    request.body.stored = match stored {
        None => Stored::Memory(parts),
        Some((file, path, mut offset)) => {
            write(request, &file, &mut offset, &mut parts)
                .await
                .map_err(Ok)?;
            Stored::File { file, path }
        }
    };
    Ok(())
}

async fn write(
    request: &mut Request,
    file: &File,
    offset: &mut u64,
    parts: &mut Vec<Bytes>,
) -> Result<(), u16> {
    for bytes in parts.drain(..) {
        let length = bytes.len() as u64;
        if let Err(error) = file.write_at(*offset, bytes).await {
            log::error!(
                request,
                Crit,
                "pwrite() of a request body failed {}",
                log::Errno(&error)
            );
            return Err(500);
        }
        *offset += length;
    }
    Ok(())
}

static NEXT_NAME: AtomicU64 = AtomicU64::new(1);

/// Makes a temporary file and takes its name away, so that no crash leaves it behind.
async fn create(request: &mut Request) -> Result<(File, PathBuf), u16> {
    let directory = request.plan.body.directory.clone();
    let name = format!("{:010}", NEXT_NAME.fetch_add(1, Ordering::Relaxed));
    let path = directory.join(name);
    let target = path.clone();
    let made = engine::blocking(move || -> io::Result<std::fs::File> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = loop {
            match options.open(&target) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    std::fs::remove_file(&target)?;
                }
                made => break made?,
            }
        };
        std::fs::remove_file(&target)?;
        Ok(file)
    })
    .await;
    match made {
        Ok(file) => {
            log::error!(
                request,
                Warn,
                "a client request body is buffered to a temporary file {}",
                path.display()
            );
            Ok((File::from(file), path))
        }
        Err(error) => {
            log::error!(
                request,
                Crit,
                "open() \"{}\" failed {}",
                path.display(),
                log::Errno(&error)
            );
            Err(500)
        }
    }
}
