//! `error_log`: the destinations of error log lines, their levels and their format.
//!
//! <https://nginx.org/en/docs/ngx_core_module.html#error_log>. A line is `2026/11/21 10:00:00
//! [error] PID#TID: *CONNECTION text, client: …, server: …, request: "…"` and so on, as in nginx.
//! A line about a request goes to the log of the request's configuration scope, so level and file
//! may differ per location. Lines without a request go to the main log ([`set_main`]).

use std::cell::Cell;
use std::fmt::{self, Arguments, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setter, Setting, Word};
use framework::compile::{Compiler, Feature};
use framework::display::Bounded;
use framework::generation::Generation;

use super::memory::{self, MemoryLog};
use super::subject::{Process, Subject};
use super::syslog::{self, Syslog};
use super::{Level, LogFile, Subsystem, time, unwritten};
use crate::file::{Compiling as _, LogTable};

/// Maximum length of a line, including its end, in bytes (nginx's `NGX_MAX_ERROR_STR`).
pub(super) const LINE_MAX: usize = 2048;

/// Declares the directive `error_log`.
pub static ERROR_LOG: Setting<Vec<Directive>> =
    Setting::new(
        "error_log",
        &[
            "file [level]",
            "stderr [level]",
            "syslog:server=address[,facility=name][,tag=name][,nohostname] [level]",
            "memory:size [level]",
        ],
        directives,
    )
        .contexts(
            Contexts::MAIN
                .or(Contexts::HTTP)
                .or(Contexts::SERVER)
                .or(Contexts::LOCATION)
                .or(Contexts::STREAM)
                .or(Contexts::STREAM_SERVER)
                .or(Contexts::MEMCACHED)
                .or(Contexts::MEMCACHED_SERVER),
        )
        .arity(Arity::at_least(1))
        .default("logs/error.log error")
        .inherit(Inherit::List)
        .manual(
            "Where errors are logged, and from which level on. Written several times in a scope, \
             each line names one more log. Without a level it is `error`; `debug_http` and its \
             like let the debug lines of one part through. The default file is that of the command \
             line's `-e`. A syslog server is an address, port 514 unless written, or `unix:PATH`; the \
             facility is `local7` and the tag `nginx` unless written. `memory:` keeps the last \
             lines in memory: see docs/running.md for how to read them.",
        );

/// Logs a line about the server itself to the main log: `event!(Notice, "format", …)`.
#[macro_export]
macro_rules! event {
    ($level:ident, $($message:tt)+) => {
        $crate::process_error($crate::Level::$level, format_args!($($message)+))
    };
}

/// The destination of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Destination {
    /// Lines go to standard error.
    #[default]
    Stderr,
    /// A file; a relative path is relative to the prefix.
    File(PathBuf),
    /// Lines go to a syslog server.
    Syslog(syslog::SyslogTarget),
    /// A ring in the memory of the process: its size in bytes, and the title at its beginning.
    Memory(usize, String),
}

impl Destination {
    fn open(&self, compiler: &Compiler<'_>) -> Result<Sink, Fault> {
        Ok(match self {
            Destination::Stderr => Sink::File(compiler.standard_error()),
            Destination::File(path) => Sink::File(compiler.log_file(path)),
            Destination::Syslog(written) => Sink::Syslog(Arc::new(written.open(compiler.files)?)),
            Destination::Memory(size, title) => {
                Sink::Memory(Arc::new(MemoryLog::new(*size, title)))
            }
        })
    }
}

/// An open destination of an error log.
#[derive(Clone, Debug)]
pub enum Sink {
    /// A file, or standard error.
    File(Arc<LogFile>),
    /// Lines go to a syslog server.
    Syslog(Arc<Syslog>),
    /// A ring in the memory of the process.
    Memory(Arc<MemoryLog>),
}

impl Sink {
    /// Writes a whole line, including its end.
    fn put(&self, level: Level, line: &[u8]) {
        match self {
            Sink::File(file) => unwritten::append(file, line, None),
            Sink::Syslog(syslog) => syslog.send_error(level, line),
            Sink::Memory(memory) => memory.append(line),
        }
    }
}

/// One line of `error_log`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// The destination of the log.
    pub destination: Destination,
    /// The lowest level that is logged.
    pub threshold: Threshold,
}

