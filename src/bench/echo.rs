//! `tidegate bench tcp SERVER` and `tidegate bench udp SERVER`: load for TCP and UDP proxies, a
//! comparison of two (`--beside`), or a sweep over numbers of clients (`-c 1,10,100`); and an echo
//! server to run behind them.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use engine::EngineKind;
use engine::net::{Address, SocketKind};
use load::Target;
use load::beside::{BesideTurn, Side};
use load::echo::{EchoLength, EchoPlan, EchoResult, EchoServer, EchoTraffic, SIZE_MIN};
use process::Interrupt;

use super::beside::{self, BesideOptions, TURN_DEFAULT};
use super::options::{EngineName, time};
use super::sweep::steps::{self, Steps};

/// The default duration of a run.
const DURATION_DEFAULT: Duration = Duration::from_secs(10);

/// Maximum length of a datagram's payload over IPv4, in bytes.
const DATAGRAM_MAX: u32 = 65_507;

/// Send messages through a TCP proxy whose server says everything back
#[derive(Args)]
pub(super) struct TcpOptions {
    #[command(flatten)]
    common: Common,
    /// What clients do: a message after the other on a kept connection, a connection for each
    /// message, or as many bytes as go
    #[arg(short = 'm', long, value_enum, default_value = "echo")]
    mode: ModeName,
    /// Length of a message
    #[arg(short = 's', long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(SIZE_MIN as i64..=1 << 24))]
    size: u32,
    /// How long a message may take to come back
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    timeout: Duration,
}

/// Send datagrams through a UDP proxy whose server says everything back
#[derive(Args)]
pub(super) struct UdpOptions {
    #[command(flatten)]
    common: Common,
    /// Send each datagram from a socket of its own: a session for each
    #[arg(long)]
    fresh: bool,
    /// Length of a datagram
    #[arg(short = 's', long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(SIZE_MIN as i64..=i64::from(DATAGRAM_MAX)))]
    size: u32,
    /// When a datagram that has not come back is lost
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = time)]
    timeout: Duration,
}

#[derive(Args)]
struct Common {
    /// The proxy: `HOST:PORT` or, for TCP, `unix:PATH`
    #[arg(value_name = "SERVER")]
    server: String,
    /// Be the server itself: listen there, and say everything back
    #[arg(long, conflicts_with = "beside")]
    serve: bool,
    /// Clients at the same time; a list such as 1,10,100 or 1,10,...,280 has a run for each, one
    /// after the other
    #[arg(short = 'c', long, value_name = "LIST", default_value = "64", value_parser = clients)]
    clients: Steps,
    #[command(flatten)]
    beside: BesideOptions,
    /// Threads
    #[arg(short = 't', long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// How long load is sent, such as 10s, 500ms or 2m [default: 10s; a turn of --beside 1s]
    #[arg(short = 'd', long, value_name = "TIME", value_parser = time, conflicts_with = "messages")]
    duration: Option<Duration>,
    /// How many messages are sent instead
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// A host that is neither this machine nor in a private network, and may get load nevertheless
    #[arg(long, value_name = "HOST")]
    allow_remote: Vec<String>,
    /// The kernel interface
    #[arg(long, value_enum, default_value = "epoll")]
    engine: EngineName,
    /// The report as one JSON object; for a list of clients, one a line
    #[arg(long)]
    json: bool,
}

/// Maximum number of clients of a run.
const CLIENTS_MAX: f64 = 100_000.0;

