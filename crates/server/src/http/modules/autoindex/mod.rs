//! Listings of directories: `autoindex`.
//!
//! <https://nginx.org/en/docs/http/ngx_http_autoindex_module.html>. The page is nginx's to the byte:
//! directories first, then by name, names shortened to 50 characters in columns. The formats xml, json
//! and jsonp are not here yet.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use conf::{Contexts, Declared, Fault, ScopeRef, Setter, Setting, parse};
use jiff::tz::TimeZone;
use proto::date;
use proto::method::Method;
use proto::uri::{self, Escape};

use crate::compile::{Compiler, Feature};
use crate::http::filters::charset;
use crate::http::output::Body;
use crate::http::request::{Request, Step};
use crate::log;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// The width of the column of names, in characters.
const NAME_WIDTH: usize = 50;

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

/// `autoindex_format html`
pub static AUTOINDEX_FORMAT: Setting<()> =
    Setting::new("autoindex_format", &["html | xml | json | jsonp"], format)
        .contexts(HSL)
        .default("html")
        .manual("The format of listings. Only `html` is available yet.");

/// `autoindex` and its family.
#[derive(Clone, Copy, Debug)]
pub struct AutoIndex {
    enabled: bool,
    exact_size: bool,
    local_time: bool,
}

impl Feature for AutoIndex {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[
        &AUTOINDEX,
        &AUTOINDEX_EXACT_SIZE,
        &AUTOINDEX_LOCALTIME,
        &AUTOINDEX_FORMAT,
    ];

    fn compile(_: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<Self, Fault> {
        scope.get(&AUTOINDEX_FORMAT)?;
        Ok(AutoIndex {
            enabled: scope.get(&AUTOINDEX)?,
            exact_size: scope.get(&AUTOINDEX_EXACT_SIZE)?,
            local_time: scope.get(&AUTOINDEX_LOCALTIME)?,
        })
    }
}

fn format(setter: &Setter<'_>) -> Result<(), Fault> {
    let supported = parse::enumeration(
        setter,
        &[
            ("html", true),
            ("json", false),
            ("jsonp", false),
            ("xml", false),
        ],
    )?;
    match setter.first().args.first() {
        Some(word) if !supported => Err(Fault::at(
            word,
            format!(
                "\"autoindex_format {}\" is not supported yet, only \"html\" is",
                word.text()
            ),
        )),
        _ => Ok(()),
    }
}

/// Answers with the listing of the URI's directory.
pub async fn serve(request: &mut Request) -> Step {
    let settings = *request.plan.autoindex;
    if !settings.enabled
        || !request.uri.ends_with(b"/")
        || !matches!(request.method, Method::Get | Method::Head)
    {
        return Step::Next;
    }
    let mut path = request.filename();
    if path.len() > 1 {
        path.pop();
    }
    let directory = PathBuf::from(OsString::from_vec(path.clone()));
    let head_only = request.method == Method::Head;
    let (listing, complaints) = engine::blocking(move || {
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
        log::error!(request, Crit, "{complaint}");
    }
    let entries = match listing {
        Ok(entries) => entries,
        Err(ReadError::Open(error)) => return Step::Finish(refused(request, &path, &error)),
        Err(ReadError::Entry) => return Step::Finish(500),
    };

    let content_type = Bytes::from_static(b"text/html");
    request.response.status = 200;
    request.response.content_type = content_type.clone();
    if head_only {
        return Step::Respond(Body::Empty);
    }
    let utf8 = charset::announced(request, &content_type)
        .is_some_and(|charset| charset.eq_ignore_ascii_case(b"utf-8"));
    let offset = if settings.local_time {
        local_offset()
    } else {
        0
    };
    let page = render(
        &request.uri,
        &entries,
        Columns {
            utf8,
            offset,
            exact_size: settings.exact_size,
        },
    );
    Step::Respond(Body::bytes(page))
}

/// The status for a directory that cannot be opened, with nginx's line in the error log.
fn refused(request: &Request, path: &[u8], error: &io::Error) -> u16 {
    let (path, reason) = (log::Printable(path), log::Errno(error));
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG) => {
            log::error!(request, Error, "opendir() \"{path}\" failed {reason}");
            404
        }
        Some(libc::EACCES) => {
            log::error!(request, Error, "opendir() \"{path}\" failed {reason}");
            403
        }
        _ => {
            log::error!(request, Crit, "opendir() \"{path}\" failed {reason}");
            500
        }
    }
}

/// How far the server's time zone is ahead of UTC now, in seconds.
fn local_offset() -> i64 {
    let now = i64::try_from(engine::wall().as_secs()).unwrap_or(0);
    jiff::Timestamp::from_second(now).map_or(0, |now| {
        i64::from(TimeZone::system().to_offset(now).seconds())
    })
}

/// A file or directory in a listing.
#[derive(Debug)]
struct Entry {
    name: Vec<u8>,
    is_directory: bool,
    /// Seconds since 1970.
    modified: i64,
    size: u64,
}

