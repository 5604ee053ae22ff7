//! The limits of this machine, and whether the load tester itself was the bottleneck.
//!
//! Linux only: limits from getrlimit(2), ports and backlog from /proc/sys/net, processor time from
//! /proc/thread-self/schedstat.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::plan::Plan;
use crate::report::some;
use crate::run::RunResult;
use crate::tally::RequestError;

/// Number of file descriptors that the process needs in addition to its connections.
const DESCRIPTORS_BESIDE: u64 = 32;

/// The processor use of a client thread, as a fraction, above which the load tester is considered
/// the bottleneck.
const BUSY_MAX: f64 = 0.9;

/// The minimum fraction of the time in which all processes measured simultaneously. Below it, the
/// sum of their results is not meaningful.
const TOGETHER_MIN: f64 = 0.9;

/// Minimum duration of a run for a judgement about the bottleneck. Shorter runs are dominated by
/// their start.
const JUDGED_MIN: Duration = Duration::from_millis(100);

/// A reading of the calling thread's processor time, to be compared with a later one.
pub(crate) struct CpuClock {
    begin: Instant,
    cpu: Duration,
    waited: Duration,
}

impl CpuClock {
    /// Takes a reading for the calling thread.
    pub(crate) fn begin() -> CpuClock {
        CpuClock {
            begin: Instant::now(),
            cpu: thread_cpu(),
            waited: thread_waited(),
        }
    }

    /// The thread's use of time since the reading. Must be called on the same thread.
    pub(crate) fn end(&self) -> ThreadTimes {
        ThreadTimes {
            cpu: thread_cpu().saturating_sub(self.cpu),
            waited: thread_waited().saturating_sub(self.waited),
            elapsed: self.begin.elapsed(),
        }
    }
}

/// A thread's use of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadTimes {
    cpu: Duration,
    waited: Duration,
    elapsed: Duration,
}

impl ThreadTimes {
    /// From the times that a thread computed, waited for a processor, and existed.
    pub(crate) fn of([cpu, waited, elapsed]: [Duration; 3]) -> ThreadTimes {
        ThreadTimes {
            cpu,
            waited,
            elapsed,
        }
    }

    pub(crate) fn times(&self) -> [Duration; 3] {
        [self.cpu, self.waited, self.elapsed]
    }

    /// The fraction of the time in which the thread computed.
    #[must_use]
    pub fn computing(&self) -> f64 {
        self.cpu.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// The fraction of the time in which the thread was runnable, but waited for a processor.
    #[must_use]
    pub fn waiting(&self) -> f64 {
        self.waited.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// The thread's processor time.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        self.cpu
    }
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// How long the thread has waited for a processor; zero if the kernel does not record it.
fn thread_waited() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = text.split_whitespace().nth(1);
    Duration::from_nanos(
        waited
            .and_then(|number| number.parse().ok())
            .unwrap_or_default(),
    )
}

/// Checks whether connections can be made from each of these addresses.
///
/// # Errors
/// The first address that does not belong to this machine, with the system's error.
pub fn check_sources(sources: &[IpAddr]) -> Result<(), String> {
    for source in sources {
        UdpSocket::bind((*source, 0)).map_err(|error| format!("--source {source}: {error}"))?;
    }
    Ok(())
}

/// Raises the soft limit of file descriptors to the hard limit, and returns warnings about limits
/// that `plan` will exceed.
#[must_use]
pub fn prepare(plan: &Plan) -> Vec<String> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // If raising fails, the soft limit stays in force and is reported.
    let _ = setrlimit(Resource::Nofile, raised);
    let facts = Facts {
        descriptors: getrlimit(Resource::Nofile).current,
        ports: port_range(&read("net/ipv4/ip_local_port_range")),
        backlog: read("net/core/somaxconn").trim().parse().ok(),
    };
    warnings(plan, &facts)
}

/// The limits of the kernel; `None` if one cannot be determined.
struct Facts {
    descriptors: Option<u64>,
    ports: Option<u64>,
    backlog: Option<u64>,
}

fn read(name: &str) -> String {
    fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default()
}

/// Number of ports in a range such as `32768 60999`.
fn port_range(text: &str) -> Option<u64> {
    let mut ends = text.split_whitespace().map(str::parse::<u64>);
    let (low, high) = (ends.next()?.ok()?, ends.next()?.ok()?);
    Some(high.saturating_sub(low) + 1)
}

fn warnings(plan: &Plan, facts: &Facts) -> Vec<String> {
    let mut warnings = Vec::new();
    let connections = plan.connections as u64;
    if let Some(descriptors) = facts.descriptors
        && connections + DESCRIPTORS_BESIDE > descriptors
    {
        warnings.push(format!(
            "{connections} connections need more descriptors than the {descriptors} that this process may have (ulimit -n)"
        ));
    }
    if connections < plan.servers.len() as u64 && !plan.new_connections {
        warnings.push(format!(
            "{} for {} servers: those behind get no load; give more connections, or \
             --new-connections",
            some(connections, "connection"),
            plan.servers.len()
        ));
    }
    let inet = plan
        .servers
        .iter()
        .filter(|server| server.address.ip().is_some())
        .count() as u64;
    if let Some(ports) = facts.ports
        && inet > 0
    {
        let tuples = ports * inet * plan.sources.len().max(1) as u64;
        if connections > tuples {
            warnings.push(format!(
                "{connections} connections need more ports than the {tuples} of net.ipv4.ip_local_port_range: \
                 name more addresses with --source"
            ));
        }
    }
    if let Some(backlog) = facts.backlog
        && connections > backlog
        && plan.ramp.is_zero()
    {
        warnings.push(format!(
            "{connections} connections at once: a listener's queue holds at most {backlog} (net.core.somaxconn), and what \
             does not fit is delayed by a second or refused; --ramp spreads them"
        ));
    }
    warnings
}

