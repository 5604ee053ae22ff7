//! What tests of conversations share: a server and its clients without a network.

use std::sync::Arc;
use std::time::Instant;

use crate::cache::{Cache, CommandTime, Protocol, Settings, ThreadContext};
use crate::dialogue::{Dialogue, NextAction};
use crate::output::{OUTPUT_MAX, Output};

pub(crate) const MOMENT: CommandTime = CommandTime {
    now: 100,
    wall: 1_800_000_000,
};

pub(crate) fn settings() -> Settings {
    Settings {
        limit: 64 << 20,
        refuses_when_full: false,
        item_max: 1 << 20,
        connections_max: Some(10),
        threads: 1,
        backlog: 5,
        protocol: Protocol::Auto,
        allows_flush: true,
        allows_dump: true,
        allows_shutdown: false,
        verbosity: 0,
        idle_timeout: None,
        port: 11211,
        udp_port: 0,
        interfaces: None,
        socket_path: None,
        socket_mask: 0o077,
        ..Settings::default()
    }
}

pub(crate) fn shared_by(settings: Settings) -> ThreadContext {
    let cache = Cache::new(settings, Instant::now(), Box::new(|_| {}));
    ThreadContext::new(Arc::new(cache))
}

/// One client of a server.
pub(crate) struct Client {
    pub(crate) conversation: Dialogue,
    pub(crate) out: Output,
    pub(crate) answers: Vec<u8>,
    pub(crate) is_closed: bool,
}

impl Client {
    pub(crate) fn new() -> Client {
        Client {
            conversation: Dialogue::new(),
            out: Output::default(),
            answers: Vec::new(),
            is_closed: false,
        }
    }

    pub(crate) fn send(&mut self, shared: &ThreadContext, moment: CommandTime, mut bytes: &[u8]) {
        loop {
            let next = self.conversation.take(bytes, shared, moment, &mut self.out);
            bytes = &[];
            assert!(self.out.len() < OUTPUT_MAX + (1 << 20) + 1000);
            self.answers.extend(self.out.take().flatten());
            self.is_closed |= matches!(next, NextAction::Close | NextAction::CloseFaulty);
            if next != NextAction::Send {
                return;
            }
        }
    }
}
