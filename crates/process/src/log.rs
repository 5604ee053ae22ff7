//! The master's own log lines, in nginx's format: whole lines, one append each.
//!
//! No buffering and no rotation: the master writes a few lines a day. Requests are logged by the
//! server, not here.

use std::fmt::{self, Display};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

pub use base::level::Level;
use base::syslog;
use conf::Style;
use rustix::fs::{Mode, OFlags};

use crate::options::{ErrorLog, Options};
use crate::probe;

/// The name in front of every line that goes to the terminal.
pub const PROGRAM: &str = "tidegate";

/// One target of log lines.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) level: Level,
    pub(crate) output: Output,
}

#[derive(Clone, Debug)]
pub(crate) enum Output {
    Stderr,
    File(Rc<OwnedFd>),
    Syslog(Rc<syslog::Channel>),
}

/// The targets of this process's log lines.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    targets: Vec<Target>,
    /// Lines of this level and more severe ones are also printed as `tidegate: [level] …` on
    /// standard error; `None` once the program runs in the background.
    console: Option<Level>,
}

impl Log {
    /// The log until the configuration's own is open. An error log that cannot be opened is
    /// reported and replaced by standard error, as nginx does.
    pub(crate) fn startup(options: &Options, level: Level, console: Level) -> Log {
        let output = match &options.error_log {
            ErrorLog::Stderr => Output::Stderr,
            ErrorLog::File(path) => match open_append(path) {
                Ok(file) => Output::File(Rc::new(file)),
                Err(error) => {
                    let text = failure(&format!("open() \"{}\" failed", path.display()), &error);
                    print(&format!("[alert] could not open error log file: {text}"));
                    Output::Stderr
                }
            },
        };
        Log {
            targets: vec![Target { level, output }],
            console: Some(console),
        }
    }

    /// The log of a test run, which must leave no files: the terminal alone. An error log that
    /// could not be opened is reported, as [`Log::startup`] does.
    pub(crate) fn test(options: &Options, console: Level) -> Log {
        if let ErrorLog::File(path) = &options.error_log
            && let Err(error) = probe::log(path)
        {
            let text = failure(&format!("open() \"{}\" failed", path.display()), &error);
            print(&format!("[alert] could not open error log file: {text}"));
        }
        Log::new(Vec::new(), Some(console))
    }

    /// A log with the given targets; `console` as in [`Log::startup`].
    pub(crate) fn new(targets: Vec<Target>, console: Option<Level>) -> Log {
        Log { targets, console }
    }

    /// Turns the console off, for a program that runs in the background.
    pub(crate) fn without_console(self) -> Log {
        Log {
            console: None,
            ..self
        }
    }

    /// Redirects standard error to the log, as nginx does, so that nothing printed is lost: to the
    /// first file, unless standard error itself is a target.
    pub(crate) fn redirect_stderr(&self) {
        if self
            .targets
            .iter()
            .any(|target| matches!(target.output, Output::Stderr))
        {
            return;
        }
        let file = self.targets.iter().find_map(|target| match &target.output {
            Output::File(file) => Some(file),
            Output::Stderr | Output::Syslog(_) => None,
        });
        if let Some(Err(error)) = file.map(rustix::stdio::dup2_stderr) {
            self.write(Level::Alert, failure("dup2(STDERR) failed", &error.into()));
        }
    }

    pub(crate) fn write(&self, level: Level, message: impl Display) {
        self.write_explained(level, message, "");
    }

    /// Writes one line; on a terminal, the explanation follows.
    pub(crate) fn write_explained(&self, level: Level, message: impl Display, explanation: &str) {
        let mut on_stderr = false;
        let mut line = None;
        for target in self.targets.iter().filter(|target| level <= target.level) {
            let line: &String = line.get_or_insert_with(|| format_line(level, &message));
            // If the log cannot be written, there is nowhere to report it.
            match &target.output {
                Output::Stderr => {
                    on_stderr = true;
                    let _ = std::io::stderr().write_all(line.as_bytes());
                }
                Output::File(file) => {
                    let _ = rustix::io::write(file, line.as_bytes());
                }
                Output::Syslog(channel) => {
                    let time = jiff::Zoned::now().strftime("%b %e %H:%M:%S").to_string();
                    let message = line.strip_suffix('\n').unwrap_or(line);
                    let severity = level as u8 - 1;
                    let _ = channel.send(severity, time.as_bytes(), message.as_bytes());
                }
            }
        }
        if self.console.is_some_and(|console| level <= console) {
            if !on_stderr {
                print(&format!("[{}] {message}", coloured(level)));
            }
            let _ = std::io::stderr().write_all(explanation.as_bytes());
        }
    }

