//! siege's report as text, as JSON and as a line of its log, with the same columns.

use std::fmt::Write;
use std::time::Duration;

use load::RunResult;
use load::tally::RequestError;

/// The figures of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// Responses with a status other than 408 and 500 to 509.
    pub(super) transactions: u64,
    /// Responses with a status below 400, or 401 or 407.
    pub(super) successful: u64,
    /// Requests without a response, or with status 408 or 500 to 509.
    pub(super) failed: u64,
    pub(super) elapsed: Duration,
    pub(super) bytes: u64,
    /// The sum of all response times, including connecting.
    pub(super) total: Duration,
    pub(super) longest: Duration,
    pub(super) shortest: Duration,
}

impl Figures {
    pub(super) fn of(outcome: &RunResult) -> Figures {
        let tally = &outcome.tally;
        let mut figures = Figures {
            failed: tally.failed(),
            elapsed: outcome.elapsed,
            bytes: tally.body_bytes,
            ..Figures::default()
        };
        for (status, count) in tally.statuses() {
            figures.count(status, count);
        }
        let times = &tally.total;
        if !times.is_empty() {
            figures.total = Duration::from_secs_f64(times.mean() * times.len() as f64 / 1e9);
            figures.longest = Duration::from_nanos(times.max());
            figures.shortest = Duration::from_nanos(times.min());
        }
        figures
    }

    /// Counts `count` responses with this status.
    pub(super) fn count(&mut self, status: usize, count: u64) {
        if is_failure(status) {
            self.failed += count;
        } else {
            self.transactions += count;
        }
        if status < 400 || status == 401 || status == 407 {
            self.successful += count;
        }
    }

    fn availability(&self) -> f64 {
        per(
            self.transactions as f64 * 100.0,
            (self.transactions + self.failed) as f64,
        )
    }

    fn megabytes(&self) -> f64 {
        self.bytes as f64 / (1024.0 * 1024.0)
    }

    fn response_time(&self) -> f64 {
        per(self.total.as_secs_f64(), self.transactions as f64)
    }

    fn per_second(&self, value: f64) -> f64 {
        per(value, self.elapsed.as_secs_f64())
    }

    fn concurrency(&self) -> f64 {
        self.per_second(self.total.as_secs_f64())
    }

    fn shortest(&self) -> f64 {
        match self.successful {
            0 => 0.0,
            _ => self.shortest.as_secs_f64(),
        }
    }

    /// The text that siege prints on standard error.
    pub(super) fn text(&self) -> String {
        let count = |name: &str, value: u64, behind: &str| format!("{name}{value:>12}{behind}\n");
        let number =
            |name: &str, value: f64, behind: &str| format!("{name}{value:>12.2}{behind}\n");
        let megabytes = self.megabytes();
        let rate = self.per_second(self.transactions as f64);
        [
            count("\nTransactions:\t\t", self.transactions, " hits"),
            number("Availability:\t\t", self.availability(), " %"),
            number("Elapsed time:\t\t", self.elapsed.as_secs_f64(), " secs"),
            number("Data transferred:\t", megabytes, " MB"),
            number("Response time:\t\t", self.response_time(), " secs"),
            number("Transaction rate:\t", rate, " trans/sec"),
            number("Throughput:\t\t", self.per_second(megabytes), " MB/sec"),
            number("Concurrency:\t\t", self.concurrency(), ""),
            count("Successful transactions:", self.successful, ""),
            count("Failed transactions:\t", self.failed, ""),
            number("Longest transaction:\t", self.longest.as_secs_f64(), ""),
            number("Shortest transaction:\t", self.shortest(), ""),
            " \n".to_owned(),
        ]
        .concat()
    }

    /// The JSON object that siege prints on standard output.
    pub(super) fn json(&self) -> String {
        let megabytes = self.megabytes();
        let rate = self.per_second(self.transactions as f64);
        let count = |value: u64| format!("{value:>12}");
        let number = |value: f64| format!("{value:>12.2}");
        let lines = [
            ("{\t\"transactions\":\t\t\t", count(self.transactions)),
            ("\t\"availability\":\t\t\t", number(self.availability())),
            (
                "\t\"elapsed_time\":\t\t\t",
                number(self.elapsed.as_secs_f64()),
            ),
            ("\t\"data_transferred\":\t\t", number(megabytes)),
            ("\t\"response_time\":\t\t", number(self.response_time())),
            ("\t\"transaction_rate\":\t\t", number(rate)),
            (
                "\t\"throughput\":\t\t\t",
                number(self.per_second(megabytes)),
            ),
            ("\t\"concurrency\":\t\t\t", number(self.concurrency())),
            ("\t\"successful_transactions\":\t", count(self.successful)),
            ("\t\"failed_transactions\":\t\t", count(self.failed)),
            (
                "\t\"longest_transaction\":\t\t",
                number(self.longest.as_secs_f64()),
            ),
            ("\t\"shortest_transaction\":\t\t", number(self.shortest())),
        ];
        let lines = lines.map(|(name, value)| format!("{name}{value}"));
        format!("{}\n}}\n", lines.join(",\n"))
    }

