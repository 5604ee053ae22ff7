//! Sends an OCSP request to its responder and receives the response: one HTTP/1.0 exchange, as
//! nginx does it.
//!
//! RFC 6960 appendix A.1: GET, with the OCSP request in the path, so that caches on the way can
//! respond. Not here: https, redirects, proxies.

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use conf::Files;
use engine::net::Address;
use framework::address;
use framework::generation::GenerationView;
use framework::workers::{ConnectError, TooManyConnections, connect};
use logs::Errno;
use proto::base64;
use proto::h1::response::{self, BodyFraming, ResponseHead};

use crate::resolver::{Resolving, Unresolved};

/// Time limit per address, from connecting to the end of the response.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum length of a response with its head, in bytes. A typical response has about 2,000 bytes.
const RESPONSE_MAX: usize = 64 * 1024;

/// An OCSP responder.
pub struct Responder {
    /// The host and port as written in the URL.
    host: String,
    /// The path of the URL, without a trailing slash.
    path: String,
    /// The addresses that the system resolved; empty if `resolver` resolves the name.
    addresses: Vec<Address>,
}

/// Why a URL cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub enum BadUrl {
    /// The scheme is not `http`.
    Prefix,
    /// The host is not valid; the reason is in nginx's words.
    Host(&'static str),
}

impl Responder {
    /// The responder of a URL. The host is resolved now, through `files`; without `files`, it is
    /// resolved when a request is sent.
    ///
    /// # Errors
    /// If the URL does not begin with `http://`, or has no host.
    pub fn new(url: &str, files: Option<&dyn Files>) -> Result<Responder, BadUrl> {
        let prefix = url.get(..7).unwrap_or_default();
        if !prefix.eq_ignore_ascii_case("http://") {
            return Err(BadUrl::Prefix);
        }
        let rest = url.get(7..).unwrap_or_default();
        let (host, path) = match rest.find('/') {
            Some(at) => rest.split_at_checked(at).unwrap_or((rest, "")),
            None => (rest, ""),
        };
        let written = address::parse(host.as_bytes()).map_err(BadUrl::Host)?;
        let literal = written.literal(80).map(|address| vec![address]);
        let addresses = match (literal, files) {
            (Some(literal), _) => literal,
            (None, None) => Vec::new(),
            (None, Some(files)) => written
                .resolve(files, 80)
                .ok_or(BadUrl::Host("host not found"))?,
        };
        Ok(Responder {
            host: host.to_owned(),
            path: path.trim_end_matches('/').to_owned(),
            addresses,
        })
    }

    /// Whether the host is a name without addresses yet.
    pub fn is_name(&self) -> bool {
        self.addresses.is_empty()
    }

    /// The host, for the log.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Sends a request and returns the body of the response of the first address that responds.
    pub async fn ask(
        &self,
        request: &[u8],
        resolving: &Resolving,
        local: &GenerationView,
    ) -> Result<Vec<u8>, FetchError> {
        let addresses = self.addresses(resolving, local).await?;
        query_in_turn(&addresses, &Bytes::from(self.message(request))).await
    }

    async fn addresses(
        &self,
        resolving: &Resolving,
        local: &GenerationView,
    ) -> Result<Vec<Address>, FetchError> {
        if !self.addresses.is_empty() {
            return Ok(self.addresses.clone());
        }
        let written = address::parse(self.host.as_bytes()).map_err(|_| FetchError::NoAddress)?;
        let port = written.port.unwrap_or(80);
        let found = resolving.resolve(local, written.name).await;
        let found = found.map_err(FetchError::Unresolved)?;
        Ok(found
            .into_iter()
            .map(|ip| Address::Inet((ip, port).into()))
            .collect())
    }

    fn message(&self, request: &[u8]) -> Vec<u8> {
        let mut encoded = Vec::new();
        base64::encode(request, &mut encoded);
        let mut message = format!("GET {}/", self.path).into_bytes();
        for byte in encoded {
            match byte {
                b'+' => message.extend_from_slice(b"%2B"),
                b'/' => message.extend_from_slice(b"%2F"),
                b'=' => message.extend_from_slice(b"%3D"),
                _ => message.push(byte),
            }
        }
        message.extend_from_slice(b" HTTP/1.0\r\nHost: ");
        message.extend_from_slice(self.host.as_bytes());
        message.extend_from_slice(b"\r\n\r\n");
        message
    }
}

