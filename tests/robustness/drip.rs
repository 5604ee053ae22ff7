//! Bytes that drip: a peer that sends one at a time must not cost a buffer for each.
//!
//! Into every place that keeps bytes of a stream, several connections send a byte, a chunk of a
//! byte or a record of a byte at a time; the other side, where there is one, takes nothing. What
//! the worker's memory (PSS) grows by is compared with what nginx's grows by at the same place: at
//! most twice as much, and [`ROOM`] for each connection.
//!
//! All connections go over Unix sockets: there the kernel counts a block for each byte that is
//! sent, so that it takes few bytes before the server has to keep them.
//!
//! `NGINX_BINARY` names the nginx to compare with, default `/usr/sbin/nginx`. Without one it counts
//! as needing nothing.

use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use crate::client::wait_until;
use crate::server::{Server, Setup, on_each_engine};

/// Connections that drip at the same time.
const CONNECTIONS: usize = 8;

/// What each may cost beside what it costs nginx twice, in bytes.
const ROOM: usize = 64 * 1024;

/// How often each connection sends.
const ROUNDS: usize = 1500;

/// How often while everything is used for the first time, which is not counted.
const FIRST_ROUNDS: usize = 100;

/// How long the server has for what the connections have sent at once, so that it reads most pieces
/// by themselves.
const PAUSE: Duration = Duration::from_micros(60);

