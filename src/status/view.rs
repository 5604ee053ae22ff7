//! Formats the API's values for a terminal: an overview, then a table for each group of servers and
//! each kind of zone.

use std::fmt::Write;

use serde_json::Value;

use super::Snapshot;

/// A table of text. The first column is left-aligned, the others are right-aligned.
struct Table {
    title: String,
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

/// Formats a snapshot; rates per second require an earlier one.
pub(super) fn render(now: &Snapshot, before: Option<&Snapshot>) -> String {
    let mut text = overview(now, before);
    for (kind, groups) in [
        ("http", now.get("http/upstreams")),
        ("stream", now.get("stream/upstreams")),
    ] {
        for (name, group) in members(groups) {
            upstream(kind, name, group).write(&mut text);
        }
    }
    for (title, path) in [
        ("servers", "http/server_zones"),
        ("locations", "http/location_zones"),
    ] {
        zones(title, path, now, before).write(&mut text);
    }
    for (title, path) in [
        ("limits of rates", "http/limit_reqs"),
        ("limits of connections", "http/limit_conns"),
    ] {
        limits(title, now.get(path)).write(&mut text);
    }
    caches(now.get("http/caches")).write(&mut text);
    queues(now.get("xdp")).write(&mut text);
    text
}

impl Snapshot {
    fn get(&self, path: &str) -> &Value {
        self.answers.get(path).unwrap_or(&Value::Null)
    }
}

fn members(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten()
}

/// A number as text; empty if the value is missing.
fn number(value: &Value) -> String {
    value
        .as_u64()
        .map_or(String::new(), |number| number.to_string())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A size in bytes, formatted with a unit.
fn size(value: &Value) -> String {
    let Some(mut bytes) = value.as_f64() else {
        return String::new();
    };
    let mut units = ["B", "KB", "MB", "GB"].iter();
    while bytes >= 1000.0 && units.len() > 1 {
        bytes /= 1000.0;
        units.next();
    }
    let unit = units.next().unwrap_or(&"TB");
    if *unit == "B" {
        format!("{bytes} B")
    } else {
        format!("{bytes:.1} {unit}")
    }
}

/// The rate per second of a counter since the earlier snapshot; empty if there is none, or if the
/// counter has been reset.
fn rate(now: &Snapshot, before: Option<&Snapshot>, counter: impl Fn(&Snapshot) -> u64) -> String {
    let Some(before) = before else {
        return String::new();
    };
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(0.001);
    let since = counter(now).saturating_sub(counter(before));
    format!("{:.1}", since as f64 / seconds)
}

fn overview(now: &Snapshot, before: Option<&Snapshot>) -> String {
    let (nginx, connections) = (now.get("nginx"), now.get("connections"));
    let (requests, tls) = (now.get("http/requests"), now.get("ssl"));
    let total = |snapshot: &Snapshot| snapshot.get("http/requests")["total"].as_u64().unwrap_or(0);
    let a_second = rate(now, before, total);
    let a_second = if a_second.is_empty() {
        a_second
    } else {
        format!(", {a_second} a second")
    };
    format!(
        "{} at {}, configuration {} of {}, process {}\n\
         requests     {} in all, {} being answered{a_second}\n\
         connections  {} active, {} idle, {} accepted, {} dropped\n\
         TLS          {} handshakes, {} failed, {} resumed\n",
        text(&nginx["version"]),
        text(&nginx["address"]),
        number(&nginx["generation"]),
        text(&nginx["load_timestamp"]),
        number(&nginx["pid"]),
        number(&requests["total"]),
        number(&requests["current"]),
        number(&connections["active"]),
        number(&connections["idle"]),
        number(&connections["accepted"]),
        number(&connections["dropped"]),
        number(&tls["handshakes"]),
        number(&tls["handshakes_failed"]),
        number(&tls["session_reuses"]),
    )
}

fn upstream(kind: &str, name: &str, group: &Value) -> Table {
    let peers = group["peers"].as_array().into_iter().flatten();
    let counted = if kind == "http" {
        "requests"
    } else {
        "connections"
    };
    let row = |peer: &Value| {
        let backup = if peer["backup"] == true {
            " (backup)"
        } else {
            ""
        };
        vec![
            format!("{}{backup}", text(&peer["server"])),
            text(&peer["state"]),
            number(&peer["weight"]),
            number(&peer["active"]),
            number(&peer[counted]),
            number(&peer["fails"]),
            number(&peer["unavail"]),
        ]
    };
    Table {
        title: format!("upstream {name} ({kind})"),
        columns: vec![
            "server", "state", "weight", "active", counted, "fails", "out",
        ],
        rows: peers.map(row).collect(),
    }
}

/// The table of the zones at a path of the API, which count requests.
fn zones(title: &str, path: &str, now: &Snapshot, before: Option<&Snapshot>) -> Table {
    let row = |(name, zone): (&String, &Value)| {
        let total =
            |snapshot: &Snapshot| snapshot.get(path)[name]["requests"].as_u64().unwrap_or(0);
        let by = &zone["responses"];
        vec![
            name.clone(),
            rate(now, before, total),
            number(&zone["requests"]),
            number(&by["2xx"]),
            number(&by["3xx"]),
            number(&by["4xx"]),
            number(&by["5xx"]),
            size(&zone["received"]),
            size(&zone["sent"]),
        ]
    };
    Table {
        title: title.to_owned(),
        columns: vec![
            "zone", "a second", "requests", "2xx", "3xx", "4xx", "5xx", "received", "sent",
        ],
        rows: members(now.get(path)).map(row).collect(),
    }
}

fn limits(title: &str, zones: &Value) -> Table {
    let row = |(name, zone): (&String, &Value)| {
        vec![
            name.clone(),
            number(&zone["passed"]),
            number(&zone["delayed"]),
            number(&zone["rejected"]),
        ]
    };
    Table {
        title: title.to_owned(),
        columns: vec!["zone", "passed", "delayed", "refused"],
        rows: members(zones).map(row).collect(),
    }
}

fn caches(zones: &Value) -> Table {
    let row = |(name, zone): (&String, &Value)| {
        let responses = |state: &str| number(&zone[state]["responses"]);
        vec![
            name.clone(),
            size(&zone["size"]),
            size(&zone["max_size"]),
            responses("hit"),
            responses("miss"),
            responses("stale"),
            responses("expired"),
        ]
    };
    Table {
        title: "caches".to_owned(),
        columns: vec!["zone", "size", "at most", "hit", "miss", "stale", "expired"],
        rows: members(zones).map(row).collect(),
    }
}

/// The table of receive queues whose connections bypass the kernel.
fn queues(queues: &Value) -> Table {
    let row = |queue: &Value| {
        let name = format!("{} {}", text(&queue["interface"]), number(&queue["queue"]));
        let numbers = [
            "connections",
            "accepted",
            "frames_received",
            "frames_sent",
            "frames_dropped",
            "retransmitted",
            "damaged",
            "syncookies",
            "frames_spare",
        ];
        let numbers = numbers.iter().map(|key| number(&queue[*key]));
        std::iter::once(name).chain(numbers).collect()
    };
    Table {
        title: "queues past the kernel".to_owned(),
        columns: vec![
            "queue",
            "connections",
            "accepted",
            "received",
            "sent",
            "dropped",
            "resent",
            "damaged",
            "cookies",
            "spare",
        ],
        rows: queues.as_array().into_iter().flatten().map(row).collect(),
    }
}

impl Table {
    /// Writes the table after an empty line, unless the table has no rows.
    fn write(&self, out: &mut String) {
        if self.rows.is_empty() {
            return;
        }
        let heads: Vec<String> = self.columns.iter().map(|name| (*name).to_owned()).collect();
        let width = |at: usize| {
            let cells = self
                .rows
                .iter()
                .chain([&heads])
                .filter_map(|row| row.get(at));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..heads.len()).map(width).collect();
        let _ = writeln!(out, "\n{}", self.title);
        for row in [&heads].into_iter().chain(&self.rows) {
            let mut line = String::new();
            for (at, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let _ = match at {
                    0 => write!(line, "  {cell:width$}"),
                    _ => write!(line, "  {cell:>width$}"),
                };
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::{Map, json};

    use super::*;

    fn snapshot(at: Instant, total: u64) -> Snapshot {
        let mut answers = Map::new();
        answers.insert(
            "http/requests".to_owned(),
            json!({"total": total, "current": 2}),
        );
        answers.insert(
            "http/server_zones".to_owned(),
            json!({"site": {"requests": total, "responses": {"2xx": 7}, "sent": 1500}}),
        );
        answers.insert(
            "http/upstreams".to_owned(),
            json!({"app": {"peers": [
                {"server": "127.0.0.1:1", "state": "up", "weight": 1, "requests": 12},
                {"server": "127.0.0.1:1000", "state": "draining", "weight": 10, "backup": true},
            ]}}),
        );
        Snapshot { at, answers }
    }

    #[test]
    fn rates_need_a_look_before() {
        let begin = Instant::now();
        let first = snapshot(begin, 100);
        let second = snapshot(begin + Duration::from_secs(2), 130);
        assert!(!render(&first, None).contains(" a second\nconnections"));
        assert!(
            render(&second, Some(&first)).contains("130 in all, 2 being answered, 15.0 a second\n")
        );
        // A restarted server's counters are smaller.
        assert!(render(&first, Some(&second)).contains(", 0.0 a second\n"));
    }

    #[test]
    fn columns_stand_below_one_another() {
        let shown = render(&snapshot(Instant::now(), 1), None);
        let expected = "\nupstream app (http)\n\
            \x20 server                      state  weight  active  requests  fails  out\n\
            \x20 127.0.0.1:1                    up       1                12\n\
            \x20 127.0.0.1:1000 (backup)  draining      10\n\
            \nservers\n\
            \x20 zone  a second  requests  2xx  3xx  4xx  5xx  received    sent\n\
            \x20 site                   1    7                           1.5 KB\n";
        assert!(shown.ends_with(expected), "{shown}");
    }
}
