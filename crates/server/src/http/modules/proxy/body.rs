//! The upstream's body as it comes: as fast as the client takes it, and no faster.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::Buffer;
use engine::select::{Either, either};
use proto::h1::chunked::Decoder;
use proto::h1::response::ResponseBody;

use super::response::READING;
use super::{Peer, READING_BODY, Settings, client_left, note};
use crate::http::exchange::h1::{take_data, take_front};
use crate::http::exchange::{Abort, Exchange};
use crate::http::output::Piece;
use crate::http::request::Request;
use crate::log;

/// What of the body is still to come.
enum Remaining {
    Nothing,
    /// Nothing: the last chunk has come.
    NothingAfterChunks,
    Length(u64),
    Chunked(Box<Decoder>),
    UntilClose,
}

/// The body of an upstream's response.
pub struct UpstreamBody {
    peer: Peer,
    remaining: Remaining,
    received: Buffer,
    /// How much came along with the head; 0 once that counts.
    came_with_head: u64,
    /// See [`Arrived::beyond`]; 0 once that counts.
    beyond: u64,
    read_timeout: Duration,
    ignore_client_abort: bool,
    /// Every part leaves at once (`proxy_buffering off`, `X-Accel-Buffering: no`).
    flush: bool,
    flush_next: bool,
    /// What is being done, for log lines about what is too much: as nginx has it, what comes along with the head still
    /// belongs to reading that, where every part leaves at once.
    doing: &'static str,
}

impl std::fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UpstreamBody")
    }
}

/// What of a body has come along with the head.
pub(super) struct Arrived {
    pub rest: Buffer,
    /// How many bytes came beyond `proxy_buffer_size`: as nginx reads them only for the body, `$upstream_bytes_received`
    /// has them once that is read.
    pub beyond: u64,
}

/// Says that more has come than the head of the answer has announced.
pub(super) fn warn_of_excess(request: &Request, doing: &str) {
    log::error!(
        request,
        Warn,
        "upstream sent more data than specified in \"Content-Length\" header {doing}"
    );
}

impl UpstreamBody {
    pub(super) fn new(
        peer: Peer,
        settings: &Arc<Settings>,
        framing: ResponseBody,
        arrived: Arrived,
        buffered: bool,
    ) -> UpstreamBody {
        UpstreamBody {
            peer,
            remaining: match framing {
                ResponseBody::None | ResponseBody::Length(0) => Remaining::Nothing,
                ResponseBody::Length(length) => Remaining::Length(length),
                ResponseBody::Chunked => Remaining::Chunked(Box::new(Decoder::new())),
                ResponseBody::UntilClose => Remaining::UntilClose,
            },
            came_with_head: arrived.rest.len() as u64,
            beyond: arrived.beyond,
            received: arrived.rest,
            read_timeout: settings.read_timeout,
            ignore_client_abort: settings.ignore_client_abort,
            flush: !buffered,
            flush_next: false,
            doing: match buffered {
                true => READING_BODY,
                false => READING,
            },
        }
    }

