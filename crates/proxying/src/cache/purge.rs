//! `*_cache_purge`: requests that remove entries from the cache, in three forms.
//!
//! ```text
//! proxy_cache_purge $purge_method;                NGINX Plus: if one of the values is true
//! proxy_cache_purge PURGE from 127.0.0.1;         ngx_cache_purge: by method and address
//! fastcgi_cache_purge ZONE "$scheme…$1";          ngx_cache_purge: a location of its own
//! ```
//!
//! The first two purge the entry of the request's own cache key; a key that ends with `*` purges
//! every entry whose key has that prefix. A purge removes all `Vary` variants of a response and all
//! of its slices. Slices share a group: the key without `$slice_range`.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Contexts, Fault, ScopeRef, Template, Word};
use framework::compile::Compiler;
use http::exchange::Exchange;
use http::module::{Content, MaybeFuture, PhaseHandler};
use http::request::{Request, Step, Text};
use http::response::output::page;
use http::response::source::Body;
use http::variables::Compiling as _;
use store::disk::{DiskStore, EntryId, Purged};

use super::directives::Family;
use super::purge_line::{Network, Purge};
use super::rules::tags;
use super::settings::{Zone, any_holds};
use crate::finish;

/// The method of `*_cache_purge on`.
const METHOD: &[u8] = b"PURGE";

/// A compiled line of `*_cache_purge`.
pub(super) enum PurgeLine {
    Off,
    /// Requests purge by this rule.
    Requests(Purge),
    /// Every request to the location purges this key from this zone.
    Zone(Arc<Zone>, Text),
}

impl PurgeLine {
    /// Compiles a line. If the first word names a declared zone and a key follows, the line has the
    /// third form.
    pub(super) fn compile(
        family: &Family,
        compiler: &Compiler<'_>,
        words: &[Word],
    ) -> Result<PurgeLine, Fault> {
        let templates = || words.iter().map(Template::parse);
        let [first, rest @ ..] = words else {
            return Ok(PurgeLine::Off);
        };
        let is_literal = Template::parse(first)?.as_literal().is_some();
        if let [key] = rest
            && is_literal
            && family.has_zone(compiler, first)
        {
            let zone = family.zone(compiler, first)?;
            return Ok(PurgeLine::Zone(zone, compiler.text(&Template::parse(key)?)));
        }
        let is_method = is_literal && first.bytes.iter().all(u8::is_ascii_alphabetic);
        match rest {
            [] if &*first.bytes == b"off" => Ok(PurgeLine::Off),
            [] if is_method => Ok(PurgeLine::of_method(first, Box::new([Network::All]))),
            [from, networks @ ..] if is_method && &*from.bytes == b"from" => {
                if networks.is_empty() {
                    return Err(Fault::invalid_parameter(from));
                }
                let networks: Result<_, _> = networks.iter().map(Network::parse).collect();
                Ok(PurgeLine::of_method(first, networks?))
            }
            _ => {
                let texts = templates().map(|template| Ok(compiler.text(&template?)));
                let texts: Result<_, Fault> = texts.collect();
                Ok(PurgeLine::Requests(Purge::If(texts?)))
            }
        }
    }

    fn of_method(word: &Word, networks: Box<[Network]>) -> PurgeLine {
        let name = match &*word.bytes {
            b"on" => METHOD,
            name => name,
        };
        PurgeLine::Requests(Purge::Method(Bytes::copy_from_slice(name), networks))
    }
}

/// Whether a request purges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PurgeRequest {
    No,
    /// The method matches, but the client's address may not purge.
    Forbidden,
    /// Purge, and answer with 204 if an entry was removed.
    Yes,
    /// Purge, and answer with a page that names the key if an entry was removed.
    WithPage,
}

impl Purge {
    /// Whether, and how, a request purges.
    pub(super) fn asked(&self, request: &mut Request) -> PurgeRequest {
        if !request.is_main() {
            return PurgeRequest::No;
        }
        match self {
            Purge::If(texts) if any_holds(texts, request) => PurgeRequest::Yes,
            Purge::Method(name, networks) if request.client.method_name() == &name[..] => {
                let peer = request.peer();
                if networks.iter().any(|network| network.contains(peer)) {
                    PurgeRequest::WithPage
                } else {
                    PurgeRequest::Forbidden
                }
            }
            _ => PurgeRequest::No,
        }
    }
}

/// Purges the entries that a request names, and responds.
pub(super) async fn answer(
    request: &mut Request,
    asked: PurgeRequest,
    store: Arc<DiskStore>,
    key: Key,
    by_tags: bool,
) -> Step {
    if asked == PurgeRequest::Forbidden {
        return finish(request, 403);
    }
    if by_tags && let Some(tags) = tags_of(request) {
        return answer_tags(request, asked, store, tags).await;
    }
    let is_prefix = key.group().ends_with(b"*");
    let purged = run(request, store, key.clone()).await;
    match purged {
        Purged { entries: 1.., .. } if asked == PurgeRequest::WithPage => done(request, &key),
        Purged { entries: 1.., .. } => no_content(request),
        Purged { failed: 1.., .. } => finish(request, 500),
        Purged { .. } if is_prefix && asked == PurgeRequest::Yes => no_content(request),
        Purged { .. } => finish(request, 404),
    }
}

/// The cache tags that a purge request lists, if any.
fn tags_of(request: &Request) -> Option<Vec<Bytes>> {
    let tags = tags::all(request.client.headers()).into_iter();
    let tags: Vec<Bytes> = tags.map(Bytes::copy_from_slice).collect();
    (!tags.is_empty()).then_some(tags)
}

