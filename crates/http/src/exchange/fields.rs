//! The fields of a response's head in nginx's order, independent of the protocol that encodes them.
//!
//! The connection fields of HTTP/1 have a place in this order, but HTTP/1 writes them itself.

use std::cell::Cell;
use std::io::Write;
use std::net::IpAddr;

use bytes::Bytes;
use engine::net::Address;
use proto::header::append_value;

use crate::request::Request;

/// The number of digits of the largest `u64`.
const DIGITS_MAX: usize = 20;

thread_local! {
    /// The last second for which a date was made, and the date.
    static DATE: Cell<(i64, [u8; proto::date::HTTP_LENGTH])> =
        const { Cell::new((i64::MIN, [0; proto::date::HTTP_LENGTH])) };
}

/// A line of a head.
pub enum HeadLine<'a> {
    /// A field: its name, and the parts of its value, which are concatenated.
    Field(&'a [u8], &'a [&'a [u8]]),
    /// The place of the fields for the body's framing and for keep-alive. Protocols without such
    /// fields write nothing here.
    OfConnection,
}

/// Calls `take` with each line of the response's head, in order. With `absolute_redirect`, a
/// Location that is a path of this server is made absolute first, and `$sent_http_location` then
/// shows the absolute URL.
pub fn for_each(request: &mut Request, mut take: impl FnMut(HeadLine<'_>)) {
    let absolute = absolute_location(request);
    let response = &request.response;
    let mut field = |name: &[u8], value: &[&[u8]]| take(HeadLine::Field(name, value));
    match &response.server {
        Some(server) if server.is_empty() => {}
        Some(server) => field(b"Server", &[server]),
        None => {
            let name = request.plan.core.server_tokens.text();
            field(b"Server", &[name.as_bytes()]);
        }
    }
    match &response.date {
        Some(date) if date.is_empty() => {}
        Some(date) => field(b"Date", &[date]),
        None => field(b"Date", &[&date_of_now()]),
    }
    if !response.content_type.is_empty() {
        let media_type = &*response.content_type;
        let parameters = &*response.content_type_parameters;
        match (parameters.is_empty(), &*response.charset) {
            (false, _) => field(b"Content-Type", &[media_type, parameters]),
            (true, b"") => field(b"Content-Type", &[media_type]),
            (true, charset) => field(b"Content-Type", &[media_type, b"; charset=", charset]),
        }
    }
    if let Some(length) = response.content_length {
        field(b"Content-Length", &[digits(length, &mut [0; DIGITS_MAX])]);
    }
    if let Some(time) = response.last_modified
        && response.field(b"Last-Modified").is_none()
    {
        field(b"Last-Modified", &[&date_text(time)]);
    }
    if let Some(location) = &absolute {
        field(b"Location", &[location]);
    }
    take(HeadLine::OfConnection);
    let mut field = |name: &[u8], value: &[&[u8]]| take(HeadLine::Field(name, value));
    if response.vary_accept_encoding {
        field(b"Vary", &[b"Accept-Encoding"]);
    }
    if absolute.is_none()
        && let Some(location) = &response.location
    {
        field(b"Location", &[location]);
    }
    for added in &response.fields {
        field(&added.name, &[&added.value]);
    }
    if absolute.is_some() {
        request.response.location = absolute;
    }
}

/// Writes a number in decimal to the end of `room`, and returns its digits.
fn digits(number: u64, room: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let (mut rest, mut length) = (number, 0);
    for digit in room.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        length += 1;
        if rest == 0 {
            break;
        }
    }
    room.get(DIGITS_MAX - length..).unwrap_or_default()
}

/// The current time, as of this iteration of the event loop, as an HTTP date. Formatted once a
/// second.
fn date_of_now() -> [u8; proto::date::HTTP_LENGTH] {
    let now = engine::wall().as_secs() as i64;
    let (time, known) = DATE.get();
    if time == now {
        return known;
    }
    let text = date_text(now);
    DATE.set((now, text));
    text
}

fn date_text(time: i64) -> [u8; proto::date::HTTP_LENGTH] {
    let mut text = [0; proto::date::HTTP_LENGTH];
    proto::date::format_http(time, &mut text);
    text
}

/// The response's Location with scheme, host and port; `None` if it is not a path of this server.
fn absolute_location(request: &Request) -> Option<Bytes> {
    let core = &request.plan.core;
    let path = request.response.location.as_ref()?;
    if path.first() != Some(&b'/') || !core.absolute_redirect {
        return None;
    }
    let (scheme, usual_port): (&[u8], u16) = if request.is_secure() {
        (b"https://", 443)
    } else {
        (b"http://", 80)
    };
    let mut location = scheme.to_vec();
    let host = request.redirect_host();
    if host.is_empty() {
        location.extend_from_slice(host_text(request.connection.local()).as_bytes());
    } else {
        location.extend_from_slice(&host);
    }
    let port = request.connection.local().port().unwrap_or(usual_port);
    if core.port_in_redirect && port != usual_port {
        // Writing to a vector cannot fail.
        let _ = write!(location, ":{port}");
    }
    append_value(path, &mut location);
    Some(location.into())
}

/// The host of an address, for a client that did not name a host.
fn host_text(address: &Address) -> String {
    match address.ip() {
        Some(IpAddr::V6(ip)) => format!("[{ip}]"),
        Some(ip) => ip.to_string(),
        None => "localhost".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::with_request;

    /// The head of a response as one text, without the date.
    fn written(request: &mut Request) -> String {
        let mut lines = Vec::new();
        for_each(request, |line| match line {
            HeadLine::Field(b"Date", _) => {}
            HeadLine::Field(name, value) => {
                let value = value.concat();
                lines.push([name, b": ", &value].concat());
            }
            HeadLine::OfConnection => lines.push(b"-".to_vec()),
        });
        String::from_utf8(lines.join(&b'\n')).unwrap()
    }

    #[test]
    fn fields_have_their_places() {
        with_request(|request| {
            let response = &mut request.response;
            response.server = Some("s".into());
            response.content_type = "text/plain".into();
            response.charset = "utf-8".into();
            response.content_length = Some(u64::MAX);
            response.last_modified = Some(0);
            response.vary_accept_encoding = true;
            response.location = Some("/a\nb".into());
            response.add("X", "1");
            let first = "Server: s\nContent-Type: text/plain; charset=utf-8\n\
                Content-Length: 18446744073709551615\nLast-Modified: Thu, 01 Jan 1970 00:00:00 GMT";
            let ours = "Location: http://site/a b\n-\nVary: Accept-Encoding\nX: 1";
            assert_eq!(written(request), format!("{first}\n{ours}"));
            // The variable shows the Location as it was sent.
            let sent = request.response.location.as_deref();
            assert_eq!(sent, Some(&b"http://site/a b"[..]));
            // A Location that is absolute already comes after the other fields.
            let foreign = "-\nVary: Accept-Encoding\nLocation: http://site/a b\nX: 1";
            assert_eq!(written(request), format!("{first}\n{foreign}"));
        });
    }

    #[test]
    fn what_its_maker_has_said_goes_before_our_own() {
        with_request(|request| {
            let response = &mut request.response;
            response.server = Some(Bytes::new());
            response.content_type = "text/html".into();
            response.charset = "utf-8".into();
            response.content_type_parameters = "; q=1".into();
            response.last_modified = Some(0);
            response.add("last-modified", "then");
            assert_eq!(
                written(request),
                "Content-Type: text/html; q=1\n-\nlast-modified: then"
            );
        });
    }
}
