//! A load generator for overload: more users than the server can serve, who all request one page.
//! It records the outcome of each request.
//!
//! Made for benches/overload. It shares a processor core with the server, so it is single-threaded,
//! waits in epoll, and does as little per request as possible. The outcome of a request is the
//! right page within the time limit, a refusal (503 with Retry-After at once, or 502 from a full
//! `queue`), or a failure of a specific kind. Responses must have a Content-Length, and the page's
//! body must equal a file. The server must send `X-Asked: $upstream_addr`: if no server of the
//! upstream `php` was tried, the value is that name.
//!
//! Users send the next request after a response (closed loop), after a think time if there is one,
//! and after a pause if the response was not the page. With `--rate`, requests instead arrive at
//! random times, whatever the server does (open loop).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::{Resource, getrlimit, setrlimit};

const USAGE: &str = "usage: xtask siege --address 127.0.0.1:PORT --path PATH --body FILE --seconds N (--users N | --rate N)
                   [--think MS] [--pause MS] [--keep] [--warmup SECONDS] [--seed N]

  --body FILE       the right body of the page
  --users N         users who ask again when they have an answer
  --rate N          requests a second that come by chance, each on a connection of its own
  --think MS        how long a user thinks before the next request
  --pause MS        how long a user waits after an answer that was not the page (1000)
  --keep            users keep their connections
  --warmup SECONDS  users come in turn meanwhile, and no request counts that has ended in it (2)";

/// Time limit for a complete response.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Time limit for a response to count as an immediate refusal.
const AT_ONCE: Duration = Duration::from_millis(50);

/// Number of loopback addresses that connections are made from in turn, so that none runs out of
/// ports.
const SOURCES: u8 = 100;

/// Maximum number of events per wait.
const EVENTS_MAX: usize = 512;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestEnd {
    /// The right page within the time limit.
    Good,
    /// 503 with Retry-After, at once.
    Refused,
    /// 502 without any server having been tried: a `queue` was full, or waiting in it timed out.
    Queue502,
    /// 503 without Retry-After, or not at once.
    Late503,
    Status502,
    Status504,
    OtherStatus,
    /// The page with a wrong body.
    WrongContent,
    /// The connection was refused, reset, or closed before the end of the response.
    Reset,
    /// No complete response within the time limit.
    TimeOut,
}

const ENDS: [(RequestEnd, &str); 10] = [
    (RequestEnd::Good, "good"),
    (RequestEnd::Refused, "refused"),
    (RequestEnd::Queue502, "queue_502"),
    (RequestEnd::Late503, "late_503"),
    (RequestEnd::Status502, "status_502"),
    (RequestEnd::Status504, "status_504"),
    (RequestEnd::OtherStatus, "other_status"),
    (RequestEnd::WrongContent, "wrong_content"),
    (RequestEnd::Reset, "reset"),
    (RequestEnd::TimeOut, "time_out"),
];

/// The parameters of a run.
struct Plan {
    address: SocketAddrV4,
    request: Vec<u8>,
    body: Vec<u8>,
    load: Load,
    keeps: bool,
    warmup: Duration,
    length: Duration,
    seed: u64,
}

enum Load {
    Users {
        count: u32,
        think: Duration,
        pause: Duration,
    },
    Rate(f64),
}

/// Runs the command line `siege …` and prints the outcomes as JSON.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let mut descriptors = getrlimit(Resource::Nofile);
    descriptors.current = descriptors.maximum;
    setrlimit(Resource::Nofile, descriptors).map_err(|error| format!("descriptors: {error}"))?;
    let plan = plan(arguments)?;
    let mut siege = Siege::new(&plan).map_err(|error| format!("epoll: {error}"))?;
    siege.run().map_err(|error| format!("epoll: {error}"))?;
    println!("{}", siege.report());
    Ok(())
}

