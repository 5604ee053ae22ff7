//! `tidegate bench memcached SERVER`: gets and sets for a memcached server, a comparison of two
//! servers (`--beside`), or a sweep over numbers of connections (`-c 1,10,100`).

use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use engine::EngineKind;
use load::Target;
use load::beside::{BesideTurn, Side};
use load::memcached::{
    KEY_LENGTH_MIN, MemcachedLength, MemcachedPlan, MemcachedProtocol, MemcachedResult, Popularity,
    Transport,
};
use load::tls::TlsFactory;
use process::Interrupt;

use super::beside::{self, BesideOptions, TURN_DEFAULT};
use super::options::{EngineName, TlsOptions, time};
use super::sweep::steps::{self, Steps};

/// The default port.
const PORT: u16 = 11211;

/// Maximum length of a memcached key, in bytes.
const KEY_LENGTH_MAX: usize = 250;

/// Maximum number of keys per get.
const KEYS_A_GET_MAX: u32 = 10_000;

/// The default duration of a run.
const DURATION_DEFAULT: Duration = Duration::from_secs(10);

/// Send gets and sets to a memcached server
#[derive(Args)]
pub(super) struct Options {
    /// The server: `HOST[:PORT]` or `unix:PATH`
    #[arg(value_name = "SERVER")]
    server: String,
    /// The protocol
    #[arg(short = 'p', long, value_enum, default_value = "text")]
    protocol: ProtocolName,
    /// Connections that are open at the same time; a list such as 1,10,100 or 1,10,...,280 has a
    /// run for each, one after the other
    #[arg(short = 'c', long, value_name = "LIST", default_value = "64", value_parser = steps::connections)]
    connections: Steps,
    /// Speak TLS
    #[arg(long, conflicts_with = "udp")]
    tls: bool,
    /// Send datagrams: requests are lost where an answer takes longer than --timeout
    #[arg(long)]
    udp: bool,
    #[command(flatten)]
    beside: BesideOptions,
    /// Threads that send load
    #[arg(short = 't', long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// How long load is sent, such as 10s, 500ms or 2m [default: 10s; a turn of --beside 1s]
    #[arg(short = 'd', long, value_name = "TIME", value_parser = time, conflicts_with = "requests")]
    duration: Option<Duration>,
    /// How many requests are sent instead
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Gets to sets
    #[arg(long, value_name = "GETS:SETS", default_value = "9:1", value_parser = ratio)]
    ratio: (u32, u32),
    /// How many keys there are; all are set before the measuring begins, but with --no-fill
    #[arg(short = 'k', long, value_name = "NUMBER", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000_000))]
    keys: u64,
    /// Length of a key, 12 to 250 bytes
    #[arg(long, value_name = "BYTES", default_value_t = 20, value_parser = key_length)]
    key_size: usize,
    /// Keys that one get asks for
    #[arg(short = 'm', long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(KEYS_A_GET_MAX)))]
    keys_a_get: u32,
    /// Length of a value, or the shortest and the longest such as 50-500: that of a key is always
    /// the same
    #[arg(short = 's', long, value_name = "BYTES", default_value = "100", value_parser = sizes)]
    size: RangeInclusive<usize>,
    /// Keys by Zipf's law with this exponent, such as 1.0; without it each is as likely
    #[arg(long, value_name = "EXPONENT", value_parser = exponent)]
    zipf: Option<f64>,
    /// What sets say of when an item expires, in seconds; 0 is never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    ttl: u32,
    /// Do not set all keys first: the hit ratio is then that of the run
    #[arg(long)]
    no_fill: bool,
    /// How long an answer may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    timeout: Duration,
    /// A host that is neither this machine nor in a private network, and may get load nevertheless
    #[arg(long, value_name = "HOST")]
    allow_remote: Vec<String>,
    /// The kernel interface of the clients
    #[arg(long, value_enum, default_value = "epoll")]
    engine: EngineName,
    /// Where random numbers start
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    tls_options: TlsOptions,
    /// The report as one JSON object; for a list of connections, one a line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ProtocolName {
    Text,
    Meta,
    Binary,
}

