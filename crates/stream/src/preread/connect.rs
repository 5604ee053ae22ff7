//! An MQTT client's first packet, as far as it has come.

use std::time::Instant;

use proto::mqtt::{Connect, ConnectLength, connect_length};
use transport::Transport;

use super::looking::receive;
use crate::session::{Session, Status};

/// What a client begins with.
pub(crate) enum FirstPacket {
    /// A CONNECT, and how many of the client's bytes it has.
    Connect(Connect, usize),
    /// Something else, or a CONNECT that cannot be understood.
    Other,
    /// A CONNECT that is longer than allowed: so many bytes.
    TooLong(usize),
}

/// Reads on until the client's first packet has come as a whole, which may have so many bytes;
/// `bytes` is what has come so far, and takes more.
///
/// # Errors
/// How the session of a client ends that says no more.
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
