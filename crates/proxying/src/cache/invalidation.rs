//! Invalidates entries after an unsafe request: `rules::invalidation` names the targets, and this
//! module removes their entries (RFC 9111, section 4.4).

use http::request::Request;
use proto::header::KnownField;
use proto::method::Method;

use super::clock::now;
use super::lookup::CacheLookup;
use super::partial_entry;
use super::purge::{self, Key};
use super::rules::invalidation;
use crate::answer::AnswerHead;

/// Whether the request's method may change the resource, and with it the response to GET.
pub(super) fn is_unsafe(request: &Request) -> bool {
    match request.method {
        Method::Other => invalidation::is_unsafe(request.client.method_name()),
        method => invalidation::is_unsafe(method.name().as_bytes()),
    }
}

impl CacheLookup {
    /// Removes the entries that an unsafe request invalidates, if its response reports no error:
    /// those of the request's key, and those of the keys in which the target of `Location` or
    /// `Content-Location` replaces the request's. If the key does not contain the request's target
    /// as sent, only the request's key is invalidated.
    pub(super) async fn invalidate(&self, request: &Request, head: &AnswerHead) {
        if !invalidation::is_no_error(head.status()) {
            return;
        }
        let mut keys = vec![Key {
            key: self.key.clone(),
            group: self.group.clone(),
        }];
        let own = request.request_uri();
        let at = memchr::memmem::rfind(&self.key, own).filter(|_| !own.is_empty());
        let host = request.header(KnownField::Host).unwrap_or_default();
        let named = [
            head.value(KnownField::Location, &head.bytes),
            content_location(head),
        ];
        let named = named.into_iter().flatten();
        let scheme = request.scheme().as_bytes();
        let targets = named.filter_map(|it| invalidation::target(it, scheme, host, own));
        if let Some(at) = at {
            let (before, rest) = self.key.split_at(at);
            let behind = rest.get(own.len()..).unwrap_or_default();
            for target in targets.filter(|target| target != own) {
                keys.push(Key {
                    key: [before, &target, behind].concat().into(),
                    group: bytes::Bytes::new(),
                });
            }
        }
        let store = self.store.clone();
        let purged = engine::blocking(move || {
            let each = keys.iter().map(|key| purge_one(&store, key));
            each.sum::<u64>()
        });
        let failed = purged.await;
        if failed > 0 {
            logs::error!(request, Crit, "unlink() failed for {failed} cache entries");
        }
    }
}

/// Removes the entries of a key. Returns how many could not be removed. The index is only searched
/// if the key may have several entries (variants or slices).
fn purge_one(store: &store::disk::DiskStore, key: &Key) -> u64 {
    let id = store::disk::EntryId::of(&[&key.key]);
    let opened = store.open_entry(&id, &key.key, now());
    let has_several =
        !key.group.is_empty() || opened.is_ok_and(|opened| !opened.head.vary.is_empty());
    if has_several {
        return purge::purge(store, key).failed;
    }
    let part = partial_entry::part_id(&id);
    u64::from(store.purge(&id).is_err()) + u64::from(store.purge(&part).is_err())
}

fn content_location(head: &AnswerHead) -> Option<&[u8]> {
    let mut pairs = head.pairs();
    let found = pairs.find(|(name, _)| name.eq_ignore_ascii_case(b"content-location"));
    found.map(|(_, value)| value)
}
