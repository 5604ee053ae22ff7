//! The severity of a log line: nginx's words, in nginx's order.
//!
//! <https://nginx.org/en/docs/ngx_core_module.html#error_log>. The log crates decide who writes a
//! line, to which log and in which form.

/// The severity of a log line. A smaller value is more severe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The program cannot go on.
    Emerg = 1,
    /// The operator must act now.
    Alert,
    /// A part of the system fails.
    Crit,
    /// A request or an action fails.
    Error,
    /// Something looks wrong, and service goes on.
    Warn,
    /// Normal, but worth a line.
    Notice,
    /// Details, among them errors of clients.
    Info,
    /// Every step, for debugging.
    Debug,
}

impl Level {
    /// All levels, the most severe first.
    pub const ALL: [Level; 8] = [
        Level::Emerg,
        Level::Alert,
        Level::Crit,
        Level::Error,
        Level::Warn,
        Level::Notice,
        Level::Info,
        Level::Debug,
    ];

    /// The level's word in log lines and in the directive `error_log`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Level::Emerg => "emerg",
            Level::Alert => "alert",
            Level::Crit => "crit",
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Notice => "notice",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }

    /// The level with this name in the directive `error_log`; `None` if there is none.
    #[must_use]
    pub fn parse(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_parses_back() {
        for level in Level::ALL {
            assert_eq!(Level::parse(level.name()), Some(level));
        }
        assert_eq!(Level::parse("warning"), None);
    }

    #[test]
    fn graver_is_smaller() {
        assert!(Level::ALL.is_sorted());
    }
}
