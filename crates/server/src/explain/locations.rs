//! The reason why each location of a server was chosen or not. `http::config::location` performs
//! the search, as for any request; this file turns the observed steps into text.

use std::rc::Rc;
use std::sync::Arc;

use conf::{ScopeId, ScopeRef, Tree};
use http::config::location::LocationName;
use http::config::location::{self, LocationMatch, Observer, Prefix};
use http::config::plan::Plan;
use http::request::Request;

use super::{Candidate, directives};

/// The observed steps of a search.
#[derive(Default)]
struct Observed {
    /// Exact locations that matched.
    exact: Vec<ScopeId>,
    /// The longest prefix location of each level that was searched, and whether it has `^~`.
    prefixes: Vec<(ScopeId, bool)>,
    /// Regex locations that were tried, and whether they matched.
    regexes: Vec<(ScopeId, bool)>,
}

impl Observer for Observed {
    fn exact(&mut self, plan: &Arc<Plan>) {
        self.exact.push(plan.scope);
    }

    fn longest_prefix(&mut self, prefix: &Prefix) {
        self.prefixes.push((prefix.plan.scope, prefix.no_regex));
    }

    fn regex(&mut self, plan: &Arc<Plan>, matched: bool) {
        self.regexes.push((plan.scope, matched));
    }
}

/// The locations of the request's server, each with the reason why it was chosen or not. Of nested
/// locations, only those in a location that is chosen or contains the chosen one.
pub(super) fn candidates(request: &mut Request, tree: &Tree) -> Vec<Candidate> {
    let mut observed = Observed::default();
    let http = Rc::clone(&request.http);
    let found = location::find_observed(request, &http, &mut observed);
    let chosen = match found {
        LocationMatch::Plan(plan) | LocationMatch::Slash(plan, _) => around(tree.scope(plan.scope)),
        LocationMatch::Undecided(..) => Vec::new(),
    };
    let uri = request.uri.clone();
    let server = tree.scope(request.server.plan.scope);
    let mut candidates = Vec::new();
    let search = Search {
        observed: &observed,
        chosen: &chosen,
        uri: &uri,
    };
    search.level(server, 0, &mut candidates);
    candidates
}

/// The ids of a scope and of all outer scopes.
fn around(scope: ScopeRef<'_>) -> Vec<ScopeId> {
    let scopes = std::iter::successors(Some(scope), |scope| scope.parent());
    scopes.map(|scope| scope.id()).collect()
}

/// An observed search, for the text of the reasons.
struct Search<'a> {
    observed: &'a Observed,
    /// The scope that was chosen, and all outer scopes.
    chosen: &'a [ScopeId],
    uri: &'a [u8],
}

impl Search<'_> {
    /// Appends the locations of one scope, with the inner locations of the chosen one after it.
    fn level(&self, outer: ScopeRef<'_>, depth: usize, out: &mut Vec<Candidate>) {
        let inner: Vec<(ScopeRef<'_>, LocationName)> = outer
            .children("location")
            .filter_map(|scope| Some((scope, LocationName::parse(scope.line()?).ok()?)))
            .collect();
        let winner = inner
            .iter()
            .find(|(scope, _)| self.chosen.contains(&scope.id()));
        for (scope, name) in &inner {
            let chosen = self.chosen.contains(&scope.id());
            let why = if chosen {
                self.won(name, &inner)
            } else {
                self.lost(scope.id(), name, winner)
            };
            out.push(Candidate {
                depth,
                place: directives::place(*scope),
                chosen,
                why,
            });
            if chosen {
                self.level(*scope, depth + 1, out);
            }
        }
    }

    /// Why a location was chosen.
    fn won(&self, name: &LocationName, level: &[(ScopeRef<'_>, LocationName)]) -> String {
        match name {
            LocationName::Exact(_) => "the path is just this",
            LocationName::Prefix { no_regex: true, .. } => {
                "the longest prefix; ^~ lets no regex follow"
            }
            LocationName::Prefix { .. } => {
                let is_regex =
                    |(_, name): &(_, LocationName)| matches!(name, LocationName::Regex { .. });
                if level.iter().any(is_regex) {
                    "the longest prefix, and no regex matches"
                } else {
                    "the longest prefix"
                }
            }
            LocationName::Regex { .. } => "the first regex that matches",
            LocationName::Named(_) => "named by a redirect within the server",
        }
        .to_owned()
    }

    /// Why a location was not chosen; `winner` is the chosen one of its level, if any.
    fn lost(
        &self,
        scope: ScopeId,
        name: &LocationName,
        winner: Option<&(ScopeRef<'_>, LocationName)>,
    ) -> String {
        let winner_text = || match winner {
            Some((scope, _)) => format!("{} wins", directives::place(*scope).text),
            None => "one elsewhere wins".to_owned(),
        };
        let by_prefix = matches!(winner, Some((_, LocationName::Prefix { .. })));
        let exact_found = !self.observed.exact.is_empty();
        match name {
            LocationName::Named(_) => "named: only a redirect within the server leads there".into(),
            LocationName::Exact(_) => "the path is not just this".into(),
            LocationName::Prefix { name, .. } if !self.uri.starts_with(name) => {
                "the path does not begin with it".into()
            }
            LocationName::Prefix { .. } => {
                let longest = self
                    .observed
                    .prefixes
                    .iter()
                    .any(|(known, _)| *known == scope);
                let wins = winner_text();
                if longest {
                    format!("the longest prefix, but a regex matches: {wins}")
                } else if exact_found {
                    format!("an exact location goes before: {wins}")
                } else if by_prefix {
                    format!("a longer prefix matches: {wins}")
                } else {
                    format!("not the longest prefix, and a regex matches: {wins}")
                }
            }
            LocationName::Regex { .. } => {
                let asked = self
                    .observed
                    .regexes
                    .iter()
                    .any(|(known, _)| *known == scope);
                let matched = self.observed.regexes.iter().any(|(_, matched)| *matched);
                let closed = self.observed.prefixes.iter().any(|(_, no_regex)| *no_regex);
                match () {
                    () if asked => "does not match".to_owned(),
                    () if exact_found => "not asked: an exact location goes before".to_owned(),
                    () if matched => "not asked: a regex before it matches".to_owned(),
                    () if closed => "not asked: the longest prefix has ^~".to_owned(),
                    () => "not asked".to_owned(),
                }
            }
        }
    }
}