fn plan(arguments: &[String]) -> Result<Plan, String> {
    let (mut address, mut path, mut body, mut seconds) = (None, None, None, None);
    let (mut users, mut rate, mut think, mut pause) = (None, None, 0, 1000);
    let (mut keeps, mut warmup, mut seed) = (false, 2.0, 1);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--keep" {
            keeps = true;
            continue;
        }
        let value = arguments.next().ok_or(USAGE)?;
        let number = || value.parse::<u64>().map_err(|_| USAGE.to_owned());
        let real = || value.parse::<f64>().map_err(|_| USAGE.to_owned());
        match argument.as_str() {
            "--address" => address = Some(value),
            "--path" => path = Some(value),
            "--body" => body = Some(value),
            "--seconds" => seconds = Some(real()?),
            "--users" => users = Some(number()?),
            "--rate" => rate = Some(real()?),
            "--think" => think = number()?,
            "--pause" => pause = number()?,
            "--warmup" => warmup = real()?,
            "--seed" => seed = number()?,
            _ => return Err(USAGE.into()),
        }
    }
    let address: SocketAddrV4 = address.and_then(|text| text.parse().ok()).ok_or(USAGE)?;
    if !address.ip().is_loopback() {
        return Err(format!("{address} is not of the loopback"));
    }
    let load = match (users, rate) {
        (Some(count), None) => Load::Users {
            count: count as u32,
            think: Duration::from_millis(think),
            pause: Duration::from_millis(pause),
        },
        (None, Some(rate)) if rate > 0.0 => Load::Rate(rate),
        _ => return Err(USAGE.into()),
    };
    let (path, body) = (path.ok_or(USAGE)?, body.ok_or(USAGE)?);
    let connection = if keeps { "keep-alive" } else { "close" };
    Ok(Plan {
        address,
        request: format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n\r\n"
        )
        .into_bytes(),
        body: std::fs::read(body).map_err(|error| format!("{body}: {error}"))?,
        load,
        keeps,
        warmup: Duration::from_secs_f64(warmup),
        length: Duration::from_secs_f64(seconds.ok_or(USAGE)?),
        seed,
    })
}

impl Plan {
    /// The outcome of a request that was answered after this time.
    fn judge(&self, answer: &SiegeAnswer<'_>, time: Duration) -> RequestEnd {
        match answer.status {
            200 if time > TIME_LIMIT => RequestEnd::TimeOut,
            200 if answer.body == self.body => RequestEnd::Good,
            200 => RequestEnd::WrongContent,
            503 if answer.retries && time <= AT_ONCE => RequestEnd::Refused,
            503 => RequestEnd::Late503,
            502 if answer.is_of_queue => RequestEnd::Queue502,
            502 => RequestEnd::Status502,
            504 => RequestEnd::Status504,
            _ => RequestEnd::OtherStatus,
        }
    }
}

/// A connection with a request in progress, or an idle persistent one.
struct Connection {
    stream: TcpStream,
    /// Since when the user has waited, if a request is in progress.
    since: Option<Instant>,
    is_sent: bool,
    /// Number of responses received on this connection.
    answers: u32,
    input: Vec<u8>,
}

/// The slot of a user, or of a request in the open loop.
#[derive(Default)]
struct SiegeSlot {
    connection: Option<Connection>,
    /// Number of the current request, so that the time limits of earlier ones can be recognised.
    request: u64,
}

struct Siege<'a> {
    plan: &'a Plan,
    epoll: std::os::fd::OwnedFd,
    places: Vec<SiegeSlot>,
    free: Vec<usize>,
    begun: Instant,
    wakes: BinaryHeap<Reverse<(Instant, usize)>>,
    next_arrival: Option<Instant>,
    /// The time limits in order: all requests have the same limit, so the earliest one is first.
    limits: VecDeque<(Instant, usize, u64)>,
    under_way: usize,
    connections: u32,
    random: u64,
    /// Times of requests in microseconds, by outcome.
    times: [Vec<u32>; ENDS.len()],
    /// Number of right pages that arrived during the measured load.
    good_in_window: u64,
}

