//! `tidegate serve`: a site without any configuration, from outside. A terminal is made by
//! script(1).

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take that is not being timed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with a few pages.
struct Site(PathBuf);

impl Site {
    fn new() -> Site {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        // What means something in a configuration means nothing in the name of a folder.
        let name = format!("tidegate site $uri \"{{;-{process}-{number}");
        let site = Site(std::env::temp_dir().join(name));
        for folder in ["sub", ".git", ".well-known", "empty"] {
            fs::create_dir_all(site.0.join(folder)).unwrap();
        }
        let long = "<p>a paragraph like any other</p>\n".repeat(100);
        for (name, text) in [
            ("index.html", "<h1>Hello</h1>\n"),
            ("sub/index.html", "sub"),
            (".git/config", "secret"),
            (".env", "secret"),
            (".well-known/security.txt", "Contact: ann"),
            ("long.html", &*long),
            ("app.js", "let a;\n"),
            ("app-0a1b2c3d4e.css", "p {}\n"),
            ("photo-20240101.jpg", "jpeg"),
            ("notes.md", "# Notes\n"),
            ("data.xyz", "xyz"),
        ] {
            fs::write(site.0.join(name), text).unwrap();
        }
        site
    }

    /// Serves it until the value is dropped.
    fn serve(&self, arguments: &[&str]) -> Running {
        self.serve_by(Command::new(env!("CARGO_BIN_EXE_tidegate")), arguments)
    }

