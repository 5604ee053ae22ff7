//! Handlers and filters in the pieces that they give, on the exchange in memory. What a client gets
//! of them on the wire is for `tests/simulation` and the comparison with nginx.

use std::cell::Cell;
use std::io::Read;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::Buffer;
use engine::net::{Address, Listener};
use engine::select::{Either, both, either};
use engine::sim::{self, Faults};
use framework::slot::{Slot, SlotValue};
use http::config::location;
use http::exchange::Exchange;
use http::exchange::abort::Abort;
use http::exchange::memory::{Client, Reason, Recorder};
use http::h1::exchange::H1;
use http::module::MaybeFuture;
use http::request::Step;
use http::request::phases::handle;
use http::response::piece::Piece;
use http::slots::{PassLifetime, RequestLifetime};
use http::testing::{Folder, another, with_request};
use proto::h1::BodyLength;

use super::serve;

/// What a server of these lines gives for a request line and fields.
fn answer(lines: &str, head: &str) -> Recorder {
    let folder = Folder::with_files();
    let text = format!(
        "events {{ }} error_log /dev/null; http {{ access_log off; types {{ text/plain txt; text/html html; }}
         charset_map iso-8859-1 utf-8 {{ E9 C3A9; }} proxy_temp_path {0}; client_body_temp_path {0};
         server {{ listen 10.0.0.1:80; root {0}; {lines} }} }}",
        folder.0.display()
    );
    let whole = serve(&text, head, async |mut request| {
        start_upstream();
        let client = Client::greedy();
        let (mut exchange, stream) = client.begin(u64::MAX / 2);
        handle(&mut request, &mut exchange).await.unwrap();
        client.received(stream)
    });
    // To a client that takes it a byte at a time, beside a second stream, the same comes.
    serve(&text, head, async |mut request| {
        start_upstream();
        let client = Client::new(0);
        let (mut exchange, stream) = client.begin(0);
        let mut other_request = another(&request, head);
        let (mut other_exchange, other) = client.begin(0);
        let answered = both(
            handle(&mut request, &mut exchange),
            handle(&mut other_request, &mut other_exchange),
        );
        let taking = async {
            loop {
                client.allow(stream, 1);
                client.allow(other, 1);
                engine::sleep(Duration::from_millis(1)).await;
            }
        };
        match either(answered, taking).await {
            Either::First((first, second)) => first.and(second).unwrap(),
            Either::Second(()) => {}
        }
        client.allow(stream, 1 << 20);
        client.allow(other, 1 << 20);
        for number in [stream, other] {
            let received = client.received(number);
            assert_eq!(received.status, whole.status);
            assert_eq!(comparable(&received), comparable(&whole));
            assert_eq!(received.file_bytes, whole.file_bytes);
            assert_eq!(received.ended, whole.ended);
        }
    });
    whole
}

/// The body without what may differ from one response to the next: what stands between its parts,
/// and where what is compressed was flushed.
fn comparable(received: &Recorder) -> Vec<u8> {
    if field(received, "Content-Encoding") == Some("gzip") {
        return gunzipped(&received.body);
    }
    let content_type = field(received, "Content-Type").unwrap_or_default();
    match content_type.split_once("boundary=") {
        Some((_, boundary)) => {
            let text = String::from_utf8_lossy(&received.body);
            text.replace(boundary, "").into_bytes()
        }
        None => received.body.clone(),
    }
}

fn gunzipped(body: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(body)
        .read_to_end(&mut text)
        .unwrap();
    text
}

/// Starts a server that others pass requests on to: it answers in two parts, a second apart.
fn start_upstream() {
    let (socket, _) = sim::listen(Address::Inet("10.0.0.9:80".parse().unwrap())).unwrap();
    engine::spawn(async move {
        let listener = Listener::new(socket).unwrap();
        while let Ok(stream) = listener.accept().await {
            engine::spawn(async move {
                // It comes in pieces; what is left of it would end the connection with a reset.
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.extend_from_slice(&stream.recv(None).await.unwrap());
                }
                stream.push(Bytes::from_static(
                    b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\nfirst ",
                ));
                stream.start_send();
                engine::sleep(Duration::from_secs(1)).await;
                stream.push(Bytes::from_static(b"second"));
                stream.finish();
            });
        }
    });
}

