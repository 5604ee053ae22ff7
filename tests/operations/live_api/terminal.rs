//! `tidegate status`: the API found in a configuration or by a URL, and shown as text.

use std::process::{Command, Output};

use super::*;

fn status(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("status").args(arguments).output().unwrap()
}

fn shown(arguments: &[&str]) -> String {
    let output = status(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_terminal_shows_what_the_api_says() {
    if is_nginx() {
        return;
    }
    let lines = "location /api/ { api; } location / { status_zone page; proxy_pass http://app; }
        location /closed/ { api; auth_basic closed; auth_basic_user_file users; }
        [http]
        upstream app { zone app 64k; server 127.0.0.1:1 down; server unix:@APP@ backup; }";
    let lines: Vec<&str> = lines.lines().map(str::trim).collect();
    let lines = lines.join("\n").replace("@APP@", "/nowhere/app.sock");
    let server = Server::start("", &lines);
    fs::write(server.prefix.join("users"), "me:{PLAIN}secret\n").unwrap();
    assert_eq!(server.connect().get("/").unwrap().status, 502);

    let conf = server.prefix.join("nginx.conf");
    let conf = conf.to_str().unwrap();
    let found = shown(&["-c", conf, "-p", server.prefix.to_str().unwrap()]);
    let url = format!("http://127.0.0.1:{}/api", server.port);
    let named = shown(&[&url]);
    for text in [&found, &named] {
        let line = |begin: &str| {
            let found = text
                .lines()
                .find(|line| line.trim_start().starts_with(begin));
            found
                .unwrap_or_else(|| panic!("{begin}: {text}"))
                .split_whitespace()
        };
        let zone: Vec<&str> = line("page ").collect();
        // Name, requests, answers by class; a single look knows no rate.
        assert_eq!(zone[1], "1", "{text}");
        assert_eq!(zone[2..6], ["0", "0", "0", "1"], "{text}");
        assert_eq!(line("127.0.0.1:1 ").nth(1), Some("down"), "{text}");
        assert!(line("unix:/nowhere/app.sock ").any(|word| word == "(backup)"));
        assert!(text.contains("upstream app (http)\n"), "{text}");
    }
    let json: Value = serde_json::from_str(&shown(&[&url, "--json"])).unwrap();
    assert_eq!(json["http/location_zones"]["page"]["responses"]["5xx"], 1);

    let closed = format!("127.0.0.1:{}/closed", server.port);
    assert!(shown(&[&format!("http://me:secret@{closed}")]).contains("upstream app"));
    for (arguments, expected) in [
        (vec![closed.as_str()], "refuses to show it"),
        (vec![url.trim_end_matches("api")], "the server says"),
        (
            vec!["http://127.0.0.1:1/api"],
            "127.0.0.1:1: Connection refused",
        ),
        (
            vec!["https://127.0.0.1/api"],
            "\"https\" is not spoken here",
        ),
    ] {
        let output = status(&arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
    }
}

#[test]
fn a_configuration_without_an_api_says_what_to_write() {
    if is_nginx() {
        return;
    }
    let server = Server::start("", "location / { }");
    let conf = server.prefix.join("nginx.conf");
    let output = status(&["-c", conf.to_str().unwrap()]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains("no location with \"api\""), "{errors}");
}
