//! The ACME client's own HTTP client: one request per connection, on a thread that may block.
//!
//! Limits on the time of a request and the length of a response keep a server from blocking the
//! thread or filling the memory. `proto::h1` parses heads and chunks.
//!
//! Deliberately not here: redirects (the directory lists absolute URLs), proxies, HTTP/2,
//! persistent connections (there are a handful of requests a month; TLS sessions are resumed). The
//! system resolver resolves names.

use std::fmt;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyperium_http::header::USER_AGENT;
use hyperium_http::{Method, Request, Response, Uri};
use instant_acme::{BodyWrapper, BytesResponse, HttpClient};
use proto::h1::chunked::Decoder;
use proto::h1::response::{BodyFraming, ResponseHead, parse};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;

/// Time limit of a request, including name resolution, connection and handshake.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);

/// Time limit for connecting to one address.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum length of a response, in bytes, including its head.
const ANSWER_LENGTH_MAX: usize = 1024 * 1024;

/// Size of the read buffer, in bytes.
const READ_LENGTH: usize = 16 * 1024;

/// The `User-Agent` product.
const NAME: &str = concat!("tidegate/", env!("CARGO_PKG_VERSION"));

/// An HTTP client. Clones share the last response.
#[derive(Clone)]
pub(crate) struct Client {
    tls: Arc<ClientConfig>,
    last: Arc<Mutex<LastResponse>>,
}

/// Parts of the last response that `instant-acme` does not return.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastResponse {
    /// URLs of alternate chains for the certificate (RFC 8555 section 7.4.2).
    pub(crate) alternates: Vec<String>,
    /// The `Retry-After` of a refusal.
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: Bytes,
}

/// Why a request got no response.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// The URL has a scheme other than `https` or `http`, or no host.
    Url(String),
    /// The host's name has no address.
    Resolve(String, io::Error),
    /// No address could be connected to, or the connection broke.
    Connection(io::Error),
    /// The request took longer than [`REQUEST_TIME_MAX`].
    TimedOut,
    /// The TLS handshake failed before the request was sent: for instance, the certificate is not
    /// trusted.
    Handshake(rustls::Error),
    /// The server sent something other than HTTP/1.
    NotHttp,
    /// The connection ended in the middle of the response.
    Truncated,
    /// The response is longer than [`ANSWER_LENGTH_MAX`].
    TooLong,
}

impl fmt::Display for RequestError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestError::Url(url) => write!(out, "\"{url}\" is no URL of a server"),
            RequestError::Resolve(host, error) => {
                write!(out, "\"{host}\" could not be resolved ({error})")
            }
            RequestError::Connection(error) => write!(out, "connection failed ({error})"),
            RequestError::TimedOut => out.write_str("the server did not answer in time"),
            RequestError::Handshake(error) => write!(out, "TLS handshake failed ({error})"),
            RequestError::NotHttp => out.write_str("the server sent no valid HTTP response"),
            RequestError::Truncated => out.write_str("the server closed the connection early"),
            RequestError::TooLong => out.write_str("the server sent too long a response"),
        }
    }
}

impl std::error::Error for RequestError {}

impl From<io::Error> for RequestError {
    fn from(error: io::Error) -> RequestError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => RequestError::TimedOut,
            // `StreamOwned` wraps errors of rustls in `InvalidData`.
            io::ErrorKind::InvalidData => match error.downcast::<rustls::Error>() {
                Ok(error) => RequestError::Handshake(error),
                Err(error) => RequestError::Connection(error),
            },
            _ => RequestError::Connection(error),
        }
    }
}

impl Client {
    /// A client that verifies servers according to this TLS configuration.
    pub(crate) fn new(tls: Arc<ClientConfig>) -> Client {
        Client {
            tls,
            last: Arc::default(),
        }
    }

