//! What the command line asks for, after nginx's rules for paths have been applied.
//!
//! The program itself parses the flags.

use std::path::{Path, PathBuf};

/// One run of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The folder of relative data paths (`-p`), as it was written.
    pub prefix: PathBuf,
    /// The configuration file (`-c`); a relative path has been joined to the prefix.
    pub conf_path: PathBuf,
    /// The log until the logs of the configuration are open, and the log of a configuration without
    /// `error_log` (`-e`).
    pub error_log: ErrorLog,
    /// Directives from the command line (`-g`).
    pub globals: Vec<Vec<u8>>,
    /// What the command line asks for.
    pub action: Action,
    /// Print nothing if a test succeeds (`-q`).
    pub quiet: bool,
    /// Whether the superuser has started the program: then a `server` without `listen` listens on
    /// port 80. The option tells the worker process, which runs as another user, to compile for the
    /// same sockets as the master.
    pub privileged: bool,
}

/// What the program is to do.
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
    /// Reopen the logs (USR1).
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

/// The destination of log lines until the configuration has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorLog {
    /// Errors go to standard error.
    Stderr,
    /// Errors go to this file. A relative path has been joined to the prefix.
    File(PathBuf),
}

impl Options {
    /// The folder of the configuration file, to which relative paths of `include` and of other
    /// directives belong.
    pub fn conf_prefix(&self) -> &Path {
        self.conf_path.parent().unwrap_or(Path::new(""))
    }
}
