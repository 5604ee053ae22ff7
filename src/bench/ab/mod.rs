//! `tidegate bench ab`: the command line and the report of ApacheBench 2.3, whose lines are parsed
//! by scripts.
//!
//! Also used if the program is called `ab`. Additions are `--allow-remote`, and warnings on
//! standard error about limits of the load tester. Any certificate is accepted, as in ab. Options
//! of ab that are missing here (proxies, HTML tables, `-b`, `-v`) are refused, never ignored. See
//! <https://httpd.apache.org/docs/2.4/programs/ab.html>.

mod flags;
mod report;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use engine::EngineKind;
use load::plan::{Expect, Length, Order, Protocol, Request, Server};
use load::tally::RequestError;
use load::tls::TlsFactory;
use load::{Plan, RunResult, Target, machine};
use process::Interrupt;

use super::ForeignArguments;
use flags::Flags;

/// The first lines of the output.
const BANNER: &str = "\
This is ApacheBench, Version 2.3 <$Revision$>
Copyright 1996 Adam Twiss, Zeus Technology Ltd, http://www.zeustech.net/
Licensed to The Apache Software Foundation, http://www.apache.org/

";

pub(super) fn run(called: ForeignArguments) -> ExitCode {
    let flags = match Flags::parse(&called.arguments) {
        Ok(flags) => flags,
        Err(flags::EarlyExit::Version) => {
            print!("{BANNER}");
            return ExitCode::SUCCESS;
        }
        // ab prints its usage to standard error and exits with EINVAL, even for `-h`.
        Err(flags::EarlyExit::Usage(fault)) => {
            if let Some(fault) = fault {
                eprintln!("ab: {fault}");
            }
            eprint!("{}", flags::USAGE);
            return ExitCode::from(22);
        }
    };
    match bench(&flags, &called.allow_remote) {
        Ok(code) => code,
        Err(text) => {
            eprintln!("ab: {text}");
            ExitCode::FAILURE
        }
    }
}

fn bench(flags: &Flags, allow_remote: &[String]) -> Result<ExitCode, String> {
    let interrupt = Interrupt::take().map_err(|error| format!("signals: {error}"))?;
    let target = Target::parse(&flags.url, allow_remote).map_err(|error| error.to_string())?;
    let plan = Arc::new(plan(flags, &target)?);
    for warning in machine::prepare(&plan) {
        eprintln!("warning: {warning}");
    }
    // As in ab: one line per tenth of the requests, but at least 100 apart, and none for 150
    // requests or fewer.
    let step = match flags.requests {
        requests if requests > 150 && !flags.quiet => (requests / 10).max(100),
        _ => 0,
    };
    let pause = if step > 0 { "\n" } else { "..." };
    print!("{BANNER}Benchmarking {} (be patient){pause}", target.host);
    let _ = std::io::stdout().flush();
    let mut told = 0;
    let mut tell = |ended: u64| {
        while step > 0 && told + step <= ended {
            told += step;
            eprintln!("Completed {told} requests");
        }
    };
    let outcome = load::run(&plan, |progress| {
        tell(progress.ended);
        let over = flags
            .time_limit
            .is_some_and(|limit| progress.elapsed >= limit);
        let broken = progress.broken > 0 && !flags.keep_going;
        !(over || broken || interrupt.has_arrived())
    })
    .map_err(|error| error.to_string())?;
    tell(outcome.tally.ended());
    if let Some(code) = aborted(flags, &outcome) {
        return Ok(code);
    }
    match step {
        0 => println!("..done"),
        _ => eprintln!("Finished {} requests", outcome.tally.ended()),
    }
    for limit in machine::limits(&outcome) {
        eprintln!("warning: the tool was the limit: {limit}");
    }
    report::write(flags, &target, &outcome)?;
    Ok(ExitCode::SUCCESS)
}

/// Without `-r`, ab stops at the first failed connection. Prints ab's message, and returns its exit
/// code.
fn aborted(flags: &Flags, outcome: &RunResult) -> Option<ExitCode> {
    if flags.keep_going {
        return None;
    }
    let tally = &outcome.tally;
    let (message, code) = [
        (
            RequestError::Refused,
            "apr_socket_recv: Connection refused (111)",
            111,
        ),
        (
            RequestError::Reset,
            "apr_socket_recv: Connection reset by peer (104)",
            104,
        ),
        (
            RequestError::Timeout,
            "apr_pollset_poll: The timeout specified has expired (70007)",
            119,
        ),
        (
            RequestError::ConnectTimeout,
            "apr_pollset_poll: The timeout specified has expired (70007)",
            119,
        ),
        (RequestError::TlsHandshake, "SSL handshake failed (1).", 1),
        (RequestError::TlsClosed, "SSL handshake failed (5).", 1),
        (
            RequestError::TlsTimeout,
            "apr_pollset_poll: The timeout specified has expired (70007)",
            119,
        ),
        (
            RequestError::TlsBroken,
            "SSL read failed (1) - closing connection",
            1,
        ),
        (
            RequestError::Local,
            "socket: no descriptor, port or memory",
            24,
        ),
        (
            RequestError::Connect,
            "apr_socket_connect(): the connection failed",
            1,
        ),
    ]
    .into_iter()
    .find_map(|(failure, message, code)| {
        (tally.failures(failure) > 0).then_some((message, code))
    })?;
    eprintln!("{message}");
    if tally.completed > 0 {
        eprintln!("Total of {} requests completed", tally.completed);
    }
    Some(ExitCode::from(code))
}

fn plan(flags: &Flags, target: &Target) -> Result<Plan, String> {
    Ok(Plan {
        servers: vec![Server {
            address: target.address.clone(),
            tls: TlsFactory::new(flags.tls.clone())
                .tls(target)
                .map_err(|error| error.to_string())?,
            requests: vec![Request::http1(
                flags.request(target)?,
                flags.method == "HEAD",
            )],
        }],
        protocol: Protocol::Http1,
        bodies: Vec::new(),
        order: Order::Random,
        connections: usize::try_from(flags.concurrency).unwrap_or(usize::MAX),
        threads: 1,
        length: Length::Requests(flags.requests),
        warmup: Duration::ZERO,
        pipeline: 1,
        new_connections: !flags.keep_alive,
        ramp: Duration::ZERO,
        think_time: Duration::ZERO,
        random_think_time: false,
        arrivals: None,
        timeout: flags.timeout,
        expect: Expect {
            any_status: true,
            same_length: !flags.variable_length,
            ..Expect::default()
        },
        sources: flags.source.into_iter().collect(),
        engine: EngineKind::Epoll,
        interface: None,
        seed: 1,
        samples: true,
        intervals: false,
    })
}
