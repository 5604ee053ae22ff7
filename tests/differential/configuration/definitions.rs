//! What `http` defines and the rest refers to: formats, maps, zones, groups of upstreams.

use super::World;
use super::tree::Line;
use crate::random::Random;

/// The definitions, each always there, with random insides.
pub(super) fn definitions(random: &mut Random, world: &World, log_format: &str) -> Vec<Line> {
    let mut lines = vec![
        Line::new("log_format", &["differential", log_format]),
        Line::new(
            "log_format",
            &[
                "second",
                "escape=none",
                "'$uri [$status]'",
                "' $body_bytes_sent'",
            ],
        ),
        Line::new("access_log", &["logs/differential.log", "differential"]),
        Line::new("include", &["mime.types"]),
    ];
    lines.extend(maps(random));
    lines.extend(charsets());
    let key = |random: &mut Random| random.pick(&["$arg_limited", "$arg_limited", "$http_x_test"]);
    lines.extend([
        // A request a minute: what the first ones use up does not come back during the run.
        Line::new(
            "limit_req_zone",
            &[key(random), "zone=slow:1m", "rate=1r/m"],
        ),
        Line::new(
            "limit_req_zone",
            &["$binary_remote_addr", "zone=fast:1m", "rate=100000r/s"],
        ),
        Line::new(
            "limit_conn_zone",
            &["$binary_remote_addr", "zone=addresses:1m"],
        ),
        Line::new("limit_conn_zone", &["$server_name$arg_a", "zone=names:64k"]),
    ]);
    lines.extend(upstreams(random, world));
    lines
}

fn maps(random: &mut Random) -> Vec<Line> {
    let mut mapped = vec![
        Line::new("default", &[random.pick(&["\"\"", "other", "$uri", "0"])]),
        Line::new("one", &["one"]),
        Line::new("~^t(?<tail>.*)$", &["$tail"]),
    ];
    if random.chance(30) {
        mapped.insert(0, Line::new("hostnames", &[]));
        mapped.push(Line::new("*.wild.example", &["star"]));
        mapped.push(Line::new(".dot.example", &["dot"]));
    }
    if random.chance(20) {
        mapped.push(Line::new("volatile", &[]));
    }
    let folded = vec![
        Line::new("GET", &["1"]),
        Line::new("~*^po", &["\"\""]),
        Line::new("HEAD", &["\"0\""]),
        Line::new("default", &["2"]),
    ];
    let mut region = vec![
        Line::new("default", &["world"]),
        Line::new("127.0.0.0/8", &["local"]),
    ];
    if random.chance(50) {
        region.push(Line::new("proxy", &["127.0.0.1"]));
    }
    if random.chance(50) {
        region.push(Line::new("include", &["networks"]));
        region.push(Line::new("delete", &["192.0.2.0/24"]));
    }
    let network = vec![
        Line::new("ranges", &[]),
        Line::new("default", &["none"]),
        Line::new("127.0.0.0-127.0.0.255", &["low"]),
        Line::new("127.0.1.0-127.255.255.255", &["high"]),
        Line::new("10.0.0.0-10.255.255.255", &["\"\""]),
    ];
    let variant = vec![
        Line::new(random.pick(&["50%", "0.5%", "33.33%"]), &[".one"]),
        Line::new("20%", &["\"\""]),
        Line::new("*", &[".rest"]),
    ];
    let source = random.pick(&[
        "$arg_a",
        "$host",
        "$http_x_test",
        "$request_uri",
        "$cookie_a",
    ]);
    let split = random.pick(&["\"$uri$arg_a\"", "$request_uri", "\"fixed\""]);
    vec![
        Line::block("map", &[source, "$mapped"], mapped),
        Line::block(
            "map",
            &[
                random.pick(&["$request_method", "$sent_http_content_type"]),
                "$folded",
            ],
            folded,
        ),
        Line::block(
            "map",
            &["$arg_charset", "$charset_of"],
            vec![
                Line::new("koi", &["koi8-r"]),
                Line::new("default", &["utf-8"]),
            ],
        ),
        Line::block(
            "map",
            &["$host", "$no_rate"],
            vec![Line::new("default", &["0"])],
        ),
        Line::block("geo", &["$region"], region),
        Line::block(
            "geo",
            &[
                random.pick(&["$arg_address", "$remote_addr", "$http_x_real_ip"]),
                "$network",
            ],
            network,
        ),
        Line::block("split_clients", &[split, "$variant"], variant),
    ]
}

/// Two letters in each of three charsets.
fn charsets() -> Vec<Line> {
    let rows = |rows: &[(&str, &str)]| {
        rows.iter()
            .map(|(from, to)| Line::new(from, &[to]))
            .collect()
    };
    vec![
        Line::block(
            "charset_map",
            &["koi8-r", "utf-8"],
            rows(&[("C1", "D0B0"), ("C2", "D0B1"), ("80", "E282AC")]),
        ),
        Line::block(
            "charset_map",
            &["windows-1251", "utf-8"],
            rows(&[("E0", "D0B0"), ("E1", "D0B1")]),
        ),
        Line::block(
            "charset_map",
            &["koi8-r", "windows-1251"],
            rows(&[("C1", "E0"), ("C2", "E1")]),
        ),
    ]
}

fn upstreams(random: &mut Random, world: &World) -> Vec<Line> {
    let address = |index: usize| world.upstreams[index % world.upstreams.len()].as_str();
    let mut backend = vec![Line::new("server", &[address(0)])];
    if random.chance(50) {
        backend.push(Line::new("keepalive", &[random.pick(&["1", "4", "16"])]));
        for (name, values) in [
            ("keepalive_requests", &["1", "2", "100"]),
            ("keepalive_time", &["1h", "30m", "10s"]),
            ("keepalive_timeout", &["60s", "10s", "1h"]),
        ] {
            if random.chance(60) {
                backend.push(Line::new(name, &[random.pick(values)]));
            }
        }
    }
    // One is asked first always: where one program has once asked more often, the two would not
    // take turns alike any more.
    let (first, second, option) = [
        (0, 1, "weight=2"),
        (1, 0, "fail_timeout=30s"),
        (0, 2, "down"),
        (2, 0, "weight=10"),
        (2, 1, "fail_timeout=1"),
    ][random.below(5)];
    let peers = [world.dead.as_str(), address(1), address(0)];
    let group = vec![
        Line::new("server", &[peers[first], "max_fails=0"]),
        Line::new("server", &[peers[second], "max_fails=0", "backup", option]),
    ];
    vec![
        Line::block("upstream", &["backend"], backend),
        Line::block("upstream", &["group"], group),
    ]
}

/// The rows of a `types` block.
pub(super) fn types(random: &mut Random) -> Vec<Line> {
    let all = [
        ("text/html", "html shtml"),
        ("text/plain", "txt log"),
        ("application/x-own", "html"),
        ("image/gif", "gif"),
        ("text/css", "css CSS"),
        ("application/octet-stream", "bin"),
        ("video/mp4", "mp4"),
        ("text/x-index", "php"),
    ];
    let mut seen: Vec<&str> = Vec::new();
    let mut rows = Vec::new();
    for (kind, endings) in all {
        let first = endings.split(' ').next().unwrap_or_default();
        if random.chance(50) && !seen.contains(&first) {
            seen.push(first);
            let endings: Vec<&str> = endings
                .split(' ')
                .filter(|one| one.to_lowercase() == *one)
                .collect();
            rows.push(Line::new(kind, &endings));
        }
    }
    rows
}
