//! Groups of servers in the API.

use std::time::{Duration, Instant};

use ::upstream::{AnswerCounts, Group, Member, Origin, Peer, PeerSide};
use base::json;
use http::request::Request;
use jiff::{SignedDuration, Timestamp};
use rules::upstream::{Block, Blocks, hash_of};

use super::failure::ApiError;
use super::show::{self, Fields, Object};

/// The groups that are declared in the block `of`: `http` or `stream`.
fn blocks(request: &Request, of: &str) -> Vec<Block> {
    let blocks = request.local.generation.part::<Blocks>();
    let blocks = blocks.iter().flat_map(|blocks| blocks.0.iter());
    blocks
        .filter(|block| block.parent_block == of)
        .cloned()
        .collect()
}

/// The group with this name, declared in the block `of`: `http` or `stream`.
pub(super) fn group(request: &Request, of: &str, name: &[u8]) -> Result<Block, ApiError> {
    let mut blocks = blocks(request, of).into_iter();
    let found = blocks.find(|block| block.group.name == name);
    found.ok_or(ApiError::UpstreamNotFound)
}

/// Writes the state of all groups that are declared in the block `of`: `http` or `stream`.
pub(super) fn all(
    request: &Request,
    of: &str,
    version: u8,
    json: &mut json::Writer,
    fields: &Fields,
) {
    json.object(|json| {
        for block in blocks(request, of) {
            json.key(&String::from_utf8_lossy(&block.group.name));
            one(&block, version, json, fields);
        }
    });
}

/// Writes the state of a group.
pub(super) fn one(block: &Block, version: u8, json: &mut json::Writer, fields: &Fields) {
    if fields.are_none() {
        return json.object(|_| ());
    }
    let now = engine::now();
    let group = &block.group;
    let roster = group.roster().newest();
    let protocol = match block.parent_block {
        "stream" => Protocol::Stream,
        _ => Protocol::Http {
            has_codes: version >= CODES_SINCE,
        },
    };
    show::object(json, fields, |object| {
        object.field("peers", |json| {
            json.array(|json| {
                for member in roster.members() {
                    show::complete_object(json, |object| peer(&member, protocol, now, object));
                }
            });
        });
        object.number("zombies", roster.zombies() as u64);
        if let Some(zone) = &block.zone {
            object.string("zone", zone);
        }
        if let Some(queueing) = group.queueing {
            object.field("queue", |json| {
                show::complete_object(json, |object| {
                    object.number("size", group.peers().waiting() as u64);
                    object.number("max_size", queueing.length as u64);
                });
            });
        }
    });
}

/// The first version with counters of single status codes.
const CODES_SINCE: u8 = 7;

/// The format of a server's response counters.
#[derive(Clone, Copy)]
enum Protocol {
    Http { has_codes: bool },
    Stream,
}

fn peer(member: &Member, protocol: Protocol, now: Instant, object: &mut Object<'_>) {
    let peer = &member.peer;
    let state = peer.state();
    object.number("id", member.number);
    // In nginx's API, `server` is the address, and `name` the server as configured.
    object.string("server", &peer.name);
    object.string("name", &peer.server);
    object.boolean("backup", member.side == PeerSide::Backups);
    object.number("weight", weight(peer));
    object.string("state", peer.standing(now).name().as_bytes());
    object.number("active", state.connections() as u64);
    if peer.max_conns > 0 {
        object.number("max_conns", peer.max_conns as u64);
    }
    match protocol {
        Protocol::Http { .. } => object.number("requests", state.requests()),
        Protocol::Stream => object.number("connections", state.requests()),
    }
    let answers = state.answers.counts();
    // Without counted responses, the averages that the balancing method measures, if it does.
    let (header_time, response_time) = answers
        .as_ref()
        .map(|answers| (answers.header_time, answers.response_time))
        .filter(|(header, response)| header + response > 0)
        .unwrap_or_else(|| state.times());
    if header_time + response_time > 0 {
        let header = match protocol {
            Protocol::Http { .. } => "header_time",
            Protocol::Stream => "first_byte_time",
        };
        object.number(header, header_time);
        object.number("response_time", response_time);
    }
    if let (Protocol::Http { has_codes }, Some(answers)) = (protocol, &answers) {
        object.field("responses", |json| responses(answers, has_codes, json));
        object.number("sent", answers.sent);
        object.number("received", answers.received);
    }
    object.number("fails", state.failures());
    object.number("unavail", state.outages());
    if let Some(ago) = answers.and_then(|answers| answers.selected_ago(now)) {
        moment(object, "selected", ago);
    }
    let (downtime, down_ago) = peer.downtime(now);
    let downtime = u64::try_from(downtime.as_millis()).unwrap_or(u64::MAX);
    object.number("downtime", downtime);
    if let Some(ago) = down_ago {
        moment(object, "downstart", ago);
    }
    if let Some(health) = peer.health() {
        let counts = health.counts();
        object.field("health_checks", |json| {
            show::complete_object(json, |object| {
                object.number("checks", counts.checks);
                object.number("fails", counts.fails);
                object.number("unhealthy", counts.unhealthy);
            });
        });
    }
}

