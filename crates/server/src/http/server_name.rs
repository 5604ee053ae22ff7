//! `server_name`: how a Host finds its virtual server.
//!
//! <https://nginx.org/en/docs/http/server_names.html>. Exact names; else the longest name that
//! begins with `*.` (or `.`); else the longest that ends with `.*`; else the first regex.

use std::sync::Arc;

use base::hash::Map;

use crate::http::plan::Server;
use crate::http::request::Request;
use crate::regex::Regex;

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

/// The servers of one listening address by name.
#[derive(Default)]
pub struct ServerNames {
    exact: Map<Vec<u8>, Arc<Server>>,
    /// By suffix with its leading dot (`.example.org`).
    suffixes: Map<Vec<u8>, Arc<Server>>,
    /// By prefix with its trailing dot (`mail.`).
    prefixes: Map<Vec<u8>, Arc<Server>>,
    regexes: Vec<(Arc<Regex>, Arc<Server>)>,
}

impl ServerNames {
    /// Adds a name; false when another server of the address has it already (nginx warns and
    /// ignores the later one).
    pub fn add(&mut self, name: Name, server: &Arc<Server>) -> bool {
        match name {
            Name::Exact(name) => insert(&mut self.exact, name, server),
            Name::Suffix(suffix) => insert(&mut self.suffixes, suffix, server),
            Name::SuffixOrBare(suffix) => {
                let bare = suffix.get(1..).unwrap_or_default().to_vec();
                let first = insert(&mut self.suffixes, suffix, server);
                insert(&mut self.exact, bare, server) && first
            }
            Name::Prefix(prefix) => insert(&mut self.prefixes, prefix, server),
            Name::Regex(regex) => {
                self.regexes.push((regex, Arc::clone(server)));
                true
            }
        }
    }

    /// Whether every name leads to this server, and none by a regex, which may capture.
    pub fn lead_only_to(&self, server: &Arc<Server>) -> bool {
        let mut all = self
            .exact
            .values()
            .chain(self.suffixes.values())
            .chain(self.prefixes.values());
        self.regexes.is_empty() && all.all(|one| Arc::ptr_eq(one, server))
    }

    /// The server for a host in lower case without port.
    pub fn find(&self, host: &[u8], request: &mut Request) -> Option<Arc<Server>> {
        if let Some(server) = self.exact.get(host) {
            return Some(Arc::clone(server));
        }
        if !self.suffixes.is_empty() {
            // From the left, so that the longest suffix is met first; something must stand
            // before the dot.
            for dot in memchr::memchr_iter(b'.', host).filter(|&dot| dot > 0) {
                if let Some(server) = host.get(dot..).and_then(|s| self.suffixes.get(s)) {
                    return Some(Arc::clone(server));
                }
            }
        }
        if !self.prefixes.is_empty() {
            for dot in memchr::memrchr_iter(b'.', host) {
                if dot + 1 < host.len()
                    && let Some(server) = host.get(..=dot).and_then(|p| self.prefixes.get(p))
                {
                    return Some(Arc::clone(server));
                }
            }
        }
        for (regex, server) in &self.regexes {
            if regex.matches(request, host) {
                return Some(Arc::clone(server));
            }
        }
        None
    }
}

fn insert(map: &mut Map<Vec<u8>, Arc<Server>>, name: Vec<u8>, server: &Arc<Server>) -> bool {
    if map.contains_key(&name) {
        return false;
    }
    map.insert(name, Arc::clone(server));
    true
}
