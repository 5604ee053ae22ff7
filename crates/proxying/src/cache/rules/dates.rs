//! HTTP dates in the strict syntax of RFC 9110, section 5.6.7.
//!
//! `proto::date` parses as leniently as nginx. Here only the three forms of the RFC are valid, in
//! any case of letters, since an invalid date must make a response stale (RFC 9111, section 5.3).

const MONTHS: [&[u8; 3]; 12] = [
    b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"oct", b"nov", b"dec",
];
const DAYS: [&[u8]; 7] = [
    b"monday",
    b"tuesday",
    b"wednesday",
    b"thursday",
    b"friday",
    b"saturday",
    b"sunday",
];
const DAYS_IN_MONTH: [i64; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// Parses a date in one of the three forms into seconds since 1970. `now`, in the same unit,
/// determines the century of a year with two digits.
pub(super) fn parse(value: &[u8], now: i64) -> Option<i64> {
    let mut text = Text(value);
    let name = text.letters();
    if text.take(b", ") {
        return if is_day(name, true) {
            imf_fixdate(text)
        } else if is_day(name, false) {
            rfc850_date(text, now)
        } else {
            None
        };
    }
    (is_day(name, true) && text.take(b" "))
        .then(|| asctime(text))
        .flatten()
}

/// Whether the name is a day of the week, in its short form of three letters or in full.
fn is_day(name: &[u8], is_short: bool) -> bool {
    DAYS.iter().any(|day| {
        let day = if is_short { day.get(..3) } else { Some(*day) };
        day.is_some_and(|day| day.eq_ignore_ascii_case(name))
    })
}

/// `06 Nov 1994 08:49:37 GMT`
fn imf_fixdate(mut text: Text<'_>) -> Option<i64> {
    let day = text.number(2)?;
    let month = text.take(b" ").then(|| text.month())??;
    let year = text.take(b" ").then(|| text.number(4))??;
    let seconds = text.take(b" ").then(|| text.time())??;
    text.ends_with_gmt()?;
    compose(year, month, day, seconds)
}

/// `06-Nov-94 08:49:37 GMT`. A year that would be more than 50 years ahead belongs to the century
/// before.
fn rfc850_date(mut text: Text<'_>, now: i64) -> Option<i64> {
    let day = text.number(2)?;
    let month = text.take(b"-").then(|| text.month())??;
    let of_century = text.take(b"-").then(|| text.number(2))??;
    let seconds = text.take(b" ").then(|| text.time())??;
    text.ends_with_gmt()?;
    let this_year = 1970 + now.div_euclid(31_556_952);
    let mut year = this_year - this_year.rem_euclid(100) + of_century;
    if year > this_year + 50 {
        year -= 100;
    }
    compose(year, month, day, seconds)
}

/// `Nov  6 08:49:37 1994`
fn asctime(mut text: Text<'_>) -> Option<i64> {
    let month = text.month()?;
    let day = if text.take(b"  ") {
        text.number(1)?
    } else {
        text.take(b" ").then(|| text.number(2))??
    };
    let seconds = text.take(b" ").then(|| text.time())??;
    let year = text.take(b" ").then(|| text.number(4))??;
    text.0.is_empty().then_some(())?;
    compose(year, month, day, seconds)
}

/// The part of a date that has not been parsed.
struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    fn letters(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| !byte.is_ascii_alphabetic());
        let (letters, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        self.0 = rest;
        letters
    }

    /// Skips this text if it follows; false if it does not.
    fn take(&mut self, expected: &[u8]) -> bool {
        let rest = self.0.strip_prefix(expected);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn number(&mut self, digits: usize) -> Option<i64> {
        let (number, rest) = self.0.split_at_checked(digits)?;
        self.0 = rest;
        number.iter().try_fold(0, |number, byte| {
            let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
            Some(number * 10 + i64::from(digit))
        })
    }

    /// Parses a month; January is 0.
    fn month(&mut self) -> Option<usize> {
        let (name, rest) = self.0.split_at_checked(3)?;
        self.0 = rest;
        MONTHS
            .iter()
            .position(|month| month.eq_ignore_ascii_case(name))
    }

    /// Parses `08:49:37` into seconds since midnight; second 60 is a leap second.
    fn time(&mut self) -> Option<i64> {
        let hour = self.number(2).filter(|hour| *hour < 24)?;
        let minute = self.take(b":").then(|| self.number(2))??;
        let second = self.take(b":").then(|| self.number(2))??;
        (minute < 60 && second <= 60).then_some(hour * 3600 + minute * 60 + second)
    }

    fn ends_with_gmt(&self) -> Option<()> {
        self.0.eq_ignore_ascii_case(b" GMT").then_some(())
    }
}

fn compose(year: i64, month: usize, day: i64, seconds: i64) -> Option<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = *DAYS_IN_MONTH.get(month)?;
    let last = if month == 1 && !is_leap { 28 } else { last };
    if !(1..=last).contains(&day) {
        return None;
    }
    // Years are counted from March, so that the leap day is the last of its year.
    let month = i64::try_from(month).ok()? + 1;
    let (year, month) = if month <= 2 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = days + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_796_000_000; // November 2026

    /// RFC 9110, section 5.6.7: its three examples, and forms that a sender must not use.
    #[test]
    fn three_forms_and_no_other() {
        for (text, expected) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(784_111_777)),
            ("Sun Nov  6 08:49:37 1994", Some(784_111_777)),
            ("SUN, 06 NOV 1994 08:49:37 gMT", Some(784_111_777)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Tue, 29 Feb 2000 00:00:00 GMT", Some(951_782_400)),
            ("Sun, 21 Nov 2286 04:46:39 GMT", Some(10_000_039_599)),
            ("Thursday, 18-Aug-50 02:01:18 GMT", Some(2_544_400_878)),
            ("Thu Aug 18 02:01:18 2050", Some(2_544_400_878)),
            // A year more than 50 years ahead: 1977 and not 2077.
            ("Saturday, 01-Jan-77 00:00:00 GMT", Some(220_924_800)),
            ("Sun, 06 Nov 1994 08:49:37 UTC", None),
            ("Sun, 06 Nov 1994 08:49:37 AEST", None),
            ("Sun, 06 Nov 1994 08:49:37", None),
            ("Sun, 06 Nov 94 08:49:37 GMT", None),
            ("Sun 06 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06  Nov  1994 08:49:37 GMT", None),
            ("Sun, 06-Nov-1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08.49.37 GMT", None),
            ("Sun, 06 Nov 1994 8:49:37 GMT", None),
            ("Sun, 06 Nov 1994 24:00:00 GMT", None),
            ("Mon, 29 Feb 2100 00:00:00 GMT", None),
            ("Sun, 00 Nov 1994 08:49:37 GMT", None),
            ("Xyz, 06 Nov 1994 08:49:37 GMT", None),
            ("Sunday, 06 Nov 1994 08:49:37 GMT", None),
            ("0", None),
            ("", None),
        ] {
            assert_eq!(parse(text.as_bytes(), NOW), expected, "{text}");
        }
    }
}
