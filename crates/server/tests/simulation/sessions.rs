//! Sessions of `stream`, over TCP and UDP at once: bytes come back whole and in order, datagrams to
//! none but who has asked, each session has its line, and nothing is left of any of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use engine::net::{Address, Datagram, DatagramSocket, Listener, Stream};
use engine::select::{Either, either};
use engine::sim::{self, Faults};
use framework::counters::Counters;
use framework::workers::Worker;

use crate::random::Random;
use crate::server::{CONNECTIONS_MAX, generation, simulate};
use crate::{client, faults, seeds};

const SEEDS: u64 = 200;

/// Where clients come, over TCP and UDP.
const FRONT: &str = "10.0.0.1:7000";

/// The servers behind, over TCP and UDP; nothing is at the last one.
const BEHIND: [&str; 3] = ["10.0.2.1:7", "10.0.2.2:7", "10.0.2.3:7"];

/// How long a client of datagrams waits for what may still come.
const SILENCE: Duration = Duration::from_secs(3);

/// Longer than any time limit of the server.
const PATIENCE: Duration = Duration::from_secs(600);

fn address(text: &str) -> Address {
    Address::Inet(text.parse().unwrap())
}

/// What sessions have come to.
#[derive(Default)]
struct Outcome {
    /// What is wrong, if something is.
    wrong: RefCell<Option<String>>,
    /// Clients that are not done yet.
    left: Cell<usize>,
    /// Bytes that clients of TCP have sent and heard, one entry each.
    counted: RefCell<Vec<(usize, usize)>>,
}

impl Outcome {
    fn violated(&self, what: String) {
        self.wrong.borrow_mut().get_or_insert(what);
    }
}

/// A folder for logs, removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let name = format!("tidegate-simulation-sessions-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn configuration(folder: &Folder, random: &mut Random) -> String {
    let folder = folder.0.display();
    let mut one = |words: &[&'static str]| words[random.below(words.len())];
    let method = one(&[
        "",
        "least_conn;",
        "hash $remote_addr$remote_port;",
        "random two;",
        "p2c;",
    ]);
    let sticky = one(&["", "sticky learn lookup=$remote_addr zone=sessions:64k;"]);
    let buffer = one(&["512", "4k", "16k"]);
    let looks = one(&["", "ssl_preread on; preread_timeout 1s;"]);
    let upload = one(&["", "proxy_upload_rate 20k;"]);
    let requests = one(&["", "proxy_requests 3;", "proxy_responses 1;"]);
    let [a, b, nobody] = BEHIND;
    format!(
        "error_log {folder}/error.log info;
         events {{ }}
         stream {{
             log_format session '$protocol $status $bytes_received $bytes_sent';
             access_log {folder}/access.log session;
             upstream streams {{ {method} server {a}; server {b}; server {nobody}; {sticky} }}
             upstream datagrams {{ {method} server {a}; server {b}; }}
             server {{ listen {FRONT}; proxy_pass streams; proxy_buffer_size {buffer};
                 proxy_timeout 100s; {looks} {upload} }}
             server {{ listen {FRONT} udp; proxy_pass datagrams; proxy_timeout 2s; {requests} }}
         }}"
    )
}

/// Starts the servers behind, which say everything back after a while.
fn start_behind(random: &mut Random) {
    for place in &BEHIND[..2] {
        let (socket, _) = sim::listen(address(place)).unwrap();
        let mut random = random.fork();
        engine::spawn(async move {
            let listener = Listener::new(socket).unwrap();
            while let Ok(stream) = listener.accept().await {
                engine::spawn(echo(stream, random.fork()));
            }
        });
    }
    for place in &BEHIND[..2] {
        let socket = DatagramSocket::bind(&address(place)).unwrap();
        engine::spawn(async move {
            while let Ok(asked) = socket.recv().await {
                let answer = asked.with(Bytes::copy_from_slice(&asked.bytes));
                socket.push(answer);
                socket.start_send();
            }
        });
    }
}

async fn echo(stream: Stream, mut random: Random) {
    stream.set_send_timeout(PATIENCE);
    while let Ok(bytes) = stream.recv(None).await {
        if bytes.is_empty() {
            break;
        }
        engine::sleep(random.duration(Duration::from_millis(30))).await;
        stream.push(Bytes::copy_from_slice(&bytes));
        stream.start_send();
        if stream.drained(0).await.is_err() {
            return;
        }
    }
    stream.finish();
}

/// A client of TCP: sends in any pieces and must hear all of it, in order, unless the network breaks
/// connections.
async fn talk(outcome: Rc<Outcome>, mut random: Random, fragile: bool) {
    let most = [20, 2000, 60_000][random.below(3)];
    let length = 1 + random.below(most);
    // What no client of TLS begins with, so that looking at it ends with the first bytes.
    let text: Vec<u8> = (0..length).map(|at| b'a' + (at * 7 % 23) as u8).collect();
    let heard = converse(&text, &mut random).await;
    match heard {
        Ok(heard) if heard == text => outcome.counted.borrow_mut().push((length, length)),
        Ok(heard) | Err((heard, _)) if fragile && text.starts_with(&heard) => {}
        Ok(heard) => outcome.violated(format!("{} of {length} bytes, or others", heard.len())),
        Err((heard, why)) => outcome.violated(format!("{} of {length} bytes: {why}", heard.len())),
    }
    outcome.left.set(outcome.left.get() - 1);
}

