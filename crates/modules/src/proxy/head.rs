//! The request head for the upstream.

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Request;
use proto::method::Method;
use proto::uri::{Escape, escape};

use super::Proxy;
use super::settings::{HttpVersion, Settings};
use super::target::ProxyTarget;
use proxying::cache::CacheLookup;
use proxying::fields;
use proxying::http2::head::RequestHead;

/// Whether the upstream request is a HEAD request, so that its response has no body.
pub(super) fn is_head(
    request: &mut Request,
    settings: &Settings,
    lookup: Option<&CacheLookup>,
) -> bool {
    if lookup.is_some_and(|lookup| lookup.is_head_converted) {
        return false;
    }
    match &settings.method {
        Some(method) => method.evaluate(request).eq_ignore_ascii_case(b"HEAD"),
        None => request.method == Method::Head,
    }
}

/// A request line and fields.
pub(super) struct WrittenHead {
    /// The request line and the fields, followed by the body if `proxy_set_body` sets it.
    pub head: Bytes,
    /// Range of the URI in `head`.
    pub uri: Range<usize>,
    /// Whether there is an `Upgrade` field.
    pub upgrade: bool,
}

/// Writes a request of Tidegate itself, such as a health check: GET of this URI, with the fields
/// that the location sets.
pub(super) fn write_own(
    request: &mut Request,
    settings: &Settings,
    target: &ProxyTarget,
    uri: &[u8],
    keeps: bool,
) -> Vec<u8> {
    let mut head = Vec::with_capacity(256);
    head.extend_from_slice(b"GET ");
    head.extend_from_slice(uri);
    head.extend_from_slice(version(settings));
    write_host(request, settings, target, &mut head);
    settings.set_lines.append(request, &mut head);
    if !sets(settings, b"connection") {
        match (keeps, settings.version) {
            (true, HttpVersion::Http10) => write_field(b"Connection", b"keep-alive", &mut head),
            (true, HttpVersion::Http11 | HttpVersion::Http2) => {}
            (false, _) => write_field(b"Connection", b"close", &mut head),
        }
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// Writes the head of a request of Tidegate itself for an HTTP/2 stream.
pub(super) fn write_own_http2(
    request: &mut Request,
    settings: &Settings,
    target: &ProxyTarget,
    uri: &[u8],
) -> RequestHead {
    let mut head = RequestHead::new();
    head.put(b":method", b"GET");
    head.put(b":scheme", target.scheme.name());
    head.put(b":path", uri);
    head.put_authority(request, &settings.set, &target.host);
    head.put_set(request, &settings.set);
    head
}

/// Writes the request line and the fields.
pub(super) fn write(
    request: &mut Request,
    proxy: &Proxy,
    target: &ProxyTarget,
    buffered: bool,
    lookup: Option<&CacheLookup>,
) -> Result<WrittenHead, u16> {
    let settings = Arc::clone(&proxy.settings);
    let mut head = engine::spare_bytes(1024);
    write_method(request, &settings, lookup, &mut head);
    head.push(b' ');
    let begin = head.len();
    write_uri(request, proxy, target, &mut head);
    let uri = begin..head.len();
    if uri.is_empty() {
        logs::error!(request, Error, "zero length URI to proxy");
        return Err(500);
    }
    head.extend_from_slice(version(&settings));
    write_host(request, &settings, target, &mut head);
    let upgrade = settings.set_lines.append(request, &mut head);
    let body = settings.body.as_ref().map(|body| body.evaluate(request));
    match &body {
        Some(body) => write_length(&settings, body.len() as u64, &mut head),
        None => write_framing(request, &settings, buffered, &mut head),
    }
    for (name, value) in conditions(&settings, lookup) {
        write_field(name, value, &mut head);
    }
    if settings.passing.pass_request_headers {
        let is_passed = |known, name: &[u8]| {
            let is_held_back = lookup.is_some_and(|lookup| lookup.withholds(known));
            !is_held_back && !settings.replaced.contains(known, name)
        };
        request.client.append_fields(is_passed, &mut head);
    }
    head.extend_from_slice(b"\r\n");
    head.extend_from_slice(body.as_deref().unwrap_or_default());
    Ok(WrittenHead {
        head: engine::share_bytes(head),
        uri,
        upgrade,
    })
}

/// The conditional fields that revalidate a cached response, except those that `proxy_set_header`
/// sets.
fn conditions<'a>(
    settings: &Settings,
    lookup: Option<&'a CacheLookup>,
) -> impl Iterator<Item = (&'static [u8], &'a [u8])> {
    let validators = lookup.into_iter();
    let all = validators.flat_map(|lookup| lookup.validators.conditions());
    all.filter(|(name, _)| !sets(settings, &name.to_ascii_lowercase()))
}

/// The cache key if `proxy_cache_key` is not set: the URL of the upstream request. The URL of a
/// Unix socket has no host: the key contains the identity of the scope instead.
pub(super) fn cache_key(request: &Request, proxy: &Proxy, target: &ProxyTarget) -> Vec<u8> {
    let mut key = Vec::new();
    append_cache_key(request, proxy, target, &mut key);
    key
}

/// Appends the default cache key to `key`.
pub(super) fn append_cache_key(
    request: &Request,
    proxy: &Proxy,
    target: &ProxyTarget,
    key: &mut Vec<u8>,
) {
    key.extend_from_slice(target.scheme.text());
    if target.port.is_empty() {
        key.extend_from_slice(&proxy.place);
    }
    key.extend_from_slice(&target.host);
    write_uri(request, proxy, target, key);
}

/// The end of the request line.
fn version(settings: &Settings) -> &'static [u8] {
    match settings.version {
        HttpVersion::Http10 => b" HTTP/1.0\r\n",
        HttpVersion::Http11 | HttpVersion::Http2 => b" HTTP/1.1\r\n",
    }
}

