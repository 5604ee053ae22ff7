//! The variables about the upstreams of a request, per attempt.
//!
//! <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#variables>. The values of attempts
//! are separated by `, `, and groups of attempts (after an internal redirect) by ` : `.

use std::time::Duration;

use bytes::Bytes;
use http::request::Request;
use http::variables::core::{find_set_cookie, pairs};
use http::variables::{BuiltinVariable, Evaluate};
use variables::write::{decimal, joined, seconds};

use super::answer::AnswerHead;
use super::attempts::{Attempt, Attempts};
use crate::cache::{CacheStatus, Validators};

/// Returns the variable with this name, which is in lower case and without `$`.
pub fn find(name: &str) -> Option<BuiltinVariable> {
    let evaluate: Evaluate = match name {
        "upstream_addr" => address,
        "upstream_bytes_received" => bytes_received,
        "upstream_bytes_sent" => bytes_sent,
        "upstream_cache_etag" => cache_etag,
        "upstream_cache_last_modified" => cache_last_modified,
        "upstream_cache_status" => cache_status,
        "upstream_connect_time" => connect_time,
        "upstream_header_time" => header_time,
        "upstream_queue_time" => queue_time,
        "upstream_response_length" => response_length,
        "upstream_response_time" => response_time,
        "upstream_status" => status,
        _ => {
            return BuiltinVariable::of_family(name, "upstream_cookie_", cookie)
                .or_else(|| BuiltinVariable::of_family(name, "upstream_http_", header))
                .or_else(|| BuiltinVariable::of_family(name, "upstream_trailer_", trailer));
        }
    };
    Some(BuiltinVariable::computed(evaluate))
}

/// `$upstream_cache_etag`, while a stale entry is revalidated.
fn cache_etag(request: &mut Request, out: &mut Vec<u8>) -> bool {
    validator(request, Validators::etag, out)
}

fn cache_last_modified(request: &mut Request, out: &mut Vec<u8>) -> bool {
    validator(request, Validators::last_modified, out)
}

fn validator(
    request: &Request,
    which: fn(&Validators) -> Option<&Bytes>,
    out: &mut Vec<u8>,
) -> bool {
    let Some(seen) = Attempts::of(request).map(Attempts::borrow) else {
        return false;
    };
    let is_asked = seen.cache_status == Some(CacheStatus::Expired);
    let value = which(&seen.validators).filter(|_| is_asked);
    out.extend_from_slice(value.map_or(&[], |value| &value[..]));
    value.is_some()
}

fn address(request: &mut Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |attempt, out| {
        out.extend_from_slice(&attempt.peer)
    })
}

fn status(request: &mut Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |attempt, out| match attempt.status {
        0 => out.push(b'-'),
        status => {
            decimal(status.into(), out);
        }
    })
}

fn cache_status(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let status = Attempts::of(request).and_then(|seen| seen.borrow().cache_status);
    out.extend_from_slice(status.map_or("", CacheStatus::name).as_bytes());
    status.is_some()
}

fn connect_time(request: &mut Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |attempt, out| time(attempt.connect_time, out))
}

fn queue_time(request: &mut Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |attempt, out| time(attempt.queue_time, out))
}

fn header_time(request: &mut Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |attempt, out| time(attempt.header_time, out))
}

fn response_time(request: &mut Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |attempt, out| {
        time(attempt.response_time, out)
    })
}

fn response_length(request: &mut Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |attempt, out| {
        decimal(attempt.response_length, out);
    })
}

fn bytes_received(request: &mut Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |attempt, out| {
        decimal(attempt.bytes_received, out);
    })
}

fn bytes_sent(request: &mut Request, out: &mut Vec<u8>) -> bool {
    each(request, out, |attempt, out| {
        decimal(attempt.bytes_sent, out);
    })
}

fn time(time: Option<Duration>, out: &mut Vec<u8>) {
    match time {
        Some(time) => {
            seconds(time, out);
        }
        None => out.push(b'-'),
    }
}

/// Appends a value for each attempt; false if there was no attempt.
fn each(request: &Request, out: &mut Vec<u8>, append: impl Fn(&Attempt, &mut Vec<u8>)) -> bool {
    let seen = Attempts::of(request).map(Attempts::borrow);
    let attempts = seen.as_ref().map_or(&[][..], |seen| &seen.attempts);
    list(attempts, out, append)
}

/// Appends a value for each attempt. As in nginx, an attempt without a peer separates two groups.
fn list(attempts: &[Attempt], out: &mut Vec<u8>, append: impl Fn(&Attempt, &mut Vec<u8>)) -> bool {
    let mut rest = attempts.iter();
    let Some(first) = rest.next() else {
        return false;
    };
    append(first, out);
    while let Some(attempt) = rest.next() {
        if attempt.peer.is_empty() {
            out.extend_from_slice(b" : ");
            match rest.next() {
                Some(attempt) => append(attempt, out),
                None => break,
            }
        } else {
            out.extend_from_slice(b", ");
            append(attempt, out);
        }
    }
    true
}

fn header(request: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(seen) = Attempts::of(request) else {
        return false;
    };
    match &seen.borrow().answer {
        Some(answer) => joined(answer.pairs(), name, b',', out),
        None => false,
    }
}

fn trailer(request: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    match Attempts::of(request) {
        Some(seen) => joined(pairs(&seen.borrow().trailers), name, b',', out),
        None => false,
    }
}

fn cookie(request: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    let Some(seen) = Attempts::of(request) else {
        return false;
    };
    let seen = seen.borrow();
    let fields = seen.answer.iter().flat_map(AnswerHead::pairs);
    let value = fields
        .filter(|(field, _)| field.eq_ignore_ascii_case(b"Set-Cookie"))
        .find_map(|(_, value)| find_set_cookie(value, name));
    out.extend_from_slice(value.unwrap_or_default());
    value.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(peer: &'static str, status: u16) -> Attempt {
        Attempt {
            peer: peer.into(),
            status,
            ..Attempt::default()
        }
    }

    /// The expectations follow `ngx_http_upstream_addr_variable` and related functions.
    #[test]
    fn attempts_and_groups() {
        let show = |attempts: &[Attempt]| {
            let mut out = Vec::new();
            let found = list(attempts, &mut out, |attempt, out| {
                out.extend_from_slice(&attempt.peer);
                decimal(attempt.status.into(), out);
            });
            found.then(|| String::from_utf8(out).unwrap())
        };
        assert_eq!(show(&[]), None);
        assert_eq!(show(&[attempt("a", 502)]).unwrap(), "a502");
        assert_eq!(
            show(&[attempt("a", 502), attempt("b", 200)]).unwrap(),
            "a502, b200"
        );
        assert_eq!(
            show(&[attempt("a", 502), attempt("", 0), attempt("c", 200)]).unwrap(),
            "a502 : c200"
        );
        assert_eq!(
            show(&[attempt("a", 502), attempt("", 0)]).unwrap(),
            "a502 : "
        );
    }
}
