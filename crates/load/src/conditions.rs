//! The conditions of a run, on which the meaning of its figures depends: the first line of its
//! report.

use std::fmt;
use std::time::Duration;

use crate::plan::{Arrivals, Length, Plan, Protocol, Spacing};
use crate::report::some;
use crate::tls::Tls;

/// The conditions of a run, or of several simultaneous runs whose results are summed.
#[derive(Clone, Debug, PartialEq)]
pub struct Conditions {
    /// The URLs as given on the command line.
    pub urls: Vec<String>,
    /// Number of processes that sent load.
    pub processes: u32,
    /// Number of connections.
    pub connections: u64,
    /// Number of threads.
    pub threads: u64,
    /// The engine of the load tester.
    pub engine: String,
    /// The parameters of the open loop, with the total rate of all processes; `None` for the closed
    /// loop.
    pub arrivals: Option<Arrivals>,
    /// The length of the run; requests are those of all processes.
    pub length: Length,
    /// Duration of the warm-up, which is not counted.
    pub warmup: Duration,
    /// The time over which the connections were started.
    pub ramp: Duration,
    /// The pause between a response and the connection's next request.
    pub think_time: Duration,
    /// The protocol.
    pub protocol: Protocol,
    /// Maximum number of pipelined requests on an HTTP/1 connection.
    pub pipeline: u64,
    /// Whether every request had its own connection.
    pub new_connections: bool,
    /// Whether TLS sessions were resumed.
    pub resume: bool,
}

impl Conditions {
    /// The conditions of one run. `urls` are its URLs as a report shows them.
    #[must_use]
    pub fn new(plan: &Plan, urls: Vec<String>) -> Conditions {
        Conditions {
            urls,
            processes: 1,
            connections: plan.connections as u64,
            threads: plan.threads as u64,
            engine: plan.engine.to_string(),
            arrivals: plan.arrivals,
            length: plan.length,
            warmup: plan.warmup,
            ramp: plan.ramp,
            think_time: plan.think_time,
            protocol: plan.protocol,
            pipeline: plan.pipeline as u64,
            new_connections: plan.new_connections,
            resume: plan
                .servers
                .iter()
                .any(|server| server.tls.as_ref().is_some_and(Tls::resumes)),
        }
    }

    /// Adds the conditions of another process: its connections, threads, rate and requests.
    ///
    /// # Errors
    /// Names a difference because of which the sum would be meaningless.
    pub fn add(&mut self, other: &Conditions) -> Result<(), &'static str> {
        self.arrivals = match (self.arrivals, other.arrivals) {
            (None, None) => None,
            (Some(own), Some(other)) if own.spacing == other.spacing => Some(Arrivals {
                rate: own.rate + other.rate,
                spacing: own.spacing,
            }),
            _ => return Err("the loop"),
        };
        self.length = match (self.length, other.length) {
            (Length::Time(own), Length::Time(other)) => Length::Time(own.max(other)),
            (Length::Requests(own), Length::Requests(other)) => {
                Length::Requests(own.saturating_add(other))
            }
            _ => return Err("time or number of requests"),
        };
        for (differs, words) in [
            (self.engine != other.engine, "the engine"),
            (self.warmup != other.warmup, "the warm-up"),
            (self.ramp != other.ramp, "the ramp"),
            (self.think_time != other.think_time, "the think time"),
            (
                self.protocol != other.protocol,
                "the protocol or its streams",
            ),
            (self.pipeline != other.pipeline, "the pipeline"),
            (
                self.new_connections != other.new_connections,
                "connections for each request",
            ),
            (
                self.resume != other.resume,
                "the resumption of TLS sessions",
            ),
        ] {
            if differs {
                return Err(words);
            }
        }
        self.processes = self.processes.saturating_add(other.processes);
        self.connections = self.connections.saturating_add(other.connections);
        self.threads = self.threads.saturating_add(other.threads);
        for url in &other.urls {
            if !self.urls.contains(url) {
                self.urls.push(url.clone());
            }
        }
        Ok(())
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.urls.join(" "))?;
        if self.processes > 1 {
            write!(f, "{} processes, ", self.processes)?;
        }
        let (connections, threads) = (self.connections, self.threads);
        write!(
            f,
            "{}, {} on {}",
            some(connections, "connection"),
            some(threads, "thread"),
            self.engine
        )?;
        f.write_str(&protocol_words(self.protocol))?;
        match self.arrivals {
            None => f.write_str(", closed loop")?,
            Some(Arrivals { rate, spacing }) => write!(
                f,
                ", open loop of {rate} requests/s ({}), times from the intended start",
                spacing_name(spacing)
            )?,
        }
        match self.length {
            Length::Time(length) => write!(f, ", {} s", length.as_secs_f64())?,
            Length::Requests(requests) => write!(f, ", {}", some(requests, "request"))?,
            Length::Each(requests) => write!(f, ", {} each", some(requests, "request"))?,
        }
        for (name, duration) in [
            ("warm-up", self.warmup),
            ("ramp", self.ramp),
            ("think time", self.think_time),
        ] {
            if !duration.is_zero() {
                write!(f, ", {name} {} s", duration.as_secs_f64())?;
            }
        }
        if self.pipeline > 1 {
            write!(f, ", pipelined by {}", self.pipeline)?;
        }
        if self.new_connections {
            f.write_str(", a connection for each request")?;
        }
        if self.resume {
            f.write_str(", TLS sessions resumed")?;
        }
        Ok(())
    }
}

/// What the first line of a report says about the protocol; empty for HTTP/1.
pub(crate) fn protocol_words(protocol: Protocol) -> String {
    match protocol {
        Protocol::Http1 => String::new(),
        Protocol::Http2 { streams } | Protocol::Grpc { streams } => {
            let streams = some(streams as u64, "stream");
            format!(", {} with {streams} on each", protocol.name())
        }
    }
}

/// The name of a spacing on the command line.
pub(crate) fn spacing_name(spacing: Spacing) -> &'static str {
    match spacing {
        Spacing::Constant => "constant",
        Spacing::Poisson => "poisson",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::plan;

    #[test]
    fn processes_add_up_where_they_did_the_same() {
        let of = |url: &str, rate| {
            let mut plan = plan(100);
            plan.arrivals = Some(Arrivals {
                rate,
                spacing: Spacing::Poisson,
            });
            plan.length = Length::Time(Duration::from_secs(2));
            Conditions::new(&plan, vec![url.to_owned()])
        };
        let mut sum = of("a", 10.0);
        assert_eq!(sum.add(&of("b", 5.0)), Ok(()));
        assert_eq!(sum.add(&of("a", 5.0)), Ok(()));
        assert_eq!(
            sum.to_string(),
            "a b: 3 processes, 300 connections, 3 threads on epoll, open loop of 20 requests/s (poisson), \
             times from the intended start, 2 s"
        );
        let mut other = of("a", 10.0);
        other.protocol = Protocol::Http2 { streams: 3 };
        assert_eq!(sum.add(&other), Err("the protocol or its streams"));
        let words = "1 thread on epoll, HTTP/2 with 3 streams on each, open loop";
        assert!(other.to_string().contains(words), "{other}");
        let mut other = of("a", 10.0);
        other.pipeline = 4;
        assert_eq!(sum.add(&other), Err("the pipeline"));
        other.arrivals = None;
        assert_eq!(sum.add(&other), Err("the loop"));
    }
}
