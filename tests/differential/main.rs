//! Random configurations and random requests, to nginx and to Tidegate: whatever can be seen from outside is the same, or
//! the table of documented differences (differences.rs) says why not.
//!
//! One seed is one configuration and some two hundred requests. The programs run one after the other in the same folder
//! with the same ports, so that nearly nothing has to be made equal. What differs is made as small as it gets and printed.
//!
//! `cargo test --test differential [-- OPTIONS]`
//!   --seed N           begin with this seed instead of the fixed ones
//!   --count K          so many seeds
//!   --for SECONDS      new seeds, from the clock, as long as that
//!   --jobs N           lanes at once
//!   --keep-going       do not end with the first finding
//!   --findings FOLDER  write each finding into a file there
//!
//!   NGINX_BINARY, TIDEGATE_BINARY, TIDEGATE_ENGINES   as for the parity cases

mod answers;
mod client;
mod compare;
mod differences;
mod format;
mod program;
mod random;
mod requests;
mod run;
mod sample;
mod shrink;
mod upstream;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use program::Program;
use random::Random;
use requests::{Aim, Conversation};
use run::Lane;
use sample::Sample as Configuration;
use shrink::{Finding, Pair};

/// The first of the seeds that `make test` runs, and how many.
const FIXED_SEEDS: (u64, u64) = (1, 20);
/// Requests of one seed.
const REQUESTS: usize = 200;
/// Differences of one seed that are made smaller.
const SHRUNK_MAX: usize = 3;

struct Options {
    seed: u64,
    /// `None` goes on until the time is over.
    count: Option<u64>,
    time: Option<Duration>,
    jobs: usize,
    keep_going: bool,
    findings: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS; // cargo's own question; seeds are not tests of its kind
    }
    match options(&arguments).and_then(|options| go(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("differential: {message}");
            ExitCode::FAILURE
        }
    }
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options {
        seed: FIXED_SEEDS.0,
        count: Some(FIXED_SEEDS.1),
        time: None,
        jobs: 2,
        keep_going: false,
        findings: None,
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} takes a value"));
        let number = |text: &String| {
            text.parse::<u64>()
                .map_err(|error| format!("{argument}: {error}"))
        };
        match argument.as_str() {
            "--seed" => {
                options.seed = number(value()?)?;
                options.count = Some(1);
            }
            "--count" => options.count = Some(number(value()?)?),
            "--for" => {
                options.time = Some(Duration::from_secs(number(value()?)?));
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                options.seed = now.map_or(0, |now| now.as_secs()) * 1_000;
                options.count = None;
            }
            "--jobs" => options.jobs = usize::try_from(number(value()?)?).unwrap_or(1).max(1),
            "--keep-going" => options.keep_going = true,
            "--findings" => options.findings = Some(PathBuf::from(value()?)),
            "--quiet" | "--nocapture" | "-q" => {}
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(options)
}

/// What all lanes share.
struct Campaign<'a> {
    options: &'a Options,
    reference: Program,
    subjects: Vec<Program>,
    next: AtomicU64,
    stop: AtomicBool,
    requests: AtomicUsize,
    /// How often each row of the table was met.
    rows: Mutex<BTreeMap<usize, usize>>,
    /// Findings by what they have in common, with the seeds that have them.
    findings: Mutex<BTreeMap<String, Vec<u64>>>,
}

fn go(options: &Options) -> Result<bool, String> {
    let campaign = Campaign {
        options,
        reference: Program::reference()?,
        subjects: Program::subjects()?,
        next: AtomicU64::new(options.seed),
        stop: AtomicBool::new(false),
        requests: AtomicUsize::new(0),
        rows: Mutex::default(),
        findings: Mutex::default(),
    };
    println!("reference: {}", campaign.reference.name());
    let start = Instant::now();
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..options.jobs)
            .map(|number| {
                scope.spawn({
                    let campaign = &campaign;
                    move || campaign.lane(number, start)
                })
            })
            .collect();
        lanes.into_iter().try_for_each(|lane| {
            lane.join()
                .unwrap_or_else(|_| Err(String::from("a lane has panicked")))
        })
    })?;
    let seeds = campaign.next.load(Ordering::Relaxed) - options.seed;
    let requests = campaign.requests.load(Ordering::Relaxed);
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds, {requests} requests to each of {} programs in {seconds:.0} s, {:.0} requests a second to each",
        campaign.subjects.len() + 1,
        requests as f64 / seconds
    );
    let findings = campaign.findings.into_inner().unwrap_or_default();
    for (name, seeds) in &findings {
        println!(
            "{} times: {name} (seeds {:?})",
            seeds.len(),
            &seeds[..seeds.len().min(5)]
        );
    }
    for (row, count) in campaign.rows.into_inner().unwrap_or_default() {
        println!(
            "{count} differences of row {row}: {}",
            &differences::TABLE[row]
                .sentence
                .chars()
                .take(60)
                .collect::<String>()
        );
    }
    let verdict = if findings.is_empty() { "ok" } else { "FAILED" };
    println!(
        "test result: {verdict}. {seeds} seeds; {} kinds of differences",
        findings.len()
    );
    Ok(findings.is_empty())
}