/// Writes the URI. If `proxy_pass` has no URI and no directive has changed the client's URI, the
/// client's URI is copied as received. Otherwise the current URI is written; the URI of
/// `proxy_pass`, if any, replaces the location's prefix in it.
fn write_uri(request: &Request, proxy: &Proxy, target: &ProxyTarget, head: &mut Vec<u8>) {
    if target.uri.is_none() && request.uri_state.unchanged {
        head.extend_from_slice(request.request_uri());
        return;
    }
    let mut rest = request.uri.as_slice();
    if let Some(uri) = &target.uri {
        if proxy.is_dynamic() {
            append_line(uri, head);
            return;
        }
        if request.uri_state.valid_location {
            head.extend_from_slice(uri);
            rest = rest
                .get(proxy.prefix_length.min(rest.len())..)
                .unwrap_or_default();
        }
    }
    if request.uri_state.escaped || request.routing.internal {
        escape(rest, Escape::Uri, head);
    } else {
        head.extend_from_slice(rest);
    }
    if !request.args.is_empty() {
        head.push(b'?');
        head.extend_from_slice(&request.args);
    }
}

/// Appends the URI of a `proxy_pass` with variables. Line breaks that were decoded in a variable's
/// value are escaped again; otherwise the client could inject fields or a second request.
fn append_line(uri: &[u8], head: &mut Vec<u8>) {
    for byte in uri {
        match byte {
            b'\r' => head.extend_from_slice(b"%0D"),
            b'\n' => head.extend_from_slice(b"%0A"),
            _ => head.push(*byte),
        }
    }
}

/// Writes the head of an HTTP/2 request. `length` is the length of the body in bytes, if known.
pub(super) fn write_http2(
    request: &mut Request,
    proxy: &Proxy,
    target: &ProxyTarget,
    length: Option<u64>,
    lookup: Option<&CacheLookup>,
) -> Result<RequestHead, u16> {
    let settings = Arc::clone(&proxy.settings);
    let mut head = RequestHead::new();
    head.put_with(b":method", |out| {
        write_method(request, &settings, lookup, out);
    });
    head.put(b":scheme", target.scheme.name());
    let mut has_uri = true;
    head.put_with(b":path", |out| {
        let start = out.len();
        write_uri(request, proxy, target, out);
        has_uri = out.len() > start;
    });
    if !has_uri {
        logs::error!(request, Error, "zero length URI to proxy");
        return Err(500);
    }
    head.put_authority(request, &settings.set, &target.host);
    head.put_set(request, &settings.set);
    if let Some(length) = length
        && !sets(&settings, b"content-length")
    {
        head.put_length(length);
    }
    for (name, value) in conditions(&settings, lookup) {
        head.put(name, value);
    }
    if settings.passing.pass_request_headers {
        head.put_client_except(request, &settings.replaced, |known| {
            lookup.is_some_and(|lookup| lookup.withholds(known))
        });
    }
    Ok(head)
}

fn write_method(
    request: &mut Request,
    settings: &Settings,
    lookup: Option<&CacheLookup>,
    out: &mut Vec<u8>,
) {
    match &settings.method {
        _ if lookup.is_some_and(|lookup| lookup.is_head_converted) => {
            out.extend_from_slice(b"GET");
        }
        Some(method) => method.append_to(request, out),
        None if request.method == Method::Other => {
            out.extend_from_slice(request.client.method_name());
        }
        None => out.extend_from_slice(request.method.name().as_bytes()),
    }
}

fn write_host(
    request: &mut Request,
    settings: &Settings,
    target: &ProxyTarget,
    head: &mut Vec<u8>,
) {
    let is_left_out = || settings.version == HttpVersion::Http10 && sets(settings, b"host");
    if !settings.set_lines.append_host(request, head) && !is_left_out() {
        write_field(b"Host", &target.host, head);
    }
}

/// Writes the field that delimits the body, if there is a body: `Transfer-Encoding`, or
/// `Content-Length` unless `proxy_set_header` sets that field.
fn write_framing(request: &Request, settings: &Settings, buffered: bool, head: &mut Vec<u8>) {
    if !request.body.is_announced() {
        return;
    }
    if !buffered && request.body.chunked() {
        head.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        return;
    }
    write_length(settings, length_of(request), head);
}

/// The length of the body in bytes: the received length if it is known, otherwise the length that
/// the client has announced.
pub(super) fn length_of(request: &Request) -> u64 {
    request.body.length().unwrap_or(request.body.announced())
}

fn write_length(settings: &Settings, length: u64, head: &mut Vec<u8>) {
    if !sets(settings, b"content-length") {
        // Writing to a vector cannot fail.
        let _ = write!(head, "Content-Length: {length}\r\n");
    }
}

/// Whether `proxy_set_header` sets the field with this name (in lower case).
fn sets(settings: &Settings, name: &[u8]) -> bool {
    fields::sets(&settings.set, name)
}

fn write_field(name: &[u8], value: &[u8], head: &mut Vec<u8>) {
    head.extend_from_slice(name);
    head.extend_from_slice(b": ");
    proto::header::append_value(value, head);
    head.extend_from_slice(b"\r\n");
}
