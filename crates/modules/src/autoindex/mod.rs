//! `autoindex`: directory listings.
//!
//! <https://nginx.org/en/docs/http/ngx_http_autoindex_module.html>. The formats are nginx's byte
//! for byte: directories first, then by name. This file has the settings and reads directories;
//! `html` writes the page, `data` the formats for programs, `page` a format of our own.

mod data;
mod html;
mod page;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use conf::{Contexts, Declared, Fault, ScopeRef, Setting, parse};
use framework::compile::{Compiler, Feature};
use http::config::plan_builder::PlanBuilder;
use http::config::tasks::{Task, TaskKind};
use http::exchange::Exchange;
use http::module::{MaybeFuture, Module, PhaseHandler, ShortcutDoc};
use http::request::body::reading;
use http::request::{Request, Step};
use http::response::source::Body;
use jiff::tz::TimeZone;
use proto::method::Method;
use proto::uri;

use crate::filters::charset;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// `autoindex on | off`
pub static AUTOINDEX: Setting<bool> = Setting::new("autoindex", &["on | off"], parse::flag)
    .contexts(HSL)
    .default("off")
    .manual("Lists directories that have no index file.");

/// `autoindex_exact_size on | off`
pub static AUTOINDEX_EXACT_SIZE: Setting<bool> =
    Setting::new("autoindex_exact_size", &["on | off"], parse::flag)
        .contexts(HSL)
        .default("on")
        .manual("Shows sizes in bytes; `off` rounds them to kilobytes, megabytes and gigabytes.");

/// `autoindex_localtime on | off`
pub static AUTOINDEX_LOCALTIME: Setting<bool> =
    Setting::new("autoindex_localtime", &["on | off"], parse::flag)
        .contexts(HSL)
        .default("off")
        .manual("Shows times in the server's time zone; `off` shows UTC.");

/// `autoindex_format html | xml | json | jsonp | page`
pub static AUTOINDEX_FORMAT: Setting<Format> = Setting::new(
    "autoindex_format",
    &["html | xml | json | jsonp | page"],
    |setter| {
        let values = [
            ("html", Format::Html),
            ("json", Format::Json),
            ("jsonp", Format::Jsonp),
            ("xml", Format::Xml),
            ("page", Format::Page),
        ];
        parse::enumeration(setter, &values)
    },
)
.contexts(HSL)
.default("html")
.manual(
    "The format of listings. `page` is Tidegate's own: a page with styles, light or dark, that is \
         sorted by the links in its headings and needs no script. With `jsonp` the argument `callback` of a request names the \
         function that the list is given to; without the argument it is plain `json`.",
);

/// The format of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// nginx's HTML page.
    Html,
    /// An array of objects.
    Json,
    /// An array of objects as the argument of a function call (JSONP).
    Jsonp,
    /// An element for each entry.
    Xml,
    /// A page with styles, whose order the reader can choose.
    Page,
}

/// `autoindex` and related directives.
#[derive(Clone, Copy, Debug)]
pub struct AutoIndex {
    enabled: bool,
    exact_size: bool,
    local_time: bool,
    format: Format,
}

impl Feature for AutoIndex {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &AUTOINDEX,
        &AUTOINDEX_EXACT_SIZE,
        &AUTOINDEX_LOCALTIME,
        &AUTOINDEX_FORMAT,
    ];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        Ok(AutoIndex {
            enabled: scope.get(&AUTOINDEX)?,
            exact_size: scope.get(&AUTOINDEX_EXACT_SIZE)?,
            local_time: scope.get(&AUTOINDEX_LOCALTIME)?,
            format: scope.get(&AUTOINDEX_FORMAT)?,
        })
    }
}

impl Module for AutoIndex {
    const TASKS: &'static [Task] = &[Task::of(TaskKind::Files, &["autoindex"]).listed(3)];
    const SHORTCUTS: &'static [ShortcutDoc] = &[ShortcutDoc::Same(
        "no response is kept of a URI that ends with a slash",
    )];

    fn is_off(&self) -> bool {
        !self.enabled
    }

    fn register(self: &Arc<Self>, plan: &mut PlanBuilder<'_>) {
        plan.file(self);
    }
}

impl PhaseHandler for AutoIndex {
    /// Answers with the listing of the URI's directory.
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> MaybeFuture<'a> {
        if !request.uri.ends_with(b"/") || !matches!(request.method, Method::Get | Method::Head) {
            return MaybeFuture::Now(Ok(Step::Next));
        }
        MaybeFuture::wait(async move { Ok(list(request, exchange, *self).await) })
    }
}

