//! A request for a value, and the first line of the reply.

use bytes::Bytes;
use engine::Buffer;
use engine::net::Segment;
use http::exchange::Exchange;
use http::request::Request;
use proto::memcached::{FirstReply, Get, parse};

use super::settings::Settings;
use proxying::activity::READING;
use proxying::connection::UpstreamConnection;
use proxying::failures::{AttemptError, note};
use proxying::family::Causes;
use proxying::peer_attempts::Dialogue;
use proxying::response::{bad, note_head, receive, too_big};

/// A request and its reply.
pub(super) struct MemcachedDialogue<'a> {
    pub(super) settings: &'a Settings,
    pub(super) get: &'a Get,
}

/// The first line of a reply, and the bytes received after it.
pub(super) struct MemcachedAnswer {
    pub(super) answer: FirstReply,
    pub(super) rest: Buffer,
    /// Number of bytes at the end of `rest` that exceed `memcached_buffer_size`. nginx reads them
    /// only with the body, so `$upstream_bytes_received` counts them once the body is read.
    pub(super) beyond: u64,
}

/// The HTTP status for a reply.
fn status_of(answer: &FirstReply) -> u16 {
    match answer {
        FirstReply::Value { .. } => 200,
        FirstReply::NotFound => 404,
    }
}

impl Dialogue for MemcachedDialogue<'_> {
    type Answer = MemcachedAnswer;

    async fn talk(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        peer: &mut UpstreamConnection,
    ) -> Result<MemcachedAnswer, AttemptError> {
        let line = Bytes::copy_from_slice(self.get.line());
        note(request, |attempt, _| {
            attempt.bytes_sent += line.len() as u64
        });
        peer.stream().push(Segment::Bytes(line));
        peer.asked = true;
        peer.stream().start_send();
        self.read_line(request, exchange, peer).await
    }

    fn status(&self, answer: &MemcachedAnswer) -> Option<u16> {
        Some(status_of(&answer.answer))
    }

    fn can_be_repeated(&self) -> bool {
        true
    }
}

impl MemcachedDialogue<'_> {
    async fn read_line(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        peer: &mut UpstreamConnection,
    ) -> Result<MemcachedAnswer, AttemptError> {
        let passing = &self.settings.passing;
        let with_flags = self.settings.gzip_flag != 0;
        let mut line = Vec::new();
        loop {
            let mut buffer = receive(request, exchange, passing, peer).await?;
            line.extend_from_slice(&buffer);
            // As in nginx, the first line must fit into the buffer of `memcached_buffer_size`.
            let held = line.get(..passing.buffer_size).unwrap_or(&line);
            let received = held.len() as u64;
            note(request, |attempt, _| attempt.bytes_received = received);
            match parse(held, self.get, with_flags) {
                Ok(Some((length, answer))) => {
                    let unread = line.len().saturating_sub(length);
                    buffer.advance(buffer.len().saturating_sub(unread));
                    if answer == FirstReply::NotFound {
                        let text = self.get.not_found_text();
                        logs::error!(request, Info, "{} {READING}", logs::Printable(&text));
                    }
                    note_head(request, status_of(&answer));
                    return Ok(MemcachedAnswer {
                        answer,
                        rest: buffer,
                        beyond: line.len().saturating_sub(passing.buffer_size) as u64,
                    });
                }
                Ok(None) if line.len() >= passing.buffer_size => return Err(too_big(request)),
                Ok(None) => {}
                Err(fault) => {
                    let text = fault.log_text(held, self.get);
                    logs::error!(request, Error, "{} {READING}", logs::Printable(&text));
                    return Err(bad(Causes::INVALID_HEADER));
                }
            }
        }
    }
}
