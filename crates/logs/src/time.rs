//! The current time in the formats of logs, in the local time zone. Each thread formats the time
//! once a second.
//!
//! The time zone is loaded once per process ([`load_zone`]); its rules, including daylight saving
//! time, are applied every second. The clock is the engine's coarse one, as in nginx.

use std::cell::RefCell;
use std::sync::OnceLock;

use jiff::Timestamp;
use jiff::tz::TimeZone;

const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// One second in all formats that logs use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formatted {
    second: i64,
    /// `2026/11/21 10:00:00`: error logs.
    pub error_log: [u8; 19],
    /// The form of `$time_local`: `21/Nov/2026:10:00:00 +0100`.
    pub local: [u8; 26],
    /// The form of `$time_iso8601`: `2026-11-21T10:00:00+01:00`.
    pub iso8601: [u8; 25],
    /// `Nov 21 10:00:00`, or `Nov  1 10:00:00`: syslog.
    pub syslog: [u8; 15],
}

impl Formatted {
    const NEVER: Formatted = Formatted {
        second: i64::MIN,
        error_log: [0; 19],
        local: [0; 26],
        iso8601: [0; 25],
        syslog: [0; 15],
    };

    fn new(second: i64, zone: &TimeZone) -> Formatted {
        let time = Timestamp::from_second(second)
            .unwrap_or_default()
            .to_zoned(zone.clone());
        let mut made = Formatted {
            second,
            ..Formatted::NEVER
        };
        let (year, month, day) = (time.year(), time.month(), time.day());
        let clock = [time.hour(), time.minute(), time.second()];
        let offset = time.offset().seconds() / 60;
        let sign = if offset < 0 { b"-" } else { b"+" };
        let (hours, minutes) = (offset.abs() / 60, offset.abs() % 60);
        let name = MONTHS
            .get((month - 1).unsigned_abs() as usize)
            .copied()
            .unwrap_or(MONTHS[0]);

        let mut out = Digits::new(&mut made.error_log);
        out.four(year)
            .text(b"/")
            .two(month.into())
            .text(b"/")
            .two(day.into())
            .text(b" ");
        out.clock(clock);
        let mut out = Digits::new(&mut made.local);
        out.two(day.into())
            .text(b"/")
            .text(name)
            .text(b"/")
            .four(year)
            .text(b":")
            .clock(clock);
        out.text(b" ").text(sign).two(hours).two(minutes);
        let mut out = Digits::new(&mut made.iso8601);
        out.four(year)
            .text(b"-")
            .two(month.into())
            .text(b"-")
            .two(day.into())
            .text(b"T");
        out.clock(clock)
            .text(sign)
            .two(hours)
            .text(b":")
            .two(minutes);
        let mut out = Digits::new(&mut made.syslog);
        out.text(name)
            .text(b" ")
            .two(day.into())
            .text(b" ")
            .clock(clock);
        if let [_, _, _, _, tens @ b'0', ..] = &mut made.syslog {
            *tens = b' ';
        }
        made
    }
}

/// Fills a fixed-size array from left to right.
struct Digits<'a> {
    rest: std::slice::IterMut<'a, u8>,
}

impl<'a> Digits<'a> {
    fn new(out: &'a mut [u8]) -> Digits<'a> {
        Digits {
            rest: out.iter_mut(),
        }
    }

    fn text(&mut self, text: &[u8]) -> &mut Self {
        for (byte, place) in text.iter().zip(&mut self.rest) {
            *place = *byte;
        }
        self
    }

    fn two(&mut self, number: i32) -> &mut Self {
        let digit = |value: i32| b'0' + (value % 10).unsigned_abs() as u8;
        self.text(&[digit(number / 10), digit(number)])
    }

    fn four(&mut self, number: i16) -> &mut Self {
        let number = i32::from(number);
        self.two(number / 100).two(number % 100)
    }

    fn clock(&mut self, [hour, minute, second]: [i8; 3]) -> &mut Self {
        self.two(hour.into())
            .text(b":")
            .two(minute.into())
            .text(b":")
            .two(second.into())
    }
}

/// Loads the system's time zone, unless it is loaded already. Must be called before the process
/// gives up its view of the file system.
pub fn load_zone() -> &'static TimeZone {
    static ZONE: OnceLock<TimeZone> = OnceLock::new();
    ZONE.get_or_init(TimeZone::system)
}

/// Passes the current second, formatted, to `use_it`.
pub fn with_now<T>(use_it: impl FnOnce(&Formatted) -> T) -> T {
    thread_local! {
        static CACHED: RefCell<Formatted> = const { RefCell::new(Formatted::NEVER) };
    }
    let second = i64::try_from(engine::wall().as_secs()).unwrap_or(i64::MAX);
    CACHED.with(|cached| {
        let mut cached = cached.borrow_mut();
        if cached.second != second {
            *cached = Formatted::new(second, load_zone());
        }
        use_it(&cached)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64, zone: &TimeZone) -> [String; 3] {
        let made = Formatted::new(second, zone);
        [&made.error_log[..], &made.local, &made.iso8601]
            .map(|text| String::from_utf8(text.to_vec()).unwrap())
    }

    /// The expected texts are from `date -d @… '+%Y/%m/%d %H:%M:%S'` and so on in each zone.
    #[test]
    fn three_forms_in_several_zones() {
        assert_eq!(
            at(0, &TimeZone::UTC),
            [
                "1970/01/01 00:00:00",
                "01/Jan/1970:00:00:00 +0000",
                "1970-01-01T00:00:00+00:00"
            ]
        );
        let india =
            TimeZone::fixed(jiff::tz::offset(5).saturating_add(jiff::Span::new().minutes(30)));
        assert_eq!(
            at(1_700_000_000, &india),
            [
                "2023/11/15 03:43:20",
                "15/Nov/2023:03:43:20 +0530",
                "2023-11-15T03:43:20+05:30"
            ]
        );
        let newfoundland = TimeZone::posix("NST3:30NDT,M3.2.0,M11.1.0").unwrap();
        assert_eq!(
            at(1_700_000_000, &newfoundland)[1],
            "14/Nov/2023:18:43:20 -0330"
        );
        assert_eq!(
            at(1_690_000_000, &newfoundland)[1],
            "22/Jul/2023:01:56:40 -0230"
        );
    }

    #[test]
    fn a_second_beyond_every_calendar_is_still_formatted() {
        assert_eq!(at(i64::MAX, &TimeZone::UTC)[0], "1970/01/01 00:00:00");
    }
}
