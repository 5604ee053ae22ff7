//! The bytes that an HTTP/1 client sends after the head of a request: first the body, then the next
//! requests.

use std::io::{self, ErrorKind};

use bytes::Bytes;
use engine::Buffer;
use proto::h1::BodyLength;
use proto::h1::chunked::{Decoded, Decoder};

use crate::exchange::abort::Abort;
use crate::request::body::{ChunkError, RequestBody};

/// The part of the request's body that has not been taken from the intake.
#[derive(Debug, Default)]
enum Incoming {
    /// There was no body, or all of it has been taken.
    #[default]
    Nothing,
    Length(u64),
    /// Chunks up to the last chunk.
    Chunked(Box<Decoder>),
}

impl Incoming {
    fn of(length: BodyLength) -> Incoming {
        match length {
            BodyLength::None | BodyLength::Length(0) => Incoming::Nothing,
            BodyLength::Length(length) => Incoming::Length(length),
            BodyLength::Chunked => Incoming::Chunked(Box::new(Decoder::new())),
        }
    }
}

/// The result of asking for the next part of a body.
pub(crate) enum BodyPart {
    Bytes(Bytes),
    /// No bytes are available until more are received.
    Nothing,
    End,
}

/// The bytes received after a head, and how much of the body is among them.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    /// The received bytes that have not been taken.
    pub(crate) input: Buffer,
    /// The part of the body that has not been taken.
    incoming: Incoming,
    /// Number of bytes of the last receive of the body; 0 while only the receive of the head has
    /// returned bytes.
    portion: usize,
    /// Whether the last receive has filled its buffer, so that the kernel may hold more bytes.
    pub(crate) filled: bool,
    /// The counts of the body before the last receive, for the log if its chunks are refused.
    before_portion: ChunkError,
    /// The head was refused, or a chunk of the body is too large, so the rest of the body is not
    /// read.
    pub(crate) refused: bool,
    /// The chunks are malformed, so the end of the body and the start of the next request are
    /// unknown.
    pub(crate) is_lost: bool,
    /// The client was too slow to send more of the body.
    pub(crate) timed_out: bool,
}

impl Intake {
    /// An intake with `input` received after a head that announces a body of this length.
    pub(crate) fn new(length: BodyLength, input: Buffer) -> Intake {
        Intake {
            filled: input.is_full(),
            input,
            incoming: Incoming::of(length),
            ..Intake::default()
        }
    }

