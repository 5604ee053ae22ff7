//! The attempts of a request at upstream peers, for `$upstream_*` variables and log lines.

use std::any::Any;
use std::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::Spares;
use http::request::Request;
use http::request::upstream_report::UpstreamReport;
use http::response::Field;

use super::answer::AnswerHead;
use crate::cache::{CacheStatus, Validators, Zone};

/// One attempt at one peer, for `$upstream_*`.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    /// Address as `$upstream_addr` shows it.
    pub peer: Bytes,
    /// Status of the response; 0 without one.
    pub status: u16,
    /// How long the request waited in the queue.
    pub queue_time: Option<Duration>,
    /// Time until the connection was established.
    pub connect_time: Option<Duration>,
    /// Time until the response head.
    pub header_time: Option<Duration>,
    /// Time until the last byte of the response.
    pub response_time: Option<Duration>,
    /// Bytes sent to the peer.
    pub bytes_sent: u64,
    /// Bytes received from the peer.
    pub bytes_received: u64,
    /// Bytes received behind the response head, with framing and excess bytes.
    pub response_length: u64,
}

/// The history of a request's attempts. The response body shares it, and records in it how the
/// response ends.
#[derive(Debug, Default)]
pub struct Attempts(RefCell<History>);

/// Maximum number of histories that a thread keeps for reuse.
const SPARES_MAX: usize = 1024;

/// Maximum capacity, in attempts, of a history that is kept for reuse; more attempts are rare.
const SPARE_TRIES_MAX: usize = 4;

thread_local! {
    static SPARES: Spares<Rc<Attempts>, SPARES_MAX> = const { Spares::new(|| SPARES.with(Spares::clear)) };
}

/// The upstream request, for log lines.
#[derive(Debug)]
pub struct AskedFor {
    /// The scheme with its separator, such as `http://`.
    pub scheme: &'static [u8],
    /// The peer's address, or the name of the group if no peer is left.
    pub peer: Bytes,
    /// The URI in the request.
    pub uri: Bytes,
}

impl AskedFor {
    /// The URL in log lines: `http://127.0.0.1:8081/path`.
    fn url(&self) -> Vec<u8> {
        let separator: &[u8] = if self.peer.starts_with(b"unix:") {
            b":"
        } else {
            b""
        };
        [self.scheme, &*self.peer, separator, &*self.uri].concat()
    }
}

/// The history of a request's attempts.
#[derive(Debug, Default)]
pub struct History {
    /// The attempts in the order in which they were made.
    pub attempts: Vec<Attempt>,
    /// The upstream request, once a peer has been chosen.
    pub asked_for: Option<AskedFor>,
    /// The head of the last response.
    pub answer: Option<AnswerHead>,
    /// The trailers of the response.
    pub trailers: Vec<Field>,
    /// When the current attempt began.
    pub began: Began,
    /// The result of the cache lookup, if there is a cache.
    pub cache_status: Option<CacheStatus>,
    /// The cache in which the request was looked up.
    pub(crate) cache: Option<Arc<Zone>>,
    /// The validators for revalidating a cache entry.
    pub validators: Validators,
}

/// When an attempt began, if it has, in thread uptime.
#[derive(Clone, Copy, Debug, Default)]
pub struct Began(Option<Duration>);

impl Attempts {
    /// The history of a request; `None` if the request has asked no upstream.
    pub fn of(request: &Request) -> Option<&Attempts> {
        let asked: &dyn Any = &**request.upstream.as_ref()?;
        asked.downcast_ref()
    }

    /// The history of a request, which is created if there is none.
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

    /// Begins a new history, which keeps the attempts of an earlier proxy pass of the request
    /// (before an internal redirect).
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

    /// Begins a new history behind these attempts of an earlier proxy pass.
    pub fn begin(request: &mut Request, attempts: Vec<Attempt>) -> Rc<Attempts> {
        let begun = Rc::new(Attempts::with(attempts));
        request.upstream = Some(begun.clone());
        begun
    }

    /// A history with only these attempts.
    fn with(attempts: Vec<Attempt>) -> Attempts {
        Attempts(RefCell::new(History {
            attempts,
            ..History::default()
        }))
    }

    /// Borrows the history.
    pub fn borrow(&self) -> Ref<'_, History> {
        self.0.borrow()
    }

    /// Borrows the history to add to it.
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

    fn recycle(mut self: Rc<Attempts>) {
        let Some(Attempts(history)) = Rc::get_mut(&mut self) else {
            return; // the body of a response still shares the history
        };
        let history = history.get_mut();
        if history.attempts.capacity() > SPARE_TRIES_MAX {
            return;
        }
        // Every field is named, so that a new one cannot be forgotten here.
        let History {
            attempts,
            asked_for,
            answer,
            trailers,
            began,
            cache_status,
            cache,
            validators,
        } = history;
        attempts.clear();
        *asked_for = None;
        *answer = None;
        *trailers = Vec::new();
        *began = Began::default();
        *cache_status = None;
        *cache = None;
        *validators = Validators::default();
        // Fails on a thread that is ending, which keeps nothing.
        let _ = SPARES.try_with(|spares| spares.keep(self));
    }
}

impl History {
    /// The current attempt.
    fn attempt(&mut self) -> Option<&mut Attempt> {
        self.attempts.last_mut()
    }

    /// Records a property of the current attempt; `write` also gets the time at which the attempt
    /// began.
    pub fn note(&mut self, write: impl FnOnce(&mut Attempt, Began)) {
        let began = self.began;
        if let Some(attempt) = self.attempt() {
            write(attempt, began);
        }
    }

    /// How many of `received` bytes are not in the count of the current attempt yet.
    pub fn not_counted(&self, received: u64) -> u64 {
        let counted = self.attempts.last();
        received.saturating_sub(counted.map_or(0, |attempt| attempt.bytes_received))
    }

    /// Ends the history: if the response of the last attempt was not read to its end, as after
    /// HEAD, sets its response time to the time elapsed until now.
    pub fn end(&mut self) {
        let began = self.began;
        if let Some(attempt) = self.attempt()
            && !attempt.peer.is_empty()
            && attempt.response_time.is_none()
        {
            attempt.response_time = began.elapsed();
        }
    }

    /// Ends the history, and takes its attempts.
    pub fn take(&mut self) -> Vec<Attempt> {
        self.end();
        std::mem::take(&mut self.attempts)
    }
}

impl Began {
    pub(crate) fn now() -> Began {
        Began(Some(engine::uptime()))
    }

    /// The time since the attempt began; `None` if it has not begun.
    pub fn elapsed(self) -> Option<Duration> {
        Some(engine::uptime().saturating_sub(self.0?))
    }
}
