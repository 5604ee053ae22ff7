//! Random `stream` blocks and random sessions, to nginx and to Tidegate: what clients hear, how
//! their connections end, and what both logs say.
//!
//! One seed is one configuration and some sessions over TCP and UDP, one after the other, so that
//! balancers and limits are where they were. Lines are compared as a whole, sorted: sessions of
//! datagrams end by the clock. Not drawn is what docs/differences.md tells of `stream`: datagrams
//! beyond `proxy_buffer_size`, `ssl_preread` of datagrams and of less than five bytes, and whether
//! a connection ends by a reset. Not drawn either: TLS on any side, and PROXY headers over UDP,
//! which nginx does not read.

mod backends;
mod client;
mod configuration;

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::Options;
use crate::program::Program;
use crate::random::Random;
use crate::run::{Lane, printable};
use crate::world;
use backends::Backends;
use client::{Heard, Talk};
use configuration::{Drawn, Places};

/// Sessions of one seed.
const SESSIONS: usize = 14;

/// How long a session of datagrams may outlive its client; longer than any `proxy_timeout` that is
/// drawn for them.
const ENDS_WITHIN: Duration = Duration::from_millis(220);

/// How long both ends of a connection may take to hear of its end.
const LEAVES_WITHIN: Duration = Duration::from_millis(15);

/// What all times are multiplied by where the programs differ at first: a busy machine may have
/// been late.
const SLOWLY: u32 = 4;

/// What one program has done.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    heard: Vec<Heard>,
    /// Lines of both logs, sorted.
    lines: Vec<String>,
}

/// Runs the seeds of `options`, or so many from one on. Returns whether nothing was found.
pub(crate) fn go(options: &Options, seeds: &[u64]) -> Result<bool, String> {
    let reference = Program::reference()?;
    let subjects = Program::subjects()?;
    let next = AtomicU64::new(0);
    let findings = AtomicU64::new(0);
    let work = |number: usize| -> Result<(), String> {
        let lane = Lane::new(number)?;
        let (places, backends) = (Places::new(), Backends::start());
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            let mut random = Random::new(*seed);
            let drawn = Drawn::random(&mut random.fork(), &places, &backends);
            let mut talks = random.fork();
            let talks: Vec<Talk> = (0..SESSIONS)
                .map(|_| Talk::random(&mut talks, &drawn))
                .collect();
            if options.print {
                println!("{}", drawn.text(None, 1));
                continue;
            }
            let at = |pace: u32, program| run(&lane, program, &drawn, &talks, pace);
            let expected = match at(1, &reference) {
                Ok(expected) => expected,
                Err(message) if message.contains("unknown directive \"stream\"") => {
                    println!("streams: the reference has no stream: {message}");
                    return Ok(());
                }
                Err(message) => return Err(format!("seed {seed}: nginx: {message}")),
            };
            for subject in &subjects {
                let seen = at(1, subject).map_err(|message| {
                    let text = drawn.text(None, 1);
                    format!("seed {seed}: {}: {message}\n{text}", subject.name())
                })?;
                if seen == expected {
                    continue;
                }
                let (expected, seen) = (at(SLOWLY, &reference)?, at(SLOWLY, subject)?);
                // What a program does by chance it does not do again.
                if seen != expected
                    && at(SLOWLY, subject)? == seen
                    && at(SLOWLY, &reference)? == expected
                {
                    findings.fetch_add(1, Ordering::Relaxed);
                    let told = difference(&drawn, &talks, &expected, &seen);
                    println!("seed {seed}: {}\n{told}", subject.name());
                }
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..options.jobs)
            .map(|number| scope.spawn(move || work(number + 50)))
            .collect();
        let panicked = |_| Err(String::from("a lane has panicked"));
        lanes
            .into_iter()
            .try_for_each(|lane| lane.join().unwrap_or_else(panicked))
    })?;
    let findings = findings.into_inner();
    println!("streams: {} configurations, {findings} differ", seeds.len());
    Ok(findings == 0)
}

/// One program with one configuration, and all sessions. All times are multiplied by `pace`.
fn run(
    lane: &Lane,
    program: &Program,
    drawn: &Drawn,
    talks: &[Talk],
    pace: u32,
) -> Result<Seen, String> {
    let say = |error: std::io::Error| format!("{}: {error}", lane.prefix.display());
    world::lay_out(&lane.prefix, &[]).map_err(say)?;
    let text = program.dressed(&drawn.text(program.engine(), pace), lane.sentinel);
    let mut server = program.start(&lane.prefix, &text, lane.sentinel)?;
    let mut seen = Seen::default();
    for talk in talks {
        seen.heard.push(talk.run(pace));
        let ends_within = if talk.is_datagrams() {
            ENDS_WITHIN
        } else {
            LEAVES_WITHIN
        };
        std::thread::sleep(ends_within * pace);
        server.pass()?;
    }
    server.stop()?;
    for (name, own) in [("sessions.log", "session: "), ("error.log", "error: ")] {
        let bytes = fs::read(lane.prefix.join("logs").join(name)).unwrap_or_default();
        let lines = bytes.split(|byte| *byte == b'\n');
        let lines = lines.filter(|line| !line.is_empty()).map(printable);
        let lines = lines.filter_map(|line| match name {
            "error.log" => error_line(&line),
            _ => Some(line),
        });
        seen.lines.extend(lines.map(|line| format!("{own}{line}")));
    }
    seen.lines.sort_unstable();
    Ok(seen)
}

/// A line about a session, without its time, its process, its number, and the ports that the kernel
/// has given.
fn error_line(line: &str) -> Option<String> {
    let (_, rest) = line.split_once(" [")?;
    let (level, rest) = rest.split_once("] ")?;
    let (_, rest) = rest.split_once(": *")?;
    let (_, text) = rest.split_once(' ')?;
    if level == "debug" || text.contains("closed keepalive connection") {
        return None;
    }
    let text = match text.split_once(" connected to ") {
        Some((own, other)) => {
            let own = own.rsplit_once(':').map_or(own, |(own, _)| own);
            format!("{own} connected to {other}")
        }
        None => String::from(text),
    };
    Some(format!("[{level}] {text}"))
}

/// What differs, with the servers that it is about.
fn difference(drawn: &Drawn, talks: &[Talk], expected: &Seen, seen: &Seen) -> String {
    let mut told = String::new();
    let both = expected.heard.iter().zip(&seen.heard).zip(talks);
    for ((expected, seen), talk) in both {
        if expected == seen {
            told.push_str(&format!("{talk}\n  = {seen}\n"));
        } else {
            told.push_str(&format!("{talk}\n  - {expected}\n  + {seen}\n"));
        }
    }
    let count = |lines: &[String]| {
        let mut counts: BTreeMap<String, i32> = BTreeMap::new();
        for line in lines {
            *counts.entry(line.clone()).or_default() += 1;
        }
        counts
    };
    let (old, new) = (count(&expected.lines), count(&seen.lines));
    for (sign, these, others) in [('-', &old, &new), ('+', &new, &old)] {
        for (line, times) in these {
            if others.get(line) != Some(times) {
                told.push_str(&format!("  {sign} {times} x {line}\n"));
            }
        }
    }
    told + &drawn.text(None, 1)
}
