//! The conditions of a sweep, on which the meaning of its figures depends: machine, kernel,
//! versions, engine, command line and date.
//!
//! Read from /proc; values that are not available are omitted.

use std::fs;

use jiff::Zoned;
use load::plan::{Length, Protocol};
use load::report::some;
use load::{First, Plan};

/// The names and values of the conditions, in the order of a page. `first` is the server's first
/// response.
pub(super) fn of(plan: &Plan, first: Option<&First>) -> Vec<(String, String)> {
    let command: Vec<String> = std::env::args()
        .skip(1)
        .map(|word| word_of(&word))
        .collect();
    let server = first.map(|first| String::from_utf8_lossy(&first.server).into_owned());
    let threads = std::thread::available_parallelism().map(|number| number.to_string());
    let connections = match (plan.new_connections, plan.protocol) {
        (true, _) => "one for each request".to_owned(),
        (false, Protocol::Http1) => "kept open".to_owned(),
        (false, Protocol::Http2 { streams } | Protocol::Grpc { streams }) => {
            format!("kept open, {}", some(streams as u64, "stream"))
        }
    };
    let step = match plan.length {
        Length::Time(time) => Some(format!("{time:?}")),
        Length::Requests(_) | Length::Each(_) => None,
    };
    let known = [
        (
            "date",
            Some(Zoned::now().strftime("%Y-%m-%d %H:%M:%S %:z").to_string()),
        ),
        ("command", Some(format!("tidegate {}", command.join(" ")))),
        ("each step", step),
        ("server", server.filter(|server| !server.is_empty())),
        (
            "client",
            Some(concat!("Tidegate ", env!("CARGO_PKG_VERSION")).to_owned()),
        ),
        (
            "client engine",
            Some(format!(
                "{}, {}",
                plan.engine,
                some(plan.threads as u64, "thread")
            )),
        ),
        ("protocol", Some(plan.protocol.name().to_owned())),
        ("client connections", Some(connections)),
        ("client machine", processor()),
        ("processors", threads.ok()),
        ("memory", memory()),
        (
            "kernel",
            read("sys/kernel/osrelease").map(|release| format!("Linux {release}")),
        ),
    ];
    known
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

/// Quotes a word of the command line for a shell.
fn word_of(word: &str) -> String {
    let plain =
        |character: char| character.is_ascii_alphanumeric() || "-_./:,=@%+…".contains(character);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn read(name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{name}")).ok()?;
    Some(text.trim().to_owned())
}

fn processor() -> Option<String> {
    field(&read("cpuinfo")?, "model name")
}

fn memory() -> Option<String> {
    let kilobytes = field(&read("meminfo")?, "MemTotal")?;
    let kilobytes: f64 = kilobytes.split_whitespace().next()?.parse().ok()?;
    Some(format!("{:.1} GiB", kilobytes / 1024.0 / 1024.0))
}

/// The value of the first line `NAME : VALUE`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (known, value) = line.split_once(':')?;
        (known.trim() == name).then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_written_for_a_shell() {
        let words = ["-c", "1,2,...,9", "a b", "it's", ""].map(word_of);
        assert_eq!(words, ["-c", "1,2,...,9", "'a b'", "'it'\\''s'", "''"]);
    }

    #[test]
    fn fields_of_proc() {
        let text = "processor\t: 0\nmodel name\t: A: B\nmodel name\t: C\n";
        assert_eq!(field(text, "model name"), Some("A: B".to_owned()));
        assert_eq!(field(text, "x"), None);
    }
}
