//! What tests ask of a server that they send signals to: a small file, a large one whose answer
//! waits for its client, and what its processes have open.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::PATIENCE;

/// More than the kernel keeps for a client that does not read.
pub const LARGE: usize = 24 << 20;

/// Whether the test runs as root.
pub fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout == b"0\n")
}

/// A request whose answer is under way, and waits for its client.
pub struct Pending(TcpStream);

impl Pending {
    /// One at a port of this machine.
    pub fn new(port: u16, name: &str) -> Pending {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("GET /large?{name} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        stream.read_exact(&mut [0; 1]).unwrap();
        Pending(stream)
    }

    /// Reads the rest of the answer.
    pub fn finish(mut self) {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).unwrap();
        assert!(rest.len() > LARGE);
    }
}

/// A whole request.
pub fn small(port: u16, name: &str) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET /small?{name} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("small"), "{answer}");
}

/// Whether a process has a file open.
pub fn holds(pid: u32, is_it: impl Fn(&str) -> bool) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    let links = entries
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    links.into_iter().any(|link| is_it(&link.to_string_lossy()))
}

/// Whether a process listens on this port.
pub fn listens(pid: u32, port: u16) -> bool {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let mut sockets = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, state) = (fields.get(1)?, fields.get(3)?);
        let is_it = address.ends_with(&format!(":{port:04X}")) && *state == "0A";
        is_it.then(|| format!("socket:[{}]", fields.get(9).unwrap()))
    });
    sockets.any(|socket| holds(pid, |path| path == socket))
}
