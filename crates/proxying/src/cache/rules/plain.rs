//! A second, simple implementation of freshness by the text of RFC 9111. Its results for random
//! heads are compared with those of `storing` and `reuse`.

use crate::cache::rules::Policy;
use crate::cache::rules::reuse::{self, Reuse, ReuseRequest};
use crate::cache::rules::storing::{self, ExchangeTimes, StorageRequest};

const NOW: i64 = 1_000_000_000; // Sun, 09 Sep 2001 01:46:40 GMT

/// Dates with their offsets from [`NOW`] in seconds; `None` for an invalid date.
const DATES: [(&str, Option<i64>); 9] = [
    ("Sun, 09 Sep 2001 01:46:40 GMT", Some(0)),
    ("Sun, 09 Sep 2001 01:46:30 GMT", Some(-10)),
    ("Sun, 09 Sep 2001 01:45:00 GMT", Some(-100)),
    ("Sun, 09 Sep 2001 01:46:50 GMT", Some(10)),
    ("Sunday, 09-Sep-01 01:48:20 GMT", Some(100)),
    ("Sun Sep  9 01:47:00 2001", Some(20)),
    ("Sun, 09 Sep 2001 01:46:50 UTC", None),
    ("0", None),
    ("Sun, 09 Sep 2001 1:46:50 GMT", None),
];

const AGES: [(&str, i64); 8] = [
    ("0", 0),
    ("5", 5),
    ("15", 15),
    ("0, 50", 0),
    ("50, 0", 50),
    ("x", 0),
    ("-4", 0),
    ("1.5", 0),
];

const DIRECTIVES: [&str; 22] = [
    "max-age=10",
    "max-age=0",
    "max-age=30",
    "max-age=\"20\"",
    "max-age=-5",
    "max-age='9'",
    "max-age=99999999999999999999",
    "MAX-AGE=7",
    "s-maxage=12",
    "s-maxage=0",
    "public",
    "private",
    "private=\"x\"",
    "no-cache",
    "no-cache=\"x, y\"",
    "no-store",
    "must-revalidate",
    "proxy-revalidate",
    "must-understand",
    "stale-while-revalidate=6",
    "stale-if-error=8",
    "ext=\"a, no-store, max-age=1\"",
];

const STATUSES: [u16; 10] = [200, 203, 204, 206, 302, 304, 404, 500, 599, 103];

/// The source of the numbers from which a case is drawn.
enum DrawnNumbers<'a> {
    /// A generator (splitmix64), which gives the same numbers for the same seed.
    #[cfg(test)]
    Seed(u64),
    /// One number for each byte, then zeros.
    Bytes(std::slice::Iter<'a, u8>),
}

