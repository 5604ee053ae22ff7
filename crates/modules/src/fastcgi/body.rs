//! The body of an answer, in its records.

use engine::Buffer;
use http::exchange::h1::take_front;
use http::log::{Level, Printable};
use http::source::Told;
use proto::fastcgi::{Decoder, Event, stderr_text};

use crate::proxy::READING_BODY;
use crate::proxy::body::{Framed, Framing};

/// What is left of an answer.
pub(super) struct RecordsOfBody {
    decoder: Decoder,
    /// `fastcgi_keep_conn`: the application says when it is done.
    keep_connection: bool,
    /// The log has been told of more than the head announced.
    is_told: bool,
}

impl RecordsOfBody {
    pub(super) fn new(decoder: Decoder, keep_connection: bool) -> RecordsOfBody {
        RecordsOfBody {
            decoder,
            keep_connection,
            is_told: false,
        }
    }
}

impl Framing for RecordsOfBody {
    fn next(&mut self, received: &mut Buffer) -> Framed {
        while !received.is_empty() {
            let decoded = match self.decoder.decode(received) {
                Ok(decoded) => decoded,
                Err(fault) => {
                    let text = format!("{fault} {READING_BODY}");
                    return Framed::Broken(Told::new(Level::Error, text));
                }
            };
            let consumed = decoded.consumed;
            match decoded.event {
                Some(Event::Stdout(stretch)) => {
                    received.advance(stretch.start);
                    let content = take_front(received, stretch.len());
                    received.advance(consumed.saturating_sub(stretch.end));
                    return Framed::Bytes(content);
                }
                Some(Event::Stderr(stretch)) => {
                    let text = stderr_text(received.get(stretch).unwrap_or_default());
                    let text = Printable(text);
                    let text = format!("FastCGI sent in stderr: \"{text}\" {READING_BODY}");
                    received.advance(consumed);
                    return Framed::Told(Told::new(Level::Error, text));
                }
                Some(Event::BeyondLength) if self.is_told => {
                    return Framed::End { may_go_on: false };
                }
                Some(Event::BeyondLength) => {
                    self.is_told = true;
                    let text = format!("{} {READING_BODY}", Event::BEYOND_LENGTH);
                    return Framed::Told(Told::new(Level::Warn, text));
                }
                Some(Event::End(_)) => {
                    received.advance(consumed);
                    let may_go_on = received.is_empty();
                    return Framed::End { may_go_on };
                }
                // The application still has to say that it is done: who closes before that kills some.
                Some(Event::StdoutEnd | Event::BeyondEnd) | None => received.advance(consumed),
            }
        }
        Framed::Nothing
    }

    fn closed(&mut self) -> Result<(), String> {
        let closed = self.decoder.closed(self.keep_connection);
        closed.map_err(|fault| fault.to_string())
    }
}
