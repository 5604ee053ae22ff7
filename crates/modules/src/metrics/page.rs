//! Metrics as Prometheus text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use base::json;
use engine::xdp::{self, QueueReport};
use framework::counters::Totals;
use framework::generation;
use http::config::server_tokens::VERSION;
use http::request::Request;

use super::caches;
use super::memcached::{self, MemcachedNumbers};
use super::meter::{self, CLASSES, ScopeName, Sums};
use super::process::ProcessNumbers;
use super::queues;
use super::upstreams::{self, GroupNumbers};
use proxying::cache::numbers::{self, CacheNumbers};

/// Labels of the classes of statuses.
const CLASS_NAMES: [&str; CLASSES] = ["other", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// All metrics.
pub(super) struct Numbers {
    totals: Totals,
    engine: String,
    threads: usize,
    /// The number of the generation that serves the request.
    generation: u64,
    generations: usize,
    /// The number of log lines that were dropped.
    lines_dropped: u64,
    scopes: BTreeMap<ScopeName, Sums>,
    upstreams: Vec<GroupNumbers>,
    caches: Vec<CacheNumbers>,
    memcached: Vec<MemcachedNumbers>,
    queues: Vec<QueueReport>,
    process: ProcessNumbers,
}

impl Numbers {
    /// The metrics of the process that serves a request.
    pub(super) fn of(request: &Request) -> Numbers {
        let counters = request.connection.worker.counters();
        Numbers {
            totals: counters.totals(),
            engine: counters.engine().to_owned(),
            threads: counters.threads(),
            generation: request.local.generation.number,
            generations: generation::live(),
            lines_dropped: logs::lines_dropped(),
            scopes: meter::sums(counters),
            upstreams: upstreams::of(request),
            caches: numbers::of(request),
            memcached: memcached::of(request),
            queues: xdp::reports(),
            process: ProcessNumbers::of(request),
        }
    }

    pub(super) fn prometheus(&self) -> String {
        let mut page = Page::default();
        let totals = &self.totals;
        let info = format!("version=\"{VERSION}\",engine=\"{}\"", self.engine);
        page.family(
            "tidegate_info",
            "gauge",
            "Version and engine of the server.",
        );
        page.sample("tidegate_info", &info, 1);
        page.single("tidegate_threads", "gauge", "Worker threads.", self.threads);
        page.single(
            "tidegate_connections_accepted_total",
            "counter",
            "Connections accepted.",
            totals.accepted,
        );
        page.single(
            "tidegate_connections_dropped_total",
            "counter",
            "Idle connections closed to make room for new ones.",
            totals.dropped,
        );
        page.single(
            "tidegate_connections_active",
            "gauge",
            "Connections open now.",
            totals.active,
        );
        page.family(
            "tidegate_connections",
            "gauge",
            "Connections open now by what they do: reading a request's head, writing a response or working on it, waiting for a request.",
        );
        for (state, number) in self.states() {
            page.sample(
                "tidegate_connections",
                &format!("state=\"{state}\""),
                number,
            );
        }
        page.single(
            "tidegate_requests_total",
            "counter",
            "Requests begun, also those whose head was none.",
            totals.requests,
        );
        for (name, kind, help, number) in self.own() {
            page.single(name, kind, help, number);
        }
        self.process.prometheus(totals, &mut page);
        self.prometheus_scopes(&mut page);
        if !self.upstreams.is_empty() {
            upstreams::prometheus(&self.upstreams, &mut page);
        }
        if !self.caches.is_empty() {
            caches::prometheus(&self.caches, &mut page);
        }
        if !self.memcached.is_empty() {
            memcached::prometheus(&self.memcached, &mut page);
        }
        if !self.queues.is_empty() {
            queues::prometheus(&self.queues, &mut page);
        }
        page.0
    }

    fn prometheus_scopes(&self, page: &mut Page) {
        let scopes: Vec<(String, &Sums)> = self
            .scopes
            .iter()
            .map(|(name, sums)| (labels(name), sums))
            .collect();
        let requests = "tidegate_http_requests_total";
        page.family(requests, "counter", "Requests ended, by class of status.");
        for (labels, sums) in &scopes {
            for (class, number) in CLASS_NAMES.iter().zip(sums.classes) {
                page.sample(requests, &format!("{labels},status=\"{class}\""), number);
            }
        }
        let calls = "tidegate_grpc_calls_total";
        if scopes.iter().any(|(_, sums)| sums.calls().next().is_some()) {
            page.family(calls, "counter", "Calls of gRPC ended, by their status.");
        }
        for (labels, sums) in &scopes {
            for (status, number) in sums.calls() {
                page.sample(calls, &format!("{labels},status=\"{status}\""), number);
            }
        }
        let received = "tidegate_http_received_bytes_total";
        page.family(received, "counter", "Bytes of requests, heads included.");
        for (labels, sums) in &scopes {
            page.sample(received, labels, sums.received);
        }
        let sent = "tidegate_http_sent_bytes_total";
        page.family(sent, "counter", "Bytes of responses, heads included.");
        for (labels, sums) in &scopes {
            page.sample(sent, labels, sums.sent);
        }
        let duration = "tidegate_http_request_duration_seconds";
        page.family(
            duration,
            "histogram",
            "Time from the first byte of a request to the end of its response, as $request_time.",
        );
        for (labels, sums) in &scopes {
            for (bound, number) in sums.cumulative() {
                let labels = format!("{labels},le=\"{bound}\"");
                page.sample(&format!("{duration}_bucket"), &labels, number);
            }
            let all: u64 = sums.buckets.iter().sum();
            let labels_all = format!("{labels},le=\"+Inf\"");
            page.sample(&format!("{duration}_bucket"), &labels_all, all);
            page.sample(&format!("{duration}_sum"), labels, seconds(sums));
            page.sample(&format!("{duration}_count"), labels, all);
        }
    }

    fn states(&self) -> [(&'static str, u64); 3] {
        [
            ("reading", self.totals.reading),
            ("writing", self.totals.writing()),
            ("waiting", self.totals.waiting),
        ]
    }

    /// Metrics of the server itself: name, type, help, value.
    fn own(&self) -> [(&'static str, &'static str, &'static str, u64); 13] {
        let responses = http::response::memory::statistics();
        [
            (
                "tidegate_response_memory_limit_bytes",
                "gauge",
                "Bytes that small files and bodies compressed once may take in the memory that threads share.",
                responses.limit as u64,
            ),
            (
                "tidegate_response_memory_bytes",
                "gauge",
                "Bytes that they and their tables take.",
                responses.occupied as u64,
            ),
            (
                "tidegate_response_memory_objects",
                "gauge",
                "Files and compressed bodies that are kept there.",
                responses.objects,
            ),
            (
                "tidegate_response_memory_evicted_total",
                "counter",
                "Those that had to make room there.",
                responses.evicted,
            ),
            (
                "tidegate_engine_turns_total",
                "counter",
                "Turns of the event loops.",
                self.totals.turns,
            ),
            (
                "tidegate_pool_misses_total",
                "counter",
                "Requests for which memory was allocated, because none was kept from an earlier one.",
                self.totals.pool_misses,
            ),
            (
                "tidegate_generation",
                "gauge",
                "The configuration that serves, counted from 1 at the start.",
                self.generation,
            ),
            (
                "tidegate_generations",
                "gauge",
                "Configurations that requests still use.",
                self.generations as u64,
            ),
            (
                "tidegate_log_lines_dropped_total",
                "counter",
                "Log lines lost because they could not be written.",
                self.lines_dropped,
            ),
            (
                "tidegate_tls_handshakes_total",
                "counter",
                "Handshakes of TLS with clients that have ended well.",
                self.totals.handshakes,
            ),
            (
                "tidegate_tls_sessions_reused_total",
                "counter",
                "Handshakes of TLS that went on with an earlier session.",
                self.totals.sessions_reused,
            ),
            (
                "tidegate_tls_handshakes_failed_total",
                "counter",
                "Handshakes of TLS with clients that have failed.",
                self.totals.handshakes_failed,
            ),
            (
                "tidegate_panics_total",
                "counter",
                "Requests lost to a bug of the server.",
                self.totals.panics,
            ),
        ]
    }

    pub(super) fn json(&self) -> Vec<u8> {
        let mut json = json::Writer::default();
        json.object(|json| {
            json.key("version").string(VERSION);
            json.key("engine").string(&self.engine);
            json.key("threads").number(self.threads);
            json.key("connections").object(|json| {
                json.key("accepted").number(self.totals.accepted);
                json.key("dropped").number(self.totals.dropped);
                json.key("active").number(self.totals.active);
                for (state, number) in self.states() {
                    json.key(state).number(number);
                }
            });
            json.key("requests").number(self.totals.requests);
            for (name, _, _, number) in self.own() {
                let name = name.strip_prefix("tidegate_").unwrap_or(name);
                json.key(name.strip_suffix("_total").unwrap_or(name))
                    .number(number);
            }
            self.process.json(&self.totals, json);
            json.key("servers").array(|json| self.json_servers(json));
            json.key("upstreams")
                .array(|json| upstreams::json(&self.upstreams, json));
            json.key("caches")
                .array(|json| caches::json(&self.caches, json));
            if !self.memcached.is_empty() {
                json.key("memcached")
                    .array(|json| memcached::json(&self.memcached, json));
            }
            if !self.queues.is_empty() {
                json.key("xdp_queues")
                    .array(|json| queues::json(&self.queues, json));
            }
        });
        json.into_bytes()
    }

    /// Servers with their counts; locations are nested.
    fn json_servers(&self, json: &mut json::Writer) {
        let mut servers: BTreeMap<(&str, &str), Vec<(&str, &Sums)>> = BTreeMap::new();
        for (name, sums) in &self.scopes {
            let server = servers.entry((&name.server, &name.listen)).or_default();
            server.push((&name.location, sums));
        }
        for ((server, listen), locations) in servers {
            let mut all = Sums::default();
            locations.iter().for_each(|(_, sums)| all.add(sums));
            json.object(|json| {
                json.key("server").string(server);
                json.key("listen").string(listen);
                json_sums(&all, json);
                json.key("locations").array(|json| {
                    for (location, sums) in locations {
                        json.object(|json| {
                            json.key("location").string(location);
                            json_sums(sums, json);
                        });
                    }
                });
            });
        }
    }
}

fn json_sums(sums: &Sums, json: &mut json::Writer) {
    json.key("requests").number(sums.requests());
    json.key("statuses").object(|json| {
        for (class, number) in CLASS_NAMES.iter().zip(sums.classes) {
            json.key(class).number(number);
        }
    });
    if sums.calls().next().is_some() {
        json.key("grpc_calls").object(|json| {
            for (status, number) in sums.calls() {
                json.key(&status).number(number);
            }
        });
    }
    json.key("received_bytes").number(sums.received);
    json.key("sent_bytes").number(sums.sent);
    json.key("duration_seconds").object(|json| {
        json.key("count").number(sums.buckets.iter().sum::<u64>());
        json.key("sum").number(seconds(sums));
        json.key("buckets").array(|json| {
            for (bound, number) in sums.cumulative() {
                json.object(|json| {
                    json.key("le").number(bound);
                    json.key("count").number(number);
                });
            }
        });
    });
}

fn seconds(sums: &Sums) -> f64 {
    sums.duration as f64 / 1e6
}

/// The labels of a scope, without braces.
fn labels(name: &ScopeName) -> String {
    let ScopeName {
        server,
        listen,
        location,
    } = name;
    let mut labels = String::new();
    for (key, value) in [
        ("server", server),
        ("listen", listen),
        ("location", location),
    ] {
        let comma = if labels.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(labels, "{comma}{key}=\"{}\"", escaped(value));
    }
    labels
}

/// A label's value: backslash, quote and line feed are escaped.
pub(super) fn escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
    out
}

/// Prometheus text under construction.
#[derive(Default)]
pub(super) struct Page(String);

impl Page {
    /// Writes the header of a metric.
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Writes one value of a metric.
    pub(super) fn sample(&mut self, name: &str, labels: &str, number: impl std::fmt::Display) {
        let _ = match labels {
            "" => writeln!(self.0, "{name} {number}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {number}"),
        };
    }

    pub(super) fn single(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        number: impl std::fmt::Display,
    ) {
        self.family(name, kind, help);
        self.sample(name, "", number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> Numbers {
        let name = ScopeName {
            server: "~^a\\d\"$".into(),
            listen: "0.0.0.0:80".into(),
            location: "= /x".into(),
        };
        let mut sums = Sums {
            received: 10,
            sent: 20,
            duration: 1_500_000,
            ..Sums::default()
        };
        sums.classes[2] = 3;
        sums.buckets[0] = 2;
        sums.buckets[13] = 1;
        Numbers {
            totals: Totals {
                accepted: 7,
                active: 2,
                waiting: 1,
                ..Totals::default()
            },
            engine: "epoll".into(),
            threads: 2,
            generation: 1,
            generations: 1,
            lines_dropped: 0,
            scopes: [(name, sums)].into(),
            upstreams: Vec::new(),
            caches: Vec::new(),
            memcached: Vec::new(),
            queues: Vec::new(),
            process: ProcessNumbers::empty(),
        }
    }

    /// By the text format's specification: HELP and TYPE before the samples of a family, escaped
    /// labels, cumulative buckets that end with +Inf, whose value is the count.
    #[test]
    fn prometheus_text() {
        let text = numbers().prometheus();
        for line in [
            "# TYPE tidegate_connections_accepted_total counter",
            "tidegate_connections_accepted_total 7",
            "tidegate_connections{state=\"writing\"} 1",
            "tidegate_http_requests_total{server=\"~^a\\\\d\\\"$\",listen=\"0.0.0.0:80\",location=\"= /x\",status=\"2xx\"} 3",
            "tidegate_http_request_duration_seconds_bucket{server=\"~^a\\\\d\\\"$\",listen=\"0.0.0.0:80\",location=\"= /x\",le=\"0.0001\"} 2",
            "tidegate_http_request_duration_seconds_bucket{server=\"~^a\\\\d\\\"$\",listen=\"0.0.0.0:80\",location=\"= /x\",le=\"2.5\"} 3",
            "tidegate_http_request_duration_seconds_bucket{server=\"~^a\\\\d\\\"$\",listen=\"0.0.0.0:80\",location=\"= /x\",le=\"+Inf\"} 3",
            "tidegate_http_request_duration_seconds_sum{server=\"~^a\\\\d\\\"$\",listen=\"0.0.0.0:80\",location=\"= /x\"} 1.5",
        ] {
            assert!(
                text.lines().any(|known| known == line),
                "no {line} in\n{text}"
            );
        }
        let mut families = Vec::new();
        for line in text.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(rest) => families.push(rest.split(' ').next().unwrap()),
                None if line.starts_with("# HELP") => {}
                None => assert!(line.starts_with(families.last().unwrap()), "{line}"),
            }
        }
        let count = families.len();
        families.dedup();
        assert_eq!(families.len(), count, "each family once");
    }

    #[test]
    fn json_object() {
        let text = String::from_utf8(numbers().json()).unwrap();
        for part in [
            "\"connections\":{\"accepted\":7,\"dropped\":0,\"active\":2,\"reading\":0,\"writing\":1,\"waiting\":1}",
            "\"server\":\"~^a\\\\d\\\"$\",\"listen\":\"0.0.0.0:80\",\"requests\":3",
            "\"location\":\"= /x\",\"requests\":3,\"statuses\":{\"other\":0,\"1xx\":0,\"2xx\":3",
            "\"duration_seconds\":{\"count\":3,\"sum\":1.5,",
        ] {
            assert!(text.contains(part), "no {part} in {text}");
        }
    }
}
