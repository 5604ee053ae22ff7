//! Zones over reloads: what they hold goes on, unless their size changes; a key that changes is
//! refused. And zones under more keys than they hold: they forget as nginx does, and take no more
//! memory.

use std::time::{Duration, Instant};

use support::{Connection, PATIENCE, Server};

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
    server.write("held", &[b'x'; 10_000]);
    server.write("quick", b"x");
    let mut holder = server.connect();
    holder.send("/held?k=a", "").unwrap();
    // Its response takes a hundred seconds.
    let start = Instant::now();
    while status(&server, "/quick?k=a") != 503 {
        assert!(start.elapsed() < PATIENCE, "the place is taken");
        std::thread::sleep(Duration::from_millis(10));
    }
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

/// Different keys of the flood; a zone of 100 KB holds some hundred.
const KEYS: usize = 100_000;
/// Requests that are sent together. With each batch a key that is kept awake is asked for too.
const BATCH: usize = 100;
/// How many keys of this length nginx 1.31 and 1.22 keep in a zone of 100 KB.
const HELD: usize = 735;

#[test]
fn a_flood_of_keys_stays_within_its_zone() {
    let server = Server::start(
        "",
        "location /limited { limit_req zone=one; empty_gif; }\n\
         [http]\nlimit_req_zone $arg_k zone=one:100k rate=1r/m;\n",
    );
    let mut connection = server.connect();
    let mut memory = 0;
    let (begin, mut allowed) = (Instant::now(), 0);
    for first in (0..KEYS).step_by(BATCH) {
        let keys = (first..first + BATCH).map(flood_key);
        let statuses = statuses(
            &mut connection,
            ["steady".to_string()].into_iter().chain(keys),
        );
        // Every key of the flood is new; the steady one never leaves the zone, and passes once a
        // minute.
        allowed += u64::from(statuses[0] == 200);
        assert!(matches!(statuses[0], 200 | 503));
        assert!(allowed <= 1 + begin.elapsed().as_secs() / 60, "{first}");
        assert!(
            statuses[1..].iter().all(|status| *status == 200),
            "{first}: {statuses:?}"
        );
        if first == KEYS / 5 {
            memory = server.own_memory();
        }
    }
    let grown = server.own_memory().saturating_sub(memory);
    assert!(grown < 256 * 1024, "{grown} bytes more after {KEYS} keys");
    let log = server.error_log();
    assert!(!log.contains("could not allocate node"), "{log}");

    // From the newest backwards all are limited that the zone still holds; what is older is new
    // again.
    let newest_first = (0..KEYS).rev().take(HELD + BATCH).map(flood_key);
    let statuses = statuses(&mut connection, newest_first);
    let held = statuses.iter().take_while(|status| **status == 503).count();
    // The steady key has the last place.
    assert_eq!(held + 1, HELD);
    assert!(
        statuses[held..].iter().all(|status| *status == 200),
        "{statuses:?}"
    );
}

/// A key of eight bytes.
fn flood_key(number: usize) -> String {
    format!("key{number:05}")
}

/// Asks for these keys, all requests sent at once.
fn statuses(connection: &mut Connection, keys: impl Iterator<Item = String>) -> Vec<u16> {
    let keys: Vec<String> = keys.collect();
    for key in &keys {
        connection.send(&format!("/limited?k={key}"), "").unwrap();
    }
    let receive = |_| connection.receive(Duration::ZERO).unwrap().status;
    keys.iter().map(receive).collect()
}