/// The number of entries up to which a listing is written on the event loop; longer listings are
/// written on the thread pool.
const WRITTEN_AT_ONCE_MAX: usize = 256;

/// Responds with the listing of the URI's directory.
async fn list(request: &mut Request, exchange: &mut Exchange, settings: AutoIndex) -> Step {
    if let Err(status) = reading::discard_received(request, exchange).await {
        return Step::Finish(status);
    }
    let mut path = request.filename();
    if path.len() > 1 {
        path.pop();
    }
    let callback = match settings.format {
        Format::Jsonp => match callback(request) {
            Ok(callback) => callback,
            Err(status) => return refuse(request, status),
        },
        _ => None,
    };
    let directory = PathBuf::from(OsString::from_vec(path.clone()));
    let head_only = request.method == Method::Head;
    let (listing, complaints) = engine::blocking_long(move || {
        let mut complaints = Vec::new();
        let listing = if head_only {
            can_open(&directory)
        } else {
            read(&directory, &mut complaints)
        };
        (listing, complaints)
    })
    .await;
    for complaint in &complaints {
        logs::error!(request, Crit, "{complaint}");
    }
    let entries = match listing {
        Ok(entries) => entries,
        Err(ReadError::Open(error)) => {
            let status = refused(request, &path, &error);
            return refuse(request, status);
        }
        Err(ReadError::Entry) => return refuse(request, 500),
    };

    let content_type = Bytes::from_static(match (settings.format, &callback) {
        (Format::Html | Format::Page, _) => b"text/html",
        (Format::Xml, _) => b"text/xml",
        (Format::Jsonp, Some(_)) => b"application/javascript",
        (Format::Json | Format::Jsonp, _) => b"application/json",
    });
    request.response.status = 200;
    request.response.content_type = content_type.clone();
    if matches!(settings.format, Format::Xml | Format::Page) {
        request.response.charset = Bytes::from_static(b"utf-8");
    }
    if head_only {
        return Step::Respond(Body::Empty);
    }
    let layout = match settings.format {
        Format::Html => Layout::Html(columns(request, settings, &content_type)),
        Format::Json | Format::Jsonp => Layout::Json(callback),
        Format::Xml => Layout::Xml,
        Format::Page => Layout::Page {
            sort: page::Sort::asked_for(&request.args),
            offset: offset(settings),
        },
    };
    let uri = request.uri.clone();
    Step::Respond(Body::bytes(if entries.len() <= WRITTEN_AT_ONCE_MAX {
        layout.write(&uri, entries)
    } else {
        engine::blocking_long(move || layout.write(&uri, entries)).await
    }))
}

/// The format of a listing with its parameters.
enum Layout {
    Html(html::Columns),
    /// JSON, or JSONP with the name of the callback function.
    Json(Option<Vec<u8>>),
    Xml,
    Page {
        sort: page::Sort,
        /// The offset from UTC in which times are shown, in seconds.
        offset: i64,
    },
}

impl Layout {
    fn write(self, uri: &[u8], entries: Vec<Entry>) -> Vec<u8> {
        match self {
            Layout::Html(columns) => html::render(uri, &entries, columns),
            Layout::Json(callback) => data::json(&entries, callback.as_deref()),
            Layout::Xml => data::xml(&entries),
            Layout::Page { sort, offset } => page::render(uri, entries, sort, offset),
        }
    }
}

/// Ends with a status. As in nginx, the request's body has been discarded, and an error page finds
/// it empty.
fn refuse(request: &mut Request, status: u16) -> Step {
    request.body.end_unread();
    Step::Finish(status)
}

fn columns(request: &mut Request, settings: AutoIndex, content_type: &[u8]) -> html::Columns {
    let charset = charset::announced(request, content_type);
    html::Columns {
        utf8: charset.is_some_and(|charset| charset.eq_ignore_ascii_case(b"utf-8")),
        offset: offset(settings),
        exact_size: settings.exact_size,
    }
}

/// The longest name of a callback function, in bytes.
const CALLBACK_LENGTH_MAX: usize = 128;

/// The callback function that the client names; `None` if it names none. A value that is not a
/// plain name is refused.
fn callback(request: &Request) -> Result<Option<Vec<u8>>, u16> {
    let name = match uri::argument(&request.args, b"callback") {
        None | Some(b"") => return Ok(None),
        Some(name) => name,
    };
    let shown = logs::Printable(name);
    if name.len() > CALLBACK_LENGTH_MAX {
        logs::error!(
            request,
            Info,
            "client sent too long callback name: \"{shown}\""
        );
        return Err(400);
    }
    let part_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    if !name.iter().all(part_of_name) {
        logs::error!(
            request,
            Info,
            "client sent invalid callback name: \"{shown}\""
        );
        return Err(400);
    }
    Ok(Some(name.to_vec()))
}

