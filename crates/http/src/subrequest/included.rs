//! Included subrequests, which run before their position in the response is reached.
//!
//! All includes of a piece are started at once. Each subrequest writes its response to a pipe,
//! which is read when the text before the include has been sent. A pipe holds
//! `subrequest_output_buffer_size` and one piece. The subrequest then waits, so included responses
//! are never in memory as a whole.

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

/// Maximum number of subrequests of one main request that run before their turn. A page that
/// includes itself twice would otherwise start more subrequests than fit into memory.
const AHEAD_MAX: usize = 64;

/// A started subrequest, and the reading end of its pipe.
pub struct IncludedSubrequest {
    running: RunningSubrequest,
    pipe: Rc<Pipe>,
    shared: Rc<MainRequestState>,
}

impl IncludedSubrequest {
    /// Whether another subrequest of this main request may run before its turn.
    pub fn has_room(request: &Request) -> bool {
        request.shared.ahead.get() < AHEAD_MAX
    }

    /// Starts a subrequest, which begins to run when the caller waits next. If the child's
    /// `in_memory` is set, the whole response is collected: the subrequest does not wait for the
    /// reader, and fails if the response is too large.
    pub fn start(request: &Request, child: Box<Request>) -> IncludedSubrequest {
        let shared = Rc::clone(&request.shared);
        shared.ahead.set(shared.ahead.get() + 1);
        let pipe = Rc::new(Pipe::new(child.nesting.in_memory));
        let writer = Writer {
            pipe: Rc::clone(&pipe),
        };
        IncludedSubrequest {
            running: RunningSubrequest::start(
                child,
                Exchange::ahead(writer),
                AccessLogTiming::InItsTurn,
            ),
            pipe,
            shared,
        }
    }

    /// The next piece of the response, without `Last`; `None` at the end. If the client leaves
    /// during the wait, the subrequest is notified.
    pub async fn next(&self, exchange: &mut Exchange) -> Option<Piece> {
        if !self.pipe.client_gone.get() {
            match either(self.pipe.next(), exchange.client_gone()).await {
                Either::First(piece) => return piece,
                Either::Second(_) => self.pipe.tell_client_gone(),
            }
        }
        self.pipe.next().await
    }

    /// Waits for the subrequest's end, and writes its access log line.
    pub async fn ended(&self) -> Result<Completed, Abort> {
        let mut ended = self.running.ended().await?;
        if let Some(mut child) = ended.unlogged.take() {
            request_log::log(&mut child);
        }
        Ok(ended)
    }
}

impl Drop for IncludedSubrequest {
    fn drop(&mut self) {
        let ahead = &self.shared.ahead;
        ahead.set(ahead.get().saturating_sub(1));
    }
}
