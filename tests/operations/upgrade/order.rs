//! Signals in every order: what the two programs of an upgrade are, and what each signal to either
//! makes of them, as states and a table. A walk over all of them sends each signal in each state
//! and waits for what the table says. nginx alone walks the same way, so the table is nginx's.

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use support::PATIENCE;
use support::master::{Master, wait_for};
use support::port::free_port;

use crate::upgrade::place::{
    EndOfAll, Kind, is_alive, nginx, put, site, start_in_background, title,
};

/// A master, and whether it has workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Program {
    kind: Kind,
    serves: bool,
}

/// What there is. A program that is alone is the older one, also where it has followed another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    older: Option<Program>,
    newer: Option<Program>,
}

const NOTHING: State = State {
    older: None,
    newer: None,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Target {
    Older,
    Newer,
}

const SIGNALS: [&str; 5] = ["USR2", "WINCH", "HUP", "QUIT", "TERM"];

/// Which kind follows a kind by USR2.
type Successor = fn(Kind) -> Kind;

/// The state behind a signal; none where no one would get it.
fn after(state: State, target: Target, signal: &str, successor: Successor) -> Option<State> {
    let State { older, newer } = state;
    let program = match target {
        Target::Older => older?,
        Target::Newer => newer?,
    };
    let serving = |kind| Some(Program { kind, serves: true });
    let changed = |serves| {
        let program = Some(Program { serves, ..program });
        match target {
            Target::Older => State {
                older: program,
                newer,
            },
            Target::Newer => State {
                older,
                newer: program,
            },
        }
    };
    Some(match signal {
        "USR2" if newer.is_none() => State {
            older,
            newer: serving(successor(program.kind)),
        },
        // Two are enough.
        "USR2" => state,
        "WINCH" => changed(false),
        "HUP" => changed(true),
        // The one that is left is alone, and serves in any case if it is the older one.
        _ => match target {
            Target::Older => State {
                older: newer,
                newer: None,
            },
            Target::Newer => State {
                older: older.and_then(|older| serving(older.kind)),
                newer: None,
            },
        },
    })
}

/// The signals that lead from a state to the next one in which something is untried, that one last.
fn way(
    from: State,
    tried: &HashSet<(State, Target, &'static str)>,
    successor: Successor,
) -> Option<Vec<(Target, &'static str)>> {
    let mut seen = HashSet::from([from]);
    let mut queue = VecDeque::from([(from, Vec::new())]);
    while let Some((state, way)) = queue.pop_front() {
        for target in [Target::Older, Target::Newer] {
            for signal in SIGNALS {
                let Some(next) = after(state, target, signal, successor) else {
                    continue;
                };
                let mut way = way.clone();
                way.push((target, signal));
                if !tried.contains(&(state, target, signal)) {
                    return Some(way);
                }
                if seen.insert(next) {
                    queue.push_back((next, way));
                }
            }
        }
    }
    None
}

/// The two masters, and the folder that they have in common.
struct Pair {
    all: EndOfAll,
    site: Master,
    port: u16,
    udp: Option<u16>,
    older: Option<u32>,
    newer: Option<u32>,
}

impl Pair {
    fn new() -> Option<Pair> {
        let nginx = nginx()?;
        let (port, second, udp) = (free_port(), free_port(), free_port());
        let version = Command::new(&nginx).arg("-V").output().unwrap().stderr;
        let has_stream = String::from_utf8_lossy(&version).contains("--with-stream ");
        let servers = format!(
            "server {{ listen 127.0.0.1:{port}; listen unix:@/socket; \
             listen 127.0.0.1:{second} reuseport; root @/www; }}"
        );
        let stream = format!(
            "stream {{ server {{ listen 127.0.0.1:{udp} udp reuseport; return datagram; }} \
             server {{ listen unix:@/stream; return stream; }} }}"
        );
        let other_blocks = if has_stream { stream.as_str() } else { "" };
        let site = site("worker_processes 2;", &servers, other_blocks);
        Some(Pair {
            all: EndOfAll(site.folder.clone()),
            site,
            port,
            udp: has_stream.then_some(udp),
            older: None,
            newer: None,
        })
    }

    fn start(&mut self, kind: Kind) {
        put(&self.site.folder, kind);
        self.older = Some(start_in_background(&self.all, "sbin/nginx"));
        self.newer = None;
    }

    /// Sends a signal to a master, and waits until that says so in the log.
    fn send(&self, target: Target, signal: &str) {
        let pid = match target {
            Target::Older => self.older,
            Target::Newer => self.newer,
        };
        let pid = pid.unwrap();
        let workers = support::children(pid);
        let (of_process, received) = (format!(" {pid}#"), format!("(SIG{signal}) received"));
        let count = || {
            let log = self.site.read("logs/error.log");
            let is_it = |line: &&str| line.contains(&of_process) && line.contains(&received);
            log.lines().filter(is_it).count()
        };
        let before = count();
        support::signal(pid, signal);
        wait_for("line about the signal", || count() > before);
        let is_nginx = self.program(Some(pid)).map(|program| program.kind) == Some(Kind::Nginx);
        if signal == "HUP" && is_nginx {
            self.wait_for_workers_of_nginx(pid, &workers);
        }
    }

    /// Waits until an nginx has done what HUP has told it. `before` are its children until then.
    fn wait_for_workers_of_nginx(&self, pid: u32, before: &[u32]) {
        let is_new = |worker: &u32| !before.contains(worker);
        let workers = || support::children(pid);
        if self.newer.is_none_or(|newer| newer == pid) {
            // In the middle of a reload QUIT may leave workers behind.
            return wait_for("end of the reload", || workers().iter().all(is_new));
        }
        // It has forgotten that it has workers until one ends, and QUIT would leave them behind.
        wait_for("further workers", || workers().iter().any(is_new));
        let worker = workers().into_iter().find(is_new).unwrap();
        support::signal(worker, "TERM");
        wait_for("another worker", || !workers().contains(&worker));
    }

    /// Looks who else is in the pid file.
    fn find_newer(&mut self) {
        let named = self.all.pid("nginx.pid");
        if self.newer.is_none() && named != self.older {
            self.newer = named;
        }
    }

    /// What a master is, if it runs.
    fn program(&self, master: Option<u32>) -> Option<Program> {
        let master = master.filter(|pid| is_alive(*pid))?;
        let program = fs::read_link(format!("/proc/{master}/exe")).unwrap_or_default();
        let kind = if program.ends_with("tidegate") {
            Kind::Tidegate
        } else {
            Kind::Nginx
        };
        let is_worker = |pid: &u32| {
            let title = title(*pid);
            title.contains("worker process") && !title.contains("shutting down")
        };
        let serves = support::children(master).iter().any(is_worker);
        Some(Program { kind, serves })
    }

    /// What there is, as far as processes tell.
    fn state(&self) -> State {
        let (older, newer) = (self.program(self.older), self.program(self.newer));
        match older {
            None => State {
                older: newer,
                newer: None,
            },
            Some(_) => State { older, newer },
        }
    }

    /// What is not as it should be in a state.
    fn faults(&mut self, state: State) -> Vec<String> {
        let seen = self.state();
        if seen != state {
            return vec![format!("{seen:?}")];
        }
        if self.older.is_some_and(|pid| !is_alive(pid)) {
            self.older = self.newer.take();
        }
        if self.newer.is_some_and(|pid| !is_alive(pid)) {
            self.newer = None;
        }
        let mut faults = Vec::new();
        let (first, second) = match self.newer {
            Some(newer) => (Some(newer), self.older),
            None => (self.older, None),
        };
        for (name, expected) in [("nginx.pid", first), ("nginx.pid.oldbin", second)] {
            let found = self.all.pid(name);
            if found != expected {
                faults.push(format!("{name} has {found:?} and not {expected:?}"));
            }
        }
        let mut sockets = vec!["socket"];
        sockets.extend(self.udp.map(|_| "stream"));
        for name in sockets {
            let path = self.site.folder.join(name);
            if path.exists() != (state != NOTHING) {
                faults.push(format!("{name}: {}", path.exists()));
            }
        }
        faults
    }

    /// That every kind of socket is answered.
    fn ask(&self) {
        const REQUEST: &[u8] = b"GET /small HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        fn answer(mut stream: impl Read + Write, request: &[u8]) -> String {
            stream.write_all(request).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        }
        let tcp = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(answer(tcp, REQUEST).ends_with("small"));
        let unix = |name| {
            let stream = UnixStream::connect(self.site.folder.join(name)).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream
        };
        assert!(answer(unix("socket"), REQUEST).ends_with("small"));
        if let Some(port) = self.udp {
            assert_eq!(answer(unix("stream"), b""), "stream");
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.send_to(b"x", ("127.0.0.1", port)).unwrap();
            let mut buffer = [0; 16];
            let (length, _) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"datagram");
        }
    }
}

