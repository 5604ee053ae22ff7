//! Sessions of both kinds while the configuration is read again and again, and while servers behind
//! end and come back.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use support::is_nginx;
use support::master::{Master, wait_for};
use support::port::free_port;

use super::{configure, connect, each_engine, echo, rest, say, start};

/// Clients that go on until they are told to stop.
struct Clients {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicUsize>,
    running: Vec<JoinHandle<()>>,
}

impl Clients {
    fn new() -> Clients {
        Clients {
            stop: Arc::default(),
            rounds: Arc::default(),
            running: Vec::new(),
        }
    }

    fn run(&mut self, mut round: impl FnMut(u32) + Send + 'static) {
        let (stop, rounds) = (Arc::clone(&self.stop), Arc::clone(&self.rounds));
        self.running.push(thread::spawn(move || {
            let mut number = 0;
            while !stop.load(Ordering::SeqCst) {
                number += 1;
                round(number);
                rounds.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }

    /// Waits until each has done something more.
    fn wait_for_rounds(&self) {
        let wanted = self.rounds.load(Ordering::SeqCst) + 10 * self.running.len();
        wait_for("rounds of clients", || {
            self.rounds.load(Ordering::SeqCst) >= wanted
        });
    }

    fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.running {
            thread.join().unwrap();
        }
    }
}

/// Says each datagram back behind the port that it came from, which is one session's; the port.
fn echo_datagrams() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((count, client)) = socket.recv_from(&mut buffer) {
            let answer = [&client.port().to_be_bytes()[..], &buffer[..count]].concat();
            socket.send_to(&answer, client).unwrap();
        }
    });
    port
}

/// Sends a datagram and awaits it back; the session that it was of.
fn exchange(client: &UdpSocket, bytes: &[u8]) -> [u8; 2] {
    client.send(bytes).unwrap();
    let mut buffer = [0; 2048];
    loop {
        match client.recv(&mut buffer) {
            Ok(count) => {
                let (session, heard) = buffer[..count].split_first_chunk().unwrap();
                assert_eq!(heard, bytes);
                return *session;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}: a datagram is lost"),
        }
    }
}

#[test]
fn reloads_cut_no_session() {
    if is_nginx() {
        return; // its sessions of datagrams end with their process
    }
    let (upstream, datagrams) = (echo(), echo_datagrams());
    for engine in each_engine() {
        let (port, brief) = (free_port(), free_port());
        let mut master = Master::new();
        let lines = |master: &Master, number: u32| {
            configure(
                master,
                engine,
                &format!(
                    "server {{ listen 127.0.0.1:{port}; proxy_pass 127.0.0.1:{upstream};
                         proxy_timeout {number}h; }}
                     server {{ listen 127.0.0.1:{port} udp; proxy_pass 127.0.0.1:{datagrams};
                         proxy_timeout {number}h; }}
                     server {{ listen 127.0.0.1:{brief} udp; proxy_pass 127.0.0.1:{datagrams};
                         proxy_requests 2; proxy_responses 1; }}"
                ),
            );
            // A reload that needs a new worker process, twice of twenty times.
            let path = master.folder.join("nginx.conf");
            let text = std::fs::read_to_string(&path).unwrap();
            let threads = 1 + number / 8;
            std::fs::write(&path, format!("worker_processes {threads};\n{text}")).unwrap();
        };
        lines(&master, 1);
        master.start();
        let mut clients = Clients::new();
        for _ in 0..3 {
            let mut client = connect(port);
            clients.run(move |number| say(&mut client, &number.to_le_bytes()));
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.connect(("127.0.0.1", port)).unwrap();
            client
                .set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            let session = exchange(&client, b"first");
            clients.run(move |number| {
                assert_eq!(exchange(&client, &number.to_le_bytes()), session);
            });
        }
        // Sessions that begin meanwhile.
        clients.run(move |number| {
            let mut client = connect(port);
            say(&mut client, &number.to_le_bytes());
        });
        for _ in 0..4 {
            clients.run(move |number| {
                let client = UdpSocket::bind("127.0.0.1:0").unwrap();
                client.connect(("127.0.0.1", brief)).unwrap();
                let patience = Some(Duration::from_secs(20));
                client.set_read_timeout(patience).unwrap();
                let session = exchange(&client, &number.to_le_bytes());
                assert_eq!(exchange(&client, b"more"), session);
            });
        }
        let mut workers = master.workers();
        for number in 2..=21 {
            lines(&master, number);
            let (code, said) = master.run(&["-s", "reload"]);
            assert_eq!(code, Some(0), "{said}");
            clients.wait_for_rounds();
            workers.extend(master.workers());
        }
        workers.sort_unstable();
        workers.dedup();
        assert_eq!(workers.len(), 3, "{workers:?}");
        clients.end();
    }
}

