//! The configuration that `serve` generates.
//!
//! The text uses only directives that an operator could write. This file chooses the defaults:
//! which responses are cached, compressed, hidden and logged.

use std::fmt::Write;
use std::net::SocketAddr;

use super::php::locations::{FRONT_CONTROLLER, PhpHandling};
use super::secure::Secure;
use super::types;
use super::words::quoted;

/// The settings of a site.
pub(super) struct Site {
    pub(super) listen: Vec<SocketAddr>,
    /// Addresses that only redirect from plain HTTP to TLS.
    pub(super) plain: Vec<SocketAddr>,
    /// The security of connections; `None` for plain HTTP.
    pub(super) secure: Option<Secure>,
    pub(super) root: String,
    /// The folder of the pid file and of request bodies; `None` for the default folders.
    pub(super) folder: Option<String>,
    /// The destination of the access log: a file, or empty for standard error.
    pub(super) output: &'static str,
    pub(super) types: Option<String>,
    /// The file of names and passwords, if a password is required.
    pub(super) users: Option<String>,
    /// The arguments of `user`, if the master is root.
    pub(super) user: Option<String>,
    pub(super) access_log: AccessLog,
    pub(super) browse: bool,
    pub(super) spa: bool,
    pub(super) cors: bool,
    pub(super) hidden: bool,
    pub(super) php: PhpHandling,
}

/// The format of the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessLog {
    /// One short line per request.
    Terminal {
        /// Whether the status has a colour.
        colours: bool,
    },
    /// One JSON object per request.
    Json,
}

/// File names that contain a digest of the content, as bundlers generate them: at least eight
/// hexadecimal digits, with both letters and digits, before the extension. The content under such a
/// name never changes.
const DIGEST_NAME: &str = "[.-](?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{8,}\
                           \\.(?:css|js|mjs|wasm|woff2?|png|jpe?g|gif|svg|webp|avif)$";

/// Makes caches revalidate before each use; a revalidated response has no body.
const ASK: &str = "no-cache";

/// A year: the longest freshness that RFC 9111 recommends.
const KEEP: &str = "public, max-age=31536000, immutable";

impl Site {
    pub(super) fn configuration(&self) -> String {
        let user = match &self.user {
            Some(user) => format!("user {user};\n"),
            None => String::new(),
        };
        let further_types = match &self.types {
            Some(path) => format!("    include {};\n", quoted(path)),
            None => String::new(),
        };
        format!(
            "\
daemon off;
{user}worker_processes auto;
{pid}error_log stderr error;
events {{}}
http {{
{types}{further_types}    default_type application/octet-stream;
    charset utf-8;
    charset_types {charset_types};
    gzip on;
    gzip_vary on;
    gzip_proxied any;
    gzip_min_length 1000;
    gzip_types {compressed_types};
    gzip_static on;
    brotli on;
    brotli_min_length 1000;
    brotli_types {compressed_types};
    brotli_static on;
    zstd on;
    zstd_min_length 1000;
    zstd_types {compressed_types};
    zstd_static on;
    sendfile on;
    tcp_nopush on;
    log_not_found off;
{temporary}{access_log}{php}{issuer}{server}{plain}}}
",
            pid = self.private("", "pid", "pid"),
            temporary = self.private("    ", "client_body_temp_path", "body")
                + &self.private("    ", "proxy_temp_path", "proxy")
                + &if self.php.runs() {
                    self.private("    ", "fastcgi_temp_path", "fastcgi")
                } else {
                    String::new()
                },
            php = self.php.http_lines(),
            types = types::block(),
            charset_types = types::with_charset(),
            compressed_types = types::worth_compressing(),
            access_log = self.access_log_lines(),
            issuer = self
                .secure
                .as_ref()
                .map(Secure::http_lines)
                .unwrap_or_default(),
            server = self.server(),
            plain = self.plain(),
        )
    }

    /// The line of a directive whose argument is a path in the folder, if there is a folder.
    fn private(&self, indent: &str, directive: &str, name: &str) -> String {
        let path = self
            .folder
            .as_ref()
            .map(|folder| format!("{folder}/{name}"));
        path.map_or_else(String::new, |path| {
            format!("{indent}{directive} {};\n", quoted(&path))
        })
    }

    /// The server that redirects from plain HTTP to TLS.
    fn plain(&self) -> String {
        if self.plain.is_empty() {
            return String::new();
        }
        let mut text = String::from("    server {\n");
        for address in &self.plain {
            let _ = writeln!(text, "        listen {address};");
        }
        text.push_str("        return 301 https://$host$request_uri;\n    }\n");
        text
    }

