//! Variables of sessions, in addition to those of all clients.

use variables::write::{decimal, seconds, text};
use variables::{BuiltinVariable, Evaluate};

use crate::session::Session;

/// The variable with this name (in lower case, without `$`).
pub(crate) fn find(name: &str) -> Option<BuiltinVariable<Session>> {
    let evaluate: Evaluate<Session> = match name {
        "bytes_received" => |session, out| decimal(session.received.get(), out),
        "bytes_sent" => |session, out| decimal(session.sent.get(), out),
        "protocol" => |session, out| {
            let is_datagrams = session.connection.is_datagrams();
            text(if is_datagrams { "UDP" } else { "TCP" }, out)
        },
        "server_name" => |session, out| {
            out.extend_from_slice(&session.server.name);
            true
        },
        "session_time" => |session, out| {
            let time = engine::now().saturating_duration_since(session.began);
            seconds(time, out)
        },
        "status" => |session, out| decimal(session.status as u64, out),
        _ => return None,
    };
    Some(BuiltinVariable::computed(evaluate))
}
