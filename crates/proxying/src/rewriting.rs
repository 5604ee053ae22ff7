//! What a module changes in the fields of an answer.

use bytes::Bytes;
use http::request::Request;

/// How the fields change that lead a client on or give it something to keep.
pub trait Rewrite {
    /// Whether it may change what leads a client elsewhere.
    fn rewrites_locations(&self) -> bool;

    /// What a Location becomes; `None` where it stays as it is.
    fn location(&self, request: &mut Request, value: &Bytes) -> Option<Bytes>;

    /// What a Set-Cookie becomes.
    fn cookie(&self, request: &mut Request, value: Bytes) -> Result<Bytes, Undecided>;

    /// What a Refresh becomes, whose URL is rewritten as a Location; `None` where it stays as it
    /// is.
    fn refresh(&self, request: &mut Request, value: &[u8]) -> Option<Bytes> {
        let at = memchr::memmem::find(&value.to_ascii_lowercase(), b"url=")? + 4;
        let (front, url) = value.split_at_checked(at)?;
        let rewritten = self.location(request, &Bytes::copy_from_slice(url))?;
        Some([front, &rewritten].concat().into())
    }
}

/// A field could not be made, and the log has been told: the request is answered with 500.
#[derive(Debug)]
pub struct Undecided;

/// All fields stay as they came.
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