impl DrawnNumbers<'_> {
    fn next(&mut self) -> u64 {
        match self {
            #[cfg(test)]
            DrawnNumbers::Seed(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = *state;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                z ^ (z >> 31)
            }
            DrawnNumbers::Bytes(bytes) => bytes.next().copied().unwrap_or(0).into(),
        }
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A response and a later request for it.
#[derive(Debug, Default)]
struct Case {
    status: u16,
    fields: Vec<(&'static str, String)>,
    /// The lines of Cache-Control, each a list of directives.
    control: Vec<Vec<&'static str>>,
    /// Seconds from [`NOW`] of the field Expires; `Some(None)` if the date is invalid.
    expires: Option<Option<i64>>,
    /// Seconds from [`NOW`] of the field Date; `Some(None)` if the date is invalid.
    date: Option<Option<i64>>,
    age: Option<i64>,
    /// Seconds from [`NOW`] of the field Last-Modified; `Some(None)` if the date is invalid.
    modified: Option<Option<i64>>,
    has_etag: bool,
    has_cookie: bool,
    varies_by_all: bool,
    is_authorized: bool,
    /// Seconds between the request and the arrival of the response.
    delay: i64,
    /// [`Policy::heuristic_percent`].
    heuristic: u32,
    /// [`Policy::stale_if_error`].
    stale_if_error: u32,
    /// The freshness lifetime that the configuration assigns, in seconds.
    assigned: Option<u64>,
    /// Seconds after its arrival at which the response is requested again.
    later: i64,
}

impl Case {
    fn random(random: &mut DrawnNumbers<'_>) -> Case {
        let mut case = Case {
            status: random.of(&STATUSES),
            is_authorized: random.one_in(6),
            delay: random.of(&[0, 0, 0, 3]),
            heuristic: random.of(&[0, 10]),
            stale_if_error: random.of(&[0, 60]),
            assigned: random.of(&[None, None, Some(4)]),
            later: random.of(&[0, 1, 5, 9, 10, 11, 13, 20, 70]),
            ..Case::default()
        };
        if random.one_in(2) {
            case.status = 200;
        }
        for _ in 0..random.below(3) {
            let count = random.below(3) + 1;
            let line: Vec<_> = (0..count).map(|_| random.of(&DIRECTIVES)).collect();
            let separator = random.of(&[",", ", ", " ,, "]);
            case.fields.push(("Cache-Control", line.join(separator)));
            case.control.push(line);
        }
        let mut date = |random: &mut DrawnNumbers<'_>, name: &'static str| {
            let (text, seconds) = random.of(&DATES);
            case.fields.push((name, text.to_owned()));
            Some(seconds)
        };
        if random.one_in(3) {
            case.expires = date(random, "Expires");
        }
        if !random.one_in(3) {
            case.date = date(random, "date");
        }
        if random.one_in(3) {
            case.modified = date(random, "Last-Modified");
        }
        if random.one_in(3) {
            let (text, age) = random.of(&AGES);
            case.fields.push(("AGE", text.to_owned()));
            case.age = Some(age);
        }
        case.has_etag = random.one_in(3);
        if case.has_etag {
            case.fields.push(("ETag", "\"a\"".to_owned()));
        }
        case.has_cookie = random.one_in(12);
        if case.has_cookie {
            case.fields.push(("Set-Cookie", "a=b".to_owned()));
        }
        if random.one_in(6) {
            let vary = random.of(&["Foo", "*", "a, *", ",*,"]);
            case.varies_by_all = vary.contains('*');
            case.fields.push(("Vary", vary.to_owned()));
        }
        case
    }

    fn has(&self, directive: &str) -> bool {
        let mut all = self.control.iter().flatten();
        all.any(|it| it.eq_ignore_ascii_case(directive))
    }

    /// The seconds of the first directive with this name; `None` if they are invalid.
    fn seconds(&self, name: &str) -> Option<i64> {
        let mut all = self.control.iter().flatten();
        let text = all.find_map(|it| {
            let (found, value) = it.split_once('=')?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })?;
        let text = text.trim_matches('"');
        if text.is_empty() || !text.chars().all(|letter| letter.is_ascii_digit()) {
            return Some(0);
        }
        Some(text.parse().unwrap_or(i64::MAX).min(1 << 31))
    }

    /// Whether the response may be stored: a list of reasons against it (section 3).
    fn may_be_stored(&self) -> bool {
        if self.status < 200 || self.status == 206 || self.status == 304 {
            return false;
        }
        let knows_status = self.status != 599;
        if self.has("must-understand") {
            if !knows_status {
                return false;
            }
        } else if self.has("no-store") {
            return false;
        }
        if self.has("private") || self.has_cookie || self.varies_by_all {
            return false;
        }
        let allows =
            self.has("public") || self.has("must-revalidate") || self.seconds("s-maxage").is_some();
        allows || !self.is_authorized
    }

    /// Section 4.2.1: the freshness lifetime in seconds, and whether the response states it.
    fn lifetime(&self) -> Option<(i64, bool)> {
        if let Some(seconds) = self.seconds("s-maxage") {
            return Some((seconds, true));
        }
        if let Some(seconds) = self.seconds("max-age") {
            return Some((seconds, true));
        }
        let date = self.date.flatten().unwrap_or(0);
        match self.expires {
            Some(Some(expires)) => return Some(((expires - date).max(0), true)),
            Some(None) => return Some((0, true)),
            None => {}
        }
        if let Some(seconds) = self.assigned {
            return Some((i64::try_from(seconds).unwrap(), false));
        }
        let by_status = [200, 203, 204, 404].contains(&self.status);
        let since = date - self.modified.flatten()?;
        if self.heuristic == 0 || since <= 0 || !(by_status || self.has("public")) {
            return None;
        }
        Some((since * i64::from(self.heuristic) / 100, false))
    }

    /// Section 4.2.3.
    fn initial_age(&self) -> i64 {
        let apparent = self.date.flatten().map_or(0, |date| (0 - date).max(0));
        let corrected = self.age.unwrap_or(0) + self.delay;
        apparent.max(corrected)
    }

    /// The expected outcome: `None` if the response is not stored, else how it may be used.
    fn outcome(&self) -> Option<Outcome> {
        if !self.may_be_stored() {
            return None;
        }
        let lifetime = self.lifetime();
        let has_validator = self.has_etag || self.modified.flatten().is_some();
        let can_ask = self.status == 200 && has_validator;
        if lifetime.is_none() && !can_ask {
            return None;
        }
        let (seconds, is_explicit) = lifetime.unwrap_or((self.initial_age(), false));
        let needs_validation = self.has("no-cache");
        let at_arrival = self.initial_age();
        let age = at_arrival + self.later;
        let strict = self.has("must-revalidate") || self.has("proxy-revalidate");
        let while_updating = self.seconds("stale-while-revalidate");
        let if_error = self.seconds("stale-if-error");
        let by_s_maxage =
            self.seconds("s-maxage").is_some() && while_updating.is_none() && if_error.is_none();
        let mut updating = while_updating.unwrap_or(0);
        let mut error = if_error.unwrap_or(if is_explicit && !by_s_maxage {
            i64::from(self.stale_if_error)
        } else {
            0
        });
        if strict || needs_validation {
            (updating, error) = (0, 0);
        }
        let is_fresh_at_first = seconds > at_arrival && !needs_validation;
        if !is_fresh_at_first && !can_ask && updating == 0 {
            return None;
        }
        // A response that must be validated is stale from its arrival on.
        let late = if needs_validation {
            self.later
        } else {
            age - seconds
        };
        Some(Outcome {
            age,
            is_fresh: seconds > age && !needs_validation,
            while_updating: updating > 0 && late <= updating,
            for_failures: error > 0 && late <= error,
        })
    }
}

/// How a stored response may be used for the later request.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    age: i64,
    is_fresh: bool,
    while_updating: bool,
    for_failures: bool,
}

/// The outcome of a case by the rules under test.
fn ruled(case: &Case) -> Option<Outcome> {
    let policy = Policy {
        heuristic_percent: case.heuristic,
        stale_if_error: case.stale_if_error,
        stale_while_revalidate: 0,
        reload_interval: 0,
    };
    let fields = case.fields.iter();
    let pairs = fields.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let asked = StorageRequest {
        is_authorized: case.is_authorized,
        has_no_store: false,
        is_part_by_key: false,
    };
    let received = NOW * 1000;
    let exchanged = ExchangeTimes {
        requested: received - case.delay * 1000,
        received,
    };
    let stored = storing::judge(case.status, pairs, asked, exchanged, case.assigned, &policy)?;
    let now = received + case.later * 1000;
    let decided = reuse::decide(&stored, &ReuseRequest::default(), now, &policy);
    let beyond = match decided {
        Reuse::Ask(beyond) => beyond,
        Reuse::Fresh => reuse::StaleUses::default(),
        other => panic!("{other:?}"),
    };
    Some(Outcome {
        age: i64::try_from(reuse::age(&stored, now)).unwrap(),
        is_fresh: decided == Reuse::Fresh,
        while_updating: beyond.while_updating,
        for_failures: beyond.for_failures,
    })
}

/// The outcome of a case drawn from these numbers. Panics if the two implementations differ.
fn compared(random: &mut DrawnNumbers<'_>) -> Option<Outcome> {
    let case = Case::random(random);
    let (mut expected, ruled) = (case.outcome(), ruled(&case));
    if let Some(expected) = &mut expected
        && expected.is_fresh
    {
        // A fresh response is not used stale.
        expected.while_updating = false;
        expected.for_failures = false;
    }
    assert_eq!(ruled, expected, "{case:?}");
    ruled
}

/// Compares both implementations for a case drawn from these bytes.
///
/// # Panics
/// If they differ.
pub(in crate::cache) fn compare(bytes: &[u8]) {
    compared(&mut DrawnNumbers::Bytes(bytes.iter()));
}

#[test]
fn both_say_the_same() {
    let mut counts = [0; 5];
    for seed in 0..200_000 {
        let kind = match compared(&mut DrawnNumbers::Seed(seed)) {
            None => 0,
            Some(Outcome { is_fresh: true, .. }) => 1,
            Some(Outcome {
                while_updating: true,
                ..
            }) => 2,
            Some(Outcome {
                for_failures: true, ..
            }) => 3,
            Some(_) => 4,
        };
        counts[kind] += 1;
    }
    // Every outcome has occurred often.
    assert!(counts.iter().all(|count| *count > 1000), "{counts:?}");
}
