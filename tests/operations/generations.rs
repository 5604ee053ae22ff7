//! Reloads under load, on every engine: no request fails, what is new binds at once, what is old
//! ends well; and a worker process that dies is replaced.
//!
//! With TIDEGATE_BINARY naming nginx the same clients run against nginx. It closes idle connections
//! on a reload, where a request may just be on its way, and serves old ones by the old
//! configuration; the assertions about that are Tidegate's own.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::{Connection, PATIENCE, Server, is_nginx, signal};

const RELOADS: usize = 100;
const KEEP_ALIVE_CLIENTS: usize = 4;
const NEW_CONNECTION_CLIENTS: usize = 2;
const SMALL: usize = 1024;
const LARGE: usize = 100_000;

/// Bytes that tell their place.
fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

fn generation(number: usize) -> String {
    format!("add_header X-Generation {number};")
}

/// What the clients counted.
#[derive(Default)]
struct Count {
    good: AtomicUsize,
    failures: std::sync::Mutex<Vec<String>>,
}

impl Count {
    fn add(&self, result: Result<(), String>) {
        match result {
            Ok(()) => drop(self.good.fetch_add(1, Ordering::Relaxed)),
            Err(message) => self.failures.lock().unwrap().push(message),
        }
    }
}

/// Asks for both files on one connection after the other until `stop`, and checks every byte.
fn client(port: u16, keep_alive: bool, stop: &AtomicBool, count: &Count) {
    let files = [("/small", content(SMALL)), ("/large", content(LARGE))];
    let mut connection: Option<Connection> = None;
    for (path, expected) in files.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let result = (|| {
            let mut open = match connection.take() {
                Some(open) => open,
                None => Connection::open(port).map_err(|error| format!("connect: {error}"))?,
            };
            let headers = if keep_alive {
                ""
            } else {
                "Connection: close\r\n"
            };
            open.send(path, headers)?;
            let response = open.receive(Duration::ZERO)?;
            if response.status != 200 || response.body != *expected {
                return Err(format!(
                    "{path}: status {}, {} bytes, not those of the file",
                    response.status,
                    response.body.len()
                ));
            }
            if keep_alive && !response.closes() {
                connection = Some(open);
            }
            Ok(())
        })();
        count.add(result);
    }
}

fn a_hundred_reloads_under_load_fail_no_request(engine: &'static str) {
    let server = Server::start(engine, &generation(0));
    server.write("small", &content(SMALL));
    server.write("large", &content(LARGE));
    let (stop, count) = (AtomicBool::new(false), Count::default());
    std::thread::scope(|scope| {
        for number in 0..KEEP_ALIVE_CLIENTS + NEW_CONNECTION_CLIENTS {
            let (port, stop, count) = (server.port, &stop, &count);
            scope.spawn(move || client(port, number < KEEP_ALIVE_CLIENTS, stop, count));
        }
        for number in 1..=RELOADS {
            server.reload(&generation(number));
            std::thread::sleep(Duration::from_millis(40));
        }
        wait_for(
            || serves_generation(&server, RELOADS),
            "the last configuration",
        );
        stop.store(true, Ordering::Relaxed);
    });
    let failures = count.failures.into_inner().unwrap();
    let good = count.good.into_inner();
    assert!(good > RELOADS, "only {good} requests were made");
    assert!(
        is_nginx() || failures.is_empty(),
        "{engine} {} of {good} requests failed: {:?}",
        failures.len(),
        failures.first()
    );
}

support::test_on_each_engine!(a_hundred_reloads_under_load_fail_no_request);

/// Whether a new connection gets what this reload wrote.
fn serves_generation(server: &Server, number: usize) -> bool {
    let response = server.connect().get("/small").unwrap();
    response
        .head
        .contains(&format!("X-Generation: {number}\r\n"))
}

fn wait_for(condition: impl Fn() -> bool, what: &str) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn a_deny_added_by_a_reload_binds_on_an_old_connection(engine: &'static str) {
    if is_nginx() {
        return; // nginx closes the connection instead
    }
    let server = Server::start(engine, &generation(1));
    server.write("small", &content(SMALL));
    let mut old = server.connect();
    assert_eq!(old.get("/small").unwrap().status, 200);
    server.reload("deny all;");
    wait_for(
        || server.connect().get("/small").unwrap().status == 403,
        "the deny on new connections",
    );
    assert_eq!(old.get("/small").unwrap().status, 403, "{engine}");
}

support::test_on_each_engine!(a_deny_added_by_a_reload_binds_on_an_old_connection);

fn a_download_begun_before_a_reload_ends_well(engine: &'static str) {
    const LENGTH: usize = 20_000_000;
    let server = Server::start(engine, &generation(1));
    server.write("small", &content(SMALL));
    server.write("huge", &content(LENGTH));
    let mut download = server.connect();
    download.send("/huge", "").unwrap();
    // The system's buffers are far smaller than the file: most of it leaves after the reload.
    std::thread::sleep(Duration::from_millis(50));
    server.reload(&generation(2));
    wait_for(|| serves_generation(&server, 2), "the new configuration");
    let response = download.receive(Duration::from_micros(100)).unwrap();
    assert_eq!(response.body.len(), LENGTH, "{engine}");
    assert!(
        response.body == content(LENGTH),
        "{engine} the bytes are not those of the file"
    );
}

support::test_on_each_engine!(a_download_begun_before_a_reload_ends_well);

fn an_old_generation_says_when_it_has_ended(engine: &'static str) {
    let server = Server::start(engine, &generation(1));
    server.write("small", &content(SMALL));
    for number in 2..=4 {
        server.reload(&generation(number));
        wait_for(
            || serves_generation(&server, number),
            "the new configuration",
        );
        wait_for(
            || server.error_log().matches("exited with code 0").count() >= number - 1,
            "the line about the old generation's end",
        );
    }
}

support::test_on_each_engine!(an_old_generation_says_when_it_has_ended);

fn a_broken_configuration_changes_nothing(engine: &'static str) {
    let server = Server::start(engine, &generation(1));
    server.write("small", &content(SMALL));
    let mut old = server.connect();
    assert_eq!(old.get("/small").unwrap().status, 200);
    server.reload("no_such_directive on;");
    wait_for(
        || {
            server
                .error_log()
                .contains("unknown directive \"no_such_directive\"")
        },
        "the error in the log",
    );
    assert!(serves_generation(&server, 1), "{engine}");
    assert_eq!(old.get("/small").unwrap().status, 200, "{engine}");
}

support::test_on_each_engine!(a_broken_configuration_changes_nothing);

fn a_worker_process_that_dies_is_replaced(engine: &'static str) {
    let server = Server::start(engine, &generation(1));
    server.write("small", &content(SMALL));
    assert!(serves_generation(&server, 1));
    let workers = server.workers();
    assert_eq!(workers.len(), 1, "{engine} one worker process");
    signal(workers[0], "SEGV");
    let answers = || Connection::open(server.port).is_ok_and(|mut open| open.get("/small").is_ok());
    // The dying process may still take a connection, so an answer alone does not prove the new
    // one.
    wait_for(
        || server.workers() != workers && answers(),
        "the new worker process",
    );
    // Without a pause, that is: how long the rest takes is the machine's matter.
    assert!(is_nginx() || !server.error_log().contains("next worker process starts in"));
}

support::test_on_each_engine!(a_worker_process_that_dies_is_replaced);
