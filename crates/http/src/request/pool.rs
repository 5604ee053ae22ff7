//! The pool of requests: finished requests are kept and reused, so that a warm thread allocates no
//! requests.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use framework::generation::GenerationView;

use crate::config::plan::Server;
use crate::connection::Connection;
use crate::request::Request;

/// Maximum number of requests that a busy thread keeps for reuse: about as many as begin in two
/// iterations of the event loop.
const KEPT_MAX: usize = 1024;

/// Maximum number of requests that an idle thread keeps.
const KEPT_AT_REST: usize = 32;

thread_local! {
    // Boxes, since a request moves between futures as a pointer.
    #[expect(clippy::vec_box)]
    static KEPT: RefCell<Vec<Box<Request>>> = const { RefCell::new(Vec::new()) };
    /// Whether `rest` has been registered with the thread.
    static IS_KNOWN: Cell<bool> = const { Cell::new(false) };
}

/// Takes an empty request for this connection, assigned to `server`.
pub fn take(
    local: &Rc<GenerationView>,
    connection: &Rc<Connection>,
    server: &Arc<Server>,
) -> Box<Request> {
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

/// Takes the last kept request if the received bytes begin with its head, byte for byte, ready to
/// be answered again on this connection. So the head of a client that polls or pipelines one
/// request is not parsed again. Also returns the length of the head.
pub fn repeated(
    input: &[u8],
    local: &Rc<GenerationView>,
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

/// Keeps a finished request for reuse, unless its generation has been replaced.
pub fn give_back(mut request: Box<Request>) {
    let can_be_kept = request.release();
    if request.local.is_retired() || !can_be_kept {
        return;
    }
    let kept = KEPT.with_borrow_mut(|kept| {
        if kept.len() < KEPT_MAX {
            kept.push(request);
        }
        kept.len()
    });
    if kept > KEPT_AT_REST && !IS_KNOWN.replace(true) {
        engine::on_idle(rest);
    }
}

/// Drops the surplus requests after a busy time. Their destructors may run any code, so they are
/// dropped while the pool is not borrowed.
fn rest() {
    let surplus = KEPT.with_borrow_mut(|kept| kept.split_off(kept.len().min(KEPT_AT_REST)));
    drop(surplus);
}

/// Drops every kept request, since kept requests keep their generation alive.
pub fn clear() {
    KEPT.with_borrow_mut(Vec::clear);
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::logging::zone_meter::RequestUnderWay;
    use bytes::Bytes;
    use engine::net::Address;
    use framework::slot::{Slot, SlotValue};
    use proto::h1::BodyLength;
    use proto::method::Method;

    use super::*;
    use crate::config::location;
    use crate::module::Trace;
    use crate::request::shared::MainRequestState;
    use crate::request::state::Stub;
    use crate::request::state::{
        Activity, Arrival, Keepalive, Nesting, Pacing, Repeatable, ResponseProgress, RoutingState,
        UriState,
    };
    use crate::request::upstream_report::UpstreamReport;
    use crate::response::prebuilt::LastResponse;
    use crate::response::{BodyIdentity, Field, Response};
    use crate::slots::{MainRequestLifetime, PassLifetime, RequestLifetime};
    use crate::testing::{serve, site};
    use variables::Cached;

    /// A module's state in a request.
    #[derive(Default)]
    struct Seen(Vec<u8>);

    impl SlotValue for Seen {}

    /// An upstream that a handler has asked.
    struct Upstream;

    impl UpstreamReport for Upstream {
        fn show(&self, _: &mut dyn FnMut(&[u8])) {}

        fn end(&self) {}
    }

    static OF_PASS: Slot<Seen, PassLifetime> = Slot::new();
    static OF_REQUEST: Slot<Seen, RequestLifetime> = Slot::new();
    static OF_MAIN: Slot<Seen, MainRequestLifetime> = Slot::new();

    /// Sets every field to a value that no new request has. A new field, also of a part, does not
    /// compile before it is set here.
    fn fill(request: &mut Request) {
        let http = Rc::clone(&request.http);
        let location::LocationMatch::Plan(location) = location::find(request, &http) else {
            panic!("there is a location");
        };
        let Request {
            local: _,
            http: _,
            connection: _, // of the same connection in this test
            server: _,
            plan,
            method,
            client,
            uri,
            args,
            response,
            captures,
            shared,
            pass,
            own,
            scratch,
            uri_state,
            routing,
            nesting,
            arrival,
            keepalive,
            activity,
            counted,
            sent,
            pacing,
            body,
            upstream,
            background,
            earlier_error_log,
            trail,
            repeatable,
        } = request;
        let text = || Bytes::from_static(b"x");
        let field = || Field {
            name: text(),
            value: text(),
        };
        *counted = Some(RequestUnderWay::uncounted());
        *plan = Arc::clone(location);
        *method = Method::Put;
        Rc::get_mut(client).unwrap().host.push(b'x');
        uri.push(b'x');
        args.push(b'x');
        *response = Response {
            status: 200,
            status_text: Some(text()),
            server: Some(text()),
            date: Some(text()),
            content_type: text(),
            charset: text(),
            content_type_parameters: text(),
            content_length: Some(1),
            last_modified: Some(1),
            ignores_last_modified: true,
            location: Some(text()),
            location_field: Some(text()),
            vary_accept_encoding: true,
            allow_ranges: true,
            single_range: true,
            fields: vec![field()],
            expect_trailers: true,
            may_have_trailers: true,
            trailers: vec![field()],
            header_only: true,
            conditions_evaluated: true,
            coding: Some(text()),
            accept_ranges: Some(text()),
            content_range: Some(text()),
            override_charset: text(),
            body_identity: Some(BodyIdentity::of_entry(1, [1; 16], 1)),
        };
        assert!(!captures.is_empty(), "the location is a pattern");
        *Rc::get_mut(shared).unwrap() = MainRequestState {
            values: RefCell::new(vec![Cached::Missing]),
            is_now_get: Cell::new(true),
            ahead: Cell::new(1),
            subrequests: Cell::new(1),
            is_excess_logged: Cell::new(true),
            main: RefCell::default(),
        };
        shared.main.borrow_mut().enter(&OF_MAIN).0.push(1);
        pass.enter(&OF_PASS).0.push(1);
        own.enter(&OF_REQUEST).0.push(1);
        let mut buffer = scratch.take_buffer();
        buffer.push(b'x');
        scratch.give_buffer(buffer);
        *uri_state = UriState {
            args_written: true,
            unchanged: false,
            escaped: true,
            valid_location: false,
            below_alias: true,
        };
        *routing = RoutingState {
            prepared: true,
            server_undecided: true,
            internal: true,
            uri_changes_left: 2,
            error_page_taken: true,
            error_status: 404,
            found: Some(3),
            recalled: true,
            root_tested: true,
        };
        *nesting = Nesting {
            depth: 1,
            head_only: true,
            in_memory: true,
            stub: Some(Stub {
                text: text(),
                content_type: text(),
            }),
            main_charset: text(),
        };
        fill_arrival(arrival);
        *keepalive = Keepalive {
            on: true,
            refused: true,
        };
        *activity = Activity {
            doing: " while doing",
            sending: " while sending",
        };
        fill_sent(sent);
        *pacing = Pacing {
            rate: Some(5),
            rate_after: Some(6),
        };
        body.begin(BodyLength::Length(5), 1);
        *upstream = Some(Rc::new(Upstream));
        *background = Some(Box::default());
        *earlier_error_log = Some(Arc::clone(&plan.error_log));
        let (position, line) = (conf::Position::default(), String::new());
        *trail = Some(vec![Trace {
            position,
            text: line,
        }]);
        *repeatable = Repeatable {
            servers: Some(std::ptr::null()),
            last: Some(LastResponse::default()),
        };
    }

    fn fill_arrival(arrival: &mut Arrival) {
        *arrival = Arrival {
            started: Instant::now() + Duration::from_secs(100),
            started_wall: Duration::from_secs(1),
            number: 7,
            pipelined: true,
            realip_address: Some(Box::new(Address::Unix("/x".into()))),
        };
    }

    fn fill_sent(sent: &mut ResponseProgress) {
        *sent = ResponseProgress {
            begun: true,
            chunked: true,
            complete: true,
            bytes: 3,
            body_bytes: 4,
        };
    }

    /// Every field of a request as text, one a line. Nested values are printed whole.
    fn told(request: &mut Request) -> Vec<String> {
        let Request {
            local: _,
            http: _,
            connection: _, // of the same connection in this test
            server,
            plan,
            method,
            client,
            uri,
            args,
            response,
            captures,
            shared,
            pass,
            own,
            scratch,
            uri_state,
            routing,
            nesting,
            arrival,
            keepalive,
            activity,
            counted,
            sent,
            pacing,
            body,
            upstream,
            background,
            earlier_error_log,
            trail,
            repeatable,
        } = request;
        let buffer = scratch.take_buffer();
        assert!(buffer.is_empty(), "what is lent again is empty");
        let MainRequestState {
            values,
            is_now_get,
            ahead,
            subrequests,
            is_excess_logged,
            main,
        } = &**shared;
        vec![
            format!("{}", Arc::ptr_eq(plan, &server.plan)),
            format!("{method:?}"),
            format!(
                "{:?} {:?} {:?}",
                client.host,
                client.bytes,
                client.request_line()
            ),
            format!("{uri:?}"),
            format!("{args:?}"),
            format!("{response:?}"),
            format!("{:?} {:?}", captures.is_empty(), captures.group(1)),
            format!("{values:?} {is_now_get:?} {ahead:?} {subrequests:?} {is_excess_logged:?}"),
            format!("{}", main.borrow().is_empty()),
            format!("{}", pass.is_empty()),
            format!("{}", own.is_empty()),
            format!("{uri_state:?}"),
            format!("{routing:?}"),
            format!("{nesting:?}"),
            format!("{arrival:?}"),
            format!("{keepalive:?}"),
            format!("{activity:?}"),
            format!("{}", counted.is_none()),
            format!("{sent:?}"),
            format!("{pacing:?}"),
            format!("{} {}", body.is_announced(), body.judged_length()),
            format!("{}", upstream.is_none()),
            format!("{}", background.is_none()),
            format!("{}", earlier_error_log.is_none()),
            format!("{}", trail.is_none()),
            format!("{}", repeatable.servers.is_none()),
            format!("{}", repeatable.last.is_none()),
        ]
    }

    #[test]
    fn a_kept_request_is_as_a_new_one() {
        let text = site("location ~ ^(/f)ill$ { }");
        serve(&text, "GET /fill HTTP/1.1", async |mut request| {
            let connection = Rc::clone(request.connection.shared().unwrap());
            let (local, server) = (Rc::clone(&request.local), Arc::clone(&request.server));
            let new = told(&mut Request::new(&local, &connection, &server));
            fill(&mut request);
            for (filled, new) in told(&mut request).iter().zip(&new) {
                assert_ne!(filled, new);
            }
            let misses = connection.worker.counts().pool_misses.read();
            give_back(Box::new(request));
            let mut again = take(&local, &connection, &server);
            assert_eq!(
                connection.worker.counts().pool_misses.read(),
                misses,
                "it was kept"
            );
            assert_eq!(told(&mut again), new);
        });
    }

    #[test]
    fn a_request_with_much_memory_is_not_kept() {
        serve(&site(""), "GET / HTTP/1.1", async |mut request| {
            let connection = Rc::clone(request.connection.shared().unwrap());
            let (local, server) = (Rc::clone(&request.local), Arc::clone(&request.server));
            let misses = || connection.worker.counts().pool_misses.read();
            let before = misses();
            request.uri = Vec::with_capacity(64 * 1024);
            give_back(Box::new(request));
            let another = take(&local, &connection, &server);
            assert_eq!(misses(), before + 1);
            give_back(another);
            drop(take(&local, &connection, &server));
            assert_eq!(misses(), before + 1);
        });
    }

    #[test]
    fn what_a_head_does_not_say_is_not_repeated() {
        serve(&site(""), "GET / HTTP/1.1", async |mut request| {
            let connection = Rc::clone(request.connection.shared().unwrap());
            let begins = Arrival {
                number: request.arrival.number + 1,
                ..Arrival::default()
            };
            let new = format!("{begins:?} {:?}", ResponseProgress::default());
            fill_arrival(&mut request.arrival);
            fill_sent(&mut request.sent);
            request.repeat(&connection);
            assert_eq!(format!("{:?} {:?}", request.arrival, request.sent), new);
        });
    }
}
