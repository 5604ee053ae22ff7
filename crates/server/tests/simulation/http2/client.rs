//! A client of HTTP/2 as it should be: the machine of `proto::h2::client`, requests at once, bodies
//! both ways, and manners by seed. It compares what comes back to the byte.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;
use engine::net::{Address, Stream};
use proto::h2::client::{Client, Event, Limits, RequestStart};
use proto::h2::hpack::Field;
use proto::h2::{ErrorCode, Violation};

use super::wish::{Answer, Wish};
use crate::random::Random;
use crate::site::STREAMS_MAX;

/// How long a client may hear nothing before it counts as forgotten.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// How often one request may be sent again because it was not served.
const TRIES_MAX: usize = 40;

/// How a client behaves.
#[derive(Clone, Debug)]
pub(crate) struct Manners {
    /// Bytes of each answer that may come before it gives credit.
    pub(crate) window: u32,
    /// Requests at once.
    pub(crate) at_once: usize,
    /// Bytes sent at once at most, and the longest pause between two parts.
    pub(crate) part_max: usize,
    pub(crate) pause_max: Duration,
    /// How often in a thousand steps it gives a request up.
    pub(crate) gives_up: usize,
    /// How often in a thousand it gives credit as soon as something has come.
    pub(crate) credit: usize,
    /// How often in a thousand a body ends with trailers.
    pub(crate) trailers: usize,
    /// The connection may break.
    pub(crate) fragile: bool,
}

impl Manners {
    pub(crate) fn plain() -> Manners {
        Manners {
            window: 65_535,
            at_once: STREAMS_MAX,
            part_max: usize::MAX,
            pause_max: Duration::ZERO,
            gives_up: 0,
            credit: 1000,
            trailers: 0,
            fragile: false,
        }
    }

    pub(crate) fn any(random: &mut Random, fragile: bool) -> Manners {
        Manners {
            window: [1, 300, 5000, 65_535, 1_000_000][random.below(5)],
            at_once: 1 + random.below(STREAMS_MAX),
            part_max: [1 + random.below(30), 2000, usize::MAX, usize::MAX][random.below(4)],
            pause_max: Duration::from_millis([0, 1, 40][random.below(3)]),
            gives_up: [0, 0, 30][random.below(3)],
            credit: [1000, 500, 0][random.below(3)],
            trailers: [0, 500][random.below(2)],
            fragile,
        }
    }
}

/// How a request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Its answer came whole, and was right.
    Answered,
    /// The client did not want it any more.
    GivenUp,
    /// The server has not served it.
    NotServed,
    /// Its connection broke.
    Broken,
    /// The server has reset its stream.
    Reset(ErrorCode),
}

/// One request on its way.
struct Place {
    wish: Wish,
    got: Answer,
    sent: usize,
    /// Bytes of the answer for which no credit was given.
    unread: usize,
    tries: usize,
    end: Option<End>,
}

/// A connection to the server.
pub(crate) struct Talk {
    stream: Stream,
    machine: Client<usize>,
    random: Random,
    manners: Manners,
    places: Vec<Place>,
    /// Requests that are to be opened.
    to_open: Vec<usize>,
    /// A body's turn was put off.
    is_behind: bool,
    has_left: bool,
    /// The server's error code, once it has said that it ends the connection.
    pub(crate) goes_away: Option<ErrorCode>,
    /// What has come, and when.
    trace: DefaultHasher,
    /// How often something has come.
    pub(crate) steps: usize,
    /// The client leaves at this step.
    pub(crate) leaves: Option<(usize, Leaves)>,
}

/// How a client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// It resets the connection.
    Resets,
    /// It closes it.
    Closes,
    /// It sends no more, and reads what comes.
    Listens,
}

