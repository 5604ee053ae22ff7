//! Ten families of directives that act in different phases of a request, and how they come together
//! in one location.

use super::draft::Draft;
use super::lists;
use super::locations::{Handler, Place};
use super::tree::Line;
use super::values;

/// How many pairs of families each seed brings together.
pub(super) const PAIRS_EACH: usize = 9;

/// A family of directives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    /// `rewrite`, `return`, `set`, `if`, `break`
    Rewrite,
    /// `allow`, `deny`, `satisfy`, `auth_basic`, `limit_except`, `secure_link`, `valid_referers`
    Access,
    /// `limit_req`, `limit_conn`, `limit_rate`, `client_max_body_size`
    Limits,
    /// `try_files`, `index`, `autoindex`, `disable_symlinks`, `open_file_cache`
    Files,
    /// `error_page`, `proxy_intercept_errors`, `recursive_error_pages`
    Errors,
    /// `proxy_pass` and what changes its requests and answers
    Proxy,
    /// `sub_filter`, `ssi`, `add_before_body`, `add_after_body`
    Bodies,
    /// `gzip`, `gunzip`, `gzip_static`, `slice`, `max_ranges`, `chunked_transfer_encoding`
    Codings,
    /// `add_header`, `add_trailer`, `expires`, `charset`, `etag`, `userid`, `default_type`
    Fields,
    /// `auth_request`, `mirror`, `post_action`
    Subrequests,
}

impl Family {
    /// Every family.
    pub(crate) const ALL: [Family; 10] = [
        Family::Rewrite,
        Family::Access,
        Family::Limits,
        Family::Files,
        Family::Errors,
        Family::Proxy,
        Family::Bodies,
        Family::Codings,
        Family::Fields,
        Family::Subrequests,
    ];

    /// Every pair, the earlier family first.
    pub(crate) fn pairs() -> Vec<(Family, Family)> {
        let all = Family::ALL;
        (0..all.len())
            .flat_map(|one| (one + 1..all.len()).map(move |other| (all[one], all[other])))
            .collect()
    }
}

