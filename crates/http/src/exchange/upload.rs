//! A request's body that is read while the response is sent, over any protocol.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::config::core::Core;
use crate::connection::Connection;
use crate::exchange::abort::Abort;
use crate::h1::intake::{BodyPart, Intake};
use crate::http2::upload::H2Upload;
use crate::request::body::RequestBody;

/// The unread part of a request's body, for a reader that runs concurrently with the response.
/// While an upload exists, only its owner may read the body. If the exchange takes the body back
/// nevertheless, the upload breaks off.
pub enum Upload {
    /// The body of an HTTP/1 request.
    H1(H1Upload),
    /// The body of an HTTP/2 request.
    H2(H2Upload),
}

impl Upload {
    /// Polls for the next bytes; `None` at the end. Cancel-safe: dropping the wait loses no bytes.
    ///
    /// # Errors
    /// As `Exchange::read_body`.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Abort>> {
        match self {
            Upload::H1(upload) => upload.poll_next(context),
            Upload::H2(upload) => upload.poll_next(context),
        }
    }

    /// Waits for the next bytes; `None` at the end.
    ///
    /// # Errors
    /// As `Exchange::read_body`.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Abort> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Whether the whole body has been read.
    pub fn is_read(&self) -> bool {
        match self {
            Upload::H1(upload) => upload.is_read(),
            Upload::H2(upload) => upload.is_read(),
        }
    }
}

/// The received bytes and the counts of an HTTP/1 body, shared between the exchange and an upload.
pub(crate) struct SharedIntake {
    connection: Rc<Connection>,
    intake: RefCell<Intake>,
    body: RefCell<RequestBody>,
    /// Whether the upload has ended.
    is_over: Cell<bool>,
    /// The waker of the exchange, which waits for the upload's end.
    waker: Cell<Option<Waker>>,
}

impl SharedIntake {
    pub(crate) fn new(
        connection: &Rc<Connection>,
        intake: Intake,
        body: RequestBody,
    ) -> SharedIntake {
        SharedIntake {
            connection: Rc::clone(connection),
            intake: RefCell::new(intake),
            body: RefCell::new(body),
            is_over: Cell::new(false),
            waker: Cell::new(None),
        }
    }

    /// Ends the upload, and returns everything to the exchange.
    pub(crate) fn give_back(&self) -> (Intake, RequestBody) {
        self.end();
        (self.intake.take(), self.body.take())
    }

    /// Whether the upload has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// Waits until the upload has ended.
    pub(crate) async fn over(&self) {
        poll_fn(|context| {
            if self.is_over.get() {
                Poll::Ready(())
            } else {
                self.waker.set(Some(context.waker().clone()));
                Poll::Pending
            }
        })
        .await;
    }

    /// Ends the upload, and wakes the exchange.
    fn end(&self) {
        self.is_over.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// See [`Upload`].
pub struct H1Upload {
    shared_intake: Rc<SharedIntake>,
    /// The value of `client_body_timeout`.
    timeout: Duration,
    /// `client_max_body_size` in bytes; 0 is no limit.
    size_max: u64,
    /// The deadline of the current wait.
    deadline: Option<Instant>,
}

impl H1Upload {
    pub(crate) fn new(shared_intake: Rc<SharedIntake>, core: &Core) -> H1Upload {
        H1Upload {
            shared_intake,
            timeout: core.client_body_timeout,
            size_max: core.client_max_body_size,
            deadline: None,
        }
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Abort>> {
        let shared_intake = &*self.shared_intake;
        if shared_intake.is_over.get() {
            let taken_back = io::ErrorKind::ConnectionAborted.into();
            return Poll::Ready(Err(Abort::Closed(taken_back)));
        }
        let (mut intake, mut body) = (
            shared_intake.intake.borrow_mut(),
            shared_intake.body.borrow_mut(),
        );
        loop {
            match intake.next(&mut body, self.size_max)? {
                BodyPart::Bytes(bytes) => {
                    body.note_taken();
                    return Poll::Ready(Ok(Some(bytes)));
                }
                BodyPart::End => return Poll::Ready(Ok(None)),
                BodyPart::Nothing => {}
            }
            let timeout = self.timeout;
            let deadline = *self.deadline.get_or_insert_with(|| engine::now() + timeout);
            let stream = &shared_intake.connection.stream;
            let received = ready!(stream.poll_recv(Some(deadline), context));
            self.deadline = None;
            intake.receive(&body, received)?;
        }
    }

    fn is_read(&self) -> bool {
        !self.shared_intake.is_over.get() && self.shared_intake.intake.borrow().is_read()
    }
}

impl Drop for H1Upload {
    fn drop(&mut self) {
        self.shared_intake.end();
    }
}
