//! Metrics of the process, its configuration and its certificates.
//!
//! Process metrics have the standard names of Prometheus client libraries:
//! <https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics>.

use base::json;
use framework::counters::{HandshakeFault, Totals};
use framework::reloads::{self, Reloads};
use framework::usage::{self, Usage};
use framework::zone::ZoneFact;
use http::request::Request;
use transport::tls::certificates::{CertificateFacts, ShownCertificates};

use super::page::{Page, escaped};

/// The outcomes of a limit for requests.
const OUTCOMES: [&str; 5] = [
    "passed",
    "delayed",
    "rejected",
    "delayed_dry_run",
    "rejected_dry_run",
];

/// The outcomes of one zone of `limit_req_zone` or `limit_conn_zone`.
struct LimitNumbers {
    zone: String,
    directive: &'static str,
    outcomes: Vec<(&'static str, u64)>,
}

/// The metrics of the process, its configuration and its certificates.
pub(super) struct ProcessNumbers {
    usage: Usage,
    reloads: Reloads,
    certificates: Vec<CertificateFacts>,
    limits: Vec<LimitNumbers>,
}

impl ProcessNumbers {
    /// The current metrics of the process and of the generation that serves the request.
    pub(super) fn of(request: &Request) -> ProcessNumbers {
        let generation = &request.local.generation;
        let certificates = generation.part::<ShownCertificates>();
        ProcessNumbers {
            certificates: certificates.map(|shown| shown.facts()).unwrap_or_default(),
            limits: limits(request),
            ..ProcessNumbers::empty()
        }
    }

    /// The metrics of a process without a configuration.
    pub(super) fn empty() -> ProcessNumbers {
        ProcessNumbers {
            usage: usage::now(),
            reloads: reloads::counts(),
            certificates: Vec::new(),
            limits: Vec::new(),
        }
    }

    pub(super) fn prometheus(&self, totals: &Totals, page: &mut Page) {
        self.process(page);
        let Reloads {
            succeeded,
            failed,
            last_has_failed,
            succeeded_at,
        } = self.reloads;
        page.single(
            "tidegate_config_last_reload_successful",
            "gauge",
            "Whether the last configuration that was to come into force did.",
            u8::from(!last_has_failed),
        );
        page.single(
            "tidegate_config_last_reload_success_timestamp_seconds",
            "gauge",
            "When the configuration that serves came into force.",
            succeeded_at as f64 / 1e3,
        );
        let name = "tidegate_config_reloads_total";
        page.family(
            name,
            "counter",
            "Configurations that came into force or did not, the first one included.",
        );
        page.sample(name, "result=\"success\"", succeeded);
        page.sample(name, "result=\"failure\"", failed);
        let name = "tidegate_tls_handshake_faults_total";
        page.family(name, "counter", "What was wrong with handshakes of TLS with clients, and with certificates that clients have shown in them.");
        for fault in HandshakeFault::ALL {
            let labels = format!("reason=\"{}\"", fault.name());
            page.sample(name, &labels, totals.faults(fault));
        }
        if !self.certificates.is_empty() {
            let name = "tidegate_tls_certificate_expiry_timestamp_seconds";
            page.family(name, "gauge", "When a certificate that servers show ends.");
            for facts in &self.certificates {
                let file = escaped(&facts.name);
                let first = escaped(facts.names.first().map_or("", String::as_str));
                let labels = format!("certificate=\"{file}\",name=\"{first}\"");
                page.sample(name, &labels, facts.not_after);
            }
        }
        if !self.limits.is_empty() {
            let name = "tidegate_limit_requests_total";
            page.family(
                name,
                "counter",
                "Requests by what limit_req and limit_conn have had become of them.",
            );
            for limit in &self.limits {
                let LimitNumbers {
                    zone,
                    directive,
                    outcomes,
                } = limit;
                let zone = escaped(zone);
                for (outcome, count) in outcomes {
                    let labels =
                        format!("directive=\"{directive}\",zone=\"{zone}\",outcome=\"{outcome}\"");
                    page.sample(name, &labels, count);
                }
            }
        }
    }

    fn process(&self, page: &mut Page) {
        let usage = &self.usage;
        page.single(
            "process_cpu_seconds_total",
            "counter",
            "Total user and system CPU time spent in seconds.",
            usage.processor_seconds,
        );
        let gauges = [
            (
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
                usage.resident_bytes,
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes.",
                usage.virtual_bytes,
            ),
            (
                "process_open_fds",
                "Number of open file descriptors.",
                usage.open_descriptors,
            ),
            (
                "process_max_fds",
                "Maximum number of open file descriptors.",
                usage.descriptors_max,
            ),
        ];
        for (name, help, number) in gauges {
            if let Some(number) = number {
                page.single(name, "gauge", help, number);
            }
        }
        if let Some(started) = usage.started {
            let help = "Start time of the process since unix epoch in seconds.";
            page.single("process_start_time_seconds", "gauge", help, started);
        }
    }

    pub(super) fn json(&self, totals: &Totals, json: &mut json::Writer) {
        let usage = &self.usage;
        json.key("process").object(|json| {
            json.key("cpu_seconds").number(usage.processor_seconds);
            for (name, number) in [
                ("resident_memory_bytes", usage.resident_bytes),
                ("virtual_memory_bytes", usage.virtual_bytes),
                ("open_fds", usage.open_descriptors),
                ("max_fds", usage.descriptors_max),
            ] {
                if let Some(number) = number {
                    json.key(name).number(number);
                }
            }
            if let Some(started) = usage.started {
                json.key("start_time_seconds").number(started);
            }
        });
        json.key("config").object(|json| {
            let reloads = &self.reloads;
            json.key("last_reload_successful")
                .boolean(!reloads.last_has_failed);
            json.key("last_reload_success_timestamp_seconds")
                .number(reloads.succeeded_at as f64 / 1e3);
            json.key("succeeded").number(reloads.succeeded);
            json.key("failed").number(reloads.failed);
        });
        json.key("tls_handshake_faults").object(|json| {
            for fault in HandshakeFault::ALL {
                json.key(fault.name()).number(totals.faults(fault));
            }
        });
        json.key("certificates").array(|json| {
            for facts in &self.certificates {
                json.object(|json| {
                    json.key("certificate").string(&facts.name);
                    json.key("names").array(|json| {
                        facts.names.iter().for_each(|name| json.string(name));
                    });
                    json.key("expiry_timestamp_seconds").number(facts.not_after);
                });
            }
        });
        json.key("limits").array(|json| {
            for limit in &self.limits {
                json.object(|json| {
                    json.key("directive").string(limit.directive);
                    json.key("zone").string(&limit.zone);
                    for (outcome, count) in &limit.outcomes {
                        json.key(outcome).number(*count);
                    }
                });
            }
        });
    }
}

fn limits(request: &Request) -> Vec<LimitNumbers> {
    let zones = request.local.generation.zones.iter();
    let limits = zones.filter_map(|zone| {
        let directive = match zone.kind() {
            "limit_req" => "limit_req",
            "limit_conn" => "limit_conn",
            _ => return None,
        };
        let mut outcomes = Vec::new();
        zone.describe(&mut |name, fact| {
            let known = OUTCOMES.iter().find(|outcome| **outcome == name);
            if let (Some(outcome), ZoneFact::Number(count)) = (known, fact) {
                outcomes.push((*outcome, count));
            }
        });
        Some(LimitNumbers {
            zone: zone.name().to_owned(),
            directive,
            outcomes,
        })
    });
    limits.collect()
}
