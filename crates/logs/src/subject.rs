//! The subject of an error log line, and how such a line is written.
//!
//! The subject determines the log of a line and the fields after its text; logs know neither
//! requests nor connections.

use std::fmt;
use std::fmt::Arguments;
use std::sync::Arc;

use framework::display::Bounded;

use super::error::{ErrorLog, LINE_MAX};
use super::{Level, Subsystem};

/// The subject of a log line.
pub trait Subject {
    /// Whether a line of this level would be written anywhere. Called before anything is formatted,
    /// so it must cost no more than a few branches.
    fn admits(&self, level: Level) -> bool;

    /// Passes the log for these lines to `write`, if there is one.
    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>));

    /// Whether `debug_connection` lists the client, so that every target of the log accepts the
    /// lines about this subject.
    fn is_debugged(&self) -> bool {
        false
    }

    /// The subsystem of the debug lines.
    fn subsystem(&self) -> Subsystem {
        Subsystem::Core
    }

    /// The connection's number, shown after `*`.
    fn serial(&self) -> Option<u64> {
        None
    }

    /// The current activity, which is appended to a text without an activity: for example
    /// ` while sending to client`, or empty.
    fn doing(&self) -> &str {
        ""
    }

    /// Appends the fields after the text: `, client: …, server: …`.
    fn describe(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let _ = out;
        Ok(())
    }
}

/// Logs a line: `error!(request, Error, "format", …)`. If the level is off, costs two branches, one
/// of them for `debug_connection`. Bytes that a peer has chosen must be passed as
/// [`super::Printable`].
#[macro_export]
macro_rules! error {
    ($subject:expr, $level:ident, $($message:tt)+) => {{
        let subject = &*$subject;
        if $crate::Subject::admits(subject, $crate::Level::$level) {
            $crate::write_line(
                subject,
                $crate::Level::$level,
                format_args!($($message)+),
            );
        }
    }};
}

/// Logs a line at a level that is known only at run time.
pub fn write(subject: &dyn Subject, level: Level, message: Arguments<'_>) {
    if subject.admits(level) {
        write_line(subject, level, message);
    }
}

/// Writes a line whose level has been checked with [`Subject::admits`].
#[cold]
pub fn write_line(subject: &dyn Subject, level: Level, message: Arguments<'_>) {
    subject.with_log(&mut |log| log.write(level, subject, message));
}

/// The server itself, for lines without a client or a log of their own.
pub struct Process;

impl Subject for Process {
    fn admits(&self, _: Level) -> bool {
        false
    }

    fn with_log(&self, _: &mut dyn FnMut(&Arc<ErrorLog>)) {}
}

/// A copy of a subject's fields, for a line that may be written after the subject is gone.
pub struct SubjectSnapshot {
    log: Option<Arc<ErrorLog>>,
    subsystem: Subsystem,
    serial: Option<u64>,
    debugged: bool,
    /// The fields after the text.
    fields: String,
}

impl SubjectSnapshot {
    /// Copies the fields of this subject.
    pub fn of(subject: &dyn Subject) -> SubjectSnapshot {
        let mut log = None;
        subject.with_log(&mut |its| log = Some(Arc::clone(its)));
        let mut fields = Vec::new();
        // A bounded buffer never fails.
        let _ = subject.describe(&mut Bounded::new(&mut fields, LINE_MAX));
        SubjectSnapshot {
            log,
            subsystem: subject.subsystem(),
            serial: subject.serial(),
            debugged: subject.is_debugged(),
            fields: String::from_utf8_lossy(&fields).into_owned(),
        }
    }

    /// Made-up fields of a request, for tests.
    #[cfg(test)]
    pub(super) fn imagined(log: &Arc<ErrorLog>, fields: &str) -> SubjectSnapshot {
        SubjectSnapshot {
            log: Some(Arc::clone(log)),
            subsystem: Subsystem::Http,
            serial: Some(7),
            debugged: false,
            fields: fields.to_owned(),
        }
    }

    /// Writes a line about the subject.
    pub fn write(&self, level: Level, message: Arguments<'_>) {
        write(self, level, message);
    }
}

impl Subject for SubjectSnapshot {
    fn admits(&self, level: Level) -> bool {
        let log = self.log.as_ref();
        log.is_some_and(|log| log.admits(level, self.subsystem) || self.debugged)
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        self.log.iter().for_each(write);
    }

    fn is_debugged(&self) -> bool {
        self.debugged
    }

    fn subsystem(&self) -> Subsystem {
        self.subsystem
    }

    fn serial(&self) -> Option<u64> {
        self.serial
    }

    fn describe(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str(&self.fields)
    }
}
