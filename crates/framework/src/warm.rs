//! Paths that a thread has resolved recently: the kernel has them cached, so resolving them again
//! needs no disk access.
//!
//! A call such as `stat()` has no non-blocking form. So the event loop makes such a call only for
//! paths that were resolved within `SEEN_FOR`. For other paths, a thread of the pool makes the
//! call.

use std::cell::RefCell;
use std::path::Path;
use std::time::{Duration, Instant};

use base::hash::Map;

/// How long after its last resolution a path counts as cached.
pub const SEEN_FOR: Duration = Duration::from_secs(10);

/// Maximum number of paths that a thread remembers. Without a limit there could be any number,
/// since paths may contain variables.
const PATHS_MAX: usize = 256;

thread_local! {
    static SEEN: RefCell<Map<Box<Path>, Instant>> = RefCell::default();
}

/// Whether the path was resolved recently, so that the caller may access it inline. If so, the time
/// of the last resolution is renewed.
pub fn was_checked_recently(path: &Path) -> bool {
    let now = engine::now();
    SEEN.with_borrow_mut(|seen| match seen.get_mut(path) {
        Some(moment) if now.duration_since(*moment) <= SEEN_FOR => {
            *moment = now;
            true
        }
        _ => false,
    })
}

/// Notes that the path was resolved, successfully or not.
pub fn looked_at(path: &Path) {
    SEEN.with_borrow_mut(|seen| {
        if seen.len() >= PATHS_MAX {
            seen.clear();
        }
        seen.insert(path.into(), engine::now());
    });
}

/// Forgets all paths of this thread, for tests of the first access to a path.
pub fn forget() {
    SEEN.with_borrow_mut(Map::clear);
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::sim::{self, Faults};

    #[test]
    fn a_path_is_warm_for_ten_seconds_after_each_look() {
        let mut runtime = sim::runtime(0, Faults::default(), engine::Settings::default()).unwrap();
        runtime.block_on(async {
            let path = Path::new("/a");
            assert!(!was_checked_recently(path));
            looked_at(path);
            for _ in 0..3 {
                engine::sleep(Duration::from_secs(9)).await;
                assert!(was_checked_recently(path));
            }
            engine::sleep(Duration::from_secs(11)).await;
            assert!(!was_checked_recently(path));
            looked_at(path);
            assert!(was_checked_recently(path) && !was_checked_recently(Path::new("/b")));
        });
    }
}
