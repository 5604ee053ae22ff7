//! Servers of a group that are killed and started again while requests come, and reloads at the
//! same time: which requests that costs, and what a reload must not lose. The servers are
//! processes, each the program under test itself, and they are killed by SIGKILL.
//!
//! On both engines; TIDEGATE_BINARY with nginx 1.31 checks the first test itself.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use support::master::{Master, wait_for};
use support::port::free_port;
use support::{PATIENCE, Server, is_nginx};

/// Bytes of the answer that takes a while.
const LARGE: usize = 200_000;

/// A server behind, as a process.
struct Backend {
    master: Master,
    port: u16,
}

impl Backend {
    /// Says in each answer that it is the one of this name, and on which connection.
    fn start(name: usize) -> Backend {
        let mut master = Master::new();
        let port = free_port();
        std::fs::create_dir(master.folder.join("www")).unwrap();
        std::fs::write(master.folder.join("www/small"), "behind").unwrap();
        std::fs::write(master.folder.join("www/large"), vec![b'x'; LARGE]).unwrap();
        // Requests wait a little, so that some are under way at any moment.
        master.configure(&format!(
            "master_process off; user root;
             events {{ }}
             http {{
                 access_log off;
                 limit_req_zone $server_port zone=all:64k rate=400r/s;
                 server {{
                     listen 127.0.0.1:{port};
                     root @/www;
                     keepalive_requests 1000000;
                     limit_req zone=all burst=1000;
                     add_header X-Name {name};
                     add_header X-Connection $connection;
                     location /large {{ limit_rate 1m; }}
                 }}
             }}"
        ));
        master.start();
        Backend { master, port }
    }

    fn kill(&mut self) {
        self.master.signal("KILL");
        self.master.wait();
    }

    fn start_again(&mut self) {
        self.master.start();
    }
}

/// What has become of a request.
#[derive(Debug)]
#[allow(dead_code, reason = "failures are shown by what the test says of them")]
enum Outcome {
    /// Answered whole, by this server.
    Fine(usize),
    /// Broken off in the middle of the answer of this server, after so many bytes.
    Broken(usize, usize),
    /// Not answered, or with another status.
    Failed(String),
}

/// One request on a connection of its own.
fn get(port: u16, path: &str) -> Outcome {
    let mut answer = Vec::new();
    let mut asked = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        stream.read_to_end(&mut answer).map(drop)
    };
    let ended = match asked() {
        Ok(()) => None,
        Err(error) => Some(error.kind()),
    };
    let text = String::from_utf8_lossy(&answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return Outcome::Failed(format!("{path}: {ended:?} after {text:?}"));
    };
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
    match (head.starts_with("HTTP/1.1 200 "), field("X-Name: ")) {
        (true, Some(name)) => {
            let length: usize = field("Content-Length: ").unwrap().parse().unwrap();
            let name = name.parse().unwrap();
            if body.len() == length && ended != Some(ErrorKind::ConnectionReset) {
                Outcome::Fine(name)
            } else {
                Outcome::Broken(name, body.len())
            }
        }
        _ => Outcome::Failed(format!("{path}: {head}")),
    }
}

/// Clients that ask all the time until they are told to stop.
fn under_load(port: u16, clients: usize, work: impl FnOnce()) -> Vec<Outcome> {
    let (outcomes, over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    thread::scope(|scope| {
        for client in 0..clients {
            let (outcomes, over) = (&outcomes, &over);
            scope.spawn(move || {
                for number in client.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let path = if number % 8 == 0 { "/large" } else { "/small" };
                    let outcome = get(port, path);
                    outcomes.lock().unwrap().push(outcome);
                }
            });
        }
        work();
        over.store(true, Ordering::Relaxed);
    });
    outcomes.into_inner().unwrap()
}

/// Lines of a server that passes all on to these servers.
fn lines(backends: &[Backend], parameters: &str, block: &str) -> String {
    let servers = backends.iter().map(|backend| backend.port);
    let servers: String = servers
        .map(|port| format!("server 127.0.0.1:{port} {parameters};\n"))
        .collect();
    format!(
        "location / {{ proxy_pass http://u; }}
         [http]
         upstream u {{ zone u 256k; {block}\n{servers} }}"
    )
}

/// Sees to it that no request has failed, and names those that were broken off: they are of servers
/// that were killed.
fn judge(outcomes: &[Outcome], killed: &[usize], clients: usize) {
    let failed: Vec<_> = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Outcome::Failed(_)))
        .collect();
    assert!(
        failed.is_empty(),
        "{} of {}: {failed:#?}",
        failed.len(),
        outcomes.len()
    );
    let mut broken = 0;
    for outcome in outcomes {
        if let Outcome::Broken(name, received) = outcome {
            eprintln!("broken off by the end of server {name} after {received} bytes");
            assert!(killed.contains(name), "{outcome:?}");
            broken += 1;
        }
    }
    eprintln!("{} requests, {broken} broken off", outcomes.len());
    assert!(broken <= killed.len() * clients, "{broken}");
}

