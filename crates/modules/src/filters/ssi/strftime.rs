//! Dates by strftime(3), as glibc writes them in the locale `C`: the format of `config timefmt`.
//!
//! Flags (`_ - 0 ^ #`), widths, the modifiers `E` and `O` and the output for unknown conversions
//! are glibc's. No other locale is supported, and neither are eras nor alternative digits.

use jiff::Timestamp;
use jiff::civil::{DateTime, Weekday};
use jiff::tz::TimeZone;

/// Maximum length of the result with its terminating zero, in bytes, as in nginx.
const LENGTH_MAX: usize = 2048;

/// A date and time in a time zone.
pub(super) struct LocalTime {
    civil: DateTime,
    /// Seconds east of Greenwich.
    offset: i64,
    zone: String,
    /// The result of `%s`: glibc computes it by mktime(3), which takes the civil time for local
    /// time.
    seconds: i64,
}

impl LocalTime {
    /// Universal time, with `GMT` as the name of its zone.
    pub(super) fn universal(now: Timestamp, local: &TimeZone) -> LocalTime {
        let civil = TimeZone::UTC.to_datetime(now);
        let seconds = local.to_timestamp(civil).unwrap_or(now).as_second();
        let zone = "GMT".to_owned();
        LocalTime {
            civil,
            offset: 0,
            zone,
            seconds,
        }
    }

    /// The time in a local zone.
    pub(super) fn local(now: Timestamp, local: &TimeZone) -> LocalTime {
        let info = local.to_offset_info(now);
        LocalTime {
            civil: info.offset().to_datetime(now),
            offset: i64::from(info.offset().seconds()),
            zone: info.abbreviation().to_owned(),
            seconds: now.as_second(),
        }
    }

    /// Formats the time. The format ends at a zero byte. `None` if the result is too long.
    pub(super) fn format(&self, format: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let end = memchr::memchr(0, format).unwrap_or(format.len());
        self.append(format.get(..end).unwrap_or_default(), &mut out)?;
        Some(out)
    }

    fn append(&self, format: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let mut rest = format;
        while let Some((&byte, after)) = rest.split_first() {
            if byte != b'%' {
                Field::default().text(&[byte], out)?;
                rest = after;
                continue;
            }
            let (mut field, conversion) = Field::parse(after);
            let (length, known) = match conversion.split_first() {
                Some((&letter, after)) => {
                    let length = rest.len() - after.len();
                    (length, self.convert(&mut field, letter, out)?)
                }
                None => (rest.len(), false),
            };
            let (text, after) = rest.split_at_checked(length)?;
            if !known {
                field.text(text, out)?;
            }
            rest = after;
        }
        Some(())
    }

