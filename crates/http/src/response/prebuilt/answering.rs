//! Answers requests with prebuilt responses.
//!
//! Access rules always run, and the log phase runs as usual. A request that is not plain (with
//! several ranges, a body, rewrites, or a compression that the client accepts and that is not
//! stored) is declined here and goes through the phases.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::Buffer;
use engine::file::{stat_in_memory, stat_now};
use framework::warm;
use proto::h1::Version;
use proto::h1::chunked::{ChunkLine, LAST};
use proto::header;
use proto::range::{self, ByteRange, RangeDecision};

use crate::config::core::LingeringClose;
use crate::config::location;
use crate::config::plan::{Permits, Plan};
use crate::h1::exchange::{ConnectionOutcome, Framing, may_keep_alive, write_head};
use crate::logging::request_log;
use crate::module::Prebuilt;
use crate::request::{Request, secure};
use crate::response::BodyIdentity;
use crate::response::chain::Chain;
use crate::response::not_modified::{self, ConditionResult};
use crate::response::prebuilt::constant;
use crate::response::prebuilt::{
    DatedResponse, Entry, HEAD_ROOM, Identity, Key, LastResponse, Origin, PrebuiltCache,
    PrebuiltEncoding, ResponseForm, shared,
};
use crate::response::{memory, recall};
use crate::{files, http2};

/// Number of bytes of joined copies of one response, for a client that pipelines the same request,
/// after which no further copy is added.
const COPIES_MAX: usize = 64 * 1024;

/// Maximum number of bytes of chunked framing around a body.
const CHUNK_ROOM: usize = 32;

/// The bytes that end the only chunk of a body, and the last chunk.
const DATA_END_AND_LAST: &[u8] = b"\r\n0\r\n\r\n";

/// Where a prebuilt response is sent: an HTTP/1 connection or an HTTP/2 stream.
pub trait ResponseSink {
    /// The wire form of responses. `keep_alive`: whether the connection may serve another HTTP/1
    /// request. `None` if the connection needs more than a close after the response, such as
    /// lingering.
    fn form(&self, request: &Request, keep_alive: bool) -> Option<ResponseForm>;

    /// Whether the server of a request may send responses through this sink.
    fn suits(&self, _: &Request) -> bool {
        true
    }

    /// Whether a body of this length could be sent completely and at once, since nothing here
    /// waits.
    fn takes(&self, _: usize) -> bool {
        true
    }

    /// Sends a response in the form that `form` has returned.
    fn send(&mut self, request: &Request, response: &DatedResponse);
}

struct Http1Sink {
    /// Whether the client has sent more bytes than the request.
    is_followed: bool,
}

impl ResponseSink for Http1Sink {
    #[inline]
    fn form(&self, request: &Request, keep_alive: bool) -> Option<ResponseForm> {
        // Closing the socket with unread bytes would cause a TCP reset, and only the phases linger.
        let lingers = || {
            self.is_followed
                || request.connection.stream.has_received()
                || request.plan.core.lingering_close == LingeringClose::Always
        };
        (keep_alive || !lingers()).then(|| ResponseForm::of_http1(keep_alive))
    }

    #[inline]
    fn send(&mut self, request: &Request, response: &DatedResponse) {
        push(request, response.bytes.clone());
    }
}

/// Queues responses for the client, with the location's `send_timeout`.
#[inline]
fn push(request: &Request, responses: Bytes) {
    let (stream, core) = (&request.connection.stream, &request.plan.core);
    let resets = core.reset_timedout_connection;
    stream.push_within(core.send_timeout, resets, responses);
}

impl ResponseForm {
    /// Whether a body may be sent in this form if the head does not name the body's length. Over
    /// HTTP/1, such a body is sent as one chunk.
    pub(crate) fn takes_unknown(self, request: &Request) -> bool {
        let takes_chunks =
            request.version() >= Version::Http11 && request.plan.core.chunked_transfer_encoding;
        self == ResponseForm::Http2 || takes_chunks
    }
}