/// Decides which lines a log accepts: those of a level and of all more severe levels, and the debug
/// lines of some subsystems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    level: Level,
    /// One bit per [`Subsystem`].
    debug: u8,
}

impl Threshold {
    const ALL_SUBSYSTEMS: u8 = 0x7f;

    /// Accepts lines of this level and all more severe ones.
    pub fn new(level: Level) -> Threshold {
        let debug = if level == Level::Debug {
            Threshold::ALL_SUBSYSTEMS
        } else {
            0
        };
        Threshold { level, debug }
    }

    #[inline]
    fn admits(self, level: Level, subsystem: Subsystem) -> bool {
        level <= self.level && (level != Level::Debug || self.debug & (1 << subsystem as u8) != 0)
    }

    /// Accepts the lines that either threshold accepts.
    fn or(self, other: Threshold) -> Threshold {
        Threshold {
            level: self.level.max(other.level),
            debug: self.debug | other.debug,
        }
    }

    /// Parses the levels of a line as nginx does: one level, or any number of `debug_…`. With
    /// `debug_…`, the log also accepts the lines of all other levels.
    fn parse(words: &[Word]) -> Result<Threshold, Fault> {
        let mut level = None;
        let mut debug = 0_u8;
        for word in words {
            let text = word.text();
            if let Some(found) = Level::ALL.into_iter().find(|level| level.name() == text) {
                if level.is_some() || debug != 0 {
                    return Err(Fault::at(word, format!("duplicate log level \"{text}\"")));
                }
                level = Some(found);
            } else if let Some(found) = Subsystem::ALL.into_iter().find(|part| part.name() == text)
                && level.is_none()
            {
                debug |= 1 << found as u8;
            } else {
                return Err(Fault::at(word, format!("invalid log level \"{text}\"")));
            }
        }
        Ok(match level {
            Some(level) => Threshold::new(level),
            None if debug != 0 => Threshold {
                level: Level::Debug,
                debug,
            },
            None => Threshold::new(Level::Error),
        })
    }
}

fn directives(setter: &Setter<'_>) -> Result<Vec<Directive>, Fault> {
    setter
        .lines()
        .iter()
        .map(|line| directive(&line.args))
        .collect()
}

fn directive(words: &[Word]) -> Result<Directive, Fault> {
    let [file, levels @ ..] = words else {
        return Err(Fault::new(
            "invalid number of arguments in \"error_log\" directive",
        ));
    };
    let destination = match &*file.bytes {
        b"" | b"stderr" => Destination::Stderr,
        name if name.starts_with(b"syslog:") => {
            Destination::Syslog(syslog::SyslogTarget::parse(file)?)
        }
        name if name.starts_with(b"memory:") => {
            let (size, title) = memory::parse(file)?;
            Destination::Memory(size, title)
        }
        _ => Destination::File(file.path().to_owned()),
    };
    Ok(Directive {
        destination,
        threshold: Threshold::parse(levels)?,
    })
}

/// The error logs of a scope.
#[derive(Debug)]
pub struct ErrorLog {
    targets: Box<[(Sink, Threshold)]>,
    /// The union of the thresholds of all targets.
    threshold: Threshold,
}

impl Feature for ErrorLog {
    const DIRECTIVES: &'static [&'static dyn Declared] = &[&ERROR_LOG];

    fn compile(compiler: &Compiler<'_>, scope: ScopeRef<'_>) -> Result<ErrorLog, Fault> {
        time::load_zone();
        let written = scope.written(&ERROR_LOG)?.unwrap_or_else(|| {
            let table = compiler.registry::<LogTable>();
            vec![Directive {
                destination: table.borrow().default_error_log.clone(),
                threshold: Threshold::new(Level::Error),
            }]
        });
        let mut targets = Vec::with_capacity(written.len());
        for line in &written {
            targets.push((line.destination.open(compiler)?, line.threshold));
        }
        Ok(ErrorLog::new(targets))
    }
}

