//! The built-in variables of nginx's core and log modules.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#variables>. [`find`] is the list; the
//! values are made in `client` (what the client sent) and `response`. They are computed on every
//! use, except for `request_id` and the variables of `is_kept`. Variables that other contexts, such
//! as sessions of `stream`, have too are in lists of their own ([`transport::client::find`],
//! [`variables::process::find`]), as are the variables of every other module; `features.rs` in the
//! crate `server` joins the lists.

mod client;
mod response;

pub use client::{find_cookie, find_set_cookie};
pub use response::pairs;

use proto::header::KnownField;
use variables::write::{decimal, seconds, text};

use super::{BuiltinVariable, Evaluate, EvaluateFamily, Source};
use crate::config::server_tokens::VERSION;
use crate::http2;
use crate::request::Request;

/// Families of variables by prefix. A name of a family can be assigned, unless `fixed` or
/// [`RESERVED`] contains the name. Until the name is assigned, the family's function gives the
/// value.
const FAMILIES: [(&str, EvaluateFamily); 5] = [
    ("arg_", client::argument),
    ("cookie_", client::cookie),
    ("http_", client::header),
    ("sent_http_", response::header),
    ("sent_trailer_", response::trailer),
];

/// The built-in variable with this name in lower case, without `$`.
pub fn find(name: &str) -> Option<BuiltinVariable> {
    if let Some(evaluate) = fixed(name) {
        return Some(BuiltinVariable::of(if is_kept(name) {
            Source::Kept(evaluate)
        } else {
            Source::Builtin(evaluate)
        }));
    }
    // As in nginx, if the root cannot be resolved at the first use, it is not tried again.
    if name == "realpath_root" {
        return Some(BuiltinVariable::of(Source::UntilMissing(realpath_root)));
    }
    match name {
        "request_id" => {
            return Some(BuiltinVariable::once(request_id));
        }
        "args" => return Some(BuiltinVariable::computed(client::arguments).assignable()),
        "limit_rate" => return Some(BuiltinVariable::computed(limit_rate).assignable()),
        _ => {}
    }
    FAMILIES.iter().find_map(|(prefix, evaluate)| {
        let rest = name.strip_prefix(prefix)?;
        let rest = rest.as_bytes().into();
        let source = if is_kept(name) {
            Source::KeptFamily(*evaluate, rest)
        } else {
            Source::Family(*evaluate, rest)
        };
        let assignable = !RESERVED.contains(&name);
        Some(BuiltinVariable { source, assignable })
    })
}

/// Whether the variable keeps the value of its first evaluation although the value changes while
/// the request is served. nginx caches most variables; a variable whose value does not change need
/// not be cached here.
fn is_kept(name: &str) -> bool {
    let of_response = ["sent_http_", "sent_trailer_"];
    of_response.iter().any(|family| name.starts_with(family))
        || matches!(
            name,
            "body_bytes_sent" | "bytes_sent" | "request_body" | "request_body_file"
        )
}

/// Members of families that nginx does not allow to be assigned.
const RESERVED: [&str; 3] = [
    "sent_http_cache_control",
    "sent_http_link",
    "sent_http_location",
];

