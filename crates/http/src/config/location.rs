//! `location`: finds the plan for a URI.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#location>.
//!
//! As in nginx, an exact location is looked for first, then the longest prefix, then the first
//! regex that matches, unless the prefix was written with `^~`. Nested locations are searched
//! within the prefix location that was found.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Fault, Line, Word};
use pattern::Undecided;
use proto::method::Method;

use crate::config::core::Alias;
use crate::config::plan::{Http, Plan};
use crate::request::{Regex, Request};
use variables::regex::Regexes;

/// A location's modifier and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocationName {
    /// A location of the form `= /path`.
    Exact(Bytes),
    /// `/path`; `no_regex` for `^~`.
    Prefix {
        /// The prefix that the URI must begin with.
        name: Bytes,
        /// Whether the location was written with `^~`.
        no_regex: bool,
    },
    /// `~ pattern` and `~* pattern`.
    Regex {
        /// The pattern that the URI must match.
        pattern: Bytes,
        /// Whether case is ignored (written with `~*`).
        caseless: bool,
        /// The word in the configuration, for the position in error messages.
        word: Word,
    },
    /// A named location, written `@name`.
    Named(Bytes),
}

impl LocationName {
    /// Parses the arguments of a `location` line.
    pub fn parse(line: &Line) -> Result<LocationName, Fault> {
        let bytes = |word: &[u8]| Bytes::copy_from_slice(word);
        let regex = |word: &Word, pattern: &[u8], caseless| LocationName::Regex {
            pattern: bytes(pattern),
            caseless,
            word: word.clone(),
        };
        match line.args.as_slice() {
            [modifier, name] => match &*modifier.bytes {
                b"=" => Ok(LocationName::Exact(bytes(&name.bytes))),
                b"^~" => Ok(LocationName::Prefix {
                    name: bytes(&name.bytes),
                    no_regex: true,
                }),
                b"~" => Ok(regex(name, &name.bytes, false)),
                b"~*" => Ok(regex(name, &name.bytes, true)),
                _ => Err(Fault::at(
                    modifier,
                    format!("invalid location modifier \"{}\"", modifier.text()),
                )),
            },
            [name] => Ok(match &*name.bytes {
                [b'=', path @ ..] => LocationName::Exact(bytes(path)),
                [b'^', b'~', path @ ..] => LocationName::Prefix {
                    name: bytes(path),
                    no_regex: true,
                },
                [b'~', b'*', pattern @ ..] => regex(name, pattern, true),
                [b'~', pattern @ ..] => regex(name, pattern, false),
                [b'@', ..] => LocationName::Named(bytes(&name.bytes)),
                path => LocationName::Prefix {
                    name: bytes(path),
                    no_regex: false,
                },
            }),
            _ => Err(Fault::at(
                &line.name,
                "invalid number of arguments in \"location\" directive",
            )),
        }
    }

    /// How an `alias` in this location maps the URI to a path.
    pub fn alias(&self) -> Alias {
        match self {
            LocationName::Exact(name) | LocationName::Prefix { name, .. } => {
                Alias::Prefix(name.len())
            }
            LocationName::Regex { .. } => Alias::Whole,
            LocationName::Named(_) => Alias::Prefix(0),
        }
    }

    /// The path, name or pattern.
    pub(crate) fn bytes(&self) -> &Bytes {
        match self {
            LocationName::Exact(name)
            | LocationName::Prefix { name, .. }
            | LocationName::Named(name)
            | LocationName::Regex { pattern: name, .. } => name,
        }
    }

    /// The path, name or pattern as text, for error messages.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }
}

/// A location found by prefix.
#[derive(Clone)]
pub struct Prefix {
    /// The prefix as written.
    pub name: Bytes,
    /// Whether the location was written with `^~`: no regex is tried.
    pub no_regex: bool,
    /// The plan of the prefix.
    pub plan: Arc<Plan>,
}

/// The locations of one scope. Prefixes are sorted, so that a lookup is a binary search, followed
/// by a walk from the prefix that was found to its shorter prefixes (`parents`).
#[derive(Clone, Default)]
pub struct Locations {
    /// The exact locations, sorted by name.
    exact: Box<[(Bytes, Arc<Plan>)]>,
    /// The prefix locations, sorted by prefix.
    prefixes: Box<[Prefix]>,
    /// For each of `prefixes`, the index of the longest other location that is a prefix of it.
    parents: Box<[Option<u32>]>,
    /// The locations whose requests are passed to an upstream and whose names end with a slash,
    /// sorted by their names without the slash. A location is left out if another location has its
    /// name without the slash.
    slashes: Box<[(Bytes, Arc<Plan>)]>,
    /// The regex locations, in the order of the file.
    regexes: Arc<Regexes<(Arc<Regex>, Arc<Plan>)>>,
}