#[derive(Debug)]
enum ReadError {
    /// The directory does not open.
    Open(io::Error),
    /// The directory or what is in it cannot be read; the complaints say why.
    Entry,
}

fn can_open(directory: &Path) -> Result<Vec<Entry>, ReadError> {
    fs::read_dir(directory)
        .map(|_| Vec::new())
        .map_err(ReadError::Open)
}

/// Reads a directory, in the order of the listing. Names that begin with a dot stay out.
fn read(directory: &Path, complaints: &mut Vec<String>) -> Result<Vec<Entry>, ReadError> {
    let mut entries = Vec::new();
    for item in fs::read_dir(directory).map_err(ReadError::Open)? {
        let item = item.map_err(|error| {
            complaints.push(format!(
                "readdir() \"{}\" failed {}",
                log::Printable(directory.as_os_str().as_bytes()),
                log::Errno(&error)
            ));
            ReadError::Entry
        })?;
        let name = item.file_name().into_vec();
        if name.starts_with(b".") {
            continue;
        }
        if let Some(metadata) = metadata(&item.path(), complaints)? {
            entries.push(Entry {
                name,
                is_directory: metadata.is_dir(),
                modified: metadata.mtime(),
                size: metadata.size(),
            });
        }
    }
    entries.sort_by(|a, b| {
        b.is_directory
            .cmp(&a.is_directory)
            .then_with(|| a.name.cmp(&b.name))
    });
    Ok(entries)
}

/// What a name stands for; a link that leads nowhere stands for itself. `None` where it may not be seen.
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
    let text = log::Printable(path.as_os_str().as_bytes());
    complaints.push(format!("{call} \"{text}\" failed {}", log::Errno(&error)));
    if call == "stat()" && error.raw_os_error() == Some(libc::EACCES) {
        Ok(None)
    } else {
        Err(ReadError::Entry)
    }
}

/// How the columns of a listing are written.
#[derive(Clone, Copy)]
struct Columns {
    /// Names are counted in UTF-8 characters, not in bytes.
    utf8: bool,
    /// Added to times, in seconds.
    offset: i64,
    exact_size: bool,
}

/// The page of a directory.
fn render(uri: &[u8], entries: &[Entry], columns: Columns) -> Vec<u8> {
    let mut page = Vec::with_capacity(512 + entries.len() * 160);
    page.extend_from_slice(b"<html>\r\n<head><title>Index of ");
    uri::write_html(uri, &mut page);
    page.extend_from_slice(b"</title></head>\r\n<body>\r\n<h1>Index of ");
    uri::write_html(uri, &mut page);
    page.extend_from_slice(b"</h1><hr><pre><a href=\"../\">../</a>\r\n");
    for entry in entries {
        render_entry(entry, columns, &mut page);
    }
    page.extend_from_slice(b"</pre><hr></body>\r\n</html>\r\n");
    page
}

fn render_entry(entry: &Entry, columns: Columns, page: &mut Vec<u8>) {
    page.extend_from_slice(b"<a href=\"");
    uri::escape(&entry.name, Escape::Component, page);
    if entry.is_directory {
        page.push(b'/');
    }
    page.extend_from_slice(b"\">");

    // A name that is not UTF-8 after all is counted in bytes.
    let text = if columns.utf8 {
        std::str::from_utf8(&entry.name).ok()
    } else {
        None
    };
    let mut width = text.map_or(entry.name.len(), |text| text.chars().count());
    if width > NAME_WIDTH {
        let shown = NAME_WIDTH - 3;
        let end = match text {
            Some(text) => text
                .char_indices()
                .nth(shown)
                .map_or(text.len(), |(at, _)| at),
            None => shown,
        };
        uri::write_html(entry.name.get(..end).unwrap_or_default(), page);
        page.extend_from_slice(b"..&gt;</a>");
    } else {
        uri::write_html(&entry.name, page);
        if entry.is_directory && width < NAME_WIDTH {
            page.push(b'/');
            width += 1;
        }
        page.extend_from_slice(b"</a>");
        page.resize(page.len() + NAME_WIDTH - width, b' ');
    }

    let mut time = [0; date::HTTP_LENGTH];
    date::format_http(entry.modified.saturating_add(columns.offset), &mut time);
    // Of `Sun, 06 Nov 1994 08:49:37 GMT`.
    let [
        _,
        _,
        _,
        _,
        _,
        d1,
        d2,
        _,
        m1,
        m2,
        m3,
        _,
        y1,
        y2,
        y3,
        y4,
        _,
        h1,
        h2,
        _,
        n1,
        n2,
        ..,
    ] = time;
    page.extend_from_slice(&[
        b' ', d1, d2, b'-', m1, m2, m3, b'-', y1, y2, y3, y4, b' ', h1, h2, b':', n1, n2, b' ',
    ]);
    write_size(entry, columns.exact_size, page);
    page.extend_from_slice(b"\r\n");
}

