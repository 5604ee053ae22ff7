//! `server_name`: finds the virtual server for a host.
//!
//! <https://nginx.org/en/docs/http/server_names.html>. A host is searched first among the exact
//! names, then among the names that begin with `*.` or `.` (the longest match wins), then among
//! those that end with `.*` (the longest match wins), then among the regexes (the first match
//! wins).

use std::sync::Arc;

use base::hash::Map;
use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setting, Word, parse};
use engine::net::Address;
use framework::compile::Compiler;
use variables::regex::{Hit, Regexes, Undecided};
use variables::{Context, Regex};

/// Declares the directive `server_name`.
pub static SERVER_NAME: Setting<Vec<Word>> = Setting::new("server_name", &["name ..."], |setter| {
    let words = setter.lines().iter().flat_map(|line| &line.args);
    Ok(words.cloned().collect())
})
.contexts(Contexts::SERVER.or(Contexts::STREAM_SERVER))
.arity(Arity::at_least(1))
.inherit(Inherit::List)
.default("\"\"")
.manual(
    "Names of a virtual server: exact, *.suffix, .suffix, prefix.*, or ~regex. The first is \
         the primary name. In `stream` it is the name of the TLS handshake that chooses a server.",
);

static SERVER_NAMES_HASH_MAX_SIZE: Setting<u64> =
    Setting::new("server_names_hash_max_size", &["size"], parse::number)
        .contexts(Contexts::HTTP.or(Contexts::STREAM))
        .no_effect("tables size themselves")
        .manual("Bounds nginx's hash of server names.");

static SERVER_NAMES_HASH_BUCKET_SIZE: Setting<u64> =
    Setting::new("server_names_hash_bucket_size", &["size"], parse::number)
        .contexts(Contexts::HTTP.or(Contexts::STREAM))
        .no_effect("tables size themselves")
        .manual("Sets the size of a bucket of nginx's hash of server names.");

/// The directives for the sizes of nginx's table of server names.
const HASH_SIZES: [&Setting<u64>; 2] =
    [&SERVER_NAMES_HASH_MAX_SIZE, &SERVER_NAMES_HASH_BUCKET_SIZE];

/// The directives of this file.
pub const DIRECTIVES: &[&dyn Declared] = &[
    &SERVER_NAME,
    &SERVER_NAMES_HASH_MAX_SIZE,
    &SERVER_NAMES_HASH_BUCKET_SIZE,
];

/// Checks the sizes of nginx's table of names, if nginx would build one for the block.
///
/// # Errors
/// nginx's error, if the sizes are too small.
pub fn check_table(block: ScopeRef<'_>) -> Result<(), Fault> {
    framework::tables::check(block, "server_names_hash", HASH_SIZES)
}

/// One name of `server_name`.
pub enum ServerNamePattern<C> {
    /// `example.org`, in lower case; may be empty.
    Exact(Vec<u8>),
    /// `*.example.org`: the part after the star with its leading dot. Matches names that end with
    /// this part.
    Suffix(Vec<u8>),
    /// `.example.org`: like `*.example.org`, but also matches `example.org` itself.
    SuffixOrBare(Vec<u8>),
    /// `mail.*`: the part before the star with its trailing dot.
    Prefix(Vec<u8>),
    /// A regex, written `~pattern`.
    Regex(Arc<Regex<C>>),
}

impl<C> Clone for ServerNamePattern<C> {
    fn clone(&self) -> ServerNamePattern<C> {
        match self {
            ServerNamePattern::Exact(name) => ServerNamePattern::Exact(name.clone()),
            ServerNamePattern::Suffix(name) => ServerNamePattern::Suffix(name.clone()),
            ServerNamePattern::SuffixOrBare(name) => ServerNamePattern::SuffixOrBare(name.clone()),
            ServerNamePattern::Prefix(name) => ServerNamePattern::Prefix(name.clone()),
            ServerNamePattern::Regex(regex) => ServerNamePattern::Regex(Arc::clone(regex)),
        }
    }
}

impl<C> ServerNamePattern<C> {
    /// nginx's warning about a name that another server of the same listening address has; `text`
    /// is the name in `$server_name`.
    pub fn conflict(&self, text: &[u8], address: &Address) -> String {
        let name = match self {
            ServerNamePattern::SuffixOrBare(name) => name,
            _ => text,
        };
        let name = String::from_utf8_lossy(name);
        format!("conflicting server name \"{name}\" on {address}, ignored")
    }
}