/// Whether responses of a plan may be kept: only files answer, their path depends only on the URI,
/// and no field of the head is made per request.
pub fn suits(plan: &Plan) -> bool {
    plan.limit_except.is_none()
        && plan.phases.shortcuts.are_open
        && !plan
            .error_log
            .admits(logs::Level::Debug, logs::Subsystem::Http)
        && plan.core.root.path.literal().is_some()
        && !plan.core.root.relative_at_run_time
        && plan.core.unlimited()
        && plan.core.max_ranges.is_none()
}

/// Answers a request whose head is complete, if the request is plain. `input` are the bytes behind
/// the head. `None` if the request must go through the phases, which continue from the state that
/// has been prepared here.
pub fn respond(request: &mut Request, input: &Buffer) -> Option<ConnectionOutcome> {
    let is_followed = !input.is_empty();
    respond_through(request, &mut Http1Sink { is_followed })
}

/// Like [`respond`], through any sink. For a request of another protocol than HTTP/1, the caller
/// must make sure that the request has no body.
#[inline]
pub fn respond_through(
    request: &mut Request,
    to: &mut impl ResponseSink,
) -> Option<ConnectionOutcome> {
    if !request.connection.takes_shortcuts() || !request.client.is_simple() {
        return None;
    }
    request.begin().ok()?;
    if !to.suits(request) {
        return None;
    }
    let of_server = &request.server.plan.phases.shortcuts_of_server;
    if !of_server.permit_head(request) {
        return None;
    }
    let http = Rc::clone(&request.http);
    let plan = if request.server.plan.phases.answers_constantly {
        http.shared_plan(request.server.plan.id)
    } else {
        match location::find(request, &http) {
            location::LocationMatch::Plan(plan) => plan,
            _ => return None,
        }
    };
    if secure::must_check(&request.connection, &request.server) {
        return None;
    }
    if !plan.prebuilt || plan.internal || request.pacing.rate.is_some() {
        let is_searched = !request.server.plan.phases.answers_constantly;
        request.routing.found = (is_searched && request.captures.is_empty()).then_some(plan.id);
        return None;
    }
    if !Arc::ptr_eq(&request.plan, plan) {
        request.plan = Arc::clone(plan);
    }
    if !request.plan.phases.shortcuts.permit_head(request) {
        return None;
    }
    let after = find(request, to);
    if after.is_none() && request.plan.phases.recall.is_some() && request.captures.is_empty() {
        request.routing.found = Some(request.plan.id); // spares a lookup
    }
    let after = after?;
    let captured = !request.captures.is_empty() || !request.shared.is_empty();
    // Without a host in the head, the SNI of the handshake has chosen the server.
    let by_handshake = request.is_secure() && request.client.server_name().is_none();
    // A head of HTTP/2 is not kept as bytes that a later head could be compared with.
    if !captured && !by_handshake && request.client.h1().is_some() {
        let connection = &request.connection;
        request.repeatable.servers =
            connection.with_servers(&request.local, |servers| std::ptr::from_ref(servers).cast());
    }
    Some(after)
}

/// Answers a request whose head equals that of a request which was answered here before. The
/// results of the earlier lookup then hold, except for the file, the client's address and the state
/// of the connection, which are checked again. Further requests with the same head that follow in
/// `input`, as a pipelining client sends them, are answered too.
pub fn respond_again(request: &mut Request, input: &mut Buffer) -> Option<ConnectionOutcome> {
    let Some(mut last) = request.repeatable.last.take() else {
        return find_pipelined(request, input);
    };
    let client = Rc::clone(&request.client);
    let mut count = 0;
    while last.holds(request) {
        count += 1;
        request.response.status = last.status;
        let after = send_prebuilt(request, &last.response, ResponseForm::KeptAlive);
        let full = count * last.response.bytes.len() >= COPIES_MAX;
        if full || !input.starts_with(&client.bytes) {
            push(request, last.copies(count));
            request.repeatable.last = Some(last);
            return Some(after);
        }
        input.advance(client.bytes.len());
        request.count_again();
    }
    if count > 0 {
        push(request, last.copies(count));
        // The request behind the copies begins with empty counts and an empty response.
        request.sent = Default::default();
        request.response.clear();
    }
    find_pipelined(request, input)
}

