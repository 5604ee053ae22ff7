//! The body of a FastCGI response, in records.

use engine::Buffer;
use http::h1::intake::take_front;
use http::response::source::BodyError;
use logs::{Level, Printable};
use proto::fastcgi::{Decoder, Event, Fault, stderr_text};

use proxying::answer_framing::{AnswerFraming, FramedPart};

/// Decodes the rest of a response.
pub(super) struct RecordsOfBody {
    decoder: Decoder,
    /// Only the record that ends the request ends the body: with `fastcgi_keep_conn`, if the
    /// response is buffered. As in nginx, the end of the connection also ends an unbuffered body.
    needs_end: bool,
    /// Data beyond the announced length has been logged.
    is_excess_logged: bool,
}

impl RecordsOfBody {
    pub(super) fn new(decoder: Decoder, needs_end: bool) -> RecordsOfBody {
        RecordsOfBody {
            decoder,
            needs_end,
            is_excess_logged: false,
        }
    }
}

impl RecordsOfBody {
    /// Whether a response without a body (204, 304) has already ended, and whether the connection
    /// may then serve another request. Also returns lines for the log.
    pub(super) fn ends_at_once(
        &mut self,
        received: &mut Buffer,
    ) -> (Option<bool>, Vec<(Level, String)>) {
        let mut log_lines = Vec::new();
        while !received.is_empty() {
            match self.next(received) {
                FramedPart::Told(level, text) => log_lines.push((level, text)),
                FramedPart::End { may_reuse } => return (Some(may_reuse), log_lines),
                FramedPart::Nothing => break,
                FramedPart::Bytes(_) | FramedPart::Broken(..) => return (Some(false), log_lines),
            }
        }
        (None, log_lines)
    }
}

impl AnswerFraming for RecordsOfBody {
    fn next(&mut self, received: &mut Buffer) -> FramedPart {
        while !received.is_empty() {
            let decoded = match self.decoder.decode(received) {
                Ok(decoded) => decoded,
                Err(fault) => {
                    // Data before a missing end is valid.
                    let broken = match fault {
                        Fault::StdoutClosed | Fault::RequestClosed | Fault::ConnectionClosed => {
                            BodyError::Unfinished
                        }
                        _ => BodyError::Framing,
                    };
                    return FramedPart::Broken(broken, fault.to_string());
                }
            };
            let consumed = decoded.consumed;
            match decoded.event {
                Some(Event::Stdout(stretch)) => {
                    received.advance(stretch.start);
                    let content = take_front(received, stretch.len());
                    received.advance(consumed.saturating_sub(stretch.end));
                    return FramedPart::Bytes(content);
                }
                Some(Event::Stderr(stretch)) => {
                    let text = stderr_text(received.get(stretch).unwrap_or_default());
                    let text = Printable(text);
                    let text = format!("FastCGI sent in stderr: \"{text}\"");
                    received.advance(consumed);
                    return FramedPart::Told(Level::Error, text);
                }
                Some(Event::BeyondLength) if self.is_excess_logged => {
                    return FramedPart::End { may_reuse: false };
                }
                Some(Event::BeyondLength) => {
                    self.is_excess_logged = true;
                    return FramedPart::Told(Level::Warn, Event::BEYOND_LENGTH.to_owned());
                }
                Some(Event::End(_)) => {
                    received.advance(consumed);
                    let may_reuse = received.is_empty();
                    return FramedPart::End { may_reuse };
                }
                // The application has not ended the request yet. Closing the connection before it
                // has kills some applications.
                Some(Event::StdoutEnd | Event::BeyondEnd) | None => received.advance(consumed),
            }
        }
        FramedPart::Nothing
    }

    fn whole(&mut self, received: &mut Buffer) -> Option<bool> {
        let mut decoder = self.decoder.clone();
        let (mut at, mut content) = (0, None);
        loop {
            let decoded = decoder.decode(received.get(at..)?).ok()?;
            match decoded.event? {
                Event::Stdout(stretch) if content.is_none() => {
                    content = Some(at + stretch.start..at + stretch.end);
                }
                Event::StdoutEnd => {}
                Event::End(_) if at + decoded.consumed == received.len() => break,
                _ => return None,
            }
            at += decoded.consumed;
        }
        let content = content.unwrap_or_default();
        received.truncate(content.end);
        received.advance(content.start);
        Some(true)
    }

    fn closed(&mut self) -> Result<(), (BodyError, String)> {
        let closed = self.decoder.closed(self.needs_end);
        closed.map_err(|fault| (BodyError::Unfinished, fault.to_string()))
    }
}
