//! What the command line asks for, after nginx's rules for paths have been applied.
//!
//! Reading the flags is the business of the program; this is the result.

use std::path::{Path, PathBuf};

/// One run of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Relative data paths start here (`-p`); kept as it was written.
    pub prefix: PathBuf,
    /// The configuration file, already below the prefix where it was relative (`-c`).
    pub conf_path: PathBuf,
    /// The log until the configuration's own is open, and its default (`-e`).
    pub error_log: ErrorLog,
    /// Directives from the command line (`-g`).
    pub globals: Vec<Vec<u8>>,
    /// What the command line asks for.
    pub action: Action,
    /// Say nothing on success of a test (`-q`).
    pub quiet: bool,
    /// Whether the program was started by the superuser: then a `server` without `listen` is at
    /// port 80. The worker process, which is no superuser any more, compiles for the same sockets.
    pub privileged: bool,
}

/// What a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start serving as the master.
    Start,
    /// Check the configuration (`-t`), and print it (`-T`).
    Test {
        /// Print every file that was read.
        dump: bool,
    },
    /// Send a signal to the running master (`-s`).
    Signal(SignalName),
}

/// The signals that `-s` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalName {
    /// End at once (TERM).
    Stop,
    /// End when every request is answered (QUIT).
    Quit,
    /// Open the logs again (USR1).
    Reopen,
    /// Read the configuration again (HUP).
    Reload,
}

impl SignalName {
    /// Parses the argument of `-s`.
    pub fn parse(text: &str) -> Option<SignalName> {
        match text {
            "stop" => Some(SignalName::Stop),
            "quit" => Some(SignalName::Quit),
            "reopen" => Some(SignalName::Reopen),
            "reload" => Some(SignalName::Reload),
            _ => None,
        }
    }

    /// The number of the signal.
    pub(crate) fn number(self) -> i32 {
        match self {
            SignalName::Stop => libc::SIGTERM,
            SignalName::Quit => libc::SIGQUIT,
            SignalName::Reopen => libc::SIGUSR1,
            SignalName::Reload => libc::SIGHUP,
        }
    }
}

/// Where lines go before the configuration says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorLog {
    /// Errors go to standard error.
    Stderr,
    /// A file, already below the prefix where it was relative.
    File(PathBuf),
}

impl Options {
    /// Relative `include`s and files of setters start at the folder of the configuration file.
    pub fn conf_prefix(&self) -> &Path {
        self.conf_path.parent().unwrap_or(Path::new(""))
    }
}
