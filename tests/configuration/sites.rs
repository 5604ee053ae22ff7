//! Ten configurations as the documentation of well-known projects has them (tests/sites). Each says
//! in its first lines which directives Tidegate does not have yet, and what is asked.
//!
//! As it stands a configuration loads, or its errors name what it lacks and nothing else. Without
//! those lines (a `…_pass` answers 502 instead) it loads, and is answered as nginx answers it,
//! where there is one. The differences between the file and what is served are those of
//! [`Site::served`].

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to start, and to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What all sites have below /srv/site.
const FILES: &[(&str, &str)] = &[
    ("index.php", "<?php index ?>\n"),
    ("index.html", "<h1>index</h1>\n"),
    ("robots.txt", "User-agent: *\n"),
    ("favicon.ico", "icon"),
    (".htaccess", "secret"),
    (".env", "SECRET=1"),
    (".git/config", "[core]"),
    (".well-known/acme-challenge/x", "challenge"),
    ("css/app.css", "p { color: red }\n"),
    ("js/app.mjs", "let a;\n"),
    ("fonts/a.woff2", "font"),
    ("map/x.svg", "<svg/>"),
    ("config/config.php", "<?php secret ?>"),
    ("backup.txt", "text"),
    ("vendor/autoload.php", "<?php ?>"),
    ("wp-admin/index.php", "<?php admin ?>"),
    ("wp-content/uploads/2024/evil.php", "<?php evil ?>"),
    ("wp-content/uploads/2024/photo.jpg", "jpeg"),
    ("assets/app-1234.js", "let app;\n"),
    ("public/index.php", "<?php public ?>\n"),
    ("public/robots.txt", "User-agent: *\n"),
    ("public/.env", "SECRET=1"),
    ("public/.well-known/acme-challenge/x", "challenge"),
    ("public/css/app.css", "p { color: blue }\n"),
    ("public/assets/app-1234.js", "let public;\n"),
    ("public/404.html", "not found\n"),
    ("public/500.html", "failed\n"),
    ("public/502.html", "bad gateway\n"),
    ("static/app.js", "let s;\n"),
    ("media/pic.png", "png"),
];

/// A configuration of tests/sites.
struct Site {
    name: String,
    text: String,
    lacking: Vec<String>,
    requests: Vec<String>,
}

impl Site {
    fn load(path: &Path) -> Site {
        let certificates = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls/ecdsa");
        let text = fs::read_to_string(path)
            .unwrap()
            .replace("/etc/ssl/matrix.pem", &format!("{certificates}.crt"))
            .replace("/etc/ssl/matrix.key", &format!("{certificates}.key"));
        let said = |mark: &str| -> Vec<String> {
            let lines = text.lines().filter_map(|line| line.strip_prefix(mark));
            lines
                .flat_map(str::split_whitespace)
                .map(String::from)
                .collect()
        };
        Site {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            lacking: said("# Lacking:"),
            requests: said("# Ask:"),
            text,
        }
    }

    fn lacks(&self, name: &str) -> bool {
        self.lacking.iter().any(|lacking| lacking == name)
    }

    /// The text that is served: without what is lacking, at a port and in a folder of our own.
    fn served(&self, root: &Path, port: u16) -> String {
        let mut served = String::new();
        for line in self.text.lines() {
            let name = line.split_whitespace().next().unwrap_or_default();
            // Requests come in the clear.
            if name == "listen" && line.contains(" ssl") {
                continue;
            }
            let variable =
                |lacking: &String| lacking.starts_with('$') && line.contains(lacking.as_str());
            if self.lacks(name) || self.lacking.iter().any(variable) {
                if name.ends_with("_pass") {
                    served.push_str("return 502;\n");
                }
                continue;
            }
            served.push_str(line);
            served.push('\n');
        }
        served
            .replace("listen 80", &format!("listen 127.0.0.1:{port}"))
            .replace("/srv/site", &root.display().to_string())
    }
}

/// A whole configuration around a site; `tokens` lets Tidegate's pages be nginx's.
fn whole(site: &str, tokens: &str) -> String {
    let user = Command::new("id").arg("-u").output();
    let is_root = user.is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    let user = if is_root { "user root;" } else { "" };
    format!(
        "daemon off; {user}\npid nginx.pid;\nerror_log error.log info;\nevents {{ }}\nhttp {{\n\
         server_tokens {tokens};\naccess_log access.log;\nclient_body_temp_path body;\nproxy_temp_path proxy;\n\
         types {{ text/html html; text/css css; application/javascript js mjs; image/png png; image/jpeg jpg; image/svg+xml svg; }}\n\
         default_type application/octet-stream;\n{site}\n}}\n"
    )
}