/// The names of a server, each with its text for `$server_name`. `address` is the listening address
/// that errors mention.
///
/// # Errors
/// nginx's error for an invalid name.
pub fn of_server<C: Context>(
    compiler: &Compiler<'_>,
    server: ScopeRef<'_>,
    address: Option<&Address>,
) -> Result<Vec<(Bytes, ServerNamePattern<C>)>, Fault> {
    let words = server.get(&SERVER_NAME)?;
    words
        .iter()
        .map(|word| read(compiler, word, address))
        .collect()
}

fn read<C: Context>(
    compiler: &Compiler<'_>,
    word: &Word,
    address: Option<&Address>,
) -> Result<(Bytes, ServerNamePattern<C>), Fault> {
    let invalid = || Fault::at(word, format!("server name \"{}\" is invalid", word.text()));
    // nginx finds these faults when it builds the tables of an address, and then names no line.
    let misplaced = || {
        let name = word.text();
        let on = address
            .map(|address| format!(" on {address}"))
            .unwrap_or_default();
        Fault::new(format!("invalid server name or wildcard \"{name}\"{on}"))
            .with_hint(format!("it stands in {}", word.position))
    };
    if &*word.bytes == b"$hostname" {
        let name = framework::host::hostname()
            .to_ascii_lowercase()
            .into_bytes();
        return Ok((name.clone().into(), ServerNamePattern::Exact(name)));
    }
    let lower = word.bytes.to_ascii_lowercase();
    if let Some(pattern) = word.bytes.strip_prefix(b"~") {
        if pattern.is_empty() {
            return Err(Fault::at(word, "empty regex in server name \"~\""));
        }
        let regex =
            Regex::of_list(compiler, pattern, true).map_err(|fault| fault.or_at(word.position))?;
        return Ok((
            Bytes::copy_from_slice(&word.bytes),
            ServerNamePattern::Regex(Arc::new(regex)),
        ));
    }
    if lower.contains(&b'/') {
        let text = format!("server name \"{}\" has suspicious symbols", word.text());
        compiler.warn_each_time(text, Some(word.position));
    }
    let text = match lower.strip_prefix(b".") {
        Some(rest) => Bytes::copy_from_slice(rest),
        None => Bytes::copy_from_slice(&lower),
    };
    let written = match lower.as_slice() {
        [b'.', rest @ ..] if !rest.is_empty() => ServerNamePattern::SuffixOrBare(lower.clone()),
        [b'*', rest @ ..] => match rest {
            [b'.', tail @ ..] if !tail.is_empty() && !tail.contains(&b'*') => {
                ServerNamePattern::Suffix(rest.to_vec())
            }
            [b'.', _, ..] => return Err(misplaced()),
            _ => return Err(invalid()),
        },
        [head @ .., b'*'] => match head {
            [front @ .., b'.'] if !front.is_empty() && !front.contains(&b'*') => {
                ServerNamePattern::Prefix(head.to_vec())
            }
            _ => return Err(misplaced()),
        },
        b"." => return Err(invalid()),
        name if name.contains(&b'*') => return Err(misplaced()),
        name => ServerNamePattern::Exact(name.to_vec()),
    };
    Ok((text, written))
}

