//! The configuration for PHP: which requests run a script, and which names are never sent.
//!
//! Only the lower-case extension `.php` is run. Any other existing file whose name suggests PHP
//! source is refused, whether PHP is enabled or not: a file that is code under one configuration
//! would be leaked by another.

use std::fmt::Write;

use crate::serve::words::quoted;

/// How PHP scripts and other sources are handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) enum PhpHandling {
    /// Scripts are run by the upstream with this `server` argument.
    Run(String),
    /// Sources are refused.
    Refuse,
    /// Sources are sent like other files.
    Send,
}

/// Names of PHP sources, in any case: extensions that PHP or a server might run (`php`, `php8`,
/// `phps`, `phtml`, `pht`, `phar`, `inc`), and the names of copies that editors and people leave
/// (`a.php~`, `a.php.bak`, `a.php.swp`, `a.php_old`). A name with another known extension at its
/// end (`a.php.html`, as in copies of sites) is treated by that extension.
const SOURCE: &str = "\\.(?:php|pht|phar|inc(?![a-z0-9]))\
                      (?![^/]*\\.(?:html?|css|js|png|jpe?g|gif|svg|webp|pdf)$)[^/]*$";

/// Scripts that may be run, possibly followed by `PATH_INFO`.
const SCRIPT: &str = "[^/]\\.php(?:/|$)";

/// The front controller: handles requests for paths without a file, and keeps the query.
pub(in crate::serve) const FRONT_CONTROLLER: &str = "/index.php$is_args$args";

/// Limit of request bodies. PHP's own limit (`post_max_size`) is nearly always lower, and PHP
/// reports an excess in its own way.
const BODY_MAX: &str = "1g";

/// The parameters passed to PHP (RFC 3875, and PHP's own).
const PARAMETERS: &[(&str, &str)] = &[
    // Both have links and dots resolved, since scripts compare them with __DIR__.
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
    // Applications take this name as a sign that the front controller is reached by any path.
    ("SERVER_SOFTWARE", "nginx/$nginx_version"),
    // php-cgi requires REDIRECT_STATUS; https://httpoxy.org explains the empty HTTP_PROXY.
    ("REDIRECT_STATUS", "200"),
    ("HTTP_PROXY", "\"\""),
];

impl PhpHandling {
    /// Lines of the `http` block.
    pub(in crate::serve) fn http_lines(&self) -> String {
        match self {
            PhpHandling::Run(server) => {
                format!(
                    "    upstream php {{\n        server {};\n    }}\n{}",
                    quoted(server),
                    hint("is PHP by its name, but by none that is run: not sent")
                )
            }
            PhpHandling::Refuse => {
                hint("is PHP by its name, and not sent; --php runs it, --php-source sends it")
            }
            PhpHandling::Send => String::new(),
        }
    }

    /// Lines of the `server` block before its locations.
    pub(in crate::serve) fn server_lines(&self) -> Vec<String> {
        if !self.runs() {
            return Vec::new();
        }
        let mut lines = vec![
            format!("client_max_body_size {BODY_MAX};"),
            // Buffers for response heads with many cookies, and timeouts for slow scripts.
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
        matches!(self, PhpHandling::Run(_))
    }

    /// Locations that precede those of files. `fallback` handles paths without a file; `headers`
    /// apply to responses of PHP, and `access_logs` are the lines for logging requests.
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
        if *self != PhpHandling::Send {
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

    /// The location of the front controller: if the file is missing, the request does not fall back
    /// to it again.
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

/// The message on standard error about an existing source that is not sent.
fn hint(why: &str) -> String {
    let program = process::PROGRAM;
    format!(
        "    log_format php_source '{program}: $request_uri {why}';\n    map $status $is_php_source {{ 403 1; default 0; }}\n"
    )
}