    /// Formats one conversion; `Some(false)` if this letter and modifier are not a conversion.
    fn convert(&self, field: &mut Field, letter: u8, out: &mut Vec<u8>) -> Option<bool> {
        let allowed: &[u8] = match letter {
            b'c' | b'x' | b'X' | b'Y' => b"E",
            b'b' | b'h' | b'B' | b'd' | b'e' | b'H' | b'I' | b'k' | b'l' | b'j' | b'M' | b'm'
            | b'S' | b'U' | b'V' | b'g' | b'G' | b'W' | b'w' => b"O",
            b'%' | b'C' | b'n' | b'p' | b'P' | b'r' | b'R' | b's' | b't' | b'T' | b'u' | b'y'
            | b'z' | b'Z' => b"EO",
            _ => b"",
        };
        if field.modifier != 0 && !allowed.contains(&field.modifier) {
            return Some(false);
        }
        let date = self.civil.date();
        let year = i64::from(date.year());
        let (hour, sunday_first) = (
            i64::from(self.civil.hour()),
            i64::from(date.weekday().to_sunday_zero_offset()),
        );
        let monday_first = i64::from(date.weekday().to_monday_zero_offset());
        let year_day = i64::from(date.day_of_year()) - 1;
        let hour_of_12 = match hour % 12 {
            0 => 12,
            hour => hour,
        };
        match letter {
            b'%' => field.text(b"%", out),
            b'n' => field.text(b"\n", out),
            b't' => field.text(b"\t", out),
            b'a' | b'A' => {
                let name = weekday(date.weekday());
                field.set_other_case(Case::Upper);
                field.text(shortened(name, letter == b'a'), out)
            }
            b'b' | b'h' | b'B' => {
                let index = usize::try_from(date.month()).unwrap_or(1) - 1; // 1 to 12
                let name = MONTHS.get(index).unwrap_or(&MONTHS[0]);
                field.set_other_case(Case::Upper);
                field.text(shortened(name.as_bytes(), letter != b'B'), out)
            }
            b'p' | b'P' => {
                field.set_other_case(Case::Lower);
                if letter == b'P' {
                    field.case = Case::Lower;
                }
                field.text(if hour < 12 { b"AM" } else { b"PM" }, out)
            }
            b'Z' => {
                field.set_other_case(Case::Lower);
                field.text(self.zone.as_bytes(), out)
            }
            b'c' => self.within(field, b"%a %b %e %H:%M:%S %Y", out),
            b'D' | b'x' => self.within(field, b"%m/%d/%y", out),
            b'F' => self.within(field, b"%Y-%m-%d", out),
            b'R' => self.within(field, b"%H:%M", out),
            b'r' => self.within(field, b"%I:%M:%S %p", out),
            b'T' | b'X' => self.within(field, b"%H:%M:%S", out),
            b'C' => field.number(year.div_euclid(100), 1, out),
            b'd' => field.number(i64::from(date.day()), 2, out),
            b'e' => field.spaced(i64::from(date.day()), out),
            b'g' => field.number(
                i64::from(date.iso_week_date().year()).rem_euclid(100),
                2,
                out,
            ),
            b'G' => field.number(i64::from(date.iso_week_date().year()), 1, out),
            b'H' => field.number(hour, 2, out),
            b'I' => field.number(hour_of_12, 2, out),
            b'j' => field.number(year_day + 1, 3, out),
            b'k' => field.spaced(hour, out),
            b'l' => field.spaced(hour_of_12, out),
            b'm' => field.number(i64::from(date.month()), 2, out),
            b'M' => field.number(i64::from(self.civil.minute()), 2, out),
            b's' => field.text(self.seconds.to_string().as_bytes(), out),
            b'S' => field.number(i64::from(self.civil.second()), 2, out),
            b'u' => field.number(monday_first + 1, 1, out),
            b'U' => field.number((year_day - sunday_first + 7) / 7, 2, out),
            b'V' => field.number(i64::from(date.iso_week_date().week()), 2, out),
            b'w' => field.number(sunday_first, 1, out),
            b'W' => field.number((year_day - monday_first + 7) / 7, 2, out),
            b'y' => field.number(year.rem_euclid(100), 2, out),
            b'Y' => field.number(year, 1, out),
            b'z' => {
                field.text(if self.offset < 0 { b"-" } else { b"+" }, out)?;
                let minutes = self.offset.abs() / 60;
                field.number(minutes / 60 * 100 + minutes % 60, 4, out)
            }
            _ => return Some(false),
        }?;
        Some(true)
    }

    /// Formats a conversion that is an abbreviation for several others.
    fn within(&self, field: &Field, format: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let mut text = Vec::new();
        self.append(format, &mut text)?;
        field.text(&text, out)
    }
}

/// Full names of months.
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

fn weekday(day: Weekday) -> &'static [u8] {
    match day {
        Weekday::Sunday => b"Sunday",
        Weekday::Monday => b"Monday",
        Weekday::Tuesday => b"Tuesday",
        Weekday::Wednesday => b"Wednesday",
        Weekday::Thursday => b"Thursday",
        Weekday::Friday => b"Friday",
        Weekday::Saturday => b"Saturday",
    }
}

/// The name, or with `short` its first three letters.
fn shortened(name: &[u8], short: bool) -> &[u8] {
    if short {
        name.get(..3).unwrap_or(name)
    } else {
        name
    }
}

/// The case of letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Case {
    #[default]
    AsIs,
    Upper,
    Lower,
}

/// The text between the `%` and the letter of a conversion.
#[derive(Clone, Copy, Debug, Default)]
struct Field {
    /// `_`, `-` or `0`; 0 for none.
    pad: u8,
    /// Minimum width, in bytes.
    width: usize,
    /// Flag `^` selects upper case.
    case: Case,
    /// Flag `#`, whose meaning depends on the conversion.
    other_case: bool,
    /// `E` or `O`; 0 for none.
    modifier: u8,
}

