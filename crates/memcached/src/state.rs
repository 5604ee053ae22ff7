//! `state=FILE` of a zone: its items are written there when the process ends, and read beside
//! service by the one that follows.
//!
//! ```text
//! waits for the file to be its own ─▶ reads it ─▶ waits for the end ─▶ waits for clients ─▶ writes it
//! ```
//!
//! Whose the file is a lock on `FILE.lock` says: after an upgrade of the program the process before
//! holds it until it has written its items. What clients have changed in this one meanwhile stays
//! changed.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use engine::ExitBlocker;
use framework::generation::Generation;
use framework::service::{RunningService, Service};
use framework::zone::Zone;
use rustix::fs::{FlockOperation, flock};

use crate::cache::Cache;
use crate::saved::{self, RestoredCounts};
use crate::zone::ZonedCache;

/// How often a file is asked for that another process still has.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);

/// How long a process that ends waits for items to be written. One that is to end at once waits
/// for less ([`engine::hasten_background`]).
const SAVE_MAX: Duration = Duration::from_secs(60);

/// How long clients that are being answered may go on before items are written.
const CLIENTS_MAX: Duration = Duration::from_secs(5);

/// Keeps the items of a zone over a restart.
pub(crate) struct StateKeeper {
    pub(crate) zone: Arc<Zone<ZonedCache>>,
    pub(crate) path: PathBuf,
}

/// The thread of a keeper. It is told to end when this is dropped, and the process does not end
/// before it has.
struct KeeperAtWork {
    state: Arc<ZonedCache>,
    unfinished: Arc<OnceLock<ExitBlocker>>,
    /// Dropping it tells the thread to end.
    end: Option<Sender<()>>,
}

impl Drop for KeeperAtWork {
    fn drop(&mut self) {
        // The thread must not have ended before it is waited for.
        let unfinished = || ExitBlocker::for_at_most(SAVE_MAX, "the items of memcached");
        self.unfinished.get_or_init(unfinished);
        self.end = None;
    }
}

impl Service for StateKeeper {
    fn key(&self) -> String {
        format!("memcached state {}", self.path.display())
    }

    fn start(&self, _: &Arc<Generation>, before: Option<RunningService>) -> Option<RunningService> {
        let state = self.zone.state();
        if let Some(before) = before {
            let known = before.downcast_ref::<KeeperAtWork>();
            if known.is_some_and(|known| Arc::ptr_eq(&known.state, state)) {
                return Some(before);
            }
            // The cache is another now: it goes on with what the one before writes.
            drop(before);
        }
        let cache = state.cache(self.zone.settings());
        cache.overtaken().begin();
        let unfinished = Arc::<OnceLock<ExitBlocker>>::default();
        let (end, ended) = channel();
        let keeper = StateWriter {
            cache: Arc::clone(&cache),
            path: self.path.clone(),
            ended,
            unfinished: Arc::clone(&unfinished),
        };
        let started = thread::Builder::new()
            .name("memcached state".to_owned())
            .spawn(move || keeper.keep());
        if let Err(error) = started {
            cache.overtaken().end();
            logs::event!(
                Alert,
                "the thread of memcached's state was not started: {error}"
            );
            return None;
        }
        Some(Box::new(KeeperAtWork {
            state: Arc::clone(state),
            unfinished,
            end: Some(end),
        }))
    }
}

/// What the thread works with.
struct StateWriter {
    cache: Arc<Cache>,
    path: PathBuf,
    ended: Receiver<()>,
    /// There once the thread has been told to end.
    unfinished: Arc<OnceLock<ExitBlocker>>,
}

impl StateWriter {
    fn keep(self) {
        let path = self.path.display();
        let lock = match self.own() {
            Ok(Some(lock)) => lock,
            Ok(None) => {
                return logs::event!(
                    Warn,
                    "items of memcached are not kept in \"{path}\": another process has the file"
                );
            }
            Err(error) => {
                self.cache.overtaken().end();
                let error = logs::Errno(&error);
                return logs::event!(
                    Alert,
                    "items of memcached are not kept in \"{path}\" {error}"
                );
            }
        };
        self.restore();
        // Nothing is ever sent: the other end is dropped.
        let _ = self.ended.recv();
        self.wait_for_clients();
        let goes_on = || !self.is_given_up();
        match saved::save_while(&self.cache, &self.path, Instant::now(), goes_on) {
            Ok(Some(count)) => logs::event!(Notice, "{count} items of memcached are in \"{path}\""),
            Ok(None) => {
                logs::event!(
                    Error,
                    "items of memcached were not written to \"{path}\" in time"
                );
            }
            Err(error) => {
                let error = logs::Errno(&error);
                logs::event!(
                    Error,
                    "items of memcached were not written to \"{path}\" {error}"
                );
            }
        }
        drop(lock);
    }

    /// Waits until no other process has the file, or this one ends.
    fn own(&self) -> io::Result<Option<File>> {
        let mut name = self.path.clone().into_os_string();
        name.push(".lock");
        let file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(Path::new(&name))?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(file)),
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(error) => return Err(error.into()),
            }
            match self.ended.recv_timeout(LOCK_INTERVAL) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => return Ok(None),
            }
        }
    }

    /// Reads what the process before has written.
    fn restore(&self) {
        let path = self.path.display();
        let opened = match saved::open_beside(&self.cache, &self.path) {
            Ok(opened) => opened,
            Err(text) => {
                // It would never fit again, and be in the way of the next one.
                let mut unknown = self.path.clone().into_os_string();
                unknown.push(".unknown");
                let _ = fs::rename(&self.path, &unknown);
                logs::event!(
                    Error,
                    "{text}; it is put aside, its name ends with \".unknown\" now"
                );
                None
            }
        };
        let Some(saved) = opened else {
            return self.cache.overtaken().end();
        };
        let RestoredCounts {
            restored,
            left_out,
            is_damaged,
        } = saved.restore(&self.cache);
        logs::event!(
            Notice,
            "{restored} items of memcached were read from \"{path}\", {left_out} were left out"
        );
        if is_damaged {
            logs::event!(
                Error,
                "\"{path}\" is damaged behind the items that were read"
            );
        }
    }

    /// Clients that are being answered may still store something.
    fn wait_for_clients(&self) {
        let until = Instant::now() + CLIENTS_MAX;
        while self.cache.connections.load(Ordering::Relaxed) > 0
            && Instant::now() < until
            && !self.is_given_up()
        {
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_given_up(&self) -> bool {
        self.unfinished.get().is_some_and(ExitBlocker::is_given_up)
    }
}
