//! Two directives of an `upstream` block that nginx does not have, against failing servers:
//! `retry_budget` limits retries, `eject_outliers` ejects servers that fail more often than the
//! others (outlier detection). This file parses them; the crate `upstream` implements them.

use std::time::Duration;

use ::upstream::{Outliers, RetryBudget};
use conf::{Arity, Fault, Setter, Setting, Word, parse};

use super::protocol::BLOCKS;

pub(super) static RETRY_BUDGET: Setting<RetryBudget> = Setting::new(
    "retry_budget",
    &["percentage [min=number]"],
    retry_budget,
)
.contexts(BLOCKS)
.arity(Arity::between(1, 2))
.manual("Limits retries to a percentage of the requests of the last 10 seconds. `min` (3) retries a second are allowed in any case, so that a lone request may be retried. A request that may not be retried is answered with the result of its failed attempt, and a line at level `warn` says so. A request that is sent again because its keepalive connection had been closed does not count as a retry. All threads share one budget, and a reload keeps its counts. nginx does not have this directive: without it every request may be tried on every server.");

pub(super) static EJECT_OUTLIERS: Setting<Outliers> = Setting::new(
    "eject_outliers",
    &["[errors=number] [ratio=percentage] [interval=time] [time=time] [max=percentage]"],
    eject_outliers,
)
.contexts(BLOCKS)
.arity(Arity::between(0, 5))
.manual("Ejects servers that fail more often than the others (outlier detection), beside what `max_fails` does. A server is ejected after `errors` (5) failures in a row (0 turns this off). With `ratio` it is also ejected if at least this percentage of its requests in an `interval` (10s) failed; intervals with fewer than ten requests do not count. Failures are the unsuccessful attempts of `proxy_next_upstream`, and responses with 502, 503 or 504 in any case. An ejected server gets no requests for `time` (30s), the second time for twice as long, and so on up to ten times as long; each `time` without an ejection takes one step back. At most `max` (50%) of the servers are ejected at the same time, and never all of them; backup servers are counted separately. A line at level `warn` reports each ejection, one at `notice` the return. All threads share these counts, and a reload keeps them. nginx does not have this directive.");

fn retry_budget(setter: &Setter<'_>) -> Result<RetryBudget, Fault> {
    let first = setter.word()?;
    let percent = percentage(&first.bytes).filter(|percent| *percent <= 1000);
    let expected = "it must be a percentage, from 0% to 1000%";
    let percent = percent.ok_or_else(|| invalid_value(first, "retry_budget", expected))?;
    let floor = match setter.args().get(1) {
        None => 3,
        Some(word) => {
            let number = word.bytes.strip_prefix(b"min=");
            let number = number.ok_or_else(|| Fault::invalid_parameter(word))?;
            let number = parse::number_of(number).filter(|number| *number <= 1_000_000);
            let expected = "it must be a number up to 1000000";
            number.ok_or_else(|| invalid_value(word, "retry_budget", expected))?
        }
    };
    Ok(RetryBudget { percent, floor })
}

fn eject_outliers(setter: &Setter<'_>) -> Result<Outliers, Fault> {
    let mut outliers = Outliers {
        errors: 5,
        ratio: 0,
        interval: Duration::from_secs(10),
        time: Duration::from_secs(30),
        max: 50,
    };
    for word in setter.args() {
        let Some(at) = memchr::memchr(b'=', &word.bytes) else {
            return Err(Fault::invalid_parameter(word));
        };
        let (name, value) = word.bytes.split_at(at);
        let value = value.get(1..).unwrap_or_default();
        let invalid = |text| invalid_value(word, "eject_outliers", text);
        let percent = || {
            let percent = percentage(value).filter(|percent| (1..=100).contains(percent));
            percent.ok_or_else(|| invalid("it must be a percentage, from 1% to 100%"))
        };
        let time = || {
            let time = parse::time_milliseconds(value).filter(|time| *time > 0);
            let time = time.ok_or_else(|| invalid("it must be a time above 0"));
            time.map(Duration::from_millis)
        };
        match name {
            b"errors" => {
                let number = parse::number_of(value);
                outliers.errors = number.ok_or_else(|| invalid("it must be a number"))?;
            }
            b"ratio" => outliers.ratio = percent()?,
            b"interval" => outliers.interval = time()?,
            b"time" => outliers.time = time()?,
            b"max" => outliers.max = percent()?,
            _ => return Err(Fault::invalid_parameter(word)),
        }
    }
    if outliers.errors == 0 && outliers.ratio == 0 {
        return Err(Fault::new(
            "\"eject_outliers\" with \"errors=0\" needs \"ratio\"",
        ));
    }
    Ok(outliers)
}

/// Parses a whole number with a percent sign.
fn percentage(text: &[u8]) -> Option<u64> {
    parse::number_of(text.strip_suffix(b"%")?)
}

fn invalid_value(word: &Word, directive: &str, expected: &str) -> Fault {
    let text = format!(
        "invalid value \"{}\" in \"{directive}\": {expected}",
        word.text()
    );
    Fault::at(word, text)
}