impl Field {
    /// Parses the field at the start of a format; returns it and the rest.
    fn parse(format: &[u8]) -> (Field, &[u8]) {
        let mut field = Field::default();
        let mut rest = format;
        while let Some((&flag, after)) = rest.split_first() {
            match flag {
                b'_' | b'-' | b'0' => field.pad = flag,
                b'^' => field.case = Case::Upper,
                b'#' => field.other_case = true,
                _ => break,
            }
            rest = after;
        }
        while let Some((&digit @ b'0'..=b'9', after)) = rest.split_first() {
            let width = field.width.saturating_mul(10);
            field.width = width.saturating_add(usize::from(digit - b'0'));
            rest = after;
        }
        if let Some((&modifier @ (b'E' | b'O'), after)) = rest.split_first() {
            field.modifier = modifier;
            rest = after;
        }
        (field, rest)
    }

    /// Applies flag `#`, which selects `case` in this conversion and takes precedence over flag
    /// `^`.
    fn set_other_case(&mut self, case: Case) {
        if self.other_case {
            self.case = case;
        }
    }

    /// Writes text, padded on the left to the width.
    fn text(&self, text: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let length = text.len().max(self.width);
        if length >= LENGTH_MAX.saturating_sub(out.len()) {
            return None;
        }
        let filling = if self.pad == b'0' { b'0' } else { b' ' };
        out.resize(out.len() + length - text.len(), filling);
        match self.case {
            Case::Upper => out.extend(text.iter().map(u8::to_ascii_uppercase)),
            Case::Lower => out.extend(text.iter().map(u8::to_ascii_lowercase)),
            Case::AsIs => out.extend_from_slice(text),
        }
        Some(())
    }

    /// Writes a number with a minimum number of digits.
    fn number(&self, value: i64, digits: usize, out: &mut Vec<u8>) -> Option<()> {
        let text = value.unsigned_abs().to_string();
        let sign = if value < 0 { "-" } else { "" };
        let digits = digits.max(self.width).min(LENGTH_MAX);
        let missing = digits.saturating_sub(text.len() + sign.len());
        let text = match self.pad {
            b'-' => format!("{sign}{text}"),
            b'_' => format!("{}{sign}{text}", " ".repeat(missing)),
            _ => format!("{sign}{}{text}", "0".repeat(missing)),
        };
        self.text(text.as_bytes(), out)
    }

