//! The rewriting of response fields that a module provides.

use bytes::Bytes;
use http::request::Request;

/// Rewrites the fields that redirect a client or set cookies.
pub trait Rewrite {
    /// Whether fields that redirect may be rewritten.
    fn rewrites_locations(&self) -> bool;

    /// The rewritten Location; `None` if it stays the same.
    fn location(&self, request: &mut Request, value: &Bytes) -> Option<Bytes>;

    /// The rewritten Set-Cookie.
    fn cookie(&self, request: &mut Request, value: Bytes) -> Result<Bytes, Undecided>;

    /// The rewritten Refresh, whose URL is rewritten like a Location; `None` if it stays the same.
    fn refresh(&self, request: &mut Request, value: &[u8]) -> Option<Bytes> {
        let at = memchr::memmem::find(&value.to_ascii_lowercase(), b"url=")? + 4;
        let (front, url) = value.split_at_checked(at)?;
        let rewritten = self.location(request, &Bytes::copy_from_slice(url))?;
        Some([front, &rewritten].concat().into())
    }
}

/// A field could not be rewritten, which has been logged. The response is then 500.
#[derive(Debug)]
pub struct Undecided;

/// Leaves all fields unchanged.
pub struct Unchanged;

impl Rewrite for Unchanged {
    fn rewrites_locations(&self) -> bool {
        false
    }

    fn location(&self, _: &mut Request, _: &Bytes) -> Option<Bytes> {
        None
    }

    fn cookie(&self, _: &mut Request, value: Bytes) -> Result<Bytes, Undecided> {
        Ok(value)
    }
}
