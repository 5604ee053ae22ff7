//! Requests are kept for reuse: a new one costs no allocation once a thread is warm.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use framework::generation::Local;

use crate::http::connection::Connection;
use crate::http::plan::Server;
use crate::http::request::Request;

/// Requests that a thread keeps ready.
const KEPT_MAX: usize = 64;

thread_local! {
    // The boxes are what is kept: a request moves between futures as a pointer.
    #[expect(clippy::vec_box)]
    static KEPT: RefCell<Vec<Box<Request>>> = const { RefCell::new(Vec::new()) };
}

/// A request on this connection, empty, under the address's default server.
pub fn take(local: &Rc<Local>, connection: &Rc<Connection>, server: &Arc<Server>) -> Box<Request> {
    match KEPT.with_borrow_mut(Vec::pop) {
        Some(mut request) => {
            request.reset(local, connection, server);
            request
        }
        None => {
            connection.worker.counts().pool_misses.add(1);
            Box::new(Request::new(local, connection, server))
        }
    }
}

/// A kept request whose head the received bytes repeat byte for byte, ready to be answered again
/// on this connection: a client that polls or pipelines the same request is not parsed anew. The
/// length of its head comes with it.
pub fn repeated(
    input: &[u8],
    local: &Rc<Local>,
    connection: &Rc<Connection>,
) -> Option<(Box<Request>, usize)> {
    KEPT.with_borrow_mut(|kept| {
        if !kept.last()?.is_repeated_by(input, local, connection) {
            return None;
        }
        let mut request = kept.pop()?;
        request.repeat(connection);
        let length = request.client.bytes.len();
        Some((request, length))
    })
}

/// Keeps a request for the next one, unless its generation has been replaced.
pub fn give_back(mut request: Box<Request>) {
    let can_be_kept = request.release();
    if request.local.is_retired() || !can_be_kept {
        return;
    }
    KEPT.with_borrow_mut(|kept| {
        if kept.len() < KEPT_MAX {
            kept.push(request);
        }
    });
}

/// Lets go of every kept request: they hold on to the generation that served them.
pub fn clear() {
    KEPT.with_borrow_mut(Vec::clear);
}
