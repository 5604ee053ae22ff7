//! The server over the simulated engine: its worker code as it is, on this thread's runtime.

use std::fs;
use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use conf::{RecordedFiles, Recording};
use engine::net::{Address, BoundSocket, Listener};
use engine::select::{Either, either};
use engine::sim::{self, Faults};
use framework::compile::Environment;
use framework::counters::Counters;
use framework::generation::Generation;
use framework::workers::{Share, Worker};
use logs::Destination;
use tidegate_server::compile;
use tidegate_server::protocols;
use transport::listen::ListenerId;

use crate::random::Random;
use crate::site::{ADDRESS, BEHIND, ECHO, Site};

/// How long a worker that quits may have something to do: longer than any time limit of its.
const PATIENCE: Duration = Duration::from_secs(600);

/// Connections that a worker holds at most.
pub(crate) const CONNECTIONS_MAX: u64 = 512;

/// What the server behind the site answers.
const ANSWER_BEHIND: &[u8] =
    b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nbehind";

/// Runs `test` in the simulation of `seed`.
pub(crate) fn simulate<F: Future>(
    seed: u64,
    faults: Faults,
    test: impl FnOnce() -> F,
) -> F::Output {
    let mut runtime = sim::runtime(seed, faults, engine::Settings::default()).unwrap();
    runtime.block_on(async { test().await })
}

/// A worker that serves a site.
pub(crate) struct Server<'a> {
    pub(crate) worker: Rc<Worker>,
    pub(crate) address: Address,
    pub(crate) counters: Arc<Counters>,
    site: &'a Site,
    listeners: Vec<(ListenerId, BoundSocket)>,
    /// Generations that began, and those that have ended.
    begun: usize,
    ended: Arc<AtomicUsize>,
}

