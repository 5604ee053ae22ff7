//! The WebDAV properties of files, and the response to PROPFIND (RFC 4918, sections 9.1 and 15).

use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use framework::zone::Zone;
use http::config::types::Types;
use proto::uri::{self, Escape};
use proto::{date, etag};

use super::locks::{Lock, Locks};
use super::xml::{DAV, PropertyName, PropfindProperties};

pub(super) const PROLOGUE: &str = "<?xml version=\"1.0\" encoding=\"utf-8\" ?>\n";

/// Maximum number of entries of a directory that are listed. For a larger directory, status 507 is
/// sent.
const ENTRIES_MAX: usize = 65_536;

/// Maximum length of a response, in bytes. Instead of a longer response, status 507 is sent, since
/// the whole response is built in memory. The limit suffices for all properties of ten thousand
/// files.
const ANSWER_SIZE_MAX: usize = 8 * 1024 * 1024;

/// The properties that a resource may have, all in the namespace `DAV:`.
const PROPERTIES: [&str; 9] = [
    "creationdate",
    "displayname",
    "getcontentlength",
    "getcontenttype",
    "getetag",
    "getlastmodified",
    "lockdiscovery",
    "resourcetype",
    "supportedlock",
];

/// One PROPFIND request.
pub(super) struct PropfindQuery {
    pub(super) wanted: PropfindProperties,
    /// Whether the entries of a directory are listed too (any `Depth` but 0).
    pub(super) list: bool,
    pub(super) path: PathBuf,
    pub(super) uri: Vec<u8>,
    pub(super) types: Arc<Types>,
    /// The zone with the locks to list; `None` if files cannot be locked.
    pub(super) locks: Option<Arc<Zone<Locks>>>,
    pub(super) now: Instant,
}

/// Why a PROPFIND fails: the status of the response, and the system call for the error log.
pub(super) struct PropertyError {
    pub(super) status: u16,
    pub(super) call: &'static str,
    pub(super) error: io::Error,
}

/// The body of the response. Reads file metadata, so it blocks.
pub(super) fn answer(query: &PropfindQuery) -> Result<String, PropertyError> {
    let metadata = std::fs::metadata(&query.path).map_err(|error| PropertyError {
        status: match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => 403,
            _ => 404,
        },
        call: "stat()",
        error,
    })?;
    let mut text = String::from(PROLOGUE);
    text.push_str("<D:multistatus xmlns:D=\"DAV:\"");
    let tags = match &query.wanted {
        PropfindProperties::These(names) => declare(names, &mut text),
        PropfindProperties::All | PropfindProperties::Names => Vec::new(),
    };
    text.push_str(">\n");
    let mut uri = query.uri.clone();
    if metadata.is_dir() && !uri.ends_with(b"/") {
        uri.push(b'/');
    }
    write_resource(query, &tags, &query.path, &uri, &metadata, &mut text);
    if query.list && metadata.is_dir() {
        list(query, &tags, &uri, &mut text)?;
    }
    text.push_str("</D:multistatus>\n");
    // A slow client may keep the response in memory for long.
    text.shrink_to_fit();
    Ok(text)
}

/// Appends an `xmlns` declaration for each namespace that the names have, and returns the tag of
/// each name with its prefix.
fn declare(names: &[PropertyName], text: &mut String) -> Vec<String> {
    let mut namespaces: Vec<&str> = Vec::new();
    let mut tags = Vec::with_capacity(names.len());
    for PropertyName { namespace, local } in names {
        let known = namespaces.iter().position(|known| known == namespace);
        tags.push(match (namespace.as_str(), known) {
            ("", _) => local.clone(),
            (DAV, _) => format!("D:{local}"),
            (_, Some(number)) => format!("n{number}:{local}"),
            (namespace, None) => {
                let number = namespaces.len();
                namespaces.push(namespace);
                // The parser has checked the name; the namespace may hold anything.
                text.push_str(&format!(" xmlns:n{number}=\""));
                write_text(namespace, text);
                text.push('"');
                format!("n{number}:{local}")
            }
        });
    }
    tags
}

/// Appends the entries of a directory.
fn list(
    query: &PropfindQuery,
    tags: &[String],
    uri: &[u8],
    text: &mut String,
) -> Result<(), PropertyError> {
    let failed = |error: io::Error| PropertyError {
        status: 500,
        call: "opendir()",
        error,
    };
    for (count, entry) in std::fs::read_dir(&query.path).map_err(failed)?.enumerate() {
        if count >= ENTRIES_MAX {
            return Err(too_large());
        }
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        // Entries that cannot be examined, such as dangling symbolic links, are left out.
        let Ok(metadata) = std::fs::metadata(&path) else {
            continue;
        };
        let mut child = [uri, entry.file_name().as_bytes()].concat();
        if metadata.is_dir() {
            child.push(b'/');
        }
        write_resource(query, tags, &path, &child, &metadata, text);
        if text.len() > ANSWER_SIZE_MAX {
            return Err(too_large());
        }
    }
    Ok(())
}

fn too_large() -> PropertyError {
    PropertyError {
        status: 507,
        call: "opendir()",
        error: io::Error::from_raw_os_error(libc::EFBIG),
    }
}

