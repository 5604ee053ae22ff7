//! Looking at what a client says first.

use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Instant;

use engine::Buffer;
use logs::Errno;
use proto::tls::preread::{self, PrereadResult};
use transport::Transport;
use transport::tls::handshake::host;

use crate::preread::Preread;
use crate::session::{Session, Status};

impl Preread {
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
