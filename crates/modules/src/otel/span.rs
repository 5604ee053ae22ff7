//! The span of a finished request: nginx's attributes, from
//! <https://nginx.org/en/docs/ngx_otel_module.html#default_attributes>, and the configured ones.

use std::time::Duration;

use engine::net::Address;
use http::request::Request;
use proto::header::KnownField;
use proto::method::Method;

use super::messages::{KeyValue, SPAN_KIND_SERVER, STATUS_CODE_ERROR, Span, Status};
use super::settings::Tracing;
use super::{RequestTrace, TRACE};

/// Attributes whose names start with one of these prefixes are lists.
const LISTS: [&str; 2] = ["http.request.header.", "http.response.header."];

/// The span of a traced request.
pub(super) fn of(request: &mut Request, tracing: &Tracing) -> Span {
    let name = match &tracing.span_name {
        Some(name) => name.evaluate(request),
        None => request.plan.name.clone(),
    };
    let mut attributes = default_attributes(request);
    for (name, value) in &tracing.attributes {
        let value = value.evaluate(request);
        let is_list = LISTS.iter().any(|begin| name.starts_with(begin));
        attributes.push(if is_list {
            KeyValue::list(name.clone(), &value)
        } else {
            KeyValue::text(name.clone(), &value)
        });
    }
    let status = status(request);
    let known = request.shared.main.borrow();
    let Some(RequestTrace { parent, current }) = known.get(&TRACE) else {
        return Span::default();
    };
    let state = String::from_utf8_lossy(&current.state).into_owned();
    let started = request.arrival.started_wall;
    Span {
        trace_id: current.trace_id.to_be_bytes().to_vec(),
        span_id: current.span_id.to_be_bytes().to_vec(),
        trace_state: state,
        parent_span_id: match parent.span_id {
            0 => Vec::new(),
            id => id.to_be_bytes().to_vec(),
        },
        name: String::from_utf8_lossy(&name).into_owned(),
        kind: SPAN_KIND_SERVER,
        start_time_unix_nano: nanoseconds(started),
        // If the clock was set back, the span ends at its start rather than before it.
        end_time_unix_nano: nanoseconds(engine::wall().max(started)),
        attributes,
        status: (status >= 500).then_some(Status {
            code: STATUS_CODE_ERROR,
        }),
    }
}

fn nanoseconds(since_1970: Duration) -> u64 {
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}

/// The status in logs.
fn status(request: &Request) -> u16 {
    match request.routing.error_status {
        0 => request.response.status,
        error => error,
    }
}

fn default_attributes(request: &Request) -> Vec<KeyValue> {
    let client = &request.client;
    let mut attributes = Vec::with_capacity(16);
    let method = if request.shared.is_now_get.get() {
        Method::Get.name().as_bytes()
    } else {
        client.method_name()
    };
    attributes.push(KeyValue::text("http.method", method));
    attributes.push(KeyValue::text("http.target", client.target()));
    if !request.plan.name.is_empty() {
        attributes.push(KeyValue::text("http.route", &request.plan.name));
    }
    attributes.push(KeyValue::text("http.scheme", request.scheme().as_bytes()));
    if let Some(version) = client.protocol().strip_prefix(b"HTTP/") {
        attributes.push(KeyValue::text("http.flavor", version));
    }
    if let Some(agent) = client.value(KnownField::UserAgent) {
        attributes.push(KeyValue::text("http.user_agent", agent));
    }
    let announced = client.value(KnownField::ContentLength);
    let announced = announced.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    let length = announced.or(request.counted_length()).unwrap_or(0);
    attributes.push(KeyValue::number("http.request_content_length", length));
    let sent = request.sent.body_bytes;
    attributes.push(KeyValue::number("http.response_content_length", sent));
    let status = status(request);
    if status != 0 {
        attributes.push(KeyValue::number("http.status_code", status.into()));
    }
    let name: &[u8] = match &*request.server.name {
        b"" => &client.host,
        name => name,
    };
    attributes.push(KeyValue::text("net.host.name", name));
    if let Address::Inet(local) = request.connection.local() {
        let usual = if request.is_secure() { 443 } else { 80 };
        if local.port() != usual {
            attributes.push(KeyValue::number("net.host.port", local.port().into()));
        }
    }
    let (address, port) = match request.peer() {
        Address::Inet(peer) => (peer.ip().to_string(), peer.port()),
        Address::Unix(_) => ("unix:".to_owned(), 0),
    };
    attributes.push(KeyValue::text("net.sock.peer.addr", address.as_bytes()));
    attributes.push(KeyValue::number("net.sock.peer.port", port.into()));
    attributes
}
