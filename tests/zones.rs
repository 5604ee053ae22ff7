//! Zones over reloads: what they hold goes on, unless their size changes; a key that changes is refused.

// Other tests use the rest of it.
#[allow(dead_code)]
mod support;

use std::time::{Duration, Instant};

use support::{PATIENCE, Server};

/// A server that lets one request a minute through for each key, and says which generation answers.
fn lines(generation: u32, zone: &str) -> String {
    format!(
        "add_header X-Generation {generation} always;\n\
         location /open {{ }}\n\
         location /limited {{ limit_req zone=one; }}\n\
         location /held {{ limit_conn two 1; limit_rate 100; }}\n\
         location /quick {{ limit_conn two 1; }}\n\
         [http]\n{zone}\nlimit_conn_zone $arg_k zone=two:32k;\n"
    )
}

fn status(server: &Server, path: &str) -> u16 {
    server.connect().get(path).unwrap().status
}

/// Asks until the generation answers.
fn wait_for(server: &Server, generation: u32) {
    let field = format!("X-Generation: {generation}\r\n");
    let start = Instant::now();
    while !server.connect().get("/open").unwrap().head.contains(&field) {
        assert!(start.elapsed() < PATIENCE, "generation {generation} serves");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_is_counted_outlives_a_reload() {
    let zone = "limit_req_zone $arg_k zone=one:32k rate=1r/m;";
    let server = Server::start("", &lines(1, zone));
    server.write("limited", b"x");
    assert_eq!(status(&server, "/limited?k=a"), 200);
    assert_eq!(status(&server, "/limited?k=a"), 503);

    // The same zone, with another rate: a minute has not passed.
    let faster = "limit_req_zone $arg_k zone=one:32k rate=2r/m;";
    server.reload(&lines(2, faster));
    wait_for(&server, 2);
    assert_eq!(status(&server, "/limited?k=a"), 503);
    assert_eq!(status(&server, "/limited?k=b"), 200);

    // Another key cannot be what was counted: nothing changes.
    let other_key = "limit_req_zone $arg_other zone=one:32k rate=2r/m;";
    server.reload(&lines(3, other_key));
    let text =
        "limit_req \"one\" uses the \"$arg_other\" key while previously it used the \"$arg_k\" key";
    let start = Instant::now();
    while !server.error_log().contains(text) {
        assert!(start.elapsed() < PATIENCE, "{}", server.error_log());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(status(&server, "/limited?k=b"), 503);

    // Another size is another zone.
    let larger = "limit_req_zone $arg_k zone=one:64k rate=1r/m;";
    server.reload(&lines(4, larger));
    wait_for(&server, 4);
    assert_eq!(status(&server, "/limited?k=a"), 200);
    assert_eq!(status(&server, "/limited?k=a"), 503);
}

#[test]
fn who_is_served_counts_over_a_reload() {
    let zone = "limit_req_zone $arg_k zone=one:32k rate=1r/m;";
    let server = Server::start("", &lines(1, zone));
    server.write("held", &[b'x'; 1000]);
    server.write("quick", b"x");
    let mut holder = server.connect();
    holder.send("/held?k=a", "").unwrap();
    // The response's head comes at once, its end after ten seconds.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(status(&server, "/quick?k=a"), 503);
    assert_eq!(status(&server, "/quick?k=b"), 200);
    server.reload(&lines(2, zone));
    wait_for(&server, 2);
    assert_eq!(status(&server, "/quick?k=a"), 503);
    drop(holder);
    let start = Instant::now();
    while status(&server, "/quick?k=a") != 200 {
        assert!(start.elapsed() < PATIENCE, "the place is given back");
        std::thread::sleep(Duration::from_millis(10));
    }
}