impl Draft<'_> {
    /// Lines of a family for a location; at least one.
    pub(super) fn family(&mut self, family: Family, place: &Place, handler: Handler) -> Vec<Line> {
        match family {
            Family::Rewrite => self.rewrite(handler),
            Family::Access => self.access(),
            Family::Limits => self.some(&[
                "limit_req",
                "limit_conn",
                "limit_rate",
                "client_max_body_size",
                "limit_rate_after",
                "limit_req_dry_run",
                "limit_req_status",
                "limit_conn_status",
            ]),
            Family::Files => self.files_family(),
            Family::Errors => self.errors(),
            Family::Proxy => self.some(&[
                "proxy_set_header",
                "proxy_redirect",
                "proxy_hide_header",
                "proxy_pass_header",
                "proxy_http_version",
                "proxy_buffering",
                "proxy_request_buffering",
                "proxy_method",
                "proxy_next_upstream",
                "proxy_ignore_headers",
                "proxy_pass_request_body",
                "proxy_pass_request_headers",
                "proxy_intercept_errors",
                "proxy_buffer_size",
            ]),
            Family::Bodies => {
                let mut lines =
                    self.some(&["sub_filter", "ssi", "add_before_body", "add_after_body"]);
                lines.extend(self.some(&[
                    "sub_filter_once",
                    "sub_filter_types",
                    "sub_filter_last_modified",
                    "addition_types",
                    "ssi_types",
                    "ssi_last_modified",
                    "ssi_silent_errors",
                ]));
                lines
            }
            Family::Codings => {
                let mut lines = vec![Line::words(self.random.pick(&[
                    "gzip on",
                    "gunzip on",
                    "gzip_static always",
                    "gzip_static on",
                    "gzip on",
                    "slice 1k",
                ]))];
                lines.extend(self.some(&[
                    "gzip_types",
                    "gzip_min_length",
                    "gzip_vary",
                    "gzip_http_version",
                    "gzip_proxied",
                    "gzip_comp_level",
                    "gzip_disable",
                    "max_ranges",
                    "chunked_transfer_encoding",
                ]));
                lines
            }
            Family::Fields => self.some(&[
                "add_header",
                "add_trailer",
                "expires",
                "charset",
                "etag",
                "userid",
                "default_type",
                "add_header_inherit",
                "if_modified_since",
                "source_charset",
                "override_charset",
                "server_tokens",
            ]),
            Family::Subrequests => self.subrequests(place),
        }
    }

    /// One to three of these directives, each with arguments of its own.
    fn some(&mut self, names: &[&str]) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for _ in 0..=self.random.below(3) {
            let name = self.random.pick(names);
            let several = matches!(
                name,
                "add_header"
                    | "add_trailer"
                    | "sub_filter"
                    | "proxy_set_header"
                    | "proxy_hide_header"
            );
            if !several && lines.iter().any(|line| line.name == name) {
                continue;
            }
            lines.extend(self.strewn(name, conf::Contexts::LOCATION));
        }
        lines
    }

    fn rewrite(&mut self, handler: Handler) -> Vec<Line> {
        let mut lines = Vec::new();
        for _ in 0..=self.random.below(2) {
            match self.random.below(6) {
                0 | 1 => {
                    let rewrite = self.rewrite_line(lists::REWRITES);
                    lines.push(rewrite);
                }
                2 => {
                    let value = values::text(&mut self.random);
                    lines.push(Line::new(
                        "set",
                        &[
                            self.random.pick(&["$own_a", "$own_b", "$limit_rate"]),
                            &value,
                        ],
                    ));
                    if lines
                        .last()
                        .is_some_and(|line| line.arguments[0] == "$limit_rate")
                    {
                        lines.pop();
                    }
                    lines.push(Line::new("set", &["$own_a", &value]));
                }
                3 => lines.push(Line::words("break")),
                _ => lines.push(self.condition(handler)),
            }
        }
        lines
    }

    /// A `rewrite` with one of these patterns, which requests shall meet.
    pub(super) fn rewrite_line(&mut self, rewrites: &[lists::Rewrite]) -> Line {
        let (pattern, samples, replacements) = rewrites[self.random.below(rewrites.len())];
        let samples = samples.iter().map(|sample| String::from(*sample));
        self.targets.extend(samples);
        let replacement = self.random.pick(replacements);
        let flags = &["", "last", "break", "redirect", "permanent"];
        let flag = self.random.pick(flags);
        let mut arguments = vec![pattern, replacement];
        arguments.extend((!flag.is_empty()).then_some(flag));
        Line::new("rewrite", &arguments)
    }

    /// An `if` with what people put into one.
    fn condition(&mut self, handler: Handler) -> Line {
        let condition = self.random.pick(lists::CONDITIONS);
        let mut inner = Vec::new();
        match self.random.below(7) {
            0 => inner.push(Line::words(self.random.pick(&[
                "return 403",
                "return 200 in-if",
                "return 302 /page.html",
                "return 405",
            ]))),
            1 => inner.push(Line::words(self.random.pick(&[
                "rewrite ^ /page.html last",
                "rewrite ^ /page.html break",
                "rewrite ^(.*)$ /dir$1",
            ]))),
            2 => inner.push(Line::new("set", &["$own_b", "\"in if: $uri\""])),
            3 if handler == Handler::Proxy => {
                let upstream = format!("http://{}", self.world.upstreams[0]);
                inner.push(Line::new("proxy_pass", &[&upstream]));
            }
            4 => inner.push(Line::words("break")),
            _ => {}
        }
        for _ in 0..=self.random.below(2) {
            let name = self.random.pick(&[
                "add_header",
                "expires",
                "gzip",
                "charset",
                "error_page",
                "limit_rate",
                "access_log",
                "ssi",
                "add_trailer",
                "sendfile",
                "root",
            ]);
            if inner.iter().any(|line: &Line| line.name == name) {
                continue;
            }
            if name == "root" {
                inner.push(Line::words("root html/dir"));
            } else {
                inner.extend(self.strewn(name, conf::Contexts::LOCATION_IF));
            }
        }
        Line::block("if", &[condition], inner)
    }

    fn access(&mut self) -> Vec<Line> {
        let mut lines = Vec::new();
        match self.random.below(7) {
            0 => lines.extend([
                Line::words(self.random.pick(&[
                    "allow 127.0.0.1",
                    "deny 127.0.0.1",
                    "allow 10.0.0.0/8",
                ])),
                Line::words("deny all"),
            ]),
            1 => lines.extend([
                Line::words("auth_basic closed"),
                Line::words("auth_basic_user_file users"),
            ]),
            2 => lines.extend([
                Line::words("satisfy any"),
                Line::words(self.random.pick(&["allow 192.0.2.1", "allow 127.0.0.0/8"])),
                Line::words("deny all"),
                Line::words("auth_basic $host"),
                Line::words("auth_basic_user_file users"),
            ]),
            3 => {
                let methods = self
                    .random
                    .pick(&["GET", "GET POST", "HEAD", "POST PUT", "OPTIONS"]);
                let mut inner = vec![Line::words(self.random.pick(&[
                    "deny all",
                    "allow all",
                    "allow 127.0.0.1",
                ]))];
                if self.random.chance(30) {
                    inner.extend([
                        Line::words("auth_basic limited"),
                        Line::words("auth_basic_user_file users"),
                    ]);
                }
                let methods: Vec<&str> = methods.split(' ').collect();
                lines.push(Line::block("limit_except", &methods, inner));
            }
            4 => lines.extend([
                Line::words(self.random.pick(&[
                    "valid_referers none blocked server_names three.example",
                    "valid_referers *.one.example two.example/dir",
                    "valid_referers ~\\.example www.end.* none",
                ])),
                Line::block(
                    "if",
                    &["($invalid_referer)"],
                    vec![Line::words("return 403")],
                ),
            ]),
            5 => lines.extend([
                Line::words("secure_link $arg_md5,$arg_expires"),
                Line::words("secure_link_md5 $secure_link_expires$uri"),
                Line::block(
                    "if",
                    &["($secure_link = \"\")"],
                    vec![Line::words("return 403")],
                ),
            ]),
            _ => lines.push(Line::words(self.random.pick(&[
                "deny all",
                "allow all",
                "deny 192.0.2.1",
                "satisfy all",
            ]))),
        }
        lines
    }

    fn files_family(&mut self) -> Vec<Line> {
        let mut lines = Vec::new();
        if self.random.chance(45) {
            let files = self.random.pick(&[
                "$uri",
                "$uri $uri/",
                "$uri.html $uri",
                "/none $uri/index.html",
                "$uri/ $uri",
                "/dir$uri $uri.gz",
            ]);
            let last = self.random.pick(&[
                "=404",
                "/page.html",
                "@fallback",
                "@proxied",
                "/index.html?from=$uri",
                "=403",
                "/none",
                "=410",
                "/dir/?$args",
            ]);
            lines.push(Line::words(&format!("try_files {files} {last}")));
        }
        lines.extend(self.some(&[
            "index",
            "autoindex",
            "autoindex_format",
            "disable_symlinks",
            "open_file_cache",
            "log_not_found",
            "autoindex_exact_size",
            "open_file_cache_errors",
            "open_file_cache_min_uses",
            "default_type",
        ]));
        lines
    }

    fn errors(&mut self) -> Vec<Line> {
        let mut lines = Vec::new();
        for _ in 0..=self.random.below(3) {
            lines.extend(self.strewn("error_page", conf::Contexts::LOCATION));
        }
        if self.random.chance(50) {
            lines.push(Line::words("proxy_intercept_errors on"));
        }
        if self.random.chance(40) {
            lines.push(Line::words("recursive_error_pages on"));
        }
        lines
    }

    fn subrequests(&mut self, place: &Place) -> Vec<Line> {
        let mut lines = Vec::new();
        match self.random.below(4) {
            0 | 1 => {
                let mut targets = vec![
                    "/auth/ok",
                    "/auth/ok",
                    "/auth/denied",
                    "/auth/201",
                    "/none",
                    "off",
                ];
                if matches!(place, Place::Prefix(name) if name == "/") {
                    targets.pop();
                }
                lines.push(Line::new("auth_request", &[self.random.pick(&targets)]));
                if self.random.chance(50) {
                    lines.extend(self.strewn("auth_request_set", conf::Contexts::LOCATION));
                    lines.push(Line::words("add_header X-Own a$own_a-b$own_b"));
                }
            }
            2 => lines.push(Line::words("mirror /mirror")),
            _ => lines.extend(self.strewn("post_action", conf::Contexts::LOCATION)),
        }
        if self.random.chance(20) {
            lines.extend(self.strewn("mirror_request_body", conf::Contexts::LOCATION));
        }
        lines
    }
}
