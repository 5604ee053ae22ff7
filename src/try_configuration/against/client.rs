//! A client for HTTP/1.1, with or without TLS, that uses persistent connections and waits for each
//! response before the next request.
//!
//! Certificates are not verified: both servers are the operator's, and may be reached at an address
//! that no certificate has. Deliberately not here: proxies, redirects, request bodies, concurrent
//! requests.

use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use load::tls;
use proto::h1::chunked::Decoder;
use proto::h1::response::{self, BodyFraming, ResponseHead};

/// Time limit for each read and write.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Maximum length of a response's head, in bytes.
const HEAD_LENGTH_MAX: usize = 256 * 1024;

/// Maximum length of a body that is kept, in bytes: enough for a page that a server generates
/// itself.
const KEPT_MAX: usize = 64 * 1024;

/// A request from an access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) is_head: bool,
    pub(super) target: Vec<u8>,
    /// The host, if the log has it.
    pub(super) host: Option<String>,
    pub(super) referer: Option<Vec<u8>>,
    pub(super) user_agent: Option<Vec<u8>>,
}

impl Request {
    fn method(&self) -> &'static str {
        if self.is_head { "HEAD" } else { "GET" }
    }

    /// The request line as in an error log, without the version.
    pub(super) fn line(&self) -> Vec<u8> {
        let method = self.method();
        let mut line = format!("request: \"{method} ").into_bytes();
        line.extend_from_slice(&self.target);
        line.extend_from_slice(b" HTTP/");
        line
    }
}

/// Method, target and host of the request, with special characters escaped for a terminal.
impl fmt::Display for Request {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.method(), self.target.escape_ascii())?;
        match &self.host {
            Some(host) => write!(out, " of {}", host.escape_debug()),
            None => Ok(()),
        }
    }
}

/// A response, without interim responses before it.
#[derive(Debug)]
pub(super) struct ServerResponse {
    pub(super) status: u16,
    /// Names and values, in order.
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Body,
}

/// A body's length, digest and beginning.
#[derive(Debug, Default)]
pub(super) struct Body {
    pub(super) length: u64,
    hasher: DefaultHasher,
    /// The beginning of the body, at most [`KEPT_MAX`] bytes.
    kept: Vec<u8>,
}

impl Body {
    fn add(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        self.hasher.write(bytes);
        let room = KEPT_MAX.saturating_sub(self.kept.len());
        self.kept
            .extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    /// The whole body, if it is short enough to be kept.
    pub(super) fn whole(&self) -> Option<&[u8]> {
        (self.kept.len() as u64 == self.length).then_some(&*self.kept)
    }

    /// A digest of the whole body.
    pub(super) fn digest(&self) -> u64 {
        self.hasher.finish()
    }
}

/// A client of one server.
pub(super) struct Client {
    /// The address in the notation of [`TcpStream`].
    address: String,
    /// The Host header for requests without a host.
    host_header: String,
    /// Whether all requests have that header, even if the log has another host.
    is_fixed: bool,
    is_tls: bool,
    connection: Option<Connection>,
}

struct Connection {
    stream: Box<dyn Stream>,
    /// The server name of the TLS session, if TLS is used.
    name: Option<String>,
    /// Received bytes that have not been parsed.
    unread: Vec<u8>,
}

/// A connection to a server, with or without TLS.
trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

impl Client {
    /// A client of a host (an IPv6 address is in brackets). The client connects when the first
    /// request is sent.
    pub(super) fn new(host: &str, port: u16, host_header: &str) -> Client {
        Client {
            address: format!("{host}:{port}"),
            host_header: host_header.to_owned(),
            is_fixed: false,
            is_tls: false,
            connection: None,
        }
    }

    /// Sets whether the client uses TLS.
    pub(super) fn over_tls(self, is_tls: bool) -> Client {
        Client { is_tls, ..self }
    }

    /// Sets whether the client ignores the hosts of the log.
    pub(super) fn with_fixed_host(self, is_fixed: bool) -> Client {
        Client { is_fixed, ..self }
    }