    /// A copy of the last response's parts.
    pub(crate) fn last(&self) -> LastResponse {
        let last = self.last.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a GET request and returns the body of the response, whatever the status.
    ///
    /// # Errors
    /// If there is no response.
    pub(crate) fn get(&self, url: &str) -> Result<Bytes, RequestError> {
        let uri: Uri = url.parse().map_err(|_| RequestError::Url(url.to_owned()))?;
        let head = Request::get(uri).body(());
        let (head, ()) = head
            .map_err(|_| RequestError::Url(url.to_owned()))?
            .into_parts();
        Ok(self.send(&head, &[])?.into_body())
    }

    /// Sends a request and waits for the response.
    fn send(
        &self,
        head: &hyperium_http::request::Parts,
        body: &[u8],
    ) -> Result<Response<Bytes>, RequestError> {
        let deadline = Instant::now() + REQUEST_TIME_MAX;
        let target = Target::of(&head.uri)?;
        let stream = Timed {
            stream: connect(&target, deadline)?,
            deadline,
        };
        let request = encode(head, &target, body);
        let is_head = head.method == Method::HEAD;
        let response = if target.secure {
            let name = ServerName::try_from(target.host.to_owned());
            let name = name.map_err(|_| RequestError::Url(head.uri.to_string()))?;
            let session = ClientConnection::new(Arc::clone(&self.tls), name);
            let session = session.map_err(RequestError::Handshake)?;
            exchange(StreamOwned::new(session, stream), &request, is_head)?
        } else {
            exchange(stream, &request, is_head)?
        };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = LastResponse {
            alternates: alternates(&response, &head.uri),
            retry_after: retry_after(&response),
            body: response.body().clone(),
        };
        Ok(response)
    }
}

impl HttpClient for Client {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map(|body| body.to_bytes());
            let body = body.unwrap_or_else(|never| match never {});
            let answer = client.send(&head, &body);
            let answer = answer.map_err(|error| instant_acme::Error::Other(Box::new(error)))?;
            let (parts, body) = answer.into_parts();
            Ok(BytesResponse {
                parts,
                body: Box::new(body),
            })
        })
    }
}

/// Whether a text is the URL of a server: `https` or `http` with a host.
pub fn is_url(text: &str) -> bool {
    let uri = text.parse::<Uri>();
    uri.is_ok_and(|uri| Target::of(&uri).is_ok_and(|target| !target.host.is_empty()))
}

/// The server that a request is sent to.
struct Target<'a> {
    secure: bool,
    /// Without the brackets of an IPv6 address.
    host: &'a str,
    port: u16,
    authority: &'a str,
}

impl Target<'_> {
    fn of(uri: &Uri) -> Result<Target<'_>, RequestError> {
        let wrong = || RequestError::Url(uri.to_string());
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?;
        let host = authority.host();
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let default = if secure { 443 } else { 80 };
        Ok(Target {
            secure,
            host: bare.unwrap_or(host),
            port: authority.port_u16().unwrap_or(default),
            authority: authority.as_str(),
        })
    }
}

fn connect(target: &Target<'_>, deadline: Instant) -> Result<TcpStream, RequestError> {
    let resolved = (target.host, target.port).to_socket_addrs();
    let failed = |error| RequestError::Resolve(target.host.to_owned(), error);
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in resolved.map_err(failed)? {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(RequestError::TimedOut);
        }
        match TcpStream::connect_timeout(&address, left.min(CONNECT_TIME_MAX)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last.into())
}

