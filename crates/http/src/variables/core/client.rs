//! Variables of the client's request: request line, arguments, header fields, body.

use std::os::unix::ffi::OsStrExt;

use proto::header::KnownField;
use proto::method::Method;
use variables::write::{decimal, joined};

use crate::request::Request;
use crate::request::credentials::Credentials;

/// `$request`.
pub(super) fn request_line(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let client = &request.client;
    out.extend_from_slice(client.request_line());
    client.has_begun()
}

/// `$request_uri`. Not found if the target could not be parsed into a path.
pub(super) fn request_uri(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let client = &request.client;
    let has_path = client.has_path();
    if has_path {
        out.extend_from_slice(client.target());
    }
    has_path
}

/// `$request_method`: the main request's method as sent, unless an error page has changed it. Not
/// found if the request line could not be parsed.
pub(super) fn request_method(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let client = &request.client;
    let name = if request.shared.is_now_get.get() {
        Method::Get.name().as_bytes()
    } else if client.has_method() {
        client.method_name()
    } else {
        return false;
    };
    out.extend_from_slice(name);
    true
}

/// `$server_protocol`: the version as sent; empty if it is invalid, not found in HTTP/0.9.
pub(super) fn server_protocol(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let client = &request.client;
    out.extend_from_slice(client.protocol());
    client.has_protocol()
}

/// The current path; empty if the target could not be parsed into a path. Not found if the request
/// line could not be parsed.
pub(super) fn path(request: &mut Request, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(&request.uri);
    !request.uri.is_empty() || request.client.has_method()
}

/// Not found instead of empty, even if the target ends with `?`; empty if a script has removed the
/// arguments.
pub(super) fn arguments(request: &mut Request, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(&request.args);
    request.uri_state.args_written || !request.args.is_empty()
}

/// The client's host without port, in lower case; the server's name if the client sent no host.
pub(super) fn host(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let host = request.client.host.as_slice();
    out.extend_from_slice(match host {
        b"" => &request.server.name,
        host => host,
    });
    true
}

/// The port that the client named with its host; 0 if it named none.
pub(super) fn port(request: &Request) -> u16 {
    request.client.server_name().map_or(0, |server| server.port)
}

/// `$http_name`: the values of all fields with this name, joined by commas.
pub(super) fn header(request: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    joined(request.headers(), name, b',', out)
}

/// `$http_name` for a known field, which is found without comparing names.
pub(super) fn known_header(request: &Request, known: KnownField, out: &mut Vec<u8>) -> bool {
    joined_known(request, known, b',', out)
}

/// `$http_cookie`: the values of all fields, joined by semicolons.
pub(super) fn cookies(request: &mut Request, out: &mut Vec<u8>) -> bool {
    joined_known(request, KnownField::Cookie, b';', out)
}

fn joined_known(request: &Request, known: KnownField, separator: u8, out: &mut Vec<u8>) -> bool {
    let client = &request.client;
    let mut found = false;
    for value in client.all(known) {
        if found {
            out.extend_from_slice(&[separator, b' ']);
        }
        out.extend_from_slice(value);
        found = true;
    }
    found
}

/// `$content_length`: the announced length. For a chunked body, the counted length without dropped
/// bytes, once the body has been read or has broken off.
pub(super) fn content_length(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if let Some(value) = request.header(KnownField::ContentLength) {
        out.extend_from_slice(value);
        return true;
    }
    match request.counted_length() {
        Some(length) => decimal(length, out),
        None => false,
    }
}

/// `$request_body`: a body that was read into memory, or the received part of a body that broke
/// off. Empty for an empty body that was announced.
pub(super) fn request_body(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let Some(parts) = request.body.shown() else {
        return false;
    };
    for part in parts {
        out.extend_from_slice(part);
    }
    !parts.is_empty() || request.body.is_announced()
}

/// `$request_body_file`.
pub(super) fn request_body_file(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let Some(path) = request.body.file_name() else {
        return false;
    };
    out.extend_from_slice(path.as_os_str().as_bytes());
    true
}

/// `$arg_name`.
pub(super) fn argument(request: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    append(find_argument(&request.args, name), out)
}

