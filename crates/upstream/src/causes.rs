//! Why peers fail, and for which of these reasons another is asked.

/// Why a try failed, or a set of such causes: what `*_next_upstream` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Causes(u16);

impl Causes {
    /// The set without any cause.
    pub const NONE: Causes = Causes(0);
    /// The connection could not be made, or has broken.
    pub const ERROR: Causes = Causes(1);
    /// Nothing came in time.
    pub const TIMEOUT: Causes = Causes(1 << 1);
    /// What came is no answer.
    pub const INVALID_HEADER: Causes = Causes(1 << 2);
    /// The request may have changed something, which a second one would do again.
    pub const NON_IDEMPOTENT: Causes = Causes(1 << 3);
    /// No peer was left to try. No directive names it.
    pub const NO_LIVE: Causes = Causes(1 << 4);
    /// What a line that names no cause stands for.
    pub const OFF: Causes = Causes(1 << 5);
    /// The answer 500 of the causes.
    pub const HTTP_500: Causes = Causes(1 << 6);
    /// The answer 502 of the causes.
    pub const HTTP_502: Causes = Causes(1 << 7);
    /// The answer 503 of the causes.
    pub const HTTP_503: Causes = Causes(1 << 8);
    /// The answer 504 of the causes.
    pub const HTTP_504: Causes = Causes(1 << 9);
    /// The answer 403 of the causes.
    pub const HTTP_403: Causes = Causes(1 << 10);
    /// The answer 404 of the causes.
    pub const HTTP_404: Causes = Causes(1 << 11);
    /// The answer 429 of the causes.
    pub const HTTP_429: Causes = Causes(1 << 12);
    /// Of a cache alone, which then gives what it has.
    pub const UPDATING: Causes = Causes(1 << 13);

    /// All ways in which no upstream answers.
    pub const FAILURES: Causes = Causes::ERROR
        .with(Causes::TIMEOUT)
        .with(Causes::INVALID_HEADER)
        .with(Causes::NO_LIVE);

    /// As a number of 14 bits.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// Those that [`Causes::bits`] has given.
    pub fn from_bits(bits: u16) -> Causes {
        Causes(bits)
    }

    /// The cause that an answer with this status may be.
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

    /// Whether the peer is not to blame: what it lacks, another may have.
    pub fn is_harmless(self) -> bool {
        matches!(self, Causes::HTTP_403 | Causes::HTTP_404)
    }

    /// The causes of both sets together.
    #[must_use]
    pub const fn with(self, other: Causes) -> Causes {
        Causes(self.0 | other.0)
    }

    /// Whether all of the other causes are among these.
    pub fn contains(self, other: Causes) -> bool {
        self.0 & other.0 == other.0
    }
}
