//! What protects a scope protects it however a request gets there: every directive that refuses
//! requests, through every way into a scope, beside nginx.
//!
//! Each pair of a [`Protector`] and a [`Way`] is a virtual server of its own. All of them stand in
//! one configuration, which nginx and Tidegate (on both engines) run by; every server is asked the
//! same [`REQUESTS`], most of them several times, so that responses kept in memory are met. Status,
//! challenge, place and body must be nginx's, and so must the access log, in which subrequests
//! whose answer the client does not see have lines too. What nginx refuses to load in a scope must
//! be refused here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::PATIENCE;
use support::port::free_port;

/// Something that refuses requests, as lines of a scope.
struct Protector {
    name: &'static str,
    lines: &'static str,
}

const fn protector(name: &'static str, lines: &'static str) -> Protector {
    Protector { name, lines }
}

const PROTECTORS: &[Protector] = &[
    protector("open", ""),
    protector("internal", "internal;"),
    protector("deny", "deny all;"),
    protector("allow", "allow 127.0.0.1; deny all;"),
    protector("password", "auth_basic closed; auth_basic_user_file users;"),
    protector("password-off", "auth_basic off;"),
    protector(
        "satisfy-any",
        "satisfy any; deny all; auth_basic closed; auth_basic_user_file users;",
    ),
    protector(
        "satisfy-all",
        "satisfy all; allow all; auth_basic closed; auth_basic_user_file users;",
    ),
    protector("asked-refused", "auth_request /-refuse;"),
    protector("asked-granted", "auth_request /-grant;"),
    protector("asked-challenged", "auth_request /-challenge;"),
    protector("methods", "limit_except GET { deny all; }"),
    protector("methods-head", "limit_except HEAD { deny all; }"),
    protector(
        "methods-password",
        "limit_except GET { auth_basic closed; auth_basic_user_file users; }",
    ),
    protector(
        "methods-opened",
        "deny all; limit_except GET { allow all; }",
    ),
    protector(
        "internal-methods",
        "internal; limit_except HEAD { allow all; }",
    ),
    protector("rate", "limit_req zone=rate;"),
    protector(
        "connections",
        "limit_conn connections 1; limit_rate_after 2k; limit_rate 1;",
    ),
    protector(
        "link",
        "secure_link $arg_key; secure_link_md5 key; if ($secure_link = \"\") { return 403; }",
    ),
    protector(
        "referer",
        "valid_referers none valid.test; if ($invalid_referer) { return 403; }",
    ),
    protector("symlinks", "disable_symlinks on;"),
    protector("body-size", "client_max_body_size 1;"),
    protector("return", "return 403;"),
];

/// A way into a scope: lines of a server, `{S}` where what protects stands, and the paths that lead
/// there.
struct Way {
    name: &'static str,
    lines: &'static str,
    paths: &'static [&'static str],
}

const fn way(name: &'static str, lines: &'static str, paths: &'static [&'static str]) -> Way {
    Way { name, lines, paths }
}

