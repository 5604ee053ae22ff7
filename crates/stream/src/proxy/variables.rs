//! `$upstream_*` of sessions: a value for each attempt, joined as in nginx.

use std::time::Duration;

use variables::write::{decimal, seconds};
use variables::{BuiltinVariable, Evaluate};

use super::attempts::Attempt;
use crate::session::Session;

/// The variable with this name (in lower case, without `$`).
pub(crate) fn find(name: &str) -> Option<BuiltinVariable<Session>> {
    let evaluate: Evaluate<Session> = match name {
        "upstream_addr" => |session, out| {
            joined(session, out, |attempt, out| {
                out.extend_from_slice(&attempt.peer)
            })
        },
        "upstream_bytes_received" => |session, out| {
            joined(session, out, |attempt, out| {
                decimal(attempt.received.get(), out);
            })
        },
        "upstream_bytes_sent" => |session, out| {
            joined(session, out, |attempt, out| {
                decimal(attempt.sent.get(), out);
            })
        },
        "upstream_connect_time" => {
            |session, out| joined(session, out, |attempt, out| time(attempt.connect_time, out))
        }
        "upstream_first_byte_time" => |session, out| {
            joined(session, out, |attempt, out| {
                time(attempt.first_byte_time.get(), out)
            })
        },
        "upstream_session_time" => {
            |session, out| joined(session, out, |attempt, out| time(attempt.session_time, out))
        }
        _ => return None,
    };
    Some(BuiltinVariable::computed(evaluate))
}

/// Appends a value for each attempt; false if there was none.
fn joined(
    session: &mut Session,
    out: &mut Vec<u8>,
    append: impl Fn(&Attempt, &mut Vec<u8>),
) -> bool {
    for (at, attempt) in session.attempts.iter().enumerate() {
        if at > 0 {
            out.extend_from_slice(b", ");
        }
        append(attempt, out);
    }
    !session.attempts.is_empty()
}

/// Seconds with milliseconds, or `-` for an event that did not occur.
fn time(time: Option<Duration>, out: &mut Vec<u8>) {
    if let Some(time) = time {
        seconds(time, out);
    } else {
        out.push(b'-');
    }
}
