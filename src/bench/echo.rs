//! `tidegate bench tcp SERVER` and `tidegate bench udp SERVER`: load for TCP and UDP proxies, and
//! an echo server to run behind them.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use engine::EngineKind;
use engine::net::{Address, SocketKind};
use load::Target;
use load::echo::{EchoLength, EchoPlan, EchoServer, EchoTraffic, SIZE_MIN};
use process::Interrupt;

use super::options::{EngineName, time};

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
    #[arg(long)]
    serve: bool,
    /// Clients at the same time
    #[arg(short = 'c', long, value_name = "NUMBER", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// Threads
    #[arg(short = 't', long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// How long load is sent, such as 10s, 500ms or 2m [default: 10s]
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
    /// The report as one JSON object
    #[arg(long)]
    json: bool,
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
        let target = Target::parse(&self.server, &self.allow_remote);
        let address = target.map_err(|error| error.to_string())?.address;
        if carries == SocketKind::Datagrams && matches!(address, Address::Unix(_)) {
            return Err(format!("{}: UDP has no such addresses", self.server));
        }
        let engine = match self.engine {
            EngineName::Epoll => EngineKind::Epoll,
            EngineName::Uring => EngineKind::Uring,
        };
        let threads = usize::from(self.threads);
        let watch = || !interrupt.has_arrived();
        let failed = |error| format!("{}: {error}", self.server);
        if self.serve {
            let server = EchoServer {
                address,
                carries,
                threads,
                engine,
            };
            load::echo::serve(&server, watch).map_err(failed)?;
            return Ok(ExitCode::SUCCESS);
        }
        let plan = EchoPlan {
            address,
            work,
            clients: self.clients as usize,
            threads,
            engine,
            length: match self.messages {
                Some(messages) => EchoLength::Messages(messages),
                None => EchoLength::Time(self.duration.unwrap_or(DURATION_DEFAULT)),
            },
            size: size as usize,
            timeout,
        };
        let result = load::echo::run(&plan, watch).map_err(failed)?;
        if self.json {
            print!("{}", result.json(&plan))
        } else {
            print!("{}", result.text(&plan))
        }
        Ok(match result.messages {
            0 => ExitCode::FAILURE,
            _ => ExitCode::SUCCESS,
        })
    }
}