/// The result of a lookup.
pub enum LocationMatch<'a> {
    /// The plan of the location.
    Plan(&'a Arc<Plan>),
    /// The URI lacks only the final slash of a location whose requests are passed to an upstream:
    /// the location's plan, and the path with the slash.
    Slash(&'a Arc<Plan>, Bytes),
    /// A regex hit a limit: the regex, and the limit.
    Undecided(Arc<Regex>, Undecided),
}

impl Locations {
    /// The locations of a scope. Regexes keep their order.
    pub fn new(
        exact: Vec<(Bytes, Arc<Plan>)>,
        prefixes: Vec<Prefix>,
        regexes: Vec<(Arc<Regex>, Arc<Plan>)>,
    ) -> Locations {
        let mut exact = exact;
        let mut prefixes = prefixes;
        exact.sort_by(|a, b| a.0.cmp(&b.0));
        prefixes.sort_by(|a, b| a.name.cmp(&b.name));
        let parents = parents(&prefixes);
        let all = exact.iter().map(|(name, plan)| (name, plan));
        let all = all.chain(prefixes.iter().map(|prefix| (&prefix.name, &prefix.plan)));
        let mut slashes: Vec<(Bytes, Arc<Plan>)> = all
            .filter(|(_, plan)| plan.auto_redirect)
            .filter_map(|(name, plan)| {
                let bare = name.strip_suffix(b"/")?;
                // A prefix equal to the name without the slash is the location of that path.
                if prefixes
                    .binary_search_by(|prefix| prefix.name.as_ref().cmp(bare))
                    .is_ok()
                {
                    return None;
                }
                // Of two locations with the same name the exact one makes the redirect, as in
                // nginx.
                let found = exact.binary_search_by(|(exact, _)| exact.cmp(name)).ok();
                let exact = found.and_then(|index| exact.get(index));
                let plan = exact.map_or(plan, |(_, plan)| plan);
                Some((name.slice_ref(bare), Arc::clone(plan)))
            })
            .collect();
        slashes.sort_by(|a, b| a.0.cmp(&b.0));
        slashes.dedup_by(|a, b| a.0 == b.0);
        Locations {
            slashes: slashes.into(),
            exact: exact.into(),
            prefixes: prefixes.into(),
            parents,
            regexes: Arc::new(Regexes::new(regexes, |(regex, _)| &**regex)),
        }
    }

    /// Whether the scope has no location at all.
    pub fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefixes.is_empty() && self.regexes.all().is_empty()
    }

    /// The exact location with this name.
    fn exact(&self, uri: &[u8]) -> Option<&Arc<Plan>> {
        let found = self
            .exact
            .binary_search_by(|(name, _)| name.as_ref().cmp(uri))
            .ok()?;
        self.exact.get(found).map(|(_, plan)| plan)
    }

    /// The longest location that is a prefix of `uri`.
    fn longest_prefix(&self, uri: &[u8]) -> Option<&Prefix> {
        let after = self
            .prefixes
            .partition_point(|prefix| prefix.name.as_ref() <= uri);
        let mut at = after.checked_sub(1);
        while let Some(index) = at {
            let prefix = self.prefixes.get(index)?;
            if uri.starts_with(&prefix.name) {
                return Some(prefix);
            }
            at = self
                .parents
                .get(index)
                .copied()
                .flatten()
                .map(|parent| parent as usize);
        }
        None
    }

    /// The first location whose regex matches. The observer is also called for the regexes that
    /// were skipped because they cannot match.
    fn first_regex(
        &self,
        request: &mut Request,
        uri: &[u8],
        observer: &mut impl Observer,
    ) -> Result<Option<&Arc<Plan>>, (Arc<Regex>, Undecided)> {
        let all = self.regexes.all();
        let mut seen = 0;
        let mut observe_until = |place, observer: &mut _| {
            for (_, plan) in all.get(seen..place).unwrap_or_default() {
                Observer::regex(observer, plan, false);
            }
            seen = place + 1;
        };
        let found = self.regexes.first(uri, |place, (regex, plan), hit| {
            observe_until(place, &mut *observer);
            let matched = regex.matches_as(request, uri, hit);
            let matched = matched.map_err(|cause| (Arc::clone(regex), cause))?;
            observer.regex(plan, matched);
            Ok(matched)
        })?;
        if found.is_none() {
            observe_until(all.len(), observer);
        }
        Ok(found.map(|(_, plan)| plan))
    }

    /// The location of which `uri` lacks only the final slash, if its requests are passed to an
    /// upstream, with the location's name.
    fn slash(&self, uri: &[u8]) -> Option<(&Arc<Plan>, Bytes)> {
        let found = self
            .slashes
            .binary_search_by(|(name, _)| name.as_ref().cmp(uri))
            .ok()?;
        let (_, plan) = self.slashes.get(found)?;
        Some((plan, [uri, b"/"].concat().into()))
    }
}