/// Runs a load test and prints its report. The exit code is 0 if at least one request succeeded.
pub(super) fn run(options: &Options) -> Result<ExitCode, String> {
    // Before other threads are started, so that they inherit the signal mask.
    let interrupt = Interrupt::take().map_err(|error| format!("signals: {error}"))?;
    if let Some(other) = &options.beside.beside {
        return compare(options, other, &interrupt);
    }
    let steps = &options.connections.0;
    let is_sweep = steps.len() > 1;
    let (mut succeeded, mut fills) = (0, true);
    if is_sweep && !options.json {
        println!("{SWEEP_HEAD}");
    }
    for connections in steps {
        let mut plan = options.plan(&options.server, *connections as usize)?;
        // The keys are set only once, before the first step.
        plan.fills &= std::mem::replace(&mut fills, false);
        let watch = || !interrupt.has_arrived();
        let result = load::memcached::run(&plan, watch)
            .map_err(|error| format!("{}: {error}", options.server))?;
        match (options.json, is_sweep) {
            (true, _) => print!("{}", result.json(&plan)),
            (false, false) => print!("{}", result.text(&plan)),
            (false, true) => println!("{}", sweep_line(&plan, &result)),
        }
        succeeded += result.succeeded();
        if result.interrupted {
            break;
        }
    }
    Ok(match succeeded {
        0 => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

/// The header line of a sweep's table.
const SWEEP_HEAD: &str =
    "connections   requests/s   get p50 ms   get p99 ms   set p99 ms    hits %   wrong  broken";

fn sweep_line(plan: &MemcachedPlan, result: &MemcachedResult) -> String {
    let time = |times: &load::memcached::RequestTimes, at: f64| {
        if times.is_empty() {
            "-".to_owned()
        } else {
            format!("{:.3}", times.value_at_quantile(at) as f64 / 1e6)
        }
    };
    let hits = result.hit_ratio();
    let hits = hits.map_or("-".to_owned(), |ratio| format!("{:.2}", ratio * 100.0));
    format!(
        "{:>11} {:>12.0} {:>12} {:>12} {:>12} {:>9} {:>7} {:>7}",
        plan.connections,
        result.rate(),
        time(&result.get_times, 0.5),
        time(&result.get_times, 0.99),
        time(&result.set_times, 0.99),
        hits,
        result.wrong,
        result.broken
    )
}

/// Compares two servers and prints the findings. The exit code is 0 if both servers have answered.
fn compare(options: &Options, other: &str, interrupt: &Interrupt) -> Result<ExitCode, String> {
    let [connections] = options.connections.0[..] else {
        return Err("--beside takes one number of connections".to_owned());
    };
    let (a, b) = (
        options.plan(&options.server, connections as usize)?,
        options.plan(other, connections as usize)?,
    );
    let comparison = options.beside.comparison("requests", "get", a.seed)?;
    let failed = |error| format!("{} beside {other}: {error}", options.server);
    for plan in [&a, &b].into_iter().filter(|plan| plan.fills) {
        let fill = MemcachedPlan {
            length: MemcachedLength::Requests(1),
            ..plan.clone()
        };
        load::memcached::run(&fill, || !interrupt.has_arrived()).map_err(failed)?;
    }
    let turn = |side, goes_on: &mut dyn FnMut() -> bool| {
        let plan = if side == Side::A { &a } else { &b };
        let plan = MemcachedPlan {
            fills: false,
            ..plan.clone()
        };
        let result = load::memcached::run(&plan, goes_on)?;
        Ok(BesideTurn {
            succeeded: result.succeeded(),
            failed: result.wrong + result.broken,
            rate: result.rate(),
            p99: result.get_times.value_at_quantile(0.99),
            per_cpu_second: None,
        })
    };
    beside::run(&comparison, options.json, interrupt, turn).map_err(failed)
}

impl Options {
    fn plan(&self, server: &str, connections: usize) -> Result<MemcachedPlan, String> {
        let scheme = if self.tls { "https://" } else { "" };
        let url = format!("{scheme}{}", with_port(server));
        let target = Target::parse(&url, &self.allow_remote).map_err(|error| error.to_string())?;
        let tls = TlsFactory::new(self.tls_options.settings());
        let tls = tls.tls(&target).map_err(|error| error.to_string())?;
        let default = match self.beside.beside {
            Some(_) => TURN_DEFAULT,
            None => DURATION_DEFAULT,
        };
        Ok(MemcachedPlan {
            transport: match tls {
                Some(tls) => Transport::Tls(tls),
                None if self.udp => Transport::Datagrams,
                None => Transport::Stream,
            },
            address: target.address,
            protocol: match self.protocol {
                ProtocolName::Text => MemcachedProtocol::Text,
                ProtocolName::Meta => MemcachedProtocol::Meta,
                ProtocolName::Binary => MemcachedProtocol::Binary,
            },
            connections,
            threads: usize::from(self.threads),
            engine: match self.engine {
                EngineName::Epoll => EngineKind::Epoll,
                EngineName::Uring => EngineKind::Uring,
            },
            length: match self.requests {
                Some(requests) => MemcachedLength::Requests(requests),
                None => MemcachedLength::Time(self.duration.unwrap_or(default)),
            },
            gets: self.ratio.0,
            sets: self.ratio.1,
            keys: self.keys,
            key_length: self.key_size,
            keys_a_get: self.keys_a_get,
            value: self.size.clone(),
            popularity: self.zipf.map_or(Popularity::Uniform, Popularity::Zipf),
            expires: self.ttl,
            fills: !self.no_fill,
            timeout: self.timeout,
            seed: self.seed,
        })
    }
}

/// The server as a URL, with memcached's default port if it has none.
fn with_port(server: &str) -> String {
    let has_port = match server.rsplit_once(':') {
        Some((host, port)) => !host.ends_with(']') || !port.is_empty(),
        None => false,
    };
    let is_bracketed = server.ends_with(']');
    if server.starts_with("unix:") || (has_port && !is_bracketed) {
        server.to_owned()
    } else {
        format!("{server}:{PORT}")
    }
}

fn ratio(text: &str) -> Result<(u32, u32), String> {
    let parts = text.split_once(':');
    let numbers = parts.and_then(|(gets, sets)| Some((gets.parse().ok()?, sets.parse().ok()?)));
    match numbers {
        Some((0, 0)) | None => Err("a ratio such as 9:1, 1:0 or 1:1 is expected".to_owned()),
        Some(numbers) => Ok(numbers),
    }
}

fn key_length(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(length @ KEY_LENGTH_MIN..=KEY_LENGTH_MAX) => Ok(length),
        _ => Err(format!(
            "{KEY_LENGTH_MIN} to {KEY_LENGTH_MAX} bytes are possible"
        )),
    }
}

fn sizes(text: &str) -> Result<RangeInclusive<usize>, String> {
    const SIZE_MAX: usize = 1 << 30;
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    match (least.parse(), most.parse()) {
        (Ok(least), Ok(most)) if least <= most && most <= SIZE_MAX => Ok(least..=most),
        _ => Err("a number of bytes, or two such as 50-500, is expected".to_owned()),
    }
}

fn exponent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(exponent) if exponent > 0.0 && exponent <= 10.0 => Ok(exponent),
        _ => Err("an exponent above 0 and up to 10 is expected".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_understood() {
        assert_eq!(with_port("127.0.0.1"), "127.0.0.1:11211");
        assert_eq!(with_port("127.0.0.1:5"), "127.0.0.1:5");
        assert_eq!(with_port("[::1]"), "[::1]:11211");
        assert_eq!(with_port("[::1]:5"), "[::1]:5");
        assert_eq!(with_port("unix:/tmp/s"), "unix:/tmp/s");
        assert_eq!(ratio("9:1"), Ok((9, 1)));
        assert_eq!(ratio("0:1"), Ok((0, 1)));
        assert!(ratio("0:0").is_err() && ratio("9").is_err() && ratio("a:1").is_err());
        assert_eq!(sizes("100"), Ok(100..=100));
        assert_eq!(sizes("50-500"), Ok(50..=500));
        assert!(sizes("500-50").is_err() && sizes("").is_err());
        assert!(key_length("11").is_err() && key_length("12").is_ok());
        assert!(exponent("0").is_err() && exponent("1.0").is_ok());
    }
}
