//! The recording upstream: it keeps the bytes of each request that reaches it, and answers as the
//! request asks.
//!
//! What is answered is told by words with commas between them, in the field `X-Answer` or in the
//! query's `answer=` (see [`answers`](crate::answers)). It keeps connections open until the other
//! side closes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;

use crate::answers::{self, Act};

/// What the lane's own connections say first, to learn that all earlier ones have been taken.
const PING: &[u8] = b"ping\n";
/// How long the other side may be silent within a request.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long requests that go on without a client are awaited. Those that take longer, as their
/// bodies never come, are not awaited in the turns that follow.
const SETTLE_TIME_MAX: Duration = Duration::from_millis(200);

/// One request as it came.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Recorded {
    /// Request line and fields with the empty line, then the body with its framing.
    pub(crate) bytes: Vec<u8>,
    /// It ended before it was whole.
    pub(crate) cut: bool,
}

impl Recorded {
    /// Whether its body comes in chunks.
    pub(crate) fn is_chunked(&self) -> bool {
        let end = find(&self.bytes, b"\r\n\r\n").map_or(self.bytes.len(), |at| at + 2);
        let head = self
            .bytes
            .get(..end)
            .unwrap_or_default()
            .to_ascii_lowercase();
        find(&head, b"\r\ntransfer-encoding: chunked\r\n").is_some()
    }
}

#[derive(Default)]
struct Shared {
    /// What has come and has not been taken, with the turn that it began in.
    records: Mutex<Vec<(usize, Recorded)>>,
    work: Mutex<Work>,
    /// Requests that have begun.
    begun: AtomicUsize,
    /// Bytes of requests.
    received: AtomicUsize,
    /// Connections that are open.
    lines: Mutex<Vec<Arc<Line>>>,
}

/// An open connection.
struct Line {
    stream: TcpStream,
    /// Whether it is at a request, which is counted in [`Work`].
    busy: AtomicBool,
    /// Whether it waits for more of that request.
    wants: AtomicBool,
}

impl Line {
    /// Whether bytes have come that its thread has not seen yet.
    fn has_received(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let waiting = rustix::net::recv(&self.stream, &mut [0; 1], flags);
        matches!(waiting, Ok((1.., _)))
    }

    /// Whether a request has come that its thread has not seen yet.
    fn is_called(&self) -> bool {
        !self.busy.load(Ordering::Acquire) && self.has_received()
    }
}

/// What is under way.
#[derive(Default)]
struct Work {
    /// How often has been taken what had come: a turn is one conversation.
    turn: usize,
    /// Requests of this turn that have begun and are not answered.
    of_turn: usize,
    /// Those of all turns.
    of_all: usize,
}

impl Shared {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request begins. Returns its turn.
    fn begin(&self) -> usize {
        self.begun.fetch_add(1, Ordering::AcqRel);
        let mut work = self.work();
        work.of_turn += 1;
        work.of_all += 1;
        work.turn
    }

    fn lines(&self) -> MutexGuard<'_, Vec<Arc<Line>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request of a turn has been answered.
    fn end(&self, turn: usize) {
        let mut work = self.work();
        work.of_turn -= usize::from(work.turn == turn);
        work.of_all -= 1;
    }
}

/// Listens on some ports of 127.0.0.1.
pub(crate) struct Upstream {
    ports: Vec<u16>,
    shared: Arc<Shared>,
}