/// For each of the sorted prefixes, the index of the longest proper prefix of it.
fn parents(prefixes: &[Prefix]) -> Box<[Option<u32>]> {
    let mut open: Vec<usize> = Vec::new();
    let mut parents = Vec::with_capacity(prefixes.len());
    for (index, prefix) in prefixes.iter().enumerate() {
        while let Some(&top) = open.last() {
            if prefixes
                .get(top)
                .is_some_and(|outer| prefix.name.starts_with(&outer.name))
            {
                break;
            }
            open.pop();
        }
        parents.push(open.last().map(|&top| top as u32));
        open.push(index);
    }
    parents.into()
}

/// Observes the lookup of a location (`tidegate explain`). Requests use [`NoObserver`].
pub trait Observer {
    /// An exact location was found.
    fn exact(&mut self, _: &Arc<Plan>) {}
    /// The longest prefix of one level was found.
    fn longest_prefix(&mut self, _: &Prefix) {}
    /// A regex was tried.
    fn regex(&mut self, _: &Arc<Plan>, _matched: bool) {}
}

/// An observer that does nothing.
pub struct NoObserver;

impl Observer for NoObserver {}

/// Finds the plan for the request's URI, starting at its server, and applies `limit_except`. `http`
/// must be the configuration of the request.
pub fn find<'a>(request: &mut Request, http: &'a Http) -> LocationMatch<'a> {
    find_observed(request, http, &mut NoObserver)
}

/// Like [`find`], and reports each step to an observer.
pub fn find_observed<'a>(
    request: &mut Request,
    http: &'a Http,
    observer: &mut impl Observer,
) -> LocationMatch<'a> {
    let server_plan = http.shared_plan(request.server.plan.id);
    let uri = std::mem::take(&mut request.uri);
    let found = search(request, &server_plan.locations, &uri, observer);
    request.uri = uri;
    match found {
        LocationSearch::Plan(plan, _) => LocationMatch::Plan(for_method(plan, request.method)),
        LocationSearch::Slash(plan, path) => {
            LocationMatch::Slash(for_method(plan, request.method), path)
        }
        LocationSearch::Nothing => LocationMatch::Plan(server_plan),
        LocationSearch::Undecided(regex, cause) => LocationMatch::Undecided(regex, cause),
    }
}

enum LocationSearch<'a> {
    Nothing,
    /// The plan, and whether it is final, so that no regex of an outer scope may replace it.
    Plan(&'a Arc<Plan>, bool),
    Slash(&'a Arc<Plan>, Bytes),
    Undecided(Arc<Regex>, Undecided),
}

/// Searches the locations of one scope, and those nested in the location that was found.
fn search<'a>(
    request: &mut Request,
    locations: &'a Locations,
    uri: &[u8],
    observer: &mut impl Observer,
) -> LocationSearch<'a> {
    if let Some(plan) = locations.exact(uri) {
        observer.exact(plan);
        return LocationSearch::Plan(plan, true);
    }
    if let Some((plan, path)) = locations.slash(uri) {
        return LocationSearch::Slash(plan, path);
    }
    let mut found = LocationSearch::Nothing;
    let mut no_regex = false;
    if let Some(prefix) = locations.longest_prefix(uri) {
        observer.longest_prefix(prefix);
        no_regex = prefix.no_regex;
        let inner = if prefix.plan.locations.is_empty() {
            LocationSearch::Nothing
        } else {
            search(request, &prefix.plan.locations, uri, observer)
        };
        found = match inner {
            LocationSearch::Nothing => LocationSearch::Plan(&prefix.plan, false),
            settled @ (LocationSearch::Plan(_, true)
            | LocationSearch::Slash(..)
            | LocationSearch::Undecided(..)) => {
                return settled;
            }
            inner => inner,
        };
    }
    if no_regex {
        return found;
    }
    match locations.first_regex(request, uri, observer) {
        Ok(Some(plan)) => match search(request, &plan.locations, uri, observer) {
            LocationSearch::Nothing => LocationSearch::Plan(plan, true),
            LocationSearch::Plan(inner, _) => LocationSearch::Plan(inner, true),
            other => other,
        },
        Ok(None) => found,
        Err((regex, cause)) => LocationSearch::Undecided(regex, cause),
    }
}

/// Applies `limit_except`: the plan of the block for methods that the block does not exempt, else
/// `plan`.
pub fn for_method(plan: &Arc<Plan>, method: Method) -> &Arc<Plan> {
    match &plan.limit_except {
        Some((allowed, inner)) if !allowed.contains(&method) => inner,
        _ => plan,
    }
}