/// A folder that ends with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("tidegate-sites-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Checks a configuration: whether it is accepted, and what is said.
    fn examine(&self, text: &str) -> (bool, String) {
        fs::write(self.0.join("nginx.conf"), text).unwrap();
        let output = self
            .command(Path::new(env!("CARGO_BIN_EXE_tidegate")))
            .arg("-t")
            .output();
        let output = output.unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }

    fn command(&self, binary: &Path) -> Command {
        let mut command = Command::new(binary);
        command.arg("-p").arg(format!("{}/", self.0.display()));
        command.args(["-c", "nginx.conf", "-e", "error.log"]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server that ends with the value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn start(folder: &Folder, binary: &Path, port: u16, text: &str) -> Running {
    fs::write(folder.0.join("nginx.conf"), text).unwrap();
    let child = folder
        .command(binary)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let running = Running(child);
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(
            begun.elapsed() < PATIENCE,
            "{binary:?} does not start: {text}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    running
}

/// What a server answers, without what differs by nature.
fn ask(port: u16, site: &Site, request: &str) -> String {
    let named = site
        .text
        .lines()
        .find_map(|line| line.trim().strip_prefix("server_name "));
    let mut host = named
        .unwrap_or("localhost;")
        .trim_end_matches(';')
        .to_owned();
    let mut method = "GET";
    let mut path = request;
    if let Some((word, rest)) = request.split_once(":/") {
        path = &request[request.len() - rest.len() - 1..];
        match word.strip_prefix("host:") {
            Some(other) => host = other.to_owned(),
            None => method = word,
        }
    }
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).replace(&port.to_string(), "PORT");
    let lines = answer.lines().filter(|line| {
        !["Server: ", "Date: ", "Expires: "]
            .iter()
            .any(|name| line.starts_with(name))
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn nginx() -> Option<PathBuf> {
    let named = std::env::var_os("NGINX_BINARY").map(PathBuf::from);
    let binary = named.unwrap_or_else(|| "/usr/sbin/nginx".into());
    binary.exists().then_some(binary)
}

fn sites() -> Vec<Site> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sites");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths.iter().map(|path| Site::load(path)).collect()
}

#[test]
fn what_a_site_lacks_is_all_that_is_said() {
    let sites = sites();
    assert_eq!(sites.len(), 10);
    for site in &sites {
        let folder = Folder::new(&format!("{}-t", site.name));
        let (accepted, said) = folder.examine(&whole(&site.text, "off"));
        let name = &site.name;
        assert_eq!(accepted, site.lacking.is_empty(), "{name}: {said}");
        if accepted {
            let is_verdict = |line: &str| {
                line.ends_with(" syntax is ok") || line.ends_with(" test is successful")
            };
            assert!(said.lines().all(is_verdict), "{name}: {said}");
        }
        for line in said.lines().filter(|line| line.contains("[emerg]")) {
            let known = site.lacking.iter().any(|lacking| match lacking.as_str() {
                lacking if lacking.starts_with('$') => line.contains("variable"),
                lacking => line.contains(&format!("unsupported directive \"{lacking}\"")),
            });
            assert!(known, "{name}: {line}");
        }
        let directives = |lacking: &&String| !lacking.starts_with('$');
        for lacking in site.lacking.iter().filter(directives) {
            // By itself, or with the first of its module.
            let alone = format!("unsupported directive \"{lacking}\"");
            let beside = format!(" {lacking} (");
            assert!(
                said.contains(&alone) || said.contains(&beside),
                "{name} lacks {lacking} no more: {said}"
            );
        }
        let (accepted, said) = folder.examine(&whole(
            &site.served(&folder.0, support::port::free_port()),
            "off",
        ));
        assert!(accepted, "{name}: {said}");
    }
}

#[test]
fn sites_are_answered_as_nginx_answers_them() {
    let Some(nginx) = nginx() else {
        eprintln!("skipped: no nginx here");
        return;
    };
    let mut differences = Vec::new();
    for site in &sites() {
        let root = Folder::new(&format!("{}-www", site.name));
        for (name, text) in FILES {
            let path = root.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
        }
        let (ours, theirs) = (
            Folder::new(&format!("{}-ours", site.name)),
            Folder::new(&format!("{}-theirs", site.name)),
        );
        let (port, other) = (support::port::free_port(), support::port::free_port());
        let tidegate = Path::new(env!("CARGO_BIN_EXE_tidegate"));
        // A `server_tokens off` of the site's own would let the length of our pages differ.
        let text = whole(&site.served(&root.0, port), "nginx_off");
        let text = text.replace("server_tokens off;", "server_tokens nginx_off;");
        let _tidegate = start(&ours, tidegate, port, &text);
        let _nginx = start(
            &theirs,
            &nginx,
            other,
            &whole(&site.served(&root.0, other), "off"),
        );
        for request in &site.requests {
            let (answer, expected) = (ask(port, site, request), ask(other, site, request));
            if answer != expected {
                let name = &site.name;
                differences.push(format!(
                    "{name} {request}:\n{answer}\n--- nginx:\n{expected}\n"
                ));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