fn write_size(entry: &Entry, exact: bool, page: &mut Vec<u8>) {
    const KILO: u64 = 1024;
    const MEGA: u64 = KILO * 1024;
    const GIGA: u64 = MEGA * 1024;
    let size = entry.size;
    let rounded = |unit: u64| size / unit + u64::from(size % unit >= unit / 2);
    // Writing to a vector does not fail.
    let _ = match (exact, entry.is_directory) {
        (true, true) => write!(page, "{:>19}", '-'),
        (true, false) => write!(page, "{size:>19}"),
        (false, true) => write!(page, "{:>7}", '-'),
        (false, false) if size >= GIGA => write!(page, "{:>6}G", rounded(GIGA)),
        (false, false) if size >= MEGA => write!(page, "{:>6}M", rounded(MEGA)),
        (false, false) if size > 9999 => write!(page, "{:>6}K", rounded(KILO)),
        (false, false) => write!(page, "{size:>7}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, is_directory: bool, size: u64) -> Entry {
        Entry {
            name: name.as_bytes().to_vec(),
            is_directory,
            modified: 784_111_777,
            size,
        }
    }

    fn line(entry: &Entry, columns: Columns) -> String {
        let mut page = Vec::new();
        render_entry(entry, columns, &mut page);
        String::from_utf8(page).unwrap()
    }

    const PLAIN: Columns = Columns {
        utf8: false,
        offset: 0,
        exact_size: true,
    };

    #[test]
    fn the_frame_of_the_page() {
        let page = String::from_utf8(render(b"/<d>&/", &[], PLAIN)).unwrap();
        assert_eq!(
            page,
            "<html>\r\n<head><title>Index of /&lt;d&gt;&amp;/</title></head>\r\n<body>\r\n\
             <h1>Index of /&lt;d&gt;&amp;/</h1><hr><pre><a href=\"../\">../</a>\r\n\
             </pre><hr></body>\r\n</html>\r\n"
        );
    }

    #[test]
    fn columns() {
        assert_eq!(
            line(&entry("a b.txt", false, 12), PLAIN),
            format!(
                "<a href=\"a%20b.txt\">a b.txt</a>{}06-Nov-1994 08:49 {:>19}\r\n",
                " ".repeat(44),
                12
            )
        );
        assert_eq!(
            line(&entry("dir", true, 4096), PLAIN),
            format!(
                "<a href=\"dir/\">dir/</a>{}06-Nov-1994 08:49 {:>19}\r\n",
                " ".repeat(47),
                "-"
            )
        );
    }

    #[test]
    fn long_names_are_shortened() {
        let fits = "x".repeat(50);
        assert!(line(&entry(&fits, true, 0), PLAIN).contains(&format!(">{fits}</a> 06-Nov")));
        let long = "y".repeat(51);
        assert!(
            line(&entry(&long, true, 0), PLAIN)
                .contains(&format!("/\">{}..&gt;</a> 06-Nov", &long[..47]))
        );
    }

    #[test]
    fn characters_count_where_the_page_is_utf_8() {
        let name = "ф".repeat(50);
        let utf8 = Columns {
            utf8: true,
            ..PLAIN
        };
        assert!(line(&entry(&name, false, 0), utf8).contains(&format!(">{name}</a> 06-Nov")));
        assert!(
            line(&entry(&"ф".repeat(51), false, 0), utf8)
                .contains(&format!(">{}..&gt;</a>", "ф".repeat(47)))
        );
        assert!(
            line(&entry(&"ф".repeat(10), false, 0), utf8)
                .contains(&format!("</a>{}06-Nov", " ".repeat(41)))
        );
        assert!(
            line(&entry(&"ф".repeat(10), false, 0), PLAIN)
                .contains(&format!("</a>{}06-Nov", " ".repeat(31)))
        );
    }

    #[test]
    fn sizes_rounded_as_nginx_does() {
        let about = Columns {
            exact_size: false,
            ..PLAIN
        };
        for (size, expected) in [
            (0, "      0"),
            (9999, "   9999"),
            (10_000, "    10K"),
            (10_752, "    11K"),
            (1_048_575, "  1024K"),
            (1_048_576, "     1M"),
            (1_572_864, "     2M"),
            (1_073_741_823, "  1024M"),
            (1_073_741_824, "     1G"),
        ] {
            let text = line(&entry("a", false, size), about);
            assert!(text.ends_with(&format!("08:49 {expected}\r\n")), "{text}");
        }
        assert!(line(&entry("a", true, 0), about).ends_with("08:49       -\r\n"));
    }

    #[test]
    fn times_of_the_servers_zone() {
        let east = Columns {
            offset: 2 * 3600,
            ..PLAIN
        };
        assert!(line(&entry("a", false, 0), east).contains("06-Nov-1994 10:49"));
    }
}