impl Upstream {
    /// Listens on so many ports. Its threads live as long as the run.
    pub(crate) fn start(count: usize) -> Result<Upstream, String> {
        let shared = Arc::new(Shared::default());
        let mut ports = Vec::new();
        for _ in 0..count {
            let port = support::port::free_port();
            let listener = TcpListener::bind(("127.0.0.1", port));
            let listener = listener.map_err(|error| format!("listening on {port}: {error}"))?;
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || listen(&listener, &shared));
            ports.push(port);
        }
        Ok(Upstream { ports, shared })
    }

    /// Where it listens.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect()
    }

    /// Whether it works on a request of this turn, or one has come on a connection that was kept.
    pub(crate) fn is_busy(&self) -> bool {
        self.shared.work().of_turn > 0 || self.shared.lines().iter().any(|line| line.is_called())
    }

    /// How many requests have begun, and how many bytes of requests have come, since the start.
    pub(crate) fn progress(&self) -> (usize, usize) {
        let begun = self.shared.begun.load(Ordering::Acquire);
        (begun, self.shared.received.load(Ordering::Acquire))
    }

    /// Takes requests of which no more comes for what they are: their bodies have been announced
    /// and do not follow. Returns whether there are any. They would end by themselves, at a time at
    /// which the client may have left already or not.
    pub(crate) fn give_up(&self) -> bool {
        let mut any = false;
        for line in self.shared.lines().iter() {
            if line.wants.load(Ordering::Acquire) && !line.has_received() {
                any |= line.stream.shutdown(Shutdown::Read).is_ok();
            }
        }
        any
    }

    /// Waits until what had reached it is answered. Returns its [`progress`](Upstream::progress).
    pub(crate) fn settle(&self) -> (usize, usize) {
        for port in &self.ports {
            // Connections are taken in their order: once this one is, all earlier ones are.
            let ping = || -> std::io::Result<()> {
                let mut stream = TcpStream::connect(("127.0.0.1", *port))?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(PING)?;
                stream.read(&mut [0; 1]).map(|_| ())
            };
            if ping().is_ok() {
                self.shared.begun.fetch_sub(1, Ordering::AcqRel);
                self.shared.received.fetch_sub(PING.len(), Ordering::AcqRel);
            }
        }
        let start = Instant::now();
        while self.is_busy() && start.elapsed() < SETTLE_TIME_MAX {
            std::thread::sleep(Duration::from_micros(200));
        }
        self.progress()
    }

    /// The turn that is on.
    pub(crate) fn turn(&self) -> usize {
        self.shared.work().turn
    }

    /// Takes what has begun since the last call, sorted. What begins from now on is of another
    /// turn.
    pub(crate) fn take(&self) -> Vec<Recorded> {
        let turn = {
            let mut work = self.shared.work();
            work.of_turn = 0;
            work.turn += 1;
            work.turn - 1
        };
        let mut taken = Vec::new();
        if let Ok(mut records) = self.shared.records.lock() {
            let own = |(of, _): &mut (usize, Recorded)| *of == turn;
            taken.extend(records.extract_if(.., own).map(|(_, record)| record));
        }
        taken.sort();
        taken
    }

    /// Waits for all that is under way, and takes what was whole only after its turn, with the turn
    /// that it began in.
    pub(crate) fn take_late(&self) -> Vec<(usize, Recorded)> {
        let start = Instant::now();
        let is_busy = || self.shared.work().of_all > 0;
        while is_busy() && start.elapsed() < PATIENCE + SETTLE_TIME_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
        let records = self.shared.records.lock();
        records
            .map(|mut records| std::mem::take(&mut *records))
            .unwrap_or_default()
    }
}

fn listen(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming().flatten() {
        let shared = Arc::clone(shared);
        let turn = shared.begin();
        let line = Arc::new(Line {
            stream,
            busy: AtomicBool::new(true),
            wants: AtomicBool::new(false),
        });
        shared.lines().push(Arc::clone(&line));
        std::thread::spawn(move || {
            let mut connection = Connection {
                line,
                unread: Vec::new(),
                turn,
            };
            while let Ok(true) = connection.serve(&shared) {}
            connection.idle(&shared);
            let is_another = |line: &Arc<Line>| !Arc::ptr_eq(line, &connection.line);
            shared.lines().retain(is_another);
        });
    }
}

struct Connection {
    line: Arc<Line>,
    /// What has come and is not used up.
    unread: Vec<u8>,
    /// The turn that its request began in.
    turn: usize,
}

impl Connection {
    fn idle(&mut self, shared: &Shared) {
        // What comes from here on is waited for because the line is called.
        if self.line.busy.swap(false, Ordering::AcqRel) {
            shared.end(self.turn);
        }
    }

