//! The `Range` header (RFC 9110, section 14.2) with nginx's rules: a malformed header is
//! unsatisfiable (416), and ranges that would cost more than the whole are answered with the whole.
//!
//! Not here: `If-Range` (see [`crate::etag::if_range_holds`]) and the encoding of multipart
//! responses.

/// Bytes `start..end` of a representation; never empty, never beyond its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub start: u64,
    /// Offset after the last byte.
    pub end: u64,
}

impl ByteRange {
    /// The number of bytes in the range.
    #[allow(clippy::len_without_is_empty)] // It is never empty.
    pub fn len(self) -> u64 {
        self.end - self.start
    }
}

/// How to respond to a range request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeDecision {
    /// 200 with the whole representation.
    Whole,
    /// 206 with one range.
    One(ByteRange),
    /// 206 with `multipart/byteranges`, in this order.
    Many(Vec<ByteRange>),
    /// 416: no range can be satisfied.
    Unsatisfiable,
}

/// Parses the value of `Range` for a representation of `size` bytes. `ranges_max` is the directive
/// `max_ranges`, `None` if it is not configured: then several ranges whose total, with 256 bytes of
/// overhead each, exceeds the size by more than 4096 bytes are answered with the whole.
pub fn parse(value: &[u8], size: u64, ranges_max: Option<u32>) -> RangeDecision {
    let specs = match value.split_at_checked(b"bytes=".len()) {
        Some((unit, specs)) if !specs.is_empty() && unit.eq_ignore_ascii_case(b"bytes=") => specs,
        _ => return RangeDecision::Whole,
    };
    // Sizes are those of files: as in nginx, they fit into 63 bits.
    let size = size.min(i64::MAX as u64);
    let mut ranges = Ranges::default();
    for spec in specs.split(|&byte| byte == b',') {
        let Some(spec) = Spec::parse(spec) else {
            return RangeDecision::Unsatisfiable;
        };
        let (start, end) = spec.resolve(size);
        if start < end {
            let range = ByteRange { start, end };
            ranges.total = ranges.total.saturating_add(range.len());
            if ranges.total > i64::MAX as u64 {
                return RangeDecision::Unsatisfiable;
            }
            if ranges_max.is_some_and(|max| ranges.count >= max) {
                return RangeDecision::Whole;
            }
            ranges.push(range);
        } else if start == 0 {
            return RangeDecision::Whole;
        }
    }
    ranges.outcome(size, ranges_max)
}

/// The ranges found so far. The first is stored separately, so that the usual single range needs no
/// allocation.
#[derive(Default)]
struct Ranges {
    first: Option<ByteRange>,
    all: Vec<ByteRange>,
    count: u32,
    total: u64,
}

impl Ranges {
    fn push(&mut self, range: ByteRange) {
        self.count = self.count.saturating_add(1);
        match self.first {
            None => self.first = Some(range),
            Some(first) => {
                if self.all.is_empty() {
                    self.all.push(first);
                }
                self.all.push(range);
            }
        }
    }

    fn outcome(self, size: u64, ranges_max: Option<u32>) -> RangeDecision {
        let Some(first) = self.first else {
            return RangeDecision::Unsatisfiable;
        };
        if self.all.is_empty() {
            return RangeDecision::One(first);
        }
        let unbounded = ranges_max.is_none();
        let with_overhead = self.total.saturating_add(self.all.len() as u64 * 256);
        if self.total > size || (unbounded && with_overhead > size.saturating_add(4096)) {
            return RangeDecision::Whole;
        }
        RangeDecision::Many(self.all)
    }
}

/// One element of the list, not yet resolved against the size.
enum Spec {
    From(u64),
    FromTo(u64, u64),
    Last(u64),
}

impl Spec {
    fn parse(text: &[u8]) -> Option<Spec> {
        let text = trim(text);
        if let Some(length) = text.strip_prefix(b"-") {
            let (length, rest) = number(length)?;
            return trim(rest).is_empty().then_some(Spec::Last(length));
        }
        let (start, rest) = number(text)?;
        let rest = trim(trim(rest).strip_prefix(b"-")?);
        if rest.is_empty() {
            return Some(Spec::From(start));
        }
        let (end, rest) = number(rest)?;
        trim(rest).is_empty().then_some(Spec::FromTo(start, end))
    }

    /// Start and end within `size` bytes; if the element selects no byte, the end is not above the
    /// start.
    fn resolve(self, size: u64) -> (u64, u64) {
        match self {
            Spec::From(start) => (start, size),
            Spec::FromTo(start, last) => (start, last.saturating_add(1).min(size)),
            Spec::Last(length) => (size.saturating_sub(length), size),
        }
    }
}

