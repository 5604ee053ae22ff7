//! Contexts: the kinds of blocks in which a directive may appear. A directive's declaration says
//! which context its block has ([`crate::Setting::opens`]).

use std::fmt;
use std::ops::BitOr;

/// A set of contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Contexts(u32);

impl Contexts {
    /// No context at all.
    pub const NONE: Contexts = Contexts(0);
    /// The top level of the file.
    pub const MAIN: Contexts = Contexts(1);
    /// The context within `events`, for directives that may stand there.
    pub const EVENTS: Contexts = Contexts(1 << 1);
    /// The context within `http`, for directives that may stand there.
    pub const HTTP: Contexts = Contexts(1 << 2);
    /// The context within `server` in `http`, for directives that may stand there.
    pub const SERVER: Contexts = Contexts(1 << 3);
    /// The context within `location`, for directives that may stand there.
    pub const LOCATION: Contexts = Contexts(1 << 4);
    /// The context within `if` in `server`, for directives that may stand there.
    pub const SERVER_IF: Contexts = Contexts(1 << 5);
    /// The context within `if` in `location`, for directives that may stand there.
    pub const LOCATION_IF: Contexts = Contexts(1 << 6);
    /// The context within `limit_except`, for directives that may stand there.
    pub const LIMIT_EXCEPT: Contexts = Contexts(1 << 7);
    /// The context within `upstream` in `http`, for directives that may stand there.
    pub const UPSTREAM: Contexts = Contexts(1 << 8);
    /// The context within `stream`, for directives that may stand there.
    pub const STREAM: Contexts = Contexts(1 << 9);
    /// The context within `server` in `stream`, for directives that may stand there.
    pub const STREAM_SERVER: Contexts = Contexts(1 << 10);
    /// The context within `upstream` in `stream`, for directives that may stand there.
    pub const STREAM_UPSTREAM: Contexts = Contexts(1 << 11);
    /// The context within `mail`, for directives that may stand there.
    pub const MAIL: Contexts = Contexts(1 << 12);
    /// The context within `server` in `mail`, for directives that may stand there.
    pub const MAIL_SERVER: Contexts = Contexts(1 << 13);
    /// The context within `acme_issuer`, for directives that may stand there.
    pub const ACME_ISSUER: Contexts = Contexts(1 << 14);
    /// The context within `match` in `http`, for directives that may stand there.
    pub const MATCH: Contexts = Contexts(1 << 15);
    /// The context within `memcached`, for directives that may stand there.
    pub const MEMCACHED: Contexts = Contexts(1 << 16);
    /// The context within `server` in `memcached`, for directives that may stand there.
    pub const MEMCACHED_SERVER: Contexts = Contexts(1 << 17);
    /// The context within `match` in `stream`, for directives that may stand there.
    pub const STREAM_MATCH: Contexts = Contexts(1 << 18);

    /// The context within `otel_exporter`, for directives that may stand there.
    pub const OTEL_EXPORTER: Contexts = Contexts(1 << 19);

    /// All contexts together, for directives that are allowed everywhere, such as `include`.
    pub const ALL: Contexts = Contexts((1 << 20) - 1);

    /// The contexts of either set.
    #[must_use]
    pub const fn or(self, other: Contexts) -> Contexts {
        Contexts(self.0 | other.0)
    }

    /// Whether every context of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Contexts) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether the two sets share a context.
    #[must_use]
    pub const fn intersects(self, other: Contexts) -> bool {
        self.0 & other.0 != 0
    }

    /// The names of the contexts, as the manual writes them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES
            .iter()
            .filter(move |(context, _)| self.intersects(*context))
            .map(|(_, name)| *name)
    }
}

/// The name of each context in the manual and in hints.
const NAMES: &[(Contexts, &str)] = &[
    (Contexts::MAIN, "main"),
    (Contexts::EVENTS, "events"),
    (Contexts::HTTP, "http"),
    (Contexts::SERVER, "server"),
    (Contexts::LOCATION, "location"),
    (Contexts::SERVER_IF, "if in server"),
    (Contexts::LOCATION_IF, "if in location"),
    (Contexts::LIMIT_EXCEPT, "limit_except"),
    (Contexts::UPSTREAM, "upstream"),
    (Contexts::STREAM, "stream"),
    (Contexts::STREAM_SERVER, "server in stream"),
    (Contexts::STREAM_UPSTREAM, "upstream in stream"),
    (Contexts::MAIL, "mail"),
    (Contexts::MAIL_SERVER, "server in mail"),
    (Contexts::ACME_ISSUER, "acme_issuer"),
    (Contexts::MATCH, "match"),
    (Contexts::MEMCACHED, "memcached"),
    (Contexts::MEMCACHED_SERVER, "server in memcached"),
    (Contexts::STREAM_MATCH, "match in stream"),
    (Contexts::OTEL_EXPORTER, "otel_exporter"),
];

impl BitOr for Contexts {
    type Output = Contexts;

    fn bitor(self, other: Contexts) -> Contexts {
        self.or(other)
    }
}

impl fmt::Display for Contexts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.names().enumerate() {
            if index > 0 {
                out.write_str(", ")?;
            }
            out.write_str(name)?;
        }
        Ok(())
    }
}