impl<'a> Siege<'a> {
    fn new(plan: &'a Plan) -> std::io::Result<Siege<'a>> {
        let begun = Instant::now();
        let mut siege = Siege {
            plan,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            places: Vec::new(),
            free: Vec::new(),
            begun,
            wakes: BinaryHeap::new(),
            next_arrival: None,
            limits: VecDeque::new(),
            under_way: 0,
            connections: 0,
            random: plan.seed,
            times: Default::default(),
            good_in_window: 0,
        };
        match plan.load {
            Load::Users { count, .. } => {
                for user in 0..count {
                    let share = f64::from(user) / f64::from(count);
                    let at = begun + plan.warmup.mul_f64(share / 2.0);
                    siege.wakes.push(Reverse((at, user as usize)));
                    siege.places.push(SiegeSlot::default());
                }
            }
            Load::Rate(_) => siege.next_arrival = Some(begun),
        }
        Ok(siege)
    }

    fn end_of_load(&self) -> Instant {
        self.begun + self.plan.warmup + self.plan.length
    }

    /// Runs until all requests that were started have ended.
    fn run(&mut self) -> std::io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            let now = Instant::now();
            self.begin_what_is_due(now);
            self.end_what_is_late(now);
            if now >= self.end_of_load() && self.under_way == 0 {
                return Ok(());
            }
            let wait = self.next_moment().saturating_duration_since(Instant::now());
            let wait = rustix::time::Timespec::try_from(wait).ok();
            events.clear();
            let waited = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                wait.as_ref(),
            );
            match waited {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for &epoll::Event { data, .. } in &events {
                self.go_on(data.u64() as usize);
            }
        }
    }

    fn next_moment(&self) -> Instant {
        let wake = self.wakes.peek().map(|Reverse((at, _))| *at);
        let limit = self.limits.front().map(|(at, ..)| *at);
        let moments = [wake, self.next_arrival].into_iter().flatten();
        // No requests are started after the end of the load.
        let load = moments.filter(|at| *at < self.end_of_load());
        let end = (Instant::now() < self.end_of_load()).then(|| self.end_of_load());
        let next = load.chain(limit).chain(end).min();
        next.unwrap_or_else(|| Instant::now() + AT_ONCE)
    }

    fn begin_what_is_due(&mut self, now: Instant) {
        let end = self.end_of_load();
        while let Some(Reverse((at, user))) = self.wakes.peek().copied()
            && at <= now
        {
            self.wakes.pop();
            if at < end {
                self.begin(user, now);
            }
        }
        while let (Some(at), Load::Rate(rate)) = (self.next_arrival, &self.plan.load)
            && at <= now
            && at < end
        {
            let gap = -(1.0 - self.draw()).ln() / rate;
            self.next_arrival = Some(at + Duration::from_secs_f64(gap));
            let place = self.free.pop().unwrap_or_else(|| {
                self.places.push(SiegeSlot::default());
                self.places.len() - 1
            });
            self.begin(place, at);
        }
    }

    /// A random number from 0 to 1: xorshift*, which is sufficient for arrivals.
    fn draw(&mut self) -> f64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let bits = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        bits as f64 / (1_u64 << 53) as f64
    }

    /// Starts a request. The user has waited for it since `since`.
    fn begin(&mut self, place: usize, since: Instant) {
        self.under_way += 1;
        self.places[place].request += 1;
        let request = self.places[place].request;
        self.limits
            .push_back((Instant::now() + TIME_LIMIT, place, request));
        if let Some(connection) = &mut self.places[place].connection {
            connection.since = Some(since);
            connection.is_sent = false;
        } else {
            match self.connect(place) {
                Ok(stream) => {
                    self.places[place].connection = Some(Connection {
                        stream,
                        since: Some(since),
                        is_sent: false,
                        answers: 0,
                        input: Vec::new(),
                    });
                    // Continues when the connection is established.
                    return;
                }
                Err(_) => return self.end(place, RequestEnd::Reset, since),
            }
        }
        self.go_on(place);
    }

    fn connect(&mut self, place: usize) -> rustix::io::Result<TcpStream> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        self.connections = self.connections.wrapping_add(1);
        let last = 2 + (self.connections % u32::from(SOURCES)) as u8;
        rustix::net::bind(
            &socket,
            &SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), 0),
        )?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match rustix::net::connect(&socket, &self.plan.address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let stream = TcpStream::from(socket);
        let events = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        epoll::add(
            &self.epoll,
            &stream,
            EventData::new_u64(place as u64),
            events,
        )?;
        Ok(stream)
    }

    /// Sends and receives as far as possible without blocking.
    fn go_on(&mut self, place: usize) {
        let Some(connection) = &mut self.places[place].connection else {
            return;
        };
        let since = connection.since;
        if since.is_some() && !connection.is_sent {
            match connection.stream.write(&self.plan.request) {
                Ok(count) if count == self.plan.request.len() => connection.is_sent = true,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == std::io::ErrorKind::NotConnected => return,
                _ => return self.broken(place),
            }
        }
        let mut buffer = [0; 16 * 1024];
        let has_ended = loop {
            match connection.stream.read(&mut buffer) {
                Ok(0) => break true,
                Ok(count) => connection.input.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break false,
                Err(_) => break true,
            }
        };
        let (Some(since), Some(answer)) = (since, SiegeAnswer::read(&connection.input)) else {
            if has_ended {
                self.broken(place);
            }
            return;
        };
        let end = self.plan.judge(&answer, since.elapsed());
        let keeps = self.plan.keeps && !answer.closes && !has_ended;
        let length = answer.length;
        if keeps {
            connection.input.drain(..length);
            connection.since = None;
            connection.answers += 1;
        } else {
            self.places[place].connection = None;
        }
        self.end(place, end, since);
    }

    /// Handles the end of a connection. A persistent connection may end at any time; its request is
    /// then sent again on a new one.
    fn broken(&mut self, place: usize) {
        let Some(connection) = self.places[place].connection.take() else {
            return;
        };
        let Some(since) = connection.since else {
            return;
        };
        if connection.answers > 0 && connection.input.is_empty() {
            self.under_way -= 1;
            return self.begin(place, since);
        }
        self.end(place, RequestEnd::Reset, since);
    }

    fn end_what_is_late(&mut self, now: Instant) {
        while let Some((at, place, request)) = self.limits.front().copied() {
            let is_over = self.places[place].request != request;
            let connection = self.places[place].connection.as_ref();
            let since = connection.and_then(|connection| connection.since);
            let Some(since) = since.filter(|_| !is_over) else {
                self.limits.pop_front();
                continue;
            };
            if at > now {
                return;
            }
            self.limits.pop_front();
            self.places[place].connection = None;
            self.end(place, RequestEnd::TimeOut, since);
        }
    }

    fn end(&mut self, place: usize, end: RequestEnd, since: Instant) {
        self.under_way -= 1;
        let now = Instant::now();
        let warm = self.begun + self.plan.warmup;
        if now >= warm {
            let micros = now.duration_since(since).as_micros() as u32;
            self.times[end as usize].push(micros);
        }
        if end == RequestEnd::Good && now >= warm && now < self.end_of_load() {
            self.good_in_window += 1;
        }
        match self.plan.load {
            Load::Rate(_) => self.free.push(place),
            Load::Users { think, pause, .. } => {
                let wait = if end == RequestEnd::Good {
                    think
                } else {
                    pause.max(think)
                };
                self.wakes.push(Reverse((now + wait, place)));
            }
        }
    }

    fn report(&mut self) -> String {
        let seconds = self.plan.length.as_secs_f64();
        let mut report = format!(
            "{{\"seconds\": {seconds}, \"goodput\": {:.2}",
            self.good_in_window as f64 / seconds
        );
        for (end, name) in ENDS {
            let times = &mut self.times[end as usize];
            times.sort_unstable();
            let _ = write!(report, ", \"{name}\": {{\"count\": {}", times.len());
            for (name, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)] {
                // The nearest-rank percentile: the smallest value such that at least this share of
                // all values is not larger.
                let rank = (times.len() as f64 * share).ceil() as usize;
                if let Some(micros) = rank.checked_sub(1).and_then(|at| times.get(at)) {
                    let _ = write!(report, ", \"{name}\": {:.3}", f64::from(*micros) / 1e3);
                }
            }
            report.push('}');
        }
        report.push('}');
        report
    }
}