/// Purges every entry that has one of the tags.
async fn answer_tags(
    request: &mut Request,
    asked: PurgeRequest,
    store: Arc<DiskStore>,
    tags: Vec<Bytes>,
) -> Step {
    let names = tags.join(&b' ');
    let purged = engine::blocking_long(move || {
        let each = tags.iter().map(|tag| store.purge_tag(tag));
        each.fold(Purged::default(), |all, one| Purged {
            entries: all.entries + one.entries,
            failed: all.failed + one.failed,
        })
    });
    match purged.await {
        Purged { failed: 1.., .. } => finish(request, 500),
        Purged { entries: 0, .. } => finish(request, 404),
        Purged { .. } if asked == PurgeRequest::WithPage => {
            let text = [b"purged ", &names[..], b"\n"].concat();
            page(request, 200, Bytes::from_static(b"text/plain"), text.into())
        }
        Purged { .. } => no_content(request),
    }
}

/// Responds with 204.
fn no_content(request: &mut Request) -> Step {
    request.response.status = 204;
    Step::Respond(Body::Empty)
}

/// The cache key of a purge, and the group of the response's slices.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) key: Bytes,
    /// The group that all slices of the response share; empty if the key has no slice range: the
    /// key itself is then the group.
    pub(super) group: Bytes,
}

impl Key {
    /// The key of a request, which may contain the value of `$slice_range`.
    pub(super) fn of(key: Bytes, slice_range: Option<&Text>, request: &mut Request) -> Key {
        let range = slice_range.map(|text| text.evaluate(request));
        let range = range.unwrap_or_default();
        let at = memchr::memmem::find(&key, &range).filter(|_| !range.is_empty());
        let group = at.map(|at| {
            let rest = at + range.len();
            let parts = [key.get(..at), key.get(rest..)];
            parts.map(Option::unwrap_or_default).concat()
        });
        Key {
            key,
            group: group.unwrap_or_default().into(),
        }
    }

    /// The group of the response's slices.
    fn group(&self) -> &[u8] {
        if self.group.is_empty() {
            &self.key
        } else {
            &self.group
        }
    }
}

/// Purges a key on the thread pool, and logs failures.
async fn run(request: &Request, store: Arc<DiskStore>, key: Key) -> Purged {
    let purged = engine::blocking_long(move || purge(&store, &key)).await;
    if purged.failed > 0 {
        let failed = purged.failed;
        logs::error!(request, Crit, "unlink() failed for {failed} cache entries");
    }
    purged
}

/// Removes the entries of a key, or of all keys with the prefix before its final `*`. Blocks on the
/// disk.
pub(super) fn purge(store: &DiskStore, key: &Key) -> Purged {
    if let Some(prefix) = key.group().strip_suffix(b"*") {
        return store.purge_matching(|key| key.starts_with(prefix));
    }
    // The id of the key may also hold a marker, such as that of a cached error.
    let removed = store.purge(&EntryId::of(&[&key.key]));
    let mut purged = store.purge_group(key.group());
    match removed {
        Ok(removed) => purged.entries += u64::from(removed),
        Err(_) => purged.failed += 1,
    }
    purged
}

/// Responds with a page that names the purged key.
fn done(request: &mut Request, key: &Key) -> Step {
    let text = [b"purged ", key.group(), b"\n"].concat();
    page(request, 200, Bytes::from_static(b"text/plain"), text.into())
}

/// The handler of a location whose requests purge a zone.
struct ZonePurge {
    zone: Arc<Zone>,
    key: Text,
}

impl PhaseHandler for ZonePurge {
    fn run<'a>(&'a self, request: &'a mut Request, _: &'a mut Exchange) -> MaybeFuture<'a> {
        MaybeFuture::wait(async move {
            let store = self.zone.state().store(self.zone.settings()).cloned();
            let Some(store) = store else {
                return Ok(Step::Finish(404));
            };
            let key = Key {
                key: self.key.evaluate(request),
                group: Bytes::new(),
            };
            let purged = run(request, store, key.clone()).await;
            Ok(match purged {
                Purged { entries: 1.., .. } => done(request, &key),
                Purged { failed: 1.., .. } => Step::Finish(500),
                Purged { .. } => Step::Finish(404),
            })
        })
    }
}

impl Family {
    /// The content handler, if `*_cache_purge` of this scope names a zone.
    pub fn purge_content(
        &self,
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
    ) -> Result<Option<Content>, Fault> {
        let Some(words) = scope.own(&self.cache_purge)? else {
            return Ok(None);
        };
        Ok(match PurgeLine::compile(self, compiler, &words)? {
            PurgeLine::Zone(zone, key) => Some(Content::of(ZonePurge { zone, key })),
            PurgeLine::Off | PurgeLine::Requests(_) => None,
        })
    }

    /// The rule by which requests of a scope purge.
    pub(super) fn purge(
        &self,
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
    ) -> Result<Option<Purge>, Fault> {
        let Some(words) = scope.written(&self.cache_purge)? else {
            return Ok(None);
        };
        match (PurgeLine::compile(self, compiler, &words)?, words.first()) {
            (PurgeLine::Requests(purge), _) => Ok(Some(purge)),
            // A zone is purged by a content handler, and only a location has one.
            (PurgeLine::Zone(..), Some(word))
                if !scope.context().intersects(Contexts::LOCATION) =>
            {
                let text = format!("zone \"{}\" can be purged by a location only", word.text());
                Err(Fault::at(word, text))
            }
            _ => Ok(None),
        }
    }
}