/// Like [`find`], with `input` as the bytes behind the request.
fn find_pipelined(request: &mut Request, input: &Buffer) -> Option<ConnectionOutcome> {
    let is_followed = !input.is_empty();
    find(request, &mut Http1Sink { is_followed })
}

/// Answers a request whose plan is known with the plan's kept response, if there is one.
fn find(request: &mut Request, to: &mut impl ResponseSink) -> Option<ConnectionOutcome> {
    if request.plan.phases.answers_constantly {
        if request.client.asks_for_part() {
            None
        } else {
            constant::answer(request, to)
        }
    } else if request.plan.phases.recall.is_some() {
        recall::answer(request, to)
    } else {
        look_up(request, to)
    }
}

impl LastResponse {
    /// Whether the request may get this response again.
    fn holds(&self, request: &Request) -> bool {
        self.response.second == engine::wall().as_secs()
            && engine::uptime() < self.until
            && may_keep_alive(&request.connection, request)
    }

    /// `count` copies of the response, joined.
    fn copies(&mut self, count: usize) -> Bytes {
        let response = &self.response.bytes;
        if count == 1 {
            return response.clone();
        }
        let length = count * response.len();
        if self.copies.len() < length {
            self.copies = response.repeat(count).into();
        }
        self.copies.slice(..length)
    }
}

/// Looks up the response for the request's plan and path, and sends it.
fn look_up(request: &mut Request, to: &mut impl ResponseSink) -> Option<ConnectionOutcome> {
    request.routing.root_tested = false;
    let http = Rc::clone(&request.http);
    let mut cache = http.prebuilt.borrow_mut();
    let mut path = std::mem::take(&mut cache.scratch);
    path.clear();
    path.extend_from_slice(&request.uri);
    let key = (request.plan.id, path);
    let mut is_kept = false;
    let mut after = answer(request, &mut cache, &key, to, &mut is_kept);
    if !is_kept && take_shared(request, &mut cache, &key).is_some() {
        after = answer(request, &mut cache, &key, to, &mut is_kept);
    }
    if cache.size > cache.bound {
        cache.keep_within_bound(); // a response was serialized
    }
    cache.scratch = key.1;
    after
}

/// The modules' permits for prebuilt responses: of the request's server, and of its location.
fn permits_of(request: &Request) -> impl Iterator<Item = &Permits> {
    let of_server = &request.server.plan.phases.shortcuts_of_server;
    [of_server, &request.plan.phases.shortcuts].into_iter()
}

