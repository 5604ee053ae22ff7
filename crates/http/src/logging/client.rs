//! Log lines about clients that leave, time out or break off: nginx's texts and levels.

use std::sync::Arc;
use std::{fmt, io};

use framework::address::append_address;
use logs::network::{TIMED_OUT, failure_level};
use logs::{Errno, ErrorLog, Level, Printable, Subject, Subsystem, error, write};
use proto::h2::{ErrorCode, StreamFault, Violation};
use transport::tls::messages;

use crate::connection::Connection;
use crate::exchange::abort::Abort;
use crate::logging::body_fault::body_fault;
use crate::request::Request;

/// A kept-alive connection between two requests, for log texts that already contain the client's
/// address.
struct KeptAlive<'a>(&'a Connection);

impl Subject for KeptAlive<'_> {
    fn admits(&self, level: Level) -> bool {
        self.0.admits(level)
    }

    fn with_log(&self, write: &mut dyn FnMut(&Arc<ErrorLog>)) {
        self.0.with_log(write);
    }

    fn is_debugged(&self) -> bool {
        Subject::is_debugged(self.0)
    }

    fn subsystem(&self) -> Subsystem {
        Subsystem::Http
    }

    fn serial(&self) -> Option<u64> {
        Some(self.0.client.serial)
    }
}

/// Logs that the client has closed its side while Tidegate was waiting for a request. `first`:
/// whether the connection has had no request yet.
pub fn connection_closed(connection: &Connection, first: bool) {
    if first {
        let text = format_args!("client closed connection while waiting for request");
        write(connection, Level::Info, text);
        return;
    }
    let mut address = Vec::new();
    append_address(connection.peer(), &mut address);
    let text = format_args!("client {} closed keepalive connection", Printable(&address));
    write(&KeptAlive(connection), Level::Info, text);
}

/// Logs that waiting for a request has failed. Timeouts and resets of kept-alive connections are
/// normal and are not logged.
pub fn connection_closed_early(connection: &Connection, cause: &io::Error, first: bool) {
    match (first, cause.kind()) {
        (true, io::ErrorKind::TimedOut) => {
            let text = format_args!("client timed out {TIMED_OUT} while waiting for request");
            write(connection, Level::Info, text);
        }
        (false, io::ErrorKind::TimedOut | io::ErrorKind::ConnectionReset) => {}
        _ => {
            let action = if first {
                "waiting for request"
            } else {
                "keepalive"
            };
            match tls_cause(cause) {
                Some(tls) => {
                    let text = format_args!("SSL_read() failed (SSL: {tls}) while {action}");
                    write(connection, messages::level(tls), text);
                }
                None => {
                    let text = format_args!("recv() failed {} while {action}", Errno(cause));
                    write(connection, failure_level(cause), text);
                }
            }
        }
    }
}

/// The phrase at the end of log lines about an HTTP/2 connection.
const PROCESSING: &str = "while processing HTTP/2 connection";

/// Logs a violation of HTTP/2 on a connection.
pub fn http2_violation(connection: &Connection, violation: &Violation) {
    let text = format_args!("client {violation} {PROCESSING}");
    write(connection, Level::Info, text);
}

/// Logs a violation of HTTP/2 on a stream, which has been reset.
pub fn http2_fault(connection: &Connection, fault: &StreamFault) {
    let text = format_args!("client {fault} {PROCESSING}");
    write(connection, Level::Info, text);
}

/// Logs that a client has reset a stream.
pub fn http2_reset(connection: &Connection, stream: u32, code: ErrorCode) {
    match code {
        ErrorCode::Cancel => {
            let text = format_args!("client canceled stream {stream} {PROCESSING}");
            write(connection, Level::Info, text);
        }
        ErrorCode::InternalError => {
            let text = format_args!(
                "client terminated stream {stream} due to internal error {PROCESSING}"
            );
            write(connection, Level::Info, text);
        }
        code => {
            let number = code.number();
            let text =
                format_args!("client terminated stream {stream} with status {number} {PROCESSING}");
            write(connection, Level::Info, text);
        }
    }
}

/// Logs that a client has closed its HTTP/2 connection, if a frame or a request was `unfinished`.
pub fn http2_closed(connection: &Connection, unfinished: bool) {
    if unfinished {
        let text = format_args!("client prematurely closed connection {PROCESSING}");
        write(connection, Level::Info, text);
    }
}

