//! What a client says first, looked at before the session's content: `ssl_preread`.
//!
//! <https://nginx.org/en/docs/stream/ngx_stream_ssl_preread_module.html>. The bytes stay as they
//! are for the server that gets the session. RFC 8446 section 4.1.2 (ClientHello), RFC 6066 section
//! 3 (names), RFC 7301 (ALPN). A ClientHello may come in any number of pieces and records.

use std::io::ErrorKind;
use std::rc::Rc;
use std::time::{Duration, Instant};

use conf::{Contexts, Declared, Fault, ScopeRef, Setting, parse};
use engine::Buffer;
use logs::Errno;
use proto::tls::preread::{self, PrereadResult, Seen, TLS13};
use transport::Transport;
use transport::tls::handshake::host;
use variables::{BuiltinVariable, Evaluate};

use crate::session::{Session, Status};

const CONTEXTS: Contexts = Contexts::STREAM.or(Contexts::STREAM_SERVER);

static PREREAD_BUFFER_SIZE: Setting<u64> =
    Setting::new("preread_buffer_size", &["size"], parse::size)
        .contexts(CONTEXTS)
        .default("16k")
        .manual("How much of what a client says first is looked at, where `ssl_preread` is on.");

static PREREAD_TIMEOUT: Setting<Duration> =
    Setting::new("preread_timeout", &["time"], parse::milliseconds)
        .contexts(CONTEXTS)
        .default("30s")
        .manual("How long a client may take to say it.");

static SSL_PREREAD: Setting<bool> = Setting::new("ssl_preread", &["on | off"], parse::flag)
    .contexts(CONTEXTS)
    .default("off")
    .manual(
        "Whether the beginning of a TLS handshake is looked at, for the variables \
         `$ssl_preread_server_name`, `$ssl_preread_alpn_protocols` and `$ssl_preread_protocol` and \
         for `server_name`. The handshake itself is left to the server that sessions are passed on \
         to.",
    );

/// The directives of this file.
pub(crate) const DIRECTIVES: &[&dyn Declared] =
    &[&PREREAD_BUFFER_SIZE, &PREREAD_TIMEOUT, &SSL_PREREAD];

/// How a server looks at what its clients say first.
pub(crate) struct Preread {
    buffer_size: usize,
    timeout: Duration,
    of_tls: bool,
}

/// What a server says of it.
pub(crate) fn of_server(server: ScopeRef<'_>) -> Result<Preread, Fault> {
    Ok(Preread {
        buffer_size: usize::try_from(server.get(&PREREAD_BUFFER_SIZE)?).unwrap_or(usize::MAX),
        timeout: server.get(&PREREAD_TIMEOUT)?,
        of_tls: server.get(&SSL_PREREAD)?,
    })
}

impl Preread {
    /// Whether nothing is looked at.
    pub(crate) fn is_off(&self) -> bool {
        !self.of_tls
    }

    /// Looks at what the client says until it is known; `received` is what has been read already.
    /// The session keeps all of it for its content.
    ///
    /// # Errors
    /// How a session ends whose client says too little or too much.
    pub(crate) async fn look(&self, session: &mut Session, received: Buffer) -> Result<(), Status> {
        let connection = Rc::clone(&session.connection);
        let Some(transport) = connection.transport() else {
            return Ok(()); // datagrams hold no handshake of this kind
        };
        session.doing = " while prereading client data";
        let deadline = engine::now() + self.timeout;
        let mut bytes = received.to_vec();
        let mut preread = preread::Preread::default();
        let hello = loop {
            let seen = bytes.get(..self.buffer_size).unwrap_or(&bytes);
            match preread.go_on(seen) {
                PrereadResult::More if bytes.len() >= self.buffer_size => {
                    logs::error!(session, Error, "preread buffer full");
                    return Err(Status::BadRequest);
                }
                PrereadResult::More => {
                    bytes.extend_from_slice(&receive(session, transport, deadline).await?)
                }
                PrereadResult::Hello(hello) => break Some(hello),
                PrereadResult::Other => break None,
            }
        };
        session.preread.set(bytes.into());
        let name = hello.as_ref().and_then(|hello| host(&hello.server_name));
        session.preread_hello = hello.map(Box::new);
        if let Some(name) = name {
            session.find_server(&name);
        }
        Ok(())
    }
}

/// The client's next bytes.
///
/// # Errors
/// As in nginx the session of a client that says no more is over.
async fn receive(
    session: &Session,
    transport: &Transport,
    deadline: Instant,
) -> Result<Buffer, Status> {
    match transport.recv(Some(deadline)).await {
        Ok(buffer) if !buffer.is_empty() => Ok(buffer),
        Ok(_) => Err(Status::Ok),
        Err(error) => {
            if error.kind() != ErrorKind::TimedOut {
                let level = logs::network::failure_level(&error);
                let text = format_args!("recv() failed {}", Errno(&error));
                logs::write(session, level, text);
            }
            Err(Status::Ok)
        }
    }
}

/// The variable of a name in lower case, without `$`.
pub(crate) fn find(name: &str) -> Option<BuiltinVariable<Session>> {
    let evaluate: Evaluate<Session> = match name {
        "ssl_preread_server_name" => |session, out| with(session, out, |hello| &hello.server_name),
        "ssl_preread_alpn_protocols" => |session, out| with(session, out, |hello| &hello.protocols),
        "ssl_preread_protocol" => {
            |session, out| with(session, out, |hello| version(hello.version).as_bytes())
        }
        _ => return None,
    };
    Some(BuiltinVariable::computed(evaluate))
}

/// A value of the handshake that was seen; not found where there was none.
fn with(session: &Session, out: &mut Vec<u8>, value: fn(&Seen) -> &[u8]) -> bool {
    let hello = session.preread_hello.as_deref();
    hello.is_some_and(|hello| {
        out.extend_from_slice(value(hello));
        true
    })
}

/// A version's name, as OpenSSL gives it.
fn version(number: u16) -> &'static str {
    match number {
        2 => "SSLv2",
        0x0300 => "SSLv3",
        0x0301 => "TLSv1",
        0x0302 => "TLSv1.1",
        0x0303 => "TLSv1.2",
        TLS13 => "TLSv1.3",
        _ => "",
    }
}
