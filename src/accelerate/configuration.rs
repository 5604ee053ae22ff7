//! The configuration that `accelerate` and `serve --proxy` generate.
//!
//! As with `serve`, the text uses only directives that an operator could write.

use std::fmt::Write;
use std::net::SocketAddr;

use super::origin::Origin;
use crate::serve::configuration::AccessLog;
use crate::serve::secure::Secure;
use crate::serve::words::quoted;

/// The settings of a reverse proxy for one origin server.
pub(super) struct Front {
    pub(super) origin: Origin,
    /// Authorities that the origin's certificate is verified with, if it uses TLS.
    pub(super) authorities: Option<String>,
    pub(super) listen: Vec<SocketAddr>,
    /// Addresses that only redirect from plain HTTP to TLS.
    pub(super) plain: Vec<SocketAddr>,
    pub(super) secure: Option<Secure>,
    /// The folder of the pid file and of bodies; `None` for the default folders.
    pub(super) folder: Option<String>,
    /// The destination of the access log: a file, or empty for standard error.
    pub(super) output: &'static str,
    pub(super) access_log: AccessLog,
    /// The arguments of `user`, if the master is root.
    pub(super) user: Option<String>,
    /// The PROXY protocol version for connections to the origin, if the PROXY protocol is used.
    pub(super) proxy_protocol: Option<&'static str>,
    /// Paths that are refused to clients.
    pub(super) refused: Vec<&'static str>,
    pub(super) cache: Option<Cache>,
}

/// The settings of the cache and of purges.
pub(super) struct Cache {
    pub(super) size: u64,
    /// Freshness of responses without explicit freshness, if not one second.
    pub(super) ttl: Option<String>,
    /// Heuristic freshness as a share of the time since the last modification, for example `10%`.
    pub(super) heuristic: Option<String>,
    pub(super) ignored_cookies: Vec<String>,
    /// The Unix socket that accepts purge requests.
    pub(super) purge_socket: Option<String>,
    /// Networks that may purge over TCP.
    pub(super) purge_from: Vec<String>,
    /// The folder that the origin serves, and the interval at which the origin is asked even if the
    /// file is unchanged.
    pub(super) files: Option<(String, String)>,
}

/// Header fields by which a client could make the response depend on something that is not part of
/// the cache key. They are not passed on.
const NOT_PASSED_ON: [&str; 15] = [
    "Forwarded",
    "Front-End-Https",
    "Proxy",
    "X-Forwarded-Host",
    "X-Forwarded-Port",
    "X-Forwarded-Prefix",
    "X-Forwarded-Scheme",
    "X-Forwarded-Server",
    "X-Forwarded-Ssl",
    "X-Host",
    "X-Original-Host",
    "X-Original-URL",
    "X-Real-IP",
    "X-Rewrite-URL",
    "X-Url-Scheme",
];

/// Header fields that override the method. They are removed from GET and HEAD requests, since the
/// cache decides by the actual method.
const METHOD_OVERRIDES: [(&str, &str); 3] = [
    ("X-HTTP-Method-Override", "http_x_http_method_override"),
    ("X-HTTP-Method", "http_x_http_method"),
    ("X-Method-Override", "http_x_method_override"),
];

/// Variables of the header fields that proxies add.
const OF_PROXIES: [&str; 7] = [
    "http_forwarded",
    "http_via",
    "http_x_forwarded_for",
    "http_x_forwarded_host",
    "http_x_real_ip",
    "http_cf_connecting_ip",
    "http_true_client_ip",
];

/// The host as sent by the client, in lower case, with its port.
const HOST: &str = "$host$is_request_port$request_port";

/// The name of the upstream with the origin.
const ORIGIN: &str = "origin";

/// Bytes of the cache per byte of its key zone.
const BYTES_A_KEY: u64 = 32;

/// Minimum size of a key zone, in bytes.
const KEYS_MIN: u64 = 1 << 20;

