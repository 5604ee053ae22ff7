//! Numbers in requests that are drawn at random for each request, so that a run does not repeat the
//! same request.
//!
//! They are written as ranges in the syntax of curl(1), `[001-100]`. Both ends must have the same
//! number of digits. Thus all requests from one template have the same length, and only the digits
//! are overwritten.

use crate::schedule::Random;

/// Maximum number of digits of a number, so that it fits into 64 bits.
const DIGITS_MAX: usize = 18;

/// A number in a request's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomNumber {
    /// The offset of its first digit.
    offset: usize,
    /// Number of digits, including leading zeros.
    digits: usize,
    /// The smallest value.
    first: u64,
    /// Number of possible values.
    count: u64,
}

impl RandomNumber {
    /// The same number after the request has been prefixed with `by` bytes.
    pub(crate) fn moved(self, by: usize) -> RandomNumber {
        RandomNumber {
            offset: self.offset + by,
            ..self
        }
    }

    /// Overwrites the number with a random one from its range, uniformly distributed.
    pub(crate) fn draw(&self, bytes: &mut [u8], random: &mut Random) {
        let mut number = self.first + random.below(self.count);
        let place = bytes.get_mut(self.offset..self.offset + self.digits);
        for digit in place.unwrap_or_default().iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
    }
}

/// Parses the ranges in a text. Returns the text with the first number of each range, and the
/// positions of the numbers. Text that only resembles a range, such as an IPv6 address, `[1-10]` or
/// `[9-0]`, stays as it is.
#[must_use]
pub fn ranges(text: &str) -> (String, Vec<RandomNumber>) {
    let mut plain = String::with_capacity(text.len());
    let mut drawn = Vec::new();
    let mut rest = text;
    while let Some(open) = rest.find('[') {
        let (before, range) = rest.split_at(open);
        plain.push_str(before);
        let Some((digits, first, last)) = range.get(1..).and_then(range_at) else {
            plain.push('[');
            rest = range.get(1..).unwrap_or_default();
            continue;
        };
        drawn.push(RandomNumber {
            offset: plain.len(),
            digits,
            first,
            count: last - first + 1,
        });
        plain.push_str(range.get(1..=digits).unwrap_or_default());
        rest = range.get(2 * digits + 3..).unwrap_or_default();
    }
    plain.push_str(rest);
    (plain, drawn)
}

/// Parses a range `FIRST-LAST]` at the start of `text`: the number of digits, and both numbers.
fn range_at(text: &str) -> Option<(usize, u64, u64)> {
    let (range, _) = text.split_once(']')?;
    let (first, last) = range.split_once('-')?;
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if first.len() != last.len() || first.len() > DIGITS_MAX || !is_number(first) {
        return None;
    }
    let numbers = (first.parse().ok()?, last.parse().ok()?);
    (is_number(last) && numbers.0 <= numbers.1).then_some((first.len(), numbers.0, numbers.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_and_drawn() {
        let (text, drawn) = ranges("/[07-11].html?v=[100-999]&w=[5-5]");
        assert_eq!(text, "/07.html?v=100&w=5");
        let mut random = Random::new(1);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let mut bytes = text.clone().into_bytes();
            for number in &drawn {
                number.draw(&mut bytes, &mut random);
            }
            let text = String::from_utf8(bytes).unwrap();
            let (page, version) = text.split_once(".html?v=").unwrap();
            let version = version.strip_suffix("&w=5").unwrap();
            assert!(
                (100..=999).contains(&version.parse::<u32>().unwrap()),
                "{text}"
            );
            seen.insert(page.to_owned());
        }
        let pages: Vec<&str> = seen.iter().map(String::as_str).collect();
        assert_eq!(pages, ["/07", "/08", "/09", "/10", "/11"]);
    }

    #[test]
    fn what_is_no_range_stays() {
        for text in [
            "",
            "[",
            "[]",
            "[-]",
            "[1-10]",
            "[9-1]",
            "[+1-+2]",
            "[a-b]",
            "[::1]",
            "[1-2",
            "1-2]",
            "[0000000000000000000-9999999999999999999]",
        ] {
            assert_eq!(ranges(text), (text.to_owned(), Vec::new()), "{text}");
        }
        let (text, drawn) = ranges("[[1-2]]é[3-4]");
        assert_eq!((text.as_str(), drawn.len()), ("[1]é3", 2));
    }
}
