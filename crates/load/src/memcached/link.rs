//! What requests and answers go over: a stream, in the clear or through TLS, or datagrams.
//!
//! memcached's datagrams have a head of eight bytes, big-endian: the number of the request, that of
//! the datagram in its message, how many there are, and zero. A request is one datagram, an answer
//! as many as it takes, in whatever order they come.

use std::io;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use engine::net::{self, Address, Datagram, DatagramSocket};
use engine::select::{Either, either};

use super::{MemcachedPlan, Transport};
use crate::connection::Connection;
use crate::tls::{SessionProgress, shake_hands};

/// Longest request that one datagram holds.
pub(super) const DATAGRAM_MAX: usize = 65_000;

/// Bytes of a datagram's head.
const HEAD: usize = 8;

/// A way to a server, ready for requests.
pub(super) enum ServerSocket {
    Stream(Box<StreamLink>),
    Datagrams(DatagramLink),
}

/// A connection, and what it takes to send through it.
pub(super) struct StreamLink {
    connection: Connection,
    scratch: BytesMut,
}

/// A socket, and the answer that is awaited.
pub(super) struct DatagramLink {
    socket: DatagramSocket,
    awaited: AwaitedMessage,
}

/// A message that comes in datagrams.
#[derive(Debug, Default)]
struct AwaitedMessage {
    /// The number of the last request.
    request: u16,
    /// What has come of its answer, in the order of the message.
    parts: Vec<Option<Bytes>>,
}

impl ServerSocket {
    /// Connects, and shakes hands where TLS is spoken.
    ///
    /// # Errors
    /// Where that does not work before the deadline.
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
                let session = shake_hands(tls, &stream, deadline).await;
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

    /// Queues a request, and gives it to the kernel.
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

    /// The next bytes of the answer, for `take`. How many there were.
    ///
    /// # Errors
    /// Where none come before the deadline, or any more.
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

    /// Waits for the whole answer: its parts may come in any order.
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
    /// Keeps a part of the answer. False where it is another's: one that has come too late.
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
