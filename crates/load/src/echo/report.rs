//! The reports of a run, as text and as JSON.

use std::fmt::Write;
use std::time::Duration;

use super::{EchoPlan, EchoResult, EchoTraffic};

/// The quantiles that are reported.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];

impl EchoTraffic {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EchoTraffic::Messages => "echo",
            EchoTraffic::Connections => "connect",
            EchoTraffic::Throughput => "throughput",
            EchoTraffic::Datagrams => "datagrams",
            EchoTraffic::Sockets => "sockets",
        }
    }
}

impl EchoResult {
    /// Echoed messages per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        per_second(self.messages, self.elapsed)
    }

    /// The report as text.
    #[must_use]
    pub fn text(&self, plan: &EchoPlan) -> String {
        let mut out = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(out, "{name:<16} {value}");
        };
        let (clients, threads) = (plan.clients, plan.threads);
        let size = plan.size;
        line("server", format!("{} ({})", plan.address, plan.work.name()));
        line("clients", format!("{clients} clients, {threads} threads"));
        line("messages", format!("of {size} bytes"));
        line("time", format!("{:.2} s", self.elapsed.as_secs_f64()));
        line(
            "came back",
            format!("{} ({:.0} a second)", self.messages, self.rate()),
        );
        let megabytes = |bytes| per_second(bytes, self.elapsed) / 1e6;
        let (received, sent) = (megabytes(self.received), megabytes(self.sent));
        line(
            "bytes",
            format!("{received:.1} MB/s received, {sent:.1} MB/s sent"),
        );
        let (wrong, broken, lost) = (self.wrong, self.broken, self.lost);
        line(
            "failed",
            format!("{wrong} wrong, {broken} broken, {lost} lost"),
        );
        if !self.times.is_empty() {
            line("times", self.times_text());
        }
        if self.interrupted {
            line("interrupted", "before its end".to_owned());
        }
        out
    }

    fn times_text(&self) -> String {
        let times = &self.times;
        let milliseconds = |nanoseconds: u64| nanoseconds as f64 / 1e6;
        let mut text = format!("mean {:.3} ms", times.mean() / 1e6);
        for (name, at) in QUANTILES {
            let time = milliseconds(times.value_at_quantile(at));
            let _ = write!(text, ", {name} {time:.3}");
        }
        let _ = write!(text, ", longest {:.3}", milliseconds(times.max()));
        text
    }

    /// The report as one JSON object.
    #[must_use]
    pub fn json(&self, plan: &EchoPlan) -> String {
        let mut out = String::from("{");
        let mut member = |name: &str, value: String| {
            let comma = if out.len() > 1 { "," } else { "" };
            let _ = write!(out, "{comma}\"{name}\":{value}");
        };
        member("mode", format!("\"{}\"", plan.work.name()));
        member("clients", plan.clients.to_string());
        member("threads", plan.threads.to_string());
        member("size", plan.size.to_string());
        member("seconds", format!("{:.6}", self.elapsed.as_secs_f64()));
        member("messages_per_second", format!("{:.1}", self.rate()));
        for (name, count) in [
            ("messages", self.messages),
            ("wrong", self.wrong),
            ("broken", self.broken),
            ("lost", self.lost),
            ("bytes_received", self.received),
            ("bytes_sent", self.sent),
        ] {
            member(name, count.to_string());
        }
        for (quantile, at) in QUANTILES {
            let time = self.times.value_at_quantile(at);
            member(&format!("{quantile}_ns"), time.to_string());
        }
        member("interrupted", self.interrupted.to_string());
        out.push_str("}\n");
        out
    }
}

fn per_second(count: u64, time: Duration) -> f64 {
    if time.is_zero() {
        0.0
    } else {
        count as f64 / time.as_secs_f64()
    }
}
