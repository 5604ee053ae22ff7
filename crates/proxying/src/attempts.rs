//! What a request saw of its upstreams: for variables and log lines.

use std::any::Any;
use std::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use engine::Spares;
use http::request::Request;
use http::request::upstream_report::UpstreamReport;
use http::response::Field;

use super::answer::AnswerHead;
use crate::cache::{CacheStatus, Validators};

/// One attempt at one peer, for `$upstream_*`.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    /// Address as `$upstream_addr` shows it.
    pub peer: Bytes,
    /// Status of its answer, 0 without one.
    pub status: u16,
    /// How long it had waited for a peer.
    pub queue_time: Option<Duration>,
    /// Until the connection stood.
    pub connect_time: Option<Duration>,
    /// Until the head of the answer had come.
    pub header_time: Option<Duration>,
    /// Until the last byte of the answer.
    pub response_time: Option<Duration>,
    /// Bytes sent to it.
    pub bytes_sent: u64,
    /// Bytes received from it.
    pub bytes_received: u64,
    /// Bytes of its answer behind the head, as they came: framing and what is too much included.
    pub response_length: u64,
}

/// What a request saw of its upstreams, shared with the body of the answer, which sees the rest.
#[derive(Debug, Default)]
pub struct Attempts(RefCell<History>);

/// Of how many requests a thread keeps the memory for the next ones.
const SPARES_MAX: usize = 1024;

/// More than a few tries are seldom: longer lists are not kept.
const SPARE_TRIES_MAX: usize = 4;

thread_local! {
    static SPARES: Spares<Rc<Attempts>, SPARES_MAX> = const { Spares::new(|| SPARES.with(Spares::clear)) };
}

/// What is asked for, and of which peer.
#[derive(Debug)]
pub struct AskedFor {
    /// `http://` or its like.
    pub scheme: &'static [u8],
    /// The peer's address, or the group where none is left.
    pub peer: Bytes,
    /// The URI in the request.
    pub uri: Bytes,
}

impl AskedFor {
    /// What error lines show: `http://127.0.0.1:8081/path`.
    fn url(&self) -> Vec<u8> {
        let separator: &[u8] = if self.peer.starts_with(b"unix:") {
            b":"
        } else {
            b""
        };
        [self.scheme, &*self.peer, separator, &*self.uri].concat()
    }
}

/// What there is to tell of the upstreams so far.
#[derive(Debug, Default)]
pub struct History {
    /// The attempts in the order in which they were made.
    pub attempts: Vec<Attempt>,
    /// What is asked for, once a peer has been chosen.
    pub asked_for: Option<AskedFor>,
    /// The answer's head of the history.
    pub answer: Option<AnswerHead>,
    /// The answer's trailer fields.
    pub trailers: Vec<Field>,
    /// When the try under way began.
    pub began: Began,
    /// What has come of asking the cache, where one is on.
    pub cache_status: Option<CacheStatus>,
    /// By what the upstream is asked whether what the cache has is still right.
    pub validators: Validators,
}

/// When a try began, if it has, by the time for which its thread has been running.
#[derive(Clone, Copy, Debug, Default)]
pub struct Began(Option<Duration>);

impl Attempts {
    /// The attempts of a request; `None` if it has asked no upstream.
    pub fn of(request: &Request) -> Option<&Attempts> {
        let asked: &dyn Any = &**request.upstream.as_ref()?;
        asked.downcast_ref()
    }

    /// The attempts of a request; creates the list if there is none.
    pub fn enter(request: &mut Request) -> Rc<Attempts> {
        let asked = request
            .upstream
            .clone()
            .map(|asked| -> Rc<dyn Any> { asked });
        if let Some(known) = asked.and_then(|asked| asked.downcast().ok()) {
            return known;
        }
        Attempts::begin(request, Vec::new())
    }

