//! Parity: one configuration and one list of raw requests go to nginx and to Tidegate, and
//! everything that can be seen from outside is compared: status, headers in order, body, what
//! becomes of the connection, access log and error log.
//!
//! The cases are in tests/parity/cases (case.rs says how they are written). The reference is the
//! nginx that is installed; where its version answers differently from 1.31, or there is none, the
//! transcript recorded from 1.31 is. Differences that Tidegate wants are marked in the case and
//! explained in docs/differences.md; a mark without a difference is a failure too.
//!
//! What HTTP/2 can say of these cases is sent over HTTP/2 as well (http2/plan.rs decides by rule,
//! and the run says how many it has not and why), to servers of their own with `http2 on`: nginx
//! where it knows that, and Tidegate, of each file on one of its engines. Their transcripts are in
//! transcripts/http2, as far as they are not what HTTP/1's lead to expect (http2/expected.rs). What
//! Tidegate wants otherwise there is in http2-differences.txt.
//!
//! On a machine that is busy with other things a timer may fire late, or two log lines may change
//! places. So a file with a failure runs again, alone, and what fails three times in a row is a
//! failure. A case that passes on a retry is named `flaky, passed on retry` and counted; one that
//! is flaky in three runs in a row fails the run (flaky.rs). A panic or an alert in a log is a
//! failure at once.
//!
//! `cargo test --test parity [-- [--record | --check] [--once] [AREA | AREA/CASE]…]`
//!   --once            what fails is not tried again
//!   --bypass          over virtual cards, to a Tidegate that passes the kernel by (bypass.rs);
//!                     takes root. Without it a part of the cases goes that way beside the others
//!   NGINX_BINARY      the nginx to compare with or to record from
//!   TIDEGATE_BINARY   another binary in Tidegate's place (nginx 1.31 there checks this harness)
//!   TIDEGATE_ENGINES  engines to run on (see `support::engines`); `none` writes no `use` line

mod backend;
mod bypass;
mod case;
mod client;
mod coverage;
mod flaky;
mod http2;
mod nameserver;
mod observe;
mod server;
mod tls;
mod transcript;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant, SystemTime};

use case::{Case, CaseFile};
use server::{Program, Protocol, Server};
use transcript::Transcript;