impl Talk {
    /// Connects.
    pub(crate) async fn connect(
        address: &Address,
        manners: Manners,
        random: Random,
    ) -> Result<Talk, String> {
        let stream = crate::client::connect(address).await?;
        let machine = Client::new(Limits {
            stream_window: manners.window,
            stream_window_max: manners.window,
            head_size_max: 16 * 1024,
        });
        Ok(Talk {
            stream,
            machine,
            random,
            manners,
            places: Vec::new(),
            to_open: Vec::new(),
            is_behind: false,
            has_left: false,
            goes_away: None,
            trace: DefaultHasher::new(),
            steps: 0,
            leaves: None,
        })
    }

    /// Asks for these and waits for all answers, which must be right. How each has ended.
    pub(crate) async fn ask(&mut self, wishes: Vec<Wish>) -> Result<Vec<End>, String> {
        let first = self.places.len();
        for wish in wishes {
            self.want(wish);
        }
        self.go_on().await?;
        let ends = self.places[first..].iter();
        Ok(ends.map(|place| place.end.unwrap()).collect())
    }

    /// Asks for one more as soon as that can be.
    pub(crate) fn want(&mut self, wish: Wish) {
        self.to_open.insert(0, self.places.len());
        self.places.push(Place {
            wish,
            got: Answer::default(),
            sent: 0,
            unread: 0,
            tries: 0,
            end: None,
        });
    }

    /// The lines that the access log has of the requests that were answered.
    pub(crate) fn logged(&self) -> impl Iterator<Item = String> {
        let answered = |place: &&Place| place.end == Some(End::Answered);
        let places = self.places.iter().filter(answered);
        places.map(|place| place.wish.logged.clone())
    }

    /// A number that is the same only if the same has come at the same times.
    pub(crate) fn trace(&self) -> u64 {
        self.trace.finish()
    }

    /// Goes on until all requests have ended.
    pub(crate) async fn go_on(&mut self) -> Result<(), String> {
        loop {
            self.open();
            self.put_bodies();
            self.give_up();
            self.send().await;
            if self.places.iter().all(|place| place.end.is_some()) {
                return Ok(());
            }
            if !self.step().await? {
                return Ok(());
            }
        }
    }

