//! The numbers of one moment about groups of servers: how each server stands, what it has been given and how that went.

use std::time::Instant;

use ::upstream::{Counts, Peer, SideOf, Standing};
use base::json;
use http::request::Request;

use super::page::{Page, escaped};
use crate::upstream::{Group, Groups};

/// A group of an `upstream` block.
pub(super) struct GroupNumbers {
    name: String,
    zone: Option<String>,
    servers: Vec<ServerNumbers>,
}

/// An address of one of its servers.
pub(super) struct ServerNumbers {
    server: String,
    peer: String,
    /// `id` of the server.
    number: Option<u64>,
    is_backup: bool,
    weight: i64,
    standing: Standing,
    active: u64,
    requests: u64,
    fails: u64,
    unavailable: u64,
    /// `None` where no checks are made.
    checks: Option<Counts>,
}

/// A number that every server has: name, type, help, where it is found.
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

/// Those of the configuration that serves a request.
pub(super) fn of(request: &Request) -> Vec<GroupNumbers> {
    let groups = request.local.generation.part::<Groups>();
    let now = engine::now();
    let blocks = groups.iter().flat_map(|groups| groups.blocks());
    blocks.map(|group| GroupNumbers::of(group, now)).collect()
}

impl GroupNumbers {
    fn of(group: &Group, now: Instant) -> GroupNumbers {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let peers = group.shared.peers();
        let mut servers: Vec<ServerNumbers> = Vec::new();
        for (side, is_backup) in [(SideOf::Peers, false), (SideOf::Backups, true)] {
            for peer in peers.side(side).iter() {
                let mut numbers = ServerNumbers::of(peer, is_backup, now);
                // Of one that is written twice each has a name of its own.
                let same = servers.iter().filter(|known| known.peer == numbers.peer);
                let before = same.count();
                if before > 0 {
                    numbers.server = format!("{} ({})", numbers.server, before + 1);
                }
                servers.push(numbers);
            }
        }
        GroupNumbers {
            name: text(group.name()),
            zone: group.zone().map(|zone| text(zone)),
            servers,
        }
    }
}

impl ServerNumbers {
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
            checks: peer.health().map(|health| health.counts()),
        }
    }
}

/// As Prometheus text.
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
    for (name, kind, help, number) in FAMILIES {
        page.family(name, kind, help);
        for (labels, server) in &servers {
            if let Some(number) = number(server) {
                page.sample(name, labels, number);
            }
        }
    }
}

fn labels(group: &GroupNumbers, server: &ServerNumbers) -> String {
    let [group, name, peer] = [&group.name, &server.server, &server.peer].map(|text| escaped(text));
    let number = server.number.map(|number| format!(",id=\"{number}\""));
    let number = number.unwrap_or_default();
    format!("upstream=\"{group}\",server=\"{name}\",peer=\"{peer}\"{number}")
}

/// As an array of JSON.
pub(super) fn json(groups: &[GroupNumbers], json: &mut json::Writer) {
    for group in groups {
        json.object(|json| {
            json.key("upstream").string(&group.name);
            if let Some(zone) = &group.zone {
                json.key("zone").string(zone);
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
    }
}
