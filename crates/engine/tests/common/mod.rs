//! Whether the tests of io_uring run: the rule of `support::engines`, which rests on this crate.

use engine::EngineKind;

/// Whether io_uring is to be tested: unless TIDEGATE_ENGINES leaves it out.
///
/// # Panics
///
/// Where it is to be tested and the kernel or a filter of system calls does not permit it.
pub(crate) fn with_io_uring() -> bool {
    let wanted = std::env::var("TIDEGATE_ENGINES").map_or(true, |engines| {
        engines.split(',').any(|name| name.trim() == "io_uring")
    });
    let (kind, reason) = engine::choose(Some(EngineKind::Uring));
    assert!(
        !wanted || kind == EngineKind::Uring,
        "{reason}; TIDEGATE_ENGINES=epoll leaves the tests of io_uring out"
    );
    wanted
}
