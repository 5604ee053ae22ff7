//! The head of an HTTP answer: its own, and the informational ones before it.

use engine::Buffer;
use http::exchange::Exchange;
use http::log;
use http::request::Request;
use proto::h1::Version;
use proto::h1::response::{NO_HEADER, parse};

use crate::passing::family::Causes;
use crate::passing::interim::Informational;
use crate::passing::response::{
    READING, Reading, bad, examine, is_informational, note_head, too_big,
};
use crate::passing::sending::HeadReader;
use crate::passing::settings::Passing;
use crate::passing::tries::AttemptError;

/// Reads the head of the answer, and those before it.
#[derive(Default)]
pub(super) struct HttpReader {
    /// The head, and what has come behind it.
    pub(super) reading: Reading,
    informational: Informational,
}

impl HeadReader for HttpReader {
    fn take(
        &mut self,
        request: &mut Request,
        exchange: &mut Exchange,
        passing: &Passing,
        received: Buffer,
    ) -> Result<bool, AttemptError> {
        let answer = &mut self.reading;
        answer.note_received(received.len(), request, passing);
        answer.bytes.extend_from_slice(&received);
        answer.rest = received;
        loop {
            let most = passing.buffer_size;
            let held = answer.bytes.get(..most).unwrap_or(&answer.bytes);
            let parsed = parse(held, &mut answer.head);
            examine(request, passing, answer);
            match parsed {
                Ok(Some(length)) => {
                    if is_informational(&answer.head) && answer.head.version() > Version::Http09 {
                        self.informational
                            .take(request, exchange, passing, answer, length)?;
                        answer.begin_again(length);
                        if answer.bytes.is_empty() {
                            break;
                        }
                        continue;
                    }
                    if answer.head.version() == Version::Http09 {
                        log::error!(request, Error, "{NO_HEADER} {READING}");
                        // What is behind an informational response is no HTTP/0.9.
                        if self.informational.has_come() {
                            return Err(bad(Causes::INVALID_HEADER));
                        }
                    }
                    // What follows the head lies at the end of what came last.
                    let unread = answer.bytes.len().saturating_sub(length);
                    let read = answer.rest.len().saturating_sub(unread);
                    answer.rest.advance(read);
                    answer.bytes.truncate(length);
                    note_head(request, answer.head.status());
                    return Ok(true);
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
        answer.rest = Buffer::empty(); // it is among the head's bytes
        Ok(false)
    }
}
