//! Sends one request and records the properties of its response, which must be equal for two
//! servers before their performance is compared.
//!
//! Framing: RFC 9112, section 6. The body is hashed and not kept.

use std::fmt;
use std::io;
use std::time::Instant;

use bytes::BytesMut;
use engine::net;
use engine::{EngineKind, Runtime, Settings};
use proto::h1::Version;
use proto::h1::chunked::Decoder;
use proto::h1::response::{BodyFraming, ResponseHead, parse};
use proto::h2::{ErrorCode, StreamFault, Violation};
use sha2::{Digest, Sha256};

use super::answer_http2;
use crate::connection::Connection;
use crate::grpc::status_name;
use crate::plan::{Plan, Protocol};
use crate::response::HEAD_BYTES_MAX;
use crate::tally::RequestError;
use crate::tls::{HandshakeError, NegotiatedTls, Session, SessionProgress, do_handshake};

/// The properties of a response that are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status of the response.
    pub status: u16,
    /// The gRPC status, if the request was a gRPC call.
    pub grpc_status: Option<u16>,
    /// Length of the body, in bytes, without chunked framing.
    pub length: u64,
    /// The SHA-256 digest of the body.
    pub sha256: [u8; 32],
    /// Names of the header fields, in lower case, in the order of the response.
    pub fields: Vec<String>,
    /// The parameters negotiated in the TLS handshake, if there was one.
    pub tls: Option<NegotiatedTls>,
}

/// Why there was no response.
#[derive(Debug)]
pub enum AskError {
    /// Connecting failed.
    Connect(io::Error),
    /// The TLS handshake failed.
    Handshake(HandshakeError),
    /// TLS failed after the handshake.
    Tls(RequestError),
    /// Receiving failed, or the response was not complete in time.
    Receive(io::Error),
    /// The connection was closed before the end of the response.
    Closed,
    /// The server sent something other than an HTTP/1 response.
    Garbage,
    /// The server sent something other than HTTP/2.
    NoHttp2,
    /// The response is not a gRPC response.
    NotGrpc,
    /// The server violated HTTP/2 on the connection.
    Http2(Violation),
    /// The server violated HTTP/2 on the response's stream.
    Stream(StreamFault),
    /// The server reset the stream, or ended the connection, with this error code.
    Reset(ErrorCode),
    /// The event loop could not be created.
    Engine(io::Error),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AskError::Connect(error) => write!(f, "no connection: {error}"),
            AskError::Handshake(error) => write!(f, "no connection: {error}"),
            AskError::Tls(failure) => write!(f, "no complete response: {}", failure.words()),
            AskError::Receive(error) => write!(f, "no complete response: {error}"),
            AskError::Closed => f.write_str("the connection was closed within the response"),
            AskError::Garbage => f.write_str("what came is no response"),
            AskError::NoHttp2 => f.write_str("the server does not speak HTTP/2"),
            AskError::NotGrpc => f.write_str("what came is no answer of gRPC"),
            AskError::Http2(violation) => write!(f, "the server {violation}"),
            AskError::Stream(fault) => write!(f, "the server {fault}"),
            AskError::Reset(code) => write!(f, "the server has reset the stream: {code:?}"),
            AskError::Engine(error) => write!(f, "no event loop: {error}"),
        }
    }
}

impl Response {
    /// Describes the differences between two responses; empty if there are none. Header fields are
    /// not compared.
    #[must_use]
    pub fn differences(&self, other: &Response) -> Vec<String> {
        let mut differences = Vec::new();
        if self.status != other.status {
            differences.push(format!("status {} and {}", self.status, other.status));
        }
        if self.grpc_status != other.grpc_status {
            let name = |of: &Response| {
                of.grpc_status
                    .map_or("none".to_owned(), |status| status_name(status.into()))
            };
            differences.push(format!("gRPC status {} and {}", name(self), name(other)));
        }
        if self.length != other.length {
            differences.push(format!("{} and {} bytes", self.length, other.length));
        } else if self.sha256 != other.sha256 {
            differences.push(format!("the bytes of the body, all {}", self.length));
        }
        differences
    }
}