    /// The next piece; `None` at the body's end.
    pub async fn next(
        &mut self,
        request: &mut Request,
        exchange: &mut Exchange,
    ) -> Result<Option<Piece>, Abort> {
        if self.came_with_head > 0 {
            let length = std::mem::take(&mut self.came_with_head);
            let beyond = std::mem::take(&mut self.beyond);
            note(request, |attempt, _| {
                attempt.response_length += length;
                attempt.bytes_received += beyond;
            });
        }
        if std::mem::take(&mut self.flush_next) {
            return Ok(Some(Piece::Flush));
        }
        loop {
            if let Some(bytes) = self.take(request)? {
                self.flush_next = self.flush;
                return Ok(Some(Piece::Bytes(bytes)));
            }
            if matches!(
                self.remaining,
                Remaining::Nothing | Remaining::NothingAfterChunks
            ) {
                self.peer.stream.announce_end();
                note(request, |attempt, elapsed| attempt.response_time = elapsed);
                return Ok(None);
            }
            // Nothing more stands ready: what the client has not been sent yet goes now.
            exchange.send_what_waits(request).await?;
            let deadline = engine::now() + self.read_timeout;
            let receiving = self.peer.stream.recv(Some(deadline));
            let received = if self.ignore_client_abort {
                receiving.await
            } else {
                match either(receiving, exchange.client_gone()).await {
                    Either::First(received) => received,
                    Either::Second(abort) => {
                        return Err(client_left(request, abort, "while reading upstream"));
                    }
                }
            };
            match received {
                Ok(buffer) if buffer.is_empty() => return self.closed(request),
                Ok(buffer) => {
                    let length = buffer.len() as u64;
                    note(request, |attempt, _| {
                        attempt.bytes_received += length;
                        attempt.response_length += length;
                    });
                    self.received = buffer;
                    self.doing = READING_BODY;
                }
                Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                    log::error!(
                        request,
                        Error,
                        "upstream timed out (110: Connection timed out) while reading upstream"
                    );
                    return Err(self.broken(request));
                }
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                    log::error!(
                        request,
                        Error,
                        "SSL_read() failed (SSL: {error}) while reading upstream"
                    );
                    return Err(self.broken(request));
                }
                Err(error) => {
                    log::error!(
                        request,
                        Error,
                        "recv() failed {} while reading upstream",
                        log::Errno(&error)
                    );
                    return Err(self.broken(request));
                }
            }
        }
    }

    /// Whether nothing follows the piece that came last, as far as is known without waiting. Not where every part leaves at
    /// once: as in nginx the end comes once that has left.
    pub fn is_whole(&self) -> bool {
        let nothing = matches!(
            self.remaining,
            Remaining::Nothing | Remaining::NothingAfterChunks
        );
        nothing && !self.flush
    }

    /// The upstream closed: the end where nothing else marks it, else a broken response.
    fn closed(&mut self, request: &mut Request) -> Result<Option<Piece>, Abort> {
        if matches!(self.remaining, Remaining::UntilClose) {
            self.remaining = Remaining::Nothing;
            self.peer.stream.announce_end();
            note(request, |attempt, elapsed| attempt.response_time = elapsed);
            return Ok(None);
        }
        log::error!(
            request,
            Error,
            "upstream prematurely closed connection while reading upstream"
        );
        Err(self.broken(request))
    }

    /// Ends a response that lacks its end. As in nginx, `$request_completion` says all the same that the client has been sent
    /// what there was.
    fn broken(&mut self, request: &mut Request) -> Abort {
        self.remaining = Remaining::Nothing;
        request.complete = true;
        note(request, |attempt, elapsed| attempt.response_time = elapsed);
        Abort::Upstream
    }

    /// What of the received bytes belongs to the body.
    fn take(&mut self, request: &mut Request) -> Result<Option<Bytes>, Abort> {
        while !self.received.is_empty() {
            match &mut self.remaining {
                Remaining::Nothing => {
                    warn_of_excess(request, self.doing);
                    self.received = Buffer::default();
                    return Ok(None);
                }
                Remaining::NothingAfterChunks => {
                    log::error!(
                        request,
                        Warn,
                        "upstream sent data after final chunk {}",
                        self.doing
                    );
                    self.received = Buffer::default();
                    return Ok(None);
                }
                Remaining::UntilClose => {
                    return Ok(Some(std::mem::take(&mut self.received).into_bytes()));
                }
                Remaining::Length(left) => {
                    let taken = usize::try_from(*left)
                        .unwrap_or(usize::MAX)
                        .min(self.received.len());
                    *left -= taken as u64;
                    if *left == 0 {
                        self.remaining = Remaining::Nothing;
                    }
                    return Ok(Some(take_front(&mut self.received, taken)));
                }
                Remaining::Chunked(decoder) => {
                    let Ok(decoded) = decoder.gather(&mut self.received) else {
                        log::error!(
                            request,
                            Error,
                            "upstream sent invalid chunked response while reading upstream"
                        );
                        self.broken(request);
                        request.complete = false;
                        return Err(Abort::UpstreamFraming);
                    };
                    let bytes = take_data(&mut self.received, &decoded);
                    if decoded.done {
                        self.remaining = Remaining::NothingAfterChunks;
                    }
                    if bytes.is_some() || decoded.done {
                        return Ok(bytes);
                    }
                }
            }
        }
        Ok(None)
    }
}
