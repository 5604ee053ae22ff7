//! What the machine allows, and whether the tool itself was the limit.
//!
//! Linux only: limits from getrlimit(2), ports and backlog from /proc/sys/net, processor time from
//! /proc/thread-self/schedstat.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::plan::Plan;
use crate::run::Outcome;
use crate::tally::Failure;

/// Descriptors that a process needs beside its connections.
const DESCRIPTORS_BESIDE: u64 = 32;

/// The share of a processor above which a client thread is the limit rather than the server.
const BUSY_MAX: f64 = 0.9;

/// Below this a run is all beginning, and says nothing of who was the limit.
const JUDGED_MIN: Duration = Duration::from_millis(100);

/// How a thread spent its time.
#[derive(Clone, Copy, Debug)]
pub struct Busy {
    begin: Instant,
    cpu: Duration,
    waited: Duration,
    elapsed: Duration,
}

impl Busy {
    /// Begins to watch the calling thread.
    pub(crate) fn begin() -> Busy {
        Busy {
            begin: Instant::now(),
            cpu: thread_cpu(),
            waited: thread_waited(),
            elapsed: Duration::ZERO,
        }
    }

    /// Ends watching; must be called by the same thread.
    pub(crate) fn end(&mut self) {
        self.cpu = thread_cpu().saturating_sub(self.cpu);
        self.waited = thread_waited().saturating_sub(self.waited);
        self.elapsed = self.begin.elapsed();
    }

    /// The share of the time in which the thread computed.
    #[must_use]
    pub fn computing(&self) -> f64 {
        self.cpu.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// The share of the time in which it could have computed, but others had the processor.
    #[must_use]
    pub fn waiting(&self) -> f64 {
        self.waited.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Processor time of the thread.
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

/// How long the thread has waited for a processor; zero where the kernel does not count it.
fn thread_waited() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = text.split_whitespace().nth(1);
    Duration::from_nanos(
        waited
            .and_then(|number| number.parse().ok())
            .unwrap_or_default(),
    )
}

/// Raises the soft limit of descriptors to the hard one and says what will bite in a run like `plan`.
#[must_use]
pub fn prepare(plan: &Plan) -> Vec<String> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // If it fails, the soft limit stays, and is what is reported.
    let _ = setrlimit(Resource::Nofile, raised);
    let facts = Facts {
        descriptors: getrlimit(Resource::Nofile).current,
        ports: port_range(&read("net/ipv4/ip_local_port_range")),
        backlog: read("net/core/somaxconn").trim().parse().ok(),
    };
    warnings(plan, &facts)
}

/// What the kernel says of its limits; `None` where it says nothing.
struct Facts {
    descriptors: Option<u64>,
    ports: Option<u64>,
    backlog: Option<u64>,
}

fn read(name: &str) -> String {
    fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default()
}

/// How many ports a range such as `32768 60999` has.
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
            "{connections} connections for {} servers: those behind get no load; give more connections, or \
             --new-connections",
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

/// Why the figures of a run are the tool's limit rather than the server's; nothing if they are not.
#[must_use]
pub fn limits(outcome: &Outcome) -> Vec<String> {
    let mut limits = Vec::new();
    let busiest = outcome.busy.iter().copied();
    let share = |busy: &Busy| busy.computing() + busy.waiting();
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
    let short = outcome.tally.failures(Failure::Local);
    if short > 0 {
        limits.push(format!(
            "{short} connections could not be made for lack of descriptors, ports or memory here"
        ));
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Expect, Length, Order, Server};
    use engine::EngineKind;
    use engine::net::Address;

    fn plan(connections: usize) -> Plan {
        let address: std::net::SocketAddr = "127.0.0.1:80".parse().unwrap();
        Plan {
            servers: vec![Server {
                address: Address::Inet(address),
                requests: Vec::new(),
            }],
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
            seed: 1,
            samples: false,
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
    fn a_thread_that_computes_is_busy() {
        let mut busy = Busy::begin();
        while busy.begin.elapsed() < Duration::from_millis(20) {}
        busy.end();
        assert!(busy.computing() + busy.waiting() > 0.5, "{busy:?}");
    }
}