/// Writes the time that lies this duration in the past.
fn moment(object: &mut Object<'_>, name: &str, ago: Duration) {
    let ago = SignedDuration::try_from(ago).unwrap_or_default();
    if let Ok(moment) = Timestamp::now().checked_sub(ago) {
        object.string(name, format!("{moment:.3}").as_bytes());
    }
}

fn responses(answers: &AnswerCounts, has_codes: bool, json: &mut json::Writer) {
    show::complete_object(json, |object| {
        for (class, name) in (1..).zip(["1xx", "2xx", "3xx", "4xx", "5xx"]) {
            object.number(name, answers.class(class));
        }
        if has_codes {
            object.field("codes", |json| {
                show::complete_object(json, |object| {
                    for (status, count) in &answers.statuses {
                        object.number(&status.to_string(), *count);
                    }
                });
            });
        }
        object.number("total", answers.total());
    });
}

/// Writes the configuration of all servers of a group: names first, then addresses.
pub(super) fn servers(group: &Group, json: &mut json::Writer) {
    json.array(|json| {
        for member in group.roster().newest().servers() {
            server(&member, json);
        }
    });
}

/// Writes the configuration of a server.
pub(super) fn server(member: &Member, json: &mut json::Writer) {
    let peer = &member.peer;
    let is_backup = member.side == PeerSide::Backups;
    show::complete_object(json, |object| {
        object.number("id", member.number);
        match &member.origin {
            Origin::Host(listed) => {
                object.string("server", &listed.host.server());
                if let Some(service) = &listed.host.service {
                    object.string("service", service);
                }
                settings(peer, is_backup, &peer.id, object);
            }
            Origin::Address | Origin::Lookup(..) => {
                object.string("server", &peer.name);
                settings(peer, is_backup, route_of(peer), object);
            }
        }
        if let Origin::Lookup(parent, listed) = &member.origin {
            object.string("parent", parent.to_string().as_bytes());
            object.string("host", &listed.host.name);
        }
    });
}

fn settings(peer: &Peer, is_backup: bool, route: &[u8], object: &mut Object<'_>) {
    object.number("weight", weight(peer));
    object.number("max_conns", peer.max_conns as u64);
    object.number("max_fails", peer.max_fails);
    object.string("fail_timeout", time(peer.fail_timeout).as_bytes());
    object.string("slow_start", time(peer.slow_start).as_bytes());
    object.string("route", route);
    object.boolean("backup", is_backup);
    object.boolean("down", peer.down);
    if peer.draining {
        object.boolean("drain", true);
    }
}

/// The route of a server; empty if its identifier is derived from its address.
fn route_of(peer: &Peer) -> &[u8] {
    if peer.id == hash_of(&peer.name) {
        b""
    } else {
        &peer.id
    }
}

/// Resets all counters of the servers of a group.
pub(super) fn reset(group: &Group) {
    for peer in group.peers().iter() {
        peer.state().reset(engine::now());
    }
}

fn weight(peer: &Peer) -> u64 {
    u64::try_from(peer.weight).unwrap_or_default()
}

/// Formats a time in the syntax of the configuration.
pub(super) fn time(time: Duration) -> String {
    match time.subsec_millis() {
        0 => format!("{}s", time.as_secs()),
        _ => format!("{}ms", time.as_millis()),
    }
}
