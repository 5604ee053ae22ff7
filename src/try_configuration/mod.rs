//! `tidegate try`: runs a configuration without disturbing the server that already uses it.
//!
//! The configuration is loaded as usual. Then its text is changed in memory where it names
//! resources of the running server: ports are moved, and everything that is written goes to a
//! private folder ([`rewrite`]). The result is compiled like any configuration. Lines keep their
//! numbers, so that messages about the configuration fit the file.
//!
//! Deliberately not changed: upstream servers, the effects of requests on them, and files that are
//! only read.

mod against;
mod edits;
mod listen;
mod rewrite;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conf::{Disk, Files, MissingHosts};
use process::{Action, ErrorLog, Options};
use rustix::process::Signal;

use crate::application::{OverlayFiles, Tidegate, registry};
use crate::cli::paths;
use crate::private_folder::PrivateFolder;
use against::{Replay, ReplayOutcome};
use rewrite::Rewritten;

/// Run a configuration beside the server that runs by it
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The configuration; without it the one that a start would read
    #[arg(short = 'c', value_name = "FILE")]
    conf: Option<PathBuf>,
    /// Where relative paths of data begin; a relative -c begins there, too
    #[arg(short = 'p', value_name = "PREFIX")]
    prefix: Option<PathBuf>,
    /// How far every port moves
    #[arg(long, value_name = "NUMBER", default_value_t = 8000)]
    port_offset: u16,
    /// The folder for everything that is written; it must not exist yet, and stays. Without it a
    /// temporary one, which goes at the end
    #[arg(long, value_name = "DIRECTORY")]
    folder: Option<PathBuf>,
    /// Leave out what is not there yet, directive by directive, and list it
    #[arg(long)]
    without_unsupported: bool,
    #[command(flatten)]
    against: against::Arguments,
}