    /// Waits for something to come, and takes it; false once the connection has ended.
    pub(crate) async fn step(&mut self) -> Result<bool, String> {
        self.leave();
        let owes = self.places.iter().any(|place| place.unread > 0);
        let is_soon = owes || self.is_behind || self.manners.gives_up > 0;
        let patience = if is_soon {
            Duration::from_micros(100) + self.random.duration(Duration::from_millis(60))
        } else {
            PATIENCE
        };
        let begun = engine::now();
        match self.stream.recv(Some(begun + patience)).await {
            Ok(bytes) if bytes.is_empty() => self.ended(None),
            Ok(bytes) => {
                self.steps += 1;
                self.take(&bytes)
                    .map_err(|violation| format!("the server {violation}"))?;
                if self.random.chance(self.manners.credit) {
                    self.release_capacity();
                }
                self.check()?;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::TimedOut && is_soon => {
                self.release_capacity();
                // Whoever has nothing to give waits for the server.
                if !owes && !self.is_behind {
                    self.manners.gives_up = 0;
                }
                Ok(true)
            }
            Err(error) => self.ended(Some(error.to_string())),
        }
    }

    /// The server has ended the connection, or nothing comes.
    fn ended(&mut self, error: Option<String>) -> Result<bool, String> {
        let may_break = self.manners.fragile || self.has_left;
        let unfinished = self.places.iter_mut().filter(|place| place.end.is_none());
        for place in unfinished {
            if !may_break && place.tries > 0 {
                return Err(format!(
                    "{}: the connection has ended: {error:?} after {:?}",
                    place.wish.logged,
                    place.got.body.len()
                ));
            }
            // The server behind may have been lost.
            let is_gateways = self.manners.fragile && place.got.status == Some(502);
            if !is_gateways {
                place.wish.check(&place.got, false)?;
            }
            // What was not sent was not served.
            place.end = match place.tries {
                0 => Some(End::NotServed),
                _ => Some(End::Broken),
            };
        }
        Ok(false)
    }

    /// Leaves, if it is time.
    fn leave(&mut self) {
        let Some((_, leaves)) = self.leaves.take_if(|(step, _)| *step == self.steps) else {
            return;
        };
        self.has_left = true;
        match leaves {
            Leaves::Resets => self.stream.abort(),
            Leaves::Closes => {
                self.stream.shutdown_write();
                self.stream.shutdown_read();
            }
            Leaves::Listens => self.stream.shutdown_write(),
        }
    }

    fn open(&mut self) {
        if self.machine.is_ending() {
            for index in self.to_open.drain(..) {
                self.places[index].end = Some(End::NotServed);
            }
        }
        while self.machine.live() < self.manners.at_once
            && self.machine.may_open()
            && let Some(index) = self.to_open.pop()
        {
            let place = &mut self.places[index];
            place.tries += 1;
            place.sent = 0;
            place.got = Answer::default();
            let opening = RequestStart {
                ends: place.wish.body.is_empty(),
                is_head: place.wish.is_head,
            };
            let opened = self.machine.open(place.wish.head(), opening, index);
            if let Some(stream) = opened.filter(|_| !opening.ends) {
                self.machine.wants_to_send(stream);
            }
        }
    }

    /// Sends of bodies what may be sent.
    fn put_bodies(&mut self) {
        self.is_behind = false;
        while let Some((stream, most)) = self.machine.turn() {
            let Some(index) = self.machine.user(stream).copied() else {
                continue;
            };
            let place = &mut self.places[index];
            let left = &place.wish.body[place.sent..];
            let most = if self.random.chance(200) {
                1 + self.random.below(most)
            } else {
                most
            };
            let part = &left[..left.len().min(most)];
            place.sent += part.len();
            let is_last = part.len() == left.len();
            let trailers = is_last && self.random.chance(self.manners.trailers);
            self.machine
                .put_data(stream, part, is_last && !trailers, !is_last);
            if trailers {
                let field = Field::from((&b"x-sum"[..], &b"right"[..]));
                self.machine.put_trailers(stream, [field]);
            }
            if self.random.chance(100) {
                self.is_behind = true;
                return;
            }
        }
    }

    fn give_up(&mut self) {
        if !self.random.chance(self.manners.gives_up) {
            return;
        }
        let live = |place: &&mut Place| place.end.is_none() && place.tries > 0;
        let count = self.places.iter_mut().filter(live).count();
        if count == 0 {
            return;
        }
        let which = self.random.below(count);
        let stream = (1..2 * self.places.len() as u32 * TRIES_MAX as u32)
            .step_by(2)
            .filter(|stream| self.machine.is_live(*stream))
            .nth(which);
        if let Some(stream) = stream
            && let Some(index) = self.machine.release(stream)
        {
            let place = &mut self.places[index];
            place.end = Some(End::GivenUp);
            place.unread = 0;
        }
    }

    /// Sends what there is, in parts.
    async fn send(&mut self) {
        let output = Bytes::from(self.machine.take_output());
        let mut rest = output;
        let mut pauses = 0;
        while !rest.is_empty() {
            let most = match pauses {
                // No time limit of the server's is to hit it.
                0..20 => rest.len().min(self.manners.part_max),
                _ => rest.len(),
            };
            let part = rest.split_to(1 + self.random.below(most));
            self.stream.push(part);
            self.stream.start_send();
            if !self.manners.pause_max.is_zero() && !rest.is_empty() {
                pauses += 1;
                engine::sleep(self.random.duration(self.manners.pause_max)).await;
            }
        }
    }

    fn release_capacity(&mut self) {
        for stream in (1..).step_by(2).take(self.machine_streams()) {
            let Some(index) = self.machine.user(stream).copied() else {
                continue;
            };
            let unread = std::mem::take(&mut self.places[index].unread);
            self.machine.consumed(stream, unread);
        }
    }

    /// More than were opened.
    fn machine_streams(&self) -> usize {
        self.places.iter().map(|place| place.tries).sum()
    }

    fn note(&mut self, what: impl Hash) {
        (engine::uptime(), what).hash(&mut self.trace);
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let second = engine::uptime().as_secs() as u32;
        let mut at = 0;
        while let Some(event) = self.machine.handle(bytes, &mut at, second)? {
            self.note(format!("{event:?}"));
            match event {
                Event::Head { stream, ends } => {
                    let head = self.machine.head();
                    let status = Some(head.status());
                    let lines = head.fields().iter();
                    let of = head.bytes();
                    let lines = lines
                        .map(|field| (field.name.of(of).to_vec(), field.value.of(of).to_vec()));
                    let fields = lines.collect();
                    if let Some(place) = self.place(stream) {
                        place.got = Answer {
                            status,
                            fields,
                            body: Vec::new(),
                        };
                    }
                    self.part(stream, &[], ends);
                }
                Event::Data {
                    stream,
                    start,
                    length,
                    ends,
                } => self.part(stream, &bytes[start..start + length], ends),
                Event::Trailers { stream } => self.part(stream, &[], true),
                Event::Reset { stream, code, .. } => self.reset(stream, code),
                Event::NotServed { stream } => {
                    if let Some(index) = self.machine.release(stream) {
                        self.places[index].end = Some(End::NotServed);
                    }
                }
                Event::GoAway(code) => self.goes_away = Some(code),
                Event::Interim { .. } | Event::Pong => {}
            }
        }
        Ok(())
    }

    fn place(&mut self, stream: u32) -> Option<&mut Place> {
        let index = *self.machine.user(stream)?;
        self.places.get_mut(index)
    }

    fn part(&mut self, stream: u32, bytes: &[u8], ends: bool) {
        let Some(place) = self.place(stream) else {
            return;
        };
        place.got.body.extend_from_slice(bytes);
        place.unread += bytes.len();
        if ends {
            place.unread = 0;
            place.end = Some(End::Answered);
            self.machine.release(stream);
        }
    }

    /// The server has ended a stream before its end.
    fn reset(&mut self, stream: u32, code: ErrorCode) {
        let Some(index) = self.machine.release(stream) else {
            return;
        };
        let place = &mut self.places[index];
        match code {
            // Places are free once the work for what was given up has ended.
            ErrorCode::RefusedStream if place.tries < TRIES_MAX => self.to_open.push(index),
            _ => {
                place.end = Some(End::Reset(code));
                place.unread = 0;
            }
        }
    }

    /// Whether all that has ended was right.
    fn check(&mut self) -> Result<(), String> {
        let (fragile, has_left) = (self.manners.fragile, self.has_left);
        for place in &mut self.places {
            // Each is looked at once.
            if place.end == Some(End::Answered) && place.sent != usize::MAX {
                place.sent = usize::MAX;
                // The server behind may have been lost.
                if fragile && place.got.status == Some(502) {
                    place.end = Some(End::Broken);
                    continue;
                }
                place.wish.check(&place.got, true)?;
            }
            if let Some(End::Reset(code)) = place.end
                && !fragile
                && !has_left
            {
                let (sent, got) = (place.sent, place.got.body.len());
                return Err(format!(
                    "{}: reset with {code:?} after {sent} bytes of {} and {got} back",
                    place.wish.logged,
                    place.wish.body.len()
                ));
            }
        }
        Ok(())
    }

    /// Ends the connection in order.
    pub(crate) fn say_goodbye(mut self) {
        self.machine.send_goaway();
        self.stream.push(Bytes::from(self.machine.take_output()));
        self.stream.finish();
    }
}
