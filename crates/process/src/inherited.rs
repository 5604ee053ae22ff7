//! Listening sockets that are open before this program starts. One program hands them on to the
//! next, so that no connection is refused while they change places: by their numbers in the
//! environment variable `NGINX`, as nginx does it in both directions. Or a service manager has made
//! them, and starts the server when the first client comes: sd_listen_fds(3).
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::{SocketType, sockopt};
use rustix::process::Pid;

use crate::log::{Level, Log};

/// The variable: numbers, each with a semicolon behind it.
pub(crate) const VARIABLE: &str = "NGINX";

/// The variable with the numbers of those inherited sockets that a service manager has made, in the
/// same format.
pub(crate) const ACTIVATED: &str = "TIDEGATE_ACTIVATED";

/// The number of the first socket that a service manager hands on.
const FIRST_ACTIVATED: i32 = 3;

/// A socket that is open already.
pub(crate) struct Inherited {
    pub(crate) socket: OwnedFd,
    /// Whether a service manager has made it. It keeps it open, and a Unix socket's file is its
    /// own.
    pub(crate) is_activated: bool,
}

/// The sockets that a program before this one has handed on; none where no program has. To be
/// called once.
///
/// A program without a socket hands on an empty list, so an empty variable counts. One in which no
/// number stands is somebody else's variable of that name.
pub(crate) fn take(log: &Log) -> Option<Vec<Inherited>> {
    let value = std::env::var_os(VARIABLE)?;
    let value = value.to_string_lossy();
    let (mut numbers, invalid) = numbers(&value);
    if let Some(text) = invalid {
        let text = format!(
            "invalid socket number \"{text}\" in {VARIABLE} environment variable, \
             ignoring the rest of the variable"
        );
        log.write(Level::Emerg, text);
    }
    if numbers.is_empty() && !value.is_empty() {
        return None;
    }
    log.notice(format_args!("using inherited sockets from \"{value}\""));
    numbers.sort_unstable();
    numbers.dedup();
    let activated = std::env::var(ACTIVATED).unwrap_or_default();
    let (activated, _) = self::numbers(&activated);
    let sockets = numbers.into_iter().filter_map(|number| {
        let is_activated = activated.contains(&number);
        listening(number, is_activated)
    });
    Some(sockets.collect())
}

/// The sockets that a service manager has made for this process. To be called once.
pub(crate) fn take_activated(log: &Log) -> Vec<Inherited> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<i32>().ok();
    let is_ours = number("LISTEN_PID").and_then(Pid::from_raw) == Some(rustix::process::getpid());
    let count = number("LISTEN_FDS").filter(|count| is_ours && *count > 0);
    let Some(count) = count else {
        return Vec::new();
    };
    log.notice(format_args!("using {count} sockets of the service manager"));
    let numbers = FIRST_ACTIVATED..FIRST_ACTIVATED.saturating_add(count);
    // The number is another program's word: where it is too large, nothing is open behind the last.
    let open = numbers.take_while(|number| is_open(*number));
    open.filter_map(|number| listening(number, true)).collect()
}

/// A socket by its number, if one is open there that listens.
fn listening(number: i32, is_activated: bool) -> Option<Inherited> {
    let socket = own(number)?;
    let accepts = sockopt::socket_acceptconn(&socket).unwrap_or(false);
    let receives = sockopt::socket_type(&socket).is_ok_and(|kind| kind == SocketType::DGRAM);
    // A service manager's may wait for clients.
    let is_ready = rustix::io::ioctl_fionbio(&socket, true).is_ok();
    (is_ready && (accepts || receives)).then_some(Inherited {
        socket,
        is_activated,
    })
}

/// The numbers of a variable, and the first text in it that is none: a number has `;` or `:` behind
/// it, and is not one of the three that every program has.
fn numbers(value: &str) -> (Vec<i32>, Option<&str>) {
    let mut numbers = Vec::new();
    for text in value.split_inclusive([';', ':']) {
        let digits = text.strip_suffix([';', ':']);
        match digits.and_then(|digits| digits.parse().ok()) {
            Some(number) if number > 2 => numbers.push(number),
            _ => return (numbers, Some(digits.unwrap_or(text))),
        }
    }
    (numbers, None)
}

fn is_open(number: i32) -> bool {
    // SAFETY: what is borrowed is only asked for its flags; where nothing is open, the kernel says
    // so.
    rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) }).is_ok()
}

/// Takes over an open descriptor, if it is one of a socket.
fn own(number: i32) -> Option<OwnedFd> {
    // SAFETY: what is borrowed is only asked what it is; where nothing is open, the kernel says so.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    sockopt::socket_type(borrowed).ok()?;
    // SAFETY: the program that started this one has left the descriptor open for it, and nothing
    // here has opened a socket before `take`, so nothing else owns the number.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The variable's value for these sockets.
pub(crate) fn value<'a>(sockets: impl Iterator<Item = &'a OwnedFd>) -> String {
    sockets
        .map(|socket| format!("{};", socket.as_raw_fd()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn a_number_has_an_end() {
        assert_eq!(numbers(""), (vec![], None));
        assert_eq!(numbers("7;8;"), (vec![7, 8], None));
        assert_eq!(numbers("3:4:"), (vec![3, 4], None));
        for (value, read, invalid) in [
            ("7", vec![], "7"),
            ("/usr/sbin/nginx", vec![], "/usr/sbin/nginx"),
            ("7;8", vec![7], "8"),
            ("7;;8;", vec![7], ""),
            ("7;-8;9;", vec![7], "-8"),
            ("2;7;", vec![], "2"),
            ("99999999999;", vec![], "99999999999"),
        ] {
            assert_eq!(numbers(value), (read, Some(invalid)), "{value}");
        }
    }
}
