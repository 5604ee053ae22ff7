//! What a list of thousands of patterns takes to compile, to keep and to search: `list [COUNT]`.
//! Built with `--release`.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use tidegate_pattern::{Hit, Pattern, Prefilter};

fn main() {
    // Words, of which none is compiled, and patterns that are when a subject holds their text.
    for (begins, ends) in [
        (r"(?:\b)", r"\.com(?:\b)"),
        (r"^https?://(\w+\.)?", r"\.[a-z]{2,8}/"),
    ] {
        measure(begins, ends);
    }
}

fn measure(begins: &str, ends: &str) {
    let count = std::env::args()
        .nth(1)
        .map_or(7448, |text| text.parse().expect("a number"));
    let before = resident_kib();
    let begin = Instant::now();
    let patterns: Vec<Pattern> = (0..count)
        .map(|number| {
            let text = format!("{begins}{}{ends}", name(number));
            Pattern::deferred(text.as_bytes(), true).expect("a pattern")
        })
        .collect();
    let compiled = begin.elapsed();
    let begin = Instant::now();
    let list = Prefilter::new(&patterns);
    println!(
        "{count} patterns {begins}…{ends}: {:.1} ms to compile, {:.1} ms for the list, {} KiB",
        milliseconds(compiled),
        milliseconds(begin.elapsed()),
        resident_kib().saturating_sub(before)
    );
    let ordinary = b"https://www.google.com/search?q=some+words+that+a+person+looks+for".to_vec();
    let last = format!("http://{}.com/path", name(count - 1)).into_bytes();
    let hostile: Vec<u8> = (0..200)
        .flat_map(|number| format!("x{}.comx", name(number * 37)).into_bytes())
        .collect();
    for (what, subject) in [("ordinary", ordinary), ("last", last), ("hostile", hostile)] {
        let subject = &subject[..subject.len().min(2048)];
        let (mut shortest, mut first) = (Duration::MAX, None);
        let mut found = None;
        for _ in 0..20 {
            let begin = Instant::now();
            found = list
                .first(subject, |number, hit| match hit {
                    Hit::Candidate => {
                        Ok::<_, Infallible>(patterns[number].is_match(subject) == Ok(true))
                    }
                    Hit::Match => Ok(true),
                })
                .expect("infallible");
            first = first.or(Some(begin.elapsed()));
            shortest = shortest.min(begin.elapsed());
        }
        let first = milliseconds(first.unwrap_or_default());
        println!(
            "{what}: {:.4} ms, at first {first:.4} ms {found:?}",
            milliseconds(shortest)
        );
    }
}

fn name(number: usize) -> String {
    let letters = (0..5).map(|place| {
        let digit = number / 7_usize.pow(place) % 7;
        ["sem", "alt", "bot", "o", "seo", "link", "x"][digit]
    });
    format!("{}{number}", letters.collect::<String>())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
