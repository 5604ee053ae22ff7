//! The folder of a lane: the tree of odd files, laid out anew before each start, with the same
//! times each time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Result, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Modification time of what has none of its own: Thu, 04 Mar 2021 05:06:07 GMT.
pub(crate) const USUAL_TIME: u64 = 1_614_834_367;
/// A file from the future: 2040-01-01.
const FUTURE: u64 = 2_208_988_800;
/// The user that the servers run as where this program is root's: `nobody`.
pub(crate) const NOBODY: u32 = 65_534;

/// What lies at a path.
enum Kind {
    Text(&'static str),
    /// So many bytes, in lines that tell where they stand.
    Long(usize),
    /// The text, compressed.
    Gzip(&'static str),
    Link(&'static str),
    Folder,
}

use Kind::{Folder, Gzip, Link, Long, Text};

/// The tree below `html/`. Folders that hold something need no entry of their own.
const TREE: &[(&str, Kind)] = &[
    ("index.html", Text("<html>index</html>\n")),
    (
        "page.html",
        Text("<html><head><title>page</title></head><body>one two three</body></html>\n"),
    ),
    ("page.html.gz", Gzip("<html>the gzip twin of page</html>\n")),
    ("only.txt.gz", Gzip("there is only the gzip twin\n")),
    (
        "plain.txt",
        Text("plain text, abcdefghijklmnopqrstuvwxyz 0123456789\n"),
    ),
    (
        "404.html",
        Text("<p>our own page for what is not there</p>\n"),
    ),
    ("50x.html", Text("<p>our own page for errors</p>\n")),
    ("empty.txt", Text("")),
    ("empty.html", Text("")),
    ("one.txt", Text("x")),
    ("noextension", Text("no extension\n")),
    ("style.css", Text("body { color: red }\n")),
    ("script.js", Text("var one = 1;\n")),
    ("data.json", Text("{\"one\": 1}\n")),
    ("feed.xml", Text("<?xml version=\"1.0\"?><a>one</a>\n")),
    ("image.gif", Text("GIF89a\u{1}\0\u{1}\0")),
    ("image.png", Text("\u{89}PNG not really\n")),
    ("index.php", Text("<?php phpinfo(); ?>\n")),
    ("medium.txt", Long(9_000)),
    ("big.txt", Long(200_000)),
    ("big.html", Long(100_000)),
    (
        "ssi.html",
        Text(
            "<p><!--#echo var=\"uri\" --> <!--#include virtual=\"/plain.txt\" --> <!--#set var=\"x\" value=\"$arg_a\" --><!--#if expr=\"$x = 1\" -->one<!--#else -->other<!--#endif --></p>\n",
        ),
    ),
    (
        "deep.shtml",
        Text(
            "<!--#include file=\"dir/index.html\" -->|<!--#include virtual=\"/none.html?a=1\" -->|<!--#config errmsg=\"oops\" --><!--#nonsense -->|<!--#echo var=\"none\" default=\"nothing\" -->\n",
        ),
    ),
    ("with space.html", Text("a name with a space\n")),
    ("100%.txt", Text("a name with a percent sign\n")),
    ("plus+plus.txt", Text("a name with plus signs\n")),
    ("a&b=c;d.txt", Text("a name with other signs\n")),
    ("what?.txt", Text("a name with a question mark\n")),
    ("number#.txt", Text("a name with a number sign\n")),
    ("quote\"'<>.txt", Text("a name with quotes\n")),
    ("back\\slash.txt", Text("a name with a backslash\n")),
    ("colon:.txt", Text("a name with a colon\n")),
    ("über.html", Text("a name beyond ASCII\n")),
    ("UPPER.HTML", Text("capital letters\n")),
    (".hidden", Text("hidden\n")),
    ("future.txt", Text("from the future\n")),
    ("oldest.txt", Text("as old as time\n")),
    ("unreadable.txt", Text("nobody reads this\n")),
    ("program.sh", Text("#!/bin/sh\n")),
    ("link.txt", Link("plain.txt")),
    ("folderlink", Link("dir")),
    ("dangling.txt", Link("nothing")),
    ("loop.txt", Link("loop.txt")),
    ("outside.txt", Link("../conf/outside.txt")),
    ("dir/index.html", Text("<html>index of dir</html>\n")),
    ("dir/page.html", Text("<html>page in dir</html>\n")),
    ("dir/a.txt", Text("a in dir\n")),
    ("dir/a.png", Text("\u{89}PNG neither\n")),
    ("dir/sub/deep.txt", Text("deep\n")),
    ("dir/.git/config", Text("[core]\n")),
    ("noindex/a.txt", Text("a\n")),
    ("noindex/b c.txt", Text("b c\n")),
    ("noindex/<i>.txt", Text("i\n")),
    (
        "noindex/a-name-that-is-longer-than-what-an-index-shows-of-it-0123456789.txt",
        Text("long\n"),
    ),
    ("noindex/.hidden", Text("hidden\n")),
    ("noindex/sub/one.txt", Text("one\n")),
    ("emptyfolder", Folder),
    ("closed/one.txt", Text("nobody comes here\n")),
    ("a/index.html", Text("index of a\n")),
    ("a/b/page.html", Text("page in a b\n")),
    ("a/b/x.txt", Text("x in a b\n")),
    ("static/one.txt", Text("static one\n")),
    ("static/x.html", Text("static x\n")),
    ("upload/old.txt", Text("an older upload\n")),
];

/// The URIs of the tree; those of folders end with a slash.
pub(crate) fn uris() -> Vec<String> {
    let mut uris = vec![String::from("/")];
    for (path, kind) in TREE {
        let slash = if matches!(kind, Folder) { "/" } else { "" };
        uris.push(format!("/{}{slash}", encoded(path)));
        if let Some((folder, _)) = path.rsplit_once('/') {
            let folder = format!("/{}/", encoded(folder));
            if !uris.contains(&folder) {
                uris.push(folder);
            }
        }
    }
    uris
}

/// Whether a path below the folder of a run is a link of the tree.
pub(crate) fn is_link(path: &str) -> bool {
    let mut tree = TREE.iter().filter(|(_, kind)| matches!(kind, Link(_)));
    tree.any(|(name, _)| path.strip_prefix("html/") == Some(name))
}

/// A path as it stands in a request.
fn encoded(path: &str) -> String {
    let mut text = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/.-_+&=;:'".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// A folder that has been laid out: the tree is made anew only where a run has changed it.
#[derive(Default)]
pub(crate) struct LaidOut(RefCell<BTreeMap<PathBuf, State>>);

/// What tells whether a path has been touched: its mode, its length, and when it was last changed
/// in any way, in nanoseconds since 1970.
type State = (u32, u64, i64);

impl LaidOut {
    /// Makes the folder as it is before each start. `extra` are always the same.
    pub(crate) fn lay_out(&self, prefix: &Path, extra: &[(&str, Vec<u8>)]) -> Result<()> {
        let unchanged = !self.0.borrow().is_empty() && *self.0.borrow() == entries(prefix);
        if unchanged {
            for folder in ["logs", "temp"] {
                fs::remove_dir_all(prefix.join(folder))?;
                make_folder(&prefix.join(folder))?;
            }
            return Ok(());
        }
        lay_out(prefix, extra)?;
        *self.0.borrow_mut() = entries(prefix);
        Ok(())
    }

    /// What a run has changed since: a line about each path that has come, gone, or been touched:
    /// what it is, its mode, length, time and a hash of its bytes.
    pub(crate) fn changes(&self, prefix: &Path) -> BTreeMap<String, String> {
        let (before, after) = (self.0.borrow(), entries(prefix));
        let name = |path: &Path| {
            let path = path.strip_prefix(prefix).unwrap_or(path);
            path.display().to_string()
        };
        let gone = before.keys().filter(|path| !after.contains_key(*path));
        let mut changes: BTreeMap<String, String> = gone
            .map(|path| (name(path), String::from("(gone)")))
            .collect();
        for (path, state) in &after {
            let Ok(metadata) = fs::symlink_metadata(path) else {
                continue;
            };
            if before.get(path) != Some(state) {
                let old = before.get(path).filter(|_| metadata.is_dir());
                // That a name has come or gone in a folder changes its time and says nothing more.
                if old.is_none_or(|(mode, ..)| *mode != metadata.mode()) {
                    changes.insert(name(path), described(path, &metadata));
                }
            }
        }
        changes
    }
}

/// What lies at a path, in words.
fn described(path: &Path, metadata: &fs::Metadata) -> String {
    let kind = match () {
        () if metadata.is_dir() => "folder",
        () if metadata.is_symlink() => "link",
        () => "file",
    };
    let bytes = if metadata.is_file() {
        fs::read(path).unwrap_or_default()
    } else {
        Vec::new()
    };
    let mode = metadata.mode() & 0o7777;
    let mut line = format!(
        "{kind} {mode:o} {} bytes, hash {:016x}",
        bytes.len(),
        crate::run::hash(&bytes)
    );
    // What the run has written is as young as it.
    if metadata.is_file() && metadata.mtime() < 1_700_000_000 {
        line.push_str(&format!(", time {}", metadata.mtime()));
    }
    line
}

/// What is in the folders that a run may change and that are not made anew each time.
fn entries(prefix: &Path) -> BTreeMap<PathBuf, State> {
    fn visit(path: &Path, found: &mut BTreeMap<PathBuf, State>) {
        let Ok(metadata) = fs::symlink_metadata(path) else {
            return;
        };
        let changed = metadata.ctime() * 1_000_000_000 + metadata.ctime_nsec();
        let state = (metadata.mode(), metadata.len(), changed);
        found.insert(path.to_path_buf(), state);
        if metadata.is_dir() {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                visit(&entry.path(), found);
            }
        }
    }
    let mut found = BTreeMap::new();
    for folder in ["html", "dav"] {
        visit(&prefix.join(folder), &mut found);
    }
    found
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path)?;
    give_away(path)
}

/// Makes the folder as it is before each start; `extra` are further files by their path below it.
pub(crate) fn lay_out(prefix: &Path, extra: &[(&str, Vec<u8>)]) -> Result<()> {
    remove(prefix)?;
    for folder in ["conf", "html", "logs", "temp"] {
        fs::create_dir_all(prefix.join(folder))?;
    }
    fs::write(prefix.join("conf/outside.txt"), "outside of the root\n")?;
    for (path, bytes) in extra {
        let path = prefix.join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, bytes)?;
    }
    let html = prefix.join("html");
    for (path, kind) in TREE {
        let path = html.join(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        match kind {
            Text(text) => fs::write(&path, text)?,
            Long(length) => fs::write(&path, long(*length))?,
            Gzip(text) => fs::write(&path, gzip(text.as_bytes())?)?,
            Link(target) => symlink(target, &path)?,
            Folder => fs::create_dir_all(&path)?,
        }
    }
    settle(prefix, &html)?;
    set_time(&html.join("future.txt"), FUTURE)?;
    set_time(&html.join("oldest.txt"), 0)?;
    fs::set_permissions(html.join("program.sh"), fs::Permissions::from_mode(0o755))?;
    fs::set_permissions(html.join("unreadable.txt"), fs::Permissions::from_mode(0o0))?;
    fs::set_permissions(html.join("closed"), fs::Permissions::from_mode(0o0))
}

/// Removes the folder, what cannot be entered included.
pub(crate) fn remove(prefix: &Path) -> Result<()> {
    let closed = prefix.join("html/closed");
    if closed.exists() {
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o755))?;
    }
    if prefix.exists() {
        fs::remove_dir_all(prefix)?;
    }
    Ok(())
}

