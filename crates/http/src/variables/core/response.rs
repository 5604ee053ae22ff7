//! Variables of the response: of its current state or, when the request is logged, of the response
//! that was sent.

use bytes::Bytes;
use proto::date;
use proto::h1::Version;
use variables::Cached;
use variables::Context as _;
use variables::write::{decimal, joined, text, three_digits};

use crate::request::Request;
use crate::response::Field;

/// `$status`: the status of the error takes precedence over that of the error page; `009` for
/// HTTP/0.9, and `000` before there is a status.
pub(super) fn status(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let status = match (request.routing.error_status, request.response.status) {
        (0, 0) if request.version() == Version::Http09 => 9,
        (0, status) => status,
        (error, _) => error,
    };
    three_digits(status.into(), out)
}

/// `$sent_http_name`, for fields without a function of their own.
pub(super) fn header(request: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    let response = &request.response;
    let member = match name {
        b"location" => response
            .location
            .as_ref()
            .or(response.location_field.as_ref()),
        b"server" => response.server.as_ref(),
        b"date" => response.date.as_ref(),
        _ => None,
    };
    match member {
        Some(value) => {
            out.extend_from_slice(value);
            true
        }
        None => joined(pairs(&response.fields), name, b',', out),
    }
}

/// `$request_completion`: `OK` for a complete response, empty otherwise. As in nginx, the main
/// request caches an empty value: if the variable is used before the end of the response, its value
/// in the access log is empty too.
pub(super) fn completion(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let complete = request.sent.complete && request.is_main();
    if complete {
        out.extend_from_slice(b"OK");
    } else if request.is_main() {
        let variable = request.http.variables.find("request_completion");
        if let Some(variable) = variable {
            request.remember(variable, Cached::Value(Bytes::new()));
        }
    }
    true
}

/// `$sent_trailer_name`.
pub(super) fn trailer(request: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    joined(pairs(&request.response.trailers), name, b',', out)
}

/// Names and values of a response's fields, for variables.
pub fn pairs(fields: &[Field]) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().map(|field| (&*field.name, &*field.value))
}

/// `$sent_http_content_type`: the media type with the upstream's parameters or the appended
/// charset. The charset is left out if no head is sent: in subrequests, and for HTTP/0.9.
pub(super) fn content_type(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let has_head = request.is_main() && request.client.version() != Version::Http09;
    let response = &request.response;
    if response.content_type.is_empty() {
        return false;
    }
    out.extend_from_slice(&response.content_type);
    if !response.content_type_parameters.is_empty() {
        out.extend_from_slice(&response.content_type_parameters);
    } else if has_head && !response.charset.is_empty() {
        out.extend_from_slice(b"; charset=");
        out.extend_from_slice(&response.charset);
    }
    true
}

/// `$sent_http_content_length`.
pub(super) fn content_length(request: &mut Request, out: &mut Vec<u8>) -> bool {
    match request.response.content_length {
        Some(length) => decimal(length, out),
        None => false,
    }
}

/// `$sent_http_last_modified`: a Last-Modified among the fields takes precedence over the time in
/// `last_modified`.
pub(super) fn last_modified(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if request.response.ignores_last_modified {
        return false;
    }
    let is_it = |field: &&Field| field.name.eq_ignore_ascii_case(b"Last-Modified");
    // After a `post_action` there may be two fields, of which the last belongs to the response of
    // `post_action`.
    if let Some(field) = request.response.fields.iter().rfind(is_it) {
        out.extend_from_slice(&field.value);
        return true;
    }
    let Some(time) = request.response.last_modified else {
        // Only a field with the name `Last_Modified` can be found here: see above.
        return header(request, b"last_modified", out);
    };
    let mut formatted = [0; date::HTTP_LENGTH];
    date::format_http(time, &mut formatted);
    out.extend_from_slice(&formatted);
    true
}

/// Whether the connection is kept alive after the request. Before there is a response: whether the
/// client asks for it and no location so far has disabled it.
fn keeps_alive(request: &Request) -> bool {
    request.keepalive.on && !request.keepalive.refused
}

/// `$sent_http_connection`.
pub(super) fn connection(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let value = match request.response.status {
        101 => "upgrade",
        _ if keeps_alive(request) => "keep-alive",
        _ => "close",
    };
    text(value, out)
}

/// `$sent_http_keep_alive`.
pub(super) fn keep_alive(request: &mut Request, out: &mut Vec<u8>) -> bool {
    match request.plan.core.keepalive_header {
        Some(seconds) if keeps_alive(request) && seconds > 0 => {
            text("timeout=", out);
            decimal(seconds, out)
        }
        _ => false,
    }
}

/// `$sent_http_transfer_encoding`.
pub(super) fn transfer_encoding(request: &mut Request, out: &mut Vec<u8>) -> bool {
    request.sent.chunked && text("chunked", out)
}
