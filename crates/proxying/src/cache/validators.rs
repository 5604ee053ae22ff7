//! By what an upstream knows a stored answer again.

use bytes::Bytes;

/// By what the upstream knows a stored answer again.
#[derive(Clone, Debug, Default)]
pub struct Validators {
    pub(super) last_modified: Option<Bytes>,
    pub(super) etag: Option<Bytes>,
    /// By what the rest of an answer is asked for, whose beginning is kept.
    pub(super) rest: Option<[(&'static [u8], Bytes); 2]>,
}

impl Validators {
    pub(crate) fn last_modified(&self) -> Option<&Bytes> {
        self.last_modified.as_ref()
    }

    pub(crate) fn etag(&self) -> Option<&Bytes> {
        self.etag.as_ref()
    }

    /// The fields of the request that ask for the answer if it has changed.
    pub fn conditions(&self) -> impl Iterator<Item = (&'static [u8], &[u8])> {
        let since = self.last_modified.iter();
        let since = since.map(|time| (&b"If-Modified-Since"[..], &time[..]));
        let other = self.etag.iter();
        let rest = self.rest.iter().flatten();
        since
            .chain(other.map(|etag| (&b"If-None-Match"[..], &etag[..])))
            .chain(rest.map(|(name, value)| (*name, &value[..])))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.last_modified.is_none() && self.etag.is_none()
    }
}