impl ErrorLog {
    /// A log with these targets.
    pub fn new(targets: impl IntoIterator<Item = (Sink, Threshold)>) -> ErrorLog {
        let targets: Box<[_]> = targets.into_iter().collect();
        let none = Threshold {
            level: Level::Emerg,
            debug: 0,
        };
        let threshold = targets.iter().fold(none, |all, (_, one)| all.or(*one));
        ErrorLog { targets, threshold }
    }

    /// Every target, with the least severe level of which the target accepts lines.
    pub fn targets(&self) -> impl Iterator<Item = (&Sink, Level)> {
        self.targets.iter().map(|(sink, threshold)| {
            let level = if threshold.debug > 0 {
                Level::Debug
            } else {
                threshold.level
            };
            (sink, level)
        })
    }

    /// Whether any target accepts a line of this level.
    #[inline]
    pub fn admits(&self, level: Level, subsystem: Subsystem) -> bool {
        self.threshold.admits(level, subsystem)
    }

    /// Writes a line to every target that accepts its level. The macros call [`ErrorLog::admits`]
    /// first, so that a disabled level formats nothing.
    pub fn write(&self, level: Level, subject: &dyn Subject, message: Arguments<'_>) {
        let subsystem = subject.subsystem();
        with_line(|line| {
            format_line(line, level, subject, message);
            for (sink, threshold) in &self.targets {
                if threshold.admits(level, subsystem) || subject.is_debugged() {
                    sink.put(level, line);
                }
            }
        });
    }
}

/// The main-level `error_log` of a generation.
pub struct MainLog(pub Arc<ErrorLog>);

static MAIN: Mutex<Option<Arc<ErrorLog>>> = Mutex::new(None);

/// Sets the main log to a generation's, for all threads.
pub fn set_main_of(generation: &Generation) {
    if let Some(main) = generation.part::<MainLog>() {
        set_main(Arc::clone(&main.0));
    }
}

/// Sets the log of lines without a request, for all threads.
pub fn set_main(log: Arc<ErrorLog>) {
    *MAIN.lock().unwrap_or_else(PoisonError::into_inner) = Some(log);
}

/// The main log, once it is set.
pub fn main_log() -> Option<Arc<ErrorLog>> {
    MAIN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Writes a line about the server itself to the main log, or to standard error before the main log
/// is set.
pub fn process_error(level: Level, message: Arguments<'_>) {
    let main = MAIN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match main {
        Some(log) if log.admits(level, Process.subsystem()) => {
            log.write(level, &Process, message);
        }
        Some(_) => {}
        None if level <= Level::Notice => {
            // If standard error fails, there is nowhere to report it.
            let _ = std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("tidegate: [{}] {message}\n", level.name()),
            );
        }
        None => {}
    }
}

/// Passes a line buffer to `use_it`. The buffer is reused, so that logging does not allocate; a
/// line logged while another is being formatted gets a new buffer.
pub fn with_line(use_it: impl FnOnce(&mut Vec<u8>)) {
    thread_local! {
        static LINE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }
    let mut line = LINE.take();
    line.clear();
    use_it(&mut line);
    LINE.set(line);
}

thread_local! {
    /// Process and thread IDs, read once per thread. A forked process has a new thread.
    static IDS: String = {
        let thread = rustix::thread::gettid().as_raw_nonzero();
        format!("] {}#{thread}: ", std::process::id())
    };
}

fn format_line(line: &mut Vec<u8>, level: Level, subject: &dyn Subject, message: Arguments<'_>) {
    time::with_now(|now| line.extend_from_slice(&now.error_log));
    let mut out = Bounded::new(line, LINE_MAX - 1);
    // A bounded buffer never fails.
    let _ = out.write_str(" [");
    let _ = out.write_str(level.name());
    let _ = IDS.with(|ids| out.write_str(ids));
    if let Some(serial) = subject.serial() {
        let _ = write!(out, "*{serial} ");
    }
    let begin = out.written().len();
    let _ = out.write_fmt(message);
    if out.written().len() > TEXT_MAX {
        keep_system_error(&mut out, begin, message);
    }
    // Debug lines are numerous, so they omit the fields of the subject.
    if level != Level::Debug {
        let doing = subject.doing();
        if !doing.is_empty() && !ends_with_activity(out.written()) {
            let _ = out.write_str(doing);
        }
        let _ = subject.describe(&mut out);
    }
    line.push(b'\n');
}

