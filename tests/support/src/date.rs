//! Dates of HTTP, read without the code that is tested.

/// Seconds since 1970 of `Sun, 06 Nov 1994 08:49:37 GMT`; `None` of what is no date in this form
/// (RFC 9110, 5.6.7).
#[must_use]
pub fn http_date(text: &str) -> Option<i64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let parts: Vec<&str> = text.split([' ', ':']).collect();
    let [_, day, month, year, hour, minute, second, "GMT"] = parts[..] else {
        return None;
    };
    let month = i64::try_from(MONTHS.find(month)? / 3).ok()? + 1;
    let number = |text: &str| text.parse::<i64>().ok();
    // Days since 1970 in the proleptic Gregorian calendar, years counted from March.
    let years = number(year)? - i64::from(month <= 2);
    let days = 365 * years + years.div_euclid(4) - years.div_euclid(100)
        + years.div_euclid(400)
        + (153 * ((month + 9) % 12) + 2) / 5
        + number(day)?
        - 1
        - 719_468;
    Some(((days * 24 + number(hour)?) * 60 + number(minute)?) * 60 + number(second)?)
}
