//! Metrics of groups of servers: the state of each server, and its requests and responses.

use std::time::Instant;

use ::upstream::{AnswerCounts, CheckCounts, Load, Peer, PeerSide, RESPONSE_BOUNDS, Standing};
use base::json;
use http::request::Request;
use rules::upstream::{Block, Blocks};

use super::page::{Page, escaped};

/// A group of an `upstream` block.
pub(super) struct GroupNumbers {
    name: String,
    /// The block that contains the `upstream` block, if not `http`.
    block: Option<&'static str>,
    zone: Option<String>,
    /// `None` if the group does not limit its concurrent requests.
    load: Option<Load>,
    servers: Vec<ServerNumbers>,
}

/// A metric of groups that limit their concurrent requests: name, type, help and source.
type LoadFamily = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Load) -> Option<u64>,
);

const LOAD_FAMILIES: [LoadFamily; 5] = [
    (
        "tidegate_upstream_limit",
        "gauge",
        "The most requests that may be under way towards the group now.",
        |load| load.limit.map(|limit| limit as u64),
    ),
    (
        "tidegate_upstream_under_way",
        "gauge",
        "Requests that have been let through to the group and have not ended.",
        |load| Some(load.under_way as u64),
    ),
    (
        "tidegate_upstream_waiting",
        "gauge",
        "Requests that wait to be let through to the group.",
        |load| Some(load.waiting as u64),
    ),
    (
        "tidegate_upstream_refused_total",
        "counter",
        "Requests that were refused at once because they would have had to wait for too long.",
        |load| Some(load.refused),
    ),
    (
        "tidegate_upstream_expired_total",
        "counter",
        "Requests that have waited for too long and were refused for that.",
        |load| Some(load.expired),
    ),
];

/// One address of a server.
pub(super) struct ServerNumbers {
    server: String,
    peer: String,
    /// The `id` of the server.
    number: Option<u64>,
    is_backup: bool,
    weight: i64,
    standing: Standing,
    active: u64,
    requests: u64,
    fails: u64,
    unavailable: u64,
    /// `None` if the server has not responded yet.
    answers: Option<AnswerCounts>,
    /// `None` if the server is not checked.
    checks: Option<CheckCounts>,
}

/// A metric of servers: name, type, help and source.
type Family = (
    &'static str,
    &'static str,
    &'static str,
    fn(&ServerNumbers) -> Option<u64>,
);

const FAMILIES: [Family; 7] = [
    (
        "tidegate_upstream_requests_active",
        "gauge",
        "Requests that the server has been given and that have not ended.",
        |server| Some(server.active),
    ),
    (
        "tidegate_upstream_requests_total",
        "counter",
        "Requests that the server has been given.",
        |server| Some(server.requests),
    ),
    (
        "tidegate_upstream_fails_total",
        "counter",
        "Tries that have failed.",
        |server| Some(server.fails),
    ),
    (
        "tidegate_upstream_unavailable_total",
        "counter",
        "How often failed tries have put the server out.",
        |server| Some(server.unavailable),
    ),
    (
        "tidegate_upstream_health_checks_total",
        "counter",
        "Health checks of the server.",
        |server| server.checks.map(|counts| counts.checks),
    ),
    (
        "tidegate_upstream_health_check_fails_total",
        "counter",
        "Health checks that the server has failed.",
        |server| server.checks.map(|counts| counts.fails),
    ),
    (
        "tidegate_upstream_unhealthy_total",
        "counter",
        "How often failed health checks have made the server unhealthy.",
        |server| server.checks.map(|counts| counts.unhealthy),
    ),
];

/// The metrics of all groups in the generation that serves a request.
pub(super) fn of(request: &Request) -> Vec<GroupNumbers> {
    let blocks = request.local.generation.part::<Blocks>();
    let now = engine::now();
    let blocks = blocks.iter().flat_map(|blocks| blocks.iter());
    blocks.map(|block| GroupNumbers::of(block, now)).collect()
}