/// Case files that run at the same time.
const FILES_AT_ONCE: usize = 10;
/// How often a case may fail before it is a failure.
const ATTEMPTS: usize = 3;
/// The oldest nginx whose answers are the reference wherever it is installed.
const REFERENCE: (u32, u32) = (1, 31);
/// The oldest nginx that knows `http2 on`.
const HTTP2: (u32, u32) = (1, 25);

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Compare,
    Record,
    Check,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mode = match () {
        () if arguments.iter().any(|argument| argument == "--record") => Mode::Record,
        () if arguments.iter().any(|argument| argument == "--check") => Mode::Check,
        () => Mode::Compare,
    };
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS; // cargo's own question; the cases are not tests of its kind
    }
    let attempts = if arguments.iter().any(|argument| argument == "--once") {
        1
    } else {
        ATTEMPTS
    };
    let is_bypass = arguments.iter().any(|argument| argument == "--bypass");
    let filters: Vec<String> = arguments
        .into_iter()
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let done = if is_bypass {
        run_past_the_kernel(attempts, &filters)
    } else if mode == Mode::Compare && filters.is_empty() {
        run_both_ways(attempts)
    } else {
        run(mode, attempts, &filters, None)
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("parity: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Runs cases over a pair of virtual cards.
fn run_past_the_kernel(attempts: usize, filters: &[String]) -> Result<bool, String> {
    let Some(network) = bypass::Network::new() else {
        return Ok(true);
    };
    bypass::enter(&network)?;
    let path = std::env::var_os("TIDEGATE_BINARY")
        .map_or(PathBuf::from(env!("CARGO_BIN_EXE_tidegate")), PathBuf::from);
    let program = Program {
        engine: Some(bypass::ENGINE.to_owned()),
        ..Program::new(path)?
    };
    run(Mode::Compare, attempts, filters, Some(program))
}

/// Runs all cases, and beside them a part of the cases past the kernel: one server at a time has
/// the card, so that the part waits more than it works. The part has a process of its own, which
/// moves to another network.
fn run_both_ways(attempts: usize) -> Result<bool, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut past_the_kernel = std::process::Command::new(own);
    past_the_kernel.arg("--bypass").args(bypass::AREAS);
    let past_the_kernel = std::thread::spawn(move || past_the_kernel.output());
    let done = run(Mode::Compare, attempts, &[], None);
    println!("past the kernel: {}", bypass::AREAS.join(" "));
    let output = past_the_kernel
        .join()
        .expect("the other process is awaited");
    let output = output.map_err(|error| format!("past the kernel: {error}"))?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    Ok(done? && output.status.success())
}

/// Everything that a run needs to know.
struct Run {
    mode: Mode,
    nginx: Option<Program>,
    /// Tidegate, once for each engine.
    subjects: Vec<Program>,
    /// Case files that run at the same time.
    files_at_once: usize,
    /// Whether what HTTP/2 can say of cases is sent over it, too.
    speaks_http2: bool,
    /// `AREA/CASE` where an older nginx answers differently from 1.31.
    version_differences: BTreeMap<String, String>,
    /// `AREA/CASE` where Tidegate wants to differ over HTTP/2, and the sentence that says so.
    http2_differences: BTreeMap<String, Difference>,
    /// docs/differences.md with white space made equal.
    differences: String,
    folder: PathBuf,
}

/// What came of one case file.
#[derive(Default)]
struct Outcome {
    passed: usize,
    /// What is wrong, by a name that is the same each time: `AREA/CASE on ENGINE`, or of a whole
    /// file.
    failures: BTreeMap<String, String>,
    /// Whether a failure cannot be one of time.
    settled: bool,
    /// What failed, and passed on a retry, with what was wrong.
    flaky: BTreeMap<String, String>,
}

impl Outcome {
    fn fail(&mut self, name: impl Into<String>, message: String) {
        self.failures.insert(name.into(), message);
    }

    /// Takes what has failed in both of two runs of a file for the failures.
    fn confirm(&mut self, again: Outcome) {
        let (failed, passed): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.failures)
            .into_iter()
            .partition(|(name, _)| again.settled || again.failures.contains_key(name));
        self.passed += passed.len();
        self.flaky.extend(passed);
        self.failures = if again.settled {
            again.failures
        } else {
            failed
        };
        self.settled = again.settled;
    }
}