/// `$cookie_name`.
pub(super) fn cookie(request: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    let mut fields = request.client.all(KnownField::Cookie);
    append(fields.find_map(|value| find_cookie(value, name)), out)
}

/// `$remote_user`: the user name of `Authorization: Basic`, whether the password is correct or not.
pub(super) fn remote_user(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let credentials = Credentials::of(request);
    append(credentials.as_ref().map(Credentials::user), out)
}

/// Appends a value if there is one, and returns whether there is one.
fn append(value: Option<&[u8]>, out: &mut Vec<u8>) -> bool {
    match value {
        Some(value) => {
            out.extend_from_slice(value);
            true
        }
        None => false,
    }
}

/// The value of the first argument with this name, compared without case. `a` without `=` does not
/// count as an argument.
fn find_argument<'a>(args: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    if name.is_empty() {
        return None;
    }
    args.split(|byte| *byte == b'&').find_map(|argument| {
        let (found, value) = argument.split_at_checked(name.len())?;
        if found.eq_ignore_ascii_case(name) {
            value.strip_prefix(b"=")
        } else {
            None
        }
    })
}

/// The value of the cookie with this name, compared without case, in one field. Spaces around `=`
/// are ignored.
pub fn find_cookie<'a>(field: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    field.split(|byte| *byte == b';').find_map(|pair| {
        let (found, rest) = after_spaces(pair).split_at_checked(name.len())?;
        if !found.eq_ignore_ascii_case(name) {
            return None;
        }
        after_spaces(rest).strip_prefix(b"=").map(after_spaces)
    })
}

/// The value of the cookie with this name that one `Set-Cookie` of an upstream sets.
pub fn find_set_cookie<'a>(field: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (found, rest) = field.split_at_checked(name.len())?;
    if !found.eq_ignore_ascii_case(name) {
        return None;
    }
    let value = after_spaces(rest).strip_prefix(b"=").map(after_spaces)?;
    value.split(|byte| *byte == b';').next()
}

fn after_spaces(bytes: &[u8]) -> &[u8] {
    let spaces = bytes.iter().take_while(|byte| **byte == b' ').count();
    bytes.get(spaces..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By `ngx_http_arg`.
    #[test]
    fn arguments_by_name() {
        let find = |args: &'static str, name: &str| {
            find_argument(args.as_bytes(), name.as_bytes()).map(|v| std::str::from_utf8(v).unwrap())
        };
        assert_eq!(find("a=1&b=2", "a"), Some("1"));
        assert_eq!(find("a=1&B=2", "b"), Some("2"));
        assert_eq!(find("ba=1&a=2", "a"), Some("2"));
        assert_eq!(find("a&a=", "a"), Some(""));
        assert_eq!(find("a=b=c&x", "a"), Some("b=c"));
        assert_eq!(find("a=1", ""), None);
        assert_eq!(find("", "a"), None);
        assert_eq!(find("aa=1", "a"), None);
    }

    /// By `ngx_http_parse_cookie_lines`.
    #[test]
    fn cookies_by_name() {
        let find = |field: &'static str, name: &str| {
            find_cookie(field.as_bytes(), name.as_bytes()).map(|v| std::str::from_utf8(v).unwrap())
        };
        assert_eq!(find("a=1; b=2", "b"), Some("2"));
        assert_eq!(find("a=1;b = 2 ;c=3", "B"), Some("2 "));
        assert_eq!(find("ab=1; a=2", "a"), Some("2"));
        assert_eq!(find("a=", "a"), Some(""));
        assert_eq!(find("x=a=1", "a"), None);
    }

    /// By `ngx_http_parse_set_cookie_lines`.
    #[test]
    fn cookies_that_an_upstream_sets() {
        assert_eq!(find_set_cookie(b"id=7; Path=/", b"id"), Some(&b"7"[..]));
        assert_eq!(find_set_cookie(b"ID = 7", b"id"), Some(&b"7"[..]));
        assert_eq!(find_set_cookie(b"x=1; id=7", b"id"), None);
        assert_eq!(find_set_cookie(b"id", b"id"), None);
    }
}
