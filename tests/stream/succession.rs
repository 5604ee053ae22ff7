//! Sessions of datagrams go on in the worker process where they began, while others take its place.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use support::is_nginx;
use support::master::{Master, wait_for};
use support::port::free_port;

use super::{configure, each_engine};

/// Tells everybody from which port a datagram came, in two bytes before what was sent: one session
/// of a proxy has one port.
fn echo_behind_ports() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut buffer = vec![0; 65536];
        while let Ok((count, client)) = socket.recv_from(&mut buffer) {
            let sent = &buffer[..count.min(65_505)]; // the longest has no room for more
            let answer = [&client.port().to_be_bytes()[..], sent].concat();
            socket.send_to(&answer, client).unwrap();
        }
    });
    port
}

struct Client(UdpSocket);

impl Client {
    fn of(port: u16) -> Client {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", port)).unwrap();
        let patience = Some(Duration::from_secs(20));
        socket.set_read_timeout(patience).unwrap();
        Client(socket)
    }

    /// Sends something and has it back; the session that it was of.
    fn session_of(&self, bytes: &[u8]) -> u16 {
        self.0.send(bytes).unwrap();
        let mut buffer = vec![0; 65536];
        loop {
            match self.0.recv(&mut buffer) {
                Ok(count) => {
                    let (port, heard) = buffer[..count].split_first_chunk().unwrap();
                    assert!(bytes.starts_with(heard) && heard.len() + 2 >= bytes.len());
                    return u16::from_be_bytes(*port);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("{error}: a datagram is lost"),
            }
        }
    }

    fn session(&self) -> u16 {
        self.session_of(b"whose")
    }
}

/// A server of datagrams before `behind`, by so many threads.
fn write(master: &Master, engine: &str, threads: usize, lines: &str) {
    configure(master, engine, lines);
    let path = master.folder.join("nginx.conf");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("worker_processes {threads};\n{text}")).unwrap();
}

fn reload(master: &Master) {
    let (code, said) = master.run(&["-s", "reload"]);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn sessions_go_on_when_processes_take_the_place_of_others() {
    if is_nginx() {
        return; // its sessions of datagrams end with their process
    }
    let behind = echo_behind_ports();
    for engine in each_engine() {
        for option in ["", " reuseport"] {
            let port = free_port();
            let lines = format!(
                "server {{ listen 127.0.0.1:{port} udp{option}; proxy_pass 127.0.0.1:{behind};
                     proxy_timeout 60s; }}"
            );
            let mut master = Master::new();
            write(&master, engine, 1, &lines);
            master.start();
            let mut known: Vec<(Client, u16)> = Vec::new();
            let mut workers = master.workers();
            for threads in [3, 2, 1] {
                for _ in 0..8 {
                    let client = Client::of(port);
                    let session = client.session();
                    known.push((client, session));
                }
                write(&master, engine, threads, &lines);
                reload(&master);
                workers.extend(master.workers());
                // Those of every process so far, and of any length.
                for bytes in [&b""[..], &vec![b'x'; 65_507], b"one"] {
                    for (client, session) in &known {
                        assert_eq!(client.session_of(bytes), *session);
                    }
                }
            }
            workers.sort_unstable();
            workers.dedup();
            assert_eq!(workers.len(), 4, "{workers:?}");
            let info = master.read("logs/info.log");
            assert_eq!(info.matches("udp proxy").count(), known.len(), "{info}");
            // A client that has said nothing yet is the last process's.
            let late = Client::of(port);
            assert_eq!(late.session(), late.session());
            // Nobody receives any more: all of them end.
            master.signal("QUIT");
            wait_for("the end of all processes", || {
                let info = master.read("logs/info.log");
                info.matches("disconnected on shutdown").count() == known.len() + 1
            });
        }
    }
}

/// A process that has no session left ends, and what it was asked about is lost by nobody.
#[test]
fn a_process_without_sessions_ends_while_others_begin() {
    if is_nginx() {
        return;
    }
    let behind = echo_behind_ports();
    for engine in each_engine() {
        let port = free_port();
        let lines = |time: &str| {
            format!(
                "server {{ listen 127.0.0.1:{port} udp; proxy_pass 127.0.0.1:{behind};
                     proxy_timeout {time}; }}"
            )
        };
        let mut master = Master::new();
        write(&master, engine, 2, &lines("300ms"));
        master.start();
        let before = Client::of(port);
        let session = before.session();
        let old = master.workers();
        write(&master, engine, 1, &lines("60s"));
        reload(&master);
        assert_eq!(before.session(), session);
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut asked = 0;
        while master.workers().iter().any(|pid| old.contains(pid)) {
            let client = Client::of(port);
            assert_eq!(client.session(), client.session());
            asked += 1;
            assert!(Instant::now() < deadline, "it does not end");
        }
        assert!(asked > 1);
        assert_ne!(before.session(), session, "its time was over");
    }
}

/// Sessions may be given a time to end: it holds here as well.
#[test]
fn a_limit_ends_sessions_of_the_process_before() {
    if is_nginx() {
        return;
    }
    let behind = echo_behind_ports();
    for engine in each_engine() {
        let port = free_port();
        let lines =
            format!("server {{ listen 127.0.0.1:{port} udp; proxy_pass 127.0.0.1:{behind}; }}");
        let write = |master: &Master, threads| {
            write(master, engine, threads, &lines);
            let path = master.folder.join("nginx.conf");
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::write(&path, format!("worker_shutdown_timeout 1s;\n{text}")).unwrap();
        };
        let mut master = Master::new();
        write(&master, 1);
        master.start();
        let client = Client::of(port);
        let session = client.session();
        write(&master, 2);
        reload(&master);
        assert_eq!(client.session(), session);
        // What is under way when the session ends is lost with it.
        let brief = Some(Duration::from_millis(300));
        client.0.set_read_timeout(brief).unwrap();
        wait_for("another session", || {
            client.0.send(b"whose").unwrap();
            let mut answer = [0; 7];
            client.0.recv(&mut answer).is_ok() && !answer.starts_with(&session.to_be_bytes())
        });
    }
}