    /// Whether the whole body has been taken.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.incoming, Incoming::Nothing)
    }

    /// Stores bytes of the body that were received after the last receive of the head.
    pub(crate) fn begin_portion(&mut self, body: &RequestBody, buffer: Buffer) {
        self.portion = buffer.len();
        self.filled = buffer.is_full();
        self.input = buffer;
        self.before_portion = ChunkError {
            framed: body.received_framed(),
            data: body.received(),
        };
    }

    /// Stores the result of a receive.
    ///
    /// # Errors
    /// If nothing has been received, with the reason.
    pub(crate) fn receive(
        &mut self,
        body: &RequestBody,
        received: io::Result<Buffer>,
    ) -> Result<(), Abort> {
        match received {
            Ok(buffer) if buffer.is_empty() => {
                Err(Abort::Closed(ErrorKind::ConnectionAborted.into()))
            }
            Ok(buffer) => {
                self.begin_portion(body, buffer);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                self.timed_out = true;
                Err(Abort::BodyTimedOut)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the next part of the body from the received bytes. A chunk with which the body exceeds
    /// `size_max` (0: no limit) is refused as soon as its size is known. As in nginx, the whole
    /// last receive of a refused body counts for `$request_length`, unless the head was in this
    /// receive.
    ///
    /// # Errors
    /// `BadBody` and `BodyTooLarge`.
    pub(crate) fn next(
        &mut self,
        body: &mut RequestBody,
        size_max: u64,
    ) -> Result<BodyPart, Abort> {
        let mut refused = self.before_portion;
        refused.framed += self.portion as u64;
        while !self.input.is_empty() {
            match &mut self.incoming {
                Incoming::Nothing => break,
                Incoming::Length(left) => {
                    let taken = usize::try_from(*left)
                        .unwrap_or(usize::MAX)
                        .min(self.input.len());
                    *left -= taken as u64;
                    if *left == 0 {
                        self.incoming = Incoming::Nothing;
                    }
                    body.note_received(taken as u64);
                    return Ok(BodyPart::Bytes(take_front(&mut self.input, taken)));
                }
                Incoming::Chunked(decoder) => {
                    let received = body.received();
                    // Decode one chunk at a time if any of them may exceed the limit.
                    let at_most = received.saturating_add(self.input.len() as u64);
                    let decoded = if size_max != 0 && at_most > size_max {
                        decoder.decode(&self.input)
                    } else {
                        decoder.gather(&mut self.input)
                    };
                    let Ok(decoded) = decoded else {
                        body.note_refused(refused);
                        return Err(self.fail_framing());
                    };
                    let done = decoded.done;
                    let length = decoded.data.len() as u64;
                    body.note_received(length);
                    let framing = decoded.consumed as u64 - length;
                    body.note_framing(framing);
                    let to_come = decoder.remaining();
                    let announced = received.saturating_add(length).saturating_add(to_come);
                    let chunk = match to_come {
                        0 => length,
                        _ => decoder.chunk_size(),
                    };
                    let bytes = take_data(&mut self.input, &decoded);
                    if size_max != 0 && chunk > 0 && announced > size_max {
                        self.refused = true;
                        body.note_refused(refused);
                        return Err(Abort::BodyTooLarge {
                            received: announced.saturating_sub(chunk),
                            chunk,
                        });
                    }
                    if done {
                        self.incoming = Incoming::Nothing;
                        body.note_end();
                    }
                    if let Some(bytes) = bytes {
                        return Ok(BodyPart::Bytes(bytes));
                    }
                }
            }
        }
        Ok(match self.incoming {
            Incoming::Nothing => BodyPart::End,
            _ => BodyPart::Nothing,
        })
    }

    /// Notes that the chunks are malformed, and returns the error.
    fn fail_framing(&mut self) -> Abort {
        self.incoming = Incoming::Nothing;
        self.is_lost = true;
        Abort::BadBody("client sent invalid chunked body")
    }

    /// Discards the received part of the body. As in nginx, the discarded bytes count neither for
    /// `$request_length` nor for `$content_length`.
    ///
    /// # Errors
    /// `BadBody`.
    pub(crate) fn drop_received(&mut self) -> Result<(), Abort> {
        while !self.input.is_empty() {
            let ended = match &mut self.incoming {
                Incoming::Nothing => return Ok(()),
                Incoming::Length(left) => {
                    let dropped = usize::try_from(*left)
                        .unwrap_or(usize::MAX)
                        .min(self.input.len());
                    *left -= dropped as u64;
                    self.input.advance(dropped);
                    *left == 0
                }
                Incoming::Chunked(decoder) => {
                    let Ok(decoded) = decoder.decode(&self.input) else {
                        return Err(self.fail_framing());
                    };
                    self.input.advance(decoded.consumed);
                    decoded.done
                }
            };
            if ended {
                self.incoming = Incoming::Nothing;
            }
        }
        self.input = Buffer::default(); // returns the memory to the pool
        Ok(())
    }
}

/// Takes `length` bytes from the front. Without a copy if the buffer is then empty.
pub fn take_front(input: &mut Buffer, length: usize) -> Bytes {
    if length == input.len() {
        return std::mem::take(input).into_bytes();
    }
    let bytes = Bytes::copy_from_slice(input.get(..length).unwrap_or_default());
    input.advance(length);
    bytes
}

/// Takes the decoded bytes from the front, and returns the data in them, if any.
pub fn take_data(input: &mut Buffer, decoded: &Decoded) -> Option<Bytes> {
    let framing = decoded.consumed - decoded.data.end;
    input.advance(decoded.data.start);
    let data = if input.len() == decoded.data.len() + framing {
        input.truncate(decoded.data.len());
        std::mem::take(input).into_bytes()
    } else {
        let data = take_front(input, decoded.data.len());
        input.advance(framing);
        data
    };
    (!data.is_empty()).then_some(data)
}
