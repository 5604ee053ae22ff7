//! The longest time that any pattern takes with subjects made to hurt it: `attack [FILE] [BYTES]`,
//! a file of patterns one a line as in `tests/configurations.list`. Built with `--release`.

use std::time::Duration;

use tidegate_pattern::{Pattern, Spans};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let text = match arguments.next() {
        Some(file) => std::fs::read_to_string(file).expect("a file of patterns"),
        None => include_str!("../tests/configurations.list").to_owned() + HOSTILE,
    };
    let length = arguments
        .next()
        .map_or(2048, |text| text.parse().expect("a number"));
    let mut times: Vec<(Duration, String)> = Vec::new();
    for line in text.lines() {
        let Some((operator, pattern)) = line.split_once(' ').filter(|_| !line.starts_with('#'))
        else {
            continue;
        };
        let Ok(pattern) = Pattern::new(pattern.as_bytes(), operator == "~*") else {
            continue;
        };
        let mut longest = (Duration::ZERO, String::new());
        for subject in subjects(pattern.text().as_bytes(), length) {
            let (time, verdict) = time(&pattern, &subject);
            if time > longest.0 {
                let (begins, ends) = subject.split_at(subject.len().min(24));
                let begins = begins.escape_ascii();
                let ends = ends[ends.len().saturating_sub(8)..].escape_ascii();
                let beyond = pattern.beyond().map(|beyond| beyond.to_string());
                let text = format!(
                    "{} on {begins}…{ends} {verdict} {}",
                    pattern.text(),
                    beyond.unwrap_or_default()
                );
                longest = (time, text);
            }
        }
        times.push(longest);
    }
    times.sort();
    println!("{} patterns, subjects of {length} bytes", times.len());
    for (time, text) in times.iter().rev().take(15) {
        println!("{:>9.3} ms  {text}", time.as_secs_f64() * 1000.0);
    }
}

/// The shortest of several times, with groups; the first makes what is made once.
fn time(pattern: &Pattern, subject: &[u8]) -> (Duration, String) {
    let mut spans = Spans::default();
    let mut shortest = Duration::MAX;
    let mut verdict = String::new();
    for _ in 0..5 {
        let begin = processor_time();
        let found = pattern.captures(subject, &mut spans);
        shortest = shortest.min(processor_time().saturating_sub(begin));
        verdict = format!("{found:?}");
    }
    (shortest, verdict)
}

/// What this thread has used of a processor. The kernel adds up when it yields.
fn processor_time() -> Duration {
    std::thread::yield_now();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split_whitespace().next();
    Duration::from_nanos(first.and_then(|first| first.parse().ok()).unwrap_or(0))
}

/// Subjects of the bytes that the pattern is made of, repeated, in order and at random, with ends
/// that fit and ends that do not.
fn subjects(pattern: &[u8], length: usize) -> Vec<Vec<u8>> {
    let mut letters: Vec<u8> = pattern.to_vec();
    letters.extend(b"aA0 /.-_%<=");
    letters.sort_unstable();
    letters.dedup();
    let mut all = Vec::new();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    for &letter in &letters {
        all.push(vec![letter; length]);
        all.push([b"/", &*vec![letter; length], b"!"].concat());
        // The letter that a match must have, where it is of no use.
        for &other in &letters {
            all.push([&[other][..], &vec![letter; length]].concat());
            all.push([b"/", &*vec![letter; length], b"!", &[letter, other]].concat());
        }
    }
    let readable: Vec<u8> = pattern
        .iter()
        .copied()
        .filter(|byte| byte.is_ascii_alphanumeric() || b"/.-_%<= ".contains(byte))
        .collect();
    let some = |count: usize, of: &[u8], next: &mut dyn FnMut() -> usize| -> Vec<u8> {
        (0..count).map(|_| of[next() % of.len()]).collect()
    };
    let pool = if readable.is_empty() {
        letters.clone()
    } else {
        readable
    };
    for round in 0..24 {
        let few = some(1 + round % 5, &pool, &mut next);
        let piece = if round % 2 == 0 { few } else { pool.clone() };
        let mut subject = b"/".to_vec();
        while subject.len() < length {
            subject.extend_from_slice(&piece);
            if round % 3 == 0 {
                let byte = some(1, &letters, &mut next);
                subject.extend(byte);
            }
        }
        subject.truncate(length);
        all.push([&subject[..], b"\n"].concat());
        all.push([&subject[..], b".html"].concat());
        all.push(some(length, &few_of(&pool, round), &mut next));
        all.push([&some(length, &pool, &mut next)[..], b"\n"].concat());
        all.push(subject);
    }
    all
}

fn few_of(pool: &[u8], round: usize) -> Vec<u8> {
    let start = (round * 7) % pool.len();
    pool.iter()
        .cycle()
        .skip(start)
        .take(2 + round % 4)
        .copied()
        .collect()
}

/// What backtracking and automata that are built while they run are known to be slow with.
const HOSTILE: &str = r"
~ ^/([a-z0-9]{1,64}[-_.]?){1,40}\.html$
~ ^(a+)+$
~ ^(a|aa)+$
~ (.*)*x
~ ^(.*?,){11}P
~ (a|b)*a(a|b){40}
~ [a-z0-9]{2000,}
~* ^.{1,2000}$
~ (x+x+)+y
~ ^(([a-z])+.)+[A-Z]([a-z])+$
~ (?:.*=){12}
~ ^(?!.*(a|b).*c)(.*)(.*)(.*)(.*)x$
~ (?<=a)(a+)+b
~ ^(?:(?:a?){30}a{30})$
~ ^((?:a|b|ab)*)(?=.*z)
~ (\w+\s*)+:
~ ^(\w+)\1+$
~ (?>a+)b
~ ^(.+)(.+)\1\2$
~ (a+)+\1b
~ ^(?>(a+))+$b
~ (?i)(?:\d+|[a-z]+|%[0-9a-f]{2})*;(?:\d+|[a-z]+|%[0-9a-f]{2})*;$
~ ^/(?:[^/]+/)*(?:[^/]+/)*(?:[^/]+/)*[^/]+\.php$
~ (.*)(.*)(.*)(.*)(.*)[^a]$
~ ^.{1,500}b.{1,500}c.{1,500}d$
~ ((((a{1,8}){1,8}){1,8}){1,8})b
~ ^((((a{1,8}){1,8}){1,8}){1,8})b
~ ^((((a{1,8}x?){1,8}){1,8}){1,8})b
~ ^/(a+)\1+b$
~ (\pL+\s*)+\d$
~ ([\p{Lu}\d]+-?)+!$
";
