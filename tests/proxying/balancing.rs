//! What Tidegate adds to balancing: `p2c`, `hash … consistent bounded=`, `retry_budget`,
//! `eject_outliers`. Each with two values that give different results, and over reloads. nginx has
//! none of them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use support::master::wait_for;
use support::{Connection, Server, is_nginx, origin};

/// A server behind, on a thread: it answers with its status after its pause and once it is not held
/// back; with the status 0 it closes without an answer.
struct Behind {
    port: u16,
    does: Arc<Does>,
}

struct Does {
    status: AtomicU64,
    pause_ms: AtomicU64,
    is_held: AtomicBool,
    requests: AtomicUsize,
}

impl Behind {
    fn start() -> Behind {
        let does = Arc::new(Does {
            status: AtomicU64::new(200),
            pause_ms: AtomicU64::new(0),
            is_held: AtomicBool::new(false),
            requests: AtomicUsize::new(0),
        });
        let shared = Arc::clone(&does);
        let port = origin::listen(move |stream| shared.serve(stream));
        Behind { port, does }
    }

    fn answers(&self, status: u64) -> &Behind {
        self.does.status.store(status, Ordering::SeqCst);
        self
    }

    fn pauses(&self, millis: u64) -> &Behind {
        self.does.pause_ms.store(millis, Ordering::SeqCst);
        self
    }

    /// Requests since the last call.
    fn requests(&self) -> usize {
        self.does.requests.swap(0, Ordering::SeqCst)
    }
}

impl Does {
    fn serve(&self, mut stream: TcpStream) {
        let mut head = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(count @ 1..) => head.extend_from_slice(&buffer[..count]),
                    _ => return,
                }
            }
            head.clear();
            self.requests.fetch_add(1, Ordering::SeqCst);
            let pause = self.pause_ms.load(Ordering::SeqCst);
            thread::sleep(Duration::from_millis(pause));
            while self.is_held.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(2));
            }
            let status = self.status.load(Ordering::SeqCst);
            let answer = format!("HTTP/1.1 {status} Text\r\nContent-Length: 6\r\n\r\nbehind");
            if status == 0 || stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// Servers behind, and a server whose group `u` has them, each with these parameters.
struct Site {
    server: Server,
    behind: Vec<Behind>,
    parameters: &'static str,
}

impl Site {
    fn start(engine: &str, count: usize, block: &str, parameters: &'static str) -> Site {
        let behind: Vec<Behind> = (0..count).map(|_| Behind::start()).collect();
        let lines = lines(&behind, block, parameters);
        Site {
            server: Server::start_workers(2, engine, &lines),
            behind,
            parameters,
        }
    }

    /// Other lines in the block of the group.
    fn reload(&self, block: &str) {
        let ended = |log: &str| log.matches("exited with code 0").count();
        let before = ended(&self.server.error_log());
        let lines = lines(&self.behind, block, self.parameters);
        self.server.reload(&lines);
        wait_for("the reload", || ended(&self.server.error_log()) > before);
    }

    fn get(&self, path: &str) -> u16 {
        self.server.connect().get(path).unwrap().status
    }

    /// The statuses of so many requests, one after the other.
    fn statuses(&self, count: usize) -> Vec<u16> {
        (0..count).map(|_| self.get("/")).collect()
    }

    /// So many requests at once: none is answered before all have come. What each server behind has
    /// had of them.
    fn at_once(&self, count: usize, path: &str) -> Vec<usize> {
        let hold = |is_held| {
            let all = self.behind.iter();
            all.for_each(|behind| behind.does.is_held.store(is_held, Ordering::SeqCst));
        };
        hold(true);
        let mut clients: Vec<Connection> = (0..count).map(|_| self.server.connect()).collect();
        for client in &mut clients {
            client.send(path, "").unwrap();
        }
        let mut shares = vec![0; self.behind.len()];
        wait_for("all requests", || {
            for (share, more) in shares.iter_mut().zip(self.shares()) {
                *share += more;
            }
            shares.iter().sum::<usize>() == count
        });
        hold(false);
        for client in &mut clients {
            assert_eq!(client.receive(Duration::ZERO).unwrap().status, 200);
        }
        shares
    }

    /// Requests that each server behind has had since the last call.
    fn shares(&self) -> Vec<usize> {
        self.behind.iter().map(Behind::requests).collect()
    }
}