impl Front {
    pub(super) fn configuration(&self) -> String {
        let mut text = String::from("daemon off;\n");
        if let Some(user) = &self.user {
            let _ = writeln!(text, "user {user};");
        }
        text.push_str("worker_processes auto;\n");
        self.private(&mut text, "", "pid", "pid");
        text.push_str("error_log stderr error;\nevents { worker_connections 8192; }\nhttp {\n");
        self.private(&mut text, "    ", "client_body_temp_path", "body");
        self.private(&mut text, "    ", "proxy_temp_path", "proxy");
        text.push_str(&self.access_log.formats(self.cache.is_some()));
        for line in self.access_log.destinations(self.output) {
            // A log that a program reads may be buffered.
            let line = line.replace(" json;", " json buffer=64k flush=100ms;");
            let _ = writeln!(text, "    {line}");
        }
        if let Some(secure) = &self.secure {
            text.push_str(&secure.http_lines());
        }
        self.maps(&mut text);
        let _ = writeln!(
            text,
            "    upstream {ORIGIN} {{\n        server {};\n    }}",
            quoted(&self.origin.server())
        );
        if let Some(cache) = &self.cache {
            let size = cache.size;
            let keys = (size / BYTES_A_KEY).max(KEYS_MIN);
            let _ = writeln!(
                text,
                "    proxy_cache_path memory:accelerate keys_zone=accelerate:{keys} memory={size} \
                 memory_entry_max=1m inactive=1d;"
            );
        }
        self.server(&mut text);
        self.plain(&mut text);
        self.purging(&mut text);
        text.push_str("}\n");
        text
    }

    /// The line of a directive whose argument is a path in the folder, if there is a folder.
    fn private(&self, text: &mut String, indent: &str, directive: &str, name: &str) {
        if let Some(folder) = &self.folder {
            let path = quoted(&format!("{folder}/{name}"));
            let _ = writeln!(text, "{indent}{directive} {path};");
        }
    }

    /// The `map` blocks that the other lines refer to.
    fn maps(&self, text: &mut String) {
        // An upgrade to HTTP/2 or TLS would bypass all rules of this configuration.
        text.push_str(
            "    map $http_upgrade $upgrade { default $http_upgrade; ~*(h2|http/|tls) ''; }\n    map \
             $upgrade $connection_upgrade { default upgrade; '' ''; }\n",
        );
        if self.purging_networks().is_some() {
            // A request forwarded by a proxy may come from anywhere.
            let fields = OF_PROXIES.map(|name| format!("${name}")).concat();
            let _ = writeln!(
                text,
                "    map \"$request_method {fields}\" $refuses_purge {{ \"PURGE \" 0; default 1; }}"
            );
        }
        if self.cache.is_none() {
            return;
        }
        for (_, variable) in METHOD_OVERRIDES {
            let name = variable.trim_start_matches("http_");
            let _ = writeln!(
                text,
                "    map $request_method ${name} {{ default ${variable}; GET ''; HEAD ''; }}"
            );
        }
        text.push_str(
            "    map $upstream_http_content_type $is_stream { ~*^text/event-stream 1; default 0; }\n",
        );
    }

    /// The server for clients.
    fn server(&self, text: &mut String) {
        text.push_str("    server {\n");
        let mut line = |line: &str| {
            let _ = writeln!(text, "        {line}");
        };
        for address in &self.listen {
            let secure = if self.secure.is_some() { " ssl" } else { "" };
            line(&format!("listen {address}{secure};"));
        }
        line("http2 on;");
        let secure = self.secure.iter().flat_map(Secure::server_lines);
        secure.for_each(|secure| line(&secure));
        if !matches!(self.secure, Some(Secure::Domains { .. })) {
            // The name for clients that send no host.
            line("server_name localhost;");
        }
        // The origin has limits of its own.
        line("client_max_body_size 0;");
        for path in &self.refused {
            line(&format!("location ~ ^{path}(/|$) {{ return 403; }}"));
        }
        let passing = self.passing_lines();
        passing.iter().for_each(|passing| line(passing));
        let networks = self.purging_networks();
        let refusal = if networks.is_some() { 419 } else { 403 };
        let cache_lines = self.cache.as_ref().map(|cache| self.cache_lines(cache));
        let cache_lines = cache_lines.unwrap_or_default();
        let pass = self.pass_line();
        // These conditions are false for GET without `Upgrade`, so hits from memory need not
        // evaluate them.
        line("location / {");
        line(&format!(
            "    if ($request_method ~ \"^(PURGE|BAN)$\") {{ return {refusal}; }}"
        ));
        line("    if ($http_upgrade !~* \"^$|h2|http/|tls\") { return 418; }");
        line("    error_page 418 = @upgrade;");
        if networks.is_some() {
            line("    error_page 419 = @purge;");
        }
        for cached in &cache_lines {
            line(&format!("    {cached}"));
        }
        line(&format!("    {pass}"));
        line("}");
        if let Some(networks) = networks {
            line("location @purge {");
            line("    if ($refuses_purge) { return 403; }");
            for cached in &cache_lines {
                line(&format!("    {cached}"));
            }
            line(&format!("    proxy_cache_purge PURGE from {networks};"));
            line(&format!("    {pass}"));
            line("}");
        }
        // An upgraded connection is no response to cache, and may be silent for long.
        line("location @upgrade {");
        line("    proxy_read_timeout 1d;");
        line(&format!("    {pass}"));
        line("}");
        text.push_str("    }\n");
    }