    /// New ones behind the tries of an earlier pass, if there was one.
    pub fn begin_anew(request: &mut Request) -> Rc<Attempts> {
        let Some(earlier) = Attempts::of(request) else {
            let begun = SPARES.with(Spares::take);
            let begun = begun.unwrap_or_else(|| Rc::new(Attempts::with(Vec::with_capacity(1))));
            request.upstream = Some(begun.clone());
            return begun;
        };
        let mut attempts = earlier.borrow_mut().take();
        if !attempts.is_empty() {
            attempts.push(Attempt::default());
        }
        Attempts::begin(request, attempts)
    }

    /// New ones behind these tries, which an earlier pass has made.
    pub fn begin(request: &mut Request, attempts: Vec<Attempt>) -> Rc<Attempts> {
        let begun = Rc::new(Attempts::with(attempts));
        request.upstream = Some(begun.clone());
        begun
    }

    /// These tries, and nothing else.
    fn with(attempts: Vec<Attempt>) -> Attempts {
        Attempts(RefCell::new(History {
            attempts,
            ..History::default()
        }))
    }

    /// The attempts so far.
    pub fn borrow(&self) -> Ref<'_, History> {
        self.0.borrow()
    }

    /// The attempts so far, to add to them.
    pub fn borrow_mut(&self) -> RefMut<'_, History> {
        self.0.borrow_mut()
    }
}

impl UpstreamReport for Attempts {
    fn show(&self, show: &mut dyn FnMut(&[u8])) {
        match &self.borrow().asked_for {
            Some(asked_for) => show(&asked_for.url()),
            None => show(b""),
        }
    }

    fn end(&self) {
        self.borrow_mut().end();
    }

    fn put_away(mut self: Rc<Attempts>) {
        let Some(Attempts(history)) = Rc::get_mut(&mut self) else {
            return; // the body of an answer goes on
        };
        let history = history.get_mut();
        if history.attempts.capacity() > SPARE_TRIES_MAX {
            return;
        }
        // Every member has its name here: one that is added does not build before it is forgotten,
        // too. Most are as they began.
        let History {
            attempts,
            asked_for,
            answer,
            trailers,
            began,
            cache_status,
            validators,
        } = history;
        attempts.clear();
        *asked_for = None;
        *answer = None;
        *trailers = Vec::new();
        *began = Began::default();
        *cache_status = None;
        *validators = Validators::default();
        // A thread that ends keeps nothing.
        let _ = SPARES.try_with(|spares| spares.keep(self));
    }
}

impl History {
    /// The try under way.
    fn attempt(&mut self) -> Option<&mut Attempt> {
        self.attempts.last_mut()
    }

    /// Writes down something of the try under way, of which it is told when it began.
    pub fn note(&mut self, write: impl FnOnce(&mut Attempt, Began)) {
        let began = self.began;
        if let Some(attempt) = self.attempt() {
            write(attempt, began);
        }
    }

    /// How many of so many bytes that the try under way has received do not count yet.
    pub fn not_counted(&self, received: u64) -> u64 {
        let counted = self.attempts.last();
        received.saturating_sub(counted.map_or(0, |attempt| attempt.bytes_received))
    }

    /// The tries are over. One whose answer has not been read to its end, as after HEAD, has taken
    /// until now.
    pub fn end(&mut self) {
        let began = self.began;
        if let Some(attempt) = self.attempt()
            && !attempt.peer.is_empty()
            && attempt.response_time.is_none()
        {
            attempt.response_time = began.elapsed();
        }
    }

    /// Its tries, which are over.
    pub fn take(&mut self) -> Vec<Attempt> {
        self.end();
        std::mem::take(&mut self.attempts)
    }
}

impl Began {
    pub(crate) fn now() -> Began {
        Began(Some(engine::uptime()))
    }

    /// The time since then.
    pub fn elapsed(self) -> Option<Duration> {
        Some(engine::uptime().saturating_sub(self.0?))
    }
}
