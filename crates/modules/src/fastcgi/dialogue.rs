//! Sends a request to a FastCGI application and reads the head of the response.

use bytes::Bytes;
use engine::Buffer;
use engine::net::Segment;
use http::exchange::Exchange;
use http::request::Request;
use proto::cgi::{self, Form};
use proto::fastcgi::{
    BodyLength, Decoder, Event, STDIN_END, STDIN_LENGTH_MAX, StdinFrame, stderr_text,
};
use proto::method::Method;
use transport::Transport;

use super::settings::Settings;
use crate::applications::Outgoing;
use proxying::activity::READING;
use proxying::connection::UpstreamConnection;
use proxying::failures::AttemptError;
use proxying::family::Causes;
use proxying::peer_attempts::Dialogue;
use proxying::request_framing::BodyFraming;
use proxying::response::{ResponseHeadReader, UpstreamResponse, bad, examine, note_head, too_big};
use proxying::sending::{HeadReader, RequestInFlight};
use proxying::settings::PassSettings;

/// One request and its response.
pub(super) struct FastcgiDialogue<'a> {
    pub(super) settings: &'a Settings,
    pub(super) outgoing: &'a Outgoing,
}

/// A response whose head has been read.
pub(super) struct FastcgiAnswer {
    /// The head, and the bytes received behind it, in records.
    pub(super) read: UpstreamResponse,
    /// The decoder of the following records.
    pub(super) decoder: Decoder,
}

impl Dialogue for FastcgiDialogue<'_> {
    type Answer = FastcgiAnswer;

    async fn talk(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        peer: &mut UpstreamConnection,
    ) -> Result<FastcgiAnswer, AttemptError> {
        let mut reader = FastcgiReader {
            settings: self.settings,
            reading: ResponseHeadReader::default(),
            decoder: Decoder::new(),
            held: 0,
            has_begun: false,
        };
        let mut asked = RequestInFlight::new(&self.settings.passing, peer, &mut reader);
        let queued = self.queue(request, exchange, &mut asked).await;
        let read = asked.read_head(request, exchange, queued).await;
        Ok(FastcgiAnswer {
            read: reader.reading.end_as(read, request)?,
            decoder: reader.decoder,
        })
    }

    fn status(&self, answer: &FastcgiAnswer) -> Option<u16> {
        Some(answer.read.head.status())
    }

    fn can_be_repeated(&self) -> bool {
        self.outgoing.begun.is_none()
    }
}

impl FastcgiDialogue<'_> {
    async fn queue(
        &self,
        request: &mut Request,
        exchange: &mut Exchange,
        asked: &mut RequestInFlight<'_, FastcgiReader<'_>>,
    ) -> Result<(), AttemptError> {
        let passes_body = self.settings.passing.pass_request_body;
        asked.push_head(&self.outgoing.head);
        if let (Some(begun), true) = (&self.outgoing.begun, passes_body) {
            // Boxed, so that requests whose body is read first need no memory for this future.
            return Box::pin(asked.stream_body(request, exchange, begun, &Stdin)).await;
        }
        if passes_body {
            if let Some(parts) = request.body.in_memory() {
                asked.sent += Stdin.push(asked.peer.stream(), parts);
            } else if let Some(file) = request.body.file().cloned() {
                let length = request.body.received();
                let mut offset = 0;
                while let Some(frame) = StdinFrame::new(left(length, offset)) {
                    let part = frame.length() as u64;
                    asked.sent += push_frame(asked.peer.stream(), &frame, |stream| {
                        stream.push(Segment::File {
                            file: file.clone(),
                            offset,
                            length: part,
                        });
                    });
                    offset += part;
                    asked.peer.stream().start_send();
                    asked.wait_for_peer(request, exchange).await?;
                    if asked.needs_no_more_body() {
                        asked.peer.asked = false;
                        return Ok(());
                    }
                }
            }
        }
        asked.sent += Stdin.end(asked.peer.stream());
        Ok(())
    }
}

/// Reads the head of the answer.
struct FastcgiReader<'a> {
    settings: &'a Settings,
    /// The head, and the bytes received behind it, in records.
    reading: ResponseHeadReader,
    decoder: Decoder,
    /// Number of bytes of `fastcgi_buffer_size` that are used. Records count as they were received,
    /// with their headers and padding; messages of standard error count, too.
    held: usize,
    /// A part of the head has been received.
    has_begun: bool,
}

impl HeadReader for FastcgiReader<'_> {
    fn take(
        &mut self,
        request: &mut Request,
        _: &mut Exchange,
        passing: &PassSettings,
        mut received: Buffer,
    ) -> Result<bool, AttemptError> {
        // As in nginx, only as many bytes are decoded as fit into `fastcgi_buffer_size`.
        while !received.is_empty() && self.held < passing.buffer_size {
            let length = received.len().min(passing.buffer_size - self.held);
            let behind = received.len() - length;
            self.held += length;
            self.reading.note_read(length, behind, request);
            if self.take_records(request, passing, &mut received, behind)? {
                self.reading.rest = received;
                return Ok(true);
            }
        }
        if self.held >= passing.buffer_size {
            Err(too_big(request))
        } else {
            Ok(false)
        }
    }
}

