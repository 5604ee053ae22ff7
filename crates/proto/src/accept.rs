//! `Accept-Encoding` as interpreted by nginx, and browsers that nginx does not send compressed
//! responses to.
//!
//! nginx searches for one coding and does not negotiate: the first mention of `gzip` decides, and
//! `*` is ignored. [`quality`] is for code that chooses among several codings.

use memchr::memmem;

/// Whether the value allows gzip.
pub fn gzip(value: &[u8]) -> bool {
    value.starts_with(b"gzip,") || coding(value, b"gzip")
}

/// The quality value of a content coding in thousandths (RFC 9110, section 12.4.2); 0 if the value
/// does not [allow](coding) the coding.
pub fn quality(value: &[u8], name: &[u8]) -> u16 {
    const WHOLE: u16 = 1000;
    if !coding(value, name) {
        return 0;
    }
    let Some(after) = after_mention(value, name) else {
        return WHOLE;
    };
    let end = memchr::memchr(b',', after).unwrap_or(after.len());
    let text = after.get(..end).unwrap_or_default();
    let text: Vec<u8> = text.iter().copied().filter(|byte| *byte != b' ').collect();
    match text.as_slice() {
        [b';', b'q' | b'Q', b'=', b'0', b'.', digits @ ..] => digits
            .iter()
            .zip([100, 10, 1])
            .map(|(digit, weight)| u16::from(digit.wrapping_sub(b'0')) * weight)
            .sum::<u16>()
            .clamp(1, WHOLE),
        _ => WHOLE,
    }
}

/// Whether the value allows a content coding. The first mention, at the beginning or after a comma
/// or a space, decides by the text after it, which must be empty, a comma, or a quality above zero.
pub fn coding(value: &[u8], name: &[u8]) -> bool {
    let Some(after) = after_mention(value, name) else {
        return false;
    };
    let mut rest = trim(after);
    match rest.split_first() {
        None | Some((b',', _)) => return true,
        Some((b';', parameters)) => rest = trim(parameters),
        Some(_) => return false,
    }
    match rest.split_first() {
        None => true,
        Some((b'q' | b'Q', quality)) => quality.strip_prefix(b"=").is_some_and(is_above_zero),
        Some(_) => false,
    }
}

/// The text after the first mention of a coding.
fn after_mention<'v>(value: &'v [u8], name: &[u8]) -> Option<&'v [u8]> {
    let mut start = 0;
    loop {
        let rest = value.get(start..).unwrap_or_default();
        let found = rest
            .windows(name.len().max(1))
            .position(|text| text.eq_ignore_ascii_case(name))?;
        let end = start + found + name.len();
        if found == 0
            || rest
                .get(found - 1)
                .is_some_and(|byte| matches!(byte, b',' | b' '))
        {
            return Some(value.get(end..).unwrap_or_default());
        }
        start = end;
    }
}

/// Whether the text begins with a quality from `0.001` to `1` (RFC 9110, section 12.4.2). As in
/// nginx, the digits are added without regard to their place: `1.000` and `0.999` are accepted,
/// `1.001` is not.
fn is_above_zero(text: &[u8]) -> bool {
    let end = text
        .iter()
        .position(|byte| matches!(byte, b',' | b' '))
        .unwrap_or(text.len());
    let (first, fraction) = match text.get(..end).unwrap_or_default().split_first() {
        Some((digit @ (b'0' | b'1'), fraction)) => (u32::from(digit - b'0') * 100, fraction),
        _ => return false,
    };
    if fraction.is_empty() {
        return first > 0;
    }
    let Some(digits) = fraction.strip_prefix(b".") else {
        return false;
    };
    if digits.len() > 3 || !digits.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let sum = first
        + digits
            .iter()
            .map(|digit| u32::from(digit - b'0'))
            .sum::<u32>();
    (1..=100).contains(&sum)
}

/// Browsers that nginx distinguishes, by all `User-Agent` header lines of a request in order. Each
/// line can only add a browser, except that Opera removes Internet Explorer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Browser {
    /// Internet Explorer up to 10: the name must be followed by a version.
    pub msie: bool,
    /// Internet Explorer 4 to 6 without the service pack that fixed gzip.
    pub msie6: bool,
    /// Whether the browser is Chrome.
    pub chrome: bool,
    /// Whether the browser is Safari on macOS.
    pub safari: bool,
    opera: bool,
}