/// The reasons why the load tester was the bottleneck; empty if it was not.
#[must_use]
pub fn limits(outcome: &RunResult) -> Vec<String> {
    let mut limits = Vec::new();
    let busiest = outcome.busy.iter().copied();
    let share = |busy: &ThreadTimes| busy.computing() + busy.waiting();
    if let Some(busy) = busiest.max_by(|a, b| share(a).total_cmp(&share(b)))
        && share(&busy) > BUSY_MAX
        && busy.elapsed >= JUDGED_MIN
    {
        limits.push(format!(
            "a client thread computed {:.0} % of the time and waited {:.0} % for a processor",
            busy.computing() * 100.0,
            busy.waiting() * 100.0
        ));
    }
    let short = outcome.tally.failures(RequestError::Local);
    if short > 0 {
        limits.push(format!(
            "{} could not be made for lack of descriptors, ports or memory here",
            some(short, "connection")
        ));
    }
    let (together, elapsed) = (outcome.together, outcome.elapsed);
    if together < elapsed.mul_f64(TOGETHER_MIN) {
        limits.push(format!(
            "its processes measured at the same time for only {:.1} of {:.1} s",
            together.as_secs_f64(),
            elapsed.as_secs_f64()
        ));
    }
    limits
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::{Expect, Length, Order, Protocol, Server};
    use engine::EngineKind;
    use engine::net::Address;

    /// A plan with arbitrary values.
    pub(crate) fn plan(connections: usize) -> Plan {
        let address: std::net::SocketAddr = "127.0.0.1:80".parse().unwrap();
        Plan {
            servers: vec![Server {
                address: Address::Inet(address),
                tls: None,
                requests: Vec::new(),
            }],
            protocol: Protocol::Http1,
            bodies: Vec::new(),
            order: Order::Random,
            connections,
            threads: 1,
            length: Length::Requests(1),
            warmup: Duration::ZERO,
            pipeline: 1,
            new_connections: false,
            ramp: Duration::ZERO,
            think_time: Duration::ZERO,
            random_think_time: false,
            arrivals: None,
            timeout: Duration::from_secs(1),
            expect: Expect::default(),
            sources: Vec::new(),
            engine: EngineKind::Epoll,
            interface: None,
            seed: 1,
            samples: false,
            intervals: false,
        }
    }

    #[test]
    fn what_will_bite_is_said_before() {
        let facts = Facts {
            descriptors: Some(1024),
            ports: port_range("32768\t60999\n"),
            backlog: Some(4096),
        };
        assert_eq!(facts.ports, Some(28_232));
        let count = |plan: &Plan| warnings(plan, &facts).len();
        let mut many = plan(30_000);
        assert_eq!(
            (count(&plan(100)), count(&plan(1000)), count(&many)),
            (0, 1, 3)
        );
        many.ramp = Duration::from_secs(1);
        many.sources = vec!["127.0.0.1".parse().unwrap(), "127.0.0.2".parse().unwrap()];
        assert_eq!(count(&many), 1);
    }

    #[test]
    fn the_tool_says_when_it_was_the_limit() {
        let outcome = |busy: [u64; 3], short: u64, together: u64| {
            let mut outcome = RunResult {
                elapsed: Duration::from_secs(10),
                together: Duration::from_secs(together),
                busy: vec![
                    ThreadTimes::of([10, 0, 1000].map(Duration::from_millis)),
                    ThreadTimes::of(busy.map(Duration::from_millis)),
                ],
                ..RunResult::default()
            };
            outcome.tally.add_failures(RequestError::Local, short);
            limits(&outcome)
        };
        for (busy, short, together, words) in [
            ([890, 0, 1000], 0, 10, None),
            ([910, 0, 1000], 0, 10, Some("computed 91 %")),
            ([500, 450, 1000], 0, 10, Some("waited 45 %")),
            // A run that is too short to be judged.
            ([99, 0, 99], 0, 10, None),
            ([0, 0, 1000], 3, 10, Some("3 connections could not be made")),
            ([0, 0, 1000], 0, 8, Some("for only 8.0 of 10.0 s")),
        ] {
            let said = outcome(busy, short, together);
            assert_eq!(said.len(), usize::from(words.is_some()), "{said:?}");
            assert!(
                said.iter()
                    .all(|text| text.contains(words.unwrap_or_default())),
                "{said:?}"
            );
        }
    }

    #[test]
    fn sources_are_addresses_of_this_machine() {
        let sources = ["127.0.0.1", "127.9.8.7"].map(|address| address.parse().unwrap());
        assert_eq!(check_sources(&sources), Ok(()));
        // An address for documentation (RFC 5737), which no host has.
        let error = check_sources(&["192.0.2.1".parse().unwrap()]).unwrap_err();
        assert!(error.contains("--source 192.0.2.1: "), "{error}");
    }

    #[test]
    fn a_thread_that_computes_is_busy() {
        let watch = CpuClock::begin();
        while watch.begin.elapsed() < Duration::from_millis(20) {}
        let busy = watch.end();
        assert!(busy.computing() + busy.waiting() > 0.5, "{busy:?}");
    }
}
