//! The head of an HTTP answer: its own, and the informational ones before it.

use std::sync::Arc;

use bytes::Bytes;
use engine::Buffer;
use http::exchange::Exchange;
use http::log;
use http::request::Request;
use http::response::Field;
use proto::h1::Version;
use proto::h1::response::{NO_HEADER, parse};
use proto::header::Known;

use crate::early_hints;
use crate::passing::connection::UpstreamConnection;
use crate::passing::family::Causes;
use crate::passing::response::{
    READING, Reading, UpstreamResponse, bad, examine, is_informational, note_head, receive,
    remember, too_big,
};
use crate::passing::settings::Passing;
use crate::passing::tries::{AttemptError, note};

/// Informational responses (1xx) that may come before an answer.
const INFORMATIONAL_MAX: u32 = 100;

/// 103, RFC 8297.
const EARLY_HINTS: u16 = 103;

/// Reads the head of the answer. What was read of one that cannot be taken is kept for `$upstream_http_*` all the same.
pub(super) async fn read(
    request: &mut Request,
    exchange: &mut Exchange,
    passing: &Passing,
    peer: &mut UpstreamConnection,
) -> Result<UpstreamResponse, AttemptError> {
    let mut answer = Reading::default();
    let read = read_head(request, exchange, passing, peer, &mut answer).await;
    let answer = answer.end();
    match read {
        Ok(()) => Ok(answer),
        Err(ended) => {
            remember(request, &answer.head);
            Err(ended)
        }
    }
}

/// Reads the head of the answer into `answer`, with what has come behind it.
async fn read_head(
    request: &mut Request,
    exchange: &mut Exchange,
    passing: &Passing,
    peer: &mut UpstreamConnection,
    answer: &mut Reading,
) -> Result<(), AttemptError> {
    let mut received_in_all = 0;
    let mut informational = Informational::default();
    loop {
        answer.rest = Buffer::empty(); // it is among the head's bytes
        let buffer = receive(request, exchange, passing, peer).await?;
        received_in_all += buffer.len();
        answer.beyond = received_in_all.saturating_sub(passing.buffer_size) as u64;
        let counted = received_in_all.min(passing.buffer_size) as u64;
        note(request, |attempt, _| attempt.bytes_received = counted);
        answer.bytes.extend_from_slice(&buffer);
        answer.rest = buffer;
        loop {
            let most = passing.buffer_size;
            let held = answer.bytes.get(..most).unwrap_or(&answer.bytes);
            let parsed = parse(held, &mut answer.head);
            examine(request, passing, answer);
            match parsed {
                Ok(Some(length)) => {
                    if is_informational(&answer.head) && answer.head.version() > Version::Http09 {
                        informational.take(request, exchange, passing, answer, length)?;
                        answer.begin_again(length);
                        if answer.bytes.is_empty() {
                            break;
                        }
                        continue;
                    }
                    if answer.head.version() == Version::Http09 {
                        log::error!(request, Error, "{NO_HEADER} {READING}");
                        // What is behind an informational response is no HTTP/0.9.
                        if informational.count > 0 {
                            return Err(bad(Causes::INVALID_HEADER));
                        }
                    }
                    // What follows the head lies at the end of what came last.
                    let unread = answer.bytes.len().saturating_sub(length);
                    let read = answer.rest.len().saturating_sub(unread);
                    answer.rest.advance(read);
                    answer.bytes.truncate(length);
                    note_head(request, answer.head.status());
                    return Ok(());
                }
                Ok(None) => break,
                Err(error) => {
                    let text = error.log_text(&answer.bytes);
                    log::error!(request, Error, "{} {READING}", log::Printable(&text));
                    return Err(bad(Causes::INVALID_HEADER));
                }
            }
        }
        if answer.bytes.len() >= passing.buffer_size {
            return Err(too_big(request));
        }
    }
}

/// What has come of informational responses before the answer's own head.
#[derive(Default)]
struct Informational {
    count: u32,
    /// Bytes of early hints.
    hints: usize,
}

impl Informational {
    /// Takes in one of `length` bytes. Early hints are passed on where `early_hints` says so; others are of no use.
    fn take(
        &mut self,
        request: &mut Request,
        exchange: &mut Exchange,
        passing: &Passing,
        answer: &Reading,
        length: usize,
    ) -> Result<(), AttemptError> {
        self.count += 1;
        if self.count > INFORMATIONAL_MAX {
            log::error!(
                request,
                Error,
                "upstream sent too many informational responses {READING}"
            );
            return Err(bad(Causes::INVALID_HEADER));
        }
        if answer.head.status() != EARLY_HINTS {
            return Ok(());
        }
        if answer.head.version() < Version::Http11 {
            log::error!(
                request,
                Error,
                "upstream sent HTTP/1.0 response with early hints {READING}"
            );
            return Err(bad(Causes::INVALID_HEADER));
        }
        self.hints = self.hints.saturating_add(length);
        if self.hints > passing.buffer_size {
            log::error!(request, Info, "upstream sent too big early hints {READING}");
            return Ok(());
        }
        let plan = Arc::clone(&request.plan);
        if request.is_main()
            && plan
                .of(&early_hints::OF_PLAN)
                .is_some_and(|hints| hints.are_wanted(request))
        {
            exchange.send_early_hints(request, &hints(passing, answer));
        }
        Ok(())
    }
}

/// The fields of early hints that the client gets: no framing, and nothing that is hidden.
fn hints(passing: &Passing, answer: &Reading) -> Vec<Field> {
    let mut fields = Vec::new();
    for field in answer.head.fields() {
        let name = field.name(&answer.bytes);
        let framing = matches!(
            field.known,
            Known::Connection | Known::KeepAlive | Known::TransferEncoding | Known::ContentLength
        );
        if !framing && !passing.hidden.contains(field.known, name) {
            fields.push(Field {
                name: Bytes::copy_from_slice(name),
                value: Bytes::copy_from_slice(field.value(&answer.bytes)),
            });
        }
    }
    fields
}
