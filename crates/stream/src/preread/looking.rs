//! Prereading of a client's first bytes.

use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Instant;

use engine::Buffer;
use engine::select::{Either, either};
use logs::Errno;
use proto::tls::preread::{self, ClientHelloInfo, PrereadResult};
use transport::Transport;
use transport::tls::handshake::host;

use super::connect::{FirstPacket, receive_connect};
use super::quic::QuicPreread;
use super::seen::SeenConnect;
use crate::connection::ClientEnd;
use crate::datagram_end::DatagramEnd;
use crate::preread::Preread;
use crate::session::{Session, Status};

impl Preread {
    /// Reads the client's first bytes until they contain a ClientHello or a CONNECT, or cannot;
    /// `received` are those already read. The session keeps all of them for its content.
    ///
    /// # Errors
    /// The status of the session if the client sends too little or too much.
    pub(crate) async fn look(&self, session: &mut Session, received: Buffer) -> Result<(), Status> {
        let connection = Rc::clone(&session.connection);
        session.doing = " while prereading client data";
        let deadline = engine::now() + self.timeout;
        let transport = match &connection.end {
            ClientEnd::Stream(transport) => transport,
            ClientEnd::Datagrams(end) if self.of_tls => {
                return self.look_at_datagrams(session, end, deadline).await;
            }
            ClientEnd::Datagrams(_) => return Ok(()),
        };
        let mut bytes = received.to_vec();
        if self.of_tls {
            let hello = self.look_for_hello(session, transport, &mut bytes, deadline);
            note_hello(session, hello.await?);
        }
        if self.of_mqtt {
            let (bytes, limit) = (&mut bytes, self.buffer_size);
            let first = receive_connect(session, transport, bytes, limit, deadline);
            session.preread_connect = match first.await? {
                FirstPacket::Connect(connect, length) => {
                    let packet = bytes.get(..length).unwrap_or_default();
                    Some(Box::new(SeenConnect::of(&connect, packet)))
                }
                FirstPacket::Other => None,
                FirstPacket::TooLong(_) => return Err(buffer_full(session)),
            };
        }
        session.preread.set(bytes.into());
        Ok(())
    }

    /// Reads a client's datagrams until its ClientHello is complete or cannot follow. The datagrams
    /// stay queued for the session's content.
    async fn look_at_datagrams(
        &self,
        session: &mut Session,
        end: &DatagramEnd,
        deadline: Instant,
    ) -> Result<(), Status> {
        let mut preread = QuicPreread::new(self.buffer_size);
        let (mut held, mut length) = (Vec::new(), 0);
        let hello = loop {
            let came = match either(end.next(), engine::sleep_until(deadline)).await {
                Either::First(came) => came,
                Either::Second(()) => return Err(Status::Ok),
            };
            let Some(datagram) = came else {
                break None; // the session is ending
            };
            let seen = preread.go_on(&datagram);
            length += datagram.len();
            held.push(datagram);
            match seen {
                PrereadResult::Hello(hello) => break Some(hello),
                PrereadResult::Other => break None,
                PrereadResult::More if length >= self.buffer_size => {
                    return Err(buffer_full(session));
                }
                PrereadResult::More => {}
            }
        };
        end.put_back(held);
        note_hello(session, hello);
        Ok(())
    }

    /// Reads until the client's ClientHello is complete; `None` if the client sends something else.
    async fn look_for_hello(
        &self,
        session: &Session,
        transport: &Transport,
        bytes: &mut Vec<u8>,
        deadline: Instant,
    ) -> Result<Option<ClientHelloInfo>, Status> {
        let mut preread = preread::Preread::default();
        loop {
            let seen = bytes.get(..self.buffer_size).unwrap_or(bytes);
            match preread.go_on(seen) {
                PrereadResult::More if bytes.len() >= self.buffer_size => {
                    return Err(buffer_full(session));
                }
                PrereadResult::More => {
                    bytes.extend_from_slice(&receive(session, transport, deadline).await?)
                }
                PrereadResult::Hello(hello) => return Ok(Some(hello)),
                PrereadResult::Other => return Ok(None),
            }
        }
    }
}

/// Stores the ClientHello in the session, and selects the server by the requested name.
fn note_hello(session: &mut Session, hello: Option<ClientHelloInfo>) {
    let name = hello.as_ref().and_then(|hello| host(&hello.server_name));
    session.preread_hello = hello.map(Box::new);
    if let Some(name) = name {
        session.find_server(&name);
    }
}

/// Logs that `preread_buffer_size` is exhausted; returns the final status of the session.
fn buffer_full(session: &Session) -> Status {
    logs::error!(session, Error, "preread buffer full");
    Status::BadRequest
}

/// Receives the client's next bytes.
///
/// # Errors
/// As in nginx, the session ends if the client sends no more.
pub(super) async fn receive(
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
