//! `mqtt`: waits for an MQTT client's CONNECT packet, and may change it for the upstream server.
//!
//! <https://nginx.org/en/docs/stream/ngx_stream_mqtt_filter_module.html>, of NGINX Plus. Only the
//! client's first packet is parsed; all later bytes are forwarded unchanged.

use std::time::Duration;

use bytes::Bytes;
use conf::{Arity, Contexts, Declared, Fault, Inherit, Line, ScopeRef, Setting, Template, parse};
use framework::compile::Compiler;
use proto::mqtt::{Connect, ConnectValues};
use transport::Transport;
use variables::{Compiling as _, Text};

use crate::preread::PREREAD_TIMEOUT;
use crate::preread::connect::{FirstPacket, receive_connect};
use crate::session::{Session, Status};

const CONTEXTS: Contexts = Contexts::STREAM.or(Contexts::STREAM_SERVER);

static MQTT: Setting<bool> = Setting::new("mqtt", &["on | off"], parse::flag)
    .contexts(CONTEXTS)
    .default("off")
    .manual(
        "Whether clients speak MQTT (3.1, 3.1.1 or 5.0). Who does not begin with a CONNECT is \
         closed with the status 400 before a server is chosen, and `mqtt_set_connect` tells the \
         server who the client is.",
    );

static MQTT_BUFFERS: Setting<(u64, u64)> = Setting::new(
    "mqtt_buffers",
    &["number size"],
    parse::buffers,
)
.contexts(CONTEXTS)
.arity(Arity::exactly(2))
.default("100 1k")
.manual(
    "The product of both is how long a CONNECT may be, as it comes and as `mqtt_set_connect` \
             makes it. A longer one closes the session.",
);

static MQTT_REWRITE_BUFFER_SIZE: Setting<u64> =
    Setting::new("mqtt_rewrite_buffer_size", &["size"], parse::size)
        .contexts(Contexts::STREAM_SERVER)
        .default("4k")
        .no_effect("`mqtt_buffers` bounds packets, as in nginx since 1.25.1")
        .manual("The size of the buffer for packets that are changed; `mqtt_buffers` is newer.");

static MQTT_SET_CONNECT: Setting<Vec<(Field, Template)>> = Setting::new(
    "mqtt_set_connect",
    &["clientid | username | password value"],
    |setter| {
        let lines = setter.lines().iter();
        lines.map(|line| assignment(line)).collect()
    },
)
.contexts(Contexts::STREAM_SERVER)
.arity(Arity::exactly(2))
.inherit(Inherit::List)
.manual(
    "What a field of the client's CONNECT is when it goes to the server: text, in which variables \
     may stand. A field that the client has not sent is added. A value of more than 65,535 bytes \
     closes the session with the status 500.",
);

/// The directives of this file.
pub(crate) const DIRECTIVES: &[&dyn Declared] = &[
    &MQTT,
    &MQTT_BUFFERS,
    &MQTT_REWRITE_BUFFER_SIZE,
    &MQTT_SET_CONNECT,
];

/// A field of a CONNECT that can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    ClientId,
    Username,
    Password,
}

fn assignment(line: &Line) -> Result<(Field, Template), Fault> {
    let word = line.argument(0);
    let field = match &*word.bytes {
        b"clientid" => Field::ClientId,
        b"username" => Field::Username,
        b"password" => Field::Password,
        _ => {
            let text = format!(
                "unknown field \"{}\" of MQTT's CONNECT: \"clientid\", \"username\" and \
                 \"password\" can be set",
                word.text()
            );
            return Err(Fault::at(word, text));
        }
    };
    Ok((field, Template::parse(line.argument(1))?))
}

/// The changes to a client's first packet.
pub(crate) struct Mqtt {
    /// Maximum length of the packet, in bytes.
    length_max: usize,
    /// Time limit for the packet to arrive.
    timeout: Duration,
    assignments: Box<[(Field, Text<Session>)]>,
}

/// The MQTT settings of a server; `None` if MQTT is off.
///
/// # Errors
/// If a value of `mqtt_set_connect` cannot be compiled.
pub(super) fn of_server(
    compiler: &Compiler<'_>,
    server: ScopeRef<'_>,
) -> Result<Option<Mqtt>, Fault> {
    let assignments = server.own(&MQTT_SET_CONNECT)?.unwrap_or_default();
    let assignments = assignments.iter();
    let assignments = assignments.map(|(field, value)| (*field, compiler.text(value)));
    let assignments = assignments.collect();
    if !server.get(&MQTT)? {
        return Ok(None);
    }
    let (number, size) = server.get(&MQTT_BUFFERS)?;
    Ok(Some(Mqtt {
        length_max: usize::try_from(number.saturating_mul(size)).unwrap_or(usize::MAX),
        timeout: server.get(&PREREAD_TIMEOUT)?,
        assignments,
    }))
}

impl Mqtt {
    /// Waits for a client's CONNECT, and stores the packet for the upstream server in the session.
    ///
    /// # Errors
    /// The final status of the session if the client sends no CONNECT.
    pub(super) async fn prepare(
        &self,
        session: &mut Session,
        client: &Transport,
    ) -> Result<(), Status> {
        session.doing = " while reading MQTT CONNECT";
        let mut bytes: Vec<u8> = session.preread.take().into();
        let deadline = engine::now() + self.timeout;
        let (session, limit) = (&mut *session, self.length_max);
        let first = receive_connect(session, client, &mut bytes, limit, deadline);
        let (connect, length) = match first.await? {
            FirstPacket::Connect(connect, length) => (connect, length),
            FirstPacket::Other => {
                logs::error!(session, Info, "client sent no MQTT CONNECT");
                return Err(Status::BadRequest);
            }
            FirstPacket::TooLong(length) => {
                logs::error!(session, Error, "MQTT CONNECT of {length} bytes is too long");
                return Err(Status::BadRequest);
            }
        };
        if self.assignments.is_empty() {
            session.preread.set(bytes.into());
            return Ok(());
        }
        session.preread_replaced.set(Some(bytes.len() as u64));
        let behind = bytes.split_off(length.min(bytes.len()));
        let mut rewritten = self.rewrite(session, &connect, &bytes)?;
        rewritten.extend_from_slice(&behind);
        session.preread.set(rewritten.into());
        Ok(())
    }

    /// The packet for the upstream server.
    fn rewrite(
        &self,
        session: &mut Session,
        connect: &Connect,
        packet: &[u8],
    ) -> Result<Vec<u8>, Status> {
        let evaluate = |(field, text): &(Field, Text<Session>)| (*field, text.evaluate(session));
        let values: Vec<(Field, Bytes)> = self.assignments.iter().map(evaluate).collect();
        // As in other lists, the last of several values counts.
        let of = |wanted: Field| {
            let found = values.iter().rev().find(|(field, _)| *field == wanted);
            found.map(|(_, value)| &**value)
        };
        let values = ConnectValues {
            client_id: of(Field::ClientId),
            username: of(Field::Username),
            password: of(Field::Password),
        };
        let mut rewritten = Vec::with_capacity(packet.len());
        let appended = connect.append_with(packet, &values, &mut rewritten);
        if appended.is_err() || rewritten.len() > self.length_max {
            let text = "MQTT CONNECT is too long with the values of \"mqtt_set_connect\"";
            logs::error!(session, Error, "{text}");
            return Err(Status::InternalServerError);
        }
        Ok(rewritten)
    }
}
