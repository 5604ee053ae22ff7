//! Health checks of gRPC servers, with gRPC's health checking protocol.
//!
//! <https://github.com/grpc/grpc/blob/master/doc/health-checking.md>:
//! `grpc.health.v1.Health/Check`, whose response says SERVING. A server without that service
//! responds with UNIMPLEMENTED (12), which a check may accept.

use std::sync::Arc;

use bytes::Bytes;
use engine::net::Address;
use http::request::Request;

use super::call;
use super::errors::STATUS;
use super::settings::GrpcPass;
use proxying::activity::READING;
use proxying::connect_target::ConnectTarget;
use proxying::http2::dialogue::Http2Dialogue;
use proxying::http2::head::RequestHead;
use proxying::http2::upload::RequestBody;
use proxying::http2::whole::{self, WholeReadError};
use proxying::probe::{self, ProbeActivity, ProbeError, ProbeReuse, ProbedPeer, Unanswered};
use proxying::upstream::Group;
use proxying::{READING_BODY, response, ssl};

const PATH: &[u8] = b"/grpc.health.v1.Health/Check";

/// Maximum number of bytes of a response that are examined; a message with a health status has two
/// bytes.
const ANSWER_MAX: usize = 4096;

const SERVING: u64 = 1;

/// A health check of one peer.
pub struct HealthProbe<'a> {
    /// The `grpc_pass` whose settings the probe uses.
    pub pass: &'a GrpcPass,
    /// The group of the peer.
    pub group: &'a Arc<Group>,
    /// The address of the peer.
    pub address: Address,
    /// The peer as `$upstream_addr` shows it.
    pub name: Bytes,
    /// The service to check; empty for the server as a whole.
    pub service: &'a [u8],
    /// The expected status of the call.
    pub status: u16,
    /// Keeps the connection for further probes, if set.
    pub keeps: Option<ProbeReuse>,
}

impl HealthProbe<'_> {
    /// Runs the check. Returns the last test if the peer is healthy, else the test that failed; the
    /// cause has been logged.
    pub async fn ask(
        &self,
        request: &mut Request,
    ) -> Result<Result<ProbeActivity, ProbeActivity>, Unanswered> {
        let settings = &self.pass.settings;
        let found = self.pass.destination.find(request, logs::Level::Error);
        let found = found.map_err(|_| Unanswered::NotAsked)?;
        probe::begin(request, &self.name);
        let secured = match &self.pass.tls {
            Some(tls) if found.scheme.is_secure => {
                let secured = ssl::prepare(tls, request, &found.address).await;
                Some(Box::new(secured.map_err(|_| Unanswered::NotAsked)?))
            }
            _ => None,
        };
        let mut reach = ConnectTarget {
            scheme: found.scheme.text.as_bytes(),
            uri: Bytes::new(),
            socket: settings.passing.socket.evaluate(request),
            secured,
            introduction: Bytes::new(),
            is_shared: true,
            terms: Bytes::new(),
        };
        reach.terms = probe::terms(self.keeps, self.group, &reach);
        let mut head = RequestHead::new();
        head.put(b":method", b"POST");
        let scheme: &[u8] = if found.scheme.is_secure {
            b"https"
        } else {
            b"http"
        };
        head.put(b":scheme", scheme);
        head.put(b":path", PATH);
        head.put_authority(request, &settings.set, found.authority());
        head.put_set(request, &settings.set);
        head.put(b"content-type", call::MEDIA_TYPE);
        head.put(b"te", b"trailers");
        let body = RequestBody::Text(message(self.service));
        let conversation = Http2Dialogue::new(&settings.passing, &head, false, &body);
        let conversation = conversation.of_call(None);
        let asking = ProbedPeer {
            group: self.group,
            address: &self.address,
            passing: &settings.passing,
        };
        let mut peer = asking.connect(request, &reach).await?;
        probe::keep(&mut peer, self.keeps, &reach);
        let talked = asking.talk(request, peer, &conversation).await;
        let (mut peer, answer, deadline) = talked?;
        response::remember(request, &answer.read.head);
        let mut answered = Vec::new();
        let read = loop {
            match whole::read_part(request, &mut peer, deadline).await {
                Ok(Some(part)) if answered.len() + part.len() <= ANSWER_MAX => {
                    answered.extend_from_slice(&part);
                }
                Ok(Some(_)) => {
                    logs::error!(
                        request,
                        Error,
                        "upstream sent too long message {READING_BODY}"
                    );
                    break Err(READING_BODY);
                }
                Ok(None) => break Ok(()),
                Err(WholeReadError { timed_out }) => {
                    if timed_out {
                        ProbeError::timed_out(request, READING_BODY);
                    }
                    break Err(READING_BODY);
                }
            }
        };
        let trailers = whole::trailers(&mut peer);
        if let Err(doing) = read {
            return Ok(Err(doing));
        }
        let in_head = answer.read.head.pairs();
        let in_trailers = trailers.iter().map(|field| (&*field.name, &*field.value));
        let mut fields = in_head.chain(in_trailers);
        let status = fields.find(|(name, _)| name.eq_ignore_ascii_case(STATUS));
        let status = status.and_then(|(_, value)| call::number(value));
        if status != Some(self.status) {
            let shown = status.map_or("none".to_owned(), |status| status.to_string());
            logs::error!(
                request,
                Error,
                "unexpected grpc-status: {shown}, {} was expected {READING}",
                self.status
            );
            return Ok(Err(READING));
        }
        // A call with the expected error status has no message.
        if self.status == 0 && serving_status(&answered) != Some(SERVING) {
            logs::error!(
                request,
                Error,
                "upstream says that it is not serving {READING_BODY}"
            );
            return Ok(Err(READING_BODY));
        }
        Ok(Ok(READING_BODY))
    }
}