    fn pass_line(&self) -> String {
        let scheme = if self.origin.is_secure {
            "https"
        } else {
            "http"
        };
        format!("proxy_pass {scheme}://{ORIGIN};")
    }

    /// The lines for passing requests on.
    fn passing_lines(&self) -> Vec<String> {
        let mut lines = vec![
            "proxy_connect_timeout 10s;".to_owned(),
            "proxy_read_timeout 5m;".to_owned(),
            // Uploads are streamed to the origin.
            "proxy_request_buffering off;".to_owned(),
            // The origin's URLs are the same as those of clients.
            "proxy_redirect off;".to_owned(),
            // Responses are passed on unchanged.
            "proxy_pass_header Server;".to_owned(),
            "proxy_pass_header Date;".to_owned(),
            // X-Accel fields have no effect, since the origin was not behind a server like nginx
            // before.
            "proxy_ignore_headers X-Accel-Charset X-Accel-Expires X-Accel-Limit-Rate \
             X-Accel-Redirect;"
                .to_owned(),
            format!("proxy_set_header Host {HOST};"),
            "proxy_set_header X-Forwarded-For $remote_addr;".to_owned(),
            "proxy_set_header X-Forwarded-Proto $scheme;".to_owned(),
            "proxy_set_header Upgrade $upgrade;".to_owned(),
            "proxy_set_header Connection $connection_upgrade;".to_owned(),
        ];
        let empty = |name: &&str| format!("proxy_set_header {name} '';");
        lines.extend(NOT_PASSED_ON.iter().map(empty));
        if self.cache.is_some() {
            for (name, variable) in METHOD_OVERRIDES {
                let variable = variable.trim_start_matches("http_");
                lines.push(format!("proxy_set_header {name} ${variable};"));
            }
        }
        if let Some(version) = self.proxy_protocol {
            lines.push(format!("proxy_protocol {version};"));
        }
        if let Some(authorities) = &self.authorities {
            lines.push("proxy_ssl_server_name on;".to_owned());
            lines.push(format!("proxy_ssl_name {};", self.origin.name()));
            lines.push("proxy_ssl_verify on;".to_owned());
            lines.push("proxy_ssl_verify_depth 5;".to_owned());
            lines.push(format!(
                "proxy_ssl_trusted_certificate {};",
                quoted(authorities)
            ));
        }
        lines
    }

    /// The caching rules of a location.
    fn cache_lines(&self, cache: &Cache) -> Vec<String> {
        let mut lines = vec![
            "proxy_cache accelerate;".to_owned(),
            format!("proxy_cache_key {};", key("$scheme")),
            semantics(cache),
            "proxy_cache_credentials pass;".to_owned(),
            "proxy_cache_lock on;".to_owned(),
            "proxy_cache_lock_timeout 5s;".to_owned(),
            "proxy_cache_lock_max_waiting 1000;".to_owned(),
            "proxy_cache_max_variants 16;".to_owned(),
            // For a range further into a file, only that range is fetched instead of the whole
            // file.
            "proxy_cache_max_range_offset 1m;".to_owned(),
            "proxy_no_cache $is_stream;".to_owned(),
        ];
        match &cache.ttl {
            Some(ttl) => lines.push(format!("proxy_cache_valid 200 301 308 404 410 {ttl};")),
            None if cache.heuristic.is_some() => {}
            None => lines.push("proxy_cache_microcache 1s 64k;".to_owned()),
        }
        if let Some((folder, recheck)) = &cache.files {
            let folder = quoted(folder);
            lines.push(format!("proxy_cache_files {folder} recheck={recheck};"));
        }
        if !cache.ignored_cookies.is_empty() {
            let names: Vec<String> = cache.ignored_cookies.iter().map(|it| quoted(it)).collect();
            lines.push(format!("proxy_cache_ignore_cookies {};", names.join(" ")));
        }
        lines
    }