/// With a program that passes the kernel by, that is who is asked: one server at a time has the
/// card, and transcripts are the reference.
fn run(
    mode: Mode,
    attempts: usize,
    filters: &[String],
    passing_by: Option<Program>,
) -> Result<bool, String> {
    let start = Instant::now();
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity");
    let files = load_files(&here.join("cases"), filters)?;
    let run = Run {
        mode,
        nginx: match passing_by {
            Some(_) => None,
            None => find_nginx()?,
        },
        files_at_once: if passing_by.is_some() {
            1
        } else {
            FILES_AT_ONCE
        },
        speaks_http2: passing_by.is_none(),
        subjects: match passing_by {
            Some(program) => vec![program],
            None if mode == Mode::Compare => subjects()?,
            None => Vec::new(),
        },
        version_differences: version_differences(&here.join("version-differences.txt"))?,
        http2_differences: http2_differences(&here.join("http2-differences.txt"))?,
        differences: words(
            &std::fs::read_to_string(here.join("../../docs/differences.md")).unwrap_or_default(),
        ),
        // The number of digits is fixed, so that lengths of texts with paths are too.
        folder: PathBuf::from(format!("/tmp/tidegate-parity-{:07}", std::process::id())),
    };
    match &run.nginx {
        Some(nginx) => println!(
            "reference: nginx {} at {}",
            nginx.version,
            nginx.path.display()
        ),
        None => println!("reference: transcripts of nginx 1.31"),
    }

    let recorded = here.join("transcripts");
    let handle_file = |file: &CaseFile| handle(&run, file, &recorded);
    let mut outcomes = in_threads(run.files_at_once, &files, handle_file);
    for _ in 1..attempts {
        for (file, outcome) in files.iter().zip(&mut outcomes) {
            if mode == Mode::Compare && !outcome.failures.is_empty() && !outcome.settled {
                outcome.confirm(handle_file(file));
            }
        }
    }
    let _ = std::fs::remove_dir_all(&run.folder);
    let mut failures: Vec<String> = Vec::new();
    let mut passed = 0;
    let mut flaky = BTreeMap::new();
    for outcome in outcomes {
        passed += outcome.passed;
        failures.extend(outcome.failures.into_values());
        flaky.extend(outcome.flaky);
    }
    for (name, message) in &flaky {
        println!("test {name} ... flaky, passed on retry\n{message}");
    }
    if mode == Mode::Compare && attempts > 1 {
        failures.extend(remember(&flaky, &files)?);
    }
    tell_of_http2(&files);
    if mode == Mode::Check || (mode == Mode::Compare && filters.is_empty()) {
        let transcripts = files.into_iter().map(|file| {
            let path = here.join("transcripts").join(format!("{}.txt", file.area));
            (file, Transcript::load(&path))
        });
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        failures.extend(coverage::findings(root, &transcripts.collect::<Vec<_>>()));
    }
    if mode == Mode::Check {
        println!("not visible from outside, and so not covered:");
        coverage::invisible().for_each(|line| println!("    {line}"));
    }
    for failure in &failures {
        println!("\n{failure}");
    }
    let verdict = if failures.is_empty() { "ok" } else { "FAILED" };
    println!("\nparity: {} flaky, passed on retry", flaky.len());
    println!(
        "test result: {verdict}. {passed} passed; {} failed; 0 ignored; 0 measured; 0 filtered out; \
         finished in {:.2}s\n",
        failures.len(),
        start.elapsed().as_secs_f64()
    );
    Ok(failures.is_empty())
}

/// Says how many cases HTTP/2 has, and why it has not the others.
fn tell_of_http2(files: &[CaseFile]) {
    let mut eligible = 0;
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    let of_http = || files.iter().filter(|file| file.stream.is_empty());
    for case in of_http().flat_map(|file| &file.cases) {
        match http2::plan::plan(case) {
            Ok(_) => eligible += 1,
            Err(reason) => *reasons.entry(reason).or_default() += 1,
        }
    }
    let others: usize = reasons.values().sum();
    let own = of_http().flat_map(|file| &file.cases);
    let own = own.filter(|case| case.is_of_http2()).count();
    println!(
        "{eligible} cases over HTTP/2, {own} of them its own; {others} have no meaning there:"
    );
    for (reason, count) in reasons {
        println!("    {count:4}  {reason}");
    }
}

/// Counts what was flaky beside earlier runs, and returns what was so too often.
fn remember(flaky: &BTreeMap<String, String>, files: &[CaseFile]) -> Result<Vec<String>, String> {
    flaky::check_itself();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("parity-flaky.txt");
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let ran = |name: &str| {
        let name = name.split(" on ").next().unwrap_or(name);
        let (area, case) = name.split_once('/').unwrap_or((name, ""));
        let has =
            |file: &&CaseFile| case.is_empty() || file.cases.iter().any(|known| known.name == case);
        files
            .iter()
            .filter(|file| file.area == area)
            .any(|file| has(&file))
    };
    let names = flaky.keys().map(String::as_str).collect();
    let (after, findings) = flaky::count(&before, &names, ran);
    std::fs::write(&path, after).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(findings)
}

fn load_files(folder: &Path, filters: &[String]) -> Result<Vec<CaseFile>, String> {
    let entries =
        std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "parity")
        })
        .collect();
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        let mut file = case::load(&path)?;
        let area = file.area.clone();
        file.cases.retain(|case| {
            filters.is_empty()
                || filters
                    .iter()
                    .any(|filter| *filter == area || *filter == format!("{area}/{}", case.name))
        });
        if !file.cases.is_empty() {
            files.push(file);
        }
    }
    Ok(files)
}

