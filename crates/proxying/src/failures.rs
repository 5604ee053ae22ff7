//! Records and logs failed attempts of a request.

use std::io;

use ::upstream::AttemptFailure;
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::request::Request;
use http::response::source::DeferredLog;
use logs::Level;

use super::attempts::{Attempt, Attempts, Began};

/// How an attempt ends without a response.
pub type AttemptError = ::upstream::AttemptError<Abort>;

/// Records a property of the current attempt; `write` also gets the time at which the attempt
/// began.
pub fn note(request: &mut Request, write: impl FnOnce(&mut Attempt, Began)) {
    if let Some(attempts) = Attempts::of(request) {
        attempts.borrow_mut().note(write);
    }
}

/// Logs a failed connection to a peer in nginx's words, and returns the failure. A timeout is not
/// logged here, but when the failure has been counted.
pub fn failed(
    request: &Request,
    error: &io::Error,
    call: &str,
    doing: &'static str,
) -> AttemptFailure {
    let timed_out = error.kind() == io::ErrorKind::TimedOut;
    if error.kind() == io::ErrorKind::InvalidData {
        logs::error!(request, Error, "SSL_read() failed (SSL: {error}) {doing}");
    } else if !timed_out {
        let error = logs::Errno(error);
        logs::error!(request, Error, "{call} failed {error} {doing}");
    }
    AttemptFailure {
        sent: true,
        ..AttemptFailure::of_connection(error, doing)
    }
}

/// Logs that the client has left while the upstream was being asked, and returns the abort.
pub(super) fn client_left(
    request: &mut Request,
    exchange: &Exchange,
    abort: &Abort,
    doing: &str,
) -> Abort {
    client_closed_log(abort, doing).write(request);
    note(request, |attempt, began| {
        attempt.response_time = began.elapsed()
    });
    request.client_left(exchange)
}

/// The log line for a client that closed its connection.
pub(super) fn client_closed_log(abort: &Abort, doing: &str) -> DeferredLog {
    const TEXT: &str = "client prematurely closed connection, so upstream connection is closed too";
    let text = match abort {
        Abort::Closed(error) if error.raw_os_error().is_some() => {
            format!("{TEXT} {} {doing}", logs::Errno(error))
        }
        _ => format!("{TEXT} {doing}"),
    };
    DeferredLog::new(Level::Info, text)
}
