//! Any configuration of a group and of who asks it.

use engine::net::Address;

use crate::random::Random;
use crate::site::ADDRESS;

/// Servers that there are behind.
pub(super) const BEHIND: usize = 4;

/// How requests name the server of storms.
pub(super) const HOST: &str = "storm";

/// Where such a server is reached.
pub(super) fn address(number: usize) -> Address {
    Address::Inet(format!("10.0.1.{}:8080", number + 1).parse().unwrap())
}

/// What stays the same over the reloads of a storm.
pub(super) struct Settings {
    pub(super) max_conns: usize,
    method: &'static str,
    sticky: &'static str,
}

impl Settings {
    pub(super) fn any(random: &mut Random) -> Settings {
        let methods = [
            "",
            "least_conn;",
            "least_time header inflight;",
            "least_time last_byte inflight;",
            "random two least_conn;",
            "hash $uri;",
            "hash $uri consistent;",
            "hash $uri consistent bounded=1.25;",
            "ip_hash;",
            "p2c;",
        ];
        let sticky = [
            "",
            "sticky cookie session;",
            "sticky learn create=$upstream_cookie_id lookup=$cookie_id zone=sessions:64k;",
        ];
        Settings {
            max_conns: [0, 1, 2, 3][random.below(4)],
            method: methods[random.below(methods.len())],
            sticky: sticky[random.below(sticky.len())],
        }
    }

    /// Lines of a generation: all that a reload may change is drawn anew.
    pub(super) fn lines(&self, random: &mut Random) -> String {
        let any = |random: &mut Random, of: &[&'static str]| of[random.below(of.len())];
        let mut servers = String::new();
        for number in 0..BEHIND {
            if number > 0 && random.chance(300) {
                continue;
            }
            let fails = any(random, &["", "max_fails=0", "fail_timeout=1s"]);
            servers += &format!(
                "server {} max_conns={} {fails};\n",
                address(number),
                self.max_conns
            );
        }
        if random.chance(400) {
            servers += &format!(
                "server storm.test:8080 resolve max_conns={};\n",
                self.max_conns
            );
        }
        // A server that no one listens for.
        if random.chance(200) {
            servers += &format!("server 10.0.1.77:8080 max_conns={};\n", self.max_conns);
        }
        let group = [
            any(random, &["", "queue 3 timeout=1s;", "queue 1 timeout=20s;"]),
            any(
                random,
                &["", "keepalive 0;", "keepalive 1;", "keepalive_requests 2;"],
            ),
            any(
                random,
                &["", "retry_budget 20% min=0;", "retry_budget 100%;"],
            ),
            any(random, &["", "eject_outliers errors=2 time=1s;"]),
        ]
        .join(" ");
        let location = [
            any(random, &["", "proxy_buffering off;"]),
            any(random, &["", "proxy_request_buffering off;"]),
            any(random, &["", "proxy_ignore_client_abort on;"]),
            any(
                random,
                &[
                    "",
                    "proxy_next_upstream off;",
                    "proxy_next_upstream error timeout invalid_header http_503 http_404 non_idempotent;",
                ],
            ),
            any(random, &["", "proxy_next_upstream_tries 2;"]),
            any(random, &["", "proxy_intercept_errors on;"]),
        ]
        .join(" ");
        let location = match random.below(5) {
            0 => {
                let next = any(
                    random,
                    &[
                        "",
                        "grpc_next_upstream off;",
                        "grpc_next_upstream error timeout invalid_header http_503 http_404 non_idempotent;",
                    ],
                );
                format!(
                    "grpc_pass u;
                    grpc_connect_timeout 2s;
                    grpc_read_timeout 3s;
                    grpc_send_timeout 3s;
                    {next}"
                )
            }
            number => {
                let version = if number < 3 {
                    "proxy_http_version 2;"
                } else {
                    ""
                };
                format!(
                    "proxy_pass http://u;
                    proxy_set_header Upgrade $http_upgrade;
                    proxy_set_header Connection $http_connection;
                    proxy_connect_timeout 2s;
                    proxy_read_timeout 3s;
                    proxy_send_timeout 3s;
                    {version} {location}"
                )
            }
        };
        format!(
            "upstream u {{
                zone u 64k; resolver 10.0.0.53;
                {} {} {group}
                {servers}
            }}
            server {{
                listen {ADDRESS};
                server_name {HOST};
                client_max_body_size 0;
                client_body_timeout 5s;
                send_timeout 5s;
                lingering_timeout 1s;
                keepalive_timeout 10s;
                location / {{
                    {location}
                }}
            }}",
            self.method, self.sticky
        )
    }
}