fn field<'a>(recorder: &'a Recorder, name: &str) -> Option<&'a str> {
    let mut fields = recorder.fields.iter();
    let (_, value) = fields.find(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()))?;
    Some(std::str::from_utf8(value).unwrap())
}

#[test]
fn a_file_is_given_as_a_file() {
    let answer = answer("", "GET /file.txt HTTP/1.1");
    assert_eq!(
        (answer.status, answer.file_bytes, &*answer.body),
        (200, 10, &b""[..])
    );
    assert_eq!(field(&answer, "Content-Type"), Some("text/plain"));
    assert_eq!(field(&answer, "Content-Length"), Some("10"));
    assert!(answer.ended);
}

#[test]
fn a_head_or_a_304_has_no_pieces() {
    let head = answer("", "HEAD /file.txt HTTP/1.1");
    assert_eq!((head.status, head.file_bytes, head.ended), (200, 0, false));
    assert_eq!(field(&head, "Content-Length"), Some("10"));
    let same = answer("", "GET /file.txt HTTP/1.1\r\nIf-None-Match: *");
    assert_eq!((same.status, same.file_bytes, same.ended), (304, 0, false));
    assert_eq!(field(&same, "Content-Length"), None);
}

#[test]
fn a_range_is_cut_out_of_the_file_unread() {
    let answer = answer("", "GET /file.txt HTTP/1.1\r\nRange: bytes=2-4");
    assert_eq!(
        (answer.status, answer.file_bytes, &*answer.body),
        (206, 3, &b""[..])
    );
    assert_eq!(field(&answer, "Content-Range"), Some("bytes 2-4/10"));
}

#[test]
fn parts_of_a_multipart_stay_files_among_bytes() {
    let answer = answer("", "GET /file.txt HTTP/1.1\r\nRange: bytes=0-1,5-9");
    assert_eq!((answer.status, answer.file_bytes), (206, 7));
    let text = String::from_utf8(answer.body.clone()).unwrap();
    assert!(text.contains("Content-Range: bytes 0-1/10"), "{text}");
    let length = (text.len() + 7).to_string();
    assert_eq!(field(&answer, "Content-Length"), Some(&*length));
}

#[test]
fn return_answers_with_its_text() {
    let answer = answer(
        "location / { return 200 $request_method; }",
        "DELETE / HTTP/1.1",
    );
    assert_eq!((answer.status, &*answer.body), (200, &b"DELETE"[..]));
    assert!(answer.ended);
}

#[test]
fn error_page_answers_with_a_file_and_its_own_status() {
    let lines = "error_page 404 =410 /file.txt;";
    let answer = answer(lines, "GET /none HTTP/1.1");
    assert_eq!((answer.status, answer.file_bytes), (410, 10));
}

#[test]
fn addition_puts_a_file_and_a_text_around_a_file() {
    let lines = "add_before_body /file.txt; add_after_body /after;
                 location = /after { return 200 after; }";
    let answer = answer(lines, "GET /page.html HTTP/1.1");
    assert_eq!(answer.file_bytes, 10 + 4);
    assert_eq!(&*answer.body, b"after");
    assert_eq!(field(&answer, "Content-Length"), None);
    assert!(answer.ended);
}

#[test]
fn auth_request_decides_and_sends_nothing_of_its_own() {
    let lines = |status: u16| {
        format!(
            "location / {{ auth_request /auth; }}
             location = /auth {{ return {status} refused; }}"
        )
    };
    let granted = answer(&lines(204), "GET /file.txt HTTP/1.1");
    assert_eq!(
        (granted.status, granted.file_bytes, &*granted.body),
        (200, 10, &b""[..])
    );
    let refused = answer(&lines(403), "GET /file.txt HTTP/1.1");
    assert_eq!((refused.status, refused.file_bytes), (403, 0));
    assert!(!refused.body.starts_with(b"refused"));
}