/// Variables that cannot be assigned.
fn fixed(name: &str) -> Option<Evaluate> {
    Some(match name {
        "body_bytes_sent" => |request, out| decimal(request.sent.body_bytes, out),
        "bytes_sent" => |request, out| decimal(request.sent.bytes, out),
        "connection_requests" => |request, out| {
            let number = match request.arrival.number {
                0 => request.connection.requests.get(), // not counted yet: earlier requests
                number => number,
            };
            decimal(number, out)
        },
        "content_length" => client::content_length,
        "content_type" => {
            |request, out| client::known_header(request, KnownField::ContentType, out)
        }
        "document_root" => document_root,
        "document_uri" | "uri" => client::path,
        "host" => client::host,
        "http2" => http2::variables::variable,
        // HTTP/3 is not implemented.
        "http3" => |_, _| true,
        "http_cookie" => client::cookies,
        "http_host" => |request, out| client::known_header(request, KnownField::Host, out),
        "http_referer" => |request, out| client::known_header(request, KnownField::Referer, out),
        "http_user_agent" => {
            |request, out| client::known_header(request, KnownField::UserAgent, out)
        }
        "http_via" => |request, out| client::known_header(request, KnownField::Via, out),
        "http_x_forwarded_for" => {
            |request, out| client::known_header(request, KnownField::XForwardedFor, out)
        }
        "https" => |request, out| text(if request.is_secure() { "on" } else { "" }, out),
        "is_args" => |request, out| text(if request.args.is_empty() { "" } else { "?" }, out),
        "is_request_port" => {
            |request, out| text(if client::port(request) == 0 { "" } else { ":" }, out)
        }
        "pipe" => |request, out| text(if request.arrival.pipelined { "p" } else { "." }, out),
        "query_string" => client::arguments,
        "remote_user" => client::remote_user,
        "request" => client::request_line,
        "request_body" => client::request_body,
        "request_body_file" => client::request_body_file,
        "request_completion" => response::completion,
        "request_filename" => |request, out| {
            let found = request.has_filename();
            if found {
                out.append(&mut request.filename());
            }
            found
        },
        "request_length" => |request, out| decimal(request.length(), out),
        "request_method" => client::request_method,
        "request_port" => |request, out| match client::port(request) {
            0 => true,
            port => decimal(port.into(), out),
        },
        "request_time" => |request, out| {
            seconds(
                engine::now().saturating_duration_since(request.arrival.started),
                out,
            )
        },
        "request_uri" => client::request_uri,
        "scheme" => |request, out| text(request.scheme(), out),
        "sent_http_connection" => response::connection,
        "sent_http_content_length" => response::content_length,
        "sent_http_content_type" => response::content_type,
        "sent_http_keep_alive" => response::keep_alive,
        "sent_http_last_modified" => response::last_modified,
        "sent_http_transfer_encoding" => response::transfer_encoding,
        "server_name" => |request, out| {
            out.extend_from_slice(&request.server.name);
            true
        },
        "server_protocol" => client::server_protocol,
        "status" => response::status,
        "tidegate_version" => |_, out| text(VERSION, out),
        _ => return None,
    })
}

/// `$limit_rate`: the rate that a script or an upstream has set. Without one, 0 until the response
/// is sent, and the rate of the directive from then on, as in nginx.
fn limit_rate(request: &mut Request, out: &mut Vec<u8>) -> bool {
    decimal(request.pacing.rate.unwrap_or(0), out)
}

fn document_root(request: &mut Request, out: &mut Vec<u8>) -> bool {
    request.append_document_root(out);
    true
}

fn realpath_root(request: &mut Request, out: &mut Vec<u8>) -> bool {
    use std::os::unix::ffi::OsStringExt;
    let root = request.document_root();
    match std::fs::canonicalize(Request::path_of(&root)) {
        Ok(path) => {
            out.append(&mut path.into_os_string().into_vec());
            true
        }
        Err(error) => {
            let (root, error) = (logs::Printable(&root), logs::Errno(&error));
            logs::error!(request, Crit, "realpath() \"{root}\" failed {error}");
            false
        }
    }
}

/// 32 random hexadecimal digits, which no client can guess and no other request has.
fn request_id(_: &mut Request, out: &mut Vec<u8>) -> bool {
    for _ in 0..2 {
        for byte in framework::random::number().to_be_bytes() {
            out.extend_from_slice(&[hex_digit(byte >> 4), hex_digit(byte & 15)]);
        }
    }
    true
}

fn hex_digit(value: u8) -> u8 {
    if value < 10 {
        b'0' + value
    } else {
        b'a' + value - 10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_families() {
        for name in ["uri", "status", "http_x_custom", "arg_a"] {
            assert!(find(name).is_some(), "{name}");
        }
        for name in ["", "nothing", "htt", "arg", "1"] {
            assert!(find(name).is_none(), "{name}");
        }
        // nginx refuses `set $host x` and `set $http_host x`, not `set $http_x_custom x`.
        for (name, assignable) in [
            ("host", false),
            ("query_string", false),
            ("args", true),
            ("limit_rate", true),
            ("http_host", false),
            ("http_x_custom", true),
            ("sent_http_location", false),
        ] {
            assert_eq!(find(name).unwrap().assignable, assignable, "{name}");
        }
    }
}