fn find_nginx() -> Result<Option<Program>, String> {
    if let Some(path) = std::env::var_os("NGINX_BINARY") {
        return Program::new(PathBuf::from(path)).map(Some);
    }
    let usual = [
        "/usr/sbin/nginx",
        "/usr/local/sbin/nginx",
        "/usr/local/nginx/sbin/nginx",
    ];
    usual
        .iter()
        .map(PathBuf::from)
        .find(|path| path.is_file())
        .map(Program::new)
        .transpose()
}

fn subjects() -> Result<Vec<Program>, String> {
    let path = std::env::var_os("TIDEGATE_BINARY")
        .map_or(PathBuf::from(env!("CARGO_BIN_EXE_tidegate")), PathBuf::from);
    let program = Program::new(path)?;
    let without_use = std::env::var("TIDEGATE_ENGINES").is_ok_and(|engines| engines == "none");
    if program.is_nginx || without_use {
        return Ok(vec![program]);
    }
    let engines = support::engines::names();
    Ok(engines
        .into_iter()
        .map(|engine| Program {
            engine: Some(engine.to_owned()),
            ..program.clone()
        })
        .collect())
}

/// Lines of `AREA/CASE REASON`.
fn version_differences(path: &Path) -> Result<BTreeMap<String, String>, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            line.split_once(' ')
                .map(|(name, reason)| (name.to_string(), reason.trim().to_string()))
                .ok_or(format!("{}: `{line}` gives no reason", path.display()))
        })
        .collect()
}

/// A difference that Tidegate wants.
#[derive(Clone, Default)]
struct Difference {
    /// The sentence of docs/differences.md.
    reason: String,
    /// Whether it is not there each time.
    is_chance: bool,
}

/// A line in brackets is the sentence of the cases below it, each of which stands as `AREA/CASE`.
fn http2_differences(path: &Path) -> Result<BTreeMap<String, Difference>, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let (mut differences, mut difference) = (BTreeMap::new(), Difference::default());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            Some(line) => {
                difference = Difference {
                    reason: line.trim_start_matches("? ").to_string(),
                    is_chance: line.starts_with("? "),
                }
            }
            None => {
                let names = line.split_whitespace();
                differences.extend(names.map(|name| (name.to_string(), difference.clone())));
            }
        }
    }
    Ok(differences)
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs `work` on every file, some at a time, and keeps their order. Those that take long come
/// first, so that none is left alone at the end.
fn in_threads(
    at_once: usize,
    files: &[CaseFile],
    work: impl Fn(&CaseFile) -> Outcome + Sync,
) -> Vec<Outcome> {
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(files.get(*index).map(cost)));
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let index = order.get(next.fetch_add(1, Ordering::Relaxed)).copied();
                    let Some((index, file)) =
                        index.and_then(|index| Some((index, files.get(index)?)))
                    else {
                        return;
                    };
                    let outcome = work(file);
                    outcomes.lock().unwrap().insert(index, outcome);
                }
            });
        }
    });
    outcomes.into_inner().unwrap().into_values().collect()
}

/// About how long a file's cases take: they wait where they pause and, where time is part of an
/// answer, for the beginning of a second.
fn cost(file: &CaseFile) -> Duration {
    let of_case = |case: &Case| {
        let pauses = case.steps.iter().map(|step| match step {
            case::Step::Pause(time) => *time,
            _ => Duration::ZERO,
        });
        let waits = if case.timed { 300 } else { 0 };
        pauses.sum::<Duration>() + Duration::from_millis(20 + waits)
    };
    file.cases.iter().map(of_case).sum()
}