/// Appends the `D:response` of one resource. `tags` are the tags of the requested names, in their
/// order.
fn write_resource(
    query: &PropfindQuery,
    tags: &[String],
    path: &Path,
    uri: &[u8],
    metadata: &Metadata,
    text: &mut String,
) {
    let mut href = Vec::with_capacity(uri.len());
    uri::escape(uri, Escape::Uri, &mut href);
    text.push_str("<D:response>\n<D:href>");
    write_text(&String::from_utf8_lossy(&href), text);
    text.push_str("</D:href>\n<D:propstat>\n<D:prop>\n");
    let mut missing: Vec<&str> = Vec::new();
    match &query.wanted {
        PropfindProperties::All => {
            for name in PROPERTIES {
                write_property(query, name, path, uri, metadata, text);
            }
        }
        PropfindProperties::Names => {
            for name in PROPERTIES {
                text.push_str(&format!("<D:{name}/>\n"));
            }
        }
        PropfindProperties::These(names) => {
            for (name, tag) in names.iter().zip(tags) {
                let known = name.namespace == DAV
                    && write_property(query, &name.local, path, uri, metadata, text);
                if !known {
                    missing.push(tag);
                }
            }
        }
    }
    text.push_str("</D:prop>\n<D:status>HTTP/1.1 200 OK</D:status>\n</D:propstat>\n");
    if !missing.is_empty() {
        text.push_str("<D:propstat>\n<D:prop>\n");
        for tag in missing {
            text.push_str(&format!("<{tag}/>\n"));
        }
        text.push_str("</D:prop>\n<D:status>HTTP/1.1 404 Not Found</D:status>\n</D:propstat>\n");
    }
    text.push_str("</D:response>\n");
}

/// Appends a property; false if the resource has no property of this name.
fn write_property(
    query: &PropfindQuery,
    name: &str,
    path: &Path,
    uri: &[u8],
    metadata: &Metadata,
    text: &mut String,
) -> bool {
    let is_file = !metadata.is_dir();
    let value = match name {
        "creationdate" => rfc3339(metadata.ctime()),
        "displayname" => {
            let uri = uri.strip_suffix(b"/").unwrap_or(uri);
            let name = uri.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            escaped(&String::from_utf8_lossy(name))
        }
        "getcontentlength" if is_file => metadata.size().to_string(),
        "getcontenttype" if is_file => {
            escaped(&String::from_utf8_lossy(query.types.content_type(uri)))
        }
        "getetag" => {
            let tag = etag::of_file(metadata.mtime(), metadata.size());
            escaped(&String::from_utf8_lossy(tag.as_bytes()))
        }
        "getlastmodified" => {
            let mut text = [0; date::HTTP_LENGTH];
            date::format_http(metadata.mtime(), &mut text);
            String::from_utf8_lossy(&text).into_owned()
        }
        "resourcetype" if is_file => String::new(),
        "resourcetype" => "<D:collection/>".to_owned(),
        "lockdiscovery" => lock_discovery(query, path),
        "supportedlock" if query.locks.is_some() => "<D:lockentry><D:lockscope><D:exclusive/></D:lockscope><D:locktype><D:write/></D:locktype></D:lockentry>".to_owned(),
        "supportedlock" => String::new(),
        _ => return false,
    };
    text.push_str(&format!("<D:{name}>{value}</D:{name}>\n"));
    true
}

/// The value of `lockdiscovery`: the lock on a path, if there is one.
fn lock_discovery(query: &PropfindQuery, path: &Path) -> String {
    let Some(zone) = &query.locks else {
        return String::new();
    };
    let path = path.as_os_str().as_bytes();
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let mut text = String::new();
    if let Some(lock) = zone.state().find(path, query.now) {
        let left = lock.expires.saturating_duration_since(query.now).as_secs();
        write_lock(&lock, left, &mut text);
    }
    text
}

/// Appends a lock as an `activelock` element, with the seconds until it expires.
pub(super) fn write_lock(lock: &Lock, seconds: u64, text: &mut String) {
    let depth = if lock.infinite { "infinity" } else { "0" };
    let (owner, token, root) = (
        escaped(&lock.owner),
        escaped(&lock.token),
        escaped(&lock.root),
    );
    text.push_str(&format!(
        "<D:activelock><D:locktype><D:write/></D:locktype>\
         <D:lockscope><D:exclusive/></D:lockscope><D:depth>{depth}</D:depth>\
         <D:owner>{owner}</D:owner><D:timeout>Second-{seconds}</D:timeout>\
         <D:locktoken><D:href>{token}</D:href></D:locktoken>\
         <D:lockroot><D:href>{root}</D:href></D:lockroot></D:activelock>"
    ));
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    write_text(text, &mut out);
    out
}

/// Appends text with XML's special characters escaped. Characters that XML forbids are replaced.
fn write_text(text: &str, out: &mut String) {
    for letter in text.chars() {
        match letter {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\t' | '\n' | '\r' => out.push(letter),
            '\0'..' ' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
}

/// Formats seconds since 1970 by RFC 3339.
fn rfc3339(seconds: i64) -> String {
    let time = jiff::Timestamp::from_second(seconds).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_texts_are_written_for_xml() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(
            escaped("a<b>&\"c\"\u{1}"),
            "a&lt;b&gt;&amp;&quot;c&quot;\u{fffd}"
        );
    }
}