    fn host_of<'a>(&'a self, request: &'a Request) -> &'a str {
        let logged = request.host.as_deref().filter(|_| !self.is_fixed);
        logged.unwrap_or(&self.host_header)
    }

    /// Sends a request and waits for the response. A server may have closed a persistent
    /// connection, so a failed request on one is sent again on a new connection.
    pub(super) fn ask(&mut self, request: &Request) -> Result<ServerResponse, String> {
        let explain = |error: io::Error| process::log::failure("no answer", &error);
        let name = self.is_tls.then(|| without_port(self.host_of(request)));
        let name = name.map(str::to_owned);
        if let Some(mut connection) = self.connection.take()
            && connection.name == name
            && let Ok(answer) = self.ask_on(&mut connection, request)
        {
            return Ok(self.keep(connection, answer));
        }
        let mut connection = self.connect(name).map_err(explain)?;
        let answer = self.ask_on(&mut connection, request).map_err(explain)?;
        Ok(self.keep(connection, answer))
    }

    fn keep(
        &mut self,
        connection: Connection,
        (answer, stays): (ServerResponse, bool),
    ) -> ServerResponse {
        self.connection = stays.then_some(connection);
        answer
    }

    fn connect(&self, name: Option<String>) -> io::Result<Connection> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        let stream: Box<dyn Stream> = match &name {
            None => Box::new(stream),
            Some(name) => Box::new(self.do_handshake(stream, name)?),
        };
        Ok(Connection {
            stream,
            name,
            unread: Vec::new(),
        })
    }

    /// Performs the TLS handshake with a server under this name.
    fn do_handshake(
        &self,
        stream: TcpStream,
        name: &str,
    ) -> io::Result<impl Read + Write + Send + use<>> {
        let settings = tls::Settings {
            insecure: true,
            name: Some(name.to_owned()),
            ..tls::Settings::default()
        };
        let url = format!("https://{}/", self.address);
        let host = without_port(&self.address).to_owned();
        let target = load::Target::parse(&url, &[host]);
        let target = target.map_err(|error| io::Error::other(error.to_string()))?;
        let tls = tls::TlsFactory::new(settings).tls(&target);
        let tls = tls.map_err(|error| io::Error::other(error.to_string()))?;
        let tls = tls.ok_or_else(|| invalid("URL"))?;
        tls.over(stream).map_err(io::Error::other)
    }

    /// The response to a request, and whether the connection can be used for another one.
    fn ask_on(
        &self,
        connection: &mut Connection,
        request: &Request,
    ) -> io::Result<(ServerResponse, bool)> {
        let mut head = format!("{} ", request.method()).into_bytes();
        head.extend_from_slice(&request.target);
        head.extend_from_slice(b" HTTP/1.1\r\nHost: ");
        head.extend_from_slice(self.host_of(request).as_bytes());
        for (name, value) in [
            ("Referer", &request.referer),
            ("User-Agent", &request.user_agent),
        ] {
            if let Some(value) = value {
                head.extend_from_slice(format!("\r\n{name}: ").as_bytes());
                head.extend_from_slice(value);
            }
        }
        head.extend_from_slice(b"\r\n\r\n");
        connection.stream.write_all(&head)?;
        connection.answer(request.is_head)
    }
}