/// A server behind that can be ended with all its connections, and started again.
struct Behind {
    port: u16,
    open: Arc<Mutex<Vec<TcpStream>>>,
    is_up: Arc<AtomicBool>,
    sessions: Arc<AtomicUsize>,
}

impl Behind {
    fn new() -> Behind {
        let behind = Behind {
            port: free_port(),
            open: Arc::default(),
            is_up: Arc::default(),
            sessions: Arc::default(),
        };
        behind.begin();
        behind
    }

    fn begin(&self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        self.is_up.store(true, Ordering::SeqCst);
        let (open, is_up, sessions) = (
            Arc::clone(&self.open),
            Arc::clone(&self.is_up),
            Arc::clone(&self.sessions),
        );
        thread::spawn(move || {
            while is_up.load(Ordering::SeqCst) {
                let Ok((mut client, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                };
                client.set_nonblocking(false).unwrap();
                open.lock().unwrap().push(client.try_clone().unwrap());
                sessions.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || {
                    let mut buffer = [0; 1024];
                    while let Ok(count @ 1..) = client.read(&mut buffer) {
                        if client.write_all(&buffer[..count]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
    }

    fn end(&self) {
        self.is_up.store(false, Ordering::SeqCst);
        wait_for("closed server", || {
            TcpStream::connect(("127.0.0.1", self.port)).is_err()
        });
        for client in self.open.lock().unwrap().drain(..) {
            let _ = client.shutdown(Shutdown::Both);
        }
    }
}

/// New sessions reach a server that lives while the other is ended and started under them.
#[test]
fn sessions_find_the_server_that_lives() {
    for engine in each_engine() {
        let servers = [Behind::new(), Behind::new()];
        let port = free_port();
        let _master = start(
            engine,
            &format!(
                "upstream group {{ zone group 64k; server 127.0.0.1:{} fail_timeout=1s;
                     server 127.0.0.1:{} fail_timeout=1s; }}
                 server {{ listen 127.0.0.1:{port}; proxy_pass group; proxy_connect_timeout 2s; }}",
                servers[0].port, servers[1].port
            ),
        );
        let mut clients = Clients::new();
        let longest = Arc::<Mutex<Duration>>::default();
        for _ in 0..3 {
            let longest = Arc::clone(&longest);
            clients.run(move |_| {
                let began = Instant::now();
                // A session whose server ends has to begin again.
                loop {
                    let mut client = connect(port);
                    let mut heard = [0; 5];
                    if client.write_all(b"hello").is_ok() && client.read_exact(&mut heard).is_ok() {
                        assert_eq!(&heard, b"hello");
                        break;
                    }
                }
                let mut longest = longest.lock().unwrap();
                *longest = longest.max(began.elapsed());
                drop(longest);
                thread::sleep(Duration::from_millis(2));
            });
        }
        clients.wait_for_rounds();
        for round in 0..6 {
            let (ends, lives) = (&servers[round % 2], &servers[(round + 1) % 2]);
            ends.end();
            let before = lives.sessions.load(Ordering::SeqCst);
            clients.wait_for_rounds();
            assert!(lives.sessions.load(Ordering::SeqCst) > before);
            let before = ends.sessions.load(Ordering::SeqCst);
            ends.begin();
            wait_for("sessions on the server that is back", || {
                ends.sessions.load(Ordering::SeqCst) > before
            });
        }
        clients.end();
        let longest = *longest.lock().unwrap();
        // Connecting may take so long, at each of two servers, and the machine is busy.
        assert!(
            longest < 2 * Duration::from_secs(2) + Duration::from_secs(2),
            "{longest:?}"
        );
        let mut client = connect(port);
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&mut client), b"");
    }
}
