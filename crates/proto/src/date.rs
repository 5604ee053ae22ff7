//! HTTP dates (RFC 9110, section 5.6.7) in all three formats, and the date format of cookies.
//!
//! Times are whole seconds since 1970-01-01T00:00:00Z. There is no clock here. Parsing is as
//! lenient as in nginx: the day of the week is skipped, and months are recognised by the letters
//! that distinguish them.

const WEEKDAYS: [&[u8; 3]; 7] = [b"Sun", b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat"];
const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];
const DAYS_IN_MONTH: [i64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
const SECONDS_PER_DAY: i64 = 86_400;

/// Length of a date in the format of [`format_http`], in bytes.
pub const HTTP_LENGTH: usize = 29;

/// Formats a date as `Sun, 06 Nov 1994 08:49:37 GMT`. As in nginx, times before 1970 or after 9999
/// are clamped.
pub fn format_http(time: i64, out: &mut [u8; HTTP_LENGTH]) {
    let date = Date::at(time);
    *out = *b"Sun, 06 Nov 1994 08:49:37 GMT";
    out[..3].copy_from_slice(date.weekday);
    two_digits(&mut out[5..7], date.day);
    out[8..11].copy_from_slice(date.month);
    two_digits(&mut out[12..14], date.year / 100);
    two_digits(&mut out[14..16], date.year % 100);
    two_digits(&mut out[17..19], date.hour);
    two_digits(&mut out[20..22], date.minute);
    two_digits(&mut out[23..25], date.second);
}

/// Appends a date for a cookie's `expires`: `Sun, 06-Nov-94 08:49:37 GMT`, with a year of four
/// digits from 2038 on.
pub fn write_cookie(time: i64, out: &mut Vec<u8>) {
    let date = Date::at(time);
    let mut text = *b"Sun, 06-Nov-1994 08:49:37 GMT";
    text[..3].copy_from_slice(date.weekday);
    two_digits(&mut text[5..7], date.day);
    text[8..11].copy_from_slice(date.month);
    two_digits(&mut text[12..14], date.year / 100);
    two_digits(&mut text[14..16], date.year % 100);
    two_digits(&mut text[17..19], date.hour);
    two_digits(&mut text[20..22], date.minute);
    two_digits(&mut text[23..25], date.second);
    out.extend_from_slice(&text[..12]);
    out.extend_from_slice(if date.year > 2037 {
        &text[12..]
    } else {
        &text[14..]
    });
}

/// Parses a date in any of the three formats; `None` if it is invalid.
pub fn parse_http(value: &[u8]) -> Option<i64> {
    // The day of the week ends at a comma, or at a space in the format of C's asctime().
    let end = value
        .iter()
        .position(|&byte| byte == b',' || byte == b' ')?;
    let (separator, rest) = value.get(end..)?.split_first()?;
    let asctime = *separator == b' ';
    let mut rest = Reader(rest);
    rest.skip_spaces();
    if rest.0.len() < 18 {
        return None;
    }
    if asctime {
        parse_asctime(rest)
    } else {
        parse_with_comma(rest)
    }
}

/// Parses `06 Nov 1994 08:49:37` or the obsolete `06-Nov-94 08:49:37`.
fn parse_with_comma(mut rest: Reader<'_>) -> Option<i64> {
    let day = rest.number(2)?;
    let separator = rest.next()?;
    let year_digits = match separator {
        b' ' if rest.0.len() >= 17 => 4,
        b'-' => 2,
        _ => return None,
    };
    let month = rest.month()?;
    rest.skip(separator)?;
    let mut year = rest.number(year_digits)?;
    if year_digits == 2 {
        year += if year < 70 { 2000 } else { 1900 };
    }
    rest.skip(b' ')?;
    let seconds = rest.time()?;
    compose(year, month, day, seconds)
}

/// Parses `Nov  6 08:49:37 1994`.
fn parse_asctime(mut rest: Reader<'_>) -> Option<i64> {
    let month = rest.month()?;
    rest.next()?;
    if rest.peek() == Some(b' ') {
        rest.next();
    }
    let mut day = rest.number(1)?;
    if rest.peek()? != b' ' {
        day = day * 10 + rest.number(1)?;
    }
    rest.skip(b' ')?;
    let seconds = rest.time()?;
    rest.skip(b' ')?;
    let year = rest.number(4)?;
    compose(year, month, day, seconds)
}

/// The time of a date, or `None` if the month has no such day. Day 0 is the day before the first:
/// nginx does not check it.
fn compose(year: i64, month: usize, day: i64, seconds: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if day > *DAYS_IN_MONTH.get(month)? && !(leap && month == 1 && day == 29) {
        return None;
    }
    Some((days_before(year, month as i64 + 1) + day - 1) * SECONDS_PER_DAY + seconds)
}

/// Days from 1970-01-01 to the first of a month (1 to 12). Years begin in March, so that the leap
/// day is the last day of its year; then the days before a month follow from a linear formula.
fn days_before(year: i64, month: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days_of_years =
        365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days_of_months = (153 * month + 2) / 5;
    days_of_years + days_of_months - 719_468
}

/// A date and time of the calendar.
struct Date {
    weekday: &'static [u8; 3],
    day: u32,
    month: &'static [u8; 3],
    year: u32,
    hour: u32,
    minute: u32,
    second: u32,
}

impl Date {
    #[expect(
        clippy::indexing_slicing,
        reason = "remainders by the lengths of the tables"
    )]
    fn at(time: i64) -> Date {
        const FIRST: i64 = 0; // 1970-01-01
        const LAST: i64 = 253_402_300_799; // 9999-12-31T23:59:59
        let time = time.clamp(FIRST, LAST);
        let days = time.div_euclid(SECONDS_PER_DAY);
        let second = time.rem_euclid(SECONDS_PER_DAY) as u32;

        // Eras of 400 years, from 0000-03-01 on: within an era, year and month follow by division.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = (month_from_march + 2) % 12;
        let year = era * 400 + year_of_era + i64::from(month < 2);

        Date {
            weekday: WEEKDAYS[(days + 4).rem_euclid(7) as usize],
            day: day as u32,
            month: MONTHS[month as usize],
            year: year as u32,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }
}

