//! A random `stream` block: definitions, groups, and servers over TCP and UDP.

use std::fmt::Write;
use std::net::TcpListener;

use super::backends::Backends;
use crate::random::Random;
use crate::run::guarded_port;

/// Servers of one configuration that clients may call.
const SERVERS: usize = 8;

/// The times that are drawn, in milliseconds.
const TIMES: [u32; 3] = [150, 120, 100];

/// The ports that they listen on, the same for all programs.
pub(crate) struct Places {
    ports: Vec<u16>,
    _guards: Vec<TcpListener>,
}

impl Places {
    pub(crate) fn new() -> Places {
        let mut guards = Vec::new();
        Places {
            ports: (0..SERVERS).map(|_| guarded_port(&mut guards)).collect(),
            _guards: guards,
        }
    }
}

/// What a client must know of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) port: u16,
    pub(crate) is_datagrams: bool,
    /// A PROXY header is awaited.
    pub(crate) is_told: bool,
    /// The beginning is looked at.
    pub(crate) is_looked_at: bool,
}

/// A configuration.
pub(crate) struct Drawn {
    pub(crate) targets: Vec<Target>,
    stream: String,
}

const VALUES: &[&str] = &[
    "$remote_addr",
    "$protocol",
    "$status",
    "$bytes_sent",
    "$bytes_received",
    "$upstream_addr",
    "$upstream_bytes_sent",
    "$upstream_bytes_received",
    "$server_addr",
    "$server_port",
    "$ssl_preread_server_name",
    "$ssl_preread_protocol",
    "$ssl_preread_alpn_protocols",
    "$proxy_protocol_addr",
    "$proxy_protocol_port",
    "$proxy_protocol_server_addr",
    "$proxy_protocol_server_port",
    "$proxy_protocol_tlv_authority",
    "$realip_remote_addr",
    "$limit_conn_status",
    "$by_map",
    "$by_name",
    "$by_geo",
    "$by_range",
    "$part",
    "$own",
];

/// Values that do not change while a session lasts. `set` may have them, which comes before a
/// ClientHello is read: nginx keeps what it has asked for too early as empty.
const STEADY: &[&str] = &[
    "$remote_addr",
    "$protocol",
    "$server_port",
    "$by_map",
    "$by_geo",
    "$by_range",
    "$part",
    "$own",
    "$proxy_protocol_addr",
    "text",
    "",
];

impl Drawn {
    pub(crate) fn random(random: &mut Random, places: &Places, backends: &Backends) -> Drawn {
        let mut stream = String::new();
        let mut line = |text: String| {
            let _ = writeln!(stream, "    {text}");
        };
        let count = 3 + random.below(VALUES.len());
        let format: Vec<&str> = (0..count).map(|_| random.pick(VALUES)).collect();
        let escape = random.pick(&["", "escape=json ", "escape=none ", "escape=default "]);
        let format = format.join("|");
        line(format!("log_format session {escape}'{format}';"));
        line("access_log logs/sessions.log session;".into());
        line(format!(
            "map {} $by_map {{ {}default {}; 127.0.0.2 two; ~^127.0.0.(?<last>\\d) last-$last; \"\" empty; }}",
            random.pick(&["$remote_addr", "$protocol"]),
            random.pick(&["", "hostnames; ", "volatile; "]),
            random.pick(&["other", "\"\"", "$remote_addr"]),
        ));
        line(format!(
            "map $ssl_preread_server_name $by_name {{ hostnames; .example 127.0.0.1:{}; a.test 127.0.0.1:{}; default 127.0.0.1:{}; }}",
            backends.echo, backends.greeter, backends.closer
        ));
        line(format!(
            "geo {}$by_geo {{ default none; 127.0.0.0/31 low; 127.0.0.2 two; {}192.0.2.0/24 told; }}",
            random.pick(&["", "$proxy_protocol_addr ", "$remote_addr "]),
            random.pick(&["", "delete 127.0.0.2; ", "::/0 six; "]),
        ));
        line("geo $by_range { ranges; default none; 127.0.0.1-127.0.0.2 few; 192.0.2.0-192.0.2.9 told; }".into());
        line(format!(
            "split_clients \"$remote_addr{}\" $part {{ 30% a; 20.5% b; * \"\"; }}",
            random.pick(&["", "$server_port", "-salt"])
        ));
        line(format!(
            "limit_conn_zone {} zone=one:1m;",
            random.pick(&[
                "$remote_addr",
                "$binary_remote_addr",
                "$server_port",
                "$by_map"
            ])
        ));
        for name in ["first", "second", "third"] {
            let group = group(random, backends, name, false);
            line(group);
        }
        line(group(random, backends, "datagrams", true));
        let mut targets = Vec::new();
        for port in &places.ports {
            let (target, text) = server(random, *port, backends);
            targets.push(target);
            line(text);
        }
        Drawn { targets, stream }
    }