#[test]
fn charset_reads_the_file_and_recodes_it() {
    let lines = "charset utf-8; source_charset iso-8859-1;";
    let answer = answer(lines, "GET /page.html HTTP/1.1");
    assert_eq!(
        (answer.file_bytes, &*answer.body),
        (0, "caf\u{e9}".as_bytes())
    );
    assert_eq!(
        field(&answer, "Content-Type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(field(&answer, "Content-Length"), None);
}

#[test]
fn gzip_passes_on_what_an_upstream_has_sent_so_far() {
    let lines = "gzip on; gzip_min_length 0; gzip_http_version 1.0;
                 location / { proxy_pass http://10.0.0.9; proxy_buffering off; }";
    let head = "GET / HTTP/1.1\r\nAccept-Encoding: gzip";
    let answer = answer(lines, head);
    assert_eq!(field(&answer, "Content-Encoding"), Some("gzip"));
    // A flush ends with an empty stored block (RFC 1951, section 3.2.4).
    let flushed = answer
        .body
        .windows(4)
        .any(|part| part == [0, 0, 0xff, 0xff]);
    assert!(flushed && answer.flushes >= 1, "{}", answer.flushes);
    assert_eq!(gunzipped(&answer.body), b"first second");
}

/// A configuration with one server of these lines.
fn site(lines: &str) -> String {
    format!(
        "events {{ }} error_log /dev/null; http {{ access_log off; proxy_temp_path /tmp; \
         client_body_temp_path /tmp; server {{ listen 10.0.0.1:80; {lines} }} }}"
    )
}

#[test]
fn a_stream_without_credit_holds_no_other_up() {
    let long = "x".repeat(4000);
    let text = site(&format!("return 200 {long};"));
    serve(&text, "GET / HTTP/1.1", async |mut request| {
        let client = Client::new(10_000);
        let (mut stuck, first) = client.begin(1000);
        let (mut quick, second) = client.begin(1 << 20);
        let mut other = another(&request, "GET / HTTP/1.1");
        handle(&mut request, &mut stuck).await.unwrap();
        handle(&mut other, &mut quick).await.unwrap();
        let (received, whole) = (client.received(first), client.received(second));
        assert_eq!((received.body.len(), received.ended), (1000, false));
        assert_eq!((whole.body.len(), whole.ended), (4000, true));
        client.allow(first, 3000);
        assert!(client.received(first).ended);
        assert_eq!(client.turns(), [first, second, first]);
    });
}

#[test]
fn a_client_that_gives_no_credit_is_waited_for_until_its_time_is_over() {
    let folder = Folder::with_files();
    std::fs::write(folder.0.join("long"), vec![0; 200_000]).unwrap();
    let text = site(&format!("send_timeout 7s; root {};", folder.0.display()));
    serve(&text, "GET /long HTTP/1.1", async |mut request| {
        let client = Client::new(1 << 20);
        let (mut exchange, stream) = client.begin(50_000);
        let began = engine::now();
        let outcome = handle(&mut request, &mut exchange).await;
        assert!(matches!(outcome, Err(Abort::TimedOut)), "{outcome:?}");
        assert!(engine::now() - began >= Duration::from_secs(7));
        // What has not left does not count.
        assert_eq!(request.sent.body_bytes, 50_000);
        exchange.into_stream().unwrap().finish(&outcome);
        let received = client.received(stream);
        assert_eq!((received.file_bytes, received.ended), (50_000, false));
        assert_eq!(received.reset, Some(Reason::Cancelled));
    });
}

#[test]
fn a_stream_that_its_client_resets_ends_alone() {
    let text = site("location / { proxy_pass http://10.0.0.9; }");
    serve(&text, "GET / HTTP/1.1", async |mut request| {
        start_upstream();
        let client = Client::greedy();
        let (mut given_up, first) = client.begin(1 << 20);
        let (mut awaited, second) = client.begin(1 << 20);
        let mut other = another(&request, "GET / HTTP/1.1");
        let resetting = async {
            engine::sleep(Duration::from_millis(500)).await;
            client.reset(first);
        };
        let answered = both(
            handle(&mut request, &mut given_up),
            handle(&mut other, &mut awaited),
        );
        let ((outcome, of_other), ()) = both(answered, resetting).await;
        assert!(matches!(outcome, Err(Abort::Silently)), "{outcome:?}");
        of_other.unwrap();
        assert_eq!(client.received(first).body, b"first ");
        assert_eq!(client.received(second).body, b"first second");
    });
}

#[test]
fn a_body_is_taken_as_it_is_read() {
    let text = site("");
    serve(&text, "POST / HTTP/1.1", async |mut request| {
        let client = Client::greedy();
        let (mut exchange, stream) = client.begin(1 << 20);
        request.body.begin(BodyLength::Length(40), 0);
        client.send(stream, &[b'a'; 40], true);
        // The client may not send more before some of it is read.
        assert_eq!(client.unsent(stream), 24);
        let mut length = 0;
        while let Some(part) = exchange.read_body(&mut request).await.unwrap() {
            length += part.len();
        }
        assert_eq!((length, client.unsent(stream)), (40, 0));
        assert_eq!(request.body.received(), 40);
    });
}

#[test]
fn a_response_before_the_end_of_its_body_wants_no_more_of_that() {
    let text = site("return 200 short;");
    serve(&text, "POST / HTTP/1.1", async |mut request| {
        let client = Client::greedy();
        let (mut exchange, stream) = client.begin(1 << 20);
        request.body.begin(BodyLength::Length(100), 0);
        client.send(stream, &[b'a'; 40], false);
        let outcome = handle(&mut request, &mut exchange).await;
        exchange.into_stream().unwrap().finish(&outcome);
        let received = client.received(stream);
        assert_eq!((&*received.body, received.ended), (&b"short"[..], true));
        assert_eq!(received.reset, Some(Reason::Enough));
    });
}

#[test]
fn trailers_come_behind_the_body() {
    let lines = "add_trailer X-Sum $body_bytes_sent; location / { return 200 text; }";
    let answer = answer(lines, "GET / HTTP/1.1");
    assert_eq!((&*answer.body, answer.ended), (&b"text"[..], true));
    let [(name, value)] = &*answer.trailers else {
        panic!("{:?}", answer.trailers)
    };
    assert_eq!((&**name, &**value), (&b"X-Sum"[..], &b"4"[..]));
}

/// What no client gets is counted all the same: logs tell of it (`log_subrequest`).
#[test]
fn what_goes_nowhere_is_counted() {
    const TEXT: &str = "events { } error_log /dev/null; http { access_log off; proxy_temp_path /tmp; \
        client_body_temp_path /tmp; server { listen 10.0.0.1:80; return 200 twelve-bytes; } }";
    serve(TEXT, "GET / HTTP/1.1", async |mut request| {
        let mut exchange = Exchange::sink();
        handle(&mut request, &mut exchange).await.unwrap();
        assert_eq!((request.sent.body_bytes, request.sent.bytes), (12, 0));
    });
}

/// `sendfile_max_chunk`: a client that takes everything at once leaves others their turn.
#[test]
fn long_responses_give_way() {
    const TEXT: &str = "events { } error_log /dev/null; http { access_log off; sendfile_max_chunk 256k; \
        proxy_temp_path /tmp; client_body_temp_path /tmp; server { listen 10.0.0.1:80; } }";
    serve(TEXT, "GET / HTTP/1.1", async |mut request| {
        let window = 1 << 30;
        sim::set_faults(Faults {
            window,
            ..Faults::default()
        })
        .unwrap();
        let turns = Rc::new(Cell::new(0));
        let others = Rc::clone(&turns);
        engine::spawn(async move {
            loop {
                others.set(others.get() + 1);
                engine::yield_now().await;
            }
        });
        let connection = Rc::clone(request.connection.shared().unwrap());
        let h1 = H1::new(&connection, &request, BodyLength::None, Buffer::empty());
        let mut exchange = Exchange::h1(h1);
        exchange.send_head(&mut request).unwrap();
        for _ in 0..160 {
            let piece = Piece::Bytes(Bytes::from(vec![0; 64 * 1024]));
            exchange.send(&mut request, piece).await.unwrap();
        }
        // 10 MiB, with a turn for others after each 256 KiB.
        assert!((35..=60).contains(&turns.get()), "{} turns", turns.get());
    });
}

/// Before any script or header can ask for `$realpath_root`, the pool has looked at the root, the
/// location's as well as the server's; where no line names the variable, nothing is looked at.
#[test]
fn the_folders_of_realpath_root_are_in_memory_when_it_is_asked_for() {
    let folder = Folder::with_files();
    let (inner, link) = (folder.0.join("inner"), folder.0.join("link"));
    std::fs::create_dir(&inner).unwrap();
    std::os::unix::fs::symlink(&inner, &link).unwrap();
    let ask = |named: &str| {
        let text = format!(
            "events {{ }} error_log /dev/null; http {{ access_log off;
             server {{ listen 10.0.0.1:80; root {0};
             location / {{ root {1}; return 200 \"{named}\"; }} }} }}",
            folder.0.display(),
            link.display()
        );
        serve(&text, "GET / HTTP/1.1", async |mut request| {
            framework::warm::forget();
            let client = Client::greedy();
            let (mut exchange, stream) = client.begin(u64::MAX / 2);
            handle(&mut request, &mut exchange).await.unwrap();
            let seen = [&folder.0, &link].map(|path| framework::warm::was_checked_recently(path));
            (client.received(stream).body, seen)
        })
    };
    let real = inner.canonicalize().unwrap();
    assert_eq!(
        ask("$realpath_root"),
        (real.display().to_string().into_bytes(), [true, true])
    );
    assert_eq!(ask("$uri"), (b"/".to_vec(), [false, false]));
}

#[test]
fn what_modules_keep_ends_with_the_pass_or_with_the_request() {
    #[derive(Default)]
    struct Text(&'static str);

    impl SlotValue for Text {}

    static PASS: Slot<Text, PassLifetime> = Slot::new();
    static REQUEST: Slot<Text, RequestLifetime> = Slot::new();
    with_request(|request| {
        request.pass.enter(&PASS).0 = "pass";
        request.own.enter(&REQUEST).0 = "request";
        request.redirect(b"/elsewhere".to_vec(), None).unwrap();
        assert!(request.pass.get(&PASS).is_none());
        assert_eq!(request.own.get(&REQUEST).unwrap().0, "request");
        request.pass.enter(&PASS).0 = "another pass";
        assert!(request.release());
        assert!(request.pass.is_empty() && request.own.is_empty());
    });
}

#[test]
fn a_client_that_leaves_shows_in_the_status_unless_it_has_seen_something() {
    with_request(|request| {
        let (mut exchange, _) = Client::greedy().begin(u64::MAX / 2);
        request.response.status = 200;
        assert!(matches!(request.client_left(&exchange), Abort::Silently));
        assert_eq!(request.response.status, 499);
        request.response.status = 200;
        exchange.send_head(request).unwrap();
        assert!(matches!(request.client_left(&exchange), Abort::Silently));
        assert_eq!(request.response.status, 200);
    });
}

#[test]
fn what_is_in_memory_is_answered_at_once() {
    let folder = Folder::with_files();
    let text = format!(
        "events {{ }} error_log /dev/null; http {{ access_log off; proxy_temp_path {0};
         client_body_temp_path {0}; server {{ listen 10.0.0.1:80; root {0}; index page.html;
         location /tried {{ try_files /file.txt =404; }} }} }}",
        folder.0.display()
    );
    for path in ["/file.txt", "/", "/tried"] {
        serve(
            &text,
            &format!("GET {path} HTTP/1.1"),
            async |mut request| {
                let (mut exchange, _) = Client::greedy().begin(0);
                let http = Rc::clone(&request.http);
                let location::LocationMatch::Plan(plan) = location::find(&mut request, &http)
                else {
                    panic!("there is a location");
                };
                request.plan = Arc::clone(plan);
                let handlers = plan.phases.precontent.iter().chain(&plan.phases.files);
                for handler in handlers {
                    match handler.run(&mut request, &mut exchange) {
                        MaybeFuture::Now(Ok(Step::Next)) => {}
                        MaybeFuture::Now(_) => return,
                        MaybeFuture::Wait(_) => panic!("{} waits for {path}", handler.name()),
                    }
                }
                panic!("nothing answers {path}");
            },
        );
    }
}
