//! Listening sockets that were open before this program started. During an upgrade, one program
//! hands its sockets over to the next, so that no connection is refused: it passes their descriptor
//! numbers in the environment variable `NGINX`, as nginx does in both directions. With socket
//! activation, a service manager creates the sockets and starts the server for the first client:
//! sd_listen_fds(3).
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::{SocketType, sockopt};
use rustix::process::Pid;

use crate::log::{Level, Log};

/// The variable: descriptor numbers, each followed by a semicolon.
pub(crate) const VARIABLE: &str = "NGINX";

/// The variable with the descriptor numbers of those inherited Unix sockets that a service manager
/// has created, in the same format.
pub(crate) const ACTIVATED: &str = "TIDEGATE_ACTIVATED";

/// The first descriptor number of a service manager's sockets.
const FIRST_ACTIVATED: i32 = 3;

/// A socket that is already open.
pub(crate) struct Inherited {
    pub(crate) socket: OwnedFd,
    /// Whether a service manager has created the socket. The manager keeps it open, and owns a Unix
    /// socket's file.
    pub(crate) is_activated: bool,
}

/// The sockets that the program before this one has handed over; `None` if there is no such
/// program. Must be called once.
///
/// A program without sockets hands over an empty list, so an empty variable counts. A variable
/// without any number belongs to somebody else.
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

/// The sockets that a service manager has created for this process. Must be called once.
pub(crate) fn take_activated(log: &Log) -> Vec<Inherited> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<i32>().ok();
    let is_ours = number("LISTEN_PID").and_then(Pid::from_raw) == Some(rustix::process::getpid());
    let count = number("LISTEN_FDS").filter(|count| is_ours && *count > 0);
    let Some(count) = count else {
        return Vec::new();
    };
    log.notice(format_args!("using {count} sockets of the service manager"));
    let numbers = FIRST_ACTIVATED..FIRST_ACTIVATED.saturating_add(count);
    // The count comes from another program: if it is too large, the scan stops at the first closed
    // number.
    let open = numbers.take_while(|number| is_open(*number));
    open.filter_map(|number| listening(number, true)).collect()
}

/// The socket with this descriptor number, if it is open and listening.
fn listening(number: i32, is_activated: bool) -> Option<Inherited> {
    let socket = own(number)?;
    let accepts = sockopt::socket_acceptconn(&socket).unwrap_or(false);
    let receives = sockopt::socket_type(&socket).is_ok_and(|kind| kind == SocketType::DGRAM);
    // A service manager's socket may be in blocking mode.
    let is_ready = rustix::io::ioctl_fionbio(&socket, true).is_ok();
    (is_ready && (accepts || receives)).then_some(Inherited {
        socket,
        is_activated,
    })
}

/// The numbers in a variable, and the first invalid text in it: a number is followed by `;` or `:`,
/// and is not a standard descriptor (0 to 2).
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
    // SAFETY: the borrowed descriptor is only used to read its flags, and the call fails if the
    // number is not open.
    rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) }).is_ok()
}

/// Takes ownership of an open descriptor, if it is a socket.
fn own(number: i32) -> Option<OwnedFd> {
    // SAFETY: the borrowed descriptor is only used to read its socket type, and the call fails if
    // the number is not open.
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