/// One case file: record it, check it, or compare. Its servers run side by side.
fn handle(run: &Run, file: &CaseFile, recorded: &Path) -> Outcome {
    let mut outcome = Outcome::default();
    let nginx = run.nginx.as_ref();
    let version = nginx.and_then(|nginx| case::version_numbers(&nginx.version));
    let reads = |needed: Option<(u32, u32)>| nginx.filter(|_| needed <= version);
    // Where time is part of an answer, the protocols do not slow each other down.
    let (is_timed, apart) = (file.cases.iter().any(|case| case.timed), RwLock::new(()));
    let observe = |program: &Program, protocol: Protocol, name: &str| {
        let folder = run.folder.join(format!("{}-{name}", file.area));
        let (shared, alone) = match (is_timed, protocol) {
            (false, _) => (None, None),
            (true, Protocol::Http1) => (apart.read().ok(), None),
            (true, Protocol::Http2) => (None, apart.write().ok()),
        };
        let seen = observe_all(program, file, protocol, &folder);
        drop((shared, alone));
        seen
    };
    let path = recorded.join(format!("{}.txt", file.area));
    let path_of_http2 = recorded.join("http2").join(format!("{}.txt", file.area));
    let subject_of_http2 = run.subject_of_http2(file);
    let (references, seen) = std::thread::scope(|scope| {
        let start = |program, protocol, name: &'static str| {
            scope.spawn(move || observe(program, protocol, name))
        };
        // The folders' names have one length, so that texts with paths have too.
        let live = reads(file.needs).map(|nginx| start(nginx, Protocol::Http1, "nginx"));
        let live_http2 =
            reads(file.needs.max(Some(HTTP2))).map(|nginx| start(nginx, Protocol::Http2, "ngin2"));
        let subjects: Vec<_> = run
            .subjects
            .iter()
            .zip(["first", "other"])
            .map(|(subject, name)| (subject, Protocol::Http1, name))
            .chain(subject_of_http2.map(|subject| (subject, Protocol::Http2, "third")))
            .map(|(subject, protocol, name)| (subject, protocol, start(subject, protocol, name)))
            .collect();
        let seen: Vec<_> = subjects
            .into_iter()
            .map(|(subject, protocol, thread)| {
                let seen = thread.join().expect("an observer panicked");
                (subject, protocol, seen)
            })
            .collect();
        let joined = [live, live_http2].map(|thread| {
            let live = thread.map(|thread| thread.join().expect("an observer panicked"));
            live.transpose()
        });
        (joined, seen)
    });
    let [Ok(live), Ok(live_http2)] = references else {
        for message in references.into_iter().filter_map(Result::err) {
            outcome.fail("the reference", format!("{}: nginx: {message}", file.area));
        }
        return outcome;
    };
    let transcript = Transcript::load(&path);
    let of_http2 = http2::expected::whole(file, &transcript, &Transcript::load(&path_of_http2));
    match (run.mode, live, live_http2) {
        (Mode::Record, Some(live), Some(live_http2)) => {
            let version = nginx.map_or("", |nginx| nginx.version.as_str());
            let different = http2::expected::different(&live, &live_http2);
            let saved = live.save(&path, version);
            match saved.and_then(|()| different.save(&path_of_http2, version)) {
                Ok(()) => outcome.passed = file.cases.len(),
                Err(message) => outcome.fail("the transcript", message),
            }
        }
        (Mode::Record, ..) => outcome.fail(
            "the reference",
            format!("{}: there is no nginx that can be recorded", file.area),
        ),
        (Mode::Check, live, live_http2) => {
            let cases = Protocol::Http1.cases(file);
            check(run, file, &cases, &transcript, live.as_ref(), &mut outcome);
            let cases = Protocol::Http2.cases(file);
            check(
                run,
                file,
                &cases,
                &of_http2,
                live_http2.as_ref(),
                &mut outcome,
            );
        }
        (Mode::Compare, live, live_http2) => {
            for (subject, protocol, seen) in seen {
                let (recorded, live) = match protocol {
                    Protocol::Http1 => (&transcript, live.as_ref()),
                    Protocol::Http2 => (&of_http2, live_http2.as_ref()),
                };
                let reference = Reference {
                    protocol,
                    recorded,
                    live,
                };
                compare(run, subject, seen, file, &reference, &mut outcome);
            }
        }
    }
    outcome
}

