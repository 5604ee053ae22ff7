//! Random configurations and random requests, to nginx and to Tidegate: whatever can be seen from
//! outside is the same, or the table of documented differences (differences.rs) says why not.
//!
//! One seed is one configuration and some 200 requests. The programs run one after the other in the
//! same folder with the same ports, so that nearly nothing has to be made equal. What differs is
//! made as small as it gets and printed.
//!
//! `cargo test --test differential [-- OPTIONS]`, where the options are:
//!
//! ```text
//! --seed N            begin with this seed in place of the fixed ones
//! --count K           run this number of seeds
//! --for SECONDS       draw new seeds, from the clock, for this time
//! --jobs N            run this number of seeds at once
//! --keep-going        do not end with the first finding
//! --kinds             count the kinds of differences and make none smaller
//! --only WORDS        compare the parts whose name and key begin so: `Status`,
//!                     `Access request_uri`
//! --dense             write three times as many directives into each configuration
//! --verdicts          ask `-t` alone, of valid and of broken configurations
//! --streams           draw `stream` blocks and sessions alone
//! --findings FOLDER   write each finding into a file there
//! --print             print the configuration of the seed and end
//! --docs              write the table of differences into docs/differences.md and end
//! ```
//!
//!   NGINX_BINARY, TIDEGATE_BINARY, TIDEGATE_ENGINES   as for the parity cases

mod answers;
mod campaign;
mod case;
mod client;
mod compare;
mod configuration;
mod coverage;
mod differences;
mod format;
mod program;
mod random;
mod report;
mod requests;
mod run;
mod shrink;
mod streams;
mod upstream;
mod verdicts;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use configuration::Density;

/// The seeds that `make test` runs, beside nginx 1.31 as well as beside Debian's: about a minute on
/// two cores. The others up to 35 show differences of Debian's version that no row of it knows.
const FIXED_SEEDS: &[u64] = &[
    1, 2, 4, 5, 6, 7, 9, 10, 11, 13, 14, 16, 17, 18, 20, 21, 22, 23, 24, 26, 27, 28, 29, 30, 31,
    32, 33, 35,
];

/// The seeds of `stream` blocks that `make test` runs.
const FIXED_STREAM_SEEDS: std::ops::Range<u64> = 1..13;

/// What the command line asks for.
pub(crate) struct Options {
    /// The seeds; where there are none, those from `first` on until the time is over.
    pub(crate) seeds: Vec<u64>,
    pub(crate) first: u64,
    pub(crate) time: Option<Duration>,
    pub(crate) jobs: usize,
    pub(crate) keep_going: bool,
    /// Differences are counted and not made smaller.
    pub(crate) kinds: bool,
    /// What the part and key of a difference begin with that is looked into.
    pub(crate) only: String,
    /// How much is strewn over each configuration.
    pub(crate) density: Density,
    pub(crate) verdicts: bool,
    /// Blocks of `stream` are drawn, and nothing else.
    pub(crate) streams: bool,
    pub(crate) print: bool,
    /// Where findings are written to.
    pub(crate) findings: Option<PathBuf>,
}

impl Options {
    /// Whether it is the run of `make test`.
    pub(crate) fn is_fixed(&self) -> bool {
        self.seeds == FIXED_SEEDS
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS; // cargo's own question; seeds are not tests of its kind
    }
    // Names that `cargo test NAME` looks for.
    let is_name =
        |argument: &&String| !argument.starts_with('-') && argument.parse::<u64>().is_err();
    let names: Vec<&String> = if arguments.iter().any(|argument| argument.starts_with("--")) {
        Vec::new()
    } else {
        arguments.iter().filter(is_name).collect()
    };
    if !names.is_empty()
        && !names
            .iter()
            .any(|name| "differential".contains(name.as_str()))
    {
        return ExitCode::SUCCESS;
    }
    if arguments.iter().any(|argument| argument == "--docs") {
        let written = differences::check_page(true);
        return match written {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                eprintln!("differential: {message}");
                ExitCode::FAILURE
            }
        };
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

fn go(options: &Options) -> Result<bool, String> {
    if options.streams && !options.is_fixed() {
        return streams::go(options, &options.seeds);
    }
    let fixed: Vec<u64> = FIXED_STREAM_SEEDS.collect();
    let alike = !options.is_fixed() || streams::go(options, &fixed)?;
    Ok((options.streams || campaign::go(options)?) && alike)
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options {
        seeds: FIXED_SEEDS.to_vec(),
        first: 0,
        time: None,
        jobs: 2,
        keep_going: false,
        kinds: false,
        only: String::new(),
        density: Density::WRITTEN,
        verdicts: false,
        streams: false,
        print: false,
        findings: None,
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} takes a value"));
        let number = |text: &String| {
            let number = text.parse::<u64>();
            number.map_err(|error| format!("{argument}: {error}"))
        };
        match argument.as_str() {
            "--seed" => {
                options.first = number(value()?)?;
                options.seeds = vec![options.first];
            }
            "--count" => {
                let count = number(value()?)?;
                options.seeds = (options.first..options.first + count).collect();
            }
            "--for" => {
                options.time = Some(Duration::from_secs(number(value()?)?));
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                options.first = now.map_or(0, |now| now.as_secs()) * 1_000;
                options.seeds.clear();
            }
            "--jobs" => options.jobs = usize::try_from(number(value()?)?).unwrap_or(1).max(1),
            "--keep-going" => options.keep_going = true,
            "--kinds" => options.kinds = true,
            "--only" => options.only.clone_from(value()?),
            "--dense" => options.density = Density::DENSE,
            "--verdicts" => options.verdicts = true,
            "--streams" => options.streams = true,
            "--print" => options.print = true,
            "--findings" => options.findings = Some(PathBuf::from(value()?)),
            "--quiet" | "--nocapture" | "-q" => {}
            name if "differential".contains(name) => {}
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(options)
}