/// Encodes the head and body of a request.
fn encode(head: &hyperium_http::request::Parts, target: &Target<'_>, body: &[u8]) -> Vec<u8> {
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let (method, host) = (&head.method, target.authority);
    let mut bytes = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    // RFC 8555 section 6.1: the field names the ACME client and its HTTP library.
    let library = head.headers.get(USER_AGENT);
    let library = library
        .and_then(|name| name.to_str().ok())
        .unwrap_or_default();
    bytes.push_str(&format!("User-Agent: {NAME} {library}\r\n"));
    if !body.is_empty() || head.method == Method::POST {
        bytes.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    let mut bytes = bytes.into_bytes();
    let further = head.headers.iter().filter(|(name, _)| *name != USER_AGENT);
    for (name, value) in further {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}

/// A connection all of whose reads and writes time out at one deadline.
struct Timed {
    stream: TcpStream,
    deadline: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            Ok(Some(left))
        }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Sends the request and reads the response.
fn exchange(
    mut stream: impl Read + Write,
    request: &[u8],
    is_head: bool,
) -> Result<Response<Bytes>, RequestError> {
    stream.write_all(request)?;
    stream.flush()?;
    let mut reader = Reader {
        stream,
        bytes: Vec::new(),
    };
    let mut head = ResponseHead::default();
    let mut begin = 0;
    loop {
        let unread = reader.bytes.get(begin..).unwrap_or_default();
        match parse(unread, &mut head).map_err(|_| RequestError::NotHttp)? {
            Some(0) => return Err(RequestError::NotHttp),
            // An interim response (1xx): the head of another response follows.
            Some(length) if (100..200).contains(&head.status()) => begin += length,
            Some(length) => {
                let mut response = response(&head, unread)?;
                reader.bytes.drain(..begin + length);
                *response.body_mut() = reader.body(head.body(is_head))?.into();
                return Ok(response);
            }
            None if !reader.more()? => return Err(RequestError::Truncated),
            None => {}
        }
    }
}

/// Converts the head of a response to the types of the `http` crate.
fn response(head: &ResponseHead, bytes: &[u8]) -> Result<Response<Bytes>, RequestError> {
    let mut response = Response::builder().status(head.status());
    for field in head.fields() {
        response = response.header(field.name(bytes), field.value(bytes));
    }
    let response = response.body(Bytes::new());
    response.map_err(|_| RequestError::NotHttp)
}

/// A reader with the bytes that have been read and not yet consumed.
struct Reader<S> {
    stream: S,
    bytes: Vec<u8>,
}

impl<S: Read> Reader<S> {
    /// Reads once more; false at the end of the stream.
    fn more(&mut self) -> Result<bool, RequestError> {
        let mut buffer = [0; READ_LENGTH];
        let count = loop {
            match self.stream.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The server closed without `close_notify`. The body's framing still detects
                // truncation.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break 0,
                read => break read?,
            }
        };
        let read = buffer.get(..count).unwrap_or_default();
        self.bytes.extend_from_slice(read);
        if self.bytes.len() > ANSWER_LENGTH_MAX {
            Err(RequestError::TooLong)
        } else {
            Ok(count > 0)
        }
    }

    /// Reads the body, of which a part may be in the buffer.
    fn body(&mut self, kind: BodyFraming) -> Result<Vec<u8>, RequestError> {
        match kind {
            BodyFraming::None => Ok(Vec::new()),
            BodyFraming::UntilClose => {
                while self.more()? {}
                Ok(std::mem::take(&mut self.bytes))
            }
            BodyFraming::Length(length) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                if length > ANSWER_LENGTH_MAX {
                    return Err(RequestError::TooLong);
                }
                while self.bytes.len() < length {
                    if !self.more()? {
                        return Err(RequestError::Truncated);
                    }
                }
                self.bytes.truncate(length);
                Ok(std::mem::take(&mut self.bytes))
            }
            BodyFraming::Chunked => self.chunks(),
        }
    }

    fn chunks(&mut self) -> Result<Vec<u8>, RequestError> {
        let (mut decoder, mut body, mut at) = (Decoder::new(), Vec::new(), 0);
        loop {
            let unread = self.bytes.get(at..).unwrap_or_default();
            let decoded = decoder.decode(unread).map_err(|_| RequestError::NotHttp)?;
            body.extend_from_slice(unread.get(decoded.data.clone()).unwrap_or_default());
            at += decoded.consumed;
            if decoded.done {
                return Ok(body);
            }
            if decoded.data.is_empty() && !self.more()? {
                return Err(RequestError::Truncated);
            }
        }
    }
}