fn answer(
    request: &mut Request,
    cache: &mut PrebuiltCache,
    key: &Key,
    to: &mut impl ResponseSink,
    is_kept: &mut bool,
) -> Option<ConnectionOutcome> {
    let placed = cache.entries.get_mut(key)?;
    *is_kept = true;
    placed.is_used = true;
    let entry = &mut placed.value;
    let status = match &entry.origin {
        Origin::Missing if request.wants_padded_page() => return None,
        Origin::Missing => 404,
        Origin::File { metadata, etag } => {
            let time = Some(metadata.mtime);
            match not_modified::verdict(request, time, etag.as_deref()) {
                ConditionResult::Send => 200,
                ConditionResult::NotModified => 304,
                ConditionResult::Failed => return None,
            }
        }
    };
    let part = if status == 200 && request.client.asks_for_part() {
        Some(part_asked_for(request, entry)?)
    } else {
        None
    };
    let length = match (status, part) {
        (304, _) => 0,
        (_, Some(part)) => (part.end - part.start) as usize,
        _ => entry.body.len(),
    };
    if !to.takes(length) {
        return None;
    }
    let asks_to_stay = request.client.keeps_alive();
    let keep_alive = asks_to_stay && may_keep_alive(&request.connection, request);
    let form = to.form(request, keep_alive)?;
    let prebuilt = Prebuilt {
        status,
        content_type: &entry.content_type,
        length: (status != 304).then_some(entry.body.len() as u64),
    };
    let encoding = permit(request, prebuilt)?;
    if encoding != PrebuiltEncoding::Identity
        && (status != 200 || part.is_some() || !form.takes_unknown(request))
    {
        return None; // a 404 page is encoded each time
    }
    let until = match confirm(entry, request) {
        Confirmation::Holds { until } => until,
        Confirmation::TakesTheDisk => return None,
        Confirmation::Over => {
            memory::remove(&shared::key_of(request.local.generation.number, key));
            cache.remove(key);
            return None;
        }
    };
    request.response.status = status;
    request.routing.root_tested = matches!(entry.origin, Origin::File { .. });
    if let Some(part) = part {
        return Some(send_part(request, entry, part, form, to));
    }
    let logged = match &entry.origin {
        Origin::Missing => files::log_missing(request, &entry.path),
        Origin::File { .. } => false,
    };
    let second = engine::wall().as_secs();
    let kept = entry.response(status, encoding, form);
    let is_current = kept.is_some_and(|kept| kept.second == second);
    let logs_response = request.plan.phases.endings_read_response;
    let described = if !is_current {
        let cost = entry.cost(key);
        let renewed = renew(entry, request, second, encoding, form);
        cache.size = cache.size.saturating_sub(cost) + entry.cost(key);
        renewed
    } else if logs_response {
        describe(request, entry, encoding).map(drop)
    } else {
        Some(())
    };
    if described.is_none() {
        // The encoded body is not known yet, so the normal path encodes it.
        request.response.clear();
        return None;
    }
    let response = entry.response(status, encoding, form)?;
    to.send(request, response);
    request.sent.chunked = form != ResponseForm::Http2 && encoding != PrebuiltEncoding::Identity;
    let after = send_prebuilt(request, response, form);
    if !logged && !logs_response {
        note_repeatable(request, response, until, form);
    }
    Some(after)
}

/// Moves a response from the memory that all threads share into this thread's part, if the response
/// may be in the shared memory.
#[cold]
fn take_shared(request: &Request, cache: &mut PrebuiltCache, key: &Key) -> Option<()> {
    if !cache.has_evicted && !cache.part.has_others() {
        return None;
    }
    let entry = shared::take(request, key)?;
    cache.insert(key.clone(), entry);
    Some(())
}

/// The range of a file that the request asks for, if it asks for one range without further
/// conditions. `max_ranges` is not checked, since no responses are kept where it is set.
fn part_asked_for(request: &Request, entry: &Entry) -> Option<ByteRange> {
    let asked = request.header(header::KnownField::Range)?;
    let alone = request.header(header::KnownField::IfRange).is_none();
    match range::parse(asked, entry.body.len() as u64, None) {
        RangeDecision::One(part) if alone => Some(part),
        _ => None,
    }
}

/// Sends a range of a kept file. The head is made for each request by the filters of the normal
/// path, which evaluate the same `Range`.
fn send_part(
    request: &mut Request,
    entry: &Entry,
    part: ByteRange,
    form: ResponseForm,
    to: &mut impl ResponseSink,
) -> ConnectionOutcome {
    let bytes = entry.body.get(part.start as usize..part.end as usize);
    let bytes = bytes.unwrap_or_default(); // a range lies within its file
    let second = engine::wall().as_secs();
    // Encoded bodies have no ranges.
    let _ = describe(request, entry, PrebuiltEncoding::Identity);
    let response = write(request, bytes, second, form);
    to.send(request, &response);
    send_prebuilt(request, &response, form)
}

