//! `tidegate status`: shows a server's activity in a terminal, from its live API.
//!
//! `endpoint` finds the API by a URL or a configuration; `client` sends requests; `view` formats
//! the values as text. Described in docs/api.md.

mod client;
mod endpoint;
mod view;

use std::ffi::OsString;
use std::io::{IsTerminal, Write, stdout};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use endpoint::ApiLocation;

/// The paths that are requested for each snapshot, without the version.
const PATHS: &[&str] = &[
    "nginx",
    "connections",
    "ssl",
    "http/requests",
    "http/upstreams",
    "stream/upstreams",
    "http/server_zones",
    "http/location_zones",
    "http/limit_reqs",
    "http/limit_conns",
    "http/caches",
    "xdp",
];

/// Show what a server does, by its live API
#[derive(clap::Args)]
#[command(disable_version_flag = true, args_override_self = true)]
pub(crate) struct Arguments {
    /// Where the API is, as in http://127.0.0.1:8081/api; without it, where the configuration has
    /// its `api`
    url: Option<String>,
    /// Configuration file in which the API is looked for
    #[arg(short = 'c', value_name = "FILE", conflicts_with = "url")]
    conf: Option<OsString>,
    #[arg(short = 'p', value_name = "PREFIX", conflicts_with = "url")]
    prefix: Option<OsString>,
    /// Look once and end, as where the output is no terminal
    #[arg(long)]
    once: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Look once and print one JSON object
    #[arg(long)]
    json: bool,
}

/// The API's values at one time.
pub(crate) struct Snapshot {
    /// The time of the snapshot.
    at: Instant,
    answers: Map<String, Value>,
}

impl Snapshot {
    fn take(endpoint: &ApiLocation) -> Result<Snapshot, String> {
        let mut answers = Map::new();
        for path in PATHS {
            let answer = client::get(endpoint, path)?;
            answers.insert((*path).to_owned(), answer);
        }
        Ok(Snapshot {
            at: Instant::now(),
            answers,
        })
    }
}

/// Shows the server's activity once, or until the process is interrupted.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let endpoint = match &arguments.url {
        Some(url) => ApiLocation::parse(url),
        None => endpoint::of_configuration(arguments.conf.as_ref(), arguments.prefix.as_ref()),
    };
    match endpoint.and_then(|endpoint| show(arguments, &endpoint)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => crate::failure::fail(&text),
    }
}

fn show(arguments: &Arguments, endpoint: &ApiLocation) -> Result<(), String> {
    let first = Snapshot::take(endpoint)?;
    if arguments.json {
        println!("{}", Value::Object(first.answers));
        return Ok(());
    }
    let refreshes = !arguments.once && stdout().is_terminal();
    let mut before: Option<Snapshot> = None;
    let mut now = Ok(first);
    loop {
        // Moves to the top left, and clears the screen below.
        let clear = if refreshes { "\x1b[H\x1b[J" } else { "" };
        match now {
            Ok(snapshot) => {
                print!("{clear}{}", view::render(&snapshot, before.as_ref()));
                before = Some(snapshot);
            }
            // The server may be started again, so its failure does not end the display.
            Err(text) => print!("{clear}{text}\n"),
        }
        let _ = stdout().flush();
        if !refreshes {
            return Ok(());
        }
        sleep(Duration::from_secs(arguments.interval));
        now = Snapshot::take(endpoint);
    }
}