impl Connection {
    /// Reads a response; returns whether the connection stays open.
    fn answer(&mut self, to_head: bool) -> io::Result<(ServerResponse, bool)> {
        let mut head = ResponseHead::default();
        let length = loop {
            match response::parse(&self.unread, &mut head).map_err(|_| invalid("head"))? {
                // Interim responses (RFC 9110, section 15.2) are not compared.
                Some(length) if (100..200).contains(&head.status()) => {
                    self.unread.drain(..length);
                }
                Some(length) => break length,
                None if self.unread.len() > HEAD_LENGTH_MAX => return Err(invalid("head")),
                None => self.receive()?,
            }
        };
        let field = |field: &proto::h1::Field| {
            let name = String::from_utf8_lossy(field.name(&self.unread)).into_owned();
            (name, field.value(&self.unread).to_vec())
        };
        let headers = head.fields().iter().map(field).collect();
        self.unread.drain(..length);
        let framing = head.body(to_head);
        let body = match framing {
            BodyFraming::None => Body::default(),
            BodyFraming::Length(length) => self.sized(length)?,
            BodyFraming::Chunked => self.chunked()?,
            BodyFraming::UntilClose => self.until_close()?,
        };
        let stays = !head.closes() && framing != BodyFraming::UntilClose;
        let answer = ServerResponse {
            status: head.status(),
            headers,
            body,
        };
        Ok((answer, stays))
    }

    /// Reads a body of this length.
    fn sized(&mut self, length: u64) -> io::Result<Body> {
        let mut body = Body::default();
        while body.length < length {
            if self.unread.is_empty() {
                self.receive()?;
            }
            let left = usize::try_from(length - body.length).unwrap_or(usize::MAX);
            let count = self.unread.len().min(left);
            body.add(self.unread.get(..count).unwrap_or_default());
            self.unread.drain(..count);
        }
        Ok(body)
    }

    /// Reads a chunked body.
    fn chunked(&mut self) -> io::Result<Body> {
        let mut body = Body::default();
        let mut decoder = Decoder::new();
        loop {
            let decoded = decoder
                .decode(&self.unread)
                .map_err(|_| invalid("chunked body"))?;
            body.add(self.unread.get(decoded.data.clone()).unwrap_or_default());
            self.unread.drain(..decoded.consumed);
            if decoded.done {
                return Ok(body);
            }
            if decoded.data.is_empty() {
                self.receive()?;
            }
        }
    }

    /// Reads a body that ends with the connection.
    fn until_close(&mut self) -> io::Result<Body> {
        let mut body = Body::default();
        loop {
            body.add(&self.unread);
            self.unread.clear();
            match self.receive() {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(body),
                received => received?,
            }
        }
    }

    /// Reads more bytes.
    fn receive(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        match self.stream.read(&mut buffer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.unread
                    .extend_from_slice(buffer.get(..count).unwrap_or_default());
                Ok(())
            }
        }
    }
}

/// The host without its port and without brackets.
fn without_port(host: &str) -> &str {
    let host = match host.rsplit_once(':') {
        Some((before, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => before,
        _ => host,
    };
    host.trim_start_matches('[').trim_end_matches(']')
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("invalid {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn answers_of_every_framing_are_read_whole() {
        let answers: [&[u8]; 4] = [
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello",
            b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
            b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\nhello",
        ];
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            for answer in answers {
                let mut buffer = [0; 1000];
                let count = stream.read(&mut buffer).unwrap();
                let request = String::from_utf8_lossy(&buffer[..count]).into_owned();
                let expected = "GET /a HTTP/1.1\r\nHost: name\r\nUser-Agent: test\r\n\r\n";
                assert_eq!(request, expected);
                // Byte by byte, so that nothing comes whole.
                answer
                    .iter()
                    .for_each(|byte| stream.write_all(&[*byte]).unwrap());
            }
        });
        let mut client = Client::new("127.0.0.1", port, "name");
        let request = Request {
            is_head: false,
            target: b"/a".to_vec(),
            host: None,
            referer: None,
            user_agent: Some(b"test".to_vec()),
        };
        let mut ask = || client.ask(&request).unwrap();
        let first = ask();
        assert_eq!(first.headers[1], ("X-A".to_owned(), b"b".to_vec()));
        assert_eq!(
            (first.status, first.body.whole()),
            (200, Some(&b"hello"[..]))
        );
        let second = ask();
        assert_eq!(
            (second.status, second.body.digest()),
            (404, first.body.digest())
        );
        assert_eq!(ask().body.length, 0);
        assert_eq!(ask().body.length, 5);
        server.join().unwrap();
    }
}