impl FastcgiReader<'_> {
    /// Decodes the received bytes, except for the last `behind`. True if the head is complete.
    fn take_records(
        &mut self,
        request: &mut Request,
        passing: &PassSettings,
        received: &mut Buffer,
        behind: usize,
    ) -> Result<bool, AttemptError> {
        while received.len() > behind {
            let records = received.get(..received.len() - behind).unwrap_or_default();
            let decoded = self.decoder.decode(records).map_err(|fault| {
                logs::error!(request, Error, "{fault} {READING}");
                bad(Causes::INVALID_HEADER)
            })?;
            let is_last = decoded.consumed == records.len();
            match decoded.event {
                Some(Event::Stdout(stretch)) => {
                    self.has_begun = true;
                    let stretch = records.get(stretch).unwrap_or_default();
                    if let Some(unread) = self.parse(stretch, request, passing)? {
                        received.advance(decoded.consumed.saturating_sub(unread));
                        return Ok(true);
                    }
                }
                Some(Event::Stderr(stretch)) => {
                    self.tell(request, records.get(stretch).unwrap_or_default())?;
                    // As in nginx, messages of standard error before the head no longer count if
                    // nothing follows them yet: PHP may send any number of warnings.
                    if is_last && !self.has_begun {
                        self.held = 0;
                    }
                }
                // A request that ends before its head is a fault.
                Some(_) | None => {}
            }
            received.advance(decoded.consumed);
        }
        Ok(false)
    }

    /// Parses a part of the head. If the head is complete, returns how many bytes of the part are
    /// behind it.
    fn parse(
        &mut self,
        stretch: &[u8],
        request: &mut Request,
        passing: &PassSettings,
    ) -> Result<Option<usize>, AttemptError> {
        let reading = &mut self.reading;
        let parsed = reading.parse(stretch, passing, |bytes, head| {
            cgi::parse(bytes, head, Form::Fields)
        });
        examine(request, passing, reading);
        match parsed {
            Ok(None) => Ok(None),
            Ok(Some(read)) => {
                let unread = stretch.len().saturating_sub(read);
                let is_head = request.method == Method::Head;
                let body = BodyLength::of(&reading.head, is_head);
                self.decoder.begin_body(body, unread);
                note_head(request, reading.head.status());
                Ok(Some(unread))
            }
            Err(error) => {
                let text = error.log_text(&reading.bytes);
                logs::error!(request, Error, "{} {READING}", logs::Printable(&text));
                Err(bad(Causes::INVALID_HEADER))
            }
        }
    }

    /// Logs a message of the application's standard error. A message may make the response invalid
    /// (`fastcgi_catch_stderr`).
    fn tell(&self, request: &Request, stretch: &[u8]) -> Result<(), AttemptError> {
        let text = stderr_text(stretch);
        let shown = logs::Printable(text);
        logs::error!(
            request,
            Error,
            "FastCGI sent in stderr: \"{shown}\" {READING}"
        );
        let mut caught = self.settings.catch_stderr.iter();
        if caught.any(|pattern| memchr::memmem::find(text, pattern).is_some()) {
            Err(bad(Causes::INVALID_HEADER))
        } else {
            Ok(())
        }
    }
}

/// The number of bytes of `length` behind `offset`.
fn left(length: u64, offset: u64) -> usize {
    usize::try_from(length.saturating_sub(offset)).unwrap_or(usize::MAX)
}

/// Queues a record of the body, whose content `push` queues. Returns the length of the record.
fn push_frame(stream: &Transport, frame: &StdinFrame, push: impl FnOnce(&Transport)) -> u64 {
    stream.push(Segment::Bytes(Bytes::copy_from_slice(frame.header())));
    push(stream);
    let padding = frame.padding();
    if !padding.is_empty() {
        stream.push(Segment::Bytes(Bytes::from_static(padding)));
    }
    (frame.header().len() + frame.length() + padding.len()) as u64
}

/// Frames the body of a request in records.
struct Stdin;

impl BodyFraming for Stdin {
    fn push(&self, stream: &Transport, parts: &[Bytes]) -> u64 {
        let mut sent = 0;
        for part in parts {
            for content in part.chunks(STDIN_LENGTH_MAX) {
                if let Some(frame) = StdinFrame::new(content.len()) {
                    let content = part.slice_ref(content);
                    sent += push_frame(stream, &frame, |stream| {
                        stream.push(Segment::Bytes(content));
                    });
                }
            }
        }
        sent
    }

    fn end(&self, stream: &Transport) -> u64 {
        stream.push(Segment::Bytes(Bytes::from_static(&STDIN_END)));
        STDIN_END.len() as u64
    }
}
