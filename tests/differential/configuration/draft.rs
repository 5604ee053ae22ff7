//! The frame of a configuration: the outermost level, `events`, `http`, its servers.

use std::collections::BTreeSet;

use super::definitions;
use super::families::{Family, PAIRS_EACH};
use super::lists;
use super::sprinkle::Density;
use super::table::Table;
use super::tree::Line;
use super::{Configuration, World};
use crate::random::Random;

/// A configuration in the making.
pub(super) struct Draft<'a> {
    pub(super) random: Random,
    pub(super) seed: u64,
    pub(super) world: &'a World,
    pub(super) table: &'a Table,
    pub(super) density: Density,
    pub(super) targets: BTreeSet<String>,
    pub(super) pairs: BTreeSet<(Family, Family)>,
    /// Pairs of families that locations still have to bring together.
    pub(super) wanted: Vec<(Family, Family)>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(
        random: Random,
        seed: u64,
        world: &'a World,
        table: &'a Table,
        density: Density,
    ) -> Draft<'a> {
        let all = Family::pairs();
        let first = (seed as usize).wrapping_mul(PAIRS_EACH);
        let wanted = (0..PAIRS_EACH)
            .map(|step| all[first.wrapping_add(step) % all.len()])
            .collect();
        Draft {
            random,
            seed,
            world,
            table,
            density,
            targets: BTreeSet::new(),
            pairs: BTreeSet::new(),
            wanted,
        }
    }

    pub(super) fn finish(mut self, log_format: &str) -> Configuration {
        let mut http = definitions::definitions(&mut self.random, self.world, log_format);
        http.extend([
            Line::new("client_body_temp_path", &["temp/body"]),
            Line::new("proxy_temp_path", &["temp/proxy"]),
            Line::new("ssl_client_certificate", &["tls/ca.crt"]),
        ]);
        for index in 0..3 + self.random.below(2) {
            let server = self.server(index);
            http.push(server);
        }
        let mut lines = vec![
            Line::new("daemon", &["off"]),
            Line::new("user", &["root"]),
            Line::new("pid", &["logs/nginx.pid"]),
            Line::new("worker_processes", &["1"]),
            Line::new("error_log", &["logs/error.log", "info"]),
            Line::block("events", &[], Vec::new()),
            Line::block("http", &[], http),
        ];
        self.sprinkle(&mut lines);
        for host in [
            "/",
            "/index.html",
            "/none",
            "/%zz",
            "/../x",
            "//",
            "/a//b/../page.html",
            "/?a=one&page=3",
        ] {
            self.targets.insert(String::from(host));
        }
        Configuration {
            lines,
            targets: self.targets.into_iter().collect(),
            pairs: self.pairs.into_iter().collect(),
        }
    }

    /// A server: the first two and the fourth on the port in the clear, the third on the others
    /// too.
    fn server(&mut self, index: usize) -> Line {
        let mut lines = self.listens(index);
        let mut names: Vec<&str> = Vec::new();
        for _ in 0..self.random.below(4) {
            let name = self.random.pick(lists::NAMES);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let own = [
            "one.example",
            "two.example",
            "*.wild.example",
            "~^(?<part>[a-z]+)\\.regex\\.example$",
        ][index % 4];
        if !names.contains(&own) {
            names.push(own);
        }
        lines.push(Line::new("server_name", &names));
        if self.random.chance(70) {
            lines.push(Line::new(
                "root",
                &[self
                    .random
                    .pick(&["html", "html", "html/", "html/dir", "$document_root_of"])],
            ));
            if let Some(line) = lines
                .last_mut()
                .filter(|line| line.arguments == ["$document_root_of"])
            {
                line.arguments = vec![format!("{}/html", self.world.prefix.display())];
            }
        }
        if index == 0 {
            // A variable that one server sets, all may read.
            lines.extend([
                Line::words("set $own_a first"),
                Line::words("set $own_b $uri"),
            ]);
        }
        if self.random.chance(35) {
            self.server_program(&mut lines);
        }
        if self.random.chance(6) {
            lines.push(Line::new(
                "try_files",
                &[
                    "$uri",
                    self.random.pick(&["$uri/", "/dir$uri"]),
                    self.random.pick(&["=404", "/index.html", "@fallback"]),
                ],
            ));
        }
        lines.extend(self.helpers());
        let mut names: BTreeSet<String> = BTreeSet::new();
        let count = 3 + self.random.below(3);
        for _ in 0..count {
            lines.extend(self.location(&mut names, None));
        }
        Line::block("server", &[], lines)
    }

    fn listens(&mut self, index: usize) -> Vec<Line> {
        let address = |port: u16| format!("127.0.0.1:{port}");
        let ports = self.world.ports.clone();
        let port = |index: usize| ports.get(index).copied();
        let mut lines = Vec::new();
        let first = address(ports[0]);
        match index {
            0 => {
                let option = self.random.pick(&[
                    "",
                    "backlog=64",
                    "rcvbuf=64k",
                    "sndbuf=64k",
                    "so_keepalive=on",
                    "deferred",
                    "default_server",
                    "reuseport",
                ]);
                let mut options = vec![first.as_str()];
                options.extend((!option.is_empty()).then_some(option));
                lines.push(Line::new("listen", &options));
                if let Some(port) = port(3) {
                    lines.push(Line::new("listen", &[&address(port)]));
                }
            }
            2 => {
                lines.push(Line::new("listen", &[&first]));
                if let Some(port) = port(1).filter(|_| self.random.chance(60)) {
                    lines.push(Line::new("listen", &[&address(port), "proxy_protocol"]));
                }
                if let Some(port) = port(2).filter(|_| self.random.chance(60)) {
                    lines.push(Line::new("listen", &[&address(port), "ssl"]));
                }
            }
            _ => lines.push(Line::new("listen", &[&first])),
        }
        let pair = self.random.pick(&["rsa", "ecdsa"]);
        lines.push(Line::new("ssl_certificate", &[&format!("tls/{pair}.crt")]));
        lines.push(Line::new(
            "ssl_certificate_key",
            &[&format!("tls/{pair}.key")],
        ));
        lines
    }

    /// Lines of the rewrite module in a server.
    fn server_program(&mut self, lines: &mut Vec<Line>) {
        // Not the last, which would lead all requests to one place.
        let rewrite = self.rewrite_line(&lists::REWRITES[..lists::REWRITES.len() - 1]);
        lines.push(rewrite);
        if self.random.chance(40) {
            lines.push(Line::new(
                "set",
                &["$own_a", self.random.pick(lists::VARIABLES)],
            ));
        }
        if self.random.chance(40) {
            let inner = self.random.pick(&[
                "return 403",
                "return 418",
                "return 301 /page.html",
                "set $own_b set$uri",
                "break",
                "rewrite ^ /page.html last",
            ]);
            let condition = self.random.pick(&[
                "($arg_stop)",
                "($http_x_test = stop)",
                "($host = two.example)",
                "(!-e $request_filename)",
            ]);
            lines.push(Line::block("if", &[condition], vec![Line::words(inner)]));
        }
    }

    /// Locations that the rest of the server refers to.
    fn helpers(&mut self) -> Vec<Line> {
        let upstream = format!("proxy_pass http://{}", self.world.upstreams[0]);
        let location = |words: &[&str], inner: &[&str]| {
            Line::block(
                "location",
                words,
                inner.iter().map(|line| Line::words(line)).collect(),
            )
        };
        let fallback: &[&str] = match self.random.below(4) {
            0 => &["return 200 fallback"],
            1 => &["root html", "rewrite ^ /page.html break"],
            2 => &[&upstream],
            _ => &["try_files /page.html =404"],
        };
        let mirrored = format!("{upstream}/mirrored$is_args$args");
        let body = self.random.pick(&[
            "proxy_pass_request_body on",
            "proxy_pass_request_body off",
            "proxy_method GET",
        ]);
        let granted = self
            .random
            .pick(&["return 200", "return 204", "return 200 ok"]);
        let denied = self.random.pick(&["return 401", "return 403"]);
        vec![
            location(&["@fallback"], fallback),
            location(&["@proxied"], &[&upstream]),
            location(&["=", "/mirror"], &["internal", &mirrored, body]),
            location(&["=", "/auth/ok"], &[granted]),
            location(&["=", "/auth/denied"], &[denied]),
            location(&["/auth/"], &[&format!("{upstream}/")]),
            location(&["/errors/"], &["internal", "alias html/"]),
            location(
                &["=", "/added.html"],
                &["default_type text/html", "return 200 added"],
            ),
        ]
    }
}
