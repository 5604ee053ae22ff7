//! Chooses the engine: the requested one if the kernel supports it, otherwise epoll.

use crate::uring;

/// The available engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// Readiness by `epoll`; works on every Linux.
    Epoll,
    /// Completions from `io_uring`; needs Linux 6.1 and the permission to use it.
    Uring,
    /// Connections of one interface by AF_XDP and our own TCP; everything else by `epoll`.
    Xdp,
    /// A network and a clock inside the process, for tests.
    Sim,
}

impl std::fmt::Display for EngineKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            EngineKind::Epoll => "epoll",
            EngineKind::Uring => "io_uring",
            EngineKind::Xdp => "xdp",
            EngineKind::Sim => "simulation",
        })
    }
}

/// The engine to use if `wanted` is configured, and the reason in words for the log. Of the
/// requested engines only io_uring is probed.
#[must_use]
pub fn choose(wanted: Option<EngineKind>) -> (EngineKind, String) {
    match wanted {
        Some(EngineKind::Uring) => match uring::probe() {
            Ok(()) => (EngineKind::Uring, "as configured".to_owned()),
            Err(reason) => (
                EngineKind::Epoll,
                format!("io_uring was asked for, but {reason}"),
            ),
        },
        Some(kind) => (kind, "as configured".to_owned()),
        None => match uring::probe() {
            Ok(()) => (
                EngineKind::Epoll,
                "the default; io_uring works here too".to_owned(),
            ),
            Err(reason) => (EngineKind::Epoll, format!("the default; {reason}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_taken_where_it_works() {
        assert_eq!(choose(Some(EngineKind::Epoll)).0, EngineKind::Epoll);
        assert_eq!(choose(Some(EngineKind::Sim)).0, EngineKind::Sim);
        let (kind, reason) = choose(Some(EngineKind::Uring));
        assert_eq!(kind == EngineKind::Uring, reason == "as configured");
        assert_ne!(choose(None).0, EngineKind::Sim);
    }
}
