//! Sends one request over HTTP/2 and records the properties of its response.

use std::time::Instant;

use bytes::{Bytes, BytesMut};
use proto::h2::client::{Client, Event, RequestStart};
use sha2::{Digest, Sha256};

use super::answer::{AskError, Response, receive};
use crate::client::http2::LIMITS;
use crate::connection::Connection;
use crate::grpc::{CallProgress, status_in};
use crate::plan::{Plan, Request};

/// The part of the response received so far.
struct ResponseProgress {
    response: Response,
    digest: Sha256,
    call: CallProgress,
    is_complete: bool,
}

/// Sends a request over a new connection and reads the response.
pub(super) async fn converse(
    connection: &Connection,
    plan: &Plan,
    request: &Request,
    deadline: Instant,
) -> Result<Response, AskError> {
    let mut client = Client::new(LIMITS);
    let mut rest = Bytes::from(plan.bodies.first().cloned().unwrap_or_default());
    let fields = request.fields.iter();
    let text = |span: &proto::Span| span.of(&request.bytes);
    let opening = RequestStart {
        ends: rest.is_empty(),
        is_head: request.is_head,
    };
    let fields = fields.map(|(name, value)| (text(name), text(value)).into());
    let stream = client.open(fields, opening, ()).unwrap_or_default();
    if !opening.ends {
        client.wants_to_send(stream);
    }
    let mut reading = ResponseProgress {
        response: Response {
            status: 0,
            grpc_status: None,
            length: 0,
            sha256: [0; 32],
            fields: Vec::new(),
            tls: None,
        },
        digest: Sha256::new(),
        call: CallProgress::default(),
        is_complete: false,
    };
    reading.take(&mut client, &connection.take_early())?;
    while !reading.is_complete {
        send_allowed(&mut client, connection, &mut rest);
        let mut taken = Ok(());
        let more = receive(connection, deadline, |bytes| {
            if taken.is_ok() {
                taken = reading.take(&mut client, bytes);
            }
        })
        .await?;
        taken?;
        if !more && !reading.is_complete {
            return Err(AskError::Closed);
        }
    }
    // The response is complete, so anything that the server still sends is ignored.
    client.send_goaway();
    send_allowed(&mut client, connection, &mut rest);
    let mut response = reading.response;
    response.sha256 = reading.digest.finalize().into();
    if plan.protocol.is_grpc() {
        let status = reading.call.status().ok_or(AskError::NotGrpc)?;
        response.grpc_status = Some(status);
    }
    Ok(response)
}

/// Sends pending output, and as much of the request's body as flow control allows.
fn send_allowed(client: &mut Client<()>, connection: &Connection, rest: &mut Bytes) {
    while let Some((stream, allowed)) = client.turn() {
        let part = rest.split_to(allowed.min(rest.len()));
        client.put_data(stream, &part, rest.is_empty(), !rest.is_empty());
    }
    if !client.output().is_empty() {
        let output = Bytes::from(client.take_output());
        connection.push(&mut BytesMut::new(), &output);
        connection.start_send();
    }
}

impl ResponseProgress {
    fn take(&mut self, client: &mut Client<()>, bytes: &[u8]) -> Result<(), AskError> {
        let mut at = 0;
        loop {
            let event = client.handle(bytes, &mut at, 0);
            let event = event.map_err(|violation| {
                if client.has_begun() {
                    AskError::Http2(violation)
                } else {
                    AskError::NoHttp2
                }
            })?;
            match event {
                None => return Ok(()),
                Some(Event::Interim { .. } | Event::Pong | Event::GoAway(_)) => {}
                Some(Event::Head { ends, .. }) => {
                    let head = client.head();
                    self.response.status = head.status();
                    self.call = CallProgress::new(head, ends);
                    let names = head.fields().iter();
                    let names = names.map(|field| field.name(head.bytes()));
                    let names = names.map(|name| String::from_utf8_lossy(name).into_owned());
                    self.response.fields = names.collect();
                    self.is_complete = ends;
                }
                Some(Event::Data {
                    stream,
                    start,
                    length,
                    ends,
                }) => {
                    self.response.length += length as u64;
                    self.digest
                        .update(bytes.get(start..start + length).unwrap_or_default());
                    client.consumed(stream, length);
                    self.is_complete = ends;
                }
                Some(Event::Trailers { .. }) => {
                    self.call.ends(status_in(client.head()));
                    self.is_complete = true;
                }
                Some(Event::Reset {
                    fault: Some(fault), ..
                }) => return Err(AskError::Stream(fault)),
                Some(Event::Reset { code, .. }) => return Err(AskError::Reset(code)),
                Some(Event::NotServed { .. }) => return Err(AskError::Closed),
            }
        }
    }
}