impl Campaign<'_> {
    fn lane(&self, number: usize, start: Instant) -> Result<(), String> {
        let lane = Lane::new(number)?;
        loop {
            let over = self.options.time.is_some_and(|time| start.elapsed() > time);
            if over || self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let seed = self.next.load(Ordering::Relaxed);
            if self
                .options
                .count
                .is_some_and(|count| seed >= self.options.seed + count)
            {
                return Ok(());
            }
            if self
                .next
                .compare_exchange(seed, seed + 1, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            if self.options.time.is_some() {
                println!("seed {seed}");
            }
            self.seed(&lane, seed);
        }
    }

    fn seed(&self, lane: &Lane, seed: u64) {
        let mut random = Random::new(seed);
        let configuration = Configuration::random(
            &mut random.fork(),
            &lane.prefix.display().to_string(),
            &lane.ports,
            &lane.upstream.addresses()[0],
            &format::log_format(),
        );
        let ports = [(lane.ports[0], false)];
        let targets = [world::uris(), configuration.targets()].concat();
        let aim = Aim {
            ports: &ports,
            targets: &targets,
            hosts: &configuration.hosts(),
        };
        let conversations = requests::random(&mut random.fork(), &aim, REQUESTS);
        let requests: usize = conversations
            .iter()
            .map(|conversation| conversation.exchanges.len())
            .sum();
        self.requests.fetch_add(requests, Ordering::Relaxed);
        let extra = Vec::new();
        let text = configuration.text(None);
        let reference = run::run(lane, &self.reference, &text, &extra, &conversations);
        for subject in &self.subjects {
            let own = configuration.text(subject.engine());
            let transcript = run::run(lane, subject, &own, &extra, &conversations);
            let found = compare::differences(&reference, &transcript);
            let (unknown, known) =
                differences::judge(self.reference.version(), (&reference, &transcript), found);
            if let Ok(mut rows) = self.rows.lock() {
                known
                    .into_iter()
                    .for_each(|row| *rows.entry(row).or_default() += 1);
            }
            let pair = Pair {
                lane,
                reference: &self.reference,
                subject,
                extra: &extra,
            };
            self.report(seed, &pair, &configuration, &conversations, unknown);
        }
    }

    /// Makes the first differences of each kind smaller, and tells of those that are new.
    fn report(
        &self,
        seed: u64,
        pair: &Pair,
        configuration: &Configuration,
        conversations: &[Conversation],
        unknown: Vec<compare::Difference>,
    ) {
        let mut seen = BTreeSet::new();
        let mut at = BTreeSet::new();
        for difference in unknown {
            // Of one conversation the first is the cause, and of one kind too.
            let new = seen.insert((difference.part, difference.key.clone()))
                && at.insert(difference.conversation);
            if !new || seen.len() > SHRUNK_MAX || self.stop.load(Ordering::Relaxed) {
                continue;
            }
            let Some(finding) = pair.shrink(configuration, conversations, &difference) else {
                println!(
                    "seed {seed}: {:?} {} did not come again",
                    difference.part, difference.key
                );
                continue;
            };
            let name = name(&finding);
            let Ok(mut findings) = self.findings.lock() else {
                return;
            };
            let seeds = findings.entry(name.clone()).or_default();
            seeds.push(seed);
            if seeds.len() > 1 {
                continue;
            }
            let report = told(seed, pair, &finding);
            println!("\n{report}");
            if let Some(folder) = &self.options.findings {
                let file: String = name
                    .chars()
                    .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
                    .take(100)
                    .collect();
                let _ = std::fs::create_dir_all(folder);
                let _ = std::fs::write(folder.join(format!("{file}.txt")), report);
            }
            if !self.options.keep_going && self.options.time.is_some() {
                self.stop.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// What findings of one fault have in common: the part, and the directives that are left.
fn name(finding: &Finding) -> String {
    let text = finding.configuration.text(None);
    let usual = [
        "}",
        "error_log",
        "events",
        "worker_connections",
        "http",
        "server",
        "listen",
        "root",
        "log_format",
        "access_log",
        "client_body_temp_path",
        "proxy_temp_path",
    ];
    let names = text
        .lines()
        .filter_map(|line| line.trim().split([' ', ';']).next());
    let names: BTreeSet<&str> = names.filter(|name| !usual.contains(name)).collect();
    let names: Vec<&str> = names.into_iter().collect();
    format!(
        "{:?} {} [{}]",
        finding.difference.part,
        finding.difference.key,
        names.join(" ")
    )
}

/// A finding in words.
fn told(seed: u64, pair: &Pair, finding: &Finding) -> String {
    let mut text = format!(
        "seed {seed}, {}: {}\n\n",
        pair.subject.name(),
        finding.difference
    );
    for line in finding
        .configuration
        .text(None)
        .lines()
        .filter(|line| !line.trim_start().starts_with("log_format"))
    {
        text.push_str(&format!("{line}\n"));
    }
    for conversation in &finding.conversations {
        let pipelined = if conversation.pipelined {
            ", all at once"
        } else {
            ""
        };
        let shuts = if conversation.shuts {
            ", then nothing more"
        } else {
            ""
        };
        text.push_str(&format!(
            "\nconnection to {}{pipelined}{shuts}\n",
            conversation.port
        ));
        for exchange in &conversation.exchanges {
            for segment in &exchange.segments {
                let shown = compare::shown(segment).replace('\n', "\n    > ");
                text.push_str(&format!("    > {shown}\n"));
            }
        }
    }
    text
}