/// Sends the first request of `plan` over a new connection and reads the response.
///
/// # Errors
/// One variant of [`AskError`] for each cause.
pub fn ask(plan: &Plan) -> Result<Response, AskError> {
    let settings = Settings {
        connections: 1,
        ..Settings::default()
    };
    let mut runtime = Runtime::new(EngineKind::Epoll, settings).map_err(AskError::Engine)?;
    runtime.block_on(converse(plan))
}

async fn converse(plan: &Plan) -> Result<Response, AskError> {
    let (Some(server), source) = (plan.servers.first(), plan.sources.first()) else {
        return Err(AskError::Garbage);
    };
    let Some(request) = server.requests.first() else {
        return Err(AskError::Garbage);
    };
    let deadline = Instant::now() + plan.timeout;
    let source = source.map(|address| std::net::SocketAddr::new(*address, 0));
    let stream = net::connect(&server.address, source, Some(deadline))
        .await
        .map_err(AskError::Connect)?;
    let session = match &server.tls {
        None => None,
        Some(tls) => {
            let shaken = do_handshake(&tls.with_own_sessions(), &stream, deadline).await;
            Some(shaken.map_err(AskError::Handshake)?)
        }
    };
    let agreed = session.as_ref().map(Session::agreed);
    let connection = Connection::new(stream, session);
    if plan.protocol != Protocol::Http1 {
        let response = answer_http2::converse(&connection, plan, request, deadline).await?;
        return Ok(Response {
            tls: agreed,
            ..response
        });
    }
    connection.push(&mut BytesMut::new(), &request.bytes);
    connection.start_send();
    let mut head = ResponseHead::default();
    let mut bytes = Vec::new();
    let length = read_head(&connection, deadline, &mut head, &mut bytes).await?;
    let fields = head
        .fields()
        .iter()
        .map(|field| String::from_utf8_lossy(field.name(&bytes)).to_ascii_lowercase())
        .collect();
    let mut body = Body::new(head.body(request.is_head));
    let mut complete = body.feed(bytes.get(length..).unwrap_or_default())?;
    while !complete {
        let mut fed = Ok(false);
        let more = receive(&connection, deadline, |bytes| {
            if let Ok(false) = fed {
                fed = body.feed(bytes);
            }
        })
        .await?;
        complete = match fed? {
            false if !more => body.end(connection.may_end())?,
            complete => complete,
        };
    }
    Ok(Response {
        status: head.status(),
        grpc_status: None,
        length: body.length,
        sha256: body.digest.finalize().into(),
        fields,
        tls: agreed,
    })
}

/// Reads until `bytes` starts with the head of the final response. Returns the length of the head.
async fn read_head(
    connection: &Connection,
    deadline: Instant,
    head: &mut ResponseHead,
    bytes: &mut Vec<u8>,
) -> Result<usize, AskError> {
    loop {
        match parse(bytes, head).map_err(|_| AskError::Garbage)? {
            // The parser treats a response without a status line as HTTP/0.9, which is not
            // supported here.
            Some(_) if head.version() == Version::Http09 => return Err(AskError::Garbage),
            // An interim response: the head of another response follows.
            Some(length) if (100..200).contains(&head.status()) => {
                bytes.drain(..length);
                continue;
            }
            Some(length) => return Ok(length),
            None if bytes.len() > HEAD_BYTES_MAX => return Err(AskError::Garbage),
            None => {}
        }
        let before = bytes.len();
        let take = |received: &[u8]| bytes.extend_from_slice(received);
        if !receive(connection, deadline, take).await? && bytes.len() == before {
            return Err(AskError::Closed);
        }
    }
}

/// Passes the next received bytes to `take`. Returns whether more may follow.
pub(super) async fn receive(
    connection: &Connection,
    deadline: Instant,
    take: impl FnMut(&[u8]),
) -> Result<bool, AskError> {
    let buffer = connection.stream().recv_idle(Some(deadline)).await;
    let buffer = buffer.map_err(AskError::Receive)?;
    if buffer.is_empty() {
        return Ok(false);
    }
    let opened = connection.open(buffer, take).map_err(AskError::Tls)?;
    Ok(opened == SessionProgress::Open)
}