    /// The line of the log, in which megabytes are rounded down; `date` is in local time.
    pub(super) fn log_line(&self, date: &str) -> String {
        let megabytes = self.megabytes().floor();
        let mut line = format!("{date},{:>7}", self.transactions);
        // Writing to a string cannot fail.
        let _ = write!(line, ",{:>11.2}", self.elapsed.as_secs_f64());
        let _ = write!(line, ",{megabytes:>12}");
        let _ = write!(line, ",{:>11.2}", self.response_time());
        for value in [
            self.per_second(self.transactions as f64),
            self.per_second(megabytes),
            self.concurrency(),
        ] {
            let _ = write!(line, ",{value:>12.2}");
        }
        let _ = writeln!(line, ",{:>8},{:>8}", self.successful, self.failed);
        line
    }
}

/// The header line of a log.
pub(super) const LOG_HEAD: &str = "      Date & Time,  Trans,  Elap Time,  Data Trans,  Resp Time,  \
                                   Trans Rate,  Throughput,  Concurrent,    OKAY,   Failed\n";

/// The errors, one line per cause. siege itself prints one line per failed request.
pub(super) fn errors(outcome: &RunResult) -> String {
    let mut text = String::new();
    for failure in RequestError::ALL {
        let count = outcome.tally.failures(failure);
        if count > 0 {
            let _ = writeln!(text, "[error] {}: {count} times", failure.words());
        }
    }
    text
}

fn is_failure(status: usize) -> bool {
    status == 408 || (500..=509).contains(&status)
}

/// A ratio; 0 if the divisor is 0.
fn per(value: f64, of: f64) -> f64 {
    if of > 0.0 { value / of } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        let mut figures = Figures {
            elapsed: Duration::from_millis(1_500),
            bytes: 3 << 20,
            total: Duration::from_secs(3),
            longest: Duration::from_millis(20),
            shortest: Duration::from_millis(10),
            ..Figures::default()
        };
        for (status, count) in [
            (200, 140),
            (302, 5),
            (401, 5),
            (404, 10),
            (500, 30),
            (408, 10),
        ] {
            figures.count(status, count);
        }
        figures
    }

    #[test]
    fn the_block_is_that_of_siege() {
        // The layout is that of siege 4.0.7; the numbers follow siege's definitions.
        let expected = "\nTransactions:\t\t         160 hits\nAvailability:\t\t       80.00 %\n\
                        Elapsed time:\t\t        1.50 secs\nData transferred:\t        3.00 MB\n\
                        Response time:\t\t        0.02 secs\nTransaction rate:\t      106.67 trans/sec\n\
                        Throughput:\t\t        2.00 MB/sec\nConcurrency:\t\t        2.00\n\
                        Successful transactions:         150\nFailed transactions:\t          40\n\
                        Longest transaction:\t        0.02\nShortest transaction:\t        0.01\n \n";
        assert_eq!(figures().text(), expected);
    }

    #[test]
    fn the_object_is_that_of_siege() {
        let text = figures().json();
        assert!(text.starts_with(
            "{\t\"transactions\":\t\t\t         160,\n\t\"availability\":\t\t\t       80.00,\n"
        ));
        assert!(text.ends_with(
            "\t\"longest_transaction\":\t\t        0.02,\n\t\"shortest_transaction\":\t\t        0.01\n}\n"
        ));
    }

    #[test]
    fn lines_of_the_log_are_those_of_siege() {
        let expected = "2026-11-22 04:04:28,    160,       1.50,           3,       0.02,      106.67,        2.00,        \
                        2.00,     150,      40\n";
        assert_eq!(figures().log_line("2026-11-22 04:04:28"), expected);
    }

    #[test]
    fn nothing_is_no_division_by_nothing() {
        let nothing = Figures::default();
        assert!(!nothing.text().contains("NaN") && !nothing.json().contains("NaN"));
    }
}
