//! `tidegate explain` on configurations as sites have them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A WordPress site behind PHP, after its documentation, and a single-page app with an API.
const CONF: &str = r#"
user www-data-of-elsewhere;
events { }
http {
    include mime.types;
    default_type application/octet-stream;
    gzip on;
    gzip_types text/css;
    map $http_upgrade $connection_upgrade { default upgrade; '' close; }
    upstream api { server 127.0.0.1:9001; server 127.0.0.1:9002; }

    server {
        listen 8080 default_server;
        server_name example.com www.example.com;
        root site;
        index index.php;
        location = /favicon.ico { log_not_found off; access_log off; }
        location ~ /\. { deny all; }
        location ~* /(?:uploads|files)/.*\.php$ { deny all; }
        location / { try_files $uri $uri/ /index.php?$args; }
        location ~ \.php$ { proxy_pass http://127.0.0.1:9000; }
        location ~* \.(js|css|png)$ { expires max; log_not_found off; }
    }
    server {
        listen 8080;
        server_name *.app.example;
        root app;
        location / { try_files $uri /index.html; }
        location /api/ {
            proxy_pass http://api;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            client_max_body_size 10m;
        }
        location /old { return 301 /new; }
    }
}
"#;

struct Site(PathBuf);

impl Site {
    fn new(name: &str) -> Site {
        let site = Site(support::temporary_path(&format!("explain-{name}")));
        for folder in ["logs", "site/uploads", "app"] {
            fs::create_dir_all(site.0.join(folder)).unwrap();
        }
        for (file, text) in [
            ("nginx.conf", CONF),
            ("mime.types", "types { text/html html; text/css css; }"),
            ("site/index.php", "<?php"),
            ("site/style.css", "a{}"),
            ("app/index.html", "app"),
        ] {
            fs::write(site.0.join(file), text).unwrap();
        }
        site
    }

    /// What is printed, and whether it was an explanation.
    fn explain(&self, arguments: &[&str]) -> (String, bool) {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("explain")
            .arg("-p")
            .arg(&self.0)
            .args(["-c", "nginx.conf"])
            .args(arguments)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8(text).unwrap();
        let folder = format!("{}/", self.0.display());
        (text.replace(&folder, ""), output.status.success())
    }

    /// An explanation that holds each of these.
    fn explains(&self, arguments: &[&str], wanted: &[&str]) {
        let (text, explained) = self.explain(arguments);
        assert!(explained, "{text}");
        for line in wanted {
            assert!(text.contains(line), "no \"{line}\" in\n{text}");
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_answer_comes_first() {
    let site = Site::new("php");
    let (text, explained) = site.explain(&["http://example.com:8080/.env"]);
    assert!(explained, "{text}");
    let first = text.lines().next().unwrap();
    assert_eq!(
        first,
        "Status 403, answered in location ~ /\\.  [nginx.conf:18]"
    );
}

#[test]
fn a_site_with_php() {
    let site = Site::new("php");
    site.explains(
        &["http://example.com:8080/2024/post?p=1"],
        &[
            "Server example.com  [nginx.conf:12]\n  its server_name is \"example.com\"",
            "not *.app.example  [nginx.conf:24]",
            "+ location /  [nginx.conf:20]: the longest prefix, and no regex matches",
            "- location ~ /\\.  [nginx.conf:18]: does not match",
            "try_files: there is no site/2024/post, no site/2024/post/: to /index.php",
            "+ location ~ \\.php$  [nginx.conf:21]: the first regex that matches",
            "- location ~* \\.(js|css|png)$  [nginx.conf:22]: not asked: a regex before it matches",
            "Answer\n  proxy_pass http://127.0.0.1:9000;",
            "default_type application/octet-stream;  [nginx.conf:6]  from http",
            "types { … }  [mime.types:1]  from http",
        ],
    );
    site.explains(
        &["http://example.com:8080/"],
        &["index: to /index.php", "Answer\n  proxy_pass"],
    );
    site.explains(
        &["http://www.example.com:8080/style.css"],
        &[
            "the file site/style.css, 3 bytes",
            "header fields: expires max;  [nginx.conf:22]",
            "compression: gzip on;  [nginx.conf:7]",
        ],
    );
    site.explains(
        &["http://example.com:8080/uploads/x.php"],
        &[
            "access: 127.0.0.1 is denied: status 403",
            "Answer\n  status 403",
        ],
    );
}

#[test]
fn an_app_with_an_api() {
    let site = Site::new("app");
    site.explains(
        &["http://www.app.example:8080/api/users", "-X", "POST"],
        &[
            "its server_name is \"*.app.example\"",
            "Answer\n  proxy_pass http://api;",
            "proxy_set_header Upgrade $http_upgrade;  [nginx.conf:31]\n",
        ],
    );
    site.explains(
        &["http://www.app.example:8080/deep/link"],
        &["the file app/index.html, 3 bytes"],
    );
    site.explains(
        &["http://127.0.0.1:8080/old", "-H", "Host: x.app.example"],
        &[
            "takes connections to 127.0.0.1:8080",
            "Answer\n  status 301, to /new",
        ],
    );
    site.explains(
        &["http://x.app.example:8080/", "--defaults"],
        &["sendfile off;  (default)"],
    );
}

#[test]
fn machines_get_json() {
    let site = Site::new("json");
    let (text, explained) = site.explain(&["--json", "http://x.app.example:8080/old"]);
    assert!(explained, "{text}");
    for part in [
        "{\"request\":\"GET http://x.app.example:8080/old\"",
        "\"location\":\"location /old\",\"at\":{\"file\":\"nginx.conf\",\"line\":35}",
        "\"status\":301",
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert_eq!(text.matches('{').count(), text.matches('}').count());
}

#[test]
fn a_terminal_is_not_steered() {
    let site = Site::new("control");
    let (text, explained) = site.explain(&["http://example.com:8080/a%1b[31m%0a"]);
    assert!(
        explained && text.contains("location of /a\\u{1b}[31m\\n\n"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_explained_says_why() {
    let site = Site::new("errors");
    for (arguments, wanted) in [
        (
            &["http://example.com/"][..],
            "nothing listens on port 80, only on 0.0.0.0:8080",
        ),
        (&["http://example.com:8080/a b"], "that is no request"),
        (
            &["http://example.com:8080/a\nb"],
            "/a\\nb\" holds a control character",
        ),
        (&["ftp://example.com/"], "unknown scheme \"ftp\""),
        (&[], "Usage: tidegate explain"),
        (
            &["--from", "here", "x"],
            "invalid value 'here' for '--from <ADDRESS>'",
        ),
        (&["--to", "here", "x"], "\"here\" is no address with a port"),
        (&["-c", "none.conf", "x"], "none.conf"),
    ] {
        let (text, explained) = site.explain(arguments);
        assert!(!explained && text.contains(wanted), "{arguments:?}: {text}");
    }
}

/// What is wrong with a configuration is shown as `-t` shows it.
#[test]
fn errors_of_the_configuration_are_those_of_a_test() {
    let site = Site::new("mistakes");
    let conf = "events {}\nhttp {\n  sendfil on;\n  server { listen 8080; return 200 x; }\n}\n";
    fs::write(site.0.join("mistaken.conf"), conf).unwrap();
    let (text, explained) = site.explain(&["-c", "mistaken.conf", "http://x:8080/"]);
    assert!(!explained, "{text}");
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("-p")
        .arg(&site.0)
        .args(["-t", "-c", "mistaken.conf"])
        .output()
        .unwrap();
    let tested = String::from_utf8(output.stderr).unwrap();
    let tested = tested.replace(&format!("{}/", site.0.display()), "");
    assert!(tested.starts_with(&text), "{text}\n{tested}");
    assert!(
        text.contains("\n  hint: did you mean \"sendfile\"?\n"),
        "{text}"
    );
}

#[test]
fn hosts_that_are_not_found_are_named_and_the_rest_is_explained() {
    let site = Site::new("hosts");
    let conf = "events {}\nhttp { upstream u { server one.invalid; server two.invalid; }
        server { listen 8080; location / { return 204; } location /u { proxy_pass http://u; } } }";
    fs::write(site.0.join("hosts.conf"), conf).unwrap();
    let (text, explained) = site.explain(&["-c", "hosts.conf", "http://x:8080/"]);
    assert!(explained, "{text}");
    assert!(text.contains("Status 204"), "{text}");
    for host in ["one.invalid", "two.invalid"] {
        let line = format!("tidegate: host not found: \"{host}\", the rest holds\n");
        assert!(text.contains(&line), "{text}");
    }
}
