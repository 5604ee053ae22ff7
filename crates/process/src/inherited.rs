//! Listening sockets that one program hands on to the next, so that no connection is refused while
//! they change places: by their numbers in the environment variable `NGINX`, as nginx does it in
//! both directions.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::{SocketType, sockopt};

use crate::log::{Level, Log};

/// The variable: numbers, each with a semicolon behind it.
pub(crate) const VARIABLE: &str = "NGINX";

/// The sockets that a program before this one has handed on; none where there was none. To be
/// called once.
pub(crate) fn take(log: &Log) -> Vec<OwnedFd> {
    let value = std::env::var(VARIABLE).unwrap_or_default();
    let mut numbers = Vec::new();
    for text in value.split([';', ':']).filter(|text| !text.is_empty()) {
        match text.parse::<i32>() {
            Ok(number) if number > 2 => numbers.push(number),
            _ => {
                let text = format!(
                    "invalid socket number \"{text}\" in {VARIABLE} environment variable, \
                     ignoring the rest of the variable"
                );
                log.write(Level::Emerg, text);
                break;
            }
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    if !numbers.is_empty() {
        log.notice(format_args!("using inherited sockets from \"{value}\""));
    }
    let listening = |number| {
        let socket = own(number)?;
        let accepts = sockopt::socket_acceptconn(&socket).unwrap_or(false);
        let receives = sockopt::socket_type(&socket).is_ok_and(|kind| kind == SocketType::DGRAM);
        (accepts || receives).then_some(socket)
    };
    numbers.into_iter().filter_map(listening).collect()
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