    /// The networks that may purge over TCP, if any.
    fn purging_networks(&self) -> Option<String> {
        let cache = self.cache.as_ref()?;
        let is_some = !cache.purge_from.is_empty();
        is_some.then(|| cache.purge_from.join(" "))
    }

    /// The server that redirects from plain HTTP to TLS.
    fn plain(&self, text: &mut String) {
        if self.plain.is_empty() {
            return;
        }
        text.push_str("    server {\n");
        for address in &self.plain {
            let _ = writeln!(text, "        listen {address};");
        }
        text.push_str("        return 301 https://$host$request_uri;\n    }\n");
    }

    /// The server that accepts purges on a Unix socket.
    fn purging(&self, text: &mut String) {
        let socket = self
            .cache
            .as_ref()
            .and_then(|cache| cache.purge_socket.as_ref());
        let Some(socket) = socket else {
            return;
        };
        let scheme = if self.secure.is_some() {
            "https"
        } else {
            "http"
        };
        let _ = writeln!(
            text,
            "    server {{
        listen {};
        location / {{
            if ($request_method != PURGE) {{ return 405; }}
            proxy_pass http://{ORIGIN};
            proxy_cache accelerate;
            proxy_cache_key {};
            proxy_cache_semantics rfc;
            proxy_cache_purge PURGE;
        }}
    }}",
            quoted(&format!("unix:{socket}")),
            key(scheme)
        );
    }
}

/// Caching rules by RFC 9111, and choices where the RFC leaves them open.
fn semantics(cache: &Cache) -> String {
    let heuristic = match &cache.heuristic {
        Some(percent) => format!(" heuristic={percent}"),
        None => String::new(),
    };
    format!(
        "proxy_cache_semantics rfc{heuristic} stale_while_revalidate=10s stale_if_error=60s \
         reload_interval=1s;"
    )
}

/// The cache key: the scheme, the host and the URI of a request to the origin.
fn key(scheme: &str) -> String {
    format!("{scheme}://{HOST}$request_uri")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::application::{OverlayFiles, registry};

    /// The errors found when a text is parsed.
    fn errors(text: &str) -> Vec<String> {
        let path = Path::new("/accelerate.conf");
        let texts = OverlayFiles([(path.to_owned(), text.as_bytes().to_vec())].into());
        let loaded = conf::load(path, Path::new("/"), &[], registry(), &texts);
        let texts = loaded.diagnostics.iter().map(ToString::to_string);
        texts.filter(|text| !text.contains("no effect")).collect()
    }

    #[test]
    fn every_combination_is_read_without_a_word() {
        let origins = ["8080", "https://app.test", "unix:/run/a b.sock"];
        for (number, origin) in (0..64).zip(origins.iter().cycle()) {
            let is = |bit: usize| number & (1 << bit) != 0;
            let list = |bit, text: &str| -> Vec<String> {
                is(bit).then(|| text.to_owned()).into_iter().collect()
            };
            let cache = Cache {
                size: 64 << 20,
                ttl: is(1).then(|| "5m".to_owned()),
                heuristic: is(3).then(|| "10%".to_owned()),
                ignored_cookies: list(2, "_ga*"),
                purge_socket: is(3).then(|| "/tmp/a \"b\" $c/socket".to_owned()),
                purge_from: list(4, "10.0.0.0/8"),
                files: is(2).then(|| ("/srv/a \"b".to_owned(), "10s".to_owned())),
            };
            let front = Front {
                origin: Origin::parse(origin).unwrap(),
                authorities: origin.starts_with("https").then(|| "/ca.pem".to_owned()),
                listen: vec!["127.0.0.1:80".parse().unwrap()],
                plain: Vec::new(),
                secure: None,
                folder: is(5).then(|| "/tmp/a \"b\" \\c".to_owned()),
                output: "/dev/stdout",
                access_log: AccessLog::Json,
                user: None,
                proxy_protocol: is(1).then_some("v2"),
                refused: vec!["/server-status"],
                cache: is(0).then_some(cache),
            };
            let text = front.configuration();
            assert_eq!(errors(&text), [""; 0], "{text}");
        }
    }
}
