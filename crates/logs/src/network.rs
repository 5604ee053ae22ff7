//! Log levels and texts of network errors.

use std::io;

use super::Level;

/// nginx's number and text for a timeout.
pub const TIMED_OUT: &str = "(110: Connection timed out)";

/// The level of an error on a client's connection, as in nginx's `ngx_connection_error`: low for
/// errors of the network.
pub fn failure_level(cause: &io::Error) -> Level {
    match cause.kind() {
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::NotConnected
        | io::ErrorKind::TimedOut
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::NetworkDown
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::HostUnreachable => Level::Info,
        _ => Level::Alert,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Errnos of Linux: ECONNRESET, EPIPE, ETIMEDOUT; EBADF.
    #[test]
    fn networks_are_no_alarm() {
        let level = |number| failure_level(&io::Error::from_raw_os_error(number));
        for usual in [104, 32, 110] {
            assert_eq!(level(usual), Level::Info);
        }
        assert_eq!(level(9), Level::Alert);
    }
}