/// Parses at least one digit, as a number of at most 63 bits; returns the number and the rest.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 {
        return None;
    }
    let (digits, rest) = text.split_at(digits);
    let mut number: i64 = 0;
    for digit in digits {
        number = number
            .checked_mul(10)?
            .checked_add(i64::from(digit - b'0'))?;
    }
    Some((number as u64, rest))
}

fn trim(mut text: &[u8]) -> &[u8] {
    while let Some(rest) = text.strip_prefix(b" ") {
        text = rest;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn many(ranges: &[(u64, u64)]) -> RangeDecision {
        RangeDecision::Many(
            ranges
                .iter()
                .map(|&(start, end)| ByteRange { start, end })
                .collect(),
        )
    }

    fn one(start: u64, end: u64) -> RangeDecision {
        RangeDecision::One(ByteRange { start, end })
    }

    #[test]
    fn of_a_thousand_bytes() {
        for (value, expected) in [
            ("bytes=0-499", one(0, 500)),
            ("BYTES=500-999", one(500, 1000)),
            ("bytes=-500", one(500, 1000)),
            ("bytes=9500-", RangeDecision::Unsatisfiable),
            ("bytes=0-0,-1", many(&[(0, 1), (999, 1000)])),
            ("bytes= 0 - 0 , - 1", RangeDecision::Unsatisfiable),
            ("bytes= 0 - 0 , -1 ", many(&[(0, 1), (999, 1000)])),
            ("bytes=0-", one(0, 1000)),
            ("bytes=0-99999", one(0, 1000)),
            ("bytes=-99999", one(0, 1000)),
            ("bytes=-0", RangeDecision::Unsatisfiable),
            ("bytes=999-", one(999, 1000)),
            ("bytes=1000-", RangeDecision::Unsatisfiable),
            ("bytes=5-4", RangeDecision::Unsatisfiable),
            ("bytes=5-4,1-2", one(1, 3)),
            ("bytes=2000-,1-2", one(1, 3)),
            ("bytes=1-2,5-4", one(1, 3)),
            ("bytes=500-600,601-999", many(&[(500, 601), (601, 1000)])),
            ("bytes=0-,0-", RangeDecision::Whole),
            ("bytes=0-999,1-1", RangeDecision::Whole),
            ("bytes=", RangeDecision::Whole),
            ("bytes", RangeDecision::Whole),
            ("octets=0-1", RangeDecision::Whole),
            ("bytes =0-1", RangeDecision::Whole),
            ("bytes=-", RangeDecision::Unsatisfiable),
            ("bytes=a-b", RangeDecision::Unsatisfiable),
            ("bytes=1", RangeDecision::Unsatisfiable),
            ("bytes=1-2-3", RangeDecision::Unsatisfiable),
            ("bytes=1-2,", RangeDecision::Unsatisfiable),
            ("bytes=,1-2", RangeDecision::Unsatisfiable),
            ("bytes=1-2;", RangeDecision::Unsatisfiable),
            ("bytes=9223372036854775807-", RangeDecision::Unsatisfiable),
            ("bytes=9223372036854775808-", RangeDecision::Unsatisfiable),
            ("bytes=0-9223372036854775808", RangeDecision::Unsatisfiable),
            ("bytes=0-9223372036854775807", one(0, 1000)),
        ] {
            assert_eq!(parse(value.as_bytes(), 1000, None), expected, "{value}");
        }
    }

    #[test]
    fn of_nothing() {
        for (value, expected) in [
            ("bytes=0-", RangeDecision::Whole),
            ("bytes=0-5", RangeDecision::Whole),
            ("bytes=-5", RangeDecision::Whole),
            ("bytes=1-", RangeDecision::Unsatisfiable),
        ] {
            assert_eq!(parse(value.as_bytes(), 0, None), expected, "{value}");
        }
    }

    #[test]
    fn bounds_on_their_number() {
        assert_eq!(parse(b"bytes=0-1", 1000, Some(0)), RangeDecision::Whole);
        assert_eq!(parse(b"bytes=0-1", 1000, Some(1)), one(0, 2));
        assert_eq!(parse(b"bytes=0-1,3-4", 1000, Some(1)), RangeDecision::Whole);
        assert_eq!(
            parse(b"bytes=0-1,3-4", 1000, Some(2)),
            many(&[(0, 2), (3, 5)])
        );
        // 20 ranges of one byte: 20 + 20 * 256 is more than 1000 + 4096, which matters unless
        // `max_ranges` is configured.
        let value = format!("bytes={}", vec!["1-1"; 20].join(","));
        assert_eq!(parse(value.as_bytes(), 1000, None), RangeDecision::Whole);
        assert!(
            matches!(parse(value.as_bytes(), 1000, Some(20)), RangeDecision::Many(ranges) if ranges.len() == 20)
        );
        assert!(
            matches!(parse(value.as_bytes(), 1044, None), RangeDecision::Many(ranges) if ranges.len() == 20)
        );
    }
}