/// `HealthCheckRequest` as a gRPC message.
fn message(service: &[u8]) -> Bytes {
    let mut request = Vec::new();
    if !service.is_empty() {
        request.push(1 << 3 | 2); // field 1, a string
        put_varint(service.len() as u64, &mut request);
        request.extend_from_slice(service);
    }
    let mut message = vec![0];
    message.extend_from_slice(&(request.len() as u32).to_be_bytes());
    message.extend_from_slice(&request);
    message.into()
}

fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The value of field 1 of `HealthCheckResponse`; 0 if it is omitted.
fn serving_status(message: &[u8]) -> Option<u64> {
    let (prefix, rest) = message.split_first_chunk::<5>()?;
    let [flags, length @ ..] = *prefix;
    let response = rest.get(..u32::from_be_bytes(length) as usize)?;
    if flags != 0 {
        return None; // compressed, which was not offered
    }
    let (mut rest, mut status) = (response, 0);
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        match (key >> 3, key & 7) {
            (1, 0) => status = varint(&mut rest)?,
            (_, 0) => drop(varint(&mut rest)?),
            (_, 1) => rest = rest.get(8..)?,
            (_, 2) => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                rest = rest.get(length..)?;
            }
            (_, 5) => rest = rest.get(4..)?,
            _ => return None,
        }
    }
    Some(status)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_messages() {
        assert_eq!(&*message(b""), &[0, 0, 0, 0, 0]);
        assert_eq!(&*message(b"ab"), &[0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        let long = [b'x'; 200];
        assert_eq!(message(&long)[..8], [0, 0, 0, 0, 203, 0x0a, 0xc8, 1]);
    }

    #[test]
    fn answers_say_how_a_service_is() {
        for (answer, status) in [
            (&[0, 0, 0, 0, 2, 8, 1][..], Some(1)),
            (&[0, 0, 0, 0, 2, 8, 2], Some(2)),
            (&[0, 0, 0, 0, 0], Some(0)),
            // Unknown fields are skipped.
            (&[0, 0, 0, 0, 7, 0x12, 1, b'x', 0x18, 5, 8, 1], Some(1)),
            (&[0, 0, 0, 0, 3, 8, 0x81, 0], Some(1)),
            (&[1, 0, 0, 0, 2, 8, 1], None),
            (&[0, 0, 0, 0, 3, 8, 1], None),
            (&[0, 0, 0, 0, 1, 8], None),
            (&[0, 0, 0, 0, 2, 0x12, 9], None),
            (&[0, 0], None),
            (&[], None),
        ] {
            assert_eq!(serving_status(answer), status, "{answer:?}");
        }
    }
}
