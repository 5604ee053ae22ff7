//! Paths that a thread has looked at a moment ago: the kernel has them in memory, and looking at
//! them again takes no disk.
//!
//! A call such as `stat()` cannot be told not to wait. So what is needed on the loop is looked at
//! there only if it was seen within `SEEN_FOR`; else the thread pool looks first.

use std::cell::RefCell;
use std::path::Path;
use std::time::{Duration, Instant};

use base::hash::Map;

/// How long a path counts as one that the kernel has in memory, after it was last looked at.
pub const SEEN_FOR: Duration = Duration::from_secs(10);

/// Paths that a thread remembers; variables in them may name any number.
const PATHS_MAX: usize = 256;

thread_local! {
    static SEEN: RefCell<Map<Box<Path>, Instant>> = RefCell::default();
}

/// Whether the path was looked at a moment ago, so that the caller may do it at once. If so, that
/// counts from now on.
pub fn may_look(path: &Path) -> bool {
    let now = engine::now();
    SEEN.with_borrow_mut(|seen| match seen.get_mut(path) {
        Some(moment) if now.duration_since(*moment) <= SEEN_FOR => {
            *moment = now;
            true
        }
        _ => false,
    })
}

/// The path was looked at, whatever came of it.
pub fn looked_at(path: &Path) {
    SEEN.with_borrow_mut(|seen| {
        if seen.len() >= PATHS_MAX {
            seen.clear();
        }
        seen.insert(path.into(), engine::now());
    });
}

/// No path counts as seen on this thread any more: for tests of what happens when a path is met
/// first.
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
            assert!(!may_look(path));
            looked_at(path);
            for _ in 0..3 {
                engine::sleep(Duration::from_secs(9)).await;
                assert!(may_look(path));
            }
            engine::sleep(Duration::from_secs(11)).await;
            assert!(!may_look(path));
            looked_at(path);
            assert!(may_look(path) && !may_look(Path::new("/b")));
        });
    }
}