const WAYS: &[Way] = &[
    // How a location is found.
    way("server", "{S}", &["/a/file"]),
    way("server-location", "{S} location /a/ { }", &["/a/file"]),
    way(
        "prefix",
        "location /a/ { {S} }",
        &["/a/file", "/a/none", "/b/file"],
    ),
    way(
        "exact",
        "location = /a/file { {S} }",
        &["/a/file", "/a/other"],
    ),
    way("regex", "location ~ ^/a/ { {S} }", &["/a/file"]),
    way(
        "no-regex",
        "location ^~ /a/ { {S} } location ~ file$ { }",
        &["/a/file"],
    ),
    way(
        "caseless",
        "location ~* ^/A/FILE$ { {S} }",
        &["/a/file", "/a/other"],
    ),
    way(
        "over-prefix",
        "location /a/ { } location ~ file$ { {S} }",
        &["/a/file", "/a/other"],
    ),
    way(
        "escaped",
        "location /a/ { {S} }",
        &["/%61/file", "//a//file", "/b/../a/file"],
    ),
    // Nesting.
    way(
        "nested",
        "location /a/ { {S} location /a/b/ { } }",
        &["/a/b/file"],
    ),
    way(
        "nested-exact",
        "location /a/ { {S} location = /a/file { } }",
        &["/a/file"],
    ),
    way(
        "nested-regex",
        "location /a/ { {S} location ~ file$ { } }",
        &["/a/file", "/a/other"],
    ),
    way(
        "in-regex",
        "location ~ ^/a/ { {S} location ~ file$ { } }",
        &["/a/file", "/a/other"],
    ),
    way(
        "nested-twice",
        "location /a/ { {S} location /a/b/ { location ~ file$ { } } }",
        &["/a/b/file"],
    ),
    way(
        "nested-inside",
        "location /a/ { location /a/b/ { {S} } }",
        &["/a/b/file", "/a/file"],
    ),
    way(
        "nested-inside-regex",
        "location /a/ { location ~ file$ { {S} } }",
        &["/a/file", "/a/other"],
    ),
    way(
        "nested-open",
        "location /a/ { {S} location /a/b/ { allow all; auth_basic off; auth_request off; } }",
        &["/a/b/file"],
    ),
    // Scopes without a name of their own.
    way(
        "beside-if",
        "location /a/ { {S} if ($request_method) { set $x 1; } }",
        &["/a/file"],
    ),
    way(
        "beside-if-content",
        "location /a/ { {S} if ($arg_proxy) { proxy_pass http://127.0.0.1:{B}; } }",
        &["/a/file?proxy=1", "/a/file"],
    ),
    way(
        "in-if",
        "location /a/ { if ($request_method) { {S} } }",
        &["/a/file"],
    ),
    way(
        "server-if",
        "if ($arg_q) { set $x 1; } {S}",
        &["/a/file", "/a/file?q=1"],
    ),
    way(
        "beside-limit-except",
        "location /a/ { {S} limit_except HEAD { allow all; } }",
        &["/a/file"],
    ),
    way(
        "in-limit-except",
        "location /a/ { limit_except HEAD { {S} } }",
        &["/a/file"],
    ),
    way(
        "in-limit-except-get",
        "location /a/ { limit_except GET { {S} } }",
        &["/a/file"],
    ),
    way(
        "limit-except-nested",
        "location /a/ { limit_except GET { {S} } location /a/b/ { } }",
        &["/a/b/file"],
    ),
    way(
        "limit-except-proxied",
        "location /a/ { proxy_pass http://127.0.0.1:{B}; limit_except HEAD { {S} } }",
        &["/a/file"],
    ),
    // Named locations.
    way(
        "named-try-files",
        "location /a/ { try_files /none @n; } location @n { {S} }",
        &["/a/file"],
    ),
    way(
        "named-try-files-proxied",
        "location /a/ { try_files /none @n; } location @n { {S} proxy_pass http://127.0.0.1:{B}; }",
        &["/a/file"],
    ),
    way(
        "named-error-page",
        "location /a/ { error_page 404 = @n; } location @n { root www; {S} try_files /a/file =404; }",
        &["/a/none"],
    ),
    way(
        "named-error-page-405",
        "location /a/ { error_page 405 = @n; } location @n { {S} return 200 named; }",
        &["/a/file"],
    ),
    way(
        "named-error-page-proxied",
        "location /a/ { error_page 403 404 405 = @n; } location @n { {S} proxy_pass http://127.0.0.1:{B}; }",
        &["/a/none"],
    ),
    way(
        "named-protected-before",
        "location /a/ { {S} try_files /none @n; } location @n { }",
        &["/a/file"],
    ),
    way(
        "named-accel",
        "location /a/ { proxy_pass http://127.0.0.1:{B}/-accel-named; } location @n { {S} try_files /a/file =404; }",
        &["/a/file"],
    ),
    way(
        "named-nested",
        "location /a/ { try_files /none @n; location /a/b/ { try_files /none @n; } } location @n { {S} }",
        &["/a/b/file"],
    ),
    // Redirects within the server.
    way(
        "index",
        "location /a/ { index file; } location = /a/file { {S} }",
        &["/a/"],
    ),
    way(
        "index-folder",
        "location /a/ { {S} index file; }",
        &["/a/", "/a"],
    ),
    way(
        "rewrite-last",
        "location /a/ { rewrite ^/a/(.*) /b/$1 last; } location /b/ { {S} }",
        &["/a/file"],
    ),
    way(
        "rewrite-server",
        "rewrite ^/a/(.*) /b/$1; location /b/ { {S} }",
        &["/a/file"],
    ),
    way(
        "rewrite-break",
        "location /a/ { {S} rewrite ^/a/(.*) /b/$1 break; }",
        &["/a/file"],
    ),
    way(
        "rewrite-out",
        "location /a/ { {S} rewrite ^/a/(.*) /b/$1 last; } location /b/ { }",
        &["/a/file"],
    ),
    way(
        "error-page",
        "location /a/ { error_page 404 /b/file; } location /b/ { {S} }",
        &["/a/none"],
    ),
    way(
        "error-page-own",
        "location /a/ { error_page 404 = /b/file; } location /b/ { {S} }",
        &["/a/none"],
    ),
    way(
        "error-page-inside",
        "location /a/ { {S} error_page 403 404 405 /a/file; }",
        &["/a/none"],
    ),
    way(
        "error-page-server",
        "error_page 403 404 405 413 /b/file; location /a/ { {S} } location /b/ { }",
        &["/a/file", "/a/none"],
    ),
    way(
        "error-page-named-server",
        "error_page 403 404 405 413 503 @n; location /a/ { {S} } location @n { return 200 named; }",
        &["/a/file", "/a/none"],
    ),
    way(
        "try-files",
        "location /a/ { try_files /none /b/file; } location /b/ { {S} }",
        &["/a/file"],
    ),
    way(
        "try-files-inside",
        "location /a/ { {S} try_files $uri =404; }",
        &["/a/file", "/a/none"],
    ),
    way(
        "try-files-over",
        "location /a/ { try_files /b/file =404; } location /b/ { {S} }",
        &["/a/file"],
    ),
    way(
        "accel",
        "location /a/ { proxy_pass http://127.0.0.1:{B}/-accel; } location /b/ { {S} }",
        &["/a/file"],
    ),
    way(
        "accel-from",
        "location /a/ { {S} proxy_pass http://127.0.0.1:{B}/-accel; } location /b/ { }",
        &["/a/file"],
    ),
    // Subrequests.
    way(
        "ssi",
        "location /a/ { ssi on; } location /b/ { {S} }",
        &["/a/page.html"],
    ),
    way(
        "ssi-from",
        "location /a/ { {S} ssi on; } location /b/ { }",
        &["/a/page.html"],
    ),
    way(
        "auth-request",
        "location /a/ { auth_request /b/file; } location /b/ { {S} }",
        &["/a/file"],
    ),
    way(
        "mirror",
        "location /a/ { mirror /b/file; } location /b/ { {S} }",
        &["/a/file"],
    ),
    way(
        "addition",
        "location /a/ { add_before_body /b/file; addition_types *; } location /b/ { {S} }",
        &["/a/file"],
    ),
    // What answers in the scope.
    way("alias", "location /x/ { {S} alias www/a/; }", &["/x/file"]),
    way(
        "alias-regex",
        "location ~ ^/x/(.*)$ { {S} alias www/a/$1; }",
        &["/x/file"],
    ),
    way(
        "proxied",
        "location /a/ { {S} proxy_pass http://127.0.0.1:{B}; }",
        &["/a/file"],
    ),
    way(
        "proxied-slash",
        "location /a/ { {S} proxy_pass http://127.0.0.1:{B}; }",
        &["/a"],
    ),
    way(
        "proxied-variable",
        "location /a/ { {S} proxy_pass http://127.0.0.1:{B}$uri; }",
        &["/a/file"],
    ),
    way("gif", "location /a/ { {S} empty_gif; }", &["/a/file"]),
    way(
        "status",
        "location = /a/status { {S} stub_status; }",
        &["/a/status"],
    ),
    way(
        "listing",
        "location /a/list/ { {S} autoindex on; }",
        &["/a/list/"],
    ),
    way(
        "dav",
        "location /a/ { {S} dav_methods PUT DELETE; }",
        &["/a/file"],
    ),
    way("flv", "location /a/ { {S} flv; }", &["/a/file"]),
    way("mp4", "location /a/ { {S} mp4; }", &["/a/file"]),
    way(
        "random",
        "location /a/list/ { {S} random_index on; }",
        &["/a/list/"],
    ),
    way(
        "gzip-static",
        "location /a/ { {S} gzip_static always; }",
        &["/a/file"],
    ),
    way(
        "cached-file",
        "location /a/ { {S} open_file_cache max=10; }",
        &["/a/file"],
    ),
    way(
        "post-action",
        "location /a/ { post_action /b/file; } location /b/ { {S} }",
        &["/a/file"],
    ),
];