/// Sends every signal in every state that comes about.
fn walk(first: Kind, successor: Successor) {
    let Some(mut pair) = Pair::new() else { return };
    let mut tried = HashSet::new();
    let mut state = NOTHING;
    let mut trace = Vec::new();
    loop {
        if state == NOTHING {
            pair.start(first);
            let serves = true;
            state.older = Some(Program {
                kind: first,
                serves,
            });
            trace.clear();
        }
        let Some(way) = way(state, &tried, successor) else {
            break;
        };
        for (target, signal) in way {
            let next = after(state, target, signal, successor).unwrap();
            tried.insert((state, target, signal));
            trace.push((target, signal));
            let followed = match target {
                Target::Older => state.older,
                Target::Newer => state.newer,
            };
            put(&pair.site.folder, successor(followed.unwrap().kind));
            pair.send(target, signal);
            let start = Instant::now();
            loop {
                pair.find_newer();
                let faults = pair.faults(next);
                if faults.is_empty() {
                    break;
                }
                let log = pair.site.read("logs/error.log");
                assert!(
                    start.elapsed() < PATIENCE,
                    "after {trace:?}, instead of {next:?}: {faults:?}\n{log}"
                );
                std::thread::sleep(Duration::from_millis(5));
            }
            state = next;
            let mut programs = [state.older, state.newer].into_iter().flatten();
            if programs.any(|program| program.serves) {
                pair.ask();
            }
            if state == NOTHING {
                break;
            }
        }
    }
    // Two masters, each of which serves or not, and one; times five signals.
    assert!(tried.len() >= 50, "{}", tried.len());
}

#[test]
fn nginx_and_nginx() {
    walk(Kind::Nginx, |_| Kind::Nginx);
}

#[test]
fn tidegate_and_tidegate() {
    walk(Kind::Tidegate, |_| Kind::Tidegate);
}

#[test]
fn nginx_and_tidegate_by_turns() {
    walk(Kind::Nginx, |kind| match kind {
        Kind::Nginx => Kind::Tidegate,
        Kind::Tidegate => Kind::Nginx,
    });
}