    fn server(&self) -> String {
        let mut text = String::from("    server {\n");
        let mut line = |line: &str| {
            let _ = writeln!(text, "        {line}");
        };
        for address in &self.listen {
            let secure = if self.secure.is_some() { " ssl" } else { "" };
            line(&format!("listen {address}{secure};"));
        }
        if self.secure.is_some() {
            line("http2 on;");
        }
        let secure = self.secure.iter().flat_map(Secure::server_lines);
        secure.for_each(|secure| line(&secure));
        line(&format!("root {};", self.root));
        line(if self.php.runs() {
            "index index.php index.html index.htm;"
        } else {
            "index index.html index.htm;"
        });
        // The public port may differ from the port that this server listens on.
        line("absolute_redirect off;");
        self.headers(ASK).iter().for_each(|header| line(header));
        if let Some(users) = &self.users {
            line("auth_basic \"this site\";");
            line(&format!("auth_basic_user_file {};", quoted(users)));
        }
        if self.cors {
            // Browsers send preflight requests without credentials, so this precedes the password
            // check.
            line("if ($request_method = OPTIONS) { return 204; }");
        }
        if self.browse {
            line("autoindex on;");
            line("autoindex_format page;");
            line("autoindex_localtime on;");
        }
        self.php.server_lines().iter().for_each(|php| line(php));
        if self.php.runs() && !matches!(self.secure, Some(Secure::Domains { .. })) {
            // The name for clients that send no host; scripts build URLs from it.
            line("server_name localhost;");
        }
        let fallback = match (self.spa, self.php.runs()) {
            (true, _) => Some("/index.html"),
            (false, true) => Some(FRONT_CONTROLLER),
            (false, false) => None,
        };
        if let Some(fallback) = fallback {
            line(&format!(
                "location / {{ try_files $uri $uri/ {fallback}; }}"
            ));
        }
        // In a single-page application, a path with an extension is either a file or an error.
        let fallback = fallback.filter(|_| !self.spa);
        self.php_locations(fallback)
            .iter()
            .for_each(|php| line(php));
        line(&format!("location ~ {} {{", quoted(DIGEST_NAME)));
        self.headers(KEEP)
            .iter()
            .for_each(|header| line(&format!("    {header}")));
        if let Some(fallback) = fallback {
            line(&format!("    try_files $uri {fallback};"));
        }
        line("}");
        if self.spa {
            line("location ~ \\.[^/.]+$ {}");
        }
        text.push_str("    }\n");
        text
    }

    /// The locations of hidden names and of PHP, which precede the locations of plain files.
    /// `fallback` handles paths without a file.
    fn php_locations(&self, fallback: Option<&str>) -> Vec<String> {
        // Responses of PHP set their own caching headers.
        let headers = if self.cors {
            self.cors_headers()
        } else {
            vec!["add_header_inherit off;".to_owned()]
        };
        let php = self.php.locations(
            fallback.unwrap_or("=404"),
            &headers,
            &self.access_log.destinations(self.output),
        );
        let mut lines = Vec::new();
        if !self.hidden {
            // RFC 8615 defines the name of a folder that is not meant to be hidden.
            lines.push("location ^~ /.well-known/ {".to_owned());
            lines.push("    location ~ [^/]/\\. { return 404; }".to_owned());
            lines.extend(php.lines().map(|line| format!("    {line}")));
            if let Some(fallback) = fallback {
                lines.push(format!("    try_files $uri $uri/ {fallback};"));
            }
            lines.push("}".to_owned());
            lines.push("location ~ /\\. { return 404; }".to_owned());
        }
        let front = self.php.front_controller(&headers);
        lines.extend(front.lines().chain(php.lines()).map(str::to_owned));
        lines
    }

    /// The formats of the access log and where its lines go.
    fn access_log_lines(&self) -> String {
        let destinations = self.access_log.destinations(self.output).into_iter();
        let destinations = destinations.map(|line| format!("    {line}\n"));
        self.access_log.formats(false) + &destinations.collect::<String>()
    }

    /// All headers of a scope: a location with a header of its own inherits none.
    fn headers(&self, caching: &str) -> Vec<String> {
        let mut headers = vec![
            format!("add_header Cache-Control \"{caching}\";"),
            // Browsers must not run a file as a script against its media type.
            "add_header X-Content-Type-Options nosniff always;".to_owned(),
            // Other sites see the origin that a visitor comes from, but not the page.
            "add_header Referrer-Policy strict-origin-when-cross-origin always;".to_owned(),
        ];
        if self.cors {
            headers.extend(self.cors_headers());
        }
        headers
    }

    /// The headers that allow pages of other origins to read the site.
    fn cors_headers(&self) -> Vec<String> {
        let methods = if self.php.runs() {
            "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
        } else {
            "GET, HEAD, OPTIONS"
        };
        let cors = [
            ("Origin", "*"),
            ("Methods", methods),
            ("Headers", "*, Authorization, Range"),
        ];
        let allow = |(name, value): (&str, &str)| {
            format!("add_header Access-Control-Allow-{name} \"{value}\" always;")
        };
        let mut headers: Vec<String> = cors.map(allow).into();
        headers.push("add_header Access-Control-Expose-Headers \"*\" always;".to_owned());
        headers.push("add_header Access-Control-Max-Age 86400 always;".to_owned());
        headers
    }
}