/// The kind of name that matched a host.
#[derive(Debug)]
pub enum Matched<'a, C> {
    /// An exact name.
    Exact,
    /// `*.example.org`, without the star.
    Suffix(&'a [u8]),
    /// `mail.*`, without the star.
    Prefix(&'a [u8]),
    /// A regex, written `~pattern`.
    Regex(&'a Regex<C>),
}

/// A regex that hit a limit, so that no server may be chosen.
pub type UndecidedName<C> = (Arc<Regex<C>>, Undecided);

/// The server for a host, and the kind of name that matched; `None` if no name matches.
pub type FoundName<'a, C, S> = Result<Option<(Matched<'a, C>, &'a Arc<S>)>, UndecidedName<C>>;

/// The servers of one listening address by name.
pub struct ServerNames<C, S> {
    exact: Map<Vec<u8>, Arc<S>>,
    /// By suffix with its leading dot (`.example.org`).
    suffixes: Map<Vec<u8>, Arc<S>>,
    /// By prefix with its trailing dot (`mail.`).
    prefixes: Map<Vec<u8>, Arc<S>>,
    regexes: Regexes<(Arc<Regex<C>>, Arc<S>)>,
    /// For each name with a leading dot that was ignored as a duplicate, the name without the dot:
    /// it matches nothing and, as in nginx, no later line can use it.
    reserved: Map<Vec<u8>, ()>,
}

impl<C, S> Default for ServerNames<C, S> {
    fn default() -> ServerNames<C, S> {
        ServerNames {
            exact: Map::default(),
            suffixes: Map::default(),
            prefixes: Map::default(),
            regexes: Regexes::default(),
            reserved: Map::default(),
        }
    }
}

impl<C: Context, S> ServerNames<C, S> {
    /// Whether there are names other than regexes.
    pub fn has_other_than_patterns(&self) -> bool {
        !(self.exact.is_empty() && self.suffixes.is_empty() && self.prefixes.is_empty())
    }

    /// Adds a name. Returns false, and ignores the name, if the address has the name already, even
    /// for the same server; nginx warns then.
    pub fn add(&mut self, name: ServerNamePattern<C>, server: &Arc<S>) -> bool {
        match name {
            ServerNamePattern::Exact(name) if self.reserved.contains_key(&name) => false,
            ServerNamePattern::Exact(name) => insert(&mut self.exact, name, server),
            ServerNamePattern::Suffix(suffix) => insert(&mut self.suffixes, suffix, server),
            ServerNamePattern::SuffixOrBare(suffix) => {
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
            ServerNamePattern::Prefix(prefix) => insert(&mut self.prefixes, prefix, server),
            ServerNamePattern::Regex(regex) => {
                self.regexes.push((regex, Arc::clone(server)));
                true
            }
        }
    }

    /// Prepares the regexes for fast searches, once all names have been added.
    pub fn finish(&mut self) {
        self.regexes.finish(|(regex, _)| &**regex);
    }

    /// The servers of all names, once for each name.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<S>> {
        let exact = self.exact.values();
        exact
            .chain(self.suffixes.values())
            .chain(self.prefixes.values())
            .chain(self.regexes.all().iter().map(|(_, server)| server))
    }

    /// Whether the last regex has captures. As in nginx, earlier regexes do not count.
    pub fn may_capture(&self) -> bool {
        let last = self.regexes.all().last();
        last.is_some_and(|(regex, _)| regex.has_groups())
    }

    /// Whether every name belongs to this server and none is a regex, so that a search is
    /// unnecessary.
    pub fn all_lead_to(&self, server: &Arc<S>) -> bool {
        let mut all = self
            .exact
            .values()
            .chain(self.suffixes.values())
            .chain(self.prefixes.values());
        self.regexes.all().is_empty() && all.all(|one| Arc::ptr_eq(one, server))
    }

    /// The server for a host, which must be in lower case and without a port.
    pub fn find(&self, host: &[u8], context: &mut C) -> Result<Option<Arc<S>>, UndecidedName<C>> {
        let found = self.find_with_name(host, context)?;
        Ok(found.map(|(_, server)| Arc::clone(server)))
    }

    /// The server for the host in a TLS handshake, before there is a context. Regexes leave no
    /// captures.
    pub fn find_name(&self, host: &[u8]) -> Result<Option<Arc<S>>, UndecidedName<C>> {
        let found = self.find_by(host, |regex, hit| match hit {
            Hit::Candidate => regex.is_match(host),
            Hit::Match => Ok(true),
        })?;
        Ok(found.map(|(_, server)| Arc::clone(server)))
    }

    /// Like [`ServerNames::find`], with the kind of name that matched.
    pub fn find_with_name(&self, host: &[u8], context: &mut C) -> FoundName<'_, C, S> {
        self.find_by(host, |regex, hit| regex.matches_as(context, host, hit))
    }

    /// The server for a host; `matches` says whether a regex matches the host.
    fn find_by(
        &self,
        host: &[u8],
        mut matches: impl FnMut(&Regex<C>, Hit) -> Result<bool, Undecided>,
    ) -> FoundName<'_, C, S> {
        if let Some(server) = self.exact.get(host) {
            return Ok(Some((Matched::Exact, server)));
        }
        if !self.suffixes.is_empty() {
            // Dots are searched from the left, so that the longest suffix is found first. The part
            // before the dot may be empty.
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

fn insert<S>(map: &mut Map<Vec<u8>, Arc<S>>, name: Vec<u8>, server: &Arc<S>) -> bool {
    if map.contains_key(&name) {
        return false;
    }
    map.insert(name, Arc::clone(server));
    true
}
