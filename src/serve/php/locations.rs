//! What the configuration says of PHP: which requests run it, and which names are never sent.
//!
//! Only `.php` in small letters is run. Every other name that holds PHP by its looks is refused
//! while a file has it, whether PHP is there or not: what would be code under one configuration is
//! a secret under the next.

use std::fmt::Write;

use crate::serve::words::quoted;

/// How PHP and its sources are treated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) enum Treatment {
    /// Scripts are run by what `server` of the upstream says.
    Run(String),
    /// No source is sent.
    Refuse,
    /// They are files like any other.
    Send,
}

/// Names of PHP's sources, in capitals, too: those that PHP or a server might run (`php`, `php8`,
/// `phps`, `phtml`, `pht`, `phar`, `inc`), and copies of them that editors and people leave
/// (`a.php~`, `a.php.bak`, `a.php.swp`, `a.php_old`). What such a name has become by a last
/// extension of its own (`a.php.html`, as copies of sites have it) is what that says.
const SOURCE: &str = "\\.(?:php|pht|phar|inc(?![a-z0-9]))\
                      (?![^/]*\\.(?:html?|css|js|png|jpe?g|gif|svg|webp|pdf)$)[^/]*$";

/// Scripts that may be run, with what may follow them as `PATH_INFO`.
const SCRIPT: &str = "[^/]\\.php(?:/|$)";

/// What takes requests that no file answers. The query goes with it.
pub(in crate::serve) const FRONT_CONTROLLER: &str = "/index.php$is_args$args";

/// The longest body: PHP's own limits (`post_max_size`) are lower nearly everywhere, and refuse in
/// its own way.
const BODY_MAX: &str = "1g";

/// What PHP is told (RFC 3875, and what PHP has beside it).
const PARAMETERS: &[(&str, &str)] = &[
    // Both without links and dots, as scripts compare them with __DIR__.
    ("SCRIPT_FILENAME", "$realpath_root$fastcgi_script_name"),
    ("DOCUMENT_ROOT", "$realpath_root"),
    ("SCRIPT_NAME", "$fastcgi_script_name"),
    ("PATH_INFO", "$path_info"),
    ("QUERY_STRING", "$query_string"),
    ("REQUEST_METHOD", "$request_method"),
    ("REQUEST_URI", "$request_uri"),
    ("REQUEST_SCHEME", "$scheme"),
    ("HTTPS", "$https if_not_empty"),
    ("CONTENT_TYPE", "$content_type"),
    ("CONTENT_LENGTH", "$content_length"),
    ("DOCUMENT_URI", "$document_uri"),
    ("SERVER_PROTOCOL", "$server_protocol"),
    ("SERVER_ADDR", "$server_addr"),
    ("SERVER_PORT", "$server_port"),
    ("SERVER_NAME", "$host"),
    ("REMOTE_ADDR", "$remote_addr"),
    ("REMOTE_PORT", "$remote_port"),
    ("REMOTE_USER", "$remote_user"),
    ("GATEWAY_INTERFACE", "CGI/1.1"),
    // Applications look for this name to know that a front controller is reached by any path.
    ("SERVER_SOFTWARE", "nginx/$nginx_version"),
    // php-cgi wants it; https://httpoxy.org is why the other is empty.
    ("REDIRECT_STATUS", "200"),
    ("HTTP_PROXY", "\"\""),
];

impl Treatment {
    /// Lines of the `http` block.
    pub(in crate::serve) fn http_lines(&self) -> String {
        match self {
            Treatment::Run(server) => {
                format!(
                    "    upstream php {{\n        server {};\n    }}\n{}",
                    quoted(server),
                    hint("is PHP by its name, but by none that is run: not sent")
                )
            }
            Treatment::Refuse => {
                hint("is PHP by its name, and not sent; --php runs it, --php-source sends it")
            }
            Treatment::Send => String::new(),
        }
    }

    /// Lines of the `server` block before its locations.
    pub(in crate::serve) fn server_lines(&self) -> Vec<String> {
        if !self.runs() {
            return Vec::new();
        }
        let mut lines = vec![
            format!("client_max_body_size {BODY_MAX};"),
            // Room for heads with many cookies, and for scripts that take their time.
            "fastcgi_buffer_size 32k;".to_owned(),
            "fastcgi_buffers 16 16k;".to_owned(),
            "fastcgi_busy_buffers_size 64k;".to_owned(),
            "fastcgi_read_timeout 5m;".to_owned(),
        ];
        lines.extend(
            PARAMETERS
                .iter()
                .map(|(name, value)| format!("fastcgi_param {name} {value};")),
        );
        lines
    }

    /// Whether scripts are run.
    pub(in crate::serve) fn runs(&self) -> bool {
        matches!(self, Treatment::Run(_))
    }

    /// Locations that come before those of files. `fallback` takes what is no file; `headers` are
    /// those of answers of PHP, and `access_logs` all that requests are logged by.
    pub(in crate::serve) fn locations(
        &self,
        fallback: &str,
        headers: &[String],
        access_logs: &[String],
    ) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        if self.runs() {
            let _ = write!(
                text,
                "location ~ {script} {{\n    fastcgi_split_path_info ^(.+?\\.php)(/.*)$;\n    set $path_info $fastcgi_path_info;\n    \
                 try_files $fastcgi_script_name {fallback};\n    fastcgi_pass php;\n{headers}}}\n",
                script = quoted(SCRIPT),
                headers = indented(headers),
            );
        }
        if *self != Treatment::Send {
            let _ = write!(
                text,
                "location ~* {source} {{\n    access_log \"\" php_source if=$is_php_source;\n{access_logs}    \
                 if (-f $request_filename) {{ return 403; }}\n    try_files $uri/ {fallback};\n}}\n",
                source = quoted(SOURCE),
                access_logs = indented(access_logs),
            );
        }
        text
    }

    /// The location of the front controller, by itself: where that is missing nothing falls back to
    /// it again.
    pub(in crate::serve) fn front_controller(&self, headers: &[String]) -> String {
        if self.runs() {
            format!(
                "location = /index.php {{\n    set $path_info \"\";\n    try_files $uri =404;\n    fastcgi_pass php;\n{}}}\n",
                indented(headers)
            )
        } else {
            String::new()
        }
    }
}

fn indented(lines: &[String]) -> String {
    lines.iter().map(|line| format!("    {line}\n")).collect()
}

/// The line on standard error for a source that is there and not sent.
fn hint(why: &str) -> String {
    let program = process::PROGRAM;
    format!(
        "    log_format php_source '{program}: $request_uri {why}';\n    map $status $is_php_source {{ 403 1; default 0; }}\n"
    )
}