/// Maximum length of a line before a system error at its end, in bytes, so that the error fits, as
/// in nginx.
const TEXT_MAX: usize = LINE_MAX - 50;

/// Shortens a long message in front of the system error at its end, so that the error, which names
/// the cause, stays: `open() "/aaa... (36: File name too long)`. The message begins at the offset
/// `begin` of the line.
fn keep_system_error(line: &mut Bounded<'_>, begin: usize, message: Arguments<'_>) {
    let mut end = MessageEnd::default();
    // Writing to memory never fails.
    let _ = end.write_fmt(message);
    if let Some(error) = end.system_error()
        && begin + end.length - error.len() > TEXT_MAX
    {
        line.truncate(TEXT_MAX);
        let _ = write!(line, "...{error}");
    }
}

/// The last bytes of a message of any length, and its length.
#[derive(Default)]
struct MessageEnd {
    /// The last bytes of the message.
    kept: String,
    /// Length of the whole message in bytes.
    length: usize,
}

impl MessageEnd {
    /// More than the longest system error text, 49 bytes, with its number.
    const KEPT_MAX: usize = 128;

    /// The system error at the end of the message, such as ` (2: No such file or directory)`.
    fn system_error(&self) -> Option<&str> {
        let error = self.kept.get(self.kept.rfind(" (")?..)?;
        let (number, words) = error.get(2..)?.split_once(": ")?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        (is_number && words.ends_with(')')).then_some(error)
    }
}

impl Write for MessageEnd {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.length += text.len();
        self.kept.push_str(text);
        let surplus = self.kept.len().saturating_sub(Self::KEPT_MAX);
        let begin = (surplus..=self.kept.len()).find(|&at| self.kept.is_char_boundary(at));
        self.kept.drain(..begin.unwrap_or_default());
        Ok(())
    }
}

/// Whether a message already ends with an activity, such as `… while reading upstream`, because its
/// writer knows the activity better than the subject does. No other text of Tidegate ends with
/// `while` and further words.
fn ends_with_activity(message: &[u8]) -> bool {
    let is_of_words = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b' ';
    let words = message.iter().rev().take_while(|byte| is_of_words(byte));
    let end = message.len() - words.count();
    let end = message.get(end..).unwrap_or_default();
    end.windows(WHILE.len()).any(|part| part == WHILE)
}

