//! The first packet of an MQTT client, and its reception.

use std::time::Instant;

use proto::mqtt::{Connect, ConnectLength, connect_length};
use transport::Transport;

use super::looking::receive;
use crate::session::{Session, Status};

/// The first packet of a client.
pub(crate) enum FirstPacket {
    /// A CONNECT, and its length in bytes.
    Connect(Connect, usize),
    /// Something else, or a malformed CONNECT.
    Other,
    /// A CONNECT that exceeds the limit, with its length in bytes.
    TooLong(usize),
}

/// Reads until the client's first packet is complete, up to a length limit. `bytes` has the bytes
/// received so far, and grows.
///
/// # Errors
/// The status of the session if the client sends no more.
pub(crate) async fn receive_connect(
    session: &Session,
    transport: &Transport,
    bytes: &mut Vec<u8>,
    length_max: usize,
    deadline: Instant,
) -> Result<FirstPacket, Status> {
    loop {
        match connect_length(bytes) {
            ConnectLength::Other => return Ok(FirstPacket::Other),
            ConnectLength::Bytes(length) if length > length_max => {
                return Ok(FirstPacket::TooLong(length));
            }
            ConnectLength::Bytes(length) => {
                if let Some(packet) = bytes.get(..length) {
                    let read = Connect::parse(packet);
                    return Ok(read.map_or(FirstPacket::Other, |connect| {
                        FirstPacket::Connect(connect, length)
                    }));
                }
            }
            ConnectLength::More => {}
        }
        bytes.extend_from_slice(&receive(session, transport, deadline).await?);
    }
}