/// The encoding in which this prebuilt response may answer the request, by the permits of the
/// server and of the location; `None` if they do not permit it.
pub fn permit(request: &Request, prebuilt: Prebuilt<'_>) -> Option<PrebuiltEncoding> {
    let of_server = &request.server.plan.phases.shortcuts_of_server;
    let of_location = &request.plan.phases.shortcuts;
    if !permit_request(request) {
        return None;
    }
    let encoding = of_location.permit_response(request, prebuilt)?;
    // A module whose permit is asked for the server is asked for the location as well.
    of_server.permit_response(request, prebuilt)?;
    Some(encoding)
}

/// Whether the permits that are asked for each request let any prebuilt response answer.
pub(crate) fn permit_request(request: &Request) -> bool {
    permits_of(request).all(|permits| permits.permit_request(request))
}

/// Notes the response for a head that was received twice, so that it may be sent again for this
/// head until `until`. Not if a permit must be asked for each request, or if the response ends its
/// connection, after which the head cannot follow.
pub fn note_repeatable(
    request: &mut Request,
    response: &DatedResponse,
    until: Duration,
    form: ResponseForm,
) {
    if request.repeatable.servers.is_none() {
        return; // the head was received once
    }
    let asks_nothing = permits_of(request).all(|permits| permits.of_request.is_empty());
    if until > engine::uptime() && asks_nothing && form == ResponseForm::KeptAlive {
        request.repeatable.last = Some(LastResponse {
            response: response.clone(),
            copies: Bytes::new(),
            status: request.response.status,
            until,
        });
    }
}

/// Serializes the response with the date of this second, and keeps it; `None` if the encoded body
/// is not known yet.
fn renew(
    entry: &mut Entry,
    request: &mut Request,
    second: u64,
    encoding: PrebuiltEncoding,
    form: ResponseForm,
) -> Option<()> {
    let status = request.response.status;
    let encoded = describe(request, entry, encoding)?;
    let body = match (status, &encoded) {
        (304, _) => &[][..],
        (_, Some(encoded)) => encoded,
        (_, None) => &entry.body,
    };
    let dated = write(request, body, second, form);
    *entry.response_mut(status, encoding, form)? = Some(dated);
    Some(())
}

/// Serializes a response whose head has been made, with head and body contiguous. Over HTTP/1, a
/// body whose length the head does not name is one chunk.
pub(crate) fn write(
    request: &mut Request,
    body: &[u8],
    second: u64,
    form: ResponseForm,
) -> DatedResponse {
    let response = &request.response;
    let is_unknown = response.content_length.is_none() && response.status != 304;
    let chunked = is_unknown && form != ResponseForm::Http2;
    let mut bytes = Vec::with_capacity(HEAD_ROOM + body.len());
    match form {
        ResponseForm::Http2 => http2::head::write(request, &mut bytes),
        ResponseForm::Ending | ResponseForm::KeptAlive => {
            let framing = Framing {
                chunked,
                keep_alive: form == ResponseForm::KeptAlive,
            };
            write_head(request, framing, &mut bytes);
        }
    }
    let head_length = bytes.len();
    bytes.reserve_exact(body.len() + if chunked { CHUNK_ROOM } else { 0 });
    if chunked && !body.is_empty() {
        bytes.extend_from_slice(ChunkLine::new(body.len() as u64).as_bytes());
    }
    bytes.extend_from_slice(body);
    if chunked {
        bytes.extend_from_slice(if body.is_empty() {
            LAST
        } else {
            DATA_END_AND_LAST
        });
    }
    DatedResponse {
        second,
        head_length,
        bytes: bytes.into(),
    }
}

