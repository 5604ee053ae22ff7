//! What an `upstream` block does about servers that fail, beside nginx's `max_fails`:
//! `retry_budget` bounds how many requests are tried once more, `eject_outliers` puts out servers
//! that do worse than the others. nginx has neither; the crate `upstream` does both.

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
.manual("How many requests may be tried once more, for a hundred requests of the last 10 seconds; in any case `min` (3) a second, so that a lone request may be. One that may not is answered as its failed try would have been, and a line at level `warn` says so. A request that met a connection which had been kept and has ended is sent again without counting. All threads have one budget, and a reload keeps what has been counted. nginx does not have it: without this line every request may be tried on every server.");

pub(super) static EJECT_OUTLIERS: Setting<Outliers> = Setting::new(
    "eject_outliers",
    &["[errors=number] [ratio=percentage] [interval=time] [time=time] [max=percentage]"],
    eject_outliers,
)
.contexts(BLOCKS)
.arity(Arity::between(0, 5))
.manual("Puts out servers that do worse than the others, beside what `max_fails` does: one that has failed `errors` (5) times in a row (0 is never), or with `ratio` in so many of a hundred requests of an `interval` (10s) that had at least ten. Failures are what `proxy_next_upstream` calls an unsuccessful attempt, and answers with 502, 503 or 504 whatever that says. It gets no requests for `time` (30s), the second time for twice that, and so on up to ten times; each `time` that it does well makes up for one. No more than `max` (50%) of the servers are out at the same time, backups counted by themselves, and never all. A line at level `warn` says which server is put out, one at `notice` when it is back. All threads share what they have seen, and a reload keeps it. nginx does not have it.");

fn retry_budget(setter: &Setter<'_>) -> Result<RetryBudget, Fault> {
    let share = setter.word()?;
    let percent = percentage(&share.bytes).filter(|percent| *percent <= 1000);
    let expected = "it must be a percentage, from 0% to 1000%";
    let percent = percent.ok_or_else(|| unlike(share, "retry_budget", expected))?;
    let floor = match setter.args().get(1) {
        None => 3,
        Some(word) => {
            let number = word.bytes.strip_prefix(b"min=");
            let number = number.ok_or_else(|| Fault::invalid_parameter(word))?;
            let number = parse::number_of(number).filter(|number| *number <= 1_000_000);
            number
                .ok_or_else(|| unlike(word, "retry_budget", "it must be a number up to 1000000"))?
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
        let unlike = |text| unlike(word, "eject_outliers", text);
        let share = || {
            let percent = percentage(value).filter(|percent| (1..=100).contains(percent));
            percent.ok_or_else(|| unlike("it must be a percentage, from 1% to 100%"))
        };
        let time = || {
            let time = parse::time_milliseconds(value).filter(|time| *time > 0);
            let time = time.ok_or_else(|| unlike("it must be a time above 0"));
            time.map(Duration::from_millis)
        };
        match name {
            b"errors" => {
                let number = parse::number_of(value);
                outliers.errors = number.ok_or_else(|| unlike("it must be a number"))?;
            }
            b"ratio" => outliers.ratio = share()?,
            b"interval" => outliers.interval = time()?,
            b"time" => outliers.time = time()?,
            b"max" => outliers.max = share()?,
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

/// Digits and a percent sign.
fn percentage(text: &[u8]) -> Option<u64> {
    parse::number_of(text.strip_suffix(b"%")?)
}

fn unlike(word: &Word, directive: &str, expected: &str) -> Fault {
    let text = format!(
        "invalid value \"{}\" in \"{directive}\": {expected}",
        word.text()
    );
    Fault::at(word, text)
}
