//! What the context of a handshake says of itself, beside what an empty request does.

use http::handshake::Handshake;
use http::request::Request;
use variables::Context;

use super::serve;
use crate::features::FEATURES;
use crate::reference;

/// What no two requests have in common.
const AT_RANDOM: [&str; 2] = ["request_id", "uid_set"];

/// What nginx 1.31 says of a session that is only beginning, which the connection of an empty
/// request has not.
const OF_TLS: [(&str, &str); 5] = [
    ("https", "on"),
    ("scheme", "https"),
    ("ssl_client_verify", "NONE"),
    ("ssl_early_data", "1"),
    ("ssl_session_reused", "."),
];

/// Every variable that is there without being defined, and some that this configuration defines.
fn names() -> Vec<String> {
    let known = reference::nginx().iter().filter(|known| known.is_variable);
    let known = known.map(|known| {
        if known.name.ends_with('_') {
            format!("{}x", known.name)
        } else {
            known.name.to_owned()
        }
    });
    let here = known.filter(|name| FEATURES.variable(name).is_some());
    let own = ["tidegate_version", "zstd_ratio", "acme_certificate"];
    let defined = ["made", "mapped", "again", "place", "half", "letter", "left"];
    let more = own.iter().chain(&defined).map(|name| (*name).to_owned());
    let mut all: Vec<String> = here.chain(more).collect();
    all.sort();
    all.dedup();
    all
}

fn configuration(certificate: &str) -> String {
    format!(
        "events {{ }} error_log /dev/null; http {{ access_log off; proxy_temp_path /tmp; client_body_temp_path /tmp;
         map $host $mapped {{ ~^(?<letter>.)ite $letter-$1-$place; }} map $mapped$uri $again {{ default <$mapped>; }}
         geo $place {{ 127.0.0.0/8 near; default far; }} split_clients $server_name $half {{ * all; }}
         map $made $left {{ default left; }}
         server {{ listen 10.0.0.1:80 ssl; server_name site other; root /srv/$host; userid on; set $made 1;
         valid_referers site; ancient_browser old; modern_browser unlisted; modern_browser_value new;
         secure_link $arg_md5; secure_link_md5 x; limit_rate 5k;
         ssl_certificate \"data:{certificate}\"; ssl_certificate_key data:; }} }}"
    )
}

fn value<C: Context>(context: &mut C, name: &str) -> Option<String> {
    let mut value = Vec::new();
    let found = context.append_variable_named(name, &mut value);
    found.then(|| String::from_utf8_lossy(&value).into_owned())
}

#[test]
fn a_handshake_says_what_an_empty_request_says() {
    let names = names();
    assert!(names.len() > 120, "{}", names.len());
    let certificate: String = names.iter().map(|name| format!("${{{name}}}")).collect();
    serve(
        &configuration(&certificate),
        "GET / HTTP/1.1",
        async |request| {
            let connection = request.connection.shared().unwrap();
            connection.client.set_sni_name(b"Site");
            let (local, server) = (&request.local, &request.server);
            let mut handshake = Handshake::new(local, connection, server);
            let mut empty = Request::new(local, connection, server);
            for name in &names {
                let [here, there] = [value(&mut handshake, name), value(&mut empty, name)];
                if let Some((_, expected)) = OF_TLS.iter().find(|(of_tls, _)| of_tls == name) {
                    assert_eq!(here.as_deref(), Some(*expected), "{name}");
                    continue;
                }
                if AT_RANDOM.contains(&&**name) {
                    assert_eq!(here.map(|v| v.len()), there.map(|v| v.len()), "{name}")
                } else {
                    assert_eq!(here, there, "{name}")
                }
            }
            for (name, expected) in [
                ("ssl_server_name", "Site"),
                ("remote_addr", "127.0.0.1"),
                ("again", "<s-s-near>"),
                ("made", ""),
                ("document_root", "/srv/site"),
            ] {
                assert_eq!(
                    value(&mut handshake, name).as_deref(),
                    Some(expected),
                    "{name}"
                );
            }
        },
    );
}

#[test]
fn what_a_handshake_has_by_itself_takes_no_request() {
    let certificate = "$ssl_server_name$host$mapped$remote_addr$time_local$proxy_protocol_addr";
    serve(
        &configuration(certificate),
        "GET / HTTP/1.1",
        async |request| {
            let connection = request.connection.shared().unwrap();
            let mut handshake = Handshake::new(&request.local, connection, &request.server);
            assert_eq!(value(&mut handshake, "mapped").as_deref(), Some("s-s-near"));
            for name in ["ssl_server_name", "host", "remote_addr", "time_local"] {
                value(&mut handshake, name);
            }
            assert!(!handshake.has_made_a_request());
            let table = &request.http.of_handshakes;
            for (name, is_there) in [("place", true), ("again", false), ("half", false)] {
                assert_eq!(table.find(name).is_some(), is_there, "{name}");
            }
        },
    );
}