/// A place that keeps bytes.
#[derive(Clone, Copy)]
struct Place {
    name: &'static str,
    /// What each connection sends first.
    begin: &'static str,
    /// Who drips then.
    who: Who,
    /// What drips.
    drop: &'static str,
    /// How often that is sent at once.
    times: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Client,
    /// The client, each piece in a TLS record.
    Records,
    /// The client, the bytes of one large TLS record.
    OneRecord,
    /// The upstream, after a head.
    Upstream(&'static str),
}

macro_rules! place {
    ($name:literal, $who:expr, $target:literal, $fields:literal, $drop:literal $(* $times:literal)?) => {
        Place {
            name: $name,
            begin: concat!($target, " HTTP/1.1\r\nHost: a\r\n", $fields, "\r\n"),
            who: $who,
            drop: $drop,
            times: 1 $(* $times)?,
        }
    };
}

const LENGTH: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 100000\r\n\r\n";
const CHUNKED: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n";
const SWITCHED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: raw\r\n\r\n";

const PLACES: &[Place] = &[
    place!("a head", Who::Client, "GET /own", "Cookie: ", "x").unfinished(),
    place!(
        "a buffered body",
        Who::Client,
        "POST /buffered",
        "Content-Length: 20000\r\n",
        "x"
    ),
    place!(
        "a buffered body of chunks",
        Who::Client,
        "POST /buffered",
        "Transfer-Encoding: chunked\r\n",
        "1\r\nx\r\n"
    ),
    place!(
        "a buffered body of many chunks",
        Who::Client,
        "POST /buffered",
        "Transfer-Encoding: chunked\r\n",
        "1\r\nx\r\n" * 8
    ),
    place!(
        "a body that is put",
        Who::Client,
        "PUT /dav/a",
        "Content-Length: 20000\r\n",
        "x"
    ),
    place!(
        "a mirrored body",
        Who::Client,
        "POST /mirrored",
        "Content-Length: 20000\r\n",
        "x"
    ),
    place!(
        "trailers",
        Who::Client,
        "POST /buffered",
        "Transfer-Encoding: chunked\r\n\r\n0\r\nA: b",
        "x"
    )
    .unfinished(),
    place!(
        "a discarded body",
        Who::Client,
        "POST /own",
        "Content-Length: 20000\r\n",
        "x"
    ),
    place!(
        "a streamed body",
        Who::Client,
        "POST /streamed",
        "Content-Length: 200000\r\n",
        "x"
    ),
    place!(
        "a streamed body of chunks",
        Who::Client,
        "POST /streamed",
        "Transfer-Encoding: chunked\r\n",
        "1\r\nx\r\n" * 8
    ),
    place!(
        "pipelined requests",
        Who::Client,
        "GET /own",
        "",
        "GET /own HTTP/1.1\r\nHost: a\r\n\r\n"
    ),
    place!(
        "requests behind a slow one",
        Who::Client,
        "GET /buffered",
        "",
        "GET /own HTTP/1.1\r\nHost: a\r\n\r\n"
    ),
    place!(
        "a tunnel to an upstream",
        Who::Client,
        "GET /upgraded",
        "Upgrade: raw\r\nConnection: upgrade\r\n",
        "x"
    ),
    place!(
        "a tunnel to a client",
        Who::Upstream(SWITCHED),
        "GET /upgraded",
        "Upgrade: raw\r\nConnection: upgrade\r\n",
        "x"
    ),
    place!(
        "an upstream's head",
        Who::Upstream("HTTP/1.1 200 OK\r\nA: "),
        "GET /buffered",
        "",
        "x"
    ),
    place!("an answer", Who::Upstream(LENGTH), "GET /buffered", "", "x"),
    place!(
        "an answer in chunks",
        Who::Upstream(CHUNKED),
        "GET /buffered",
        "",
        "1\r\nx\r\n"
    ),
    place!(
        "an answer that is streamed",
        Who::Upstream(LENGTH),
        "GET /streamed",
        "",
        "x"
    ),
    place!(
        "an answer in chunks that is streamed",
        Who::Upstream(CHUNKED),
        "GET /streamed",
        "",
        "1\r\nx\r\n" * 4
    ),
    place!(
        "an answer in which strings are replaced",
        Who::Upstream(LENGTH),
        "GET /replaced",
        "",
        "x"
    ),
    place!(
        "an answer that is compressed",
        Who::Upstream(LENGTH),
        "GET /compressed",
        "Accept-Encoding: gzip\r\n",
        "x"
    ),
    place!(
        "an included answer",
        Who::Upstream(LENGTH),
        "GET /page.html",
        "",
        "x"
    ),
    place!(
        "records",
        Who::Records,
        "POST /buffered",
        "Content-Length: 20000\r\n",
        "x"
    ),
    place!(
        "a record",
        Who::OneRecord,
        "POST /buffered",
        "Content-Length: 20000\r\n",
        "x"
    ),
];

impl Place {
    /// Without the empty line at the end of what is sent first.
    const fn unfinished(self) -> Place {
        let bytes = self.begin.as_bytes();
        let Some((begin, _)) = bytes.split_at_checked(bytes.len() - 2) else {
            return self;
        };
        match std::str::from_utf8(begin) {
            Ok(begin) => Place { begin, ..self },
            Err(_) => self,
        }
    }
}

/// Who serves.
enum Program<'a> {
    Tidegate(&'a str),
    Nginx(&'a Path),
}

#[test]
fn bytes_that_drip_are_kept_together() {
    let nginx = std::env::var_os("NGINX_BINARY").map_or("/usr/sbin/nginx".into(), PathBuf::from);
    let only = std::env::var("TIDEGATE_PLACE").unwrap_or_default();
    let places: Vec<&Place> = PLACES
        .iter()
        .filter(|place| place.name.contains(&only))
        .collect();
    let theirs: Vec<usize> = if nginx.exists() {
        let program = Program::Nginx(&nginx);
        let growths = places
            .iter()
            .map(|place| growth(place, &program, usize::MAX));
        growths.collect()
    } else {
        vec![0; places.len()]
    };
    on_each_engine(|engine| {
        let mut faults = String::new();
        for (place, theirs) in places.iter().zip(&theirs) {
            let most = 2 * theirs + ROOM * CONNECTIONS;
            let ours = growth(place, &Program::Tidegate(engine), most);
            let line = format!(
                "{engine}: {}: {} KB; nginx {} KB, so at most {} KB",
                place.name,
                ours / 1024,
                theirs / 1024,
                most / 1024
            );
            println!("{line}");
            if ours > most {
                let _ = writeln!(faults, "{line}");
            }
        }
        assert!(faults.is_empty(), "more memory than may be:\n{faults}");
    });
}

/// What the worker's memory grows by while the connections of this place are open, in bytes. Where
/// that is more than `most`, it is looked at again for a while: a machine that is busy lets the
/// server come to what it has received.
fn growth(place: &Place, program: &Program<'_>, most: usize) -> usize {
    let engine = match program {
        Program::Tidegate(engine) => engine,
        Program::Nginx(_) => "epoll",
    };
    let tls = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls");
    let http = HTTP.replace("@TLS@", &tls.to_string_lossy());
    let setup = Setup::new(engine, &http).main("worker_processes 1;");
    let mut server = Server::lay_out(match program {
        Program::Tidegate(_) => setup,
        Program::Nginx(path) => setup.program(path),
    });
    let upstreams = upstream(&server.folder, place);
    server.file("page.html", PAGE);
    let dav = server.folder.join("www/dav");
    fs::create_dir_all(&dav).unwrap();
    fs::set_permissions(&dav, fs::Permissions::from_mode(0o777)).unwrap();
    server.launch();

    let worker = worker_of(&server);
    use_all_buffers(&server);
    drop(drip(place, &server, &upstreams, FIRST_ROUNDS, 1));
    std::thread::sleep(Duration::from_millis(50));
    let before = occupied(worker);
    let connections = drip(place, &server, &upstreams, ROUNDS, CONNECTIONS);
    let mut grown = usize::MAX;
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(50));
        grown = grown.min(occupied(worker).saturating_sub(before));
        if grown <= most {
            break;
        }
    }
    drop(connections);
    grown
}