/// Gives everything to the servers' user and the usual time, folders last.
fn settle(prefix: &Path, html: &Path) -> Result<()> {
    give_away(prefix)?;
    set_times(html)?;
    for folder in ["conf", "dav"] {
        if prefix.join(folder).exists() {
            set_times(&prefix.join(folder))?;
        }
    }
    Ok(())
}

fn give_away(path: &Path) -> Result<()> {
    if !crate::program::is_root() {
        return Ok(());
    }
    if !fs::symlink_metadata(path)?.is_symlink() {
        chown(path, Some(NOBODY), Some(NOBODY))?;
    }
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            give_away(&entry?.path())?;
        }
    }
    Ok(())
}

fn set_times(path: &Path) -> Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if metadata.is_symlink() {
        return Ok(());
    }
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            set_times(&entry?.path())?;
        }
    }
    set_time(path, USUAL_TIME)
}

fn set_time(path: &Path, seconds: u64) -> Result<()> {
    fs::File::open(path)?.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// So many bytes in lines of 50.
fn long(length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 50);
    while bytes.len() < length {
        let line = format!(
            "line at {:08} abcdefghijklmnopqrstuvwxyz 0123456\n",
            bytes.len()
        );
        bytes.extend_from_slice(line.as_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// The bytes compressed.
pub(crate) fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes)?;
    encoder.finish()
}