impl GroupNumbers {
    /// The current metrics of a group.
    fn of(block: &Block, now: Instant) -> GroupNumbers {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let group = &block.group;
        let peers = group.peers();
        let mut servers: Vec<ServerNumbers> = Vec::new();
        for (side, is_backup) in [(PeerSide::Peers, false), (PeerSide::Backups, true)] {
            for peer in peers.side(side).iter() {
                let mut numbers = ServerNumbers::of(peer, is_backup, now);
                // An address that is configured twice gets distinct names.
                let same = servers.iter().filter(|known| known.peer == numbers.peer);
                let before = same.count();
                if before > 0 {
                    numbers.server = format!("{} ({})", numbers.server, before + 1);
                }
                servers.push(numbers);
            }
        }
        GroupNumbers {
            name: text(&group.name),
            block: Some(block.parent_block).filter(|name| *name != "http"),
            zone: block.zone.as_ref().map(|zone| text(zone)),
            load: group.load(),
            servers,
        }
    }
}

impl GroupNumbers {
    /// The labels of a group's samples. A group outside `http` has a label for its block, since
    /// groups in different blocks may have the same name.
    fn label(&self) -> String {
        let name = escaped(&self.name);
        match self.block {
            Some(block) => format!("upstream=\"{name}\",block=\"{block}\""),
            None => format!("upstream=\"{name}\""),
        }
    }
}

impl ServerNumbers {
    /// The current metrics of one address of a server.
    fn of(peer: &Peer, is_backup: bool, now: Instant) -> ServerNumbers {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let state = peer.state();
        ServerNumbers {
            server: text(&peer.server),
            peer: text(&peer.name),
            number: peer.number,
            is_backup,
            weight: peer.weight,
            standing: peer.standing(now),
            active: state.connections() as u64,
            requests: state.requests(),
            fails: state.failures(),
            unavailable: state.outages(),
            answers: state.answers.counts().filter(|answers| answers.total() > 0),
            checks: peer.health().map(|health| health.counts()),
        }
    }
}

pub(super) fn prometheus(groups: &[GroupNumbers], page: &mut Page) {
    let servers = groups
        .iter()
        .flat_map(|group| group.servers.iter().map(move |server| (group, server)));
    let servers: Vec<(String, &ServerNumbers)> = servers
        .map(|(group, server)| (labels(group, server), server))
        .collect();
    let state = "tidegate_upstream_server_state";
    page.family(
        state,
        "gauge",
        "How the server stands: 1 for the state that it is in.",
    );
    for (labels, server) in &servers {
        for standing in Standing::ALL {
            let labels = format!("{labels},state=\"{}\"", standing.name());
            page.sample(state, &labels, u8::from(server.standing == standing));
        }
    }
    let loads = groups
        .iter()
        .filter_map(|group| Some((group, group.load.as_ref()?)));
    let loads: Vec<(String, &Load)> = loads.map(|(group, load)| (group.label(), load)).collect();
    for (name, kind, help, number) in LOAD_FAMILIES {
        if loads.is_empty() {
            break;
        }
        page.family(name, kind, help);
        for (labels, load) in &loads {
            if let Some(number) = number(load) {
                page.sample(name, labels, number);
            }
        }
    }
    for (name, kind, help, number) in FAMILIES {
        page.family(name, kind, help);
        for (labels, server) in &servers {
            if let Some(number) = number(server) {
                page.sample(name, labels, number);
            }
        }
    }
    let answered = servers.iter().filter_map(|(labels, server)| {
        let answers = server.answers.as_ref()?;
        Some((labels.as_str(), answers))
    });
    let answered: Vec<(&str, &AnswerCounts)> = answered.collect();
    if !answered.is_empty() {
        answers(&answered, page);
    }
}