/// The process that serves: sockets may be open before it runs.
fn worker_of(server: &Server) -> u32 {
    wait_until("there is a worker", || server.worker().is_some());
    server.worker().expect("has a worker")
}

/// Has the server touch the buffers that it has from the start on, which are no connection's.
fn use_all_buffers(server: &Server) {
    const LENGTH: usize = 8 * 1024 * 1024;
    let mut client = server.connect();
    client.send(format!(
        "POST /own HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n"
    ));
    client.send(vec![b'x'; LENGTH]);
    assert_eq!(client.response().status, 200);
}

const HTTP: &str = r"
    access_log off; client_body_timeout 300s; send_timeout 300s; proxy_read_timeout 300s;
    client_max_body_size 0; proxy_http_version 1.1; keepalive_requests 100000;
    server {
        listen 127.0.0.1:@PORT@;
        listen unix:@FOLDER@/client;
        listen unix:@FOLDER@/secure ssl;
        ssl_certificate @TLS@/ecdsa.crt; ssl_certificate_key @TLS@/ecdsa.key;
        root @ROOT@;
        ssi on;
        location /own { return 200 own; }
        location /dav { dav_methods PUT; client_body_buffer_size 16k; }
        location /buffered { proxy_pass http://unix:@FOLDER@/upstream:; }
        location /streamed {
            proxy_pass http://unix:@FOLDER@/upstream:; proxy_request_buffering off; proxy_buffering off;
        }
        location /mirrored { mirror /buffered; proxy_pass http://unix:@FOLDER@/upstream:; }
        location /upgraded {
            proxy_pass http://unix:@FOLDER@/upstream:;
            proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
        }
        location /replaced {
            proxy_pass http://unix:@FOLDER@/upstream:; sub_filter xx yy; sub_filter_once off;
        }
        location /compressed {
            proxy_pass http://unix:@FOLDER@/upstream:; proxy_buffering off; gzip on; gzip_min_length 0;
        }
    }";

/// Its second part comes while the first one does not.
const PAGE: &[u8] =
    b"<!--# include virtual=\"/buffered/never\" --><!--# include virtual=\"/buffered/drip\" -->";

/// What holds the connections of a place open.
type Connections = (Vec<UnixStream>, Vec<UnixStream>);

/// Opens the connections of a place and lets them drip so often, or until they can send no more.
fn drip(
    place: &Place,
    server: &Server,
    upstreams: &Receiver<UnixStream>,
    rounds: usize,
    count: usize,
) -> Connections {
    let is_secure = matches!(place.who, Who::Records | Who::OneRecord);
    let name = if is_secure { "secure" } else { "client" };
    let mut sessions = Vec::new();
    let mut clients = Vec::new();
    let mut asked = Vec::new();
    for _ in 0..count {
        let mut stream = UnixStream::connect(server.folder.join(name)).expect("connects");
        if is_secure {
            let mut session = session();
            while session.is_handshaking() {
                session.complete_io(&mut stream).expect("shakes hands");
            }
            stream
                .write_all(&sealed(&mut session, place.begin.as_bytes()))
                .unwrap();
            sessions.push(session);
        } else {
            stream.write_all(place.begin.as_bytes()).unwrap();
        }
        if let Who::Upstream(_) = place.who {
            let patience = Duration::from_secs(20);
            asked.push(
                upstreams
                    .recv_timeout(patience)
                    .expect("the upstream is asked"),
            );
        }
        clients.push(stream);
    }
    // One large record of which a byte at a time is sent, or a record for each byte.
    let whole: Vec<Vec<u8>> = match place.who {
        Who::OneRecord => sessions
            .iter_mut()
            .map(|session| sealed(session, &[b'x'; 15_000]))
            .collect(),
        _ => Vec::new(),
    };
    let senders = match place.who {
        Who::Upstream(_) => &mut asked,
        _ => &mut clients,
    };
    let piece = place.drop.repeat(place.times).into_bytes();
    // A record that could not be sent must be before the next one.
    let mut unsent: Vec<Option<Vec<u8>>> = vec![None; count];
    for sender in senders.iter() {
        sender.set_nonblocking(true).unwrap();
    }
    let mut blocked = 0;
    for round in 0..rounds {
        for (at, sender) in senders.iter_mut().enumerate() {
            let sent = match place.who {
                Who::Records => {
                    let session = &mut sessions[at];
                    let record = unsent[at].take().unwrap_or_else(|| sealed(session, &piece));
                    let sent = sender.write(&record);
                    unsent[at] = sent.is_err().then_some(record);
                    sent
                }
                Who::OneRecord => sender.write(&whole[at][round..=round]),
                _ => sender.write(&piece),
            };
            match sent {
                Ok(_) => blocked = 0,
                Err(error) if error.kind() == ErrorKind::WouldBlock => blocked += 1,
                Err(error) => panic!("{}: {error}", place.name),
            }
        }
        std::thread::sleep(PAUSE);
        if blocked > 50 * count {
            break; // all is full
        }
    }
    (clients, asked)
}

fn session() -> ClientConnection {
    let config = support::tls::Client::new().protocol("http/1.1").config();
    let name = ServerName::try_from("localhost").unwrap();
    ClientConnection::new(Arc::new(config), name).unwrap()
}

/// Records that carry these bytes.
fn sealed(session: &mut ClientConnection, bytes: &[u8]) -> Vec<u8> {
    let mut records = Vec::new();
    session.writer().write_all(bytes).unwrap();
    while session.wants_write() {
        session.write_tls(&mut records).unwrap();
    }
    records
}

/// An upstream that reads heads and nothing more. What it answers with comes from the place; then
/// its connections go to the test.
fn upstream(folder: &Path, place: &Place) -> Receiver<UnixStream> {
    let answer = match (place.who, place.begin.contains("/upgraded")) {
        (Who::Upstream(answer), _) => answer,
        (_, true) => SWITCHED,
        (_, false) => "",
    };
    let path = folder.join("upstream");
    let listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for mut stream in listener.incoming().flatten() {
            let Some(head) = head(&stream) else { continue };
            if head.contains("/never ") {
                silent.push(stream);
                continue;
            }
            if stream.write_all(answer.as_bytes()).is_err() {
                continue;
            }
            if sender.send(stream).is_err() {
                return;
            }
        }
    });
    receiver
}

