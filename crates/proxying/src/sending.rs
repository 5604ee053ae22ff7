//! Sends a request to a peer, with its body buffered or streamed from the client. Meanwhile reads a
//! response that the peer sends early.

use std::io;

use bytes::Bytes;
use engine::Buffer;
use engine::net::Segment;
use engine::select::{Either, either};
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::request::Request;
use http::request::body::reading;
use http::request::interrupt::Interrupt;

use super::activity::SENDING;
use super::connection::UpstreamConnection;
use super::request_framing::{BACKLOG_MAX, BodyFraming};
use super::response::receive;
use super::settings::PassSettings;
use super::upload::RestOfBody;
use crate::failures::{AttemptError, client_left, failed, note};
use base::pieces::Pieces;

/// Parses the head of a response from received bytes, for any protocol.
pub trait HeadReader {
    /// Parses received bytes; true once the head is complete.
    fn take(
        &mut self,
        request: &mut Request,
        exchange: &mut Exchange,
        passing: &PassSettings,
        received: Buffer,
    ) -> Result<bool, AttemptError>;
}

/// A request that is being sent, up to the end of the response head. Bytes that the peer sends
/// before it has the whole request are read meanwhile. Only a complete response head, or the end of
/// the connection, stops sending the request.
pub struct RequestInFlight<'a, R> {
    passing: &'a PassSettings,
    /// The connection to the peer.
    pub peer: &'a mut UpstreamConnection,
    reader: &'a mut R,
    /// How many bytes of the request have been queued.
    pub sent: u64,
    /// Whether the response head is complete.
    has_answer: bool,
}