/// Sends a text in pieces and hears as much; else what was heard, and why no more.
async fn converse(text: &[u8], random: &mut Random) -> Result<Vec<u8>, (Vec<u8>, String)> {
    let connected = client::connect(&address(FRONT)).await;
    let stream = Rc::new(connected.map_err(|why| (Vec::new(), why))?);
    stream.set_send_timeout(PATIENCE);
    let (sender, mut pace) = (Rc::clone(&stream), random.fork());
    let all = Bytes::copy_from_slice(text);
    engine::spawn(async move {
        let mut at = 0;
        while at < all.len() {
            let end = all.len().min(at + 1 + pace.below(5000));
            sender.push(all.slice(at..end));
            sender.start_send();
            if pace.chance(300) {
                engine::sleep(pace.duration(Duration::from_millis(200))).await;
            }
            at = end;
        }
    });
    let mut heard = Vec::new();
    while heard.len() < text.len() {
        match stream.recv(Some(engine::now() + PATIENCE)).await {
            Ok(bytes) if !bytes.is_empty() => heard.extend_from_slice(&bytes),
            Ok(_) => return Err((heard, "the end".into())),
            Err(error) => return Err((heard, error.to_string())),
        }
    }
    Ok(heard)
}

/// A client of UDP: whatever it hears is what it has said, and where the network loses nothing it
/// hears all of it.
async fn ask(outcome: Rc<Outcome>, mut random: Random, number: usize, is_kind: bool) {
    let socket = DatagramSocket::connect(&address(FRONT)).unwrap();
    let mut said = BTreeSet::new();
    let mut heard = BTreeSet::new();
    for question in 0..1 + random.below(8) {
        let mut text = format!("{number} {question} ").into_bytes();
        text.resize(text.len() + random.below(1200), b'x');
        said.insert(text.clone());
        socket.push(Datagram::new(text.into()));
        socket.start_send();
        let longest = [Duration::ZERO, SILENCE, 2 * SILENCE][random.below(3)];
        let wait = random.duration(longest);
        hear(&socket, &mut heard, wait).await;
    }
    hear(&socket, &mut heard, SILENCE).await;
    if !heard.is_subset(&said) {
        outcome.violated(format!("client {number} hears what it has not said"));
    }
    if is_kind && heard != said {
        let (heard, said) = (heard.len(), said.len());
        outcome.violated(format!("client {number} hears {heard} of {said} answers"));
    }
    outcome.left.set(outcome.left.get() - 1);
}

async fn hear(socket: &DatagramSocket, heard: &mut BTreeSet<Vec<u8>>, silence: Duration) {
    while let Either::First(Ok(datagram)) = either(socket.recv(), engine::sleep(silence)).await {
        heard.insert(datagram.bytes.to_vec());
    }
}

/// Some sessions of both kinds on some network; whether all was as it must be.
fn run(folder: &Folder, seed: u64) -> Result<(), String> {
    let mut random = Random(seed);
    let fragile = random.chance(300);
    let mut network: Faults = faults(&mut random, fragile);
    if random.chance(500) {
        (network.loss, network.duplicate, network.reorder) = (50, 50, 200);
    }
    // A mailbox that is full drops.
    network.window = network.window.max(20_000);
    let is_kind = network.loss == 0;
    simulate(seed, network, async || {
        let _ = fs::remove_file(folder.0.join("access.log"));
        start_behind(&mut random);
        let ended = Arc::new(AtomicUsize::new(0));
        let (compiled, ids) = generation(&configuration(folder, &mut random), &ended);
        let counters = Arc::new(Counters::default());
        let places = usize::try_from(8 * CONNECTIONS_MAX).unwrap();
        let counted = Arc::clone(&counters);
        let worker: Rc<Worker> = tidegate_server::protocols::worker(compiled, places, counted);
        let (streams, _) = sim::listen(address(FRONT)).unwrap();
        let datagrams = sim::bind_datagrams(&address(FRONT)).unwrap();
        let sockets = ids.into_iter().zip([streams, datagrams]);
        worker.listen(sockets.map(|(id, socket)| ((id, 0), socket)).collect());
        let outcome = Rc::new(Outcome::default());
        let clients = 2 + random.below(8);
        outcome.left.set(clients);
        for number in 0..clients {
            let (outcome, random) = (Rc::clone(&outcome), random.fork());
            if number % 2 == 0 {
                engine::spawn(talk(outcome, random, fragile));
            } else {
                engine::spawn(ask(outcome, random, number, is_kind));
            }
        }
        while outcome.left.get() > 0 {
            engine::sleep(Duration::from_millis(100)).await;
        }
        worker.quit();
        if let Either::Second(()) = either(worker.end(), engine::sleep(PATIENCE)).await {
            let open = counters.totals().active;
            return Err(format!("{open} sessions leaked"));
        }
        drop(worker);
        engine::sleep(Duration::from_millis(1)).await;
        logs::flush_all();
        if let Some(wrong) = outcome.wrong.take() {
            return Err(wrong);
        }
        if counters.totals().panics != 0 {
            return Err("a session panicked".into());
        }
        if ended.load(Ordering::Relaxed) != 1 {
            return Err("a session still holds the generation".into());
        }
        let log = fs::read_to_string(folder.0.join("access.log")).unwrap_or_default();
        for (received, sent) in outcome.counted.take() {
            let line = format!("TCP 200 {received} {sent}");
            if !log.lines().any(|known| known == line) {
                return Err(format!("\"{line}\" is not in the log:\n{log}"));
            }
        }
        Ok(())
    })
}

#[test]
fn sessions_of_both_kinds_lose_nothing_and_leave_nothing() {
    let folder = Folder::new();
    for seed in seeds(SEEDS) {
        if let Err(what) = run(&folder, seed) {
            panic!("SEED={seed}: {what}");
        }
    }
}
