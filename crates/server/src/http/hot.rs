//! Complete responses kept in memory for small files: the shortest way through the server.
//!
//! A response is kept per plan and path when nothing in its head depends on the request. It
//! never outlives a change of the file: without `open_file_cache` one `statx` of the full path
//! confirms each use; with it, `open_file_cache_valid` does. Access rules always run, and the
//! log line is written as on the long way. Whatever is not plain (ranges, bodies, rewrites,
//! compression that the client accepts) is declined here and takes the long way.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use base::hash::Map;
use bytes::{Bytes, BytesMut};
use engine::file::{File, Metadata, stat_now};
use engine::net::Segment;
use proto::h1::{BodyLength, Version, body_length};
use proto::header::Known;
use proto::method::Method;

use crate::http::connection::After;
use crate::http::exchange::h1::{Framing, may_keep_alive, write_head};
use crate::http::filters::{gzip, not_modified};
use crate::http::location;
use crate::http::modules::{access, static_file};
use crate::http::plan::{Handler, Plan};
use crate::http::request::Request;
use crate::log;

/// Files up to this size are kept whole, in bytes.
pub const FILE_SIZE_MAX: u64 = 64 * 1024;

/// Memory that one thread keeps responses in, in bytes.
pub const CACHE_SIZE_MAX: usize = 32 * 1024 * 1024;

/// How often a file must have been asked for before its response is kept: a crawl through a
/// large site does not push out what is hot.
const USES_BEFORE_KEPT: u32 = 2;

/// A file's complete response.
struct Entry {
    path: PathBuf,
    /// What the file was when its bytes were read.
    identity: Identity,
    /// When it was last confirmed.
    confirmed: Instant,
    /// The response as it is sent on a connection that is kept alive, and on one that is not.
    responses: [Option<Dated>; 2],
    body: Bytes,
    last_modified: i64,
    content_type: Bytes,
    etag: Option<Bytes>,
}

/// A response with the second that its Date field names.
struct Dated {
    second: u64,
    head_length: usize,
    bytes: Bytes,
}

/// What must be equal for a file to count as the same.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
}

impl From<&Metadata> for Identity {
    fn from(metadata: &Metadata) -> Identity {
        Identity {
            device: metadata.device,
            inode: metadata.inode,
            size: metadata.size,
            mtime: (metadata.mtime, metadata.mtime_nanos),
            ctime: (metadata.ctime, metadata.ctime_nanos),
        }
    }
}

/// One thread's kept responses of one generation.
#[derive(Default)]
pub struct HotCache {
    entries: Map<(u32, Vec<u8>), Entry>,
    /// Uses of paths that are not kept yet.
    uses: Map<(u32, Vec<u8>), u32>,
    size: usize,
    scratch: Vec<u8>,
}

impl HotCache {
    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = HotCache::default();
    }

    fn remove(&mut self, key: &(u32, Vec<u8>)) {
        if let Some(entry) = self.entries.remove(key) {
            self.size = self.size.saturating_sub(entry.cost());
        }
    }

    fn insert(&mut self, key: (u32, Vec<u8>), entry: Entry) {
        let cost = entry.cost();
        if cost > CACHE_SIZE_MAX {
            return;
        }
        if self.size + cost > CACHE_SIZE_MAX {
            // Rare by construction: start over rather than keep an order of use up to date on
            // every request.
            self.clear();
        }
        self.size += cost;
        self.entries.insert(key, entry);
    }
}

impl Entry {
    fn cost(&self) -> usize {
        // Body, two responses and the bookkeeping.
        self.body.len() * 3 + self.path.as_os_str().len() * 2 + 1024
    }
}

/// Whether responses of a plan may be kept: only files answer there, by a path that depends on
/// nothing but the URI, and no field of the head is made per request.
pub fn suits(plan: &Plan) -> bool {
    matches!(plan.handler, Handler::Files)
        && plan.script.is_empty()
        && plan.limit_except.is_none()
        && plan.auth_request.is_none()
        && plan.try_files.is_none()
        && plan.gzip_static.is_off()
        && plan.addition.is_off()
        && plan.charset.is_constant()
        && plan.headers.is_constant()
        && plan.core.root.path.literal().is_some()
        && !plan.core.root.relative_at_run_time
        && plan.core.unlimited()
        && plan.core.max_ranges.is_none()
}

/// Answers a request whose head is complete, if it is as plain as can be. `None`: take the long
/// way; what has been prepared of the request stays prepared.
pub fn respond(request: &mut Request) -> Option<After> {
    let head = &request.client.head;
    let get = matches!(head.method(), Method::Get);
    if !get || head.version() < Version::Http10 || head.has(Known::Range) || head.has(Known::Expect)
    {
        return None;
    }
    if !matches!(
        body_length(head, &request.client.bytes, false),
        Ok(BodyLength::None)
    ) {
        return None;
    }
    request.begin().ok()?;
    if !request.server.plan.script.is_empty() {
        return None;
    }
    let location::Found::Plan(plan) = location::find(request) else {
        return None;
    };
    if !plan.hot || plan.internal || request.limit_rate.is_some() {
        return None;
    }
    if !Arc::ptr_eq(&request.plan, &plan) {
        request.plan = plan;
    }
    if gzip::may_apply(request) {
        return None;
    }
    let local = Rc::clone(&request.local);
    let mut cache = local.hot.borrow_mut();
    let mut path = std::mem::take(&mut cache.scratch);
    path.clear();
    path.extend_from_slice(&request.uri);
    let key = (request.plan.id, path);
    let after = answer(request, &mut cache, &key);
    cache.scratch = key.1;
    after
}