enum Framing {
    Length(u64),
    Chunked(Decoder),
    UntilClose,
}

struct Body {
    framing: Framing,
    length: u64,
    digest: Sha256,
}

impl Body {
    fn new(body: BodyFraming) -> Body {
        Body {
            framing: match body {
                BodyFraming::None => Framing::Length(0),
                BodyFraming::Length(length) => Framing::Length(length),
                BodyFraming::Chunked => Framing::Chunked(Decoder::new()),
                BodyFraming::UntilClose => Framing::UntilClose,
            },
            length: 0,
            digest: Sha256::new(),
        }
    }

    /// Processes bytes of the body. Returns whether the body is complete. Surplus bytes are
    /// ignored: a run counts them as a failure.
    fn feed(&mut self, mut bytes: &[u8]) -> Result<bool, AskError> {
        match &mut self.framing {
            Framing::Length(left) => {
                let length = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                *left -= length as u64;
                let complete = *left == 0;
                self.count(bytes.get(..length).unwrap_or_default());
                Ok(complete)
            }
            Framing::UntilClose => {
                self.count(bytes);
                Ok(false)
            }
            Framing::Chunked(decoder) => {
                let mut decoder = std::mem::take(decoder);
                let mut complete = false;
                while !bytes.is_empty() && !complete {
                    let decoded = decoder.decode(bytes).map_err(|_| AskError::Garbage)?;
                    self.count(bytes.get(decoded.data).unwrap_or_default());
                    bytes = bytes.get(decoded.consumed..).unwrap_or_default();
                    complete = decoded.done;
                }
                self.framing = Framing::Chunked(decoder);
                Ok(complete)
            }
        }
    }

    /// Handles the end of the connection. It completes the body only if it is orderly and delimits
    /// the body.
    fn end(&self, in_order: bool) -> Result<bool, AskError> {
        match self.framing {
            Framing::UntilClose if in_order => Ok(true),
            _ => Err(AskError::Closed),
        }
    }

    fn count(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        self.digest.update(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, length: u64, first: u8) -> Response {
        Response {
            status,
            grpc_status: None,
            length,
            sha256: [first; 32],
            fields: Vec::new(),
            tls: None,
        }
    }

    #[test]
    fn differences_are_named() {
        let one = response(200, 3, 1);
        assert_eq!(one.differences(&one.clone()), [""; 0]);
        let texts = one.differences(&response(404, 4, 2));
        assert_eq!(texts, ["status 200 and 404", "3 and 4 bytes"]);
        let of_call = |status| Response {
            grpc_status: Some(status),
            ..one.clone()
        };
        let texts = of_call(0).differences(&of_call(14));
        assert_eq!(texts, ["gRPC status OK and UNAVAILABLE"]);
        let texts = one.differences(&response(200, 3, 2));
        assert_eq!(texts, ["the bytes of the body, all 3"]);
    }

    #[test]
    fn bodies_are_the_same_in_any_framing() {
        // FIPS 180-2, appendix B.1: the first bytes of the digest of "abc".
        let abc = [0xba, 0x78, 0x16, 0xbf];
        for (framing, bytes) in [
            (BodyFraming::Length(3), &b"abc"[..]),
            (BodyFraming::Chunked, b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"),
            (BodyFraming::UntilClose, b"abc"),
        ] {
            for piece in 1..=bytes.len() {
                let mut body = Body::new(framing);
                let mut complete = false;
                for part in bytes.chunks(piece) {
                    complete = body.feed(part).unwrap();
                }
                complete = complete || body.end(true).unwrap();
                let digest: [u8; 32] = body.digest.finalize().into();
                assert_eq!((complete, body.length), (true, 3), "{framing:?} by {piece}");
                assert_eq!(digest[..4], abc);
            }
        }
        assert!(Body::new(BodyFraming::Length(3)).end(true).is_err());
        assert!(Body::new(BodyFraming::UntilClose).end(false).is_err());
        assert!(Body::new(BodyFraming::None).feed(b"").unwrap());
    }
}