/// Three of four servers, one after the other: each answers again once it is there.
fn killed_servers_cost_no_request_whose_answer_had_not_begun(engine: &'static str) {
    const CLIENTS: usize = 8;
    let mut backends: Vec<Backend> = (0..4).map(Backend::start).collect();
    let lines = lines(&backends, "fail_timeout=1s", "");
    let server = Server::start_workers(2, engine, &lines);
    let outcomes = under_load(server.port, CLIENTS, || {
        for backend in &mut backends[..3] {
            thread::sleep(Duration::from_millis(300));
            backend.kill();
            thread::sleep(Duration::from_millis(400));
            backend.start_again();
            thread::sleep(Duration::from_millis(1100));
        }
    });
    judge(&outcomes, &[0, 1, 2], CLIENTS);
    let log = server.error_log();
    for backend in &backends[..3] {
        let told = format!("upstream: \"http://127.0.0.1:{}/", backend.port);
        assert!(
            log.contains(&told),
            "the end of {} went unnoticed",
            backend.port
        );
    }
    wait_for("answers of all", || {
        let asked = (0..8).map(|_| get(server.port, "/small"));
        let names: BTreeSet<_> = asked
            .filter_map(|outcome| match outcome {
                Outcome::Fine(name) => Some(name),
                _ => None,
            })
            .collect();
        names.len() == 4
    });
}

support::test_on_each_engine!(killed_servers_cost_no_request_whose_answer_had_not_begun);

/// The same with reloads in between, which lose none of what is known: neither requests under way
/// nor failures.
fn reloads_lose_no_request_and_no_counter(engine: &'static str) {
    const CLIENTS: usize = 6;
    if is_nginx() {
        return; // its workers begin anew
    }
    let mut backends: Vec<Backend> = (0..4).map(Backend::start).collect();
    let parameters = "fail_timeout=1s max_conns=10";
    let with = |number: usize| lines(&backends, parameters, &format!("# {number}\n"));
    let texts: Vec<String> = (0..=20).map(with).collect();
    let one_at_a_time = lines(&backends, "max_conns=1", "");
    let server = Server::start_workers(2, engine, &texts[0]);
    let reload = |text: &str| {
        let ended = |log: String| log.matches("reconfiguring").count();
        let before = ended(server.error_log());
        server.reload(text);
        wait_for("the reload", || ended(server.error_log()) > before);
    };
    let outcomes = under_load(server.port, CLIENTS, || {
        for (number, text) in texts.iter().enumerate().skip(1) {
            match number {
                5 => backends[1].kill(),
                10 => backends[1].start_again(),
                _ => {}
            }
            reload(text);
            thread::sleep(Duration::from_millis(60));
        }
    });
    judge(&outcomes, &[1], CLIENTS);
    // One that a request still counted at would get none.
    reload(&one_at_a_time);
    let mut names = Vec::new();
    wait_for("answers of all", || {
        names.clear();
        for _ in 0..8 {
            match get(server.port, "/small") {
                Outcome::Fine(name) => names.push(name),
                other => panic!("{other:?}"),
            }
        }
        names.sort_unstable();
        names == [0, 0, 1, 1, 2, 2, 3, 3]
    });
}

support::test_on_each_engine!(reloads_lose_no_request_and_no_counter);

/// Sessions stay with their servers, and idle connections go on, over twenty reloads.
fn reloads_keep_sessions_and_idle_connections(engine: &'static str) {
    if is_nginx() {
        return; // its workers begin anew
    }
    let backends: Vec<Backend> = (0..4).map(Backend::start).collect();
    let text = |number: usize| {
        // Whatever is written before them, locations are the same.
        let block = format!("sticky cookie session; {}", "# more\n".repeat(number));
        lines(&backends, "", &block)
    };
    let server = Server::start(engine, &text(0));
    let ask = |cookie: &str| {
        let mut client = server.connect();
        client
            .send("/small", &format!("Cookie: {cookie}\r\n"))
            .unwrap();
        let answer = client.receive(Duration::ZERO).unwrap();
        assert_eq!(answer.status, 200);
        let field = |name: &str| {
            let mut lines = answer.head.lines();
            lines.find_map(|line| line.strip_prefix(name).map(str::to_owned))
        };
        let connection = field("X-Connection: ").unwrap();
        (
            field("X-Name: ").unwrap(),
            connection,
            field("Set-Cookie: "),
        )
    };
    let sessions: Vec<_> = (0..4)
        .map(|_| {
            let (name, connection, cookie) = ask("none=1");
            let cookie = cookie.unwrap();
            (
                name,
                connection,
                cookie.split(';').next().unwrap().to_owned(),
            )
        })
        .collect();
    let names: BTreeSet<_> = sessions.iter().map(|(name, ..)| name).collect();
    assert_eq!(names.len(), 4);
    for number in 1..=20 {
        let ended = |log: String| log.matches("exited with code 0").count();
        let before = ended(server.error_log());
        server.reload(&text(number));
        wait_for("the reload", || ended(server.error_log()) > before);
        for (name, connection, cookie) in &sessions {
            let (by, on, _) = ask(cookie);
            let log = server.error_log();
            assert_eq!((&by, &on), (name, connection), "reload {number}: {log}");
        }
    }
}

support::test_on_each_engine!(reloads_keep_sessions_and_idle_connections);