fn head(mut stream: &UnixStream) -> Option<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => bytes.push(byte[0]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The proportional set size of a process in bytes, without the program itself: how much of that
/// counts depends on the other processes that run it.
fn occupied(process: u32) -> usize {
    let path = format!("/proc/{process}/smaps_rollup");
    let text = fs::read_to_string(&path).expect("is readable");
    let kilobytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.expect("is told").trim().trim_end_matches("kB").trim();
        number.parse::<usize>().expect("a number")
    };
    (kilobytes("Pss:") - kilobytes("Pss_File:")) * 1024
}

/// After a busy time the memory is given back.
#[test]
fn memory_is_given_back() {
    const MANY: usize = 100;
    const EACH: usize = 200_000;
    on_each_engine(|engine| {
        let http = "client_body_buffer_size 256k; client_max_body_size 0;
            server { listen 127.0.0.1:@PORT@; location / { proxy_pass http://127.0.0.1:1; } location /own { return 200 own; } }";
        let server = Setup::new(engine, http).main("worker_processes 1;").start();
        let worker = worker_of(&server);
        let busy = || {
            let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {EACH}\r\n\r\n");
            let mut clients: Vec<_> = (0..MANY).map(|_| server.connect()).collect();
            let piece = vec![b'x'; 5000];
            for client in &mut clients {
                client.send(&head);
            }
            for _ in 0..EACH / piece.len() - 1 {
                for client in &mut clients {
                    client.send(&piece);
                }
            }
            clients
        };
        use_all_buffers(&server);
        let before = occupied(worker);
        let clients = busy();
        let grown = || occupied(worker).saturating_sub(before);
        wait_until("the bodies are kept", || grown() > MANY * EACH / 4 * 3);
        drop(clients);
        wait_until("the memory is given back", || grown() < MANY * EACH / 10);
    });
}