/// Logs an I/O error of an HTTP/2 connection.
pub fn http2_broken(connection: &Connection, cause: &io::Error) {
    if cause.raw_os_error().is_some() {
        let text = format_args!("recv() failed {} {PROCESSING}", Errno(cause));
        write(connection, failure_level(cause), text);
    }
}

/// Logs that a client has not sent the rest of a frame in time.
pub fn http2_timed_out(connection: &Connection) {
    let text = format_args!("client timed out {TIMED_OUT} {PROCESSING}");
    write(connection, Level::Info, text);
}

/// The TLS error that caused an I/O error, if there is one.
fn tls_cause(cause: &io::Error) -> Option<&rustls::Error> {
    cause.get_ref()?.downcast_ref()
}

/// Logs that the client left or timed out before its head was complete. `request` holds the
/// received part.
pub fn incomplete_head(connection: &Connection, request: &Request, timed_out: bool) {
    let action = if request.client.has_request_line() {
        "reading client request headers"
    } else if connection.requests.get() > 0 && request.arrival.pipelined {
        "reading client pipelined request line"
    } else {
        "reading client request line"
    };
    if timed_out {
        error!(request, Info, "client timed out {TIMED_OUT} while {action}");
    } else {
        error!(
            request,
            Info, "client prematurely closed connection while {action}"
        );
    }
}

/// Logs why a response could not be completed.
pub fn abort(request: &mut Request, abort: &Abort) {
    match abort {
        Abort::Closed(cause) if cause.raw_os_error().is_none() => {
            let what = match request.client.h1() {
                Some(_) => "connection",
                None => "stream",
            };
            error!(request, Info, "client prematurely closed {what}");
        }
        Abort::Closed(cause) => {
            let doing = sending(request);
            let text = SendFailure(cause);
            write(
                request,
                failure_level(cause),
                format_args!("{text} {doing}"),
            );
        }
        Abort::TimedOut => {
            let doing = sending(request);
            error!(request, Info, "client timed out {TIMED_OUT} {doing}");
        }
        Abort::Internal(text) => {
            error!(request, Alert, "{text} while sending to client");
        }
        Abort::File(cause) => {
            let path = request.filename();
            let (path, cause) = (Printable(&path), Errno(cause));
            error!(
                request,
                Crit, "read() \"{path}\" failed {cause} while sending to client"
            );
        }
        Abort::FileTruncated => {
            let path = request.filename();
            error!(
                request,
                Alert,
                "sendfile() reported that \"{}\" was truncated while sending to client",
                Printable(&path)
            );
        }
        Abort::BadBody(_) | Abort::BodyTooLarge { .. } | Abort::BodyTimedOut => {
            if let Some((level, text)) = body_fault(abort, request.client.h1().is_some()) {
                write(request, level, format_args!("{text}"));
            }
        }
        // Logged where the fault was found, or never logged.
        Abort::Upstream
        | Abort::UpstreamFraming
        | Abort::Filter
        | Abort::Unanswered(_)
        | Abort::Silently
        | Abort::Ended => {}
    }
}

/// nginx's phrase for a response that is being sent, by an upstream or by a handler.
fn sending(request: &Request) -> &'static str {
    match request.upstream {
        Some(_) => "while sending to client",
        None => "while sending response to client",
    }
}

/// The log text for a response that cannot be sent further. A reset by the client counts as a
/// close, whichever call reports it.
struct SendFailure<'a>(&'a io::Error);

impl fmt::Display for SendFailure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.0.kind() {
            io::ErrorKind::ConnectionReset => "client prematurely closed connection",
            _ => "send() failed",
        };
        write!(f, "{what} {}", Errno(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A TLS session keeps its error, which the next receive returns.
    #[test]
    fn a_client_that_speaks_no_tls_is_no_alarm() {
        let garbage = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::DecryptError);
        assert_eq!(tls_cause(&garbage).map(messages::level), Some(Level::Info));
        assert!(tls_cause(&io::ErrorKind::InvalidData.into()).is_none());
    }

    /// As with nginx's `ngx_http_test_reading`, which notices a reset before the next send does.
    #[test]
    fn a_reset_is_the_client_leaving() {
        let text = |number| SendFailure(&io::Error::from_raw_os_error(number)).to_string();
        assert_eq!(
            text(104),
            "client prematurely closed connection (104: Connection reset by peer)"
        );
        assert_eq!(text(32), "send() failed (32: Broken pipe)");
    }
}