/// Tries one address after the other until one responds. If none does, returns the error of the
/// last.
async fn query_in_turn(addresses: &[Address], message: &Bytes) -> Result<Vec<u8>, FetchError> {
    let mut last = FetchError::NoAddress;
    for address in addresses {
        match query_responder(address, message.clone()).await {
            Ok(body) => return Ok(body),
            Err(failed) => last = failed,
        }
    }
    Err(last)
}

async fn query_responder(address: &Address, message: Bytes) -> Result<Vec<u8>, FetchError> {
    let deadline = engine::now() + TIMEOUT;
    let stream = connect(address, deadline).await?;
    stream.push(message);
    stream.start_send();
    let mut response = PartialResponse::default();
    loop {
        let received = stream.recv(Some(deadline)).await;
        let received = received.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => FetchError::TimedOut,
            _ => FetchError::Call("recv()", error),
        })?;
        if let Some(body) = response.take(&received)? {
            return Ok(body);
        }
    }
}

/// A partially received response.
#[derive(Default)]
struct PartialResponse {
    bytes: Vec<u8>,
    head: ResponseHead,
    /// Offset of the body.
    body: Option<usize>,
}

impl PartialResponse {
    /// Adds received bytes, empty at the end of the connection; returns the body when it is
    /// complete.
    fn take(&mut self, received: &[u8]) -> Result<Option<Vec<u8>>, FetchError> {
        self.bytes.extend_from_slice(received);
        if self.bytes.len() > RESPONSE_MAX {
            return Err(FetchError::Invalid);
        }
        if self.body.is_none() {
            let parsed = response::parse(&self.bytes, &mut self.head);
            self.body = parsed.map_err(|_| FetchError::Invalid)?;
        }
        let Some(begin) = self.body else {
            return if received.is_empty() {
                Err(FetchError::Closed)
            } else {
                Ok(None)
            };
        };
        if self.head.status() != 200 {
            return Err(FetchError::Status(self.head.status()));
        }
        let body = self.bytes.get(begin..).unwrap_or_default();
        match self.head.body(false) {
            BodyFraming::Length(length) if body.len() as u64 >= length => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                Ok(body.get(..length).map(<[u8]>::to_vec))
            }
            BodyFraming::UntilClose if received.is_empty() => Ok(Some(body.to_vec())),
            // Servers do not send chunks to HTTP/1.0 clients.
            BodyFraming::None | BodyFraming::Chunked => Err(FetchError::Invalid),
            _ if received.is_empty() => Err(FetchError::Closed),
            _ => Ok(None),
        }
    }
}

/// Why there is no response.
#[derive(Debug)]
pub enum FetchError {
    /// The host's name could not be resolved.
    Unresolved(Unresolved),
    /// The host has no address.
    NoAddress,
    /// The thread has no place left for the connection (`worker_connections`).
    TooManyConnections(TooManyConnections),
    /// A failed call on the connection.
    Call(&'static str, io::Error),
    /// The responder did not respond in time.
    TimedOut,
    /// The responder closed the connection too early.
    Closed,
    /// The responder sent this HTTP status.
    Status(u16),
    /// The response is not HTTP, or is too long.
    Invalid,
}

impl From<ConnectError> for FetchError {
    fn from(failed: ConnectError) -> FetchError {
        match failed {
            ConnectError::TooManyConnections(shortage) => FetchError::TooManyConnections(shortage),
            ConnectError::Failed(failed) => FetchError::Call("connect()", failed.error),
        }
    }
}

impl fmt::Display for FetchError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FetchError::Unresolved(cause) => write!(out, "host could not be resolved ({cause})"),
            FetchError::NoAddress => out.write_str("no resolver defined to resolve the host"),
            FetchError::TooManyConnections(shortage) => shortage.fmt(out),
            FetchError::Call(call, error) => write!(out, "{call} failed {}", Errno(error)),
            FetchError::TimedOut => out.write_str("OCSP responder timed out"),
            FetchError::Closed => out.write_str("OCSP responder prematurely closed connection"),
            FetchError::Status(status) => write!(out, "OCSP responder sent status {status}"),
            FetchError::Invalid => out.write_str("OCSP responder sent invalid response"),
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::net::Listener;
    use engine::sim::{self, Faults};

