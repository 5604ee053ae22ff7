//! Whether a response may be stored and how long it is fresh, from its head.
//!
//! By nginx's rules: `X-Accel-Expires` takes precedence over `Cache-Control`, which takes
//! precedence over `Expires`, and a directive of `Cache-Control` counts at any position in the
//! value. If the head states no lifetime, `*_cache_valid` applies. Other rules of RFC 9111 are not
//! applied here.

use proto::header::{KnownField, NameSet};

/// The maximum length in bytes of the `Vary` of a response that is stored, as in nginx.
const VARY_LENGTH_MAX: usize = 128;

/// How long a response is fresh by its head, and whether it may be stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Freshness {
    /// The response must not be shared: it sets a cookie, has `Vary: *` or a `Vary` that is too
    /// long to store, or has fields that cannot be parsed.
    is_private: bool,
    /// `Cache-Control` forbids storing the response.
    no_cache: bool,
    /// `Expires` is in the past or invalid.
    is_expired: bool,
    /// When the response becomes stale, in seconds since 1970, if the head states it.
    pub(super) valid_until: Option<i64>,
    /// Seconds for which the stale response may be used while the entry is updated
    /// (`stale-while-revalidate`).
    pub(super) updating: u32,
    /// Seconds for which the stale response may be used if the upstream fails (`stale-if-error`).
    pub(super) error: u32,
    /// All values of `Vary`.
    pub(super) vary: Vec<u8>,
    /// The head has an `X-Accel-Expires`, which takes precedence.
    has_accel_expires: bool,
}

impl Freshness {
    /// Evaluates these header fields, except for those that `*_ignore_headers` names. `now` is in
    /// seconds since 1970.
    pub(super) fn of<'a>(
        fields: impl Iterator<Item = (KnownField, &'a [u8])>,
        ignored: &NameSet,
        now: i64,
    ) -> Freshness {
        let mut freshness = Freshness::default();
        for (known, value) in fields.filter(|(known, _)| !ignored.contains_known(*known)) {
            match known {
                KnownField::SetCookie => freshness.is_private = true,
                KnownField::XAccelExpires => freshness.take_accel_expires(value, now),
                KnownField::Expires => freshness.take_expires(value, now),
                KnownField::CacheControl => freshness.take_cache_control(value, now),
                KnownField::Vary => freshness.take_vary(value),
                _ => {}
            }
        }
        freshness
    }

    /// Whether the head allows storing the response.
    pub(super) fn may_store(&self) -> bool {
        !self.is_private && !self.no_cache && !self.is_expired
    }

    /// Whether `Cache-Control` forbids storing the response.
    pub(super) fn forbids(&self) -> bool {
        self.no_cache
    }

    /// Takes an `X-Accel-Expires`: seconds from `now`, or behind an `@` seconds since 1970.
    fn take_accel_expires(&mut self, value: &[u8], now: i64) {
        self.has_accel_expires = true;
        let until = match value.strip_prefix(b"@") {
            Some(text) => number(text),
            None => match number(value) {
                Some(0) => {
                    self.is_private = true;
                    return;
                }
                seconds => seconds.map(|seconds| now.saturating_add(seconds)),
            },
        };
        if let Some(until) = until {
            self.valid_until = Some(until).filter(|until| *until != 0);
            self.no_cache = false;
            self.is_expired = false;
        }
    }

    fn take_expires(&mut self, value: &[u8], now: i64) {
        if self.valid_until.is_some() {
            return;
        }
        match proto::date::parse_http(value) {
            Some(time) if time >= now => self.valid_until = Some(time),
            _ => self.is_expired = true,
        }
    }

    fn take_cache_control(&mut self, value: &[u8], now: i64) {
        if !(self.valid_until.is_some() && self.has_accel_expires) {
            let forbids = ["no-cache", "no-store", "private"];
            if forbids.iter().any(|name| behind(value, name).is_some()) {
                self.no_cache = true;
                return;
            }
            let age = behind(value, "s-maxage=").or_else(|| behind(value, "max-age="));
            match age.map(delta_seconds) {
                None => {}
                Some(None) => {
                    self.is_private = true;
                    return;
                }
                Some(Some(0)) => {
                    self.no_cache = true;
                    return;
                }
                Some(Some(seconds)) => {
                    self.valid_until = Some(now.saturating_add(seconds));
                    self.is_expired = false;
                }
            }
        }
        let seconds_of = |name: &str| behind(value, name).map(delta_seconds);
        match seconds_of("stale-while-revalidate=") {
            None => {}
            Some(None) => {
                self.is_private = true;
                return;
            }
            Some(Some(seconds)) => {
                self.updating = u32::try_from(seconds).unwrap_or(u32::MAX);
                self.error = self.updating;
            }
        }
        match seconds_of("stale-if-error=") {
            None => {}
            Some(None) => self.is_private = true,
            Some(Some(seconds)) => self.error = u32::try_from(seconds).unwrap_or(u32::MAX),
        }
    }

