//! The validators of a stored response, for conditional requests to the upstream (RFC 9110
//! sections 8.8 and 13.1).

use bytes::Bytes;

/// The validators of a stored response.
#[derive(Clone, Debug, Default)]
pub struct Validators {
    pub(super) last_modified: Option<Bytes>,
    pub(super) etag: Option<Bytes>,
    /// The `Range` and `If-Range` fields that ask for the rest of a response whose beginning is
    /// stored.
    pub(super) rest: Option<[(&'static [u8], Bytes); 2]>,
}

impl Validators {
    pub(crate) fn last_modified(&self) -> Option<&Bytes> {
        self.last_modified.as_ref()
    }

    pub(crate) fn etag(&self) -> Option<&Bytes> {
        self.etag.as_ref()
    }

    /// The fields that make the request to the upstream conditional.
    pub fn conditions(&self) -> impl Iterator<Item = (&'static [u8], &[u8])> {
        let since = self.last_modified.iter();
        let since = since.map(|time| (&b"If-Modified-Since"[..], &time[..]));
        let etag = self.etag.iter();
        let rest = self.rest.iter().flatten();
        since
            .chain(etag.map(|etag| (&b"If-None-Match"[..], &etag[..])))
            .chain(rest.map(|(name, value)| (*name, &value[..])))
    }

    /// Whether there is no validator.
    pub(super) fn is_empty(&self) -> bool {
        self.last_modified.is_none() && self.etag.is_none()
    }
}