    use super::*;

    /// Sends a request to these addresses of a simulated network. `10.0.0.1` is silent, `10.0.0.2`
    /// closes, `10.0.0.3` refuses and `10.0.0.4` responds; others do not exist. Returns the result,
    /// and the seconds it took.
    fn asked(lasts: &[u8]) -> (Result<Vec<u8>, String>, u64) {
        let address = |last: u8| Address::Inet(([10, 0, 0, last], 80).into());
        let mut runtime = sim::runtime(1, Faults::default(), engine::Settings::default()).unwrap();
        let begin = engine::now();
        let outcome = runtime.block_on(async {
            for last in 1..5 {
                let listener = Listener::new(sim::listen(address(last)).unwrap().0).unwrap();
                engine::spawn(async move {
                    let stream = listener.accept().await.unwrap();
                    let _ = stream.recv(None).await;
                    match last {
                        1 => engine::sleep(2 * TIMEOUT).await,
                        3 => stream.push(Bytes::from_static(b"HTTP/1.0 503 No\r\n\r\n")),
                        4 => stream.push(Bytes::from_static(b"HTTP/1.0 200 OK\r\n\r\nyes")),
                        _ => {}
                    }
                    stream.finish();
                });
            }
            let addresses: Vec<Address> = lasts.iter().map(|last| address(*last)).collect();
            query_in_turn(&addresses, &Bytes::from_static(b"?")).await
        });
        let outcome = outcome.map_err(|failed| failed.to_string());
        (outcome, (engine::now() - begin).as_secs())
    }

    #[test]
    fn the_next_address_is_asked_after_any_failure() {
        let yes = || Ok(b"yes".to_vec());
        assert_eq!(asked(&[4, 1]), (yes(), 0));
        assert_eq!(asked(&[9, 2, 3, 4]), (yes(), 0));
        // Each address has a time limit of its own.
        assert_eq!(asked(&[1, 4]), (yes(), TIMEOUT.as_secs()));
        let refused = "OCSP responder sent status 503".to_owned();
        assert_eq!(asked(&[2, 3]), (Err(refused), 0));
        assert!(asked(&[]).0.is_err());
    }

    #[test]
    fn urls() {
        let responder = Responder::new("http://127.0.0.1:8080/ocsp/", None).unwrap();
        assert_eq!(responder.host(), "127.0.0.1:8080");
        let message = String::from_utf8(responder.message(&[0xff; 4])).unwrap();
        assert_eq!(
            message,
            "GET /ocsp/%2F%2F%2F%2F%2Fw%3D%3D HTTP/1.0\r\nHost: 127.0.0.1:8080\r\n\r\n"
        );
        let bad = |url| Responder::new(url, None).err();
        assert_eq!(bad("https://example.org/"), Some(BadUrl::Prefix));
        assert_eq!(bad("http:///path"), Some(BadUrl::Host("no host")));
        assert_eq!(bad("http://host:99999"), Some(BadUrl::Host("invalid port")));
        assert_eq!(bad("http://host"), None);
    }

    #[test]
    fn answers_in_pieces() {
        let whole = b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nabcd";
        let mut response = PartialResponse::default();
        for byte in &whole[..whole.len() - 1] {
            assert!(response.take(&[*byte]).unwrap().is_none());
        }
        assert_eq!(response.take(b"d").unwrap().unwrap(), b"abcd");

        let mut response = PartialResponse::default();
        assert!(
            response
                .take(b"HTTP/1.0 200 OK\r\n\r\nabc")
                .unwrap()
                .is_none()
        );
        assert_eq!(response.take(b"").unwrap().unwrap(), b"abc");

        let refused = |bytes: &[u8]| {
            let mut response = PartialResponse::default();
            let taken = response.take(bytes).and_then(|_| response.take(b""));
            taken.unwrap_err().to_string()
        };
        assert_eq!(
            refused(b"HTTP/1.0 404 Not Found\r\n\r\n"),
            "OCSP responder sent status 404"
        );
        let early = "OCSP responder prematurely closed connection";
        assert_eq!(
            refused(b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nabc"),
            early
        );
        assert_eq!(refused(b"HTTP/1.0 2"), early);
    }
}
