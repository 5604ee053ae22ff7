//! Servers behind the one under test: whatever a test says on each connection ([`listen`]), or HTTP
//! by a script ([`Origin`]).

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::PATIENCE;

/// Runs a function for each connection, in a thread of its own, as long as the test's process runs.
/// The port on 127.0.0.1.
pub fn listen(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream));
        }
    });
    port
}

/// A server of HTTP/1.1 that answers as a test says. It runs as long as the test's process.
pub struct Origin {
    /// Where it listens on 127.0.0.1.
    pub port: u16,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Origin {
    /// Writes the answer to each request by a function of its head, with the body behind it, its
    /// number from 0, and the connection, which goes on where the function says so. What `tidegate
    /// accelerate` asks at its start is answered with 404 and not counted.
    pub fn writing(
        write: impl Fn(&str, usize, &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> Origin {
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let shared = Arc::clone(&seen);
        let port = listen(move |stream| serve(stream, &shared, &write));
        Origin { port, seen }
    }

    /// Answers each request by what a function makes of its head, with the body behind it, and its
    /// number from 0. Where that is nothing, the connection ends.
    pub fn keeping(answer: impl Fn(&str, usize) -> Vec<u8> + Send + Sync + 'static) -> Origin {
        Origin::writing(move |request, number, stream| {
            let answer = answer(request, number);
            let _ = stream.write_all(&answer);
            !answer.is_empty()
        })
    }

    /// As [`keeping`](Self::keeping), but each connection ends with its answer.
    pub fn closing(answer: impl Fn(&str, usize) -> Vec<u8> + Send + Sync + 'static) -> Origin {
        Origin::closing_after(move |request, number, stream| {
            let _ = stream.write_all(&answer(request, number));
        })
    }

    /// As [`writing`](Self::writing), but each connection ends with its answer.
    pub fn closing_after(
        write: impl Fn(&str, usize, &mut TcpStream) + Send + Sync + 'static,
    ) -> Origin {
        Origin::writing(move |request, number, stream| {
            write(request, number, stream);
            false
        })
    }

    /// How often it has been asked.
    pub fn requests(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// All requests, each with its body.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    /// The last request, with its body.
    ///
    /// # Panics
    ///
    /// Where there was none.
    pub fn last(&self) -> String {
        self.seen().pop().unwrap()
    }

    /// Waits until it has been asked so often.
    ///
    /// # Panics
    ///
    /// Where it has not been for too long.
    pub fn wait_for(&self, requests: usize) {
        let started = Instant::now();
        while self.requests() < requests {
            assert!(started.elapsed() < PATIENCE, "{:?}", self.seen());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn serve(
    mut stream: TcpStream,
    seen: &Mutex<Vec<String>>,
    write: &impl Fn(&str, usize, &mut TcpStream) -> bool,
) {
    while let Some(request) = read_request(&mut stream) {
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

/// The head of a request or a response, byte by byte so that nothing behind it is taken; `None`
/// where the connection ends before it does.
pub fn read_head(mut stream: &TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => bytes.push(byte[0]),
            // A stop and go of this process interrupts a read that has a time limit.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The head of a request and the body behind it.
fn read_request(stream: &mut TcpStream) -> Option<String> {
    let head = read_head(stream)?;
    let fields = head.to_ascii_lowercase();
    let field = |name: &str| {
        let mut lines = fields.lines();
        lines.find_map(|line| line.strip_prefix(name).map(str::trim).map(str::to_owned))
    };
    let mut body = Vec::new();
    if let Some(length) = field("content-length:") {
        body.resize(length.parse::<usize>().unwrap(), 0);
        stream.read_exact(&mut body).ok()?;
    } else if field("transfer-encoding:").is_some() {
        let mut byte = [0];
        while !body.ends_with(b"0\r\n\r\n") {
            stream.read_exact(&mut byte).ok()?;
            body.push(byte[0]);
        }
    }
    Some(head + &String::from_utf8_lossy(&body))
}

/// A response with these fields, each with its line end, and this body.
pub fn ok(fields: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}