fn two_digits(out: &mut [u8], value: u32) {
    out.copy_from_slice(&[b'0' + (value / 10 % 10) as u8, b'0' + (value % 10) as u8]);
}

/// Parses from the beginning of a slice.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn skip(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    fn skip_spaces(&mut self) {
        while self.peek() == Some(b' ') {
            self.next();
        }
    }

    /// A number of exactly `digits` digits.
    fn number(&mut self, digits: usize) -> Option<i64> {
        let mut number = 0;
        for _ in 0..digits {
            let digit = self.next()?;
            if !digit.is_ascii_digit() {
                return None;
            }
            number = number * 10 + i64::from(digit - b'0');
        }
        Some(number)
    }

    /// The index of a month, by three letters, of which only the distinguishing ones are compared.
    fn month(&mut self) -> Option<usize> {
        let (letters, rest) = self.0.split_first_chunk::<3>()?;
        self.0 = rest;
        Some(match *letters {
            [b'J', b'a', _] => 0,
            [b'F', ..] => 1,
            [b'M', _, b'r'] => 2,
            [b'A', b'p', _] => 3,
            [b'M', ..] => 4,
            [b'J', _, b'n'] => 5,
            [b'J', ..] => 6,
            [b'A', ..] => 7,
            [b'S', ..] => 8,
            [b'O', ..] => 9,
            [b'N', ..] => 10,
            [b'D', ..] => 11,
            _ => return None,
        })
    }

    fn time(&mut self) -> Option<i64> {
        let hour = self.number(2)?;
        self.skip(b':')?;
        let minute = self.number(2)?;
        self.skip(b':')?;
        let second = self.number(2)?;
        (hour <= 23 && minute <= 59 && second <= 59).then_some(hour * 3600 + minute * 60 + second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(time: i64) -> String {
        let mut out = [0; HTTP_LENGTH];
        format_http(time, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn the_three_forms_of_rfc_9110() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse_http(text.as_bytes()), Some(784_111_777), "{text}");
        }
    }

    #[test]
    fn reads_as_leniently_as_nginx() {
        for (text, time) in [
            ("x,06 Nov 1994 08:49:37", 784_111_777),
            (",   06 Nov 1994 08:49:37 nonsense", 784_111_777),
            ("Sun, 06 Nxx 1994 08:49:37 GMT", 784_111_777),
            ("Sun Nov 16 08:49:37 1994", 784_975_777),
            ("Sun Novx6 08:49:37 1994", 784_111_777),
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Thursday, 01-Jan-70 00:00:00 GMT", 0),
            ("Monday, 01-Jan-69 00:00:00 GMT", 3_124_224_000),
            ("Thu, 29 Feb 2024 00:00:00 GMT", 1_709_164_800),
            ("Tue, 29 Feb 2000 00:00:00 GMT", 951_782_400),
            ("Fri, 00 Mar 2024 00:00:00 GMT", 1_709_164_800),
            ("Wed, 31 Dec 1969 23:59:59 GMT", -1),
            ("Fri, 31 Dec 9999 23:59:59 GMT", 253_402_300_799),
        ] {
            assert_eq!(parse_http(text.as_bytes()), Some(time), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_date() {
        for text in [
            "",
            "Sun",
            "Sun, ",
            "Sun, 06 Nov 1994 08:49:3",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06_Nov 1994 08:49:37 GMT",
            "Sun, 06 Xov 1994 08:49:37 GMT",
            "Sun, 06 Nov-1994 08:49:37 GMT",
            "Sun, 06 Nov 94 08:49:37 GMT xx",
            "Sun, 31 Nov 1994 08:49:37 GMT",
            "Sun, 29 Feb 1900 08:49:37 GMT",
            "Sun, 29 Feb 2023 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1994 08:60:37 GMT",
            "Sun, 06 Nov 1994 08:49:60 GMT",
            "Sun, 06 Nov 1994 08.49.37 GMT",
            "Sun Nov  6 08:49:37 94xxxxx",
            "Sun Nov   6 08:49:37 1994",
        ] {
            assert_eq!(parse_http(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn writes_what_it_reads() {
        assert_eq!(http(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http(-1), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(http(i64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
        assert_eq!(http(i64::MIN), "Thu, 01 Jan 1970 00:00:00 GMT");
        for step in 0..20_000 {
            let time = step * 9_999_991;
            assert_eq!(parse_http(http(time).as_bytes()), Some(time));
        }
    }

    #[test]
    fn cookie_dates() {
        for (time, text) in [
            (784_111_777, "Sun, 06-Nov-94 08:49:37 GMT"),
            (2_145_916_800, "Fri, 01-Jan-2038 00:00:00 GMT"),
        ] {
            let mut out = Vec::new();
            write_cookie(time, &mut out);
            assert_eq!(out, text.as_bytes());
        }
    }
}