    fn take_vary(&mut self, value: &[u8]) {
        if value == b"*" {
            self.is_private = true;
            return;
        }
        if !self.vary.is_empty() {
            self.vary.extend_from_slice(b", ");
        }
        self.vary.extend_from_slice(value);
        self.is_private |= self.vary.len() > VARY_LENGTH_MAX;
    }
}

/// Returns the bytes behind the first occurrence of `text`, whose case does not matter.
fn behind<'a>(value: &'a [u8], text: &str) -> Option<&'a [u8]> {
    let text = text.as_bytes();
    let mut windows = value.windows(text.len());
    let at = windows.position(|window| window.eq_ignore_ascii_case(text))?;
    value.get(at + text.len()..)
}

/// Parses the digits up to a comma, a semicolon, a space or the end.
fn delta_seconds(text: &[u8]) -> Option<i64> {
    let ends = |byte: &u8| matches!(byte, b',' | b';' | b' ');
    let digits = text.split(ends).next().unwrap_or_default();
    let mut seconds = 0_i64;
    for digit in digits {
        let digit = i64::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?);
        seconds = seconds.saturating_mul(10).saturating_add(digit);
    }
    Some(seconds)
}

/// Parses a number that has digits only and fits into 63 bits.
fn number(text: &[u8]) -> Option<i64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000_000; // Sun, 09 Sep 2001 01:46:40 GMT

    fn of(fields: &[(KnownField, &str)], ignored: &[&str]) -> Freshness {
        let fields = fields
            .iter()
            .map(|(known, value)| (*known, value.as_bytes()));
        let ignored = ignored.iter().map(|name| name.as_bytes()).collect();
        Freshness::of(fields, &ignored, NOW)
    }

    /// Each expectation is the behavior of nginx 1.31 for such a response.
    #[test]
    fn heads_say_whether_and_how_long() {
        use KnownField::{CacheControl, Expires, SetCookie, XAccelExpires};
        let past = "Sun, 09 Sep 2001 01:46:39 GMT";
        let soon = "Sun, 09 Sep 2001 01:46:50 GMT";
        for (fields, expected) in [
            (&[][..], Some(None)),
            (&[(CacheControl, "max-age=5")], Some(Some(5))),
            (&[(CacheControl, "Max-Age=5, s-maxage=7")], Some(Some(7))),
            (&[(CacheControl, "max-age=0")], None),
            (&[(CacheControl, "max-age=x")], None),
            (&[(CacheControl, "max-age=\"5\"")], None),
            (&[(CacheControl, "public, no-cache=\"a\"")], None),
            (&[(CacheControl, "PRIVATE")], None),
            (&[(Expires, soon)], Some(Some(10))),
            (&[(Expires, past)], None),
            (&[(Expires, "0")], None),
            (
                &[(Expires, past), (CacheControl, "max-age=3")],
                Some(Some(3)),
            ),
            (
                &[(CacheControl, "max-age=3"), (Expires, past)],
                Some(Some(3)),
            ),
            (
                &[(XAccelExpires, "4"), (CacheControl, "no-store")],
                Some(Some(4)),
            ),
            (
                &[(CacheControl, "no-store"), (XAccelExpires, "4")],
                Some(Some(4)),
            ),
            (&[(CacheControl, "max-age=9"), (XAccelExpires, "0")], None),
            (&[(XAccelExpires, "@1000000006")], Some(Some(6))),
            (&[(XAccelExpires, "nonsense")], Some(None)),
            (&[(SetCookie, "a=b"), (CacheControl, "max-age=9")], None),
        ] {
            let freshness = of(fields, &[]);
            let valid = freshness.valid_until.map(|until| until - NOW);
            assert_eq!(
                freshness.may_store().then_some(valid),
                expected,
                "{fields:?}"
            );
        }
    }

    #[test]
    fn what_is_ignored_says_nothing() {
        let fields = [
            (KnownField::SetCookie, "a=b"),
            (KnownField::CacheControl, "private"),
        ];
        assert!(!of(&fields, &["Set-Cookie"]).may_store());
        assert!(of(&fields, &["set-cookie", "Cache-Control"]).may_store());
    }

    #[test]
    fn stale_answers_have_their_time() {
        let freshness = of(
            &[(
                KnownField::CacheControl,
                "max-age=1, stale-while-revalidate=2",
            )],
            &[],
        );
        assert_eq!((freshness.updating, freshness.error), (2, 2));
        let freshness = of(
            &[(KnownField::CacheControl, "stale-if-error=3, max-age=1")],
            &[],
        );
        assert_eq!((freshness.updating, freshness.error), (0, 3));
    }

    #[test]
    fn lines_of_vary_are_one() {
        let vary = |lines: &[&'static str]| {
            let lines: Vec<_> = lines.iter().map(|line| (KnownField::Vary, *line)).collect();
            let freshness = of(&lines, &[]);
            freshness.may_store().then_some(freshness.vary)
        };
        assert_eq!(vary(&["a", "b, c"]), Some(b"a, b, c".to_vec()));
        assert_eq!(vary(&["*"]), None);
        let long: &'static str = "x".repeat(VARY_LENGTH_MAX + 1).leak();
        assert_eq!(vary(&[long]), None);
    }
}