impl AccessLog {
    /// Classes of status codes on a terminal: name, pattern, colour.
    const CLASSES: [(&str, &str, u8); 4] = [
        ("done", "~^2 1; default 0;", 32),
        ("moved", "~^3 1; default 0;", 36),
        ("refused", "~^4 1; default 0;", 33),
        ("failed", "~^[234] 0; default 1;", 31),
    ];

    /// The log formats, as lines of the `http` block. With `cached`, each line also has the cache
    /// status.
    pub(crate) fn formats(self, cached: bool) -> String {
        match self {
            AccessLog::Json => json_format(cached),
            AccessLog::Terminal { colours } => terminal_formats(colours, cached),
        }
    }

    /// All `access_log` lines of a scope: a scope with a line of its own inherits none.
    pub(crate) fn destinations(self, output: &str) -> Vec<String> {
        let output = quoted(output);
        match self {
            AccessLog::Json => vec![format!("access_log {output} json;")],
            AccessLog::Terminal { .. } => {
                let line = |(name, ..): (&str, &str, u8)| {
                    format!("access_log {output} {name} if=${name};")
                };
                AccessLog::CLASSES.map(line).into()
            }
        }
    }
}

fn json_format(cached: bool) -> String {
    let mut fields = vec![
        ("time", "\"$time_iso8601\""),
        ("client", "\"$remote_addr\""),
        ("user", "\"$remote_user\""),
        ("method", "\"$request_method\""),
        ("host", "\"$host\""),
        ("uri", "\"$request_uri\""),
        ("protocol", "\"$server_protocol\""),
        ("status", "$status"),
        ("bytes", "$body_bytes_sent"),
        ("seconds", "$request_time"),
        ("referer", "\"$http_referer\""),
        ("user_agent", "\"$http_user_agent\""),
    ];
    if cached {
        fields.push(("cache", "\"$upstream_cache_status\""));
    }
    let fields = fields.iter();
    let fields: Vec<String> = fields
        .map(|(name, value)| format!("\"{name}\":{value}"))
        .collect();
    format!(
        "    log_format json escape=json '{{{}}}';\n",
        fields.join(",")
    )
}

/// A format per class of status codes. The colours are part of the format's text, because control
/// characters in values of variables are escaped.
fn terminal_formats(colours: bool, cached: bool) -> String {
    let mut text =
        String::from("    map $time_iso8601 $clock { default -; ~T(?<of_day>[0-9:]+) $of_day; }\n");
    let cache = if cached {
        " $upstream_cache_status"
    } else {
        ""
    };
    for (name, rows, colour) in AccessLog::CLASSES {
        let status = if colours {
            format!("\u{1b}[{colour}m$status\u{1b}[0m")
        } else {
            "$status".to_owned()
        };
        let _ = write!(
            text,
            "    map $status ${name} {{ {rows} }}
    log_format {name} '$clock $request_method $request_uri {status} ${{body_bytes_sent}}B \
             ${{request_time}}s{cache}';\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    use crate::application::{OverlayFiles, registry};

    fn site() -> Site {
        Site {
            listen: vec!["127.0.0.1:8080".parse().unwrap()],
            plain: Vec::new(),
            secure: None,
            root: ".".to_owned(),
            folder: Some("/tmp/a \"b\" \\c".to_owned()),
            output: "/dev/stdout",
            types: None,
            users: None,
            user: None,
            access_log: AccessLog::Json,
            browse: false,
            spa: false,
            cors: false,
            hidden: false,
            php: PhpHandling::Refuse,
        }
    }

    /// The errors found when a text is parsed.
    fn errors(text: &str) -> Vec<String> {
        let path = Path::new("/serve.conf");
        let texts = OverlayFiles([(path.to_owned(), text.as_bytes().to_vec())].into());
        let loaded = conf::load(path, Path::new("/"), &[], registry(), &texts);
        loaded
            .diagnostics
            .iter()
            .map(ToString::to_string)
            .filter(|text| !text.contains("no effect"))
            .collect()
    }

    #[test]
    fn every_combination_is_read_without_a_word() {
        let logs = [
            AccessLog::Json,
            AccessLog::Terminal { colours: false },
            AccessLog::Terminal { colours: true },
        ];
        let php = [
            PhpHandling::Refuse,
            PhpHandling::Run("unix:/tmp/a $b \"c\"/php.sock".to_owned()),
            PhpHandling::Send,
            PhpHandling::Run("127.0.0.1:9000".to_owned()),
            PhpHandling::Refuse,
        ];
        let each = logs.into_iter().cycle().zip(php.into_iter().cycle());
        for (number, (access_log, php)) in (0..32 * 5).zip(each) {
            let site = Site {
                access_log,
                browse: number & 1 != 0,
                spa: number & 2 != 0,
                cors: number & 4 != 0,
                hidden: number & 8 != 0,
                users: (number & 16 != 0).then(|| "/tmp/users".to_owned()),
                php,
                ..site()
            };
            let text = site.configuration();
            assert_eq!(errors(&text), [""; 0], "{text}");
        }
    }
}