/// A complete response.
struct SiegeAnswer<'a> {
    status: u16,
    retries: bool,
    is_of_queue: bool,
    closes: bool,
    body: &'a [u8],
    /// Length of head and body, in bytes.
    length: usize,
}

impl SiegeAnswer<'_> {
    /// Parses a response; `None` if it is incomplete or has no Content-Length.
    fn read(input: &[u8]) -> Option<SiegeAnswer<'_>> {
        let head = input.windows(4).position(|window| window == b"\r\n\r\n")?;
        let text = std::str::from_utf8(&input[..head]).ok()?;
        let mut lines = text.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let (mut length, mut retries) = (None, false);
        let (mut is_of_queue, mut closes) = (false, false);
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse::<usize>().ok();
            } else if name.eq_ignore_ascii_case("retry-after") {
                retries = true;
            } else if name.eq_ignore_ascii_case("x-asked") {
                is_of_queue = value.trim() == "php";
            } else if name.eq_ignore_ascii_case("connection") {
                closes = value.trim().eq_ignore_ascii_case("close");
            }
        }
        let length = head + 4 + length?;
        Some(SiegeAnswer {
            status,
            retries,
            is_of_queue,
            closes,
            body: input.get(head + 4..length)?,
            length,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_when_its_length_has_come() {
        let text = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 3\r\nRetry-After: 1\r\nConnection: close\r\n\r\nabcd";
        assert!(SiegeAnswer::read(&text[..text.len() - 2]).is_none());
        let answer = SiegeAnswer::read(text).unwrap();
        assert_eq!((answer.status, answer.body), (503, &b"abc"[..]));
        assert!(answer.retries && answer.closes);
        assert_eq!(answer.length, text.len() - 1);
    }

    #[test]
    fn ends_are_in_the_order_of_their_names() {
        for (index, (end, _)) in ENDS.iter().enumerate() {
            assert_eq!(*end as usize, index);
        }
    }
}