/// Writes the metrics of the servers' responses.
fn answers(answered: &[(&str, &AnswerCounts)], page: &mut Page) {
    let responses = "tidegate_upstream_responses_total";
    page.family(
        responses,
        "counter",
        "Answers of the server, by their status.",
    );
    for (labels, answers) in answered {
        for (status, count) in &answers.statuses {
            page.sample(responses, &format!("{labels},status=\"{status}\""), count);
        }
    }
    for (name, help, number) in [
        (
            "tidegate_upstream_sent_bytes_total",
            "Bytes sent to the server for requests that it has answered whole.",
            (|answers| answers.sent) as fn(&AnswerCounts) -> u64,
        ),
        (
            "tidegate_upstream_received_bytes_total",
            "Bytes received from the server for them.",
            |answers| answers.received,
        ),
    ] {
        page.family(name, "counter", help);
        for (labels, answers) in answered {
            page.sample(name, labels, number(answers));
        }
    }
    let duration = "tidegate_upstream_response_duration_seconds";
    page.family(
        duration,
        "histogram",
        "Time until an answer of the server had come whole, as $upstream_response_time.",
    );
    for (labels, answers) in answered {
        let mut sum = 0;
        for (bound, count) in RESPONSE_BOUNDS.into_iter().zip(answers.durations) {
            sum += count;
            let labels = format!("{labels},le=\"{}\"", bound as f64 / 1e3);
            page.sample(&format!("{duration}_bucket"), &labels, sum);
        }
        let all: u64 = answers.durations.iter().sum();
        let labels_all = format!("{labels},le=\"+Inf\"");
        page.sample(&format!("{duration}_bucket"), &labels_all, all);
        page.sample(
            &format!("{duration}_sum"),
            labels,
            answers.duration as f64 / 1e3,
        );
        page.sample(&format!("{duration}_count"), labels, all);
    }
}

fn labels(group: &GroupNumbers, server: &ServerNumbers) -> String {
    let [name, peer] = [&server.server, &server.peer].map(|text| escaped(text));
    let group = group.label();
    let number = server.number.map(|number| format!(",id=\"{number}\""));
    let number = number.unwrap_or_default();
    format!("{group},server=\"{name}\",peer=\"{peer}\"{number}")
}

/// Writes the groups as a JSON array.
pub(super) fn json(groups: &[GroupNumbers], json: &mut json::Writer) {
    for group in groups {
        json.object(|json| {
            json.key("upstream").string(&group.name);
            if let Some(block) = group.block {
                json.key("block").string(block);
            }
            if let Some(zone) = &group.zone {
                json.key("zone").string(zone);
            }
            if let Some(load) = &group.load {
                json.key("load").object(|json| {
                    if let Some(limit) = load.limit {
                        json.key("limit").number(limit as u64);
                    }
                    json.key("under_way").number(load.under_way as u64);
                    json.key("waiting").number(load.waiting as u64);
                    json.key("refused").number(load.refused);
                    json.key("expired").number(load.expired);
                });
            }
            json.key("servers").array(|json| {
                for server in &group.servers {
                    json.object(|json| server.json(json));
                }
            });
        });
    }
}

impl ServerNumbers {
    fn json(&self, json: &mut json::Writer) {
        json.key("server").string(&self.server);
        json.key("peer").string(&self.peer);
        if let Some(number) = self.number {
            json.key("id").number(number);
        }
        json.key("backup").boolean(self.is_backup);
        json.key("weight").number(self.weight);
        json.key("state").string(self.standing.name());
        json.key("active").number(self.active);
        json.key("requests").number(self.requests);
        json.key("fails").number(self.fails);
        json.key("unavail").number(self.unavailable);
        if let Some(counts) = &self.checks {
            json.key("health_checks").object(|json| {
                json.key("checks").number(counts.checks);
                json.key("fails").number(counts.fails);
                json.key("unhealthy").number(counts.unhealthy);
            });
        }
        if let Some(answers) = &self.answers {
            json.key("responses").object(|json| {
                for (status, count) in &answers.statuses {
                    json.key(&status.to_string()).number(*count);
                }
            });
            json.key("sent_bytes").number(answers.sent);
            json.key("received_bytes").number(answers.received);
            json.key("response_duration_seconds").object(|json| {
                json.key("count")
                    .number(answers.durations.iter().sum::<u64>());
                json.key("sum").number(answers.duration as f64 / 1e3);
            });
        }
    }
}