    /// One request. Returns whether the connection goes on.
    fn serve(&mut self, shared: &Shared) -> std::io::Result<bool> {
        let line = Arc::clone(&self.line);
        let mut stream = &line.stream;
        stream.set_nodelay(true)?;
        if !line.busy.load(Ordering::Acquire) {
            // Between two requests the connection is idle for as long as the other side likes. The
            // next one is counted before it is read, so that it is seen at every moment.
            stream.set_read_timeout(None)?;
            if self.unread.is_empty() && stream.peek(&mut [0; 1])? == 0 {
                return Ok(false);
            }
            self.turn = shared.begin();
            line.busy.store(true, Ordering::Release);
        }
        stream.set_read_timeout(Some(PATIENCE))?;
        if self.unread.is_empty() && !self.more(shared)? {
            return Ok(false);
        }
        if self.unread.starts_with(PING) {
            self.idle(shared);
            stream.write_all(b"p")?;
            return Ok(false);
        }
        let end = loop {
            if let Some(at) = find(&self.unread, b"\r\n\r\n") {
                break at + 4;
            }
            if !self.more(shared).unwrap_or(false) {
                self.keep(shared, self.unread.len(), true);
                return Ok(false);
            }
        };
        let head = self.unread[..end].to_vec();
        let acts = answers::acts(&head);
        let early = acts.contains(&Act::Early);
        // A connection that goes on as its answer says: whether the other side knew of its end as
        // it sent the next request would be a matter of moments.
        let mut goes_on = early || self.body(shared, &head)?;
        for act in &acts {
            match act {
                Act::Send(bytes) => stream.write_all(bytes)?,
                Act::Pause(time) => std::thread::sleep(*time),
                Act::Close => goes_on = false,
                Act::Early => {}
            }
        }
        if early {
            goes_on &= self.body(shared, &head)?;
        }
        if !goes_on {
            let _ = stream.shutdown(Shutdown::Write);
        }
        self.idle(shared);
        Ok(goes_on)
    }

    /// Reads the body and keeps the request. Returns whether it is whole.
    fn body(&mut self, shared: &Shared, head: &[u8]) -> std::io::Result<bool> {
        let text = String::from_utf8_lossy(head).to_ascii_lowercase();
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        let length: usize = length.unwrap_or(0);
        let chunked = text.contains("\r\ntransfer-encoding: chunked");
        loop {
            let body = &self.unread[head.len()..];
            let end = if chunked {
                chunked_end(body)
            } else {
                (body.len() >= length).then_some(length)
            };
            if let Some(end) = end {
                self.keep(shared, head.len() + end, false);
                return Ok(true);
            }
            if !self.more(shared).unwrap_or(false) {
                self.keep(shared, self.unread.len(), true);
                return Ok(false);
            }
        }
    }

    fn keep(&mut self, shared: &Shared, length: usize, cut: bool) {
        let bytes: Vec<u8> = self.unread.drain(..length).collect();
        if let Ok(mut records) = shared.records.lock() {
            records.push((self.turn, Recorded { bytes, cut }));
        }
    }

    fn more(&mut self, shared: &Shared) -> std::io::Result<bool> {
        let mut buffer = [0; 16 * 1024];
        self.line.wants.store(true, Ordering::Release);
        let read = (&self.line.stream).read(&mut buffer);
        self.line.wants.store(false, Ordering::Release);
        let count = read?;
        shared.received.fetch_add(count, Ordering::AcqRel);
        self.unread.extend_from_slice(&buffer[..count]);
        Ok(count > 0)
    }
}

/// Where a chunked body ends, trailers included, once it is whole.
fn chunked_end(body: &[u8]) -> Option<usize> {
    let mut at = chunks(body, |_| ())?;
    loop {
        let line = find(&body[at..], b"\r\n")?;
        at += line + 2;
        if line == 0 {
            return Some(at);
        }
    }
}

/// The data of a body in chunks, with the lines behind the last one; `None` where it is not whole.
/// Where one chunk ends and the next begins says nothing: it is how much could be read at once.
pub(crate) fn chunks_joined(body: &[u8]) -> Option<Vec<u8>> {
    chunked_end(body)?;
    let mut joined = Vec::new();
    let behind = chunks(body, |data| joined.extend_from_slice(data))?;
    joined.extend_from_slice(&body[behind..]);
    Some(joined)
}

/// Shows the data of each chunk, and tells where the line of the last one, which is empty, ends.
fn chunks(body: &[u8], mut data: impl FnMut(&[u8])) -> Option<usize> {
    let mut at = 0;
    loop {
        let line = find(&body[at..], b"\r\n")?;
        let size = std::str::from_utf8(&body[at..at + line]).ok()?;
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        at += line + 2;
        if size == 0 {
            return Some(at);
        }
        let end = at.checked_add(size)?;
        data(body.get(at..end)?);
        at = end.checked_add(2)?;
        if at > body.len() {
            return None;
        }
    }
}

/// Where a text first stands in another.
pub(crate) fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).position(|window| window == text)
}
