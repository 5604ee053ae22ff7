//! The reports of a run against a memcached server, as text and as JSON.

use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::{MemcachedPlan, MemcachedProtocol, MemcachedResult, Popularity, Transport};

/// The quantiles that are reported.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];

impl MemcachedProtocol {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            MemcachedProtocol::Text => "text",
            MemcachedProtocol::Meta => "meta",
            MemcachedProtocol::Binary => "binary",
        }
    }
}

impl MemcachedResult {
    /// Successful requests per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        per_second(self.succeeded(), self.elapsed)
    }

    /// The fraction of requested keys that had a value; `None` if no keys were requested.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        (self.keys_asked > 0).then(|| self.hits as f64 / self.keys_asked as f64)
    }

    /// The report as text.
    #[must_use]
    pub fn text(&self, plan: &MemcachedPlan) -> String {
        let mut out = String::new();
        let protocol = plan.protocol.name();
        let (connections, threads) = (plan.connections, plan.threads);
        let mut line = |name: &str, value: String| {
            let _ = writeln!(out, "{name:<16} {value}");
        };
        let over = match &plan.transport {
            Transport::Stream => "",
            Transport::Tls(_) => ", TLS",
            Transport::Datagrams => ", UDP",
        };
        line("server", format!("{} ({protocol}{over})", plan.address));
        line(
            "clients",
            format!("{connections} connections, {threads} threads"),
        );
        let popularity = match plan.popularity {
            Popularity::Uniform => "uniform".to_owned(),
            Popularity::Zipf(exponent) => format!("Zipf {exponent}"),
        };
        let (least, most) = (plan.value.start(), plan.value.end());
        let (keys, length) = (plan.keys, plan.key_length);
        line(
            "keys",
            format!(
                "{keys} of {length} bytes, {popularity}, {} a get",
                plan.keys_a_get
            ),
        );
        line("values", format!("{least} to {most} bytes"));
        line("time", format!("{:.2} s", self.elapsed.as_secs_f64()));
        line("requests", format!("{:.0} a second", self.rate()));
        let rate = |count| per_second(count, self.elapsed);
        line(
            "gets",
            format!("{} ({:.0} a second)", self.gets, rate(self.gets)),
        );
        line(
            "sets",
            format!("{} ({:.0} a second)", self.sets, rate(self.sets)),
        );
        if let Some(ratio) = self.hit_ratio() {
            let (hits, asked) = (self.hits, self.keys_asked);
            line(
                "hits",
                format!("{hits} of {asked} keys ({:.2} %)", ratio * 100.0),
            );
        }
        let megabytes = |bytes| rate(bytes) / 1e6;
        let (received, sent) = (megabytes(self.received), megabytes(self.sent));
        line(
            "bytes",
            format!("{received:.1} MB/s received, {sent:.1} MB/s sent"),
        );
        line(
            "failed",
            format!("{} wrong, {} broken", self.wrong, self.broken),
        );
        if let Some(wrong) = &self.first_wrong_answer {
            line("first wrong", format!("\"{wrong}\""));
        }
        for (name, times) in [("get", &self.get_times), ("set", &self.set_times)] {
            if !times.is_empty() {
                line(&format!("{name} times"), times_text(times));
            }
        }
        if self.interrupted {
            line("interrupted", "before its end".to_owned());
        }
        out
    }

    /// The report as one JSON object.
    #[must_use]
    pub fn json(&self, plan: &MemcachedPlan) -> String {
        let mut out = String::from("{");
        let mut member = |name: &str, value: String| {
            let comma = if out.len() > 1 { "," } else { "" };
            let _ = write!(out, "{comma}\"{name}\":{value}");
        };
        member("protocol", format!("\"{}\"", plan.protocol.name()));
        member("connections", plan.connections.to_string());
        member("threads", plan.threads.to_string());
        member("seconds", format!("{:.6}", self.elapsed.as_secs_f64()));
        member("requests_per_second", format!("{:.1}", self.rate()));
        for (name, count) in [
            ("gets", self.gets),
            ("sets", self.sets),
            ("keys_asked", self.keys_asked),
            ("hits", self.hits),
            ("wrong", self.wrong),
            ("broken", self.broken),
            ("bytes_received", self.received),
            ("bytes_sent", self.sent),
        ] {
            member(name, count.to_string());
        }
        for (name, times) in [("get", &self.get_times), ("set", &self.set_times)] {
            for (quantile, at) in QUANTILES {
                let time = times.value_at_quantile(at);
                member(&format!("{name}_{quantile}_ns"), time.to_string());
            }
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

fn times_text(times: &Histogram<u64>) -> String {
    let milliseconds = |nanoseconds: u64| nanoseconds as f64 / 1e6;
    let mut text = format!("mean {:.3} ms", times.mean() / 1e6);
    for (name, at) in QUANTILES {
        let time = milliseconds(times.value_at_quantile(at));
        let _ = write!(text, ", {name} {time:.3}");
    }
    let _ = write!(text, ", longest {:.3}", milliseconds(times.max()));
    text
}
