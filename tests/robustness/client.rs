//! A client that sends bytes and keeps those that come: as much HTTP/1 as finds a response's end.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// How long an answer may take, on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Closed,
    Reset,
    /// It has not.
    Open,
}

/// One response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Status line and fields, in lower case.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn closes(&self) -> bool {
        self.head.contains("\r\nconnection: close")
    }
}

/// One connection.
pub(crate) struct Client {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// A GET request that keeps the connection.
pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

impl Client {
    pub(crate) fn connect(port: u16) -> Client {
        Client::connect_to(&format!("127.0.0.1:{port}"))
    }

    pub(crate) fn connect_to(address: &str) -> Client {
        let stream = TcpStream::connect(address).expect("connects");
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client {
            stream,
            unread: Vec::new(),
        }
    }

    /// Sends; a server that has closed already does not take it, which is for the reader to see.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Client {
        let _ = self.stream.write_all(bytes.as_ref());
        self
    }

    pub(crate) fn stop_sending(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Waits until the server has read what was sent, and a moment longer, in which it acts on it.
    pub(crate) fn wait_until_read(&self) {
        let (own, peer) = (self.stream.local_addr(), self.stream.peer_addr());
        let (own, peer) = (own.unwrap().port(), peer.unwrap().port());
        wait_until("the server reads", || {
            unread_by_server(own, peer) == Some(0)
        });
        std::thread::sleep(Duration::from_millis(50));
    }

    /// Sends a GET request and gives its response.
    pub(crate) fn get(&mut self, path: &str) -> Response {
        self.send(get(path)).response()
    }

    /// The next response. Panics where none comes whole.
    pub(crate) fn response(&mut self) -> Response {
        self.try_response().expect("a whole response")
    }

    /// The next response, to HEAD if so said; how the connection ended where there is none.
    pub(crate) fn try_response(&mut self) -> Result<Response, End> {
        let end = loop {
            match find(&self.unread, b"\r\n\r\n") {
                Some(at) => break at + 4,
                None => self.more()?,
            }
        };
        let head = String::from_utf8_lossy(&self.unread[..end]).to_lowercase();
        self.unread.drain(..end);
        let status = head[9..12].parse().expect("a status");
        let body = if matches!(status, 100..=199 | 204 | 304) {
            Vec::new()
        } else if head.contains("\r\ntransfer-encoding: chunked") {
            self.chunks()?
        } else if let Some(length) = length(&head) {
            self.take(length)?
        } else {
            self.rest().0
        };
        Ok(Response { status, head, body })
    }

    /// Everything until the connection ends, or until nothing has come for some time.
    pub(crate) fn rest(&mut self) -> (Vec<u8>, End) {
        let end = loop {
            if let Err(end) = self.more() {
                break end;
            }
        };
        (std::mem::take(&mut self.unread), end)
    }

    /// Like [`Client::rest`], but with this much patience.
    pub(crate) fn rest_within(&mut self, patience: Duration) -> (Vec<u8>, End) {
        self.stream.set_read_timeout(Some(patience)).unwrap();
        let rest = self.rest();
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        rest
    }

    /// Exactly so many bytes.
    pub(crate) fn take(&mut self, length: usize) -> Result<Vec<u8>, End> {
        while self.unread.len() < length {
            self.more()?;
        }
        Ok(self.unread.drain(..length).collect())
    }

    /// Has bytes that were taken be read again.
    pub(crate) fn put_back(&mut self, bytes: &[u8]) {
        self.unread.splice(..0, bytes.iter().copied());
    }

    fn more(&mut self) -> Result<(), End> {
        let mut buffer = [0; 64 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err(End::Closed),
            Ok(length) => {
                self.unread.extend_from_slice(&buffer[..length]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Err(End::Open),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(_) => Err(End::Reset),
        }
    }

    fn chunks(&mut self) -> Result<Vec<u8>, End> {
        let mut body = Vec::new();
        loop {
            let line = loop {
                match find(&self.unread, b"\r\n") {
                    Some(at) => break at,
                    None => self.more()?,
                }
            };
            let size = String::from_utf8_lossy(&self.unread[..line]).into_owned();
            let size = usize::from_str_radix(size.trim(), 16).expect("a chunk's size");
            self.unread.drain(..line + 2);
            body.extend(self.take(size)?);
            self.take(2)?;
            if size == 0 {
                return Ok(body);
            }
        }
    }
}

fn length(head: &str) -> Option<usize> {
    let rest = head.split_once("\r\ncontent-length: ")?.1;
    rest.split("\r\n").next()?.parse().ok()
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|w| w == needle)
}

/// How many bytes wait to be read at the other end of a connection, once that has been accepted.
/// The kernel shows a connection that waits to be accepted without an inode.
fn unread_by_server(client: u16, server: u16) -> Option<usize> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("is there");
    let (local, remote) = (format!(":{server:04X}"), format!(":{client:04X}"));
    table.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_it = columns.get(1)?.ends_with(&local) && columns.get(2)?.ends_with(&remote);
        let (_, unread) = columns.get(4)?.split_once(':')?;
        (is_it && *columns.get(9)? != "0").then(|| usize::from_str_radix(unread, 16).ok())?
    })
}

/// Waits until something holds; panics if it does not in time.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
