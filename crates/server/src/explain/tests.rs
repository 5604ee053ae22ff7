//! Explanations of small configurations. The program's own tests explain larger ones.

use std::path::Path;

use conf::{RecordedFiles, Recording};
use framework::compile::Environment;
use logs::Destination;

use super::*;

/// Explains a request to a configuration whose `http` block holds these lines.
fn explained(http: &str, question: &Question) -> Result<Explanation, String> {
    let path = Path::new("/nginx.conf");
    let text = format!("events {{ }}\nhttp {{\naccess_log off;\n{http}\n}}\n");
    let files = RecordedFiles::new(Recording {
        files: vec![(path.into(), text.into_bytes())],
        ..Recording::default()
    });
    let root = Path::new("/");
    let registry = protocols::registry(&[]);
    let loaded = conf::load(path, root, &[], registry, &files);
    assert!(!loaded.has_errors(), "{:?}", loaded.diagnostics);
    let environment = Environment {
        prefix: root,
        conf_prefix: root,
        files: &files,
        privileged: false,
    };
    let compiled = match crate::compile(&loaded.tree, &environment, Destination::Stderr) {
        Ok(compiled) => compiled,
        Err(diagnostics) => panic!("{diagnostics:?}"),
    };
    explain(compiled, &loaded.tree, registry, question, false)
}

fn ask(http: &str, url: &str) -> Explanation {
    explained(http, &Question::new(url).unwrap()).unwrap()
}

/// The reasons of the search for a location, by location; those of the first search.
fn reasons(explanation: &Explanation) -> Vec<(String, bool, String)> {
    let located = explanation.way.iter().find_map(|station| match station {
        ExplainStep::Located { candidates, .. } => Some(candidates),
        ExplainStep::Did { .. } => None,
    });
    let candidates = located.into_iter().flatten();
    candidates
        .map(|one| (one.place.text.clone(), one.chosen, one.why.clone()))
        .collect()
}

fn reason(explanation: &Explanation, location: &str) -> String {
    let all = reasons(explanation);
    let (_, _, why) = all.iter().find(|(name, ..)| name == location).unwrap();
    why.clone()
}

const LOCATIONS: &str = "server { listen 8080;
    location / { }
    location /a/ { location /a/b/ { return 201; } }
    location = /a/exact { return 202; }
    location ~ \\.php$ { return 203; }
    location ~ \\.ph { return 204; }
    location ^~ /fixed/ { return 205; }
    location @named { return 206; } }";

#[test]
fn every_location_has_its_reason() {
    let nested = ask(LOCATIONS, "http://x:8080/a/b/c");
    assert_eq!(nested.status, Some(201));
    assert_eq!(nested.scope.text, "location /a/b/");
    let won: Vec<_> = reasons(&nested).into_iter().filter(|row| row.1).collect();
    assert_eq!(won.len(), 2, "{won:?}");
    assert_eq!(
        reason(&nested, "location /"),
        "a longer prefix matches: location /a/ wins"
    );
    assert_eq!(reason(&nested, "location ~ \\.php$"), "does not match");

    let regex = ask(LOCATIONS, "http://x:8080/a/x.php");
    assert_eq!(regex.status, Some(203));
    assert_eq!(
        reason(&regex, "location /a/"),
        "the longest prefix, but a regex matches: location ~ \\.php$ wins"
    );
    assert_eq!(
        reason(&regex, "location ~ \\.ph"),
        "not asked: a regex before it matches"
    );

    let fixed = ask(LOCATIONS, "http://x:8080/fixed/x.php");
    assert_eq!(fixed.status, Some(205));
    assert_eq!(
        reason(&fixed, "location ~ \\.php$"),
        "not asked: the longest prefix has ^~"
    );

    let exact = ask(LOCATIONS, "http://x:8080/a/exact");
    assert_eq!(exact.status, Some(202));
    assert_eq!(
        reason(&exact, "location /a/"),
        "an exact location goes before: location = /a/exact wins"
    );
}