    /// The whole text; all times are multiplied by `pace`.
    pub(crate) fn text(&self, engine: Option<&str>, pace: u32) -> String {
        let mut stream = self.stream.clone();
        for time in TIMES {
            stream = stream.replace(&format!("{time}ms"), &format!("{}ms", time * pace));
        }
        let engine = engine.map_or(String::new(), |engine| format!("    use {engine};\n"));
        format!(
            "error_log logs/error.log info;\nevents {{\n{engine}}}\nhttp {{\n    access_log off;\n}}\nstream {{\n{stream}}}\n"
        )
    }
}

fn group(random: &mut Random, backends: &Backends, name: &str, is_datagrams: bool) -> String {
    let method = random.pick(&[
        "",
        "least_conn; ",
        "hash $remote_addr; ",
        "hash $remote_addr consistent; ",
        "hash $by_map; ",
        "zone NAME 64k; ",
        "zone NAME 64k; least_conn; ",
    ]);
    let method = method.replace("NAME", name);
    let mut text = format!("upstream {name} {{ {method}");
    let takes_backups = !method.contains("hash");
    for number in 0..1 + random.below(4) {
        let port = if is_datagrams {
            [
                backends.datagrams,
                backends.twice,
                backends.silent,
                backends.dead,
            ][random.below(4)]
        } else {
            [
                backends.echo,
                backends.greeter,
                backends.closer,
                backends.dead,
            ][random.below(4)]
        };
        let _ = write!(text, "server 127.0.0.1:{port}");
        for (percent, words) in [
            (30, " weight=3"),
            (10, " max_fails=0"),
            (10, " max_fails=2"),
            (20, " fail_timeout=1h"),
            (10, " max_conns=1"),
        ] {
            if random.chance(percent) && !(text.ends_with("fails=0") && words.contains("fails=")) {
                text.push_str(words);
            }
        }
        if number > 0 && random.chance(10) {
            text.push_str(" down");
        } else if number > 0 && takes_backups && random.chance(15) {
            text.push_str(" backup");
        }
        text.push_str("; ");
    }
    text + "}"
}

