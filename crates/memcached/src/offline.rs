//! A client of a cache without a network: what it says goes in as bytes, at a time that the caller
//! names, and what it is answered comes out. For fuzzing and simulation.

use std::sync::Arc;
use std::time::Instant;

use crate::cache::{Cache, CommandTime, Settings, ThreadContext};
use crate::datagrams;
use crate::dialogue::{Dialogue, NextAction};
use crate::output::Output;

/// The wall clock at the beginning of the cache's.
const WALL: u64 = 1_800_000_000;

/// A server with one thread and without sockets.
pub struct OfflineServer(ThreadContext);

/// A connection to it.
pub struct OfflineClient {
    dialogue: Dialogue,
    is_closed: bool,
}

impl OfflineServer {
    /// An empty cache with these settings.
    #[must_use]
    pub fn new(settings: Settings) -> OfflineServer {
        let cache = Cache::new(settings, Instant::now(), Box::new(|_| {}));
        OfflineServer(ThreadContext::new(Arc::new(cache)))
    }

    /// What is answered to a datagram, a datagram each, so many seconds after the start.
    #[must_use]
    pub fn datagram(&self, seconds: u32, datagram: &[u8]) -> Vec<Vec<u8>> {
        let mut answers = Vec::new();
        datagrams::answer(datagram, &self.0, at(seconds), |bytes| {
            answers.push(bytes.to_vec());
        });
        answers
    }

    /// Bytes that the cache occupies, and how many it may.
    #[must_use]
    pub fn occupied(&self) -> (usize, usize) {
        let counts = self.0.cache.store.counts();
        (counts.occupied, counts.limit)
    }

    /// Frees what has expired.
    pub fn sweep(&self, seconds: u32) {
        while self.0.cache.store.sweep(at(seconds).now) {}
    }
}

fn at(seconds: u32) -> CommandTime {
    CommandTime {
        now: seconds.saturating_add(100),
        wall: WALL + u64::from(seconds),
    }
}

impl Default for OfflineClient {
    fn default() -> OfflineClient {
        OfflineClient {
            dialogue: Dialogue::new(),
            is_closed: false,
        }
    }
}

impl OfflineClient {
    /// What is answered to these bytes, so many seconds after the start; nothing once the
    /// connection is closed.
    pub fn send(&mut self, server: &OfflineServer, seconds: u32, mut bytes: &[u8]) -> Vec<u8> {
        let mut answers = Vec::new();
        let mut out = Output::default();
        while !self.is_closed {
            let next = self.dialogue.take(bytes, &server.0, at(seconds), &mut out);
            bytes = &[];
            answers.extend(out.take().flatten());
            match next {
                NextAction::Send => {}
                NextAction::Receive => break,
                NextAction::Close | NextAction::CloseFaulty | NextAction::Watch(_) => {
                    self.is_closed = true;
                }
            }
        }
        answers
    }

    /// Whether the server has closed the connection, or only tells it what happens from now on.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }
}
