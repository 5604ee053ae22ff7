//! `server_name`: how a Host finds its virtual server.
//!
//! <https://nginx.org/en/docs/http/server_names.html>. Exact names; else the longest name that
//! begins with `*.` (or `.`); else the longest that ends with `.*`; else the first regex.

use std::sync::Arc;

use base::hash::Map;
use pattern::{Hit, Undecided};

use crate::plan::Server;
use crate::regex::{Regex, Regexes};
use crate::request::Request;

/// One name as `server_name` writes it.
pub enum Name {
    /// `example.org`, in lower case; may be empty.
    Exact(Vec<u8>),
    /// `*.example.org`: the part after the star with its dot; matches with a part before it.
    Suffix(Vec<u8>),
    /// `.example.org`: the same, or the bare name.
    SuffixOrBare(Vec<u8>),
    /// `mail.*`: the part before the star with its dot.
    Prefix(Vec<u8>),
    /// `~pattern`.
    Regex(Arc<Regex>),
}

/// The name that a host was found by.
#[derive(Clone, Copy, Debug)]
pub enum Matched<'a> {
    /// The very name.
    Exact,
    /// `*.example.org`, without the star.
    Suffix(&'a [u8]),
    /// `mail.*`, without the star.
    Prefix(&'a [u8]),
    /// `~pattern`.
    Regex(&'a Regex),
}

/// A regex that could not be decided, so that no server may be chosen.
pub type UndecidedName = (Arc<Regex>, Undecided);

/// A server and the name that it was found by, if it was.
pub type FoundName<'a> = Result<Option<(Matched<'a>, &'a Arc<Server>)>, UndecidedName>;

/// The servers of one listening address by name.
#[derive(Default)]
pub struct ServerNames {
    exact: Map<Vec<u8>, Arc<Server>>,
    /// By suffix with its leading dot (`.example.org`).
    suffixes: Map<Vec<u8>, Arc<Server>>,
    /// By prefix with its trailing dot (`mail.`).
    prefixes: Map<Vec<u8>, Arc<Server>>,
    regexes: Regexes<(Arc<Regex>, Arc<Server>)>,
    /// Bare names of which the form with a dot before them was ignored: they lead nowhere, and as with nginx no later line
    /// can have them.
    reserved: Map<Vec<u8>, ()>,
}

impl ServerNames {
    /// Whether there are names that are no patterns.
    pub fn has_other_than_patterns(&self) -> bool {
        !(self.exact.is_empty() && self.suffixes.is_empty() && self.prefixes.is_empty())
    }

    /// Adds a name; false when the address has it already, be it of the same server (nginx warns and ignores the later one).
    pub fn add(&mut self, name: Name, server: &Arc<Server>) -> bool {
        match name {
            Name::Exact(name) if self.reserved.contains_key(&name) => false,
            Name::Exact(name) => insert(&mut self.exact, name, server),
            Name::Suffix(suffix) => insert(&mut self.suffixes, suffix, server),
            Name::SuffixOrBare(suffix) => {
                let bare = suffix.get(1..).unwrap_or_default().to_vec();
                if self.exact.contains_key(&bare) || self.reserved.contains_key(&bare) {
                    return false;
                }
                if !insert(&mut self.suffixes, suffix, server) {
                    self.reserved.insert(bare, ());
                    return false;
                }
                insert(&mut self.exact, bare, server)
            }
            Name::Prefix(prefix) => insert(&mut self.prefixes, prefix, server),
            Name::Regex(regex) => {
                self.regexes.push((regex, Arc::clone(server)));
                true
            }
        }
    }

    /// Makes regexes quick to search, once all names are there.
    pub fn finish(&mut self) {
        self.regexes.finish(|(regex, _)| &**regex);
    }

    /// The servers that names lead to, once for each name.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        let exact = self.exact.values();
        exact
            .chain(self.suffixes.values())
            .chain(self.prefixes.values())
            .chain(self.regexes.all().iter().map(|(_, server)| server))
    }

    /// Whether a name is matched by a regex that captures. As in nginx the last one tells: where it does not, what others before it
    /// would capture is not asked for.
    pub fn may_capture(&self) -> bool {
        let last = self.regexes.all().last();
        last.is_some_and(|(regex, _)| regex.has_groups())
    }

    /// Whether every name leads to this server, and none by a regex, which may capture.
    pub fn lead_only_to(&self, server: &Arc<Server>) -> bool {
        let mut all = self
            .exact
            .values()
            .chain(self.suffixes.values())
            .chain(self.prefixes.values());
        self.regexes.all().is_empty() && all.all(|one| Arc::ptr_eq(one, server))
    }

    /// The server for a host in lower case without port.
    pub fn find(
        &self,
        host: &[u8],
        request: &mut Request,
    ) -> Result<Option<Arc<Server>>, UndecidedName> {
        let found = self.find_with_name(host, request)?;
        Ok(found.map(|(_, server)| Arc::clone(server)))
    }

    /// The server for a host that the client names before it has sent a request.
    pub fn find_name(&self, host: &[u8]) -> Result<Option<Arc<Server>>, UndecidedName> {
        let found = self.find_by(host, |regex, hit| match hit {
            Hit::Candidate => regex.is_match(host),
            Hit::Match => Ok(true),
        })?;
        Ok(found.map(|(_, server)| Arc::clone(server)))
    }

    /// The same as [`ServerNames::find`] with the kind of name that led to it.
    pub fn find_with_name(&self, host: &[u8], request: &mut Request) -> FoundName<'_> {
        self.find_by(host, |regex, hit| regex.matches_as(request, host, hit))
    }

    /// `matches` says whether a regex fits the host.
    fn find_by(
        &self,
        host: &[u8],
        mut matches: impl FnMut(&Regex, Hit) -> Result<bool, Undecided>,
    ) -> FoundName<'_> {
        if let Some(server) = self.exact.get(host) {
            return Ok(Some((Matched::Exact, server)));
        }
        if !self.suffixes.is_empty() {
            // From the left, so that the longest suffix is met first. Before the dot there may be nothing.
            for dot in memchr::memchr_iter(b'.', host) {
                let suffix = host.get(dot..).unwrap_or_default();
                if let Some((suffix, server)) = self.suffixes.get_key_value(suffix) {
                    return Ok(Some((Matched::Suffix(suffix), server)));
                }
            }
        }
        if !self.prefixes.is_empty() {
            for dot in memchr::memrchr_iter(b'.', host) {
                let prefix = host.get(..=dot).unwrap_or_default();
                if dot + 1 < host.len()
                    && let Some((prefix, server)) = self.prefixes.get_key_value(prefix)
                {
                    return Ok(Some((Matched::Prefix(prefix), server)));
                }
            }
        }
        let found = self.regexes.first(host, |_, (regex, _), hit| {
            matches(regex, hit).map_err(|cause| (Arc::clone(regex), cause))
        })?;
        Ok(found.map(|(regex, server)| (Matched::Regex(regex), server)))
    }
}

fn insert(map: &mut Map<Vec<u8>, Arc<Server>>, name: Vec<u8>, server: &Arc<Server>) -> bool {
    if map.contains_key(&name) {
        return false;
    }
    map.insert(name, Arc::clone(server));
    true
}
