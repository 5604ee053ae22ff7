//! Applies `proxy_redirect` and `proxy_cookie_*` to response fields.

use bytes::Bytes;
use http::request::Request;

use super::cookies::Cookies;
use super::settings::Redirect;
use proxying::rewriting::{Rewrite, Undecided};

/// The rewriting rules of a `proxy_pass`.
pub(super) struct Rewriting<'a> {
    /// The rules for Location and Refresh.
    pub(super) redirects: &'a [Redirect],
    pub(super) cookies: &'a Cookies,
}

impl Rewrite for Rewriting<'_> {
    fn rewrites_locations(&self) -> bool {
        !self.redirects.is_empty()
    }

    fn location(&self, request: &mut Request, value: &Bytes) -> Option<Bytes> {
        for redirect in self.redirects {
            match redirect {
                Redirect::Prefix { from, to } => {
                    let from = from.evaluate(request);
                    if let Some(rest) = value.strip_prefix(&*from) {
                        let mut out = to.evaluate(request).to_vec();
                        out.extend_from_slice(rest);
                        return Some(out.into());
                    }
                }
                Redirect::Regex { pattern, to } => {
                    let matched = pattern.matches(request, value);
                    let matched = matched.unwrap_or_else(|undecided| {
                        // As in nginx, the next rule is tried.
                        let doing = " while reading response header from upstream";
                        pattern.alert(request, value, undecided, doing);
                        false
                    });
                    if matched {
                        return Some(to.evaluate(request));
                    }
                }
            }
        }
        None
    }

    fn cookie(&self, request: &mut Request, value: Bytes) -> Result<Bytes, Undecided> {
        Ok(self.cookies.rewrite(request, &value)?.unwrap_or(value))
    }
}