fn answer(request: &mut Request, cache: &mut HotCache, key: &(u32, Vec<u8>)) -> Option<After> {
    let entry = cache.entries.get_mut(key)?;
    if !confirm(entry, &request.plan) {
        cache.remove(key);
        return None;
    }
    if request.plan.access.is_some() && !access::allows(request) {
        return None;
    }
    let keep_alive =
        request.client.head.keeps_alive() && may_keep_alive(&request.connection, request);
    let response = &mut request.response;
    response.status = 200;
    response.last_modified = Some(entry.last_modified);
    response.content_length = Some(entry.body.len() as u64);
    if not_modified::is_conditional(request) {
        return conditional(request, entry, keep_alive);
    }
    let second = engine::wall().as_secs();
    let slot = &mut entry.responses[usize::from(keep_alive)];
    let dated = match slot {
        Some(dated) if dated.second == second => dated,
        _ => {
            fill_head(request, &entry.content_type, entry.etag.as_ref());
            let mut bytes = BytesMut::with_capacity(512 + entry.body.len());
            let mut head = Vec::with_capacity(512);
            write_head(
                request,
                Framing {
                    chunked: false,
                    keep_alive,
                },
                &mut head,
            );
            bytes.extend_from_slice(&head);
            bytes.extend_from_slice(&entry.body);
            slot.insert(Dated {
                second,
                head_length: head.len(),
                bytes: bytes.freeze(),
            })
        }
    };
    let stream = &request.connection.stream;
    stream.push(Segment::Bytes(dated.bytes.clone()));
    request.bytes_sent = dated.bytes.len() as u64;
    request.body_bytes_sent = request.bytes_sent - dated.head_length as u64;
    Some(leave(request, keep_alive))
}

/// Answers If-None-Match and If-Modified-Since: 304, or the whole file by the long way.
fn conditional(request: &mut Request, entry: &Entry, keep_alive: bool) -> Option<After> {
    fill_head(request, &entry.content_type, entry.etag.as_ref());
    if !not_modified::is_unmodified(request) {
        request.response.clear();
        return None;
    }
    request.response.status = 304;
    request.response.content_type = Bytes::new();
    request.response.content_length = None;
    request.response.allow_ranges = false;
    request.response.remove(b"Accept-Ranges");
    let mut head = Vec::with_capacity(320);
    write_head(
        request,
        Framing {
            chunked: false,
            keep_alive,
        },
        &mut head,
    );
    request.bytes_sent = head.len() as u64;
    request.connection.stream.push(Segment::Bytes(head.into()));
    Some(leave(request, keep_alive))
}

/// The head's fields as the static handler and the constant filters give them.
fn fill_head(request: &mut Request, content_type: &Bytes, etag: Option<&Bytes>) {
    request.response.content_type = content_type.clone();
    if let Some(etag) = etag {
        request.response.add("ETag", etag.clone());
    }
    let plan = Arc::clone(&request.plan);
    plan.charset.apply_constant(&mut request.response);
    plan.headers.apply_constant(request);
    request.response.add("Accept-Ranges", "bytes");
}

/// The end of a request that was answered here.
fn leave(request: &mut Request, keep_alive: bool) -> After {
    request.complete = true;
    request.keepalive = keep_alive;
    log::write_access(request);
    if !keep_alive {
        return After::Close;
    }
    let connection = &request.connection;
    connection
        .keepalive_timeout
        .set(request.plan.core.keepalive_timeout);
    if request.plan.core.tcp_nodelay && !connection.nodelay.replace(true) {
        connection.stream.set_nodelay(true);
    }
    After::KeepAlive
}

/// Whether the file is still the one whose bytes we have.
fn confirm(entry: &mut Entry, plan: &Plan) -> bool {
    let now = engine::now();
    if let Some(valid) = plan.open_file_cache.valid()
        && now.duration_since(entry.confirmed) < valid
    {
        return true;
    }
    let same =
        stat_now(&entry.path).is_ok_and(|metadata| Identity::from(&metadata) == entry.identity);
    entry.confirmed = now;
    same
}

/// Called by the static handler when it has opened a file for a plain request: keeps the
/// response for the next one if the file is small and asked for often enough.
pub async fn offer(request: &Request, path: &[u8], file: &File, metadata: &Metadata) {
    let plan = &request.plan;
    if !plan.hot || request.internal || request.depth > 0 || metadata.size > FILE_SIZE_MAX {
        return;
    }
    // A file changed within the last two seconds may change again without another time stamp.
    let age = engine::wall().as_secs() as i64 - metadata.mtime;
    if age < 2 {
        return;
    }
    let key = (plan.id, request.uri.clone());
    {
        let mut cache = request.local.hot.borrow_mut();
        if cache.uses.len() > 4096 {
            cache.uses.clear();
        }
        let uses = cache.uses.entry(key.clone()).or_insert(0);
        *uses += 1;
        if *uses < USES_BEFORE_KEPT {
            return;
        }
        cache.uses.remove(&key);
    }
    let Ok(body) = file.read_at(0, metadata.size as usize).await else {
        return;
    };
    if body.len() as u64 != metadata.size {
        return;
    }
    let entry = Entry {
        path: Request::path_of(path),
        identity: Identity::from(metadata),
        confirmed: engine::now(),
        responses: [None, None],
        body: Bytes::copy_from_slice(&body),
        last_modified: metadata.mtime,
        content_type: request.response.content_type.clone(),
        etag: static_file::etag_of(&plan.core, metadata),
    };
    request.local.hot.borrow_mut().insert(key, entry);
}
