//! The variables that exist without being defined: what nginx's core, log and proxy modules
//! offer, by name.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#variables>. [`find`] is the list;
//! the values are made in `client` (what the client sent), `connection`, `response` and
//! `upstream`. They are computed on every use, but for what `is_kept` names. Not here: variables of TLS and HTTP/2, of
//! modules that we do not have, and those that a configuration defines.

mod client;
mod connection;
mod proxy_protocol;
mod response;
mod upstream;

pub(crate) use client::find_cookie;

use std::time::Duration;

use framework::counters::Totals;
use proto::header::Known;

use super::{Evaluate, EvaluateFamily, Found, Source};
use crate::http::core::{NGINX_VERSION, VERSION};
use crate::http::filters::compress::{self, Coding};
use crate::http::filters::{ssi, userid};
use crate::http::modules::{acme, browser, referer, secure_link};
use crate::http::request::Request;
use crate::{log, tls};
use framework::host::hostname;
use framework::warm;

/// Families by prefix. Any name of them may be assigned; until then the family answers.
const FAMILIES: [(&str, EvaluateFamily); 9] = [
    ("arg_", client::argument),
    ("cookie_", client::cookie),
    ("http_", client::header),
    ("proxy_protocol_tlv_", proxy_protocol::tlv),
    ("sent_http_", response::header),
    ("sent_trailer_", response::trailer),
    ("upstream_cookie_", upstream::cookie),
    ("upstream_http_", upstream::header),
    ("upstream_trailer_", upstream::trailer),
];

/// The variable of a name in lower case, without `$`.
pub fn find(name: &str) -> Option<Found> {
    if let Some(evaluate) = fixed(name) {
        return Some(Found {
            source: match is_kept(name) {
                true => Source::Kept(evaluate),
                false => Source::Builtin(evaluate),
            },
            assignable: false,
        });
    }
    if name == "realpath_root" {
        return Some(Found {
            source: Source::UntilMissing(realpath_root),
            assignable: false,
        });
    }
    if let Some(evaluate) = tls::variables::find(name) {
        return Some(Found {
            source: Source::Builtin(evaluate),
            assignable: true,
        });
    }
    match name {
        "request_id" => {
            return Some(Found {
                source: Source::Once(request_id),
                assignable: false,
            });
        }
        "args" | "limit_rate" | "proxy_host" | "proxy_port" => {
            let evaluate: Evaluate = match name {
                "args" => client::arguments,
                "limit_rate" => limit_rate,
                "proxy_host" => upstream::proxy_host,
                _ => upstream::proxy_port,
            };
            return Some(Found {
                source: Source::Builtin(evaluate),
                assignable: true,
            });
        }
        _ => {}
    }
    if let Some(found) = of_modules(name) {
        return Some(found);
    }
    FAMILIES.iter().find_map(|(prefix, evaluate)| {
        let rest = name.strip_prefix(prefix)?;
        let rest = rest.as_bytes().into();
        let source = match is_kept(name) {
            true => Source::KeptFamily(*evaluate, rest),
            false => Source::Family(*evaluate, rest),
        };
        let assignable = !RESERVED.contains(&name);
        Some(Found { source, assignable })
    })
}

/// Whether what changes while a request is served stays what it was at its first use: with nginx most variables do, and of
/// others it cannot be seen.
fn is_kept(name: &str) -> bool {
    let of_response = ["sent_http_", "sent_trailer_"];
    of_response.iter().any(|family| name.starts_with(family))
        || matches!(
            name,
            "body_bytes_sent" | "bytes_sent" | "request_body" | "request_body_file"
        )
}

/// Variables of modules that are found out once a request.
fn of_modules(name: &str) -> Option<Found> {
    let (evaluate, assignable): (Evaluate, bool) = match name {
        "acme_certificate" => (acme::certificate, false),
        "acme_certificate_key" => (acme::certificate_key, false),
        "ancient_browser" => (browser::ancient_browser, true),
        "invalid_referer" => (referer::invalid_referer, true),
        "modern_browser" => (browser::modern_browser, true),
        "msie" => (browser::msie, true),
        "secure_link" => (secure_link::secure_link, false),
        "secure_link_expires" => (secure_link::secure_link_expires, false),
        "uid_got" => (userid::uid_got, false),
        "uid_reset" => (|_, _| true, true),
        "uid_set" => (userid::uid_set, false),
        _ => return None,
    };
    let source = Source::Once(evaluate);
    Some(Found { source, assignable })
}

/// Members of families that nginx lets no configuration assign.
const RESERVED: [&str; 3] = [
    "sent_http_cache_control",
    "sent_http_link",
    "sent_http_location",
];

