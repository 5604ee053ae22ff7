//! The causes for which attempts fail, and for which another peer is tried.

/// A cause for which an attempt failed, or a set of causes, as `*_next_upstream` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Causes(u16);

impl Causes {
    /// The set without any cause.
    pub const NONE: Causes = Causes(0);
    /// The connection could not be made, or has broken.
    pub const ERROR: Causes = Causes(1);
    /// A timeout.
    pub const TIMEOUT: Causes = Causes(1 << 1);
    /// The response is invalid.
    pub const INVALID_HEADER: Causes = Causes(1 << 2);
    /// The request is non-idempotent and has been sent.
    pub const NON_IDEMPOTENT: Causes = Causes(1 << 3);
    /// No peer was left to try. No directive names it.
    pub const NO_LIVE: Causes = Causes(1 << 4);
    /// `off`.
    pub const OFF: Causes = Causes(1 << 5);
    /// A response with status 500.
    pub const HTTP_500: Causes = Causes(1 << 6);
    /// A response with status 502.
    pub const HTTP_502: Causes = Causes(1 << 7);
    /// A response with status 503.
    pub const HTTP_503: Causes = Causes(1 << 8);
    /// A response with status 504.
    pub const HTTP_504: Causes = Causes(1 << 9);
    /// A response with status 403.
    pub const HTTP_403: Causes = Causes(1 << 10);
    /// A response with status 404.
    pub const HTTP_404: Causes = Causes(1 << 11);
    /// A response with status 429.
    pub const HTTP_429: Causes = Causes(1 << 12);
    /// The entry is being updated (only for `*_cache_use_stale`).
    pub const UPDATING: Causes = Causes(1 << 13);

    /// All causes other than a status of the response.
    pub const FAILURES: Causes = Causes::ERROR
        .with(Causes::TIMEOUT)
        .with(Causes::INVALID_HEADER)
        .with(Causes::NO_LIVE);

    /// As a number of 14 bits.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// The set that [`Causes::bits`] has encoded.
    pub fn from_bits(bits: u16) -> Causes {
        Causes(bits)
    }

    /// The cause that a response with this status may count as.
    pub fn of_status(status: u16) -> Option<Causes> {
        Some(match status {
            500 => Causes::HTTP_500,
            502 => Causes::HTTP_502,
            503 => Causes::HTTP_503,
            504 => Causes::HTTP_504,
            403 => Causes::HTTP_403,
            404 => Causes::HTTP_404,
            429 => Causes::HTTP_429,
            _ => return None,
        })
    }

    /// Whether the cause does not count as a failure of the peer: the peer only lacks the requested
    /// resource, which another peer may have.
    pub fn is_harmless(self) -> bool {
        matches!(self, Causes::HTTP_403 | Causes::HTTP_404)
    }

    /// The causes of both sets together.
    #[must_use]
    pub const fn with(self, other: Causes) -> Causes {
        Causes(self.0 | other.0)
    }

    /// Whether this set contains all causes of `other`.
    pub fn contains(self, other: Causes) -> bool {
        self.0 & other.0 == other.0
    }
}