#[test]
fn servers_are_found_by_address_and_name() {
    let http = "server { listen 80; server_name one; return 201; }
        server { listen 80; server_name *.two; return 202; }
        server { listen 10.0.0.1:80; server_name three; return 203; }
        server { listen 81 default_server; return 204; }";
    for (url, status, reason) in [
        ("http://one/", 201, "its server_name is \"one\""),
        ("http://www.two/", 202, "its server_name is \"*.two\""),
        ("http://three/", 203, "its server_name is \"three\""),
        (
            "four/",
            201,
            "no server there is named \"four\", and it is the first server there",
        ),
        (
            "http://10.0.0.1/",
            203,
            "no server there is named \"10.0.0.1\", and it is the first server there",
        ),
        (
            "five:81",
            204,
            "no server there is named \"five\", and it is the default_server",
        ),
    ] {
        let explanation = ask(http, url);
        assert_eq!(explanation.status, Some(status), "{url}");
        assert_eq!(explanation.server.reason, reason, "{url}");
    }
    let question = Question::new("http://one:82/").unwrap();
    let error = explained(http, &question).unwrap_err();
    assert!(error.starts_with("nothing listens on port 82"), "{error}");
}

#[test]
fn rewrites_and_error_pages_are_followed() {
    let http = "server { listen 80; rewrite ^/old/(.*) /new/$1; error_page 403 =200 /sorry;
        location /new/ { deny 10.0.0.0/8; return 403; } location /sorry { return 200 s; } }";
    let explanation = ask(http, "http://x/old/a?b=c");
    let text = explanation.to_string();
    assert!(
        text.contains("rewrite ^/old/(.*) /new/$1: the URI becomes /new/a?b=c  [/nginx.conf:4]"),
        "{text}"
    );
    assert!(text.contains("of status 403: to /sorry"), "{text}");
    assert_eq!(explanation.status, Some(200));
    // What is in force is that of the place that refused.
    assert_eq!(explanation.scope.text, "location /new/");

    let mut question = Question::new("http://x/new/").unwrap();
    question.from = "10.1.1.1".parse().unwrap();
    let text = explained(
        "server { listen 80; location / { deny 10.0.0.0/8; } }",
        &question,
    );
    let text = text.unwrap().to_string();
    assert!(
        text.contains("access: 10.1.1.1 is denied: status 403"),
        "{text}"
    );
}

#[test]
fn directives_come_with_the_scope_that_wrote_them() {
    let http = "gzip on; add_header A http;
        server { listen 80; add_header B server;
        location / { add_header C location; add_header_inherit merge; } }";
    let explanation = ask(http, "http://x/");
    let rows: Vec<(&str, &str, bool)> = explanation
        .directives
        .iter()
        .map(|row| (&*row.place.text, &*row.scope, row.inherited))
        .collect();
    assert!(rows.contains(&("gzip on;", "http", true)), "{rows:?}");
    assert!(rows.contains(&("add_header B server;", "server", true)));
    assert!(rows.contains(&("add_header C location;", "location /", false)));
    assert!(!rows.iter().any(|row| row.0 == "add_header A http;"));
    assert!(!rows.iter().any(|row| row.0.starts_with("sendfile")));
}

#[test]
fn questions_are_urls() {
    let port = |url: &str| Question::new(url).map(|question| question.port());
    assert_eq!(port("http://a/"), Ok(80));
    assert_eq!(port("https://a"), Ok(443));
    assert_eq!(port("[::1]:8080/x"), Ok(8080));
    assert!(port("ftp://a/").is_err());
    assert_eq!(port("http://[::1]/"), Ok(80));
    for (url, fault) in [
        ("http://a:b/", "invalid port"),
        ("http://a:+1/", "invalid port"),
        ("http://a:/", "invalid port"),
        ("http://a:65536/", "invalid port"),
        ("http://[::1/", "no \"]\" behind the address"),
        ("http://[a]/", "no IPv6 address between the brackets"),
        ("http://[::1]8080/", "something behind the brackets"),
        (
            "http://::1/",
            "more than one colon; brackets go around IPv6 addresses",
        ),
    ] {
        assert_eq!(port(url), Err(format!("{fault} in \"{url}\"")));
    }
    let head = |url: &str| String::from_utf8(Question::new(url).unwrap().head()).unwrap();
    assert_eq!(
        head("http://a:81?x#y"),
        "GET /?x HTTP/1.1\r\nHost: a:81\r\n\r\n"
    );
    let mut question = Question::new("/path").unwrap();
    question.add_field("host: b").unwrap();
    assert_eq!(question.head(), b"GET /path HTTP/1.1\r\nhost: b\r\n\r\n");
    assert!(question.add_field("nothing").is_err());
}
