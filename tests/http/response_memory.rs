//! `response_memory` from outside: how much is kept, and that it comes down with the directive.
//! nginx keeps no responses.

use std::time::{Duration, Instant};

use support::{Connection, PATIENCE, Server, is_nginx};

/// Bytes of each file.
const FILE: usize = 50 * 1024;

fn lines(size: &str) -> String {
    format!("location = /metrics {{ metrics prometheus; }}\n[http]\nresponse_memory {size};")
}

/// What `metrics` says of the memory for responses.
fn number(connection: &mut Connection, name: &str) -> usize {
    let text = String::from_utf8(connection.get("/metrics").unwrap().body).unwrap();
    let name = format!("tidegate_response_memory_{name} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap().parse().unwrap()
}

/// The content of a file, by its number.
fn content(number: usize) -> Vec<u8> {
    (0..FILE)
        .map(|at| (at * (number % 91 + 3) + number) as u8)
        .collect()
}

/// Starts a server with so many old files.
fn start(engine: &str, size: &str, files: usize) -> Server {
    let server = Server::start(engine, &lines(size));
    for number in 0..files {
        server.write_old(&number.to_string(), &content(number));
    }
    server
}

/// Asks for each of so many files three times.
fn ask_for_all(connection: &mut Connection, files: usize) {
    for number in 0..files {
        for _ in 0..3 {
            let response = connection.get(&format!("/{number}")).unwrap();
            assert_eq!(response.status, 200);
            assert!(response.body == content(number), "{number}");
        }
    }
}

fn the_memory_for_responses_is_as_large_as_it_is_said_to_be(engine: &'static str) {
    if is_nginx() {
        return;
    }
    for (size, shared) in [("0", 0), ("2m", 1 << 20), ("64m", 32 << 20)] {
        let server = start(engine, size, 60);
        let mut connection = server.connect();
        ask_for_all(&mut connection, 60);
        ask_for_all(&mut connection, 60);
        let mut of = |name: &str| number(&mut connection, name);
        let (objects, evicted) = (of("objects"), of("evicted_total"));
        assert_eq!(of("limit_bytes"), shared, "{engine} {size}");
        match size {
            "0" => assert_eq!((objects, evicted), (0, 0), "{engine}"),
            "2m" => {
                assert!(
                    (8..=20).contains(&objects) && evicted >= 40,
                    "{objects} {evicted}"
                );
                assert!(of("bytes") <= shared, "{engine}");
            }
            _ => assert_eq!((objects, evicted), (60, 0), "{engine}"),
        }
        // A file that has changed is another from the next request on, wherever it lies.
        for number in [0, 30, 59] {
            server.write(&number.to_string(), b"new");
            let response = connection.get(&format!("/{number}")).unwrap();
            assert_eq!(response.body, b"new", "{engine} {size} {number}");
        }
    }
}

support::test_on_each_engine!(the_memory_for_responses_is_as_large_as_it_is_said_to_be);

fn memory_for_responses_goes_back_when_there_is_to_be_less(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let server = start(engine, "100m", 500);
    let mut connection = server.connect();
    connection.get("/metrics").unwrap();
    let before = server.own_memory();
    ask_for_all(&mut connection, 500);
    assert_eq!(number(&mut connection, "objects"), 500);
    let full = server.own_memory() - before;
    assert!(full > 45 << 20, "{full}"); // each file, and its response
    server.reload(&lines("2m"));
    let started = Instant::now();
    loop {
        let mut connection = server.connect();
        let left = server.own_memory().saturating_sub(before);
        if left < 10 << 20 && number(&mut connection, "limit_bytes") == 1 << 20 {
            assert!(number(&mut connection, "bytes") <= 1 << 20);
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{engine}: {left} of {full}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

support::test_on_each_engine!(memory_for_responses_goes_back_when_there_is_to_be_less);
