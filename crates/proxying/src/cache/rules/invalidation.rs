//! The targets that an unsafe request invalidates: RFC 9111, section 4.4.

/// Whether a method may change the response to GET: true for unknown methods and all known ones
/// except the safe ones.
pub(crate) fn is_unsafe(method: &[u8]) -> bool {
    !matches!(method, b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE")
}

/// Whether a response with this status reports success.
pub(crate) fn is_no_error(status: u16) -> bool {
    (200..400).contains(&status)
}

/// Returns the path and query of a `Location` or `Content-Location`, if its origin is that of the
/// request; section 4.4 forbids invalidating others. `host` is the request's host with the port as
/// the client has sent it, and `target` the request's path and query.
pub(crate) fn target(
    reference: &[u8],
    scheme: &[u8],
    host: &[u8],
    target: &[u8],
) -> Option<Vec<u8>> {
    let end = memchr::memchr(b'#', reference).unwrap_or(reference.len());
    let reference = reference.get(..end).unwrap_or_default();
    let behind_scheme = match memchr::memmem::find(reference, b"://") {
        Some(at) if is_scheme(reference.get(..at).unwrap_or_default()) => {
            let is_same = reference
                .get(..at)
                .is_some_and(|other| other.eq_ignore_ascii_case(scheme));
            is_same.then_some(())?;
            reference.get(at + 3..)
        }
        _ => reference.strip_prefix(b"//"),
    };
    if let Some(rest) = behind_scheme {
        let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?'));
        let (authority, path) = rest.split_at(end.unwrap_or(rest.len()));
        is_same_authority(authority, host, scheme).then_some(())?;
        return Some(match path.first() {
            Some(b'/') => without_dots(path),
            _ => [b"/", path].concat(),
        });
    }
    let path_end = memchr::memchr(b'?', target).unwrap_or(target.len());
    let path = target.get(..path_end)?;
    Some(match reference.first() {
        None => return Some(target.to_vec()),
        Some(b'/') => without_dots(reference),
        Some(b'?') => [path, reference].concat(),
        // Another scheme, such as `mailto:`, is another origin.
        Some(_) if has_scheme(reference) => return None,
        Some(_) => {
            let folder = memchr::memrchr(b'/', path).map_or(0, |at| at + 1);
            without_dots(&[path.get(..folder)?, reference].concat())
        }
    })
}

fn is_scheme(text: &[u8]) -> bool {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    text.first().is_some_and(u8::is_ascii_alphabetic) && text.iter().all(is_part)
}

/// Whether the first colon, slash or question mark is a colon.
fn has_scheme(reference: &[u8]) -> bool {
    let end = reference
        .iter()
        .position(|byte| matches!(byte, b':' | b'/' | b'?'));
    end.is_some_and(|at| reference.get(at) == Some(&b':'))
}

fn is_same_authority(one: &[u8], other: &[u8], scheme: &[u8]) -> bool {
    let default: &[u8] = if scheme.eq_ignore_ascii_case(b"https") {
        b":443"
    } else {
        b":80"
    };
    let bare = |authority: &'_ [u8]| -> Vec<u8> {
        let authority = authority.strip_suffix(default).unwrap_or(authority);
        authority.to_ascii_lowercase()
    };
    bare(one) == bare(other)
}

/// Removes dot segments from the path (RFC 3986, section 5.2.4); the query is not changed.
fn without_dots(reference: &[u8]) -> Vec<u8> {
    let end = memchr::memchr(b'?', reference).unwrap_or(reference.len());
    let (path, query) = reference.split_at(end);
    let mut kept: Vec<&[u8]> = Vec::new();
    let mut segments = path.split(|byte| *byte == b'/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            b"." if is_last => kept.push(b""),
            b"." => {}
            b".." => {
                kept.pop();
                if is_last {
                    kept.push(b"");
                }
            }
            segment => kept.push(segment),
        }
    }
    let mut out = Vec::with_capacity(reference.len());
    for segment in kept {
        out.push(b'/');
        out.extend_from_slice(segment);
    }
    if out.is_empty() {
        out.push(b'/');
    }
    out.extend_from_slice(query);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 4.4.
    #[test]
    fn methods_and_statuses() {
        for method in ["POST", "PUT", "DELETE", "PATCH", "M-SEARCH", "get"] {
            assert!(is_unsafe(method.as_bytes()), "{method}");
        }
        for method in ["GET", "HEAD", "OPTIONS", "TRACE"] {
            assert!(!is_unsafe(method.as_bytes()), "{method}");
        }
        assert!(is_no_error(200) && is_no_error(303));
        assert!(!is_no_error(404) && !is_no_error(500) && !is_no_error(101));
    }

    /// Section 4.4, and RFC 3986, section 5.
    #[test]
    fn only_the_same_origin() {
        for (reference, expected) in [
            ("http://a.example/x?y#z", Some("/x?y")),
            ("HTTP://A.Example:80/x", Some("/x")),
            ("http://a.example", Some("/")),
            ("http://a.example?q", Some("/?q")),
            ("//a.example/x", Some("/x")),
            ("/x/../y", Some("/y")),
            ("x", Some("/b/x")),
            ("../x", Some("/x")),
            ("./", Some("/b/")),
            ("../../..", Some("/")),
            ("?new", Some("/b/c?new")),
            ("", Some("/b/c?d")),
            ("#f", Some("/b/c?d")),
            ("http://b.example/x", None),
            ("https://a.example/x", None),
            ("http://a.example:8080/x", None),
            ("http://a.example@b.example/x", None),
            ("//b.example/x", None),
            ("mailto:x", None),
        ] {
            let found = target(reference.as_bytes(), b"http", b"a.example", b"/b/c?d");
            let expected = expected.map(|text| text.as_bytes().to_vec());
            assert_eq!(found, expected, "{reference}");
        }
        let found = target(b"https://a:443/x", b"https", b"a", b"/");
        assert_eq!(found, Some(b"/x".to_vec()));
    }
}
