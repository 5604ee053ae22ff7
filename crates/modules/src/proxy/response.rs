//! The head of an HTTP response, and the informational responses before it.

use engine::Buffer;
use http::exchange::Exchange;
use http::request::Request;
use proto::h1::Version;
use proto::h1::response::{NO_HEADER, parse};

use proxying::activity::READING;
use proxying::failures::AttemptError;
use proxying::family::Causes;
use proxying::interim::Informational;
use proxying::response::{ResponseHeadReader, bad, examine, is_informational, note_head, too_big};
use proxying::sending::HeadReader;
use proxying::settings::PassSettings;

/// Reads the response head, and the informational responses before it, if any.
#[derive(Default)]
pub(super) struct HttpReader {
    /// The head, and the bytes received after it.
    pub(super) reading: ResponseHeadReader,
    informational: Informational,
}

impl HeadReader for HttpReader {
    fn take(
        &mut self,
        request: &mut Request,
        exchange: &mut Exchange,
        passing: &PassSettings,
        mut received: Buffer,
    ) -> Result<bool, AttemptError> {
        let answer = &mut self.reading;
        answer.note_received(received.len(), request, passing);
        loop {
            let parsed = answer.parse(&received, passing, parse);
            examine(request, passing, answer);
            match parsed {
                Ok(Some(read)) => {
                    received.advance(read);
                    if is_informational(&answer.head) && answer.head.version() > Version::Http09 {
                        let length = answer.bytes.len();
                        self.informational
                            .take(request, exchange, passing, answer, length)?;
                        answer.begin_again();
                        if received.is_empty() {
                            return Ok(false);
                        }
                        continue;
                    }
                    if answer.head.version() == Version::Http09 {
                        logs::error!(request, Error, "{NO_HEADER} {READING}");
                        // The bytes after an informational response cannot be an HTTP/0.9 response.
                        if self.informational.has_come() {
                            return Err(bad(Causes::INVALID_HEADER));
                        }
                    }
                    answer.rest = received;
                    note_head(request, answer.head.status());
                    return Ok(true);
                }
                Ok(None) => break,
                Err(error) => {
                    let text = error.log_text(&answer.bytes);
                    logs::error!(request, Error, "{} {READING}", logs::Printable(&text));
                    return Err(bad(Causes::INVALID_HEADER));
                }
            }
        }
        if answer.bytes.len() >= passing.buffer_size {
            Err(too_big(request))
        } else {
            Ok(false)
        }
    }
}