    pub(crate) fn notice(&self, message: impl Display) {
        self.write(Level::Notice, message);
    }
}

/// Colours for a terminal, unless disabled (<https://no-color.org>) or unsupported.
pub(crate) fn style() -> Style {
    use std::io::IsTerminal;
    static STYLE: std::sync::OnceLock<Style> = std::sync::OnceLock::new();
    *STYLE.get_or_init(|| {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if std::io::stderr().is_terminal() && !is_set("NO_COLOR") && !is_dumb {
            Style::Coloured
        } else {
            Style::Plain
        }
    })
}

/// The output of `-t` for a diagnostic: whole lines.
pub fn explained(found: &conf::Diagnostic, sources: &[conf::SourceFile]) -> String {
    let level = coloured(found.level.into());
    let explanation = found.explanation(sources, style());
    format!("{PROGRAM}: [{level}] {found}\n{explanation}")
}

/// A level's name with its colour on standard error.
fn coloured(level: Level) -> String {
    let colour = match level {
        Level::Warn => conf::Level::Warn,
        Level::Notice | Level::Info | Level::Debug => conf::Level::Notice,
        _ => conf::Level::Emerg,
    };
    style().paint(colour.colour(), level.name())
}

/// Prints `tidegate: TEXT` on standard error.
pub(crate) fn print(text: &str) {
    let _ = writeln!(std::io::stderr(), "{PROGRAM}: {text}");
}

/// `WHAT (NUMBER: REASON)`: nginx's format for a failed system call.
pub fn failure(what: &str, error: &std::io::Error) -> String {
    format!("{what} {}", Reason(error))
}

/// Opens a log for appending, as nginx does: created if missing, mode 0644.
pub fn open_append(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))?)
}

/// `(2: No such file or directory)`.
struct Reason<'a>(&'a std::io::Error);

impl Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        match self.0.raw_os_error() {
            Some(number) => {
                let suffix = format!(" (os error {number})");
                write!(
                    f,
                    "({number}: {})",
                    text.strip_suffix(&suffix).unwrap_or(&text)
                )
            }
            None => write!(f, "({text})"),
        }
    }
}

fn format_line(level: Level, message: &impl Display) -> String {
    let now = jiff::Zoned::now();
    let pid = std::process::id();
    let time = now.strftime("%Y/%m/%d %H:%M:%S");
    format!("{time} [{}] {pid}#{pid}: {message}\n", level.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_system_calls_read_as_nginx_prints_them() {
        let error = std::io::Error::from_raw_os_error(2);
        assert_eq!(
            failure("open() \"/x\" failed", &error),
            "open() \"/x\" failed (2: No such file or directory)"
        );
    }

    #[test]
    fn a_line_holds_time_level_and_process() {
        let line = format_line(Level::Notice, &"signal process started");
        let pid = std::process::id();
        assert_eq!(&line[4..5], "/");
        assert_eq!(&line[10..11], " ");
        assert_eq!(
            &line[19..],
            format!(" [notice] {pid}#{pid}: signal process started\n")
        );
    }

    #[test]
    fn only_lines_of_the_level_are_written() {
        let path = std::env::temp_dir().join(format!("tidegate-log-{}", std::process::id()));
        let file = open_append(&path).unwrap();
        let log = Log::new(
            vec![Target {
                level: Level::Warn,
                output: Output::File(Rc::new(file)),
            }],
            None,
        );
        log.write(Level::Notice, "quiet");
        log.write(Level::Error, "loud");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(
            text.ends_with(": loud\n") && !text.contains("quiet"),
            "{text}"
        );
    }
}