/// Fills in the response's head as the normal path does, for the response and for logs. Returns
/// `Some(Some(body))` if the body is encoded, `Some(None)` if not, and `None` if the encoded body
/// is not known yet.
fn describe(
    request: &mut Request,
    entry: &Entry,
    encoding: PrebuiltEncoding,
) -> Option<Option<Bytes>> {
    let response = &mut request.response;
    let unmodified = response.status == 304;
    response.content_length = Some(if unmodified {
        0
    } else {
        entry.body.len() as u64
    });
    response.content_type = entry.content_type.clone();
    if let Origin::File { metadata, etag } = &entry.origin {
        response.last_modified = Some(metadata.mtime);
        response.allow_ranges = true;
        response.body_identity = BodyIdentity::of_file(metadata);
        if let Some(etag) = etag {
            response.add("ETag", etag.clone());
        }
    }
    if unmodified {
        not_modified::forget_body(response);
    }
    // A filter that permits prebuilt responses treats all of them in the same way, and changes only
    // their heads.
    let mut chain = Chain::of_response(request).ok()?;
    encoded(request, &mut chain, encoding)
}

/// The encoded body of a response that has passed its filters, or `Some(None)` for a body that is
/// not encoded. `None` if the filters do not act as the permits have announced, or do not know the
/// whole encoded body yet.
pub(crate) fn encoded(
    request: &mut Request,
    chain: &mut Chain,
    encoding: PrebuiltEncoding,
) -> Option<Option<Bytes>> {
    match (encoding, chain.take_encoder()) {
        (PrebuiltEncoding::Identity, None) => Some(None),
        (PrebuiltEncoding::Encoded(_), Some(mut encoder)) if chain.is_plain() => {
            let known = encoder.known()?;
            encoder.end(request);
            Some(Some(known))
        }
        _ => None,
    }
}

/// Ends a request that was answered with this prebuilt response.
pub fn send_prebuilt(
    request: &mut Request,
    response: &DatedResponse,
    form: ResponseForm,
) -> ConnectionOutcome {
    let body_length = response.bytes.len() - response.head_length;
    let framing = form.framing(body_length, request.plan.core.http2_chunk_size);
    request.sent.body_bytes = body_length as u64;
    request.sent.bytes = response.bytes.len() as u64 + framing;
    request.sent.complete = true;
    request.keepalive.on = form != ResponseForm::Ending;
    request_log::log(request);
    if form == ResponseForm::Ending {
        let client_is_done = !request.client.keeps_alive();
        return ConnectionOutcome::Close { client_is_done };
    }
    let connection = &request.connection;
    let core = &request.plan.core;
    connection.keep_for(core.keepalive_timeout, core.keepalive_min_timeout);
    if core.tcp_nodelay && !connection.nodelay.replace(true) {
        connection.stream.set_nodelay(true);
    }
    ConnectionOutcome::KeepAlive
}

/// The result of checking whether a kept response is still valid.
enum Confirmation {
    /// The response is valid, and need not be checked again before this time.
    Holds { until: Duration },
    /// The path has changed, so the response is no longer valid.
    Over,
    /// The check could block on the disk.
    TakesTheDisk,
}

/// Checks the path of a kept response, unless the check is not due yet.
///
/// Requests that have arrived before an iteration of the event loop share one check in this
/// iteration, since the check is later than each of them.
fn confirm(entry: &mut Entry, request: &Request) -> Confirmation {
    let now = engine::uptime();
    let cache = &request.plan.open_file_cache;
    let valid = match &entry.origin {
        Origin::File { .. } => cache.valid(),
        Origin::Missing => cache.valid().filter(|_| cache.keeps_errors()),
    };
    let valid = valid.unwrap_or_default();
    if let Some(confirmed) = entry.confirmed
        && now.saturating_sub(confirmed) < valid
    {
        let until = confirmed + valid;
        return Confirmation::Holds { until };
    }
    if entry.checked_in == Some(now) && request.connection.stream.receives_ahead() {
        return Confirmation::Holds { until: now + valid };
    }
    let is_warm = |at: Duration| now.saturating_sub(at) <= warm::SEEN_FOR;
    let found = if entry.looked_at.is_some_and(is_warm) {
        stat_now(&entry.path)
    } else {
        match stat_in_memory(&entry.path) {
            Some(found) => found,
            None => return Confirmation::TakesTheDisk,
        }
    };
    entry.confirmed = Some(now);
    entry.looked_at = Some(now);
    let holds = match &entry.origin {
        Origin::File { metadata, .. } => {
            found.is_ok_and(|found| Identity::from(&found) == Identity::from(metadata))
        }
        Origin::Missing => found.is_err_and(|error| is_missing(&error)),
    };
    if holds {
        entry.checked_in = Some(now);
        Confirmation::Holds { until: now + valid }
    } else {
        Confirmation::Over
    }
}

