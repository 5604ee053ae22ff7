//! Replaces the resources of the running server in a configuration for a trial.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use conf::{Contexts, Line, Loaded, ScopeRef, Word};
use process::{Identity, identity};

use super::against::Format;
use super::edits::Edits;
use super::listen::Address;
use crate::application::registry;

/// A configuration that was rewritten for a trial.
pub(super) struct Rewritten {
    /// The changed files.
    pub(super) texts: BTreeMap<PathBuf, Vec<u8>>,
    /// Directives for the main level in addition to those of the files.
    pub(super) globals: Vec<Vec<u8>>,
    /// The addresses at which the trial listens.
    pub(super) moved: Vec<Moved>,
    /// Differences from the file that the user should know, one line each.
    pub(super) not_done: Vec<String>,
    /// The access logs of the running server, in the order of the file.
    pub(super) access_logs: Vec<AccessLog>,
    /// The formats of access logs, by name.
    formats: BTreeMap<String, Format>,
    /// The error logs of the trial.
    pub(super) error_logs: Vec<PathBuf>,
}

/// An access log of the running server.
pub(super) struct AccessLog {
    pub(super) path: PathBuf,
    /// The name of the log's format, if the line has one.
    format: Option<String>,
}

impl Rewritten {
    /// The format of a log that the configuration names, or that was rotated from one
    /// (`access.log.2.gz`). `None` for `combined` and for unknown logs.
    pub(super) fn format_of(&self, log: &Path) -> Option<&Format> {
        let log = log.as_os_str().as_encoded_bytes();
        let is_of = |known: &&AccessLog| log.starts_with(known.path.as_os_str().as_encoded_bytes());
        let known = self.access_logs.iter().filter(is_of);
        let known = known.max_by_key(|known| known.path.as_os_str().len())?;
        self.formats.get(known.format.as_ref()?)
    }
}

/// An address in the file, and its replacement.
pub(super) struct Moved {
    pub(super) old: String,
    pub(super) new: Address,
    /// `http`, or `https` for an address with TLS.
    pub(super) scheme: &'static str,
}

impl Moved {
    /// The port in the file, if its address uses TLS.
    pub(super) fn secure_port(&self) -> Option<u16> {
        let (_, port) = Address::parse(&self.old)?.target()?;
        (self.scheme == "https").then_some(port)
    }
}

/// Parameters of `listen` that belong to a server; all others belong to the socket.
const OF_SERVERS: [&str; 6] = [
    "default_server",
    "default",
    "ssl",
    "http2",
    "quic",
    "proxy_protocol",
];

/// Directives whose argument is a file that is only read, and that requests need.
const READ: [&str; 6] = [
    "root",
    "alias",
    "auth_basic_user_file",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_trusted_certificate",
];

/// Rewrites a configuration: moves ports by `offset`, and everything that is written into `folder`.
/// The errors are lines to print.
pub(super) fn rewrite(
    loaded: &Loaded,
    prefix: &Path,
    folder: &Path,
    offset: u16,
) -> Result<Rewritten, Vec<String>> {
    let mut rewriter = Rewriter {
        edits: Edits::new(loaded),
        prefix,
        folder,
        offset,
        worker: worker(loaded.tree.root()),
        addresses: BTreeMap::new(),
        taken: ports_of(loaded, offset),
        sockets: 0,
        out: Rewritten {
            texts: BTreeMap::new(),
            globals: Vec::new(),
            moved: Vec::new(),
            not_done: Vec::new(),
            access_logs: Vec::new(),
            formats: BTreeMap::new(),
            error_logs: vec![folder.join("error.log")],
        },
        errors: Vec::new(),
    };
    rewriter.main_level(loaded.tree.root());
    for scope in loaded.tree.scopes() {
        scope.lines().iter().for_each(|line| rewriter.line(line));
        rewriter.missing(scope);
    }
    let Rewriter {
        edits,
        mut out,
        errors,
        ..
    } = rewriter;
    if !errors.is_empty() {
        return Err(errors);
    }
    out.texts = edits.apply();
    out.not_done.dedup();
    Ok(out)
}

