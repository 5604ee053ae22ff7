//! A body that was received completely with the head, as most small bodies are. The upstream
//! connection serves the next request before the client has the first byte of this response.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use engine::Buffer;
use http::exchange::abort::Abort;
use http::response::Field;
use http::response::piece::Piece;
use http::response::source::{DeferredLog, Source, SourceEvent};
use proto::h1::response::BodyFraming;

use super::READING_BODY;
use super::answer::AnswerHead;
use super::attempts::Attempts;
use super::body::{self, BodyDelimiter, BodyPrefix};
use super::connection::UpstreamConnection;
use crate::activity::WHILE_READING;
use crate::failures::client_closed_log;

/// A body that was received completely.
pub(super) struct WholeBody {
    /// The history for `$upstream_*`. The end of the body is recorded when the body is passed on:
    /// as in nginx, the head of the response has been sent by then.
    seen: Rc<Attempts>,
    /// The received bytes of the body.
    length: u64,
    /// The body, until it is passed on; may be empty.
    bytes: Option<Bytes>,
    /// See [`BodyPrefix::beyond`].
    beyond: u64,
    trailers: Vec<Field>,
    /// Every part is sent at once (`proxy_buffering off`, `X-Accel-Buffering: no`).
    flush: bool,
}

/// Whether the body is complete, and no bytes follow it. If so, `arrived` then holds only the body.
pub(super) fn is_whole(delimited: &mut BodyDelimiter, arrived: &mut BodyPrefix) -> bool {
    let length = match delimited {
        BodyDelimiter::Http(BodyFraming::None) => 0,
        BodyDelimiter::Http(BodyFraming::Length(length)) => *length,
        BodyDelimiter::Http(BodyFraming::Chunked | BodyFraming::UntilClose) => return false,
        BodyDelimiter::Own(_) | BodyDelimiter::Stream(_) => {
            let whole = delimited
                .framing()
                .and_then(|framing| framing.whole(&mut arrived.rest));
            arrived.may_reuse &= whole.unwrap_or(true);
            return whole.is_some();
        }
    };
    arrived.rest.len() as u64 == length
}

impl WholeBody {
    /// Releases the connection of a body that was received with `length` bytes, framing included.
    pub(super) fn new(
        peer: UpstreamConnection,
        seen: Rc<Attempts>,
        head: &AnswerHead,
        arrived: BodyPrefix,
        length: u64,
        buffered: bool,
        trailers: Vec<Field>,
    ) -> WholeBody {
        body::release_connection(peer, &seen, arrived.may_reuse);
        WholeBody {
            seen,
            length,
            bytes: Some(bytes_of(arrived.rest, head)),
            beyond: arrived.beyond,
            trailers,
            flush: !buffered,
        }
    }
}

/// The bytes of a body. A short body has been copied behind its head, and shares the head's memory.
fn bytes_of(body: Buffer, head: &AnswerHead) -> Bytes {
    if body.is_empty() {
        return Bytes::new();
    }
    head.behind(&body).unwrap_or_else(|| body.into_bytes())
}

impl std::fmt::Debug for WholeBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WholeBody")
    }
}

impl Source for WholeBody {
    fn next(&mut self) -> SourceEvent {
        if let Some(bytes) = self.bytes.take() {
            self.seen.borrow_mut().note(|attempt, began| {
                attempt.response_length += self.length;
                attempt.bytes_received += self.beyond;
                attempt.response_time = began.elapsed();
            });
            if bytes.is_empty() {
                return SourceEvent::End;
            }
            return SourceEvent::Piece(Piece::Bytes(bytes));
        }
        if std::mem::take(&mut self.flush) {
            return SourceEvent::Piece(Piece::Flush);
        }
        SourceEvent::End
    }

    fn poll_more(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Whether the body is complete. Always false if every part is sent at once: as in nginx, the
    /// end then follows once the body has been sent.
    fn is_whole(&self) -> bool {
        self.bytes.is_none() && !self.flush
    }

    fn trailers(&mut self) -> Vec<Field> {
        std::mem::take(&mut self.trailers)
    }

    fn give_up(&mut self, left: &Abort) -> DeferredLog {
        client_closed_log(left, READING_BODY)
    }

    fn beginning(&self) -> &'static str {
        WHILE_READING
    }
}
