//! A random client: where it calls, what it says, and what it hears.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::configuration::{Drawn, Target};
use crate::random::Random;

/// How long a client waits for more before it takes what has come for all; longer than what is
/// awaited by a time that is drawn.
const QUIET: Duration = Duration::from_millis(190);

/// How long a client of datagrams waits for another answer.
const ANSWERS_WITHIN: Duration = Duration::from_millis(30);

/// How long a client pauses after each text, and before it ends its own way.
const PAUSE: Duration = Duration::from_millis(8);
const PAUSE_BEFORE_END: Duration = Duration::from_millis(30);

/// What a client does.
pub(crate) struct Talk {
    target: Target,
    from: Ipv4Addr,
    /// What it sends, with a pause between two.
    says: Vec<Vec<u8>>,
    /// It ends its own way at last.
    shuts: bool,
}

/// What a client has heard.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    /// All bytes, and whether the server has ended the connection.
    Stream(Vec<u8>, bool),
    /// Each datagram, sorted.
    Datagrams(Vec<Vec<u8>>),
    Refused,
}

impl Talk {
    pub(crate) fn random(random: &mut Random, drawn: &Drawn) -> Talk {
        let target = drawn.targets[random.below(drawn.targets.len())];
        let mut says = Vec::new();
        if target.is_told {
            says.push(header(random));
        }
        for _ in 0..random.below(4) {
            says.push(text(random, &target));
        }
        Talk {
            target,
            from: Ipv4Addr::new(127, 0, 0, 1 + random.below(3) as u8),
            says,
            shuts: random.chance(30),
        }
    }

    pub(crate) fn is_datagrams(&self) -> bool {
        self.target.is_datagrams
    }

    /// Has the session; all times are multiplied by `pace`.
    pub(crate) fn run(&self, pace: u32) -> Heard {
        let heard = if self.target.is_datagrams {
            self.send(pace)
        } else {
            self.connect(pace)
        };
        heard.unwrap_or(Heard::Refused)
    }

    fn send(&self, pace: u32) -> std::io::Result<Heard> {
        let socket = UdpSocket::bind((self.from, 0))?;
        socket.connect(("127.0.0.1", self.target.port))?;
        socket.set_read_timeout(Some(ANSWERS_WITHIN * pace))?;
        let mut heard = Vec::new();
        let mut buffer = [0; 65_536];
        for text in &self.says {
            // What cannot be sent tells of an earlier one.
            let _ = socket.send(text);
            while let Ok(count) = socket.recv(&mut buffer) {
                heard.push(buffer[..count].to_vec());
            }
        }
        heard.sort();
        Ok(Heard::Datagrams(heard))
    }

    fn connect(&self, pace: u32) -> std::io::Result<Heard> {
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        // A server that another lane starts must not keep the connection open.
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&socket, &SocketAddr::from((self.from, 0)))?;
        let to = SocketAddr::from(([127, 0, 0, 1], self.target.port));
        rustix::net::connect(&socket, &to)?;
        let mut stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(QUIET * pace))?;
        // nginx counts what it reads while it connects, which is nothing if that was there before
        // the connection was accepted.
        std::thread::sleep(PAUSE * pace);
        for text in &self.says {
            // A server that has ended takes no more.
            let _ = stream.write_all(text);
            std::thread::sleep(PAUSE * pace);
        }
        if self.shuts {
            std::thread::sleep(PAUSE_BEFORE_END * pace);
            let _ = stream.shutdown(Shutdown::Write);
        }
        let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
        let is_over = loop {
            match stream.read(&mut buffer) {
                Ok(0) => break true,
                Ok(count) => heard.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break error.kind() != ErrorKind::WouldBlock,
            }
        };
        Ok(Heard::Stream(heard, is_over))
    }
}

/// A header of the PROXY protocol, or what should be one.
fn header(random: &mut Random) -> Vec<u8> {
    let v2 = |kind: u8, family: u8, rest: &[u8]| {
        let length = (rest.len() as u16).to_be_bytes();
        [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[kind, family], &length, rest].concat()
    };
    let ends = b"\xc0\x00\x02\x07\xc0\x00\x02\x08\x03\xe8\x07\xd0";
    match random.below(8) {
        0 | 1 => b"PROXY TCP4 192.0.2.7 192.0.2.8 1000 2000\r\n".to_vec(),
        2 => b"PROXY UNKNOWN\r\n".to_vec(),
        3 => b"PROXY TCP6 2001:db8::7 2001:db8::8 1000 2000\r\n".to_vec(),
        4 => v2(0x21, 0x11, ends),
        5 => v2(0x21, 0x11, &[&ends[..], b"\x02\0\x04name"].concat()),
        6 => v2(0x20, 0, b""),
        _ => b"GET / HTTP/1.0\r\n\r\n".to_vec(),
    }
}

/// What is said then. Less than five bytes are no beginning that nginx looks at.
fn text(random: &mut Random, target: &Target) -> Vec<u8> {
    let name = random.pick(&["a.test", "b.example", "", "unknown.name"]);
    match random.below(6) {
        0 | 1 if target.is_looked_at => hello(name),
        2 => vec![b'x'; 1 + random.below(3000)],
        3 => b"SSH-2.0-client\r\n".to_vec(),
        4 if !target.is_looked_at => b"x".to_vec(),
        _ => b"GET / HTTP/1.1\r\nHost: one\r\n\r\n".to_vec(),
    }
}

/// A ClientHello for a host, of TLS 1.3.
fn hello(name: &str) -> Vec<u8> {
    let extension = |kind: u16, content: &[u8]| {
        let length = (content.len() as u16).to_be_bytes();
        [&kind.to_be_bytes()[..], &length, content].concat()
    };
    let mut extensions = extension(43, b"\x02\x03\x04");
    if !name.is_empty() {
        let length = name.len() as u16;
        let list = [
            &(length + 3).to_be_bytes()[..],
            b"\0",
            &length.to_be_bytes(),
            name.as_bytes(),
        ];
        extensions.extend(extension(0, &list.concat()));
    }
    let length = (extensions.len() as u16).to_be_bytes();
    let body = [
        &b"\x03\x03"[..],
        &[7; 32],
        b"\0\0\x02\x13\x01\x01\0",
        &length,
        &extensions,
    ];
    let body = body.concat();
    let message = [&[1, 0][..], &(body.len() as u16).to_be_bytes(), &body].concat();
    let length = (message.len() as u16).to_be_bytes();
    [&b"\x16\x03\x01"[..], &length, &message].concat()
}

impl fmt::Display for Talk {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "from {} to {}:", self.from, self.target.port)?;
        for text in &self.says {
            let shown = text.get(..60).unwrap_or(text);
            write!(out, " \"{}\" ({})", shown.escape_ascii(), text.len())?;
        }
        out.write_str(if self.shuts { ", shut" } else { "" })
    }
}

impl fmt::Display for Heard {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Heard::Stream(bytes, is_over) => {
                let shown = bytes.get(..200).unwrap_or(bytes).escape_ascii();
                let end = if *is_over { "ended" } else { "open" };
                write!(out, "{} bytes \"{shown}\", {end}", bytes.len())
            }
            Heard::Datagrams(all) => {
                write!(out, "{} datagrams", all.len())?;
                for one in all {
                    let shown = one.get(..60).unwrap_or(one).escape_ascii();
                    write!(out, " \"{shown}\" ({})", one.len())?;
                }
                Ok(())
            }
            Heard::Refused => out.write_str("refused"),
        }
    }
}