    fn serve_by(&self, mut command: Command, arguments: &[&str]) -> Running {
        let mut child = command
            .arg("serve")
            .arg(&self.0)
            .args(["--listen", "127.0.0.1:0"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut printed = String::new();
        while !printed.ends_with("Ctrl-C ends it.\n") {
            let line = lines
                .next()
                .unwrap_or_else(|| panic!("no start: {printed}"));
            printed.push_str(&line.unwrap());
            printed.push('\n');
        }
        let port = printed
            .split("http://127.0.0.1:")
            .nth(1)
            .and_then(|rest| rest.split('/').next())
            .and_then(|port| port.parse().ok())
            .unwrap_or_else(|| panic!("no address: {printed}"));
        Running {
            child,
            port,
            printed,
        }
    }

    /// What a run that fails says.
    fn refused(arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.arg("serve").args(arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A site that is served.
struct Running {
    child: Child,
    port: u16,
    printed: String,
}

impl Running {
    /// Status line and headers, and the body.
    fn ask(&self, method: &str, path: &str, headers: &str) -> (String, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn get(&self, path: &str) -> (String, String) {
        self.ask("GET", path, "")
    }

    /// The status of a GET.
    fn status(&self, path: &str) -> String {
        self.get(path).0[9..12].to_owned()
    }

    /// Ctrl-C; how it ended, and what it had written to its standard output.
    fn interrupt(mut self) -> (Option<i32>, String) {
        signal(self.child.id(), "INT");
        let mut output = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        stdout.read_to_string(&mut output).unwrap();
        (self.child.wait().unwrap().code(), output)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            signal(self.child.id(), "TERM");
            let _ = self.child.wait();
        }
    }
}

fn signal(pid: u32, name: &str) {
    let pid = pid.to_string();
    Command::new("kill")
        .args([&format!("-{name}"), &pid])
        .status()
        .unwrap();
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines
        .find(|(found, _)| *found == name)
        .map(|(_, value)| value)
}

/// What runs of a process have left behind.
fn leftovers(pid: u32) -> Vec<PathBuf> {
    let folders = [std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)];
    let folders = folders.into_iter().flatten().chain([std::env::temp_dir()]);
    folders
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.starts_with(&format!("tidegate-serve-{pid}-"))
        })
        .collect()
}

#[test]
fn a_folder_is_a_site() {
    let site = Site::new();
    let before = listing(&site.0);
    let running = site.serve(&[]);
    assert!(
        running
            .printed
            .starts_with(&format!("Serving {} at\n", site.0.display()))
    );

    let (head, body) = running.get("/");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(body, "<h1>Hello</h1>\n");
    assert_eq!(
        header(&head, "Content-Type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(header(&head, "Cache-Control"), Some("no-cache"));
    let tag = format!("If-None-Match: {}\r\n", header(&head, "ETag").unwrap());
    assert!(running.ask("GET", "/", &tag).0.starts_with("HTTP/1.1 304 "));

    for (path, kind) in [
        ("/app.js", "text/javascript; charset=utf-8"),
        ("/notes.md", "text/markdown; charset=utf-8"),
        ("/photo-20240101.jpg", "image/jpeg"),
        ("/data.xyz", "application/octet-stream"),
    ] {
        let (head, _) = running.get(path);
        assert_eq!(header(&head, "Content-Type"), Some(kind), "{path}");
        assert_eq!(header(&head, "Cache-Control"), Some("no-cache"), "{path}");
    }
    // What has a digest in its name never changes.
    let (head, _) = running.get("/app-0a1b2c3d4e.css");
    let forever = "public, max-age=31536000, immutable";
    assert_eq!(header(&head, "Cache-Control"), Some(forever));

    for path in ["/", "/app-0a1b2c3d4e.css", "/sub", "/nothing"] {
        let (head, _) = running.get(path);
        let options = header(&head, "X-Content-Type-Options");
        assert_eq!(options, Some("nosniff"), "{path}");
        let policy = header(&head, "Referrer-Policy");
        assert_eq!(policy, Some("strict-origin-when-cross-origin"), "{path}");
    }

    for (accepted, coding) in [("gzip", "gzip"), ("zstd", "zstd"), ("gzip, br", "br")] {
        let accept = format!("Accept-Encoding: {accepted}\r\n");
        let (head, _) = running.ask("GET", "/long.html", &accept);
        assert_eq!(header(&head, "Content-Encoding"), Some(coding));
    }
    assert_eq!(header(&running.get("/sub").0, "Location"), Some("/sub/"));
    for (path, status) in [
        ("/.git/config", "404"),
        ("/.env", "404"),
        ("/.well-known/security.txt", "200"),
        ("/.well-known/.env", "404"),
        ("/empty/", "403"),
        ("/nothing", "404"),
    ] {
        assert_eq!(running.status(path), status, "{path}");
    }
    assert!(
        running
            .ask("POST", "/", "Content-Length: 0\r\n")
            .0
            .starts_with("HTTP/1.1 405 ")
    );
    assert!(
        running
            .ask("OPTIONS", "/", "")
            .0
            .starts_with("HTTP/1.1 405 ")
    );

    let pid = running.child.id();
    assert_eq!(leftovers(pid).len(), 1);
    let (code, output) = running.interrupt();
    assert_eq!(code, Some(0));
    let first = output.lines().next().unwrap();
    assert!(
        first.starts_with("{\"time\":\"") && first.ends_with("\"}"),
        "{first}"
    );
    assert!(
        first.contains("\"method\":\"GET\",\"host\":\"localhost\",\"uri\":\"/\""),
        "{first}"
    );
    assert!(first.contains("\"status\":200,\"bytes\":15,"), "{first}");
    assert_eq!(output.lines().count(), 23);
    assert!(leftovers(pid).is_empty());
    assert_eq!(listing(&site.0), before, "nothing is written into the site");
}

fn listing(folder: &Path) -> Vec<PathBuf> {
    let mut names: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    names
}

#[test]
fn options_change_what_is_served() {
    let site = Site::new();
    let types = site.0.join("sub/types");
    fs::write(&types, "types { chemical/x-xyz xyz; }").unwrap();
    let running = site.serve(&[
        "--browse",
        "--spa",
        "--hidden",
        "--types",
        types.to_str().unwrap(),
    ]);
    let (head, body) = running.get("/empty/");
    assert!(
        head.starts_with("HTTP/1.1 200 ") && body.contains("<title>/empty/</title>"),
        "{head}{body}"
    );
    assert!(body.contains("Nothing is in this folder"), "{body}");
    // Unknown paths are the application's; what has an extension is a file or nothing.
    assert_eq!(running.get("/users/7").1, "<h1>Hello</h1>\n");
    assert_eq!(running.get("/v1.2/users").1, "<h1>Hello</h1>\n");
    assert_eq!(running.status("/nothing.js"), "404");
    assert_eq!(running.get("/app.js").1, "let a;\n");
    assert_eq!(running.get("/.env").1, "secret");
    assert_eq!(
        header(&running.get("/data.xyz").0, "Content-Type"),
        Some("chemical/x-xyz")
    );
    assert_eq!(
        header(&running.get("/app.js").0, "Access-Control-Allow-Origin"),
        None
    );
}

#[test]
fn a_listing_is_sorted_as_asked_for_and_safe() {
    let site = Site::new();
    let listed = site.0.join("empty");
    for (name, size) in [("b", 2000), ("a<i>\"'", 30), ("javascript:x", 1)] {
        fs::write(listed.join(name), "x".repeat(size)).unwrap();
    }
    fs::create_dir(listed.join("z")).unwrap();
    let running = site.serve(&["--browse"]);
    let order = |query: &str| {
        let (head, body) = running.get(&format!("/empty/{query}"));
        assert_eq!(
            header(&head, "Content-Type"),
            Some("text/html; charset=utf-8")
        );
        assert!(
            !body.contains("<i>\"") && !body.contains("<script"),
            "{body}"
        );
        let links = body.split("href=\"./").skip(1);
        let links = links.filter_map(|rest| rest.split('"').next());
        links.map(str::to_owned).collect::<Vec<_>>()
    };
    let odd = "a%3Ci%3E%22%27";
    assert_eq!(order(""), ["z/", odd, "b", "javascript%3Ax"]);
    assert_eq!(order("?sort=-size"), ["z/", "b", odd, "javascript%3Ax"]);
    assert_eq!(order("?sort=size"), ["z/", "javascript%3Ax", odd, "b"]);
    let (_, body) = running.get("/empty/");
    assert!(
        body.contains(">2.0 kB<") && body.contains("1 folder, 3 files"),
        "{body}"
    );
    assert_eq!(running.status(&format!("/empty/{odd}")), "200");
}

#[test]
fn a_long_listing_is_sorted_as_a_short_one() {
    let site = Site::new();
    let listed = site.0.join("empty");
    let names: Vec<String> = (1000..2000).map(|number| format!("File{number}")).collect();
    for name in &names {
        fs::write(listed.join(name), "").unwrap();
    }
    fs::write(listed.join("a"), "").unwrap();
    fs::write(listed.join("Z"), "").unwrap();
    let running = site.serve(&["--browse"]);
    let (_, body) = running.get("/empty/?sort=-name");
    let links = body.split("href=\"./").skip(1);
    let links: Vec<&str> = links.filter_map(|rest| rest.split('"').next()).collect();
    let files = names.iter().rev().map(String::as_str);
    let expected: Vec<&str> = ["Z"].into_iter().chain(files).chain(["a"]).collect();
    assert_eq!(links, expected);
}

#[test]
fn a_port_is_of_this_machine_and_an_open_one_is_said_to_be() {
    let site = Site::new();
    let port = support::port::free_port().to_string();
    let shown = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("serve").arg(&site.0).args(arguments);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut text = String::new();
        for line in lines.by_ref().map_while(Result::ok) {
            text.push_str(&line);
            text.push('\n');
            if line == "Ctrl-C ends it." {
                break;
            }
        }
        signal(child.id(), "TERM");
        child.wait().unwrap();
        text
    };
    let text = shown(&["--port", &port]);
    assert!(
        text.contains(&format!("http://127.0.0.1:{port}/")),
        "{text}"
    );
    assert!(!text.contains("Every interface"), "{text}");
    let text = shown(&["--listen", "127.0.0.1:0"]);
    assert!(!text.contains("Every interface"), "{text}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let both = command
        .args(["serve", "--port", "1", "--listen", "2"])
        .output()
        .unwrap();
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn pages_of_other_origins_are_let_in_where_that_is_wanted() {
    let site = Site::new();
    let running = site.serve(&["--cors", "--password", "ann:secret"]);
    // Asked without a password, as browsers do.
    let (head, _) = running.ask("OPTIONS", "/", "Origin: http://example.org\r\n");
    assert!(head.starts_with("HTTP/1.1 204 "), "{head}");
    assert_eq!(
        header(&head, "Access-Control-Allow-Methods"),
        Some("GET, HEAD, OPTIONS")
    );
    let authorization = "Authorization: Basic YW5uOnNlY3JldA==\r\n";
    for path in ["/", "/app-0a1b2c3d4e.css", "/nothing"] {
        let (head, _) = running.ask("GET", path, authorization);
        assert_eq!(
            header(&head, "Access-Control-Allow-Origin"),
            Some("*"),
            "{path}"
        );
    }
}

#[test]
fn a_password_is_asked_for_and_not_shown() {
    let site = Site::new();
    let running = site.serve(&["--password", "ann:secret"]);
    let (head, _) = running.get("/");
    assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
    assert_eq!(
        header(&head, "WWW-Authenticate"),
        Some("Basic realm=\"this site\"")
    );
    let ask = |code: &str| {
        running
            .ask("GET", "/", &format!("Authorization: Basic {code}\r\n"))
            .0
    };
    assert!(ask("YW5uOnNlY3JldA==").starts_with("HTTP/1.1 200 "));
    assert!(ask("YW5uOndyb25n").starts_with("HTTP/1.1 401 "));
    let arguments = fs::read_to_string(format!("/proc/{}/cmdline", running.child.id())).unwrap();
    assert!(arguments.ends_with(" --password ann\0"), "{arguments:?}");
    assert!(!arguments.contains("secret"));
    let name = fs::read_to_string(format!("/proc/{}/comm", running.child.id())).unwrap();
    assert_eq!(name, "tidegate\n");

    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.env("TIDEGATE_PASSWORD", "secret");
    let running = site.serve_by(command, &["--password", "ann"]);
    let code = "Authorization: Basic YW5uOnNlY3JldA==\r\n";
    assert!(running.ask("GET", "/", code).0.starts_with("HTTP/1.1 200 "));
    let users = site.0.join("sub/users");
    fs::write(&users, "ben:{PLAIN}other\n").unwrap();
    let running = site.serve(&["--password-file", users.to_str().unwrap()]);
    assert!(running.ask("GET", "/", code).0.starts_with("HTTP/1.1 401 "));
    let code = "Authorization: Basic YmVuOm90aGVy\r\n";
    assert!(running.ask("GET", "/", code).0.starts_with("HTTP/1.1 200 "));
}

/// A colon ends a password in a file of users; one that is longer was cut there.
#[test]
fn a_password_may_hold_a_colon() {
    let site = Site::new();
    let running = site.serve(&["--password", "ann:se:cret"]);
    let ask = |code: &str| {
        let field = format!("Authorization: Basic {code}\r\n");
        running.ask("GET", "/", &field).0
    };
    assert!(ask("YW5uOnNlOmNyZXQ=").starts_with("HTTP/1.1 200 "));
    assert!(ask("YW5uOnNl").starts_with("HTTP/1.1 401 ")); // ann:se
}

#[test]
fn mistakes_are_told_in_a_line() {
    let site = Site::new();
    let folder = site.0.to_str().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    assert_eq!(
        Site::refused(&[folder, "--listen", &port]),
        format!("tidegate: cannot listen on 127.0.0.1:{port} (98: Address already in use)\n")
    );
    assert_eq!(
        Site::refused(&["/nonexistent"]),
        "tidegate: \"/nonexistent\" cannot be used (2: No such file or directory)\n"
    );
    let file = format!("{folder}/app.js");
    assert_eq!(
        Site::refused(&[&file]),
        format!("tidegate: {file} is not a folder\n")
    );
    let empty = format!("{folder}/empty");
    assert_eq!(
        Site::refused(&[&empty, "--spa"]),
        format!("tidegate: --spa answers with index.html, which {empty} does not have\n")
    );
    assert_eq!(
        Site::refused(&[folder, "--password", "ann"]),
        "tidegate: --password ann takes the password from TIDEGATE_PASSWORD, which is not set\n"
    );
}

#[test]
fn the_configuration_can_be_had() {
    let site = Site::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command
        .arg("serve")
        .arg(&site.0)
        .arg("--print-configuration");
    let output = command.args(["--listen", "127.0.0.1:0"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    // `$` has no quotes; this folder is named to be difficult.
    let text = text.replace(site.0.to_str().unwrap(), "/srv/site");
    assert!(
        text.contains("        root \"") && !text.contains("temp_path"),
        "{text}"
    );
    let path = site.0.join("sub/nginx.conf");
    fs::write(&path, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("-p").arg(&site.0).arg("-c").arg(&path);
    command.args(["-t", "-e", "stderr", "-g", "pid sub/pid;"]);
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("syntax is ok"), "{printed}");
}

#[test]
fn a_socket_as_output_is_no_obstacle() {
    let site = Site::new();
    let (_, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let port = support::port::free_port();
    let log = site.0.join("sub/log");
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("serve")
        .arg(&site.0)
        .args(["--listen", &port.to_string()])
        .stdin(Stdio::null())
        .stdout(std::os::fd::OwnedFd::from(theirs))
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(
            begin.elapsed() < PATIENCE,
            "{}",
            fs::read_to_string(&log).unwrap()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    signal(child.id(), "INT");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// What a terminal shows of one request.
fn on_terminal(site: &Site, environment: &[(&str, &str)]) -> Option<String> {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped, there is no script(1)");
        return None;
    }
    let port = support::port::free_port();
    let program = env!("CARGO_BIN_EXE_tidegate");
    let line = format!("exec '{program}' serve . --listen {port}");
    let mut child = Command::new("script")
        .args(["-q", "-e", "-c", &line, "/dev/null"])
        .current_dir(&site.0)
        .env_remove("NO_COLOR")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    stream
        .write_all(b"GET /nothing?a=b HTTP/1.0\r\n\r\n")
        .unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
    let mut shown = String::new();
    let mut stdout = child.stdout.take().unwrap();
    let mut buffer = [0; 4096];
    // The introduction is no earlier than the site: the line may come before it.
    while !shown.contains("/nothing?a=b") || !shown.contains("ends it.") {
        let count = stdout.read(&mut buffer).unwrap();
        assert!(count > 0, "{shown}");
        shown.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    let script = child.id();
    let children = fs::read_to_string(format!("/proc/{script}/task/{script}/children")).unwrap();
    signal(children.trim().parse().unwrap(), "INT");
    child.wait().unwrap();
    Some(shown)
}

#[test]
fn a_terminal_gets_short_lines() {
    let site = Site::new();
    let Some(shown) = on_terminal(&site, &[]) else {
        return;
    };
    let line = shown
        .lines()
        .find(|line| line.contains("/nothing"))
        .unwrap();
    assert_eq!(&line[2..3], ":", "{line:?}");
    assert!(
        line[8..].starts_with(" GET /nothing?a=b \u{1b}[33m404\u{1b}[0m 155B "),
        "{line:?}"
    );
    assert!(shown.contains("Ctrl-C ends it."), "{shown:?}");
    let plain = on_terminal(&site, &[("NO_COLOR", "1")]).unwrap();
    let line = plain
        .lines()
        .find(|line| line.contains("/nothing"))
        .unwrap();
    assert!(
        line[8..].starts_with(" GET /nothing?a=b 404 155B "),
        "{line:?}"
    );
}