fn clients(text: &str) -> Result<Steps, String> {
    let steps = steps::connections(text)?;
    if steps.0.iter().all(|clients| *clients <= CLIENTS_MAX) {
        Ok(steps)
    } else {
        Err(format!("up to {CLIENTS_MAX} clients are possible"))
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum ModeName {
    Echo,
    Connect,
    Throughput,
}

/// Runs a load test over TCP, or the echo server. The exit code is 0 if at least one message was
/// echoed.
pub(super) fn run_tcp(options: &TcpOptions) -> Result<ExitCode, String> {
    let work = match options.mode {
        ModeName::Echo => EchoTraffic::Messages,
        ModeName::Connect => EchoTraffic::Connections,
        ModeName::Throughput => EchoTraffic::Throughput,
    };
    let (common, size) = (&options.common, options.size);
    common.run(SocketKind::Streams, work, size, options.timeout)
}

/// Runs a load test over UDP, or the echo server. The exit code is 0 if at least one datagram was
/// echoed.
pub(super) fn run_udp(options: &UdpOptions) -> Result<ExitCode, String> {
    let work = if options.fresh {
        EchoTraffic::Sockets
    } else {
        EchoTraffic::Datagrams
    };
    let (common, size) = (&options.common, options.size);
    common.run(SocketKind::Datagrams, work, size, options.timeout)
}

impl Common {
    fn run(
        &self,
        carries: SocketKind,
        work: EchoTraffic,
        size: u32,
        timeout: Duration,
    ) -> Result<ExitCode, String> {
        // Before other threads are started, so that they inherit the signal mask.
        let interrupt = Interrupt::take().map_err(|error| format!("signals: {error}"))?;
        let address = |server| self.address(server, carries);
        let failed = |error| format!("{}: {error}", self.server);
        if self.serve {
            let server = EchoServer {
                address: address(&self.server)?,
                carries,
                threads: usize::from(self.threads),
                engine: self.engine(),
            };
            load::echo::serve(&server, || !interrupt.has_arrived()).map_err(failed)?;
            return Ok(ExitCode::SUCCESS);
        }
        let plan = EchoPlan {
            address: address(&self.server)?,
            work,
            clients: 0,
            threads: usize::from(self.threads),
            engine: self.engine(),
            length: match self.messages {
                Some(messages) => EchoLength::Messages(messages),
                None => EchoLength::Time(self.duration.unwrap_or(match self.beside.beside {
                    Some(_) => TURN_DEFAULT,
                    None => DURATION_DEFAULT,
                })),
            },
            size: size as usize,
            timeout,
        };
        if let Some(other) = &self.beside.beside {
            let plans = self.beside_plans(plan, address(other)?)?;
            let failed = |error| format!("{} beside {other}: {error}", self.server);
            return self.compare(&plans, &interrupt).map_err(failed);
        }
        self.sweep(&plan, &interrupt).map_err(failed)
    }

    fn address(&self, server: &str, carries: SocketKind) -> Result<Address, String> {
        let target = Target::parse(server, &self.allow_remote);
        let address = target.map_err(|error| error.to_string())?.address;
        if carries == SocketKind::Datagrams && matches!(address, Address::Unix(_)) {
            return Err(format!("{server}: UDP has no such addresses"));
        }
        Ok(address)
    }

    fn engine(&self) -> EngineKind {
        match self.engine {
            EngineName::Epoll => EngineKind::Epoll,
            EngineName::Uring => EngineKind::Uring,
        }
    }

    /// The load for both servers.
    fn beside_plans(&self, plan: EchoPlan, other: Address) -> Result<[EchoPlan; 2], String> {
        let [clients] = self.clients.0[..] else {
            return Err("--beside takes one number of clients".to_owned());
        };
        let a = EchoPlan {
            clients: clients as usize,
            ..plan
        };
        let b = EchoPlan {
            address: other,
            ..a.clone()
        };
        Ok([a, b])
    }

    /// Compares two servers. The exit code is 0 if both have echoed messages in each round.
    fn compare(&self, [a, b]: &[EchoPlan; 2], interrupt: &Interrupt) -> io::Result<ExitCode> {
        let comparison = self.beside.comparison("messages", "message", SEED);
        let comparison = comparison.map_err(io::Error::other)?;
        let turn = |side, goes_on: &mut dyn FnMut() -> bool| {
            let plan = if side == Side::A { a } else { b };
            let result = load::echo::run(plan, goes_on)?;
            Ok(BesideTurn {
                succeeded: result.messages,
                failed: result.wrong + result.broken + result.lost,
                rate: result.rate(),
                p99: result.times.value_at_quantile(0.99),
                per_cpu_second: None,
            })
        };
        beside::run(&comparison, self.json, interrupt, turn)
    }

    /// Runs the load test for each number of clients. The exit code is 0 if at least one message
    /// was echoed.
    fn sweep(&self, plan: &EchoPlan, interrupt: &Interrupt) -> io::Result<ExitCode> {
        let steps = &self.clients.0;
        let is_sweep = steps.len() > 1;
        if is_sweep && !self.json {
            println!("{SWEEP_HEAD}");
        }
        let mut messages = 0;
        for clients in steps {
            let plan = EchoPlan {
                clients: *clients as usize,
                ..plan.clone()
            };
            let result = load::echo::run(&plan, || !interrupt.has_arrived())?;
            match (self.json, is_sweep) {
                (true, _) => print!("{}", result.json(&plan)),
                (false, false) => print!("{}", result.text(&plan)),
                (false, true) => println!("{}", sweep_line(&plan, &result)),
            }
            messages += result.messages;
            if result.interrupted {
                break;
            }
        }
        Ok(match messages {
            0 => ExitCode::FAILURE,
            _ => ExitCode::SUCCESS,
        })
    }
}

/// The seed of the random order of turns.
const SEED: u64 = 1;

/// The header line of a sweep's table.
const SWEEP_HEAD: &str =
    "clients   messages/s       p50 ms       p99 ms       MB/s    wrong   broken     lost";

fn sweep_line(plan: &EchoPlan, result: &EchoResult) -> String {
    let time = |at: f64| {
        if result.times.is_empty() {
            "-".to_owned()
        } else {
            format!("{:.3}", result.times.value_at_quantile(at) as f64 / 1e6)
        }
    };
    format!(
        "{:>7} {:>12.0} {:>12} {:>12} {:>10.1} {:>8} {:>8} {:>8}",
        plan.clients,
        result.rate(),
        time(0.5),
        time(0.99),
        result.received as f64 / result.elapsed.as_secs_f64().max(f64::MIN_POSITIVE) / 1e6,
        result.wrong,
        result.broken,
        result.lost
    )
}
