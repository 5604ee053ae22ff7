//! What `metrics` tells of caches.

use super::*;
use crate::cache::lock::{Gate, send};

/// The number of a line of the page.
pub(super) fn number(server: &Server, line: &str) -> u64 {
    let page = get(server, "/metrics").body;
    let page = String::from_utf8(page).unwrap();
    let mut lines = page.lines();
    let found = lines.find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
    found
        .unwrap_or_else(|| panic!("no {line}"))
        .parse()
        .unwrap()
}

fn caches_are_counted_by_zone(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let gate = Arc::<Gate>::default();
    let first = Arc::clone(&gate);
    let upstream = Upstream::start(move |head, _| {
        if head.starts_with("GET /waits") {
            first.pass();
        }
        ok("", b"body")
    });
    let server = start(
        engine,
        "location / { proxy_pass http://UP; proxy_cache one; proxy_cache_valid 1h;
             proxy_cache_lock on; proxy_cache_lock_timeout 60s; proxy_cache_purge PURGE;
             proxy_cache_bypass $arg_bypass; }
         location = /metrics { metrics; }",
        upstream.port,
    );
    let requests = |status: &str| {
        let labels = format!("{{zone=\"one\",status=\"{status}\"}}");
        number(&server, &format!("tidegate_cache_requests_total{labels}"))
    };
    let of = |name: &str| number(&server, &format!("tidegate_cache_{name}{{zone=\"one\"}}"));
    assert_eq!(
        (requests("HIT"), requests("MISS"), of("entries")),
        (0, 0, 0)
    );
    get(&server, "/a");
    until(|| get(&server, "/a").cache() == "HIT");
    get(&server, "/a?bypass=1");
    until(|| of("stored_total") >= 2 && of("fills") == 0);
    assert!(requests("HIT") >= 1 && of("bytes") > 0);
    assert_eq!((requests("MISS"), requests("BYPASS")), (1, 1));
    // One fetches, and two wait for that.
    let sent = [(); 3].map(|()| send(server.port, "/waits", ""));
    until(|| of("waiting") == 2);
    assert_eq!(of("fills"), 1);
    gate.open();
    for stream in sent {
        assert_eq!(crate::cache::lock::receive(stream).body, b"body");
    }
    until(|| of("waiting") == 0 && of("fills") == 0);
    assert_eq!(requests("MISS"), 2);
    let entries = of("entries");
    let request = "PURGE /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    assert_eq!(ask(&server, request).status(), "200");
    assert_eq!(of("entries"), entries - 1);
    let json = get_with(&server, "/metrics", "Accept: application/json\r\n");
    let json = String::from_utf8(json.body).unwrap();
    assert!(json.contains("\"caches\":[{\"zone\":\"one\""), "{json}");
}

support::test_on_each_engine!(caches_are_counted_by_zone);