fn lines(behind: &[Behind], block: &str, parameters: &str) -> String {
    let servers = behind.iter().map(|behind| behind.port);
    let servers: String = servers
        .map(|port| format!("server 127.0.0.1:{port} {parameters};\n"))
        .collect();
    format!(
        "location / {{ proxy_pass http://u; proxy_next_upstream error timeout http_503; }}
         location /alone/ {{ proxy_pass http://u; proxy_next_upstream off; }}
         [http]
         upstream u {{ {block}\n{servers} }}"
    )
}

fn p2c_leaves_a_slow_server_alone(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    for (block, most) in [("p2c;", 15), ("", 60)] {
        let site = Site::start(engine, 2, block, "");
        site.behind[1].pauses(40);
        site.statuses(100);
        let shares = site.shares();
        assert_eq!(shares[0] + shares[1], 100);
        assert!(shares[1] <= most, "{block} {shares:?}");
        assert!(
            shares[1] > 0 && (most < 60) == (shares[1] < 50),
            "{block} {shares:?}"
        );
    }
}

support::test_on_each_engine!(p2c_leaves_a_slow_server_alone);

/// A failed try counts as a slow answer, and a reload does not forget it.
fn p2c_goes_round_a_server_that_fails(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let site = Site::start(engine, 2, "p2c;", "max_fails=0");
    site.behind[0].answers(0);
    assert_eq!(site.statuses(20), [200; 20]);
    site.behind[0].answers(200);
    site.reload("p2c; # again");
    site.shares();
    assert_eq!(site.statuses(20), [200; 20]);
    assert_eq!(site.shares(), [0, 20]);
}

support::test_on_each_engine!(p2c_goes_round_a_server_that_fails);

fn a_bound_spreads_a_popular_key(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let largest = |block: &str| {
        let site = Site::start(engine, 4, block, "");
        site.at_once(16, "/popular").into_iter().max().unwrap()
    };
    assert_eq!(largest("hash $uri consistent;"), 16);
    assert_eq!(largest("hash $uri consistent bounded=1;"), 4);
    // 1.25 times a quarter of 16.
    assert_eq!(largest("hash $uri consistent bounded=1.25;"), 5);
    assert_eq!(largest("hash $uri consistent bounded=2.5;"), 10);
    // One after the other they stay where they are.
    let site = Site::start(engine, 4, "hash $uri consistent bounded=1.25;", "");
    site.statuses(12);
    assert_eq!(site.shares().into_iter().max(), Some(12));
}

support::test_on_each_engine!(a_bound_spreads_a_popular_key);

fn retries_have_a_budget(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let served = |block: &str| {
        let site = Site::start(engine, 2, block, "max_fails=0");
        site.behind[0].answers(503);
        let statuses = site.statuses(60);
        assert!(statuses.iter().all(|status| matches!(status, 200 | 503)));
        let refused = statuses.iter().filter(|status| **status == 503).count();
        let told = "retry budget of upstream \"u\" is spent, no other server is tried while reading response header from upstream";
        // No answer waits for its line.
        wait_for("the lines of the log", || {
            site.server.error_log().matches(told).count() == refused
        });
        let log = site.server.error_log();
        let mut lines = log.lines().filter(|line| line.contains(told));
        assert!(lines.all(|line| line.contains("[warn]")));
        refused
    };
    // Every other request meets the server that answers with 503.
    assert_eq!(served(""), 0);
    assert_eq!(served("retry_budget 100% min=0;"), 0);
    assert_eq!(served("retry_budget 0% min=0;"), 30);
    let refused = served("retry_budget 20% min=0;");
    assert!((16..=20).contains(&refused), "{refused}");
    // 30 within the window of 10 s.
    assert_eq!(served("retry_budget 0%;"), 0);
    assert_eq!(served("retry_budget 0% min=1;"), 20);
}

support::test_on_each_engine!(retries_have_a_budget);

/// The answer is that of the try that failed: nothing is tried, and what the server said is passed
/// on.
fn a_spent_budget_gives_the_answer_of_the_failed_try(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    // Connections that had been kept would be tried once more without counting.
    let block = "keepalive 0; retry_budget 0% min=0;";
    let site = Site::start(engine, 2, block, "max_fails=0");
    site.behind.iter().for_each(|behind| {
        behind.answers(503);
    });
    let response = site.server.connect().get("/").unwrap();
    assert_eq!((response.status, &*response.body), (503, &b"behind"[..]));
    site.behind.iter().for_each(|behind| {
        behind.answers(0);
    });
    assert_eq!(site.get("/"), 502);
    assert_eq!(site.shares().iter().sum::<usize>(), 2);
    // Retries are counted over reloads.
    site.reload("keepalive 0; retry_budget 0% min=1;");
    site.behind[0].answers(0);
    site.behind[1].answers(200);
    let fine = |site: &Site| site.statuses(24).iter().filter(|it| **it == 200).count();
    assert_eq!(fine(&site), 22);
    site.reload("keepalive 0; retry_budget 0% min=1; # again");
    assert_eq!(fine(&site), 12);
}

support::test_on_each_engine!(a_spent_budget_gives_the_answer_of_the_failed_try);

fn a_server_that_fails_in_a_row_is_put_out(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let asked = |block: &str| {
        let site = Site::start(engine, 3, block, "max_fails=0");
        site.behind[0].answers(503);
        site.statuses(60);
        let told = format!(
            "upstream server 127.0.0.1:{} put out for",
            site.behind[0].port
        );
        let log = site.server.error_log();
        (site.shares()[0], log.matches(&told).count())
    };
    assert_eq!(asked(""), (20, 0));
    assert_eq!(asked("eject_outliers;"), (5, 1));
    assert_eq!(asked("eject_outliers errors=2;"), (2, 1));
    // A third of three is less than one server.
    assert_eq!(asked("eject_outliers errors=2 max=33%;"), (20, 0));
    assert_eq!(asked("eject_outliers errors=0 ratio=60%;"), (10, 1));
    assert_eq!(
        asked("eject_outliers errors=0 ratio=60% interval=1ms;"),
        (20, 0)
    );
}

support::test_on_each_engine!(a_server_that_fails_in_a_row_is_put_out);

/// Answers with 502, 503 and 504 count whatever `proxy_next_upstream` says, others do not.
fn answers_of_broken_servers_count(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    for (status, is_out) in [
        (502, true),
        (503, true),
        (504, true),
        (500, false),
        (404, false),
    ] {
        let site = Site::start(engine, 2, "eject_outliers errors=3;", "max_fails=0");
        site.behind[0].answers(status);
        let bad = (0..20).filter(|_| u64::from(site.get("/alone/")) == status);
        assert_eq!(bad.count(), if is_out { 3 } else { 10 }, "{status}");
    }
}

support::test_on_each_engine!(answers_of_broken_servers_count);

fn an_outlier_comes_back_and_is_out_for_longer_the_next_time(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    let block = "eject_outliers errors=2 time=300ms;";
    let site = Site::start(engine, 2, block, "max_fails=0");
    site.behind[0].answers(503);
    site.statuses(4);
    let told =
        "put out for 300 ms: 2 failures in a row while reading response header from upstream";
    site.server.wait_for_log(told);
    site.shares();
    // Over reloads as well.
    site.reload("eject_outliers errors=2 time=300ms; # again");
    site.statuses(4);
    assert_eq!(site.shares()[0], 0);
    thread::sleep(Duration::from_millis(300));
    site.statuses(4);
    site.server.wait_for_log("put out for 600 ms");
    assert_eq!(site.shares()[0], 2);
    site.behind[0].answers(200);
    thread::sleep(Duration::from_millis(600));
    site.statuses(4);
    assert_eq!(site.shares()[0], 2);
    let log = site.server.error_log();
    let back = log
        .lines()
        .filter(|line| line.contains("its time as an outlier is over"));
    let back: Vec<&str> = back.collect();
    assert_eq!(back.len(), 2, "{log}");
    assert!(back.iter().all(|line| line.contains("[notice]")), "{log}");
}

support::test_on_each_engine!(an_outlier_comes_back_and_is_out_for_longer_the_next_time);

/// However bad all of them are, one stays at least.
fn never_all_are_put_out(engine: &'static str) {
    if is_nginx() {
        return; // it has no such thing
    }
    for (count, block, most) in [
        (4, "eject_outliers errors=1;", 2),
        (4, "eject_outliers errors=1 max=100%;", 3),
        (1, "eject_outliers errors=1 max=100%;", 0),
    ] {
        let site = Site::start(engine, count, block, "max_fails=0");
        site.behind.iter().for_each(|behind| {
            behind.answers(503);
        });
        let are_503 = || (0..20).all(|_| site.get("/alone/") == 503);
        assert!(are_503());
        site.shares();
        assert!(are_503());
        let silent = site.shares().iter().filter(|share| **share == 0).count();
        assert_eq!(silent, most, "{count} {block}");
    }
}

support::test_on_each_engine!(never_all_are_put_out);
