//! The engines that the tests run on: epoll and io_uring, or those that TIDEGATE_ENGINES names.
//!
//! A server that is not permitted io_uring falls back to epoll and says so in its log, so a test
//! would pass without having tested anything. Here such a machine fails the test, unless
//! `TIDEGATE_ENGINES=epoll` says that it is meant.

use engine::EngineKind;

/// The variable of the environment that names the engines, with a comma between them.
const VARIABLE: &str = "TIDEGATE_ENGINES";

/// The line of `events` for tests that one engine is enough for.
pub const EPOLL: &str = "use epoll;";

/// The names of the engines to test on.
///
/// # Panics
///
/// Where io_uring is to be tested and the kernel or a filter of system calls does not permit it.
pub fn names() -> Vec<&'static str> {
    let wanted = std::env::var(VARIABLE).ok();
    let probe = || match engine::choose(Some(EngineKind::Uring)) {
        (EngineKind::Uring, _) => Ok(()),
        (_, reason) => Err(reason),
    };
    chosen(wanted.as_deref(), probe).unwrap_or_else(|message| panic!("{message}"))
}

/// The same as lines of `events`.
///
/// # Panics
///
/// As [`names`] does.
pub fn lines() -> Vec<&'static str> {
    let line = |name| match name {
        "io_uring" => "use io_uring;",
        _ => EPOLL,
    };
    names().into_iter().map(line).collect()
}

/// Whether io_uring is to be tested.
///
/// # Panics
///
/// As [`names`] does.
pub fn with_io_uring() -> bool {
    names().contains(&"io_uring")
}

/// Runs a test on one engine, by its line of `events`, if that is to be tested. nginx has one.
///
/// # Panics
///
/// As [`names`] and the test do.
pub fn run(engine: &str, test: impl FnOnce(&'static str)) {
    let wanted = format!("use {engine};");
    if wanted != EPOLL && crate::is_nginx() {
        return;
    }
    if let Some(line) = lines().into_iter().find(|line| *line == wanted) {
        test(line);
    }
}

/// Makes two tests of a function that takes an engine's line of `events`: `epoll` and `io_uring` in
/// a module of the function's name.
#[macro_export]
macro_rules! test_on_each_engine {
    ($test:ident) => {
        mod $test {
            #[test]
            fn epoll() {
                $crate::engines::run("epoll", super::$test);
            }

            #[test]
            fn io_uring() {
                $crate::engines::run("io_uring", super::$test);
            }
        }
    };
}

fn chosen(
    wanted: Option<&str>,
    probe: impl Fn() -> Result<(), String>,
) -> Result<Vec<&'static str>, String> {
    let names: Vec<&str> = match wanted {
        None => vec!["epoll", "io_uring"],
        Some(list) => list.split(',').map(str::trim).collect(),
    };
    let known = |name: &str| match name {
        "epoll" => Ok("epoll"),
        "io_uring" => probe().map(|()| "io_uring").map_err(|reason| {
            format!("{reason}; {VARIABLE}=epoll leaves the tests of io_uring out")
        }),
        other => Err(format!("{VARIABLE} names an unknown engine: {other:?}")),
    };
    names.into_iter().map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_io_uring_fails_unless_it_is_meant() {
        let works = || Ok(());
        let forbidden = || Err("io_uring is forbidden".to_owned());
        assert_eq!(chosen(None, works).unwrap(), ["epoll", "io_uring"]);
        assert_eq!(chosen(Some("io_uring"), works).unwrap(), ["io_uring"]);
        assert_eq!(chosen(Some("epoll"), forbidden).unwrap(), ["epoll"]);
        assert_eq!(
            chosen(None, forbidden).unwrap_err(),
            "io_uring is forbidden; TIDEGATE_ENGINES=epoll leaves the tests of io_uring out"
        );
        assert!(chosen(Some("epoll,io_uring"), forbidden).is_err());
        assert!(chosen(Some("kqueue"), works).is_err());
    }
}
