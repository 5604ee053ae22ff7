//! `return`: sends a text to the client and closes the connection.
//!
//! <https://nginx.org/en/docs/stream/ngx_stream_return_module.html>

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use conf::{Contexts, Declared, Fault, Inherit, ScopeRef, Setting, Template, parse};
use engine::select::{Either, either};
use framework::compile::Compiler;
use transport::Transport;
use variables::{Compiling as _, Text};

use crate::connection::ClientEnd;
use crate::session::{Session, Status};

/// The connection is closed if the client accepts no bytes of the text for this long; nginx's
/// value.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

static RETURN: Setting<Template> = Setting::new("return", &["value"], parse::template)
    .contexts(Contexts::STREAM_SERVER)
    .inherit(Inherit::Never)
    .manual("Sends the text to the client and closes the connection.");

/// The directives of this file.
pub(crate) const DIRECTIVES: &[&dyn Declared] = &[&RETURN];

/// The text that a server returns.
pub(crate) struct Return(Text<Session>);

/// The text of a server's `return`, if any, and the position of that directive.
pub(crate) fn of_server(
    compiler: &Compiler<'_>,
    server: ScopeRef<'_>,
) -> Result<Option<(Return, u32)>, Fault> {
    let Some(template) = server.own(&RETURN)? else {
        return Ok(None);
    };
    let place = server
        .own_lines(&RETURN.spec)
        .last()
        .map(|line| line.sequence());
    let text = Return(compiler.text(&template));
    Ok(Some((text, place.unwrap_or_default())))
}

/// Sends the text to the client of the session; returns the session's status.
pub(crate) async fn serve(session: &mut Session, Return(text): &Return) -> Status {
    let mut bytes = Vec::new();
    text.append_to(session, &mut bytes);
    session.doing = " while returning text";
    let length = bytes.len() as u64;
    let bytes = Bytes::from(bytes);
    let connection = Rc::clone(&session.connection);
    match &connection.end {
        ClientEnd::Stream(transport) => send(session, transport, bytes).await,
        ClientEnd::Datagrams(end) => {
            session.take_first();
            if length > 0 {
                end.send(bytes);
            }
            session.sent.set(length);
        }
    }
    Status::Ok
}

/// Sends the text on a TCP connection, and closes the connection.
async fn send(session: &Session, transport: &Transport, bytes: Bytes) {
    let length = bytes.len() as u64;
    transport.push(bytes);
    transport.start_send();
    let mut backlog = transport.backlog();
    let is_taken = loop {
        match either(transport.drained(0), engine::sleep(SEND_TIMEOUT)).await {
            Either::First(drained) => break drained.is_ok(),
            Either::Second(()) if transport.backlog() < backlog => backlog = transport.backlog(),
            Either::Second(()) => {
                logs::error!(
                    session,
                    Info,
                    "connection timed out (110: Connection timed out)"
                );
                break false;
            }
        }
    };
    let unsent = transport.backlog() as u64;
    session.sent.set(length.saturating_sub(unsent));
    if is_taken {
        transport.announce_end();
    }
}