/// The ports that the addresses of a configuration move to.
fn ports_of(loaded: &Loaded, offset: u16) -> BTreeSet<u16> {
    let lines = loaded.tree.scopes().flat_map(ScopeRef::lines);
    let listens = lines.filter(|line| line.is("listen"));
    let moved = listens.filter_map(|line| {
        match Address::parse(&line.argument(0).text())?.moved(offset)? {
            Address::Inet { ports, .. } => Some(ports),
            Address::Unix(_) => None,
        }
    });
    moved.flatten().collect()
}

/// The user that the worker process will run as, if this process can choose.
fn worker(root: ScopeRef<'_>) -> Option<Identity> {
    if !identity::is_superuser() {
        return None;
    }
    let line = root.lines().iter().find(|line| line.is("user"));
    let words: Vec<_> = line.map_or(Vec::new(), |line| {
        line.args.iter().map(Word::text).collect()
    });
    match words.as_slice() {
        [] => Identity::resolve("nobody", Some("nogroup")),
        [user] => Identity::resolve(user, None),
        [user, group, ..] => Identity::resolve(user, Some(group)),
    }
    .ok()
}

struct Rewriter<'a> {
    edits: Edits<'a>,
    prefix: &'a Path,
    folder: &'a Path,
    offset: u16,
    worker: Option<Identity>,
    /// The replacements of addresses, so that equal addresses stay equal.
    addresses: BTreeMap<String, Fate>,
    /// Ports that addresses of the file have moved to, or will move to.
    taken: BTreeSet<u16>,
    sockets: usize,
    out: Rewritten,
    errors: Vec<String>,
}

/// The replacement of an address.
#[derive(Clone)]
enum Fate {
    /// The trial listens at this address.
    Moved(Address),
    /// The new port is not usable; the trial listens at a Unix socket that no client knows instead.
    Hidden(Address),
}

