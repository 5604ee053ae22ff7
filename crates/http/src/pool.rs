//! Requests are kept for reuse: a new one costs no allocation once a thread is warm.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use framework::generation::Local;

use crate::connection::Connection;
use crate::plan::Server;
use crate::request::Request;

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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use bytes::Bytes;
    use engine::net::Address;
    use framework::slot::{Kept, Slot};
    use proto::h1::BodyLength;
    use proto::method::Method;

    use super::*;
    use crate::asked::Asked;
    use crate::location;
    use crate::module::Trace;
    use crate::output::Stub;
    use crate::slots::{OfMain, OfPass, OfRequest};
    use crate::testing::{serve, site};
    use crate::variables::Cached;

    /// What a module keeps of a request.
    #[derive(Default)]
    struct Seen(Vec<u8>);

    impl Kept for Seen {}

    /// An upstream that was asked.
    struct Upstream;

    impl Asked for Upstream {
        fn show(&self, _: &mut dyn FnMut(&[u8])) {}

        fn end(&self) {}
    }

    static OF_PASS: Slot<Seen, OfPass> = Slot::new();
    static OF_REQUEST: Slot<Seen, OfRequest> = Slot::new();
    static OF_MAIN: Slot<Seen, OfMain> = Slot::new();

    /// Makes every member something that no new request has. A new member does not build before it is here.
    fn fill(request: &mut Request) {
        let location::Found::Plan(location) = location::find(request) else {
            panic!("there is a location");
        };
        let Request {
            local: _,
            http: _,
            connection: _, // of the same connection in this test
            server: _,
            plan,
            client,
            method,
            uri,
            args,
            args_written,
            uri_unchanged,
            escaped_uri,
            valid_location,
            uri_below_alias,
            pipelined,
            complete,
            keepalive,
            chunked,
            main_charset,
            internal,
            depth,
            keepalive_refused,
            head_only,
            doing,
            changes_left,
            error_page_taken,
            root_tested,
            error_status,
            response,
            captures,
            shared,
            in_memory,
            output_begun,
            stub,
            sending,
            started,
            started_wall,
            body,
            bytes_sent,
            body_bytes_sent,
            limit_rate,
            limit_rate_after,
            upstream,
            background,
            earlier_error_log,
            told_peer,
            pass,
            own,
            scratch,
            trail,
            prepared,
            server_undecided,
            repeatable,
            answer: _, // made by the shortcut alone
        } = request;
        *plan = location;
        assert!(!captures.is_empty(), "the location is a pattern");
        Rc::get_mut(client).unwrap().host.push(b'x');
        *method = Method::Put;
        uri.push(b'x');
        args.push(b'x');
        for flag in [
            args_written,
            escaped_uri,
            uri_below_alias,
            pipelined,
            complete,
            keepalive,
            chunked,
            internal,
            keepalive_refused,
            head_only,
            error_page_taken,
            root_tested,
            in_memory,
            output_begun,
            prepared,
            server_undecided,
        ] {
            *flag = true;
        }
        (*uri_unchanged, *valid_location) = (false, false);
        *main_charset = Bytes::from_static(b"utf-8");
        (*depth, *changes_left) = (1, 2);
        (*doing, *sending) = (" while doing", " while sending");
        (*error_status, response.status) = (404, 200);
        response.add("X-A", "b");
        shared.values.borrow_mut().push(Cached::Missing);
        shared.became_get.set(true);
        shared.ahead.set(1);
        shared.subrequests.set(1);
        shared.excess_told.set(true);
        shared.main.borrow_mut().enter(&OF_MAIN).0.push(1);
        let (text, content_type) = (Bytes::from_static(b"x"), Bytes::from_static(b"text/x"));
        *stub = Some(Stub { text, content_type });
        *started = Instant::now() + Duration::from_secs(100);
        *started_wall = Duration::from_secs(1);
        body.begin(BodyLength::Length(5), 1);
        (*bytes_sent, *body_bytes_sent) = (3, 4);
        (*limit_rate, *limit_rate_after) = (Some(5), Some(6));
        *upstream = Some(Rc::new(Upstream));
        *background = Some(Box::default());
        *earlier_error_log = Some(Arc::clone(&plan.error_log));
        *told_peer = Some(Box::new(Address::Unix("/x".into())));
        pass.enter(&OF_PASS).0.push(1);
        own.enter(&OF_REQUEST).0.push(1);
        let buffer = scratch.take_buffer();
        scratch.give_buffer(buffer);
        let (position, text) = (conf::Position::default(), String::new());
        *trail = Some(vec![Trace { position, text }]);
        *repeatable = Some(std::ptr::null());
    }

    /// All that there is in a request, as text.
    fn told(request: &Request) -> Vec<String> {
        let flags = [
            request.args_written,
            request.uri_unchanged,
            request.escaped_uri,
            request.valid_location,
            request.uri_below_alias,
            request.pipelined,
            request.complete,
            request.keepalive,
            request.chunked,
            request.internal,
            request.keepalive_refused,
            request.head_only,
            request.error_page_taken,
            request.root_tested,
            request.in_memory,
            request.output_begun,
            request.prepared,
            request.server_undecided,
        ];
        let places = [
            request.pass.is_empty(),
            request.own.is_empty(),
            request.shared.main.borrow().is_empty(),
            request.stub.is_none(),
            request.upstream.is_none(),
            request.background.is_none(),
            request.earlier_error_log.is_none(),
            request.told_peer.is_none(),
            request.trail.is_none(),
            request.repeatable.is_none(),
            request.answer.is_none(),
            Arc::ptr_eq(&request.plan, &request.server.plan),
        ];
        let shared = &request.shared;
        vec![
            format!("{flags:?} {places:?}"),
            format!("{:?} {:?}", request.method, request.main_charset),
            format!("{:?} {:?}", request.uri, request.args),
            format!("{} {}", request.doing, request.sending),
            format!("{} {}", request.depth, request.changes_left),
            format!("{:?} {:?}", request.error_status, request.response),
            format!(
                "{:?} {:?}",
                request.captures.is_empty(),
                request.client.host
            ),
            format!("{:?} {:?}", shared.values, shared.became_get),
            format!("{:?} {:?}", shared.ahead, shared.subrequests),
            format!("{:?}", shared.excess_told),
            format!("{:?} {:?}", request.started, request.started_wall),
            format!("{} {}", request.bytes_sent, request.body_bytes_sent),
            format!("{:?} {:?}", request.limit_rate, request.limit_rate_after),
            format!(
                "{} {}",
                request.body.is_announced(),
                request.body.judged_length()
            ),
        ]
    }

    #[test]
    fn a_kept_request_is_as_a_new_one() {
        let text = site("location ~ ^(/f)ill$ { }");
        serve(&text, "GET /fill HTTP/1.1", async |mut request| {
            let connection = Rc::clone(request.connection.shared().unwrap());
            let (local, server) = (Rc::clone(&request.local), Arc::clone(&request.server));
            let new = told(&Request::new(&local, &connection, &server));
            fill(&mut request);
            for (filled, new) in told(&request).iter().zip(&new) {
                assert_ne!(filled, new);
            }
            let misses = connection.worker.counts().pool_misses.read();
            give_back(Box::new(request));
            let again = take(&local, &connection, &server);
            assert_eq!(
                connection.worker.counts().pool_misses.read(),
                misses,
                "it was kept"
            );
            assert_eq!(told(&again), new);
        });
    }
}
