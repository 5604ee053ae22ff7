//! What frees the items that have expired, beside service: one thread for all caches of a
//! configuration.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use framework::generation::Generation;
use framework::service::{RunningService, Service};
use framework::zone::Zone;

use crate::zone::ZonedCache;

/// How often the sweeper looks.
const INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Sweeper(pub(crate) Vec<Arc<Zone<ZonedCache>>>);

/// The sweeper's thread ends when this is dropped.
struct Sweeping {
    _end: Sender<()>,
}

impl Service for Sweeper {
    fn key(&self) -> String {
        "memcached".to_owned()
    }

    fn start(&self, _: &Arc<Generation>, _: Option<RunningService>) -> Option<RunningService> {
        let zones = self.0.clone();
        let (end, ended) = channel::<()>();
        let sweep = move || {
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let caches = zones.iter().filter_map(|zone| zone.state().existing());
                let mut is_trim_due = false;
                for cache in caches {
                    while cache.sweep(Instant::now()) {}
                    is_trim_due |= cache.shrink(Instant::now()) | cache.is_trim_due();
                }
                if is_trim_due {
                    engine::trim_now();
                }
            }
        };
        let started = thread::Builder::new()
            .name("memcached sweeper".to_owned())
            .spawn(sweep);
        match started {
            Ok(_) => Some(Box::new(Sweeping { _end: end })),
            Err(error) => {
                logs::event!(Alert, "the sweeper of memcached was not started: {error}");
                None
            }
        }
    }
}