impl Rewriter<'_> {
    /// Settings of every trial: a foreground process with a separate pid file.
    fn main_level(&mut self, root: ScopeRef<'_>) {
        let pid = quoted(&self.folder.join("pid").display().to_string());
        for (name, value) in [("daemon", "off"), ("pid", &pid)] {
            let mut lines = root.lines().iter().filter(|line| line.is(name)).peekable();
            if lines.peek().is_none() {
                let text = format!("{name} {value};");
                self.out.globals.push(text.into_bytes());
            }
            lines.for_each(|line| self.edits.replace(line.argument(0), value));
        }
    }

    /// Replaces resources of the running server in a line.
    fn line(&mut self, line: &Line) {
        let name = line.name.text();
        let first = line.argument(0);
        match &*name {
            "listen" => self.listen(line),
            "access_log" => self.access_log(line),
            "log_format" => {
                let words = line.args.iter().skip(1).map(|word| &*word.bytes);
                let format = Format::parse(words);
                self.out.formats.insert(first.text().into_owned(), format);
            }
            "error_log" => {
                let private = self.log(first);
                self.out.error_logs.extend(private);
            }
            "lock_file" | "state" => drop(self.private(first)),
            // The folder of core dumps.
            "working_directory" => {
                let folder = quoted(&self.folder.display().to_string());
                self.edits.replace(first, &folder);
            }
            "dav_methods" if &*first.bytes != b"off" => {
                self.edits.replace_all(&line.args, "off");
                self.not_done_at(line, "is off, because it changes files of the site");
            }
            // The LOCK method would create a missing file.
            "dav_ext_methods" if line.args.iter().any(is_lock) => {
                let kept = line.args.iter().filter(|word| !is_lock(word));
                let kept: Vec<_> = kept.map(Word::text).collect();
                let kept = if kept.is_empty() {
                    "off".to_owned()
                } else {
                    kept.join(" ")
                };
                self.edits.replace_all(&line.args, &kept);
                self.not_done_at(line, "is without LOCK, because it makes files of the site");
            }
            name if name.ends_with("_store") && &*first.bytes != b"off" => {
                self.edits.replace(first, "off");
                self.not_done_at(line, "is off, because it writes files of the site");
            }
            name if name.ends_with("_temp_path") || name.ends_with("_cache_path") => {
                drop(self.private(first));
            }
            name if READ.contains(&name) => self.check_readable(line),
            _ => {}
        }
    }

    /// Adds directives whose defaults would be resources of the running server.
    fn missing(&mut self, scope: ScopeRef<'_>) {
        let Some(line) = scope.line() else { return };
        let writes = |name: &str| scope.lines().iter().any(|line| line.is(name));
        if scope.context() == Contexts::HTTP {
            let mut text = String::new();
            if !writes("access_log") {
                let path = self.folder.join("access.log");
                text.push_str(&format!(
                    "access_log {}; ",
                    quoted(&path.display().to_string())
                ));
                let path = self.prefix.join("logs/access.log");
                let format = None;
                self.out.access_logs.push(AccessLog { path, format });
            }
            for name in temp_paths().filter(|name| !writes(name)) {
                let path = self.folder.join(name);
                text.push_str(&format!("{name} {}; ", quoted(&path.display().to_string())));
            }
            self.edits.insert(line, text.trim_end());
        }
        if scope.context() == Contexts::SERVER && !writes("listen") {
            let all = Address::Inet {
                host: "*".to_owned(),
                ports: 80..=80,
            };
            if let Some(Fate::Moved(address) | Fate::Hidden(address)) =
                self.rewrite_address(&all, line, "http")
            {
                let text = format!("listen {};", quoted(&address.to_string()));
                self.edits.insert(line, &text);
            }
        }
    }

    fn listen(&mut self, line: &Line) {
        let word = line.argument(0);
        let Some(address) = Address::parse(&word.text()) else {
            return;
        };
        let is_tls = line.args.iter().any(|word| &*word.bytes == b"ssl");
        let scheme = if is_tls { "https" } else { "http" };
        match self.rewrite_address(&address, line, scheme) {
            Some(Fate::Moved(address)) => {
                self.edits.replace(word, &quoted(&address.to_string()));
            }
            Some(Fate::Hidden(address)) => {
                // The options of the former socket may not be valid for the Unix socket.
                let kept = line.args.iter().map(Word::text);
                let kept = kept.filter(|word| OF_SERVERS.contains(&&**word));
                let words = kept.fold(quoted(&address.to_string()), |words, word| {
                    format!("{words} {word}")
                });
                self.edits.replace_all(&line.args, &words);
            }
            None => {}
        }
    }

    /// The replacement of an address, the same for all lines with the address; `None` after an
    /// error.
    fn rewrite_address(
        &mut self,
        old: &Address,
        line: &Line,
        scheme: &'static str,
    ) -> Option<Fate> {
        let key = old.to_string();
        if let Some(known) = self.addresses.get(&key) {
            return Some(known.clone());
        }
        let fate = match old {
            Address::Unix(_) => Fate::Moved(self.socket()),
            Address::Inet { .. } => match old.moved(self.offset).or_else(|| self.elsewhere(old)) {
                Some(new) => match new.probe() {
                    Ok(()) => Fate::Moved(new),
                    Err(reason) => {
                        self.out.not_done.push(format!("{key} → {new} {reason}"));
                        Fate::Hidden(self.socket())
                    }
                },
                None => {
                    let place = line.position;
                    self.errors.push(format!(
                        "[emerg] no port is free in the place of {key} in {place}"
                    ));
                    return None;
                }
            },
        };
        if let Fate::Moved(address) = &fate {
            self.out.moved.push(Moved {
                old: key.clone(),
                new: address.clone(),
                scheme,
            });
        }
        self.addresses.insert(key, fate.clone());
        Some(fate)
    }

    /// The address with free ports that the file does not use.
    fn elsewhere(&mut self, old: &Address) -> Option<Address> {
        let new = old.at_free_ports(&self.taken)?;
        if let Address::Inet { ports, .. } = &new {
            self.taken.extend(ports.clone());
        }
        Some(new)
    }

    /// A Unix socket in the folder, with a short name, since paths of sockets are limited.
    fn socket(&mut self) -> Address {
        let path = self.folder.join(format!("socket-{}", self.sockets));
        self.sockets += 1;
        Address::Unix(path.display().to_string())
    }

    fn access_log(&mut self, line: &Line) {
        let word = line.argument(0);
        let is_file = !is_elsewhere(&word.bytes) && &*word.bytes != b"off";
        if is_file && !word.bytes.contains(&b'$') {
            let format = line.args.get(1).map(Word::text);
            let format = format.filter(|format| !format.contains('='));
            self.out.access_logs.push(AccessLog {
                path: self.prefix.join(word.path()),
                format: format.map(|format| format.into_owned()),
            });
        }
        if &*word.bytes != b"off" {
            self.log(word);
        }
    }

    /// Moves a log into the folder, also one that is sent to syslog; returns its path. Devices and
    /// logs in memory are unchanged.
    fn log(&mut self, word: &Word) -> Option<PathBuf> {
        if word.bytes.starts_with(b"syslog:") {
            let path = self.folder.join("syslog");
            self.edits
                .replace(word, &quoted(&path.display().to_string()));
            Some(path)
        } else if !is_elsewhere(&word.bytes) {
            Some(self.private(word))
        } else {
            None
        }
    }

    /// Moves a path into the folder: `/var/log/x` becomes `FOLDER/var/log/x`. Returns the new path.
    fn private(&mut self, word: &Word) -> PathBuf {
        let path = self.prefix.join(word.path());
        let below = path
            .components()
            .filter(|part| matches!(part, Component::Normal(_)));
        let private = self.folder.join(below.collect::<PathBuf>());
        if let Err(error) = self.make_parents(&private) {
            let call = format!("mkdir() for \"{}\" failed", private.display());
            self.errors.push(process::log::failure(&call, &error));
        }
        self.edits
            .replace(word, &quoted(&private.display().to_string()));
        private
    }

    /// Creates the parent folders of a file; if its name has variables, only the folders before
    /// them. In these folders, the worker process creates files.
    fn make_parents(&self, path: &Path) -> std::io::Result<()> {
        let has_variable = |path: &Path| path.to_string_lossy().contains('$');
        let Some(parent) = path
            .ancestors()
            .skip(1)
            .find(|parent| !has_variable(parent))
        else {
            return Ok(());
        };
        fs::create_dir_all(parent)?;
        match &self.worker {
            Some(worker) if has_variable(path) => {
                std::os::unix::fs::chown(parent, Some(worker.user), None)
            }
            _ => Ok(()),
        }
    }

    fn check_readable(&mut self, line: &Line) {
        let word = line.argument(0);
        if word.bytes.contains(&b'$') {
            return;
        }
        // Files for requests are relative to the prefix, files of TLS and passwords to the
        // configuration; of the latter, only absolute paths are checked.
        let is_data = ["root", "alias"].iter().any(|name| line.is(name));
        let path = if is_data {
            self.prefix.join(word.path())
        } else {
            word.path().to_owned()
        };
        if !path.is_absolute() {
            return;
        }
        let read = if path.is_dir() {
            fs::read_dir(&path).map(drop)
        } else {
            fs::File::open(&path).map(drop)
        };
        if let Err(error) = read {
            let call = format!("cannot read \"{}\"", path.display());
            self.not_done_at(line, &process::log::failure(&call, &error));
        }
    }

    fn not_done_at(&mut self, line: &Line, what: &str) {
        let (name, place) = (line.name.text(), line.position);
        self.out.not_done.push(format!("{name} {what} in {place}"));
    }
}

/// Whether the destination of a log cannot be a file of the running server.
fn is_elsewhere(target: &[u8]) -> bool {
    target.is_empty()
        || target == b"stderr"
        || target.starts_with(b"syslog:")
        || target.starts_with(b"memory:")
        || target.starts_with(b"/dev/")
}

fn is_lock(word: &Word) -> bool {
    word.bytes.eq_ignore_ascii_case(b"lock")
}

/// The directives for folders of temporary files that have a default.
fn temp_paths() -> impl Iterator<Item = &'static str> {
    registry()
        .iter()
        .flat_map(|declared| declared.spec().names())
        .filter(|name| name.ends_with("_temp_path"))
}

/// A word in quotes.
fn quoted(text: &str) -> String {
    crate::serve::words::quoted(text)
}