impl Browser {
    /// Adds the value of one header line.
    pub fn add(&mut self, user_agent: &[u8]) {
        let has = |name: &[u8]| memmem::find(user_agent, name).is_some();
        let version = memmem::find(user_agent, b"MSIE ")
            .and_then(|at| user_agent.get(at + b"MSIE ".len()..))
            .filter(|version| version.len() > b"5.".len());
        if let Some(version) = version {
            self.msie = true;
            self.msie6 |= match version {
                [b'4' | b'5', b'.', ..] => true,
                [b'6', b'.', _, rest @ ..] => memmem::find(rest, b"SV1").is_none(),
                _ => false,
            };
        }
        if has(b"Opera") {
            self.opera = true;
            self.msie = false;
            self.msie6 = false;
        }
        if !self.msie && !self.opera && !has(b"Gecko/") {
            let chrome = has(b"Chrome/");
            self.chrome |= chrome;
            self.safari |= !chrome && has(b"Safari/") && has(b"Mac OS X");
        }
    }
}

fn trim(mut bytes: &[u8]) -> &[u8] {
    while let Some(rest) = bytes.strip_prefix(b" ") {
        bytes = rest;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qualities() {
        for (value, expected) in [
            ("br", 1000),
            ("gzip, br;q=0.5, zstd", 500),
            ("br;q=1.000", 1000),
            ("br; q=0.8", 800),
            ("br;q=0.123,gzip", 123),
            ("br;q=0.001", 1),
            ("br;q=0", 0),
            ("gzip", 0),
        ] {
            assert_eq!(quality(value.as_bytes(), b"br"), expected, "{value}");
        }
    }

    #[test]
    fn gzip_is_allowed() {
        for value in [
            "gzip",
            "GZip",
            "gzip, deflate, br",
            "deflate, gzip",
            "deflate,gzip ,br",
            "gzip;",
            "gzip; ",
            "gzip; q=1",
            "gzip ; q=1.000",
            "gzip;Q=0.001",
            "gzip;q=0.5,identity",
            "gzip,;q=0",
            "x gzip",
            "xgzipgzip",
            "gzip;q=1 nonsense",
        ] {
            assert!(gzip(value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn gzip_is_not_allowed() {
        for value in [
            "",
            "*",
            "gzi",
            "xgzip",
            "gzipx",
            "x-gzip",
            "gzip;q=0",
            "gzip;q=0.000",
            "gzip;q=0.0000",
            "gzip;q=2",
            "gzip;q=1.001",
            "gzip;q=0.1234",
            "gzip;q=",
            "gzip;q",
            "gzip;q =1",
            "gzip;q= 1",
            "gzip;x=1",
            "gzip;q=0;x",
            "gzip;q=1x",
            "gzip=1",
        ] {
            assert!(!gzip(value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn old_browsers() {
        for (agent, expected) in [
            ("Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)", true),
            ("Mozilla/4.0 (compatible; MSIE 5.5; Windows 98)", true),
            (
                "Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1; SV1)",
                false,
            ),
            ("Mozilla/4.0 (compatible; MSIE 7.0; Windows NT 5.1)", false),
            (
                "Mozilla/4.0 (compatible; MSIE 6.0; X11; Linux) Opera 8.5",
                false,
            ),
            ("MSIE 6.", false),
            ("MSIE 6.0", true),
            ("curl/8", false),
        ] {
            let mut browser = Browser::default();
            browser.add(agent.as_bytes());
            assert_eq!(browser.msie6, expected, "{agent}");
        }
    }

    #[test]
    fn browsers_of_several_lines() {
        let of = |agents: &[&str]| {
            let mut browser = Browser::default();
            agents
                .iter()
                .for_each(|agent| browser.add(agent.as_bytes()));
            browser
        };
        let msie = "Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)";
        let chrome = "Mozilla/5.0 (Macintosh; Intel Mac OS X) Chrome/120.0 Safari/537.36";
        let opera = "Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.0; en) Opera 8.0";
        assert!(of(&["curl/8.0", msie]).msie6);
        assert!(of(&[msie, "curl/8.0"]).msie);
        assert!(!of(&[msie, opera]).msie);
        assert!(of(&[opera, msie]).msie);
        assert!(of(&[chrome, msie]).chrome);
        assert!(!of(&[msie, chrome]).chrome);
        assert!(!of(&[chrome]).safari);
        assert!(!of(&["MSIE 6"]).msie);
    }
}
