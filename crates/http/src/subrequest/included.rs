//! Included subrequests, which run ahead of the place that they stand in.
//!
//! Every include of a piece is started at once; each puts its response into a pipe, from which it
//! is taken when the text before it has been sent. A pipe holds `subrequest_output_buffer_size` and
//! one piece, then its subrequest waits: what a page includes is never in memory as a whole.

use std::rc::Rc;

use engine::select::{Either, either};

use crate::exchange::Exchange;
use crate::exchange::abort::Abort;
use crate::exchange::pipe::{Pipe, Writer};
use crate::logging::request_log;
use crate::request::Request;
use crate::request::shared::MainRequestState;
use crate::response::piece::Piece;
use crate::subrequest::running::{AccessLogTiming, Completed, RunningSubrequest};

/// Subrequests of one main request that may run at once before their turn. A page that includes
/// itself twice would have more of them than anybody has memory for.
const AHEAD_MAX: usize = 64;

/// A subrequest that has been started, and the end of the pipe that its response comes out of.
pub struct Ahead {
    running: RunningSubrequest,
    pipe: Rc<Pipe>,
    shared: Rc<MainRequestState>,
}

impl Ahead {
    /// Whether one more of a main request's subrequests may run before its turn.
    pub fn has_room(request: &Request) -> bool {
        request.shared.ahead.get() < AHEAD_MAX
    }

    /// Starts a subrequest, which begins when the caller waits next. One whose response is wanted
    /// `in_memory` does not wait for anybody to take it, and fails if it is too big.
    pub fn start(request: &Request, child: Box<Request>) -> Ahead {
        let shared = Rc::clone(&request.shared);
        shared.ahead.set(shared.ahead.get() + 1);
        let pipe = Rc::new(Pipe::new(child.nesting.in_memory));
        let writer = Writer {
            pipe: Rc::clone(&pipe),
        };
        Ahead {
            running: RunningSubrequest::start(
                child,
                Exchange::ahead(writer),
                AccessLogTiming::InItsTurn,
            ),
            pipe,
            shared,
        }
    }

    /// The next piece of the response, without `Last`; `None` at its end. A client that leaves
    /// meanwhile is made known to the subrequest.
    pub async fn next(&self, exchange: &mut Exchange) -> Option<Piece> {
        if !self.pipe.client_gone.get() {
            match either(self.pipe.next(), exchange.client_gone()).await {
                Either::First(piece) => return piece,
                Either::Second(_) => self.pipe.tell_client_gone(),
            }
        }
        self.pipe.next().await
    }

    /// Waits for the end of the subrequest, and writes its line of the access log.
    pub async fn ended(&self) -> Result<Completed, Abort> {
        let mut ended = self.running.ended().await?;
        if let Some(mut child) = ended.unlogged.take() {
            request_log::log(&mut child);
        }
        Ok(ended)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        let ahead = &self.shared.ahead;
        ahead.set(ahead.get().saturating_sub(1));
    }
}