/// A request: its first word, its further header lines and its body.
struct Ask {
    method: &'static str,
    fields: &'static str,
    body: &'static str,
    times: usize,
}

const fn ask(method: &'static str, fields: &'static str, body: &'static str, times: usize) -> Ask {
    Ask {
        method,
        fields,
        body,
        times,
    }
}

const REQUESTS: &[Ask] = &[
    ask("GET", "", "", 5),
    ask("HEAD", "", "", 2),
    // user:secret
    ask("GET", "Authorization: Basic dXNlcjpzZWNyZXQ=\r\n", "", 3),
    ask("GET", "Authorization: Basic dXNlcjp3cm9uZw==\r\n", "", 1),
    ask("GET", "Referer: http://elsewhere.test/\r\n", "", 2),
    ask("POST", "Content-Length: 4\r\n", "body", 1),
    ask("PATCH", "", "", 1),
];

/// Where Tidegate does what docs/differences.md says: what `auth_request` asks goes without a body,
/// so that its location's `client_max_body_size` does not judge the request's.
const DIFFERENT: &[&str] = &["body-size.auth-request POST"];

/// What a server answers, as far as it is compared.
type Answers = BTreeMap<String, Vec<String>>;

fn folder(name: &str) -> PathBuf {
    let path =
        std::env::temp_dir().join(format!("tidegate-protection-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    for below in [
        "www/a/b",
        "www/a/list",
        "www/b",
        "big/a/b",
        "big/a/list",
        "big/b",
    ] {
        fs::create_dir_all(path.join(below)).unwrap();
    }
    for (root, repeat) in [("www", 1), ("big", 40_000)] {
        for file in ["a/file", "a/other", "a/b/file", "a/list/file", "b/file"] {
            let target = path.join(root).join(file);
            // Behind a symbolic link, so that `disable_symlinks` has something to refuse.
            let held = target.with_extension("held");
            fs::write(&held, format!("{file}\n").repeat(repeat)).unwrap();
            if file == "a/list/file" {
                fs::rename(&held, &target).unwrap();
            } else {
                symlink(&held, &target).unwrap();
            }
        }
        fs::write(path.join(root).join("a/file.gz"), "compressed").unwrap();
        let page = "<!--# include virtual=\"/b/file\" -->";
        fs::write(path.join(root).join("a/page.html"), page).unwrap();
    }
    fs::write(path.join("users"), "user:{PLAIN}secret\n").unwrap();
    path
}

fn server(protector: &Protector, way: &Way, port: u16, backend: u16) -> String {
    let root = if protector.name == "connections" {
        "big"
    } else {
        "www"
    };
    let lines = way
        .lines
        .replace("{S}", protector.lines)
        .replace("{B}", &backend.to_string());
    format!(
        "server {{ listen 127.0.0.1:{port}; server_name {}.{}; root {root};\n\
         location = /-refuse {{ return 403; }}\n\
         location = /-grant {{ return 204; }}\n\
         location = /-challenge {{ add_header WWW-Authenticate asked always; return 401; }}\n\
         {lines}\n}}\n",
        protector.name, way.name
    )
}

fn whole(servers: &str, port: u16, backend: u16, main: &str, http: &str) -> String {
    format!(
        "daemon off; {main}\npid nginx.pid;\nerror_log error.log info;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\nserver_names_hash_max_size 16384; server_names_hash_bucket_size 128; {http}\n\
         types {{ text/html html; }} default_type text/plain;\n\
         log_format seen '$host $request_method $uri $status'; access_log access.log seen; log_subrequest on;\n\
         client_body_temp_path body; proxy_temp_path proxy;\n\
         limit_req_zone $host zone=rate:4m rate=1r/m;\nlimit_conn_zone $host zone=connections:4m;\n\
         limit_req_log_level info; limit_conn_log_level info;\n\
         server {{ listen 127.0.0.1:{port} default_server; return 404; }}\n\
         server {{ listen 127.0.0.1:{backend}; access_log off; location / {{ return 200 $uri; }}\n\
         location /-accel {{ add_header X-Accel-Redirect /b/file; return 200; }}\n\
         location /-accel-named {{ add_header X-Accel-Redirect @n; return 200; }} }}\n{servers}}}\n"
    )
}

struct Running {
    child: Child,
    folder: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            support::signal(self.child.id(), "TERM");
            let _ = self.child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn command(binary: &Path, folder: &Path) -> Command {
    let mut command = Command::new(binary);
    command.arg("-p").arg(format!("{}/", folder.display()));
    command.args(["-c", "nginx.conf", "-e", "error.log"]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// Whether a program takes a configuration, and what it says.
fn takes(binary: &Path, folder: &Path, text: &str) -> (bool, String) {
    fs::write(folder.join("nginx.conf"), text).unwrap();
    let output = command(binary, folder).arg("-t").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), said)
}

fn start(binary: &Path, name: &str, text: &str, port: u16) -> Running {
    let folder = folder(name);
    fs::write(folder.join("nginx.conf"), text).unwrap();
    let output = fs::File::create(folder.join("output")).unwrap();
    let child = command(binary, &folder).stderr(output).spawn().unwrap();
    let running = Running { child, folder };
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err()
        || !running.folder.join("nginx.pid").exists()
    {
        let said = fs::read_to_string(running.folder.join("output")).unwrap_or_default();
        assert!(begun.elapsed() < PATIENCE, "{name} does not start: {said}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    running
}

/// Status, what matters of the head, and the body of one response; the connection may go on where
/// that is `true`.
fn receive(stream: &mut BufReader<TcpStream>, head_only: bool) -> Option<(String, bool)> {
    let mut line = String::new();
    stream
        .read_line(&mut line)
        .ok()
        .filter(|count| *count > 0)?;
    let mut answer = line.split(' ').nth(1)?.to_string();
    let (mut length, mut chunked, mut closes) = (None, false, false);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse::<usize>().ok(),
            "transfer-encoding" => chunked = true,
            "connection" => closes = value == "close",
            "www-authenticate" | "allow" => write!(answer, " {line}").unwrap(),
            "location" => {
                let path = value.splitn(4, '/').nth(3).unwrap_or(value);
                write!(answer, " Location: /{path}").unwrap();
            }
            _ => {}
        }
    }
    let mut body = Vec::new();
    if head_only || answer.starts_with("204") || answer.starts_with("304") {
    } else if chunked {
        loop {
            let mut size = String::new();
            stream.read_line(&mut size).ok()?;
            let size = usize::from_str_radix(size.trim(), 16).ok()?;
            let mut chunk = vec![0; size + 2];
            stream.read_exact(&mut chunk).ok()?;
            if size == 0 {
                break;
            }
            body.extend_from_slice(&chunk[..size]);
        }
    } else if let Some(length) = length {
        body.resize(length, 0);
        stream.read_exact(&mut body).ok()?;
    } else {
        stream.read_to_end(&mut body).ok()?;
        closes = true;
    }
    let text = String::from_utf8_lossy(&body);
    let first: String = text
        .lines()
        .next()
        .unwrap_or_default()
        .chars()
        .take(60)
        .collect();
    // Pages of ours end with our name, listings have dates, `stub_status` counts.
    let shown = if text.starts_with("<html>") || text.starts_with("Active") {
        &first
    } else {
        &*text
    };
    write!(
        answer,
        " {} {}",
        body.len(),
        shown.chars().take(80).collect::<String>()
    )
    .unwrap();
    Some((answer, !closes))
}

fn connect(port: u16) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    BufReader::new(stream)
}

/// One request to a host; connections are kept while the server keeps them.
fn request(
    kept: &mut Option<BufReader<TcpStream>>,
    port: u16,
    host: &str,
    path: &str,
    ask: &Ask,
) -> String {
    let mut stream = kept.take().unwrap_or_else(|| connect(port));
    let Ask {
        method,
        fields,
        body,
        ..
    } = ask;
    let text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n{body}");
    stream.get_mut().write_all(text.as_bytes()).unwrap();
    match receive(&mut stream, *method == "HEAD") {
        Some((answer, goes_on)) => {
            *kept = goes_on.then_some(stream);
            answer
        }
        None => "closed".to_string(),
    }
}

/// A second request while the response to a first one is under way.
fn beside_another(port: u16, host: &str, path: &str) -> String {
    let text = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let mut first = connect(port);
    first.get_mut().write_all(text.as_bytes()).unwrap();
    let mut byte = [0];
    first.read_exact(&mut byte).unwrap();
    // A response that does not take its time has been counted out by then.
    std::thread::sleep(Duration::from_millis(10));
    let mut second = connect(port);
    second.get_mut().write_all(text.as_bytes()).unwrap();
    let mut line = String::new();
    second.read_line(&mut line).unwrap();
    line.split(' ').nth(1).unwrap_or_default().to_string()
}

fn answers(port: u16, pairs: &[(&Protector, &Way)]) -> Answers {
    let mut answers = Answers::new();
    let mut kept = None;
    for (protector, way) in pairs {
        let host = format!("{}.{}", protector.name, way.name);
        for path in way.paths {
            if protector.name == "connections" {
                answers.insert(
                    format!("{host} {path}"),
                    vec![beside_another(port, &host, path)],
                );
                continue;
            }
            for ask in REQUESTS {
                let name = format!("{host} {} {path} {}", ask.method, ask.fields.trim_end());
                let told = (0..ask.times).map(|_| request(&mut kept, port, &host, path, ask));
                answers.insert(name, told.collect());
            }
        }
    }
    answers
}

/// How often each line stands in the access log of a server that has ended.
fn log_lines(running: Running) -> BTreeMap<String, usize> {
    let log = running.folder.join("access.log");
    support::signal(running.child.id(), "QUIT");
    let mut running = running;
    let _ = running.child.wait();
    let mut lines = BTreeMap::new();
    for line in fs::read_to_string(log).unwrap().lines() {
        // What an ended client of `beside_another` was sent depends on the moment.
        if !line.starts_with("connections.") {
            *lines.entry(line.to_string()).or_default() += 1;
        }
    }
    lines
}

fn nginx() -> Option<PathBuf> {
    let named = std::env::var_os("NGINX_BINARY").map(PathBuf::from);
    let binary = named.unwrap_or_else(|| "/usr/sbin/nginx".into());
    binary.exists().then_some(binary)
}

fn root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[test]
fn what_protects_a_scope_protects_it_however_a_request_gets_there() {
    let Some(nginx) = nginx() else {
        eprintln!("skipped: no nginx here");
        return;
    };
    let tidegate = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let user = if root() { "user root;" } else { "" };
    let (port, backend) = (free_port(), free_port());
    let place = folder("t");
    let mut wrong = Vec::new();
    let mut pairs = Vec::new();
    for protector in PROTECTORS {
        for way in WAYS {
            let one = whole(
                &server(protector, way, port, backend),
                port,
                backend,
                user,
                "",
            );
            let (accepted, said) = takes(&nginx, &place, &one);
            if accepted {
                pairs.push((protector, way));
            } else if takes(tidegate, &place, &one).0 {
                wrong.push(format!(
                    "{} {}: accepted, and nginx: {said}",
                    protector.name, way.name
                ));
            }
        }
    }
    let servers: String = pairs
        .iter()
        .map(|(protector, way)| server(protector, way, port, backend))
        .collect();
    let text = |main: &str, http: &str| whole(&servers, port, backend, main, http);
    let running = start(&nginx, "nginx", &text(user, "server_tokens off;"), port);
    let expected = answers(port, &pairs);
    let expected_log = log_lines(running);
    for engine in ["epoll", "io_uring"] {
        let http = "server_tokens nginx_off;";
        let text = text(user, http).replace("events {", &format!("events {{ use {engine};"));
        let running = start(tidegate, engine, &text, port);
        for (asked, told) in answers(port, &pairs) {
            let theirs = &expected[&asked];
            if told != *theirs {
                wrong.push(format!("{engine} {asked}\n  {told:?}\n  nginx: {theirs:?}"));
            }
        }
        let log = log_lines(running);
        for (line, count) in &expected_log {
            let ours = log.get(line).copied().unwrap_or_default();
            if ours != *count {
                wrong.push(format!(
                    "{engine} access log: {line}: {ours} times, nginx: {count}"
                ));
            }
        }
        for line in log.keys().filter(|line| !expected_log.contains_key(*line)) {
            wrong.push(format!(
                "{engine} access log: {line}: nginx has no such line"
            ));
        }
    }
    // The table tells something only where both happen: each protector refuses some requests that
    // an open scope answers.
    for protector in PROTECTORS
        .iter()
        .filter(|p| !matches!(p.name, "open" | "password-off" | "allow" | "asked-granted"))
    {
        let mine = |asked: &&String| asked.starts_with(&format!("{}.", protector.name));
        let refused = expected
            .iter()
            .filter(|(asked, _)| mine(asked))
            .any(|(asked, told)| {
                let open = asked.replacen(protector.name, "open", 1);
                expected.get(&open).is_none_or(|open| open != told)
            });
        assert!(refused, "{} refuses nothing", protector.name);
    }
    let _ = fs::remove_dir_all(&place);
    for different in DIFFERENT {
        let before = wrong.len();
        wrong.retain(|line| !line.contains(different));
        assert!(wrong.len() < before, "{different}: no difference any more");
    }
    assert!(
        wrong.is_empty(),
        "{} differences:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// `ssl_verify_client` stands in a server, and nothing within the server leads around it.
#[test]
fn a_client_without_a_certificate_gets_nowhere() {
    let Some(nginx) = nginx() else {
        eprintln!("skipped: no nginx here");
        return;
    };
    let file = |name: &str| format!("{}/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"));
    let user = if root() { "user root;" } else { "" };
    let (port, secure, backend) = (free_port(), free_port(), free_port());
    let open = &PROTECTORS[0];
    let servers: String = WAYS
        .iter()
        .map(|way| server(open, way, secure, backend))
        .collect();
    let listen = format!("listen 127.0.0.1:{secure}");
    let servers = servers.replace(&listen, &format!("{listen} ssl"));
    let settings = format!(
        "ssl_certificate {}; ssl_certificate_key {}; ssl_client_certificate {}; ssl_verify_client on;",
        file("ecdsa.crt"),
        file("ecdsa.key"),
        file("ca.crt")
    );
    let answers = |binary: &Path, engine: &str, tokens: &str| {
        let http = format!("{settings} server_tokens {tokens};");
        let text = whole(&servers, port, backend, user, &http);
        let text = text.replace("events {", &format!("events {{ {engine}"));
        let name = format!("secure-{}", engine.trim_end_matches(';'));
        let _running = start(binary, &name, &text, port);
        let mut answers = BTreeMap::new();
        for way in WAYS {
            let host = format!("{}.{}", open.name, way.name);
            for path in way.paths {
                for identity in [None, Some("client"), Some("stranger")] {
                    let mut client = support::tls::Client::new().name(&host);
                    if let Some(identity) = identity {
                        client = client.identity(&file(identity));
                    }
                    let told = client
                        .connect(secure)
                        .and_then(|mut connection| connection.get_from(&host, path));
                    let told = told.map(|response| response.status);
                    let name = identity.unwrap_or("none");
                    answers.insert(format!("{host} {path} {name}"), told.unwrap_or(0));
                }
            }
        }
        answers
    };
    let expected = answers(&nginx, "", "off");
    for engine in ["use epoll;", "use io_uring;"] {
        let told = answers(
            Path::new(env!("CARGO_BIN_EXE_tidegate")),
            engine,
            "nginx_off",
        );
        for (asked, status) in &told {
            assert_eq!(*status, expected[asked], "{engine} {asked}");
            if !asked.ends_with(" client") {
                assert_eq!(*status, 400, "{engine} {asked}");
            }
        }
        assert!(told.values().any(|status| *status == 200));
    }
}
