//! Messages to a syslog server: one datagram each, over UDP or a Unix socket, never waiting.
//!
//! The format is nginx's, after RFC 3164: `<190>Nov 22 10:00:00 host tag: message`. The callers
//! parse the parameters of `syslog:` and handle messages that could not be sent.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The address of a syslog server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// A server at this address, over UDP.
    Inet(SocketAddr),
    /// A Unix datagram socket, such as `/dev/log`.
    Unix(PathBuf),
}

impl std::fmt::Display for Server {
    /// Formats the address as nginx's log does.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Server::Inet(address) => address.fmt(f),
            Server::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A server, and the parts of each message's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The syslog server that messages go to.
    pub server: Server,
    /// The facility, 0 to 23.
    pub facility: u8,
    /// The name of the program.
    pub tag: String,
    /// The name of the host; `None` with `nohostname`.
    pub hostname: Option<String>,
}

/// A destination with its socket, which the first message opens. May be used from any thread.
#[derive(Debug)]
pub struct Channel {
    /// The syslog server that messages go to.
    pub destination: Destination,
    socket: Mutex<Option<Arc<Socket>>>,
}

#[derive(Debug)]
enum Socket {
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

impl Channel {
    /// A channel without a socket.
    #[must_use]
    pub fn new(destination: Destination) -> Channel {
        Channel {
            destination,
            socket: Mutex::new(None),
        }
    }

    /// Sends one message, without a trailing newline, of a severity from 0 (emerg) to 7 (debug).
    /// `time` has the form `Nov 22 10:00:00`. After a failure the message is sent once more on a
    /// new socket, since the server may have been restarted.
    ///
    /// # Errors
    /// Those of `socket()`, `connect()` and `send()`; `WouldBlock` if the socket's send buffer is
    /// full.
    pub fn send(&self, severity: u8, time: &[u8], message: &[u8]) -> io::Result<()> {
        let line = self.line(severity, time, message);
        match self.send_line(&line) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            Err(_) => {
                *self.slot() = None;
                let again = self.send_line(&line);
                if again.is_err() {
                    *self.slot() = None;
                }
                again
            }
        }
    }

    fn line(&self, severity: u8, time: &[u8], message: &[u8]) -> Vec<u8> {
        let Destination {
            facility,
            tag,
            hostname,
            ..
        } = &self.destination;
        let priority = u32::from(*facility) * 8 + u32::from(severity.min(7));
        let mut line = format!("<{priority}>").into_bytes();
        line.extend_from_slice(time);
        line.push(b' ');
        if let Some(hostname) = hostname {
            line.extend_from_slice(hostname.as_bytes());
            line.push(b' ');
        }
        line.extend_from_slice(tag.as_bytes());
        line.extend_from_slice(b": ");
        line.extend_from_slice(message);
        line
    }

    fn send_line(&self, line: &[u8]) -> io::Result<()> {
        let socket = self.slot().clone();
        let socket = match socket {
            Some(socket) => socket,
            None => {
                let socket = Arc::new(Socket::connect(&self.destination.server)?);
                *self.slot() = Some(Arc::clone(&socket));
                socket
            }
        };
        match &*socket {
            Socket::Udp(socket) => socket.send(line)?,
            Socket::Unix(socket) => socket.send(line)?,
        };
        Ok(())
    }

    /// The lock is held only while the pointer is copied, never during a system call.
    fn slot(&self) -> MutexGuard<'_, Option<Arc<Socket>>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Socket {
    fn connect(server: &Server) -> io::Result<Socket> {
        match server {
            Server::Inet(address) => {
                let any: SocketAddr = match address {
                    SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                    SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
                };
                let socket = UdpSocket::bind(any)?;
                socket.set_nonblocking(true)?;
                socket.connect(address)?;
                Ok(Socket::Udp(socket))
            }
            Server::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.set_nonblocking(true)?;
                socket.connect(path)?;
                Ok(Socket::Unix(socket))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(server: Server, hostname: Option<&str>) -> Channel {
        Channel::new(Destination {
            server,
            facility: 23,
            tag: "nginx".to_owned(),
            hostname: hostname.map(str::to_owned),
        })
    }

    fn received(socket: &UdpSocket) -> String {
        let mut buffer = [0; 200];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    /// The example of nginx's documentation: facility local7 and severity info give 190.
    #[test]
    #[cfg_attr(miri, ignore = "sockets")]
    fn a_message_as_nginx_writes_it() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = Server::Inet(server.local_addr().unwrap());
        let time = b"Nov  2 10:00:00";
        channel(address.clone(), Some("host"))
            .send(6, time, b"text")
            .unwrap();
        assert_eq!(received(&server), "<190>Nov  2 10:00:00 host nginx: text");
        channel(address, None).send(3, time, b"text").unwrap();
        assert_eq!(received(&server), "<187>Nov  2 10:00:00 nginx: text");
    }

    #[test]
    #[cfg_attr(miri, ignore = "sockets")]
    fn a_server_that_comes_back_is_found_again() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let channel = channel(Server::Inet(address), None);
        let send = |text: &[u8]| channel.send(6, b"Nov  2 10:00:00", text);
        send(b"1").unwrap();
        drop(server);
        let _ = send(b"lost");
        let _ = send(b"lost");
        let server = UdpSocket::bind(address).unwrap();
        send(b"2").unwrap();
        assert_eq!(received(&server), "<190>Nov  2 10:00:00 nginx: 2");
    }

    #[test]
    #[cfg_attr(miri, ignore = "sockets")]
    fn a_unix_socket_that_is_missing_is_an_error() {
        let nowhere = Server::Unix("/nonexistent-folder/log".into());
        let error = channel(nowhere, None).send(6, b"", b"").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
