//! The cookie of `sticky cookie`, by which a client names the server of its session.

use bytes::Bytes;
use engine::wall;
use framework::compile::Compiler;
use http::request::{Request, Text};
use http::variables::Compiling as _;
use proto::date;

use super::line::{CookieLine, Expires};

/// The attributes of `expires=max`.
const EXPIRES_MAX: &[u8] = b"; expires=Thu, 31-Dec-37 23:55:55 GMT; max-age=315360000";

/// The values of `samesite`; upper and lower case are equivalent.
const SAME_SITE: [&[u8]; 3] = [b"strict", b"lax", b"none"];

/// Whether a value of `samesite` is valid.
pub(super) fn is_same_site(value: &[u8]) -> bool {
    let mut known = SAME_SITE.iter();
    known.any(|known| known.eq_ignore_ascii_case(value))
}

/// The cookie's name and attributes.
#[derive(Debug)]
pub(super) struct Cookie {
    name: Bytes,
    domain: Option<Text>,
    path: Option<Bytes>,
    expires: Option<Expires>,
    http_only: bool,
    secure: bool,
    same_site: Option<Text>,
}

impl Cookie {
    pub(super) fn compile(compiler: &Compiler<'_>, line: CookieLine) -> Cookie {
        Cookie {
            name: line.name,
            domain: line.domain.map(|domain| compiler.text(&domain)),
            path: line.path,
            expires: line.expires,
            http_only: line.http_only,
            secure: line.secure,
            same_site: line.same_site.map(|same_site| compiler.text(&same_site)),
        }
    }

    /// The value of `Set-Cookie` for the server with this name. Attributes are in nginx's order.
    pub(super) fn value(&self, request: &mut Request, id: &[u8]) -> Bytes {
        let mut out = [&*self.name, b"=", id].concat();
        match self.expires {
            None => {}
            Some(Expires::Max) => out.extend_from_slice(EXPIRES_MAX),
            Some(Expires::After(seconds)) => {
                out.extend_from_slice(b"; expires=");
                let end = wall().as_secs().saturating_add(seconds);
                date::write_cookie(i64::try_from(end).unwrap_or(i64::MAX), &mut out);
                out.extend_from_slice(format!("; max-age={seconds}").as_bytes());
            }
        }
        let domain = self.domain.as_ref().map(|domain| domain.evaluate(request));
        append(&mut out, b"; domain=", domain.as_deref());
        if self.http_only {
            out.extend_from_slice(b"; httponly");
        }
        if self.secure {
            out.extend_from_slice(b"; secure");
        }
        append(&mut out, b"; samesite=", self.same_site(request).as_deref());
        append(&mut out, b"; path=", self.path.as_deref());
        out.into()
    }

    /// The `SameSite` attribute for a request; the strictest value if the evaluated one is invalid.
    fn same_site(&self, request: &mut Request) -> Option<Bytes> {
        let value = self.same_site.as_ref()?.evaluate(request);
        if value.is_empty() || is_same_site(&value) {
            return Some(value);
        }
        let shown = logs::Printable(&value);
        logs::error!(
            request,
            Debug,
            "sticky: invalid cookie samesite value \"{shown}\""
        );
        Some(Bytes::from_static(b"strict"))
    }
}

/// Appends an attribute, unless its value is empty.
fn append(out: &mut Vec<u8>, name: &[u8], value: Option<&[u8]>) {
    if let Some(value) = value.filter(|value| !value.is_empty()) {
        out.extend_from_slice(name);
        out.extend_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use http::testing::with_request;

    use super::*;

    fn cookie() -> Cookie {
        Cookie {
            name: "route".into(),
            domain: None,
            path: None,
            expires: None,
            http_only: false,
            secure: false,
            same_site: None,
        }
    }

    fn shown(cookie: &Cookie) -> String {
        let mut shown = String::new();
        with_request(|request| {
            let value = cookie.value(request, b"a");
            shown = String::from_utf8_lossy(&value).into_owned();
        });
        shown
    }

    #[test]
    fn attributes_follow_in_nginx_s_order() {
        assert_eq!(shown(&cookie()), "route=a");
        let all = Cookie {
            domain: Some(Text::Literal("example.org".into())),
            path: Some("/".into()),
            expires: Some(Expires::Max),
            http_only: true,
            secure: true,
            same_site: Some(Text::Literal("Lax".into())),
            ..cookie()
        };
        assert_eq!(
            shown(&all),
            "route=a; expires=Thu, 31-Dec-37 23:55:55 GMT; max-age=315360000; domain=example.org; \
             httponly; secure; samesite=Lax; path=/"
        );
    }

    #[test]
    fn what_is_empty_is_left_out_and_what_is_wrong_is_strict() {
        let of = |text: &'static str| Cookie {
            domain: Some(Text::Literal("".into())),
            same_site: Some(Text::Literal(text.into())),
            ..cookie()
        };
        assert_eq!(shown(&of("")), "route=a");
        assert_eq!(shown(&of("NONE")), "route=a; samesite=NONE");
        assert_eq!(shown(&of("strange")), "route=a; samesite=strict");
    }

    #[test]
    fn a_time_is_told_twice() {
        let soon = Cookie {
            expires: Some(Expires::After(3600)),
            ..cookie()
        };
        let shown = shown(&soon);
        assert!(shown.starts_with("route=a; expires=") && shown.ends_with(" GMT; max-age=3600"));
    }
}
