//! A test double of an application server that speaks FastCGI, uwsgi or SCGI: it records each
//! request, and answers with the bytes that the test returns for it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// The protocol of an application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// FastCGI: records.
    #[default]
    Fastcgi,
    /// uwsgi: a packet in front of the body.
    Uwsgi,
    /// SCGI: a netstring in front of the body.
    Scgi,
}

impl Protocol {
    /// All protocols, for tests that run with each.
    pub const ALL: [Protocol; 3] = [Protocol::Fastcgi, Protocol::Uwsgi, Protocol::Scgi];

    /// The prefix of the protocol's directives.
    pub fn prefix(self) -> &'static str {
        match self {
            Protocol::Fastcgi => "fastcgi_",
            Protocol::Uwsgi => "uwsgi_",
            Protocol::Scgi => "scgi_",
        }
    }
}

/// A request as the application received it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The protocol of the request.
    pub protocol: Protocol,
    /// `modifier1` and `modifier2` of the uwsgi packet.
    pub modifiers: [u8; 2],
    /// The string behind the parameters of a uwsgi packet (`uwsgi_string`).
    pub string: String,
    /// The parameters, in the order in which they were sent.
    pub params: Vec<(String, String)>,
    /// The whole body.
    pub body: Vec<u8>,
    /// Lengths of the FastCGI stdin records, the empty last one included.
    pub records: Vec<usize>,
    /// The IP address of the other end of the connection.
    pub peer: String,
    /// `FCGI_KEEP_CONN` is set: the application must not close the connection.
    pub keeps_connection: bool,
}

impl Seen {
    /// A response with this head (without the empty line) and this body, framed for the request's
    /// protocol.
    pub fn answer(&self, head: &str, body: &[u8]) -> Vec<Vec<u8>> {
        let head = format!("{head}\r\n\r\n");
        if self.protocol != Protocol::Fastcgi {
            return vec![[head.as_bytes(), body].concat()];
        }
        let mut bytes = stdout(head.as_bytes());
        for part in body.chunks(32_000) {
            bytes.extend(stdout(part));
        }
        bytes.extend(stdout(b""));
        bytes.extend(end());
        vec![bytes]
    }

    /// The parameter `URI`.
    pub fn uri(&self) -> String {
        let uri = self.params.iter().find(|(name, _)| name == "URI");
        uri.map(|(_, value)| value.clone()).unwrap_or_default()
    }
}

type Answer = dyn Fn(&Seen) -> Vec<Vec<u8>> + Send + Sync;

/// An application server for tests. It listens until the process exits.
pub struct Application {
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
}

impl Application {
    /// Starts an application. Each part that `answer` returns is sent in a write of its own; an
    /// empty last part closes the connection.
    pub fn start(
        protocol: Protocol,
        answer: impl Fn(&Seen) -> Vec<Vec<u8>> + Send + Sync + 'static,
    ) -> Application {
        Application::start_early(protocol, Vec::new(), answer)
    }

    /// Starts an application that sends the bytes `early` on each new connection before it reads
    /// the first request.
    pub fn start_early(
        protocol: Protocol,
        early: Vec<u8>,
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
            for mut stream in listener.incoming().flatten() {
                connections.fetch_add(1, Ordering::SeqCst);
                let _ = stream.write_all(&early);
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                thread::spawn(move || serve(stream, protocol, &seen, &*answer));
            }
        });
        application
    }

    /// The address of the application, as an argument of `…_pass`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The last request.
    pub fn last(&self) -> Seen {
        self.seen.lock().unwrap().last().unwrap().clone()
    }

    /// How many requests the application has received.
    pub fn requests(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// How many connections the application has accepted.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn serve(mut stream: TcpStream, protocol: Protocol, seen: &Mutex<Vec<Seen>>, answer: &Answer) {
    let _ = stream.set_nodelay(true);
    let peer = stream.peer_addr().unwrap().ip().to_string();
    let read = match protocol {
        Protocol::Fastcgi => read_request,
        Protocol::Uwsgi => read_packet,
        Protocol::Scgi => read_netstring,
    };
    while let Some(mut request) = read(&mut stream) {
        request.protocol = protocol;
        request.peer.clone_from(&peer);
        seen.lock().unwrap().push(request.clone());
        let parts = answer(&request);
        let drips = parts.len() > 2;
        // An empty last part closes the connection.
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

/// Reads a FastCGI request; `None` at the end of the connection, or if the bytes are not FastCGI.
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

/// Reads a uwsgi packet, and a body of `CONTENT_LENGTH` bytes.
fn read_packet(stream: &mut TcpStream) -> Option<Seen> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).ok()?;
    let [modifier1, low, high, modifier2] = header;
    let mut content = vec![0; usize::from(u16::from_le_bytes([low, high]))];
    stream.read_exact(&mut content).ok()?;
    let mut seen = Seen {
        modifiers: [modifier1, modifier2],
        ..Seen::default()
    };
    let mut rest = &content[..];
    let text = |rest: &mut &[u8]| -> Option<String> {
        let (length, behind) = rest.split_first_chunk::<2>()?;
        let (text, behind) = behind.split_at_checked(u16::from_le_bytes(*length).into())?;
        *rest = behind;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    while !rest.is_empty() {
        let before = rest;
        let (Some(name), Some(value)) = (text(&mut rest), text(&mut rest)) else {
            seen.string = String::from_utf8_lossy(before).into_owned();
            break;
        };
        seen.params.push((name, value));
    }
    read_body(stream, &mut seen)?;
    Some(seen)
}

/// Reads an SCGI netstring, and a body of `CONTENT_LENGTH` bytes.
fn read_netstring(stream: &mut TcpStream) -> Option<Seen> {
    let mut length = 0;
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        match byte {
            [b':'] => break,
            [digit] => length = length * 10 + usize::from(digit - b'0'),
        }
    }
    let mut content = vec![0; length + 1];
    stream.read_exact(&mut content).ok()?;
    assert_eq!(content.pop(), Some(b','));
    assert_eq!(content.pop(), Some(0));
    let mut seen = Seen::default();
    let texts: Vec<_> = content.split(|byte| *byte == 0).collect();
    for pair in texts.chunks(2) {
        let text = |at: usize| String::from_utf8_lossy(pair[at]).into_owned();
        seen.params.push((text(0), text(1)));
    }
    assert_eq!(seen.params[0].0, "CONTENT_LENGTH");
    read_body(stream, &mut seen)?;
    Some(seen)
}

fn read_body(stream: &mut TcpStream, seen: &mut Seen) -> Option<()> {
    let length = seen
        .params
        .iter()
        .find(|(name, _)| name == "CONTENT_LENGTH");
    let length = length.and_then(|(_, value)| value.parse().ok());
    seen.body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut seen.body).ok()
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

/// A FastCGI stdout record: a part of the response.
pub fn stdout(content: &[u8]) -> Vec<u8> {
    record(6, content)
}

/// A FastCGI stderr record: messages for the error log.
pub fn stderr(content: &[u8]) -> Vec<u8> {
    record(7, content)
}

/// A FastCGI end-of-request record.
pub fn end() -> Vec<u8> {
    record(3, &[0; 8])
}