/// The targets of `Link: <URL>;rel="alternate"`.
fn alternates(response: &Response<Bytes>, base: &Uri) -> Vec<String> {
    let links = response.headers().get_all(hyperium_http::header::LINK);
    let links = links.iter().filter_map(|value| value.to_str().ok());
    let links = links.flat_map(|value| value.split(','));
    let alternates = links.filter_map(|link| {
        let (target, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
        let alternate = parameters.split(';').any(|parameter| {
            let relation = parameter.trim().strip_prefix("rel=");
            relation.is_some_and(|relation| relation.trim_matches('"') == "alternate")
        });
        alternate.then(|| match (target.strip_prefix('/'), base.authority()) {
            (Some(path), Some(authority)) => {
                let scheme = base.scheme_str().unwrap_or("https");
                format!("{scheme}://{authority}/{path}")
            }
            _ => target.to_owned(),
        })
    });
    alternates.collect()
}

/// The seconds of `Retry-After` in a refusal. A date is ignored: our own back-off is used instead.
fn retry_after(response: &Response<Bytes>) -> Option<Duration> {
    if response.status().is_success() {
        return None;
    }
    let value = response.headers().get(hyperium_http::header::RETRY_AFTER)?;
    let seconds = value.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A client for plain HTTP, whose TLS is never used.
    fn client() -> Client {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        Client::new(Arc::new(config))
    }

    /// Sends a request to a server that answers with these bytes and closes. Returns the request as
    /// received, and the outcome.
    fn asked(answer: &[u8]) -> (String, Result<Bytes, RequestError>, LastResponse) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/dir?x", listener.local_addr().unwrap());
        let answer = answer.to_owned();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            // Fails if the client has already closed because it had read enough.
            let _ = stream.write_all(&answer);
            String::from_utf8(request).unwrap()
        });
        let client = client();
        let outcome = client.get(&url);
        (server.join().unwrap(), outcome, client.last())
    }

    fn body(answer: &str) -> Result<String, String> {
        let (_, outcome, _) = asked(answer.as_bytes());
        let text = |body: Bytes| String::from_utf8(body.to_vec()).unwrap();
        outcome.map(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_request_and_its_answer() {
        let (request, outcome, _) = asked(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
        assert!(
            request.starts_with("GET /dir?x HTTP/1.1\r\nHost: 127.0.0.1:"),
            "{request}"
        );
        let agent = format!("\r\nConnection: close\r\nUser-Agent: {NAME} \r\n\r\n");
        assert!(request.ends_with(&agent), "{request}");
        assert_eq!(outcome.unwrap(), "{}");
    }

    #[test]
    fn bodies_end_by_length_by_chunks_and_by_the_connection() {
        let one = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{\"\r\n3\r\n\":1\r\n0\r\n\r\n";
        assert_eq!(body(one).as_deref(), Ok("{\"\":1"));
        assert_eq!(
            body("HTTP/1.0 200 OK\r\n\r\nto the end").as_deref(),
            Ok("to the end")
        );
        let informed =
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy";
        assert_eq!(body(informed).as_deref(), Ok("x"));
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        let garbage = Err("the server sent no valid HTTP response".to_owned());
        assert_eq!(body("\0\x01\x02 garbage\r\n\r\n"), garbage);
        let chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
        assert_eq!(body(chunks), garbage);
        let early = Err("the server closed the connection early".to_owned());
        assert_eq!(body(""), early);
        assert_eq!(body("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"), early);
        let long = Err("the server sent too long a response".to_owned());
        assert_eq!(
            body("HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nx"),
            long
        );
        assert_eq!(
            body(&format!("HTTP/1.0 200 OK\r\n\r\n{}", "x".repeat(2 << 20))),
            long
        );
        assert_eq!(
            body(&format!("HTTP/1.0 200 OK\r\nX: {}", "x".repeat(2 << 20))),
            long
        );
    }

    #[test]
    fn what_the_messages_do_not_tell_is_remembered() {
        let answer = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 120\r\n\
            Link: <https://a.test/dir>;rel=\"index\"\r\n\
            Link: </cert/2>; rel=\"alternate\", <https://b.test/3>;rel=alternate\r\n\
            Content-Length: 0\r\n\r\n";
        let (request, _, last) = asked(answer);
        let host = request
            .lines()
            .find_map(|line| line.strip_prefix("Host: "))
            .unwrap();
        assert_eq!(last.retry_after, Some(Duration::from_secs(120)));
        let own = format!("http://{host}/cert/2");
        assert_eq!(last.alternates, [own.as_str(), "https://b.test/3"]);
    }

    #[test]
    fn where_nobody_listens() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        let refused = client().get(&url);
        assert!(
            matches!(refused, Err(RequestError::Connection(_))),
            "{refused:?}"
        );
        for url in ["ftp://a.test/", "/dir", "https:///dir", ""] {
            assert!(!is_url(url), "{url}");
            let refused = client().get(url);
            assert!(
                matches!(refused, Err(RequestError::Url(_))),
                "{url}: {refused:?}"
            );
        }
    }
}
