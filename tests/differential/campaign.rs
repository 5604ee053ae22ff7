//! A run over many seeds: lanes that take one after the other, and what they find.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::Options;
use crate::client::QUIET_TIME;
use crate::compare::{self, Difference};
use crate::configuration::{self, Configuration, DirectiveNames, Kind, Table};
use crate::coverage::Coverage;
use crate::differences;
use crate::format;
use crate::program::Program;
use crate::random::Random;
use crate::report;
use crate::requests::{self, Aim, Conversation};
use crate::run::{self, Lane, Transcript};
use crate::shrink::Pair;
use crate::{verdicts, world};

/// Requests of one seed.
const REQUESTS: usize = 200;
/// Differences of one seed that are made smaller.
const SHRUNK_MAX: usize = 3;
/// How many differences of one signature are made smaller in a run: those that come after are only
/// counted.
const KIND_MAX: usize = 2;
/// How many differences of one part and key are.
const KEY_MAX: usize = 6;
/// How many seeds of a finding are named at the end.
const SEEDS_NAMED: usize = 40;
/// How often both programs are asked again where they answer with files by chance.
const RANDOM_RUNS: usize = 4;
/// Broken configurations of one seed that `-t` is asked about, beside the valid one.
const BROKEN: usize = 2;
/// The same where nothing but `-t` is asked.
const BROKEN_ALONE: usize = 10;

/// What all lanes share.
struct Campaign<'a> {
    options: &'a Options,
    reference: Program,
    subjects: Vec<Program>,
    table: Table,
    /// How many seeds have been begun.
    next: AtomicU64,
    stop: AtomicBool,
    coverage: Mutex<Coverage>,
    /// How often each row of the table of differences was met.
    rows: Mutex<BTreeMap<usize, usize>>,
    /// How often each signature, and each part and key, was met.
    kinds: Mutex<BTreeMap<String, usize>>,
    /// Findings by what they have in common, with the seeds that have them.
    findings: Mutex<BTreeMap<String, Vec<u64>>>,
}

/// Runs it. Returns whether nothing was found.
pub(crate) fn go(options: &Options) -> Result<bool, String> {
    if options.is_fixed() {
        differences::check_page(false)?;
    }
    let reference = Program::reference()?;
    let table = table(&reference)?;
    let campaign = Campaign {
        options,
        reference,
        subjects: Program::subjects()?,
        table,
        next: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        coverage: Mutex::default(),
        rows: Mutex::default(),
        kinds: Mutex::default(),
        findings: Mutex::default(),
    };
    println!("reference: {}", campaign.reference.name());
    let start = Instant::now();
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..options.jobs)
            .map(|number| {
                let campaign = &campaign;
                scope.spawn(move || campaign.lane(number, start))
            })
            .collect();
        let panicked = |_| Err(String::from("a lane has panicked"));
        lanes
            .into_iter()
            .try_for_each(|lane| lane.join().unwrap_or_else(panicked))
    })?;
    Ok(campaign.end(start.elapsed().as_secs_f64()))
}

/// Asks the reference which directives it has.
fn table(reference: &Program) -> Result<Table, String> {
    let folder = PathBuf::from(format!(
        "/tmp/tidegate-differential-{:07}",
        std::process::id()
    ));
    let made = std::fs::create_dir_all(folder.join("logs"));
    made.map_err(|error| format!("{}: {error}", folder.display()))?;
    let version = reference.version().map(|number| number.to_string());
    let memory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let memory = memory.join(format!("differential-directives-{}", version.join(".")));
    let known = DirectiveNames::recall(reference.path(), &folder, &memory);
    let _ = std::fs::remove_dir_all(&folder);
    Ok(Table::new(&known, reference.version()))
}

