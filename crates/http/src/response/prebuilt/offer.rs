//! Decides which responses are kept: the static handler offers files, and a file that is requested
//! often enough is kept.

use bytes::Bytes;
use engine::file::{File, Metadata};
use proto::method::Method;

use super::answering::is_missing;
use super::{Entry, FILE_SIZE_MAX, Forms, Origin, shared};
use crate::files;
use crate::request::Request;
use crate::response::status_page;

/// Whether the response for a file should be kept, because the file is small and is requested often
/// enough. Called by the static handler when it has opened a file for a plain request.
pub fn wants(request: &Request, metadata: &Metadata) -> bool {
    let bound = request.http.prebuilt.borrow().bound as u64;
    if !is_wanted(request) || metadata.size > FILE_SIZE_MAX || metadata.size >= bound {
        return false;
    }
    // A file that changed within the last two seconds may change again with the same timestamp.
    let age = engine::wall().as_secs() as i64 - metadata.mtime;
    age >= 2 && is_used_often(request)
}

/// Keeps the response for a file that is [wanted](wants).
pub async fn offer(request: &Request, path: &[u8], file: &File, metadata: &Metadata) {
    let Ok(body) = file.read_at(0, metadata.size as usize).await else {
        return;
    };
    if body.len() as u64 != metadata.size {
        return;
    }
    let etag = files::etag_of(&request.plan.core, metadata);
    keep(
        request,
        path,
        Origin::File {
            metadata: *metadata,
            etag,
        },
        body,
        None,
    );
}

/// Keeps the 404 page if the file does not exist. Called by the static handler.
pub fn offer_missing(request: &Request, path: &[u8], error: &std::io::Error) {
    let plan = &request.plan;
    let plain = is_wanted(request) && plan.error_pages.is_empty();
    if !plain || !is_missing(error) || !is_used_often(request) {
        return;
    }
    if let Some(page) = status_page::page(404, &plan.core.server_tokens, false) {
        let content_type = Bytes::from_static(b"text/html");
        keep(request, path, Origin::Missing, page, Some(content_type));
    }
}

/// Whether any response to this request may be kept.
fn is_wanted(request: &Request) -> bool {
    request.plan.prebuilt
        && !request.routing.internal
        && request.is_main()
        && request.method == Method::Get
}

/// Counts a request for the path. True if the response should be kept from this request on. False
/// for an entry that is already kept, even if it cannot answer this request: the file is checked
/// before each use, and the entry is dropped if the file has changed.
fn is_used_often(request: &Request) -> bool {
    let key = (request.plan.id, request.uri.clone());
    let mut cache = request.http.prebuilt.borrow_mut();
    if let Some(placed) = cache.entries.get_mut(&key) {
        // The handler has just checked the path, or has the file open.
        placed.value.looked_at = Some(engine::uptime());
        return false;
    }
    cache.is_used_often(&key)
}

/// Keeps the response for a path in this thread, and the file in the memory that all threads share.
fn keep(request: &Request, path: &[u8], origin: Origin, body: Bytes, content_type: Option<Bytes>) {
    let now = engine::uptime();
    let entry = Entry {
        path: Request::path_of(path),
        origin,
        confirmed: Some(now),
        looked_at: Some(now),
        checked_in: None,
        responses: Forms::default(),
        encoded: Vec::new(),
        unmodified: Forms::default(),
        body: Bytes::copy_from_slice(&body),
        content_type: content_type.unwrap_or_else(|| request.response.content_type.clone()),
    };
    let key = (request.plan.id, request.uri.clone());
    shared::put(
        &shared::key_of(request.local.generation.number, &key),
        &entry,
    );
    request.http.prebuilt.borrow_mut().insert(key, entry);
}