const WHILE: &[u8] = b" while ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_takes_graver_lines() {
        let error = Threshold::new(Level::Error);
        assert!(error.admits(Level::Emerg, Subsystem::Core));
        assert!(error.admits(Level::Error, Subsystem::Http));
        assert!(!error.admits(Level::Warn, Subsystem::Http));
        let debug = Threshold::new(Level::Debug);
        assert!(
            Subsystem::ALL
                .into_iter()
                .all(|part| debug.admits(Level::Debug, part))
        );
        let http = Threshold {
            level: Level::Debug,
            debug: 1 << Subsystem::Http as u8,
        };
        assert!(http.admits(Level::Info, Subsystem::Core));
        assert!(http.admits(Level::Debug, Subsystem::Http));
        assert!(!http.admits(Level::Debug, Subsystem::Event));
        let both = error.or(http);
        assert!(both.admits(Level::Debug, Subsystem::Http));
        assert!(!both.admits(Level::Debug, Subsystem::Core));
    }

    /// Endings of our texts, and texts without an action that contain a peer's words.
    #[test]
    fn a_text_that_says_what_is_done() {
        for done in [
            "connecting to upstream",
            "SSL handshaking to upstream",
            "reading response header from upstream",
            "proxying upgraded connection",
            "sending flv to client",
            "logging request",
        ] {
            let text = format!("recv() failed (104: Connection reset by peer) while {done}");
            assert!(ends_with_activity(text.as_bytes()), "{text}");
        }
        for text in [
            "open() \"/a while b\" failed (2: No such file or directory)",
            "user \"x while y\" was not found in \"/users\"",
            "a client request body is buffered to a temporary file /temp/0000000001",
            "meanwhile",
            "while",
            "",
        ] {
            assert!(!ends_with_activity(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn a_line_of_the_server_itself() {
        let mut line = Vec::new();
        format_line(
            &mut line,
            Level::Notice,
            &Process,
            format_args!("{} workers", 2),
        );
        let line = String::from_utf8(line).unwrap();
        let (time, rest) = line.split_at(19);
        assert_eq!(
            time.replace(|c: char| c.is_ascii_digit(), "0"),
            "0000/00/00 00:00:00"
        );
        let ids = format!("{}#{}", std::process::id(), rustix::thread::gettid());
        assert_eq!(rest, format!(" [notice] {ids}: 2 workers\n"));
    }

    #[test]
    fn a_long_line_is_cut_at_2048_bytes() {
        let mut line = Vec::new();
        let text = "x".repeat(3000);
        format_line(&mut line, Level::Error, &Process, format_args!("{text}"));
        assert_eq!(line.len(), LINE_MAX);
        assert!(line.ends_with(b"x\n"));
    }

    /// nginx 1.31 wrote the same endings for requests with such a path.
    #[test]
    fn a_long_line_keeps_its_system_error() {
        let shown = |length: usize, end: &str| {
            let mut line = Vec::new();
            let path = "x".repeat(length);
            let message = format_args!("open() \"{path}\" failed{end}");
            format_line(&mut line, Level::Error, &Process, message);
            String::from_utf8(line).unwrap()
        };
        let line = shown(3000, " (36: File name too long)");
        assert_eq!(line.find("..."), Some(1998));
        assert!(line.ends_with("x... (36: File name too long)\n"));
        // Without a system error at its end, the line is truncated.
        for end in ["", " (too slow)", " (36: File name too long), as"] {
            let line = shown(3000, end);
            assert_eq!(line.len(), LINE_MAX);
            assert!(line.ends_with("x\n"), "{end}");
        }
        let line = shown(1000, " (36: File name too long)");
        assert!(line.ends_with("x\" failed (36: File name too long)\n"));
        // The room is reserved whether or not this error needs all of it.
        let around = shown(0, "").len() - 1;
        let line = shown(TEXT_MAX - around, " (36: File name too long)");
        assert!(line.ends_with("x\" failed (36: File name too long)\n"));
        let line = shown(TEXT_MAX - around + 1, " (36: File name too long)");
        assert!(line.ends_with("x\" faile... (36: File name too long)\n"));
    }

    fn parsed(line: &str) -> Result<Directive, String> {
        let words: Vec<Word> = line
            .split(' ')
            .map(|word| Word {
                bytes: word.as_bytes().into(),
                quoted: false,
                position: Default::default(),
            })
            .collect();
        directive(&words).map_err(|fault| fault.message)
    }

    /// Lines that nginx 1.31 accepts, and its error texts for others.
    #[test]
    fn lines_of_the_directive() {
        let file = |path: &str, threshold| Directive {
            destination: Destination::File(path.into()),
            threshold,
        };
        let debug = |parts: &[Subsystem]| Threshold {
            level: Level::Debug,
            debug: parts.iter().fold(0, |bits, part| bits | 1 << *part as u8),
        };
        let error = Threshold::new(Level::Error);
        assert_eq!(parsed("logs/e.log"), Ok(file("logs/e.log", error)));
        assert_eq!(
            parsed("/e.log warn"),
            Ok(file("/e.log", Threshold::new(Level::Warn)))
        );
        assert_eq!(
            parsed("stderr"),
            Ok(Directive {
                destination: Destination::Stderr,
                threshold: error
            })
        );
        assert_eq!(
            parsed("e debug_http debug_event debug_http"),
            Ok(file("e", debug(&[Subsystem::Http, Subsystem::Event])))
        );
        assert_eq!(parsed("e debug"), Ok(file("e", debug(&Subsystem::ALL))));
        for (line, text) in [
            ("e foo", "invalid log level \"foo\""),
            ("e error warn", "duplicate log level \"warn\""),
            ("e error debug_http", "invalid log level \"debug_http\""),
            ("e debug_http error", "duplicate log level \"error\""),
            ("syslog:tag=x", "no syslog server specified"),
            ("memory:1k debug", "invalid buffer size \"1k\""),
        ] {
            assert_eq!(parsed(line), Err(text.to_owned()), "{line}");
        }
    }
}