impl Campaign<'_> {
    /// Tells what the run has covered and found.
    fn end(self, seconds: f64) -> bool {
        let coverage = self.coverage.into_inner().unwrap_or_default();
        println!(
            "{}",
            coverage.told(&self.table, self.subjects.len(), seconds)
        );
        for (row, count) in self.rows.into_inner().unwrap_or_default() {
            let mut all = differences::rows(self.reference.version());
            let row = all.nth(row).map_or("", |row| row.sentence);
            let sentence: String = row.chars().take(70).collect();
            println!("{count} times documented: {sentence}");
        }
        let findings = self.findings.into_inner().unwrap_or_default();
        for (name, seeds) in &findings {
            println!(
                "{} times: {name} (seeds {:?})",
                seeds.len(),
                &seeds[..seeds.len().min(SEEDS_NAMED)]
            );
        }
        let kinds = self.kinds.into_inner().unwrap_or_default();
        let often = kinds.into_iter().filter(|(_, count)| *count > KIND_MAX);
        for (kind, count) in often {
            println!("{count} times, the first ones looked into: {kind}");
        }
        if !coverage.is_enough() {
            println!("the reference refuses too many of them");
        }
        let is_well = findings.is_empty() && coverage.is_enough();
        let verdict = if is_well { "ok" } else { "FAILED" };
        println!(
            "test result: {verdict}. {} kinds of differences; finished in {seconds:.2}s",
            findings.len()
        );
        is_well
    }

    fn lane(&self, number: usize, start: Instant) -> Result<(), String> {
        let lane = Lane::new(number)?;
        loop {
            let over = self.options.time.is_some_and(|time| start.elapsed() > time);
            if over || self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let seeds = &self.options.seeds;
            let seed = match seeds.get(index as usize) {
                Some(seed) => *seed,
                None if seeds.is_empty() => self.options.first + index,
                None => return Ok(()),
            };
            if self.options.time.is_some() {
                println!("seed {seed}");
            }
            self.seed(&lane, seed)?;
        }
    }

    fn seed(&self, lane: &Lane, seed: u64) -> Result<(), String> {
        let mut random = Random::new(seed);
        let log_format = format::log_format();
        let world = lane.world();
        let configuration = Configuration::random(
            &mut random.fork(),
            seed,
            &world,
            &self.table,
            self.options.density,
            &log_format,
        );
        if self.options.print {
            println!("{}", configuration.text(None));
            return Ok(());
        }
        self.verdicts(lane, seed, &configuration, &mut random.fork())?;
        if self.options.verdicts {
            if let Ok(mut coverage) = self.coverage.lock() {
                coverage.add(&configuration, 0);
            }
            return Ok(());
        }
        let ports = ports(lane, &configuration);
        let targets = [
            world.files.clone(),
            configuration.targets(),
            configuration.targets(),
        ];
        let aim = Aim {
            ports: &ports,
            targets: &targets.concat(),
            hosts: &configuration.hosts(),
            puts: !configuration.reads_ahead_of_put(),
        };
        let conversations = requests::random(&mut random.fork(), &aim, REQUESTS);
        let extra = configuration::files();
        let run = |program: &Program| {
            let text = configuration.text(program.engine());
            run::run(lane, program, &text, &extra, &conversations, QUIET_TIME)
        };
        let reference = run(&self.reference);
        if reference.conversations.is_empty() {
            println!(
                "seed {seed}: the reference refuses it: {:?}",
                reference.alarms
            );
            if let Ok(mut coverage) = self.coverage.lock() {
                coverage.refuse();
            }
            return Ok(());
        }
        if let Ok(mut coverage) = self.coverage.lock() {
            let requests = conversations
                .iter()
                .map(|conversation| conversation.exchanges.len());
            coverage.add(&configuration, requests.sum());
        }
        let mut told = Vec::new();
        for subject in &self.subjects {
            let transcript = run(subject);
            let found = compare::differences(&reference, &transcript);
            let both = (&reference, &transcript);
            let text = configuration.text(None);
            let version = self.reference.version();
            let (unknown, known) = differences::judge(version, &text, &conversations, both, found);
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
            // What one engine has shown the other need not.
            let mut fresh: Vec<Difference> = unknown
                .iter()
                .filter(|difference| !told.contains(*difference))
                .filter(|difference| difference.name().starts_with(&self.options.only))
                .cloned()
                .collect();
            if !fresh.is_empty() {
                // Where a program disagrees with itself: random files, counts, times.
                let mut without_wavers = |first: &Transcript, program: &Program| {
                    let wavers = compare::differences(first, &run(program));
                    let wavers: BTreeSet<_> = wavers
                        .iter()
                        .map(|difference| (difference.conversation, difference.kind()))
                        .collect();
                    fresh.retain(|one| !wavers.contains(&(one.conversation, one.kind())));
                };
                without_wavers(&reference, &self.reference);
                if configuration.text(None).contains("random_index on") {
                    for _ in 0..RANDOM_RUNS {
                        without_wavers(&reference, &self.reference);
                        without_wavers(&transcript, subject);
                    }
                }
            }
            if self.options.kinds {
                self.count_all(seed, &pair, &conversations, both, fresh);
            } else {
                self.shrink(seed, &pair, &configuration, &conversations, fresh);
            }
            told.extend(unknown);
        }
        Ok(())
    }

    /// Asks `-t` about the configuration and about broken ones.
    fn verdicts(
        &self,
        lane: &Lane,
        seed: u64,
        configuration: &Configuration,
        random: &mut Random,
    ) -> Result<(), String> {
        let laid_out = world::lay_out(&lane.prefix, &configuration::files());
        laid_out.map_err(|error| format!("{}: {error}", lane.prefix.display()))?;
        let broken = if self.options.verdicts {
            BROKEN_ALONE
        } else {
            BROKEN
        };
        let mut texts = vec![configuration.text(None)];
        texts.extend((0..broken).map(|_| configuration.broken(random)));
        for text in texts {
            let Some(subject) = self.subjects.first() else {
                break;
            };
            let differ = verdicts::differ(&lane.prefix, &self.reference, subject, &text)?;
            let Some(differ) = differ.filter(|_| !self.stop.load(Ordering::Relaxed)) else {
                continue;
            };
            let name = format!("Verdict {}", differ.kind());
            if self.known(&name, seed) {
                continue;
            }
            if self.options.kinds {
                self.tell(&name, seed, &format!("seed {seed}: {name}"));
                continue;
            }
            let shrunk = verdicts::shrink(&lane.prefix, &self.reference, subject, &text);
            let Some((text, verdicts)) = shrunk else {
                continue;
            };
            let name = format!("Verdict {}", verdicts.kind());
            let report = format!(
                "seed {seed}: -t\n    nginx:    {}\n    tidegate: {}\n\n{text}",
                verdicts.reference, verdicts.subject
            );
            self.tell(&name, seed, &report);
        }
        Ok(())
    }

    /// Whether a finding of that name has been told already; counts it if so.
    fn known(&self, name: &str, seed: u64) -> bool {
        let Ok(mut findings) = self.findings.lock() else {
            return true;
        };
        findings
            .get_mut(name)
            .map(|seeds| seeds.push(seed))
            .is_some()
    }

    /// Prints and writes a finding unless one of its name has been.
    fn tell(&self, name: &str, seed: u64, report: &str) {
        if self.known(name, seed) {
            return;
        }
        if let Ok(mut findings) = self.findings.lock() {
            findings.insert(String::from(name), vec![seed]);
        }
        println!("\n{report}");
        if let Some(folder) = &self.options.findings {
            let _ = std::fs::create_dir_all(folder);
            let _ = std::fs::write(folder.join(report::file_name(name)), report);
        }
        if !self.options.keep_going && self.options.time.is_some() {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Counts a difference as a finding by its signature.
    fn count(&self, difference: &Difference, seed: u64, shown: impl FnOnce() -> String) {
        if let Ok(mut findings) = self.findings.lock() {
            let seeds = findings.entry(difference.signature()).or_default();
            seeds.push(seed);
            if seeds.len() == 1 {
                println!("\nseed {seed}: {difference}\n{}", shown());
            }
        }
    }

    /// Counts a kind of difference, and tells whether it was met often enough.
    fn is_often(&self, difference: &Difference) -> bool {
        let Ok(mut kinds) = self.kinds.lock() else {
            return true;
        };
        let mut count = |kind: String| {
            let count = kinds.entry(kind).or_default();
            *count += 1;
            *count
        };
        let often = count(difference.signature()) > KIND_MAX;
        let key = difference.name();
        // What is only counted takes nothing away from those of another signature.
        often || count(key) > KEY_MAX
    }

    /// Counts the causes among the differences of a seed; the first of each signature is shown.
    fn count_all(
        &self,
        seed: u64,
        pair: &Pair,
        conversations: &[Conversation],
        (reference, subject): (&Transcript, &Transcript),
        unknown: Vec<Difference>,
    ) {
        let names = [pair.reference.name(), pair.subject.name()];
        let names = names.each_ref().map(String::as_str);
        for difference in causes(unknown) {
            let shown = || {
                let index = difference.conversation?;
                let seen = [reference, subject].map(|run| run.conversations.get(index));
                let [Some(reference), Some(subject)] = seen else {
                    return None;
                };
                let conversation = conversations.get(index)?;
                Some(report::exchange(conversation, names, [reference, subject]))
            };
            self.count(&difference, seed, || shown().unwrap_or_default());
        }
    }

    /// Makes the first differences of each kind smaller, and tells of those that are new.
    fn shrink(
        &self,
        seed: u64,
        pair: &Pair,
        configuration: &Configuration,
        conversations: &[Conversation],
        unknown: Vec<Difference>,
    ) {
        let mut kinds = 0;
        for difference in causes(unknown) {
            kinds += 1;
            if kinds > SHRUNK_MAX || self.stop.load(Ordering::Relaxed) {
                break;
            }
            if self.is_often(&difference) {
                continue;
            }
            let Some(finding) = pair.shrink(configuration, conversations, &difference) else {
                println!(
                    "seed {seed}: did not come again: {:?} {}",
                    difference.part, difference.key
                );
                continue;
            };
            self.tell(
                &report::name(&finding),
                seed,
                &report::told(seed, pair, &finding),
            );
        }
    }
}

/// Of one conversation the first difference is the cause, and of one kind too.
fn causes(differences: Vec<Difference>) -> impl Iterator<Item = Difference> {
    let mut kinds = BTreeSet::new();
    let mut places = BTreeSet::new();
    differences.into_iter().filter(move |difference| {
        kinds.insert((difference.part, difference.key.clone()))
            && places.insert(difference.conversation)
    })
}

/// The ports that requests go to.
fn ports(lane: &Lane, configuration: &Configuration) -> Vec<(u16, Kind)> {
    let mut ports = vec![(lane.ports[0], Kind::Clear)];
    let others = configuration.ports().into_iter();
    ports.extend(others.filter(|(port, _)| *port != lane.ports[0]));
    ports
}