/// What one file's cases are compared with.
struct Reference<'a> {
    protocol: Protocol,
    recorded: &'a Transcript,
    live: Option<&'a Transcript>,
}

impl Protocol {
    /// The cases that have a meaning.
    fn cases(self, file: &CaseFile) -> Vec<&Case> {
        let cases = file.cases.iter();
        cases
            .filter(|case| match self {
                Protocol::Http1 => !case.is_of_http2(),
                Protocol::Http2 => file.stream.is_empty() && http2::plan::plan(case).is_ok(),
            })
            .collect()
    }
}

impl Run {
    /// Who is sent a file's cases over HTTP/2: one engine's Tidegate, another for every other file.
    fn subject_of_http2(&self, file: &CaseFile) -> Option<&Program> {
        if !self.speaks_http2 {
            return None;
        }
        let sum: usize = file.area.bytes().map(usize::from).sum();
        self.subjects.get(sum % self.subjects.len().max(1))
    }
}

/// Goes through all cases of a file on one server of its own.
fn observe_all(
    program: &Program,
    file: &CaseFile,
    protocol: Protocol,
    prefix: &Path,
) -> Result<Transcript, String> {
    let mut transcript = Transcript::default();
    let cases = protocol.cases(file);
    if cases.is_empty() {
        return Ok(transcript);
    }
    let mut server = Server::start(program, file, protocol, prefix)?;
    for case in cases {
        let address = server.address(case.on.as_deref());
        let case = filled(case, &server);
        if case.timed {
            wait_for_an_early_moment();
        }
        let before = server.connection_number()?;
        let root = server.prefix.join("www");
        let seen = match protocol {
            Protocol::Http1 => client::converse(&address, &case, &root, || server.pass_the_loop()),
            Protocol::Http2 => http2::converse(&address, &case, &root, || server.pass_the_loop()),
        };
        let text = seen.and_then(|seen| observe::observe(&mut server, &case, &seen, before));
        transcript.push(
            &case.name,
            text.map_err(|message| format!("{}: {message}", case.name))?,
        );
    }
    match server.stop().as_slice() {
        [] => Ok(transcript),
        alarms => Err(format!("{}\n{}", server::ALARMS, alarms.join("\n"))),
    }
}

/// `limit_rate` counts by the seconds of the clock, so a request late in a second may end one
/// earlier: timed cases begin in the first half of one.
fn wait_for_an_early_moment() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let passed = Duration::from_millis(now.unwrap_or_default().subsec_millis().into());
    if passed > Duration::from_millis(500) {
        std::thread::sleep(Duration::from_millis(1050).saturating_sub(passed));
    }
}

/// The case with the placeholders in its requests filled in.
fn filled(case: &Case, server: &Server) -> Case {
    let steps = case
        .steps
        .iter()
        .map(|step| server::filled(step, &server.prefix, &server.ports))
        .collect();
    Case {
        name: case.name.clone(),
        steps,
        ignore_digits: case.ignore_digits,
        timed: case.timed,
        fewer_than: case.fewer_than,
        tls: case.tls.clone(),
        from: case.from,
        ..Case::default()
    }
}

