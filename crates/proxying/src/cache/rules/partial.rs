//! Parts of representations: RFC 9111, sections 3.3 and 3.4, and RFC 9110, section 14.

/// The range of a partial response, from a Content-Range that states the length of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub first: u64,
    /// The offset after the last byte.
    pub end: u64,
    /// The length of the whole.
    pub total: u64,
}

/// A single range that a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientRange {
    /// From the first offset to the second inclusive, or to the end.
    From(u64, Option<u64>),
    /// This many bytes from the end.
    Last(u64),
}

impl Part {
    /// Parses a Content-Range (RFC 9110, section 14.4).
    pub(crate) fn parse(content_range: &[u8]) -> Option<Part> {
        let text = std::str::from_utf8(content_range).ok()?;
        let (unit, rest) = text.split_once(' ')?;
        let (range, total) = rest.trim().split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let part = Part {
            first: number(first)?,
            end: number(last)?.checked_add(1)?,
            total: number(total)?,
        };
        let is_sound = part.first < part.end && part.end <= part.total;
        (unit.eq_ignore_ascii_case("bytes") && is_sound).then_some(part)
    }

    /// The number of bytes in the part.
    pub(crate) fn length(self) -> u64 {
        self.end - self.first
    }

    /// The bytes of the whole that a client requests, if this part contains all of them.
    pub(crate) fn cut(self, wanted: ClientRange) -> Option<Part> {
        let (first, end) = match wanted {
            ClientRange::From(first, last) => {
                let end = last.map_or(self.total, |last| last.saturating_add(1));
                (first, end.min(self.total))
            }
            ClientRange::Last(count) => (self.total.saturating_sub(count), self.total),
        };
        let has_all = self.first <= first && first < end && end <= self.end;
        has_all.then_some(Part {
            first,
            end,
            total: self.total,
        })
    }

    /// Whether `rest` completes this part: it begins at this part's end, goes to the end of the
    /// whole, and has the same length of the whole (section 3.4).
    pub(crate) fn is_completed_by(self, rest: Part) -> bool {
        self.first == 0
            && rest.first == self.end
            && rest.end == rest.total
            && rest.total == self.total
    }

    /// The value of the Content-Range for this part.
    pub(crate) fn text(self) -> String {
        format!("bytes {}-{}/{}", self.first, self.end - 1, self.total)
    }
}

impl ClientRange {
    /// Parses a Range with a single range (RFC 9110, section 14.1.2).
    pub(crate) fn parse(range: &[u8]) -> Option<ClientRange> {
        let text = std::str::from_utf8(range).ok()?;
        let (unit, range) = text.split_once('=')?;
        unit.eq_ignore_ascii_case("bytes").then_some(())?;
        let (first, last) = range.trim().split_once('-')?;
        match (first, last) {
            ("", last) => number(last)
                .filter(|count| *count > 0)
                .map(ClientRange::Last),
            (first, "") => Some(ClientRange::From(number(first)?, None)),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(ClientRange::From(first, Some(last)))
            }
        }
    }
}

/// Whether parts with these ETags belong to the same representation: both have an ETag, strong and
/// equal (section 3.4).
pub(crate) fn are_of_one(tag: Option<&[u8]>, other: Option<&[u8]>) -> bool {
    let is_strong = |tag: &[u8]| tag.starts_with(b"\"");
    tag.is_some_and(is_strong) && tag == other
}

fn number(text: &str) -> Option<u64> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(text: &str) -> Option<Part> {
        Part::parse(text.as_bytes())
    }

    /// RFC 9110, section 14.4.
    #[test]
    fn parts_are_sound() {
        let expected = Part {
            first: 0,
            end: 5,
            total: 10,
        };
        assert_eq!(part("bytes 0-4/10"), Some(expected));
        assert_eq!(part("Bytes 0-4/10"), Some(expected));
        assert_eq!(expected.text(), "bytes 0-4/10");
        for wrong in [
            "bytes 0-4/*",
            "bytes */10",
            "bytes 4-3/10",
            "bytes 0-10/10",
            "items 0-4/10",
            "bytes 0-4",
            "bytes +0-4/10",
            "bytes 0-18446744073709551615/18446744073709551615",
            "",
        ] {
            assert_eq!(part(wrong), None, "{wrong}");
        }
    }

    /// Section 3.3, and RFC 9110, section 14.1.2.
    #[test]
    fn a_part_gives_what_it_has() {
        let stored = part("bytes 4-9/10").unwrap();
        for (range, expected) in [
            ("bytes=4-9", Some("bytes 4-9/10")),
            ("bytes=6-8", Some("bytes 6-8/10")),
            ("bytes=6-", Some("bytes 6-9/10")),
            ("bytes=6-99", Some("bytes 6-9/10")),
            ("bytes=-6", Some("bytes 4-9/10")),
            ("bytes=-1", Some("bytes 9-9/10")),
            ("bytes=-7", None),
            ("bytes=3-5", None),
            ("bytes=10-", None),
            ("bytes=0-", None),
        ] {
            let wanted = ClientRange::parse(range.as_bytes()).unwrap();
            let cut = stored.cut(wanted).map(Part::text);
            assert_eq!(cut.as_deref(), expected, "{range}");
        }
        for wrong in [
            "bytes=",
            "bytes=-",
            "bytes=-0",
            "bytes=5-4",
            "bytes=0-1,3-4",
            "x=0-1",
        ] {
            assert_eq!(ClientRange::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    /// Section 3.4.
    #[test]
    fn parts_make_the_whole() {
        let begun = part("bytes 0-4/10").unwrap();
        assert!(begun.is_completed_by(part("bytes 5-9/10").unwrap()));
        for wrong in [
            "bytes 5-8/10",
            "bytes 4-9/10",
            "bytes 6-9/10",
            "bytes 5-10/11",
        ] {
            assert!(!begun.is_completed_by(part(wrong).unwrap()), "{wrong}");
        }
        let later = part("bytes 1-4/10").unwrap();
        assert!(!later.is_completed_by(part("bytes 5-9/10").unwrap()));
        assert!(are_of_one(Some(b"\"a\""), Some(b"\"a\"")));
        assert!(!are_of_one(Some(b"W/\"a\""), Some(b"W/\"a\"")));
        assert!(!are_of_one(Some(b"\"a\""), Some(b"\"b\"")));
        assert!(!are_of_one(None, None) && !are_of_one(Some(b"\"a\""), None));
    }
}