fn server(random: &mut Random, port: u16, backends: &Backends) -> (Target, String) {
    let is_datagrams = random.chance(30);
    let is_told = !is_datagrams && random.chance(25);
    let is_looked_at = !is_datagrams && random.chance(35);
    let mut text = format!("server {{ listen 127.0.0.1:{port}");
    text.push_str(if is_datagrams { " udp" } else { "" });
    text.push_str(if is_told { " proxy_protocol" } else { "" });
    if !is_datagrams && random.chance(10) {
        text.push_str(" so_keepalive=on");
    }
    text.push_str("; ");
    let mut add = |words: String| {
        text.push_str(&words);
        text.push(' ');
    };
    if is_told {
        add("proxy_protocol_timeout 150ms;".into());
    }
    if is_looked_at {
        add("ssl_preread on; preread_timeout 120ms;".into());
        if random.chance(15) {
            add("preread_buffer_size 64;".into());
        }
    }
    if random.chance(60) {
        add(format!("set $own {};", value(random)));
    } else {
        add("set $own \"\";".into());
    }
    if random.chance(30) {
        let realip = random.pick(&["127.0.0.1", "127.0.0.0/8", "192.0.2.0/24", "unix:"]);
        add(format!("set_real_ip_from {realip};"));
    }
    if random.chance(30) {
        for _ in 0..1 + random.below(3) {
            let rule = random.pick(&["allow", "deny"]);
            let whom = random.pick(&[
                "127.0.0.1",
                "127.0.0.2",
                "127.0.0.0/8",
                "192.0.2.7",
                "all",
                "::1",
            ]);
            add(format!("{rule} {whom};"));
        }
    }
    if random.chance(25) {
        add(format!("limit_conn one {};", 1 + random.below(2)));
        if random.chance(30) {
            add(String::from("limit_conn_dry_run on;"));
        }
        if random.chance(30) {
            let level = random.pick(&["info", "notice", "warn", "error"]);
            add(format!("limit_conn_log_level {level};"));
        }
    }
    if random.chance(15) {
        let log = random.pick(&[
            "access_log off;",
            "access_log logs/sessions.log session if=$by_map;",
            "error_log logs/error.log error;",
            "error_log logs/error.log crit;",
        ]);
        add(log.to_string());
    }
    if random.chance(30) {
        let count = 1 + random.below(4);
        let word = |_| match random.below(12) {
            0 => "$ssl_preread_server_name",
            1 => "$by_name",
            _ => value(random),
        };
        let words: Vec<&str> = (0..count).map(word).collect();
        add(format!("return \"{}\";", words.join(" ").replace('"', "")));
    } else {
        let to = if is_datagrams {
            let one = [
                backends.datagrams,
                backends.twice,
                backends.silent,
                backends.dead,
            ];
            match random.below(3) {
                0 => String::from("datagrams"),
                _ => format!("127.0.0.1:{}", one[random.below(4)]),
            }
        } else {
            let one = [
                backends.echo,
                backends.greeter,
                backends.closer,
                backends.deaf,
                backends.dead,
            ];
            match random.below(6) {
                0 => String::from("first"),
                1 => String::from("second"),
                2 => String::from("third"),
                3 if is_looked_at => String::from("$by_name"),
                _ => format!("127.0.0.1:{}", one[random.below(5)]),
            }
        };
        add(format!("proxy_pass {to};"));
        let answers = if !is_datagrams {
            None
        } else if to == "datagrams" || to.ends_with(&format!(":{}", backends.twice)) {
            Some([0, 2])
        } else {
            Some([0, 1])
        };
        passing(random, answers, &mut add);
    }
    text.push('}');
    let target = Target {
        port,
        is_datagrams,
        is_told,
        is_looked_at,
    };
    (target, text)
}

/// What may be said of a session that is passed on; `answers` are the numbers of answers that may
/// be awaited of a datagram. With one from a server that answers twice, nginx passes the second on
/// where it has come by the time of the first.
fn passing(random: &mut Random, answers: Option<[u8; 2]>, add: &mut impl FnMut(String)) {
    if let Some(answers) = answers {
        add("proxy_timeout 120ms;".into());
        if random.chance(40) {
            let answers = answers[random.below(2)];
            add(format!("proxy_responses {answers};"));
        }
        if random.chance(30) {
            add(format!("proxy_requests {};", 1 + random.below(3)));
        }
    } else {
        if random.chance(25) {
            add("proxy_timeout 100ms;".into());
        }
        if random.chance(20) {
            add("proxy_half_close on;".into());
        }
        if random.chance(15) {
            add("proxy_protocol on;".into());
        }
        if random.chance(20) {
            add(format!(
                "proxy_buffer_size {};",
                random.pick(&["64", "1k", "16k"])
            ));
        }
    }
    if random.chance(15) {
        add("proxy_bind 127.0.0.5;".into());
    }
    if random.chance(20) {
        add(format!(
            "proxy_next_upstream {};",
            random.pick(&["on", "off"])
        ));
    }
    if random.chance(20) {
        add(format!("proxy_next_upstream_tries {};", random.below(3)));
    }
    if random.chance(10) {
        add("proxy_connect_timeout 2s;".into());
    }
}

fn value(random: &mut Random) -> &'static str {
    let value = random.pick(STEADY);
    if value.is_empty() { "\"\"" } else { value }
}