    /// Writes a number of two digits that is padded with a space unless a flag says otherwise.
    fn spaced(&self, value: i64, out: &mut Vec<u8>) -> Option<()> {
        let pad = match self.pad {
            0 => b'_',
            pad => pad,
        };
        Field { pad, ..*self }.number(value, 2, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thursday, the fourth of March 2021, at 05:06:07 of universal time, as glibc 2.36 writes it.
    const UNIVERSAL: &[(&str, &str)] = &[
        (
            "%A, %d-%b-%Y %H:%M:%S %Z",
            "Thursday, 04-Mar-2021 05:06:07 GMT",
        ),
        ("%c", "Thu Mar  4 05:06:07 2021"),
        ("%x|%X", "03/04/21|05:06:07"),
        (
            "%r|%R|%T|%D|%F",
            "05:06:07 AM|05:06|05:06:07|03/04/21|2021-03-04",
        ),
        (
            "%q|%E|%O|%|%f|%L|%N|%i|%v|%Q|%+Y|%:z",
            "%q|%E|%O|%|%f|%L|%N|%i|%v|%Q|%+Y|%:z",
        ),
        (
            "%Ec|%EC|%Ex|%EX|%Ey|%EY",
            "Thu Mar  4 05:06:07 2021|20|03/04/21|05:06:07|21|2021",
        ),
        ("%Ed|%Oc|%OY|%EB|%ED|%Oa", "%Ed|%Oc|%OY|%EB|%ED|%Oa"),
        (
            "%Od|%Oe|%OH|%OI|%Om|%OM|%OS|%Ou|%OU|%OV|%Ow|%OW|%Oy|%OB",
            "04| 4|05|05|03|06|07|4|09|09|4|09|21|March",
        ),
        (
            "%-d|%_d|%0d|%5d|%_5d|%-5d|%05d|%3e|%0e|%-e|%5k|%l|%-I",
            "4| 4|04|00004|    4|    4|00004|  4|04|4|    5| 5|5",
        ),
        (
            "%^a|%^A|%^b|%^B|%#a|%#Z|%^Z|%#p|%^p|%P|%^P|%^c|%^#Z",
            "THU|THURSDAY|MAR|MARCH|THU|gmt|GMT|am|AM|am|am|THU MAR  4 05:06:07 2021|gmt",
        ),
        (
            "%5Y|%-Y|%_Y|%_6Y|%3Y|%C|%5C|%G|%g|%V|%u|%w|%U|%W|%j|%5j",
            "02021|2021|2021|  2021|2021|20|00020|2021|21|09|4|4|09|09|063|00063",
        ),
        (
            "%10a|%010a|%-10a|%12c|%30c|%030c|%012D|%5n|%3%|%03%",
            "       Thu|0000000Thu|       Thu|Thu Mar  4 05:06:07 2021|      Thu Mar  4 05:06:07 2021|000000Thu Mar  4 05:06:07 2021|000003/04/21|    \n|  %|00%",
        ),
        (
            "%5q|%05q|%^q|%5E|%^Oc|%%|%E%",
            "  %5q|0%05q|%^Q| %5E|%^OC|%|%",
        ),
        (
            "%z|%7z|%-z|%_z|%s|%12s|%012s",
            "+0000|      +0000000|+0|+   0|1614834367|  1614834367|001614834367",
        ),
        ("%h|%n|%t", "Mar|\n|\t"),
    ];

    /// The same time in a zone three and a half hours west of UTC.
    const WEST: &[(&str, &str)] = &[
        (
            "%A, %d-%b-%Y %H:%M:%S %Z",
            "Thursday, 04-Mar-2021 01:36:07 NST",
        ),
        ("%c", "Thu Mar  4 01:36:07 2021"),
        (
            "%z|%7z|%-z|%_z|%s|%12s|%012s",
            "-0330|      -0000330|-330|- 330|1614834367|  1614834367|001614834367",
        ),
    ];

    /// Weeks around New Year, in seconds since 1970, as glibc 2.36 formats them with
    /// [`WEEKS_FORMAT`].
    const WEEKS: &[(i64, &str)] = &[
        (1735603200, "2025-25-V01 U52 W53 366 22 12 AM"),
        (0, "1970-70-V01 U00 W00 001 44 12 AM"),
        (1767225599, "2026-26-V01 U52 W52 365 33 11 PM"),
        (1709164800, "2024-24-V09 U08 W09 060 44 12 AM"),
    ];

    const WEEKS_FORMAT: &str = "%G-%g-V%V U%U W%W %j %u%w %I %p";

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[track_caller]
    fn check(moment: &LocalTime, format: &str, expected: &str) {
        let text = moment.format(format.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), expected, "{format:?}");
    }

    #[test]
    fn as_glibc_writes_them() {
        let moment = LocalTime::universal(at(1614834367), &TimeZone::UTC);
        for (format, expected) in UNIVERSAL {
            check(&moment, format, expected);
        }
        let zone = TimeZone::posix("NST3:30NDT,M3.2.0,M11.1.0").unwrap();
        let moment = LocalTime::local(at(1614834367), &zone);
        for (format, expected) in WEST {
            check(&moment, format, expected);
        }
        for (seconds, expected) in WEEKS {
            let moment = LocalTime::universal(at(*seconds), &TimeZone::UTC);
            check(&moment, WEEKS_FORMAT, expected);
        }
    }

    #[test]
    fn bytes_that_are_no_text_and_what_is_too_long() {
        let moment = LocalTime::universal(at(0), &TimeZone::UTC);
        assert_eq!(moment.format(b"\xff%Y\xfe").unwrap(), b"\xff1970\xfe");
        assert_eq!(moment.format(b"%Y\0%d").unwrap(), b"1970");
        assert_eq!(moment.format(b"").unwrap(), b"");
        assert_eq!(moment.format(b"%2047Y").unwrap().len(), 2047);
        assert_eq!(moment.format(b"%2047Yx"), None);
        for format in [
            "%2048Y",
            "%_2048d",
            "%2048a",
            "%99999999999999999999Z",
            "%3000z",
        ] {
            assert_eq!(moment.format(format.as_bytes()), None, "{format}");
        }
        let long = vec![b'x'; LENGTH_MAX];
        assert_eq!(moment.format(&long), None);
        assert_eq!(moment.format(&long[1..]).unwrap(), &long[1..]);
    }
}