/// Compares what one server did with the reference.
fn compare(
    run: &Run,
    subject: &Program,
    seen: Result<Transcript, String>,
    file: &CaseFile,
    reference: &Reference,
    outcome: &mut Outcome,
) {
    let Reference {
        protocol,
        recorded,
        live,
    } = *reference;
    let engine = subject.engine.as_deref().unwrap_or("default");
    let engine = match protocol {
        Protocol::Http1 => engine.to_string(),
        Protocol::Http2 => format!("{engine} over HTTP/2"),
    };
    let seen = match seen {
        Ok(seen) => seen,
        Err(message) => {
            outcome.settled |= message.starts_with(server::ALARMS);
            let name = format!("{} on {engine}", file.area);
            outcome.fail(&name, format!("{name}: {message}"));
            return;
        }
    };
    for case in protocol.cases(file) {
        let name = format!("{}/{}", file.area, case.name);
        let old_nginx = run
            .nginx
            .as_ref()
            .and_then(|nginx| case::version_numbers(&nginx.version))
            < Some(REFERENCE);
        let by_transcript =
            live.is_none() || (old_nginx && run.version_differences.contains_key(&name));
        let reference = if by_transcript {
            recorded.get(&case.name)
        } else {
            live.and_then(|live| live.get(&case.name))
        };
        let (Some(reference), Some(seen)) = (reference, seen.get(&case.name)) else {
            outcome.fail(&name, format!("{name}: there is no transcript, record it"));
            continue;
        };
        let differs = match protocol {
            Protocol::Http1 => case.differs.as_ref(),
            // What a case says of itself is of HTTP/1, and explains what differs here, too.
            Protocol::Http2 => {
                let is_equal = reference == seen;
                let listed = run.http2_differences.get(&name);
                let listed = listed.filter(|listed| !(listed.is_chance && is_equal));
                let of_http1 = case.differs.as_ref().filter(|_| !is_equal);
                listed.map(|listed| &listed.reason).or(of_http1)
            }
        };
        match (differs, reference == seen) {
            (None, true) => outcome.passed += 1,
            (None, false) => outcome.fail(
                format!("{name} on {engine}"),
                format!(
                    "test {name} ({engine}) ... FAILED\n{}",
                    difference(reference, seen)
                ),
            ),
            (Some(_), true) => outcome.fail(
                format!("{name} on {engine}"),
                format!("{name} ({engine}): the expected difference is gone, take the mark away"),
            ),
            (Some(reason), false) if run.differences.contains(&words(reason)) => {
                outcome.passed += 1
            }
            (Some(reason), false) => outcome.fail(
                format!("{name} on {engine}"),
                format!("{name}: docs/differences.md does not say: {reason}"),
            ),
        }
    }
}

/// Says where the installed nginx and the transcript do not agree and no version difference is
/// listed.
fn check(
    run: &Run,
    file: &CaseFile,
    cases: &[&Case],
    recorded: &Transcript,
    live: Option<&Transcript>,
    outcome: &mut Outcome,
) {
    for case in cases {
        let name = format!("{}/{}", file.area, case.name);
        let listed = run.version_differences.contains_key(&name);
        match (
            recorded.get(&case.name),
            live.and_then(|live| live.get(&case.name)),
        ) {
            (None, _) => outcome.fail(&name, format!("{name}: there is no transcript, record it")),
            (Some(old), Some(now)) if old != now && !listed => outcome.fail(
                &name,
                format!(
                    "{name}: this nginx is not in tests/parity/version-differences.txt\n{}",
                    difference(old, now)
                ),
            ),
            (Some(old), Some(now))
                if old == now
                    && listed
                    && run.nginx.as_ref().is_some_and(|nginx| {
                        case::version_numbers(&nginx.version) < Some(REFERENCE)
                    }) =>
            {
                outcome.fail(
                    &name,
                    format!("{name}: listed in tests/parity/version-differences.txt, but equal"),
                )
            }
            _ => outcome.passed += 1,
        }
    }
}

/// The lines that are in one text only: `-` the reference's, `+` the other's, between common ones.
fn difference(reference: &str, other: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (reference.lines().collect(), other.lines().collect());
    let same_start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let same_end = old[same_start..]
        .iter()
        .rev()
        .zip(new[same_start..].iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let mut text = String::new();
    let mut add = |sign: char, lines: &[&str]| {
        lines
            .iter()
            .for_each(|line| text.push_str(&format!("    {sign} {line}\n")))
    };
    add(' ', &old[..same_start]);
    add('-', &old[same_start..old.len() - same_end]);
    add('+', &new[same_start..new.len() - same_end]);
    add(' ', &old[old.len() - same_end..]);
    text
}
