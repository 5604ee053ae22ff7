//! The response body of a gRPC call, which always ends with a status.
//!
//! If a response fails after its head, nginx resets the client's stream, and clients report an
//! internal error. Tidegate ends the response with trailers that state the cause instead: the
//! server is gone or has reset the stream, or the deadline has passed.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use engine::Sleep;
use http::exchange::abort::Abort;
use http::response::Field;
use http::response::source::{BodyError, DeferredLog, Source, SourceEvent};
use logs::Level;

use super::errors::{self, SharedStatusCode, Status};
use proxying::READING_BODY;
use proxying::http2::dialogue::BodyFault;

/// The response body of a call: the server's body, and the deadline of the call.
pub(super) struct CallBody {
    /// The body that the server sends.
    source: Box<dyn Source>,
    /// Why the server's body has failed, once it has.
    outcome: BodyFault,
    /// Whether the client sees trailers.
    has_trailers: bool,
    /// The timer of the call's deadline; `None` without a deadline, and once the timer has fired.
    deadline: Option<Sleep>,
    /// The status with which the body was aborted.
    status: Option<Status>,
    /// The gRPC status of the aborted call, for the call counters.
    ended: SharedStatusCode,
    /// The deadline has passed, and this has not been logged yet.
    is_deadline_unlogged: bool,
}

impl CallBody {
    pub(super) fn new(
        source: Box<dyn Source>,
        outcome: BodyFault,
        has_trailers: bool,
        deadline: Option<Instant>,
        ended: SharedStatusCode,
    ) -> CallBody {
        CallBody {
            source,
            outcome,
            has_trailers,
            deadline: deadline.map(engine::sleep_until),
            status: None,
            ended,
            is_deadline_unlogged: false,
        }
    }

    /// Aborts the body if the deadline has passed. Returns whether the body has been aborted, now
    /// or before.
    fn look(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(timer) = &mut self.deadline
            && Pin::new(timer).poll(context).is_ready()
        {
            self.deadline = None;
            self.break_off(errors::LATE);
            self.is_deadline_unlogged = true;
        }
        self.status.is_some()
    }

    /// Aborts the body with this status.
    fn break_off(&mut self, status: Status) {
        self.status = Some(status);
        self.ended.set(Some(status.0));
    }

    /// The last event of an aborted body.
    fn end(&self, broken: BodyError) -> SourceEvent {
        if self.has_trailers {
            SourceEvent::End
        } else {
            SourceEvent::Broken(broken)
        }
    }
}

impl std::fmt::Debug for CallBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CallBody")
    }
}

impl Source for CallBody {
    fn next(&mut self) -> SourceEvent {
        if std::mem::take(&mut self.is_deadline_unlogged) {
            let text = format!("deadline of the client is over {READING_BODY}");
            return SourceEvent::Told(DeferredLog::new(Level::Info, text));
        }
        if self.status.is_some() {
            return self.end(BodyError::Framing);
        }
        match self.source.next() {
            SourceEvent::Broken(broken) => {
                self.break_off(errors::of_broken(&self.outcome, broken));
                self.end(broken)
            }
            given => given,
        }
    }

    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.source.poll_more(context) {
            Poll::Pending if self.look(context) => Poll::Ready(()),
            polled => polled,
        }
    }

    /// A client that does not read does not get the final trailers either.
    fn poll_prefetch(&mut self, context: &mut Context<'_>) -> Poll<Result<DeferredLog, BodyError>> {
        match self.source.poll_prefetch(context) {
            Poll::Pending if self.look(context) => Poll::Ready(Err(BodyError::Framing)),
            polled => polled,
        }
    }

    fn queued_max(&self) -> Option<usize> {
        self.source.queued_max()
    }

    fn is_whole(&self) -> bool {
        self.source.is_whole()
    }

    fn outlives_client(&self) -> bool {
        self.source.outlives_client()
    }

    fn trailers(&mut self) -> Vec<Field> {
        let Some((status, message)) = self.status else {
            return self.source.trailers();
        };
        errors::fields(status, Bytes::from_static(message)).into()
    }

    fn give_up(&mut self, left: &Abort) -> DeferredLog {
        self.source.give_up(left)
    }

    fn beginning(&self) -> &'static str {
        self.source.beginning()
    }
}