impl<'a, R: HeadReader> RequestInFlight<'a, R> {
    /// A request of which nothing has been sent.
    pub fn new(
        passing: &'a PassSettings,
        peer: &'a mut UpstreamConnection,
        reader: &'a mut R,
    ) -> RequestInFlight<'a, R> {
        RequestInFlight {
            passing,
            peer,
            reader,
            sent: 0,
            has_answer: false,
        }
    }

    /// Queues the head of the request.
    pub fn push_head(&mut self, head: &Bytes) {
        self.sent += head.len() as u64;
        self.peer.stream().push(Segment::Bytes(head.clone()));
        self.peer.asked = true;
    }

    /// Streams the client's body to the peer. If the response head is received before the end of
    /// the body, the rest of the body is sent while the response is read.
    pub async fn stream_body(
        &mut self,
        request: &mut Request,
        exchange: &mut Exchange,
        begun: &[Bytes],
        framing: &'static dyn BodyFraming,
    ) -> Result<(), AttemptError> {
        // Disable Nagle's algorithm, so that small parts are not delayed until the peer has
        // acknowledged the parts before.
        let stream = self.peer.stream();
        stream.set_nodelay(request.plan.core.tcp_nodelay);
        self.sent += framing.push(stream, begun);
        let mut parts = Pieces::new();
        let mut is_interrupted = false;
        loop {
            self.peer.stream().start_send();
            self.wait_for_peer(request, exchange).await?;
            if self.needs_no_more_body() {
                self.peer.asked = false;
                if self.has_answer {
                    let rest = exchange.upload(request);
                    let upload = rest.map(|client| RestOfBody::of_client(client, framing));
                    self.peer.upload = upload.map(Box::new);
                }
                return Ok(());
            }
            parts.clear();
            // Activity of the peer does not extend the timeout for the client's body.
            if std::mem::take(&mut is_interrupted) {
                request.body.resume_wait();
            }
            let reading = reading::read_some(request, exchange, &mut parts);
            let ended = match either(reading, self.peer.stream().recv(None)).await {
                Either::First(read) => read.map_err(|refused| match refused {
                    Interrupt::Status(status) => AttemptError::Refused(status),
                    Interrupt::Abort(abort) => {
                        AttemptError::Aborted(handle_aborted_body(request, abort))
                    }
                })?,
                Either::Second(early) => {
                    self.take_early(request, exchange, early)?;
                    is_interrupted = true;
                    continue;
                }
            };
            self.sent += framing.push(self.peer.stream(), &parts);
            if ended {
                self.sent += framing.end(self.peer.stream());
                return Ok(());
            }
        }
    }

    /// Sends a buffered body. A body that was streamed to an earlier upstream cannot be sent again.
    pub async fn push_stored_body(
        &mut self,
        request: &mut Request,
        exchange: &mut Exchange,
    ) -> Result<(), AttemptError> {
        if let Some(parts) = request.body.in_memory() {
            for part in parts {
                self.sent += part.len() as u64;
                self.peer.stream().push(Segment::Bytes(part.clone()));
            }
        } else if let Some(file) = request.body.file().cloned() {
            let length = request.body.received();
            if self.peer.stream().is_secure() {
                // In a box, since the case is rare, and the futures of other requests should not be
                // larger for it.
                Box::pin(self.push_file(request, exchange, &file, length)).await?;
            } else {
                self.peer.stream().push(Segment::File {
                    file,
                    offset: 0,
                    length,
                });
            }
            self.sent += length;
        }
        Ok(())
    }

    /// Sends a file through TLS, as fast as the peer reads it.
    async fn push_file(
        &mut self,
        request: &mut Request,
        exchange: &mut Exchange,
        file: &engine::file::File,
        length: u64,
    ) -> Result<(), AttemptError> {
        let mut offset = 0;
        while offset < length && !self.needs_no_more_body() {
            let wanted = (length - offset).min(BACKLOG_MAX as u64) as usize;
            let read = match file.read_at(offset, wanted).await {
                Ok(read) if !read.is_empty() => read,
                Ok(_) => return Err(AttemptError::Refused(500)), // the file was truncated
                Err(error) => {
                    let error = logs::Errno(&error);
                    logs::error!(request, Crit, "pread() failed {error} {SENDING}");
                    return Err(AttemptError::Refused(500));
                }
            };
            offset += read.len() as u64;
            self.peer.stream().push(Segment::Bytes(read));
            self.peer.stream().start_send();
            self.wait_for_peer(request, exchange).await?;
        }
        self.peer.asked = offset == length;
        Ok(())
    }

    /// Waits while too many bytes are queued for the peer, unless the peer has already responded or
    /// closed the connection.
    pub async fn wait_for_peer(
        &mut self,
        request: &mut Request,
        exchange: &mut Exchange,
    ) -> Result<(), AttemptError> {
        if self.peer.stream().backlog() <= BACKLOG_MAX {
            return Ok(());
        }
        // In a box, so that the future of a request that need not wait is not larger for it.
        Box::pin(self.wait_for_slow_peer(request, exchange)).await
    }

    async fn wait_for_slow_peer(
        &mut self,
        request: &mut Request,
        exchange: &mut Exchange,
    ) -> Result<(), AttemptError> {
        while self.peer.stream().backlog() > BACKLOG_MAX && !self.needs_no_more_body() {
            let stream = self.peer.stream();
            let taken = either(stream.drained(BACKLOG_MAX), stream.recv(None));
            let taken = if self.passing.tries.ignore_client_abort {
                taken.await
            } else {
                match either(taken, exchange.client_gone()).await {
                    Either::First(taken) => taken,
                    Either::Second(abort) => {
                        return Err(client_left(request, exchange, &abort, SENDING).into());
                    }
                }
            };
            match taken {
                Either::First(Err(error)) if error.kind() == io::ErrorKind::TimedOut => {
                    let failure = failed(request, &error, "send()", SENDING);
                    return Err(AttemptError::Failed(failure));
                }
                Either::First(_) => return Ok(()),
                Either::Second(early) => self.take_early(request, exchange, early)?,
            }
        }
        Ok(())
    }

    /// Whether the peer needs no more of the request: it has responded, or closed the connection.
    pub fn needs_no_more_body(&self) -> bool {
        self.has_answer || self.peer.early_end.is_some()
    }

    /// Reads the response head. `queued` is the result of queueing the request.
    pub async fn read_head(
        &mut self,
        request: &mut Request,
        exchange: &mut Exchange,
        queued: Result<(), AttemptError>,
    ) -> Result<(), AttemptError> {
        let sent = self.sent;
        note(request, |attempt, _| attempt.bytes_sent += sent);
        queued?;
        self.peer.stream().start_send();
        self.wait_for_peer(request, exchange).await?;
        while !self.has_answer {
            let received = receive(request, exchange, self.passing, self.peer).await?;
            self.take(request, exchange, received)?;
        }
        Ok(())
    }

    /// Handles bytes that the peer sends before it has the whole request. The end of the connection
    /// is noted here, and logged when the response is read.
    fn take_early(
        &mut self,
        request: &mut Request,
        exchange: &mut Exchange,
        early: io::Result<Buffer>,
    ) -> Result<(), AttemptError> {
        match early {
            Ok(received) if !received.is_empty() => self.take(request, exchange, received),
            end => {
                self.peer.early_end = Some(end.map(|_| ()));
                Ok(())
            }
        }
    }

    fn take(
        &mut self,
        request: &mut Request,
        exchange: &mut Exchange,
        received: Buffer,
    ) -> Result<(), AttemptError> {
        self.has_answer = self
            .reader
            .take(request, exchange, self.passing, received)?;
        Ok(())
    }
}

/// Handles a client that leaves while its body is being streamed, so that the request is
/// incomplete.
pub(super) fn handle_aborted_body(request: &mut Request, abort: Abort) -> Abort {
    let Abort::Closed(_) = &abort else {
        return abort;
    };
    if let Some((level, text)) =
        http::logging::body_fault::body_fault(&abort, request.client.h1().is_some())
    {
        logs::write(request, level, format_args!("{text} {SENDING}"));
    }
    note(request, |attempt, began| {
        attempt.response_time = began.elapsed()
    });
    request.response.status = 400;
    Abort::Silently
}