pub(super) fn is_missing(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOENT)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;
    use std::time::UNIX_EPOCH;

    use super::super::offer::{offer, offer_missing, wants};
    use super::super::{FILE_SIZE_MAX, USES_BEFORE_KEPT};
    use super::*;
    use crate::testing::{Folder, another, serve, site};

    /// Calls `work` with a request for `/file` below a folder, and the path of that file, which has
    /// so many bytes.
    fn with_file<T>(size: usize, work: impl AsyncFnOnce(Request, PathBuf) -> T) -> T {
        let folder = Folder::with_files();
        let path = folder.0.join("file");
        std::fs::write(&path, vec![b'x'; size]).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1000))
            .unwrap();
        let text = site(&format!("root {};", folder.0.display()));
        serve(&text, "GET /file HTTP/1.1", async |request| {
            work(request, path).await
        })
    }

    /// Offers the file, as its handler does that has opened it.
    async fn offer_file(request: &Request, path: &std::path::Path) {
        let (file, metadata) = engine::file::open(path).await.unwrap();
        offer(request, path.as_os_str().as_bytes(), &file, &metadata).await;
    }

    #[test]
    fn what_is_kept_is_not_wanted_again_and_counts_once() {
        with_file(1000, async |request, path| {
            let (_, metadata) = engine::file::open(&path).await.unwrap();
            assert!(!wants(&request, &metadata) && wants(&request, &metadata));
            offer_file(&request, &path).await;
            let size = request.http.prebuilt.borrow().size;
            for _ in 0..2 * USES_BEFORE_KEPT {
                assert!(!wants(&request, &metadata));
            }
            // Another request has begun to read the file before it was kept.
            offer_file(&request, &path).await;
            assert_eq!(request.http.prebuilt.borrow().size, size);
            // Once the file has changed, it is forgotten, and then wanted like any other.
            std::fs::write(&path, "new").unwrap();
            assert!(ask(&mut another(&request, "GET /file HTTP/1.1")).is_none());
            assert_eq!(request.http.prebuilt.borrow().size, 0);
            assert!(!wants(&request, &metadata) && wants(&request, &metadata));
        });
    }

    #[test]
    fn after_ten_seconds_a_path_is_looked_at_only_where_that_takes_no_disk() {
        with_file(1000, async |request, path| {
            offer_file(&request, &path).await;
            // A path that the kernel has never met, so that it has to ask the file system.
            let unmet = another(&request, "GET /unmet HTTP/1.1");
            let missing = std::io::Error::from_raw_os_error(libc::ENOENT);
            let unmet_path = path.with_file_name("unmet");
            for _ in 0..USES_BEFORE_KEPT {
                offer_missing(&unmet, unmet_path.as_os_str().as_bytes(), &missing);
            }
            let answers = |uri: &str| {
                let mut one = another(&request, &format!("GET {uri} HTTP/1.1"));
                ask(&mut one).is_some()
            };
            engine::sleep(warm::SEEN_FOR + Duration::from_secs(1)).await;
            // Some kernels cannot tell what takes the disk; there both are looked at.
            let in_memory = [&unmet_path, &path].map(|path| stat_in_memory(path).is_some());
            assert_eq!([answers("/unmet"), answers("/file")], in_memory);
            // The long way looks at it, and what is kept answers again.
            offer_missing(&unmet, unmet_path.as_os_str().as_bytes(), &missing);
            assert!(answers("/unmet"));
        });
    }

    /// Answers a request that nothing has come behind.
    fn ask(request: &mut Request) -> Option<ConnectionOutcome> {
        respond(request, &Buffer::empty())
    }

    /// Takes a response of any form, for no client.
    struct InForm(ResponseForm);

    impl ResponseSink for InForm {
        fn form(&self, _: &Request, _: bool) -> Option<ResponseForm> {
            Some(self.0)
        }

        fn send(&mut self, _: &Request, _: &DatedResponse) {}
    }

    /// Asks for what is kept, and for a 304 of it, in every form; how often it answers.
    fn ask_in_every_form(request: &Request, uri: &str) -> usize {
        let mut answered = 0;
        let date = "Thu, 01 Jan 1970 00:16:40 GMT";
        let conditional = format!("GET {uri} HTTP/1.1\r\nIf-Modified-Since: {date}");
        for head in [format!("GET {uri} HTTP/1.1"), conditional] {
            for form in [
                ResponseForm::Ending,
                ResponseForm::KeptAlive,
                ResponseForm::Http2,
            ] {
                let mut one = another(request, &head);
                answered += usize::from(respond_through(&mut one, &mut InForm(form)).is_some());
            }
        }
        answered
    }

    #[test]
    fn all_that_is_kept_counts() {
        let size = FILE_SIZE_MAX as usize;
        with_file(size, async |request, path| {
            offer_file(&request, &path).await;
            assert_eq!(ask_in_every_form(&request, "/file"), 6);
            let mut cache = request.http.prebuilt.borrow_mut();
            let entry = &cache.entries.values().next().unwrap().value;
            let written = entry.responses.iter().chain(&entry.unmodified).flatten();
            let written: Vec<usize> = written.map(|dated| dated.bytes.len()).collect();
            assert_eq!(written.len(), 6);
            assert!(cache.size >= size + written.iter().sum::<usize>());
            let key = (request.plan.id, request.uri.clone());
            cache.remove(&key);
            assert_eq!(cache.size, 0);
        });
    }

    #[test]
    fn what_is_written_of_kept_responses_stays_within_the_bound() {
        let size = FILE_SIZE_MAX as usize;
        with_file(size, async |request, path| {
            let (file, metadata) = engine::file::open(&path).await.unwrap();
            let path = path.as_os_str().as_bytes();
            for number in 0..memory::DEFAULT_LIMIT / 4 / size {
                let uri = format!("/{number}");
                let one = another(&request, &format!("GET {uri} HTTP/1.1"));
                offer(&one, path, &file, &metadata).await;
                // Until there is no more room, and others go.
                assert!(ask_in_every_form(&request, &uri) > 0);
                let cache = request.http.prebuilt.borrow();
                let costs = cache.entries.iter();
                let costs = costs.map(|(key, placed)| placed.value.cost(key));
                assert_eq!(costs.sum::<usize>(), cache.size);
                assert!(cache.size <= cache.bound);
            }
            let cache = request.http.prebuilt.borrow();
            assert!(cache.has_evicted && cache.size > cache.bound / 2);
            drop(cache);
            // What was let go first comes from the memory that all threads share.
            let of_first = (request.plan.id, b"/0".to_vec());
            assert!(
                !request
                    .http
                    .prebuilt
                    .borrow()
                    .entries
                    .contains_key(&of_first)
            );
            let path = Request::path_of(path);
            if stat_in_memory(&path).is_some() {
                assert_eq!(ask_in_every_form(&request, "/0"), 6);
            }
        });
    }
}