/// Variables that cannot be assigned.
fn fixed(name: &str) -> Option<Evaluate> {
    Some(match name {
        "body_bytes_sent" => |request, out| decimal(request.body_bytes_sent, out),
        "bytes_sent" => |request, out| decimal(request.bytes_sent, out),
        "binary_remote_addr" => connection::binary_remote_addr,
        "connection" => |request, out| decimal(request.connection.serial, out),
        "connection_requests" => |request, out| decimal(request.connection.requests.get(), out),
        "connection_time" => connection::connection_time,
        "connections_active" => |request, out| connections(request, |totals| totals.active, out),
        "connections_reading" => |request, out| connections(request, |totals| totals.reading, out),
        "connections_waiting" => |request, out| connections(request, |totals| totals.waiting, out),
        "connections_writing" => |request, out| connections(request, Totals::writing, out),
        "content_length" => client::content_length,
        "content_type" => |request, out| client::known_header(request, Known::ContentType, out),
        "date_gmt" => ssi::date_gmt,
        "date_local" => ssi::date_local,
        "document_root" => document_root,
        "document_uri" | "uri" => client::path,
        "brotli_ratio" => |request, out| compress::ratio(request, Coding::Brotli, out),
        "gzip_ratio" => |request, out| compress::ratio(request, Coding::Gzip, out),
        "zstd_ratio" => |request, out| compress::ratio(request, Coding::Zstd, out),
        "host" => client::host,
        "hostname" => |_, out| text(hostname(), out),
        "http_cookie" => client::cookies,
        "http_host" => |request, out| client::known_header(request, Known::Host, out),
        "http_referer" => |request, out| client::known_header(request, Known::Referer, out),
        "http_user_agent" => |request, out| client::known_header(request, Known::UserAgent, out),
        "http_via" => |request, out| client::known_header(request, Known::Via, out),
        "http_x_forwarded_for" => {
            |request, out| client::known_header(request, Known::XForwardedFor, out)
        }
        "https" => |request, out| {
            text(
                if request.connection.stream.is_secure() {
                    "on"
                } else {
                    ""
                },
                out,
            )
        },
        "is_args" => |request, out| text(if request.args.is_empty() { "" } else { "?" }, out),
        "is_request_port" => {
            |request, out| text(if client::port(request) == 0 { "" } else { ":" }, out)
        }
        "limit_conn_status" => |request, out| match request.shared.limit_conn.get() {
            Some(outcome) => text(outcome.name(), out),
            None => false,
        },
        "limit_req_status" => |request, out| match request.shared.limit_req.get() {
            Some(outcome) => text(outcome.name(), out),
            None => false,
        },
        "msec" => |_, out| seconds(engine::wall(), out),
        "nginx_version" => |_, out| text(NGINX_VERSION, out),
        "pid" => |_, out| decimal(std::process::id().into(), out),
        "slice_range" => |request, out| crate::http::filters::slice::range(request, out),
        "pipe" => |request, out| text(if request.pipelined { "p" } else { "." }, out),
        "proxy_protocol_addr" => {
            |request, out| proxy_protocol::address(request, |told| &told.source, out)
        }
        "proxy_protocol_port" => {
            |request, out| proxy_protocol::port(request, |told| &told.source, out)
        }
        "proxy_protocol_server_addr" => {
            |request, out| proxy_protocol::address(request, |told| &told.destination, out)
        }
        "proxy_protocol_server_port" => {
            |request, out| proxy_protocol::port(request, |told| &told.destination, out)
        }
        "proxy_add_x_forwarded_for" => upstream::proxy_add_x_forwarded_for,
        "query_string" => client::arguments,
        "realip_remote_addr" => connection::realip_remote_addr,
        "realip_remote_port" => connection::realip_remote_port,
        "remote_addr" => connection::remote_addr,
        "remote_port" => connection::remote_port,
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
                engine::now().saturating_duration_since(request.started),
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
        "server_addr" => connection::server_addr,
        "server_name" => |request, out| {
            out.extend_from_slice(&request.server.name);
            true
        },
        "server_port" => connection::server_port,
        "server_protocol" => client::server_protocol,
        "status" => response::status,
        "tidegate_version" => |_, out| text(VERSION, out),
        "tcpinfo_rcv_space" => {
            |request, out| connection::tcp_info(request, |info| info.rcv_space, out)
        }
        "tcpinfo_rtt" => |request, out| connection::tcp_info(request, |info| info.rtt, out),
        "tcpinfo_rttvar" => |request, out| connection::tcp_info(request, |info| info.rttvar, out),
        "tcpinfo_snd_cwnd" => {
            |request, out| connection::tcp_info(request, |info| info.snd_cwnd, out)
        }
        "time_iso8601" => |_, out| {
            log::with_now(|now| out.extend_from_slice(&now.iso8601));
            true
        },
        "time_local" => |_, out| {
            log::with_now(|now| out.extend_from_slice(&now.local));
            true
        },
        "upstream_addr" => upstream::address,
        "upstream_bytes_received" => upstream::bytes_received,
        "upstream_bytes_sent" => upstream::bytes_sent,
        "upstream_connect_time" => upstream::connect_time,
        "upstream_header_time" => upstream::header_time,
        "upstream_response_length" => upstream::response_length,
        "upstream_response_time" => upstream::response_time,
        "upstream_status" => upstream::status,
        _ => return None,
    })
}

