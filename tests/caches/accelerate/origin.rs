//! A server behind that does what a test says: over HTTP/1.1, with connections that are kept.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// It runs as long as the test.
pub(crate) struct Origin {
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Origin {
    /// Answers each request by what `answer` makes of its head, with the body behind it, and its
    /// number. What it is asked by the command itself at the start is answered with 404 and not
    /// counted. Where that is nothing, the connection ends.
    pub(crate) fn start(answer: impl Fn(&str, usize) -> Vec<u8> + Send + Sync + 'static) -> Origin {
        Origin::writing(move |request, number, stream| {
            let answer = answer(request, number);
            let _ = stream.write_all(&answer);
            !answer.is_empty()
        })
    }

    /// The same where the answer is written part by part; the connection goes on where `write` says
    /// so.
    pub(crate) fn writing(
        write: impl Fn(&str, usize, &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> Origin {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let origin = Origin {
            port,
            seen: Arc::clone(&seen),
        };
        let write = Arc::new(write);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, write) = (Arc::clone(&seen), Arc::clone(&write));
                thread::spawn(move || serve(stream, &seen, &*write));
            }
        });
        origin
    }

    /// How often it has been asked.
    pub(crate) fn requests(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// All requests, each with its body.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn last(&self) -> String {
        self.seen().pop().unwrap()
    }
}

fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<String>>,
    write: &dyn Fn(&str, usize, &mut TcpStream) -> bool,
) {
    while let Some(request) = read(&mut stream) {
        let is_probe = request.starts_with("GET /server-") && request.contains("192.0.2.1");
        if is_probe {
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
            return;
        }
        let number = {
            let mut seen = seen.lock().unwrap();
            seen.push(request.clone());
            seen.len() - 1
        };
        if !write(&request, number, &mut stream) {
            return;
        }
    }
}

/// A head and the body behind it.
fn read(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => bytes.push(byte[0]),
            _ => return None,
        }
    }
    let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
    let field = |name: &str| {
        let mut lines = head.lines();
        lines.find_map(|line| line.strip_prefix(name).map(str::trim).map(str::to_owned))
    };
    if let Some(length) = field("content-length:") {
        let start = bytes.len();
        bytes.resize(start + length.parse::<usize>().unwrap(), 0);
        stream.read_exact(&mut bytes[start..]).ok()?;
    } else if field("transfer-encoding:").is_some() {
        while !bytes.ends_with(b"0\r\n\r\n") {
            stream.read_exact(&mut byte).ok()?;
            bytes.push(byte[0]);
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// An answer with these fields, each with its line end, and this body.
pub(crate) fn ok(fields: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}