/// The status for a directory that cannot be opened, which is logged like in nginx.
pub(super) fn refused(request: &Request, path: &[u8], error: &io::Error) -> u16 {
    let (path, reason) = (logs::Printable(path), logs::Errno(error));
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG) => {
            logs::error!(request, Error, "opendir() \"{path}\" failed {reason}");
            404
        }
        Some(libc::EACCES) => {
            logs::error!(request, Error, "opendir() \"{path}\" failed {reason}");
            403
        }
        _ => {
            logs::error!(request, Crit, "opendir() \"{path}\" failed {reason}");
            500
        }
    }
}

/// The offset of a listing's times from UTC, in seconds.
fn offset(settings: AutoIndex) -> i64 {
    if !settings.local_time {
        return 0;
    }
    let now = i64::try_from(engine::wall().as_secs()).unwrap_or(0);
    jiff::Timestamp::from_second(now).map_or(0, |now| {
        i64::from(TimeZone::system().to_offset(now).seconds())
    })
}

/// The kind of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
    /// A socket, a device, a broken link.
    Other,
}

/// A file or directory in a listing.
#[derive(Debug)]
struct Entry {
    name: Vec<u8>,
    kind: Kind,
    /// The time of the last modification, in seconds since 1970.
    modified: i64,
    size: u64,
}

impl Entry {
    fn is_directory(&self) -> bool {
        self.kind == Kind::Directory
    }
}

/// Why a directory could not be listed.
#[derive(Debug)]
enum ReadError {
    /// The directory cannot be opened.
    Open(io::Error),
    /// The directory or an entry cannot be read; the complaints say why.
    Entry,
}

/// Checks that a directory can be opened, without reading it.
fn can_open(directory: &Path) -> Result<Vec<Entry>, ReadError> {
    fs::read_dir(directory)
        .map(|_| Vec::new())
        .map_err(ReadError::Open)
}

/// Reads a directory, in the order of the listing. Names that begin with a dot are left out.
fn read(directory: &Path, complaints: &mut Vec<String>) -> Result<Vec<Entry>, ReadError> {
    let mut entries = Vec::new();
    for item in fs::read_dir(directory).map_err(ReadError::Open)? {
        let item = item.map_err(|error| {
            complaints.push(format!(
                "readdir() \"{}\" failed {}",
                logs::Printable(directory.as_os_str().as_bytes()),
                logs::Errno(&error)
            ));
            ReadError::Entry
        })?;
        let name = item.file_name().into_vec();
        if name.starts_with(b".") {
            continue;
        }
        if let Some(metadata) = metadata(&path_of(directory, &name), complaints)? {
            entries.push(Entry {
                name,
                kind: match () {
                    () if metadata.is_dir() => Kind::Directory,
                    () if metadata.is_file() => Kind::File,
                    () => Kind::Other,
                },
                modified: metadata.mtime(),
                size: metadata.size(),
            });
        }
    }
    entries.sort_by(|a, b| {
        b.is_directory()
            .cmp(&a.is_directory())
            .then_with(|| a.name.cmp(&b.name))
    });
    Ok(entries)
}

/// The path of a directory entry in logs: with a slash before the name, even if the directory's
/// path ends with a slash.
pub(super) fn path_of(directory: &Path, name: &[u8]) -> PathBuf {
    let directory = directory.as_os_str().as_bytes();
    PathBuf::from(OsString::from_vec([directory, b"/", name].concat()))
}

/// The metadata of an entry, following links; for a broken link, the metadata of the link itself.
/// `None` if permission is denied.
fn metadata(path: &Path, complaints: &mut Vec<String>) -> Result<Option<fs::Metadata>, ReadError> {
    let (call, error) = match fs::metadata(path) {
        Ok(metadata) => return Ok(Some(metadata)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ELOOP)) => {
            match fs::symlink_metadata(path) {
                Ok(metadata) => return Ok(Some(metadata)),
                Err(error) => ("lstat()", error),
            }
        }
        Err(error) => ("stat()", error),
    };
    let text = logs::Printable(path.as_os_str().as_bytes());
    complaints.push(format!("{call} \"{text}\" failed {}", logs::Errno(&error)));
    if call == "stat()" && error.raw_os_error() == Some(libc::EACCES) {
        Ok(None)
    } else {
        Err(ReadError::Entry)
    }
}