/// A number of connections, over all threads.
fn connections(request: &Request, number: fn(&Totals) -> u64, out: &mut Vec<u8>) -> bool {
    decimal(number(&request.connection.worker.counters().totals()), out)
}

/// What `limit_rate` in force is; 0 until the response begins, as in nginx.
fn limit_rate(request: &mut Request, out: &mut Vec<u8>) -> bool {
    decimal(request.limit_rate.unwrap_or(0), out)
}

fn document_root(request: &mut Request, out: &mut Vec<u8>) -> bool {
    out.append(&mut request.document_root());
    true
}

/// Has the thread pool look at every folder of the root in force, unless that was done a moment ago: `$realpath_root` then
/// finds all of them in memory.
pub async fn prepare_realpath_root(request: &mut Request) {
    let root = request.document_root();
    let root = Request::path_of(&root);
    if warm::may_look(&root) {
        return;
    }
    let path = root.to_path_buf();
    // What came of it is asked again, at once, where the value is needed.
    let _ = engine::blocking(move || std::fs::canonicalize(&path).map(drop)).await;
    warm::looked_at(&root);
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
            let (root, error) = (log::Printable(&root), log::Errno(&error));
            log::error!(request, Crit, "realpath() \"{root}\" failed {error}");
            false
        }
    }
}

/// 32 hexadecimal digits that no client can guess and that no other request has.
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

/// Appends text; found.
fn text(text: &str, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(text.as_bytes());
    true
}

/// Appends a number; found.
fn decimal(mut number: u64, out: &mut Vec<u8>) -> bool {
    let mut digits = [0_u8; 20]; // u64::MAX has 20
    let mut used = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
        used += 1;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(digits.len() - used..).unwrap_or_default());
    true
}

/// Appends a number with zeros before it, three digits at least; found.
fn three_digits(number: u64, out: &mut Vec<u8>) -> bool {
    if number < 100 {
        out.push(b'0');
    }
    if number < 10 {
        out.push(b'0');
    }
    decimal(number, out)
}

/// Appends seconds with three decimals, `0.003`; found.
fn seconds(time: Duration, out: &mut Vec<u8>) -> bool {
    decimal(time.as_secs(), out);
    out.push(b'.');
    three_digits(time.subsec_millis().into(), out)
}

/// Appends the values of all fields of a name, joined by `separator` and a space; false when
/// there is none. `name` is the end of a variable's name: lower case, `_` for `-`.
fn joined<'a>(
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    name: &[u8],
    separator: u8,
    out: &mut Vec<u8>,
) -> bool {
    let mut found = false;
    for (_, value) in fields.filter(|(field, _)| is_named(field, name)) {
        if found {
            out.extend_from_slice(&[separator, b' ']);
        }
        out.extend_from_slice(value);
        found = true;
    }
    found
}

fn is_named(field: &[u8], name: &[u8]) -> bool {
    field.len() == name.len()
        && field.iter().zip(name).all(|(byte, wanted)| match byte {
            b'-' => *wanted == b'_',
            byte => byte.to_ascii_lowercase() == *wanted,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_families() {
        for name in [
            "uri",
            "remote_addr",
            "status",
            "time_local",
            "http_x_custom",
            "arg_a",
        ] {
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

    #[test]
    fn the_longer_family_wins() {
        let Some(Found {
            source: Source::Family(_, rest),
            ..
        }) = find("upstream_http_x")
        else {
            panic!("a family");
        };
        assert_eq!(&*rest, b"x");
    }

    #[test]
    fn numbers() {
        let shown = |write: &dyn Fn(&mut Vec<u8>) -> bool| {
            let mut out = Vec::new();
            assert!(write(&mut out));
            String::from_utf8(out).unwrap()
        };
        assert_eq!(shown(&|out| decimal(0, out)), "0");
        assert_eq!(shown(&|out| decimal(1_234_567, out)), "1234567");
        assert_eq!(shown(&|out| decimal(u64::MAX, out)), "18446744073709551615");
        assert_eq!(shown(&|out| three_digits(9, out)), "009");
        assert_eq!(shown(&|out| three_digits(99, out)), "099");
        assert_eq!(shown(&|out| three_digits(404, out)), "404");
        assert_eq!(
            shown(&|out| seconds(Duration::from_micros(12_034_999), out)),
            "12.034"
        );
        assert_eq!(shown(&|out| seconds(Duration::ZERO, out)), "0.000");
    }

    #[test]
    fn repeated_fields_are_joined() {
        let fields: [(&[u8], &[u8]); 4] = [
            (b"X-Tag", b"a"),
            (b"Other", b"x"),
            (b"x-tag", b""),
            (b"X_TAG", b"c"),
        ];
        let mut out = Vec::new();
        assert!(joined(fields.into_iter(), b"x_tag", b',', &mut out));
        assert_eq!(out, b"a, , c");
        assert!(!joined(fields.into_iter(), b"x_ta", b',', &mut out));
    }
}
