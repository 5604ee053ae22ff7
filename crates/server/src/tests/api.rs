//! Who may change something by the API, where it is not on this machine that the request has come
//! in.

use http::exchange::memory::Client;
use http::request::phases::handle;

use super::serve;

/// The status that a request of this method gets for the first server of a group, under these
/// lines.
fn status(lines: &str, method: &str) -> u16 {
    let text = format!(
        "events {{ }} error_log /dev/null; http {{ access_log off; proxy_temp_path /tmp; client_body_temp_path /tmp;
         upstream u {{ zone u 64k; server 10.0.0.2:80; server 10.0.0.3:80; }}
         server {{ listen 10.0.0.1:80; server_name site; {lines} }} }}"
    );
    let head = format!("{method} /api/9/http/upstreams/u/servers/0 HTTP/1.1");
    serve(&text, &head, async |mut request| {
        let client = Client::greedy();
        let (mut exchange, stream) = client.begin(u64::MAX / 2);
        handle(&mut request, &mut exchange).await.unwrap();
        client.received(stream).status
    })
}

/// The location of the API with these lines.
fn within(lines: &str, method: &str) -> u16 {
    status(
        &format!("location /api {{ api write=on; {lines} }}"),
        method,
    )
}

#[test]
fn changes_are_refused_where_nothing_protects_them() {
    // What lets the client in is no protection by itself.
    let known = "allow 0.0.0.0/1; allow 128.0.0.0/1;";
    for (lines, expected) in [
        ("", 403),
        ("allow 0.0.0.0/1; allow 128.0.0.0/1;", 403),
        ("deny 10.1.1.1;", 403),
        ("allow all; deny all;", 403),
        ("auth_basic off;", 403),
        ("auth_request off;", 403),
        ("satisfy any; allow all; auth_request /ask;", 403),
        ("allow 0.0.0.0/0; deny all;", 403),
        ("limit_except GET { KNOWN }", 403),
        ("limit_except GET DELETE { KNOWN deny all; }", 403),
        ("KNOWN deny all;", 200),
        ("KNOWN deny 0.0.0.0/0; deny all;", 200),
        ("limit_except GET { KNOWN deny all; }", 200),
        ("auth_request /ask;", 200),
    ] {
        let lines = lines.replace("KNOWN", known);
        let lines = format!("{lines} }} location /ask {{ return 204;");
        assert_eq!(within(&lines, "DELETE"), expected, "{lines}");
        assert_eq!(within(&lines, "GET"), 200, "{lines}");
    }
}

#[test]
fn changes_are_refused_without_write() {
    for (lines, expected) in [("api", 405), ("api write=off", 405), ("api write=on", 200)] {
        let lines =
            format!("location /api {{ {lines}; allow 0.0.0.0/1; allow 128.0.0.0/1; deny all; }}");
        assert_eq!(status(&lines, "DELETE"), expected, "{lines}");
        assert_eq!(status(&lines, "GET"), 200, "{lines}");
    }
}

/// Whichever way a request comes into the location, what protects that decides.
#[test]
fn changes_are_judged_where_they_arrive() {
    let known = "allow 0.0.0.0/1; allow 128.0.0.0/1;";
    let hidden = "/hidden/9/http/upstreams/u/servers/0";
    for (lines, expected) in [
        ("location / { location /api { api write=on; } }", 403),
        (
            "location / { KNOWN deny all; location /api { api write=on; } }",
            200,
        ),
        (
            "location / { KNOWN deny all; location /api { api write=on; KNOWN } }",
            403,
        ),
        (
            "location /api { api write=on; if ($uri) { set $x 1; } }",
            403,
        ),
        (
            "location /api { KNOWN deny all; api write=on; if ($uri) { set $x 1; } }",
            200,
        ),
        (
            "rewrite ^/api(.*) /hidden$1; location /hidden { internal; api write=on; }",
            403,
        ),
        (
            "rewrite ^/api(.*) /hidden$1; location /hidden { KNOWN deny all; internal; api write=on; }",
            200,
        ),
        (
            "location /api { KNOWN deny all; rewrite ^/api(.*) /hidden$1 last; } location /hidden { api write=on; }",
            403,
        ),
        (
            "location /api { try_files /none HIDDEN; } location /hidden { api write=on; }",
            403,
        ),
        (
            "location /api { try_files /none HIDDEN; } location /hidden { KNOWN deny all; api write=on; }",
            200,
        ),
        // What protects another location within it protects nothing else.
        (
            "location /api { api write=on; location /api/x { KNOWN deny all; } }",
            403,
        ),
    ] {
        let lines = lines.replace("KNOWN", known).replace("HIDDEN", hidden);
        assert_eq!(status(&lines, "DELETE"), expected, "{lines}");
        assert_eq!(status(&lines, "GET"), 200, "{lines}");
    }
    // A location within it that says nothing of the API is none of it.
    let lines =
        format!("location /api {{ api write=on; {known} deny all; location /api/9 {{ }} }}");
    assert_eq!(status(&lines, "DELETE"), 405);
    assert_eq!(status(&lines, "GET"), 404);
}
