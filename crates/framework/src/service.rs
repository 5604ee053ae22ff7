//! Background services that outlive a reload, such as the threads that renew certificates.
//!
//! A generation lists the services that it wants. Running services belong to the process, one per
//! key, however many generations still serve:
//!
//! ```text
//! prepared:  every service prepares what requests need from the start ([`Service::prepare`])
//! committed: unwanted services end, all others start or continue ([`Services::reconcile`])
//! ```
//!
//! Not here: the threads. A service starts its own, or continues with running ones.

use std::any::Any;
use std::sync::Arc;

use base::hash::Map;

use crate::generation::Generation;

/// A background service that a configuration wants.
pub trait Service: Send + Sync + 'static {
    /// Identifies the service: a process runs one per key.
    fn key(&self) -> String;

    /// Prepares what requests need from the start. The configuration has not taken effect yet, and
    /// may never do so.
    fn prepare(&self) {}

    /// Starts the service after its configuration, `generation`, has taken effect. `before` is the
    /// running service with the same key: return it to continue it, or drop it to end it. `None` if
    /// the service could not be started, which it has logged.
    fn start(
        &self,
        generation: &Arc<Generation>,
        before: Option<RunningService>,
    ) -> Option<RunningService>;
}

/// A running service. Dropping it tells it to end.
pub type RunningService = Box<dyn Any + Send>;

/// The running services of a process.
#[derive(Default)]
pub struct Services(Map<String, RunningService>);

impl Services {
    /// Starts the services that a generation wants, and ends all others. Of two with the same key
    /// the first one runs.
    pub fn reconcile(&mut self, generation: &Arc<Generation>) {
        let wanted = &generation.services;
        let mut before = std::mem::take(&mut self.0);
        before.retain(|key, _| wanted.iter().any(|service| service.key() == *key));
        for service in wanted {
            let key = service.key();
            if self.0.contains_key(&key) {
                continue;
            }
            if let Some(running) = service.start(generation, before.remove(&key)) {
                self.0.insert(key, running);
            }
        }
    }

    /// Tells all services to end.
    pub fn stop(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::zone::Zones;

    /// The events, in order.
    type Diary = Arc<Mutex<Vec<String>>>;

    fn write(diary: &Diary, line: String) {
        diary
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(line);
    }

    fn taken(diary: &Diary) -> Vec<String> {
        std::mem::take(&mut *diary.lock().unwrap())
    }

    /// Runs until it is dropped.
    struct AtWork(String, Diary);

    impl Drop for AtWork {
        fn drop(&mut self) {
            write(&self.1, format!("{} ends", self.0));
        }
    }

    /// A service that continues over reloads as long as its setting is the same.
    struct Check {
        key: &'static str,
        setting: u32,
        diary: Diary,
    }

    impl Service for Check {
        fn key(&self) -> String {
            self.key.to_owned()
        }

        fn start(
            &self,
            _: &Arc<Generation>,
            before: Option<RunningService>,
        ) -> Option<RunningService> {
            let name = format!("{} {}", self.key, self.setting);
            let same = |running: &RunningService| {
                let known = running.downcast_ref::<AtWork>();
                known.is_some_and(|known| known.0 == name)
            };
            if let Some(before) = before.filter(same) {
                write(&self.diary, format!("{name} goes on"));
                return Some(before);
            }
            if self.setting == 0 {
                return None;
            }
            write(&self.diary, format!("{name} starts"));
            Some(Box::new(AtWork(name, Arc::clone(&self.diary))))
        }
    }

    fn wanted(diary: &Diary, services: &[(&'static str, u32)]) -> Arc<Generation> {
        let services = services.iter().map(|(key, setting)| {
            let diary = Arc::clone(diary);
            let (key, setting) = (*key, *setting);
            Arc::new(Check {
                key,
                setting,
                diary,
            }) as Arc<dyn Service>
        });
        let mut generation = Generation::new(Zones::default());
        generation.services = services.collect();
        Arc::new(generation)
    }

    #[test]
    fn one_runs_under_each_key_and_outlives_a_reload() {
        let diary = Diary::default();
        let mut services = Services::default();
        services.reconcile(&wanted(&diary, &[("a", 1), ("b", 1), ("c", 1), ("a", 7)]));
        assert_eq!(taken(&diary), ["a 1 starts", "b 1 starts", "c 1 starts"]);
        services.reconcile(&wanted(&diary, &[("a", 1), ("b", 2)]));
        assert_eq!(
            taken(&diary),
            ["c 1 ends", "a 1 goes on", "b 1 ends", "b 2 starts"]
        );
        services.stop();
        let mut ended = taken(&diary);
        ended.sort();
        assert_eq!(ended, ["a 1 ends", "b 2 ends"]);
    }

    /// A service that could not be started is started by the next reload.
    #[test]
    fn what_did_not_start_does_not_run() {
        let diary = Diary::default();
        let mut services = Services::default();
        services.reconcile(&wanted(&diary, &[("a", 0)]));
        assert_eq!(taken(&diary), [""; 0]);
        services.reconcile(&wanted(&diary, &[("a", 3)]));
        assert_eq!(taken(&diary), ["a 3 starts"]);
    }
}
