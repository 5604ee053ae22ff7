//! The transport of requests and responses: a stream, with or without TLS, or datagrams.
//!
//! memcached's datagrams have a header of eight bytes, big-endian: the request's id, the datagram's
//! sequence number in its message, the number of datagrams in the message, and zero. A request is
//! one datagram. A response may be several, which arrive in any order.

use std::io;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use engine::net::{self, Address, Datagram, DatagramSocket};
use engine::select::{Either, either};

use super::{MemcachedPlan, Transport};
use crate::connection::Connection;
use crate::tls::{SessionProgress, do_handshake};

/// Maximum length of a request in one datagram, in bytes.
pub(super) const DATAGRAM_MAX: usize = 65_000;

/// Length of a datagram's header, in bytes.
const HEAD: usize = 8;

/// An open transport to a server.
pub(super) enum ServerSocket {
    Stream(Box<StreamLink>),
    Datagrams(DatagramLink),
}

/// A connection with a buffer for encryption.
pub(super) struct StreamLink {
    connection: Connection,
    scratch: BytesMut,
}

/// A socket with the state of the awaited response.
pub(super) struct DatagramLink {
    socket: DatagramSocket,
    awaited: AwaitedMessage,
}

/// A response that arrives in datagrams.
#[derive(Debug, Default)]
struct AwaitedMessage {
    /// The id of the last request.
    request: u16,
    /// The parts of its response received so far, in the order of the message.
    parts: Vec<Option<Bytes>>,
}

impl ServerSocket {
    /// Connects and, for TLS, performs the handshake.
    ///
    /// # Errors
    /// If this fails or is not complete before the deadline.
    pub(super) async fn open(plan: &MemcachedPlan, deadline: Instant) -> io::Result<ServerSocket> {
        if matches!(plan.transport, Transport::Datagrams) {
            return ServerSocket::datagrams(&plan.address);
        }
        let stream = net::connect(&plan.address, None, Some(deadline)).await;
        let stream = stream.map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        stream.set_nodelay(true);
        stream.set_send_timeout(plan.timeout);
        let session = match &plan.transport {
            Transport::Tls(tls) => {
                let session = do_handshake(tls, &stream, deadline).await;
                Some(session.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?)
            }
            Transport::Stream | Transport::Datagrams => None,
        };
        Ok(ServerSocket::Stream(Box::new(StreamLink {
            connection: Connection::new(stream, session),
            scratch: BytesMut::new(),
        })))
    }

    fn datagrams(address: &Address) -> io::Result<ServerSocket> {
        Ok(ServerSocket::Datagrams(DatagramLink {
            socket: DatagramSocket::connect(address)?,
            awaited: AwaitedMessage::default(),
        }))
    }

    /// Sends a request.
    pub(super) fn send(&mut self, request: Bytes) {
        match self {
            ServerSocket::Stream(link) => {
                let StreamLink {
                    connection,
                    scratch,
                } = &mut **link;
                connection.push(scratch, &request);
                connection.start_send();
            }
            ServerSocket::Datagrams(link) => link.send(&request),
        }
    }

    /// Passes the next bytes of the response to `take`, and returns their number.
    ///
    /// # Errors
    /// If none arrive before the deadline, or the connection has ended.
    pub(super) async fn receive(
        &mut self,
        deadline: Instant,
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<u64> {
        match self {
            ServerSocket::Stream(link) => {
                let connection = &link.connection;
                let buffer = connection.stream().recv(Some(deadline)).await?;
                if buffer.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let mut length = 0;
                let opened = connection.open(buffer, |bytes| {
                    length += bytes.len() as u64;
                    take(bytes);
                });
                match opened {
                    Ok(SessionProgress::Open) => Ok(length),
                    Ok(SessionProgress::Ended) | Err(_) => Err(io::ErrorKind::UnexpectedEof.into()),
                }
            }
            ServerSocket::Datagrams(link) => link.receive(deadline, take).await,
        }
    }
}

impl DatagramLink {
    fn send(&mut self, request: &[u8]) {
        let awaited = &mut self.awaited;
        awaited.request = awaited.request.wrapping_add(1);
        awaited.parts.clear();
        let mut bytes = BytesMut::with_capacity(HEAD + request.len());
        bytes.extend_from_slice(&awaited.request.to_be_bytes());
        bytes.extend_from_slice(&[0, 0, 0, 1, 0, 0]);
        bytes.extend_from_slice(request);
        self.socket.push(Datagram::new(bytes.freeze()));
        self.socket.start_send();
    }

    /// Waits for the complete response, whose datagrams may arrive in any order.
    async fn receive(&mut self, deadline: Instant, mut take: impl FnMut(&[u8])) -> io::Result<u64> {
        loop {
            let late = engine::sleep_until(deadline);
            let datagram = match either(self.socket.recv(), late).await {
                Either::First(datagram) => datagram?,
                Either::Second(()) => return Err(io::ErrorKind::TimedOut.into()),
            };
            let awaited = &mut self.awaited;
            if !awaited.keep(&datagram.bytes)? || awaited.parts.iter().any(Option::is_none) {
                continue;
            }
            let mut length = 0;
            for part in awaited.parts.drain(..).flatten() {
                length += part.len() as u64;
                take(&part);
            }
            return Ok(length);
        }
    }
}

impl AwaitedMessage {
    /// Stores a datagram of the response. Returns false for a late datagram of an earlier response.
    fn keep(&mut self, datagram: &[u8]) -> io::Result<bool> {
        let malformed = io::Error::from(io::ErrorKind::InvalidData);
        let Some((head, part)) = datagram.split_first_chunk::<HEAD>() else {
            return Err(malformed);
        };
        let number = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        if number(0) != self.request {
            return Ok(false);
        }
        let (place, all) = (usize::from(number(2)), usize::from(number(4)));
        if self.parts.is_empty() {
            self.parts.resize(all, None);
        }
        match self.parts.get_mut(place) {
            Some(kept) => *kept = Some(Bytes::copy_from_slice(part)),
            None => return Err(malformed),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_an_answer_come_in_any_order() {
        let mut link = AwaitedMessage {
            request: 0x0102,
            parts: Vec::new(),
        };
        let part = |request: u8, place: u8, all: u8, text: &[u8]| {
            [&[1, request, 0, place, 0, all, 0, 0][..], text].concat()
        };
        assert!(link.keep(&part(2, 1, 2, b"b")).unwrap());
        assert!(link.parts.iter().any(Option::is_none));
        assert!(!link.keep(&part(1, 0, 1, b"late")).unwrap());
        assert!(link.keep(&part(2, 0, 2, b"a")).unwrap());
        let whole: Vec<u8> = link.parts.drain(..).flatten().flatten().collect();
        assert_eq!(whole, b"ab");
        assert!(link.keep(b"short").is_err());
        assert!(link.keep(&part(2, 3, 2, b"")).is_err());
    }
}
