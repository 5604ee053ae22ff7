//! A FastCGI application of our own: it keeps what it is told, and answers as the test says.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A request as it came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Parameters in order.
    pub(crate) params: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Lengths of the records of the body.
    pub(crate) records: Vec<usize>,
    /// The address that it came from.
    pub(crate) peer: String,
    /// It asks for the connection to be left open.
    pub(crate) keeps_connection: bool,
}

impl Seen {
    /// The parameter `URI`.
    pub(crate) fn uri(&self) -> String {
        let uri = self.params.iter().find(|(name, _)| name == "URI");
        uri.map(|(_, value)| value.clone()).unwrap_or_default()
    }
}

type Answer = dyn Fn(&Seen) -> Vec<Vec<u8>> + Send + Sync;

/// It listens as long as the process runs.
pub(crate) struct Application {
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
}

impl Application {
    /// Listens; each part of an answer is sent by itself.
    pub(crate) fn start(
        answer: impl Fn(&Seen) -> Vec<Vec<u8>> + Send + Sync + 'static,
    ) -> Application {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let connections = Arc::<AtomicUsize>::default();
        let application = Application {
            port,
            seen: Arc::clone(&seen),
            connections: Arc::clone(&connections),
        };
        let answer: Arc<Answer> = Arc::new(answer);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                connections.fetch_add(1, Ordering::SeqCst);
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                thread::spawn(move || serve(stream, &seen, &*answer));
            }
        });
        application
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The request that came last.
    pub(crate) fn last(&self) -> Seen {
        self.seen.lock().unwrap().last().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn serve(mut stream: TcpStream, seen: &Mutex<Vec<Seen>>, answer: &Answer) {
    let _ = stream.set_nodelay(true);
    let peer = stream.peer_addr().unwrap().ip().to_string();
    while let Some(mut request) = read_request(&mut stream) {
        request.peer.clone_from(&peer);
        seen.lock().unwrap().push(request.clone());
        let parts = answer(&request);
        let drips = parts.len() > 2;
        // An empty part behind others is the end of the connection.
        let closes = parts.last().is_some_and(Vec::is_empty);
        for part in parts {
            if stream.write_all(&part).is_err() {
                return;
            }
            if drips {
                thread::sleep(Duration::from_micros(300));
            } else {
                thread::sleep(Duration::from_millis(2));
            }
        }
        if closes || !request.keeps_connection {
            return;
        }
    }
}

/// The next request of a connection; `None` where there is none, or something else.
fn read_request(stream: &mut TcpStream) -> Option<Seen> {
    let (mut seen, mut params) = (Seen::default(), Vec::new());
    loop {
        let mut header = [0; 8];
        stream.read_exact(&mut header).ok()?;
        let [1, kind, 0, 1, high, low, padding, _] = header else {
            return None;
        };
        let mut content = vec![0; usize::from(u16::from_be_bytes([high, low]))];
        stream.read_exact(&mut content).ok()?;
        stream.read_exact(&mut vec![0; padding.into()]).ok()?;
        match kind {
            1 => {
                assert_eq!(content[..2], [0, 1], "a responder");
                seen.keeps_connection = content[2] == 1;
            }
            4 if content.is_empty() => seen.params = read_params(&params),
            4 => params.extend(content),
            5 => {
                seen.records.push(content.len());
                if content.is_empty() {
                    return Some(seen);
                }
                seen.body.extend(content);
            }
            _ => panic!("record of type {kind}"),
        }
    }
}

fn read_params(mut bytes: &[u8]) -> Vec<(String, String)> {
    let mut params = Vec::new();
    let length = |bytes: &mut &[u8]| {
        let (length, taken) = match bytes[0] {
            short @ 0..=127 => (usize::from(short), 1),
            _ => {
                let length = u32::from_be_bytes(bytes[..4].try_into().unwrap());
                ((length & 0x7fff_ffff) as usize, 4)
            }
        };
        *bytes = &bytes[taken..];
        length
    };
    while !bytes.is_empty() {
        let (name, value) = (length(&mut bytes), length(&mut bytes));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        params.push((text(&bytes[..name]), text(&bytes[name..name + value])));
        bytes = &bytes[name + value..];
    }
    params
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).unwrap().to_be_bytes();
    let padding = (8 - content.len() % 8) % 8;
    let mut bytes = vec![1, kind, 0, 1, high, low, padding as u8, 0];
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len() + padding, 0);
    bytes
}

/// A record of the response.
pub(crate) fn stdout(content: &[u8]) -> Vec<u8> {
    record(6, content)
}

/// A record of messages.
pub(crate) fn stderr(content: &[u8]) -> Vec<u8> {
    record(7, content)
}

/// The end of the request.
pub(crate) fn end() -> Vec<u8> {
    record(3, &[0; 8])
}
