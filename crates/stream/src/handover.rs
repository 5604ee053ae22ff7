//! `pass`: hands a connection over to the server that listens on another address of this program,
//! for any protocol, as if that server had accepted the connection.
//!
//! <https://nginx.org/en/docs/stream/ngx_stream_pass_module.html>. No bytes are copied, and the
//! session is not logged: from then on the connection belongs to the other server.

use std::rc::Rc;

use conf::{
    Arity, Contexts, Declared, Fault, Inherit, ScopeRef, Setting, Template, TemplatePart, Word,
};
use engine::net::Address;
use framework::address::{self, WrittenAddress};
use framework::compile::Compiler;
use framework::connection_handler::{Accepted, ConnectionHandler, HandoverInfo, ListenerId};
use logs::Printable;
use rules::limit_conn::ConnectionLimitState;
use variables::{Compiling as _, Text};

use crate::connection::{ClientEnd, Connection};
use crate::session::{Session, Status};

/// Maximum number of handovers of a connection.
const PASSES_MAX: u8 = 10;

static PASS: Setting<(Template, Word)> = Setting::new("pass", &["address"], |setter| {
    let word = setter.word()?;
    Ok((Template::parse(word)?, word.clone()))
})
.contexts(Contexts::STREAM_SERVER)
.arity(Arity::exactly(1))
.inherit(Inherit::Never)
.manual(
    "Hands connections over to the server that listens on the address, in `stream` or any other \
     block: TLS and the PROXY header have been taken off, and nothing is copied. Variables may \
     stand for the address.",
);

/// The directives of this file.
pub(crate) const DIRECTIVES: &[&dyn Declared] = &[&PASS];

/// The target of a server's handovers.
pub(crate) enum Pass {
    Fixed(Address),
    /// An address with variables.
    Text(Text<Session>),
}

/// A connection's handover to another connection handler.
pub(crate) struct Handover {
    listener: ListenerId,
    handler: Rc<dyn ConnectionHandler>,
    /// The address that the `pass` directive names, which becomes the connection's local address.
    local: Address,
}

/// The target of a server's handovers, if any, and the position of its `pass`.
pub(crate) fn of_server(
    compiler: &Compiler<'_>,
    server: ScopeRef<'_>,
) -> Result<Option<(Pass, u32)>, Fault> {
    let Some((template, word)) = server.own(&PASS)? else {
        return Ok(None);
    };
    let lines = server.own_lines(&PASS.spec);
    let place = lines.last().map(|line| line.sequence()).unwrap_or_default();
    let is_literal = |part: &TemplatePart| matches!(part, TemplatePart::Literal(_));
    if !template.parts.iter().all(is_literal) {
        return Ok(Some((Pass::Text(compiler.text(&template)), place)));
    }
    let fault = |why: &str| {
        let text = format!("{why} in pass \"{}\"", word.text());
        Fault::at(&word, text).while_reading()
    };
    let written = address::parse(&word.bytes).map_err(fault)?;
    if lacks_port(&written) {
        return Err(fault("no port"));
    }
    let addresses = written.resolve(compiler.files, 0);
    let addresses = addresses.ok_or_else(|| fault("host not found"))?;
    let first = addresses.into_iter().next();
    let first = first.ok_or_else(|| fault("no addresses"))?;
    Ok(Some((Pass::Fixed(first), place)))
}

fn lacks_port(written: &WrittenAddress<'_>) -> bool {
    written.port.is_none() && !written.unix
}

/// Finds the connection handler for a session's connection.
///
/// # Errors
/// The status of the session if there is no connection handler.
pub(crate) fn find(session: &mut Session, pass: &Pass) -> Result<Handover, Status> {
    session.doing = " while passing connection to port";
    let Some(transport) = session.connection.transport() else {
        logs::error!(session, Error, "cannot pass udp connection");
        session.take_first();
        return Err(Status::InternalServerError);
    };
    let preread = session.preread.take();
    if transport.is_secure() && !preread.is_empty() {
        logs::error!(session, Error, "cannot pass connection with preread data");
        return Err(Status::InternalServerError);
    }
    transport.put_back(&preread);
    let local = match pass {
        Pass::Fixed(address) => address.clone(),
        Pass::Text(text) => {
            let mut written = Vec::new();
            text.append_to(session, &mut written);
            address_of(session, &written)?
        }
    };
    logs::error!(session, Debug, "stream pass addr: \"{local}\"");
    if session.connection.handed_over >= PASSES_MAX {
        logs::error!(session, Error, "stream pass cycle");
        return Err(Status::InternalServerError);
    }
    let worker = &session.connection.worker;
    let Some((listener, handler)) = worker.handler_to(&session.generation, &local) else {
        logs::error!(session, Error, "port not found for \"{local}\"");
        return Err(Status::Ok);
    };
    Ok(Handover {
        listener,
        handler,
        local,
    })
}

/// Parses an address that variables have produced.
fn address_of(session: &Session, text: &[u8]) -> Result<Address, Status> {
    let shown = Printable(text);
    let why = match address::parse(text) {
        Ok(written) if lacks_port(&written) => "no port",
        Ok(written) => match written.literal(0) {
            Some(address) => return Ok(address),
            None => "no addresses",
        },
        Err(why) => why,
    };
    logs::error!(session, Error, "{why} in pass \"{shown}\"");
    Err(Status::InternalServerError)
}

/// Hands over a connection that nothing else refers to. The session's places under connection
/// limits are kept until the connection ends.
pub(crate) fn hand_over(
    connection: Connection,
    peer: Address,
    places: ConnectionLimitState<Session>,
    passage: Handover,
) {
    let Handover {
        listener,
        handler,
        local,
    } = passage;
    let Connection {
        client,
        end,
        worker,
        handed_over,
        ..
    } = connection;
    let ClientEnd::Stream(transport) = end else {
        return; // only TCP connections are handed over
    };
    let serial = client.serial;
    let held = Box::new((places, client.into_held()));
    let (stream, over) = transport.into_parts();
    handler.connected(Accepted {
        worker,
        stream,
        listener,
        serial,
        handed: Some(Box::new(HandoverInfo {
            peer,
            local,
            over,
            times: handed_over + 1,
            held: Some(held),
        })),
    });
}