/// Runs the configuration until the process is told to end.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    match prepare(&arguments) {
        Ok(trial) => trial.serve(),
        Err(TryError(text)) => {
            let _ = std::io::stderr().write_all(text.as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// The reason why the trial was not started, as complete lines.
struct TryError(String);

impl TryError {
    fn line(text: &str) -> TryError {
        TryError(format!("{}: {text}\n", process::PROGRAM))
    }
}

/// A rewritten configuration that is ready to run.
struct Trial {
    options: Options,
    texts: OverlayFiles,
    announcement: String,
    replay: Option<Replay>,
    /// Removed when dropped, at the end.
    _folder: PrivateFolder,
}

fn prepare(arguments: &Arguments) -> Result<Trial, TryError> {
    let prefix = match &arguments.prefix {
        Some(prefix) => absolute(prefix)?,
        None => PathBuf::from(paths::PREFIX),
    };
    let conf_path = match (&arguments.conf, &arguments.prefix) {
        (None, _) => PathBuf::from(paths::conf()),
        // As in nginx, a relative path follows the prefix.
        (Some(path), Some(_)) => prefix.join(path),
        (Some(path), None) => absolute(path)?,
    };
    let folder = make_folder(arguments.folder.as_deref())?;
    let mut options = Options {
        conf_path,
        prefix,
        error_log: ErrorLog::File(folder.path().join("error.log")),
        globals: Vec::new(),
        action: Action::Start,
        quiet: false,
        privileged: process::identity::is_superuser(),
    };
    let files = Tolerant::new(&options.conf_path);
    let load = || {
        let (path, prefix) = (&options.conf_path, options.conf_prefix());
        conf::load(path, prefix, &[], registry(), &files)
    };
    let mut loaded = load();
    // Errors that may follow from other errors are only reported once these have been fixed, so
    // each attempt may find more.
    while arguments.without_unsupported && files.leave_out_unsupported(&loaded) {
        loaded = load();
    }
    if loaded.has_errors() {
        let found = conf::arrange(&mut loaded, Vec::new());
        let lines = found.iter();
        let lines = lines.map(|found| process::log::explained(found, &loaded.sources));
        return Err(TryError(lines.collect()));
    }
    let mut rewritten = rewrite::rewrite(
        &loaded,
        &options.prefix,
        folder.path(),
        arguments.port_offset,
    )
    .map_err(|errors| TryError(errors.iter().map(|error| TryError::line(error).0).collect()))?;
    rewritten.not_done.append(&mut files.unsupported.take());
    let left_out = files.left_out.take();
    let mut texts = files.texts.take();
    rewritten
        .not_done
        .extend(left_out.iter().map(|(path, error)| {
            let path = path.display();
            process::log::failure(&format!("\"{path}\" was left out"), error)
        }));
    if rewritten.moved.is_empty() {
        let reasons = rewritten.not_done.join("\n  ");
        let text = format!("nothing is left to listen on:\n  {reasons}");
        return Err(TryError::line(&text));
    }
    let replay = arguments
        .against
        .replay(&rewritten)
        .map_err(|text| TryError::line(&text))?;
    let mut announcement = announcement(&options.conf_path, &rewritten, &folder);
    if replay.is_none() {
        announcement.push_str("Ctrl-C ends it.\n");
    }
    texts.extend(rewritten.texts);
    texts.extend(left_out.into_keys().map(|path| (path, Vec::new())));
    options.globals = rewritten.globals;
    Ok(Trial {
        options,
        texts: OverlayFiles(texts),
        announcement,
        replay,
        _folder: folder,
    })
}

impl Trial {
    fn serve(self) -> ExitCode {
        let announcement = self.announcement;
        // The server redirects its standard error to its error log, which is in the folder.
        let terminal = match std::io::stderr().as_fd().try_clone_to_owned() {
            Ok(descriptor) => File::from(descriptor),
            Err(error) => {
                return crate::failure::fail(&process::log::failure("dup() failed", &error));
            }
        };
        let is_comparison = self.replay.is_some();
        let replay = Mutex::new(self.replay);
        let outcome = Arc::new(Mutex::new(None));
        let found = Arc::clone(&outcome);
        let hosts = Arc::new(MissingHosts::new(Disk));
        let tidegate = Tidegate {
            texts: self.texts,
            hosts: Some(Arc::clone(&hosts)),
            last_reading: conf::LastReading::new(),
            serving: Some(Box::new(move || {
                for host in hosts.names() {
                    let program = process::PROGRAM;
                    let _ = writeln!(
                        &terminal,
                        "{program}: host not found: \"{host}\", requests for it fail"
                    );
                }
                let _ = (&terminal).write_all(announcement.as_bytes());
                if let Some(replay) = lock(&replay).take() {
                    compare(replay, Arc::clone(&found));
                }
            })),
        };
        // Leaked deliberately, because the value lives as long as the process.
        let code = process::run(self.options, Box::leak(Box::new(tidegate)));
        let outcome = *lock(&outcome);
        match outcome {
            Some(ReplayOutcome::Same) => ExitCode::SUCCESS,
            Some(ReplayOutcome::Different) => ExitCode::from(1),
            Some(ReplayOutcome::Failed) => ExitCode::from(2),
            // The trial was ended before the comparison.
            None if is_comparison => ExitCode::from(2),
            None => code,
        }
    }
}

/// Runs the comparison in a thread, and then ends the trial.
fn compare(replay: Replay, outcome: Arc<Mutex<Option<ReplayOutcome>>>) {
    let end = || {
        // All requests have been answered, so a fast shutdown loses nothing.
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TERM);
    };
    let body = move || {
        let found = replay.run();
        *lock(&outcome) = Some(found);
        end();
    };
    let thread = std::thread::Builder::new().name("replay".to_owned());
    if thread.spawn(body).is_err() {
        end();
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

fn absolute(path: &Path) -> Result<PathBuf, TryError> {
    std::path::absolute(path).map_err(|error| {
        let call = format!("\"{}\" cannot be used", path.display());
        TryError::line(&process::log::failure(&call, &error))
    })
}

fn make_folder(wanted: Option<&Path>) -> Result<PrivateFolder, TryError> {
    let made = match wanted {
        Some(path) => PrivateFolder::lasting(&absolute(path)?),
        None => PrivateFolder::temporary("try"),
    };
    made.map_err(|(path, error)| {
        let call = format!("mkdir() \"{}\" failed", path.display());
        TryError::line(&process::log::failure(&call, &error))
    })
}

/// The message to print when the configuration runs.
fn announcement(conf_path: &Path, rewritten: &Rewritten, folder: &PrivateFolder) -> String {
    let mut text = format!("Trying {}\n", conf_path.display());
    let width = rewritten
        .moved
        .iter()
        .map(|moved| moved.old.chars().count())
        .max();
    let width = width.unwrap_or(0);
    for moved in &rewritten.moved {
        let (old, new) = (&moved.old, moved.new.url(moved.scheme));
        text.push_str(&format!("  {old:width$} → {new}\n"));
    }
    if !rewritten.not_done.is_empty() {
        text.push_str("Not as in the file:\n");
        for line in &rewritten.not_done {
            text.push_str(&format!("  {line}\n"));
        }
    }
    let folder = folder.path().display();
    text.push_str(&format!("Logs and whatever else it writes: {folder}\n"));
    text
}

/// The files on the disk; files that this process may not read are empty, since a trial may run as
/// any user.
struct Tolerant<'a> {
    conf_path: &'a Path,
    left_out: RefCell<BTreeMap<PathBuf, io::Error>>,
    /// Texts of files without their unsupported directives.
    texts: RefCell<BTreeMap<PathBuf, Vec<u8>>>,
    /// The removed directives, one line each.
    unsupported: RefCell<Vec<String>>,
}

impl<'a> Tolerant<'a> {
    fn new(conf_path: &'a Path) -> Tolerant<'a> {
        Tolerant {
            conf_path,
            left_out: RefCell::default(),
            texts: RefCell::default(),
            unsupported: RefCell::default(),
        }
    }

    /// Replaces unsupported directives by spaces, so that all others keep their positions; returns
    /// whether there were any.
    fn leave_out_unsupported(&self, loaded: &conf::Loaded) -> bool {
        let mut texts = self.texts.borrow_mut();
        let mut has_changed = false;
        for found in &loaded.diagnostics {
            let is_unsupported = ["unknown directive ", "unsupported directive "]
                .iter()
                .any(|words| found.message.starts_with(words));
            let place = found.position.and_then(|at| Some((at, at.file_name()?)));
            let (true, Some((position, name))) = (is_unsupported, place) else {
                continue;
            };
            let mut sources = loaded.sources.iter();
            let Some(source) = sources.find(|source| *source.name == *name) else {
                continue;
            };
            let text = texts
                .entry(name.to_path_buf())
                .or_insert_with(|| source.text.to_vec());
            let start = position.offset as usize;
            let end = edits::directive_end(text, start);
            let Some(directive) = end.and_then(|end| text.get_mut(start..end)) else {
                continue;
            };
            let is_there = directive.iter().any(|byte| !byte.is_ascii_whitespace());
            let kept = directive.iter_mut().filter(|byte| **byte != b'\n');
            kept.for_each(|byte| *byte = b' ');
            if is_there {
                self.unsupported
                    .borrow_mut()
                    .push(format!("{found} was left out"));
                has_changed = true;
            }
        }
        has_changed
    }
}

impl Files for Tolerant<'_> {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        if let Some(text) = self.texts.borrow().get(path) {
            return Ok(text.clone());
        }
        match Disk.read(path) {
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied && path != self.conf_path =>
            {
                self.left_out.borrow_mut().insert(path.to_owned(), error);
                Ok(Vec::new())
            }
            read => read,
        }
    }

    fn glob(&self, pattern: &Path) -> io::Result<Vec<PathBuf>> {
        // An unreadable folder has no matching files; it is reported.
        if let Some(folder) = pattern.parent()
            && let Err(error) = std::fs::read_dir(folder)
            && error.kind() == io::ErrorKind::PermissionDenied
        {
            self.left_out.borrow_mut().insert(folder.to_owned(), error);
        }
        Disk.glob(pattern)
    }

    fn addresses(&self, host: &str) -> Option<Vec<IpAddr>> {
        Disk.addresses(host)
    }
}