impl<'a> Server<'a> {
    /// Begins to serve `site`, whose `/which` answers "one", with an empty access log.
    pub(crate) fn start(site: &'a Site) -> Server<'a> {
        // The clients are of the same thread, so that their own sockets take places as well: there
        // are enough for all.
        Server::start_with(site, 8 * CONNECTIONS_MAX)
    }

    /// Begins to serve `site`, with `places` places for connections.
    pub(crate) fn start_with(site: &'a Site, places: u64) -> Server<'a> {
        let _ = fs::remove_file(site.access_log());
        let ended = Arc::new(AtomicUsize::new(0));
        let (generation, ids) = generation(&site.configuration("one"), &ended);
        let (socket, address) = sim::listen(Address::Inet(ADDRESS.parse().unwrap())).unwrap();
        let counters = Arc::new(Counters::default());
        let most = usize::try_from(places).unwrap();
        let worker = tidegate_server::protocols::worker(generation, most, Arc::clone(&counters));
        let listeners = ids.into_iter().zip([socket.try_clone().unwrap()]).collect();
        let server = Server {
            worker,
            address,
            counters,
            site,
            listeners,
            begun: 1,
            ended,
        };
        let id = server.listeners[0].0.clone();
        server.worker.listen(vec![((id, 0), socket)]);
        server
    }

    /// Waits until the site's files are no new ones any more, which are not kept in memory.
    pub(crate) async fn settle(&self) {
        engine::sleep(Duration::from_secs(3)).await;
    }

    /// Goes over to a generation whose `/which` answers `which`, on the same sockets.
    pub(crate) fn swap(&mut self, which: &str) {
        let (generation, _) = generation(&self.site.configuration(which), &self.ended);
        let before = self.worker.current();
        generation.zones.adopt(&before.generation.zones).unwrap();
        drop(before);
        self.begun += 1;
        let copy = |(id, socket): &(ListenerId, BoundSocket)| {
            ((id.clone(), 0), socket.try_clone().unwrap())
        };
        let share: Share = self.listeners.iter().map(copy).collect();
        self.worker.swap(generation, share);
    }

    /// Generations that are still in use.
    pub(crate) fn generations(&self) -> usize {
        self.begun - self.ended.load(Ordering::Relaxed)
    }

    /// Connections that are open.
    pub(crate) fn connections(&self) -> u64 {
        self.counters.totals().active
    }

    /// Quits; the lines of the access log, when nothing is left of connections, requests and
    /// generations.
    pub(crate) async fn finish(self) -> Result<Vec<String>, String> {
        self.worker.quit();
        let end = either(self.worker.end(), engine::sleep(PATIENCE)).await;
        if let Either::Second(()) = end {
            return Err(format!("{} connections leaked", self.connections()));
        }
        logs::flush_all();
        if self.connections() != 0 {
            return Err(format!(
                "{} connections are open after the end",
                self.connections()
            ));
        }
        if self.counters.totals().panics != 0 {
            return Err("a request panicked".into());
        }
        let (begun, ended, path) = (self.begun, Arc::clone(&self.ended), self.site.access_log());
        drop(self);
        // The tasks that saw the end are dropped in the turn after it.
        engine::sleep(Duration::from_millis(1)).await;
        if begun != ended.load(Ordering::Relaxed) {
            return Err("a request or a connection still holds a generation".into());
        }
        let text = fs::read_to_string(path).unwrap_or_default();
        Ok(text.lines().map(str::to_owned).collect())
    }
}

/// Compiles a configuration as a worker process does, and opens its logs.
pub(crate) fn generation(
    text: &str,
    ended: &Arc<AtomicUsize>,
) -> (Arc<Generation>, Vec<ListenerId>) {
    let path = Path::new("/nginx.conf");
    let file = |path: &str, content: &[u8]| (path.into(), content.to_vec());
    let files = RecordedFiles::new(Recording {
        files: vec![
            file("/nginx.conf", text.as_bytes()),
            file("/server.crt", crate::tls::CERTIFICATE),
            file("/server.key", crate::tls::KEY),
        ],
        ..Recording::default()
    });
    let root = Path::new("/");
    let loaded = conf::load(path, root, &[], protocols::registry(&[]), &files);
    assert!(!loaded.has_errors(), "{:?}", loaded.diagnostics);
    let environment = Environment {
        prefix: root,
        conf_prefix: root,
        files: &files,
        privileged: false,
    };
    let mut compiled = match compile(&loaded.tree, &environment, Destination::Stderr) {
        Ok(compiled) => compiled,
        Err(diagnostics) => panic!("{diagnostics:?}"),
    };
    for log in &compiled.logs {
        log.install(log.open().unwrap());
    }
    let ended = Arc::clone(ended);
    compiled.generation.on_end(move || {
        ended.fetch_add(1, Ordering::Relaxed);
    });
    let ids = compiled.listening.into_iter().map(|socket| socket.id);
    (Arc::new(compiled.generation), ids.collect())
}

/// Starts the server behind the site: it answers each connection's one request after a while.
pub(crate) fn start_behind(mut random: Random) {
    let (socket, _) = sim::listen(Address::Inet(BEHIND.parse().unwrap())).unwrap();
    engine::spawn(async move {
        let listener = Listener::new(socket).unwrap();
        while let Ok(stream) = listener.accept().await {
            let pause = random.duration(Duration::from_secs(2));
            engine::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.recv(None).await {
                        Ok(bytes) if !bytes.is_empty() => head.extend_from_slice(&bytes),
                        _ => return,
                    }
                }
                engine::sleep(pause).await;
                stream.push(Bytes::from_static(ANSWER_BEHIND));
                stream.finish();
            });
        }
    });
}

/// Starts a server behind the site that answers each connection's one request with its body, in
/// parts.
pub(crate) fn start_echo(mut random: Random) {
    let (socket, _) = sim::listen(Address::Inet(ECHO.parse().unwrap())).unwrap();
    engine::spawn(async move {
        let listener = Listener::new(socket).unwrap();
        while let Ok(stream) = listener.accept().await {
            let mut random = random.fork();
            engine::spawn(async move {
                let mut request = Vec::new();
                let body = loop {
                    match stream.recv(None).await {
                        Ok(bytes) if !bytes.is_empty() => request.extend_from_slice(&bytes),
                        _ => return,
                    }
                    if let Some(body) = body_of(&request) {
                        break body;
                    }
                };
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                // The site may be as slow as its client.
                stream.set_send_timeout(10 * PATIENCE);
                let answer = Bytes::from([head.as_bytes(), &body].concat());
                let most = 1 + random.below(40_000);
                for at in (0..answer.len()).step_by(most) {
                    engine::sleep(random.duration(Duration::from_millis(20))).await;
                    stream.push(answer.slice(at..answer.len().min(at + most)));
                    stream.start_send();
                }
                stream.finish();
            });
        }
    });
}

/// The body of a request, once all of it is there.
fn body_of(request: &[u8]) -> Option<Vec<u8>> {
    let end = request.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let (head, body) = request.split_at(end);
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    match head.split_once("content-length: ") {
        Some((_, rest)) => {
            let length = rest.split("\r\n").next()?.parse().ok()?;
            body.get(..length).map(<[u8]>::to_vec)
        }
        None if head.contains("transfer-encoding: chunked") => crate::http2::wish::unchunked(body),
        None => Some(Vec::new()),
    }
}
