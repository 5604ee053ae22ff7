//! Upstreams whose answers are bad, each kind by its name: what the client gets, what the log says,
//! whether another server is asked, and whether other requests on the same connection go on. In one
//! piece, and one byte a segment.
//!
//! nginx's words and its outcome stand with each case. Where Tidegate means to differ that stands
//! there too, with the reason.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use proto::h2::ErrorCode;
use proto::h2::frame::{self, flags};
use support::http2::Client;
use support::{PATIENCE, Server, is_nginx};

use super::upstream::{
    Heard, INITIAL_WINDOW_SIZE, Peer, Upstream, any, block, data, goaway, headers, reset, whole,
};
use super::{Answer, By, each, get, lines_with, open, send, server, server_at, wait_for};

/// One way to answer badly.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// What is sent for a request on this stream.
    answer: fn(u32) -> Vec<u8>,
    then: Then,
    outcome: Outcome,
    /// A part of the line of the error log; empty where there is none.
    log: &'static str,
    /// What comes of it one byte a segment, where that is something else.
    dripped: Option<(Outcome, &'static str)>,
    /// What comes of it with Tidegate, where that is something else.
    tidegate: Option<(Outcome, &'static str)>,
    /// nginx is not asked.
    not_nginx: bool,
    /// It ends the whole connection, not its own stream alone.
    ends_connection: bool,
}

/// What follows the answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Waits,
    Closes,
    /// The connection is reset.
    Resets,
    /// It waits, and has not even sent its settings.
    IsSilent,
}

/// What comes of it; the first three are causes of `*_next_upstream`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// `error`: 502 without another server.
    Error,
    /// `timeout`: 504.
    Timeout,
    /// `invalid_header`: 502.
    InvalidHeader,
    /// Its head has gone to the client, or would have, and the body has no end.
    BrokenBody,
    /// The client gets as much of the body as was announced.
    Cut,
    /// The client gets 204.
    Empty,
    /// The client gets the answer whole.
    Whole,
}

use Outcome::{BrokenBody, Cut, Empty, Error, InvalidHeader, Timeout, Whole};
use Then::{Closes, IsSilent, Resets, Waits};

impl Case {
    const fn new(
        name: &'static str,
        answer: fn(u32) -> Vec<u8>,
        outcome: Outcome,
        log: &'static str,
    ) -> Case {
        Case {
            name,
            answer,
            then: Waits,
            outcome,
            log,
            dripped: None,
            tidegate: None,
            not_nginx: false,
            ends_connection: false,
        }
    }

    const fn not_nginx(mut self) -> Case {
        self.not_nginx = true;
        self
    }

    const fn then(mut self, then: Then) -> Case {
        self.then = then;
        self
    }

    const fn dripped(mut self, outcome: Outcome, log: &'static str) -> Case {
        self.dripped = Some((outcome, log));
        self
    }

    const fn tidegate(mut self, outcome: Outcome, log: &'static str) -> Case {
        self.tidegate = Some((outcome, log));
        self
    }

    const fn of_connection(mut self) -> Case {
        self.ends_connection = true;
        self
    }

    /// What may come of it here: what was sent by segments may be read at once all the same.
    fn expected(&self, drips: bool) -> Vec<(Outcome, &'static str)> {
        if let Some(own) = self.tidegate.filter(|_| !is_nginx()) {
            return vec![own];
        }
        let dripped = self.dripped.filter(|_| drips);
        dripped
            .into_iter()
            .chain([(self.outcome, self.log)])
            .collect()
    }
}

/// A good head, without its end.
fn ok(stream: u32) -> Vec<u8> {
    headers(stream, &[(":status", "200")], false)
}

/// A head of these fields and the end.
fn only(stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    headers(stream, fields, true)
}

/// A good answer.
fn good(stream: u32) -> Vec<u8> {
    [ok(stream), data(stream, b"whole", true)].concat()
}

/// A good answer with this field.
fn with(stream: u32, name: &str, value: &str) -> Vec<u8> {
    let head = headers(stream, &[(":status", "200"), (name, value)], false);
    [head, data(stream, b"whole", true)].concat()
}

/// A head that does not end in its frame, and a frame behind it.
fn cut(stream: u32, behind: &[u8]) -> Vec<u8> {
    [
        any(1, flags::END_STREAM, stream, &block(&[(":status", "200")])),
        behind.to_vec(),
    ]
    .concat()
}

fn credit(stream: u32, bytes: u32) -> Vec<u8> {
    any(8, 0, stream, &bytes.to_be_bytes())
}

fn settings(name: u16, value: u32) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_settings(&mut out, &[(name, value)]);
    out
}

const CLOSED_IN_HEAD: &str =
    "upstream prematurely closed connection while reading response header from upstream";
// What nginx was doing then depends on what had come with the head.
const CLOSED_IN_BODY: &str = "upstream prematurely closed connection while ";
const RESET: &str =
    "recv() failed (104: Connection reset by peer) while reading response header from upstream";
const TIMED_OUT: &str =
    "upstream timed out (110: Connection timed out) while reading response header from upstream";
const TIMED_OUT_IN_BODY: &str =
    "upstream timed out (110: Connection timed out) while reading upstream";
const LARGER: &str = "upstream sent response body larger than indicated content length";
const SHORTER: &str = "upstream prematurely closed stream";

#[rustfmt::skip]
const CASES: &[Case] = &[
    // The end of a stream.
    Case::new("reset-before-the-head", |s| reset(s, ErrorCode::Cancel), InvalidHeader,
        "upstream rejected request with error 8 while reading response header from upstream"),
    Case::new("reset-after-the-head", |s| [ok(s), reset(s, ErrorCode::InternalError)].concat(), BrokenBody,
        "upstream rejected request with error 2"),
    Case::new("reset-without-error-after-the-head", |s| [ok(s), reset(s, ErrorCode::NoError)].concat(), BrokenBody,
        "upstream rejected request with error 0"),
    Case::new("reset-in-the-body", |s| [ok(s), data(s, b"who", false), reset(s, ErrorCode::Cancel)].concat(), BrokenBody,
        "upstream rejected request with error 8"),
    // An answer to a call of gRPC counts all the same: see `calls`.
    Case::new("reset-after-the-end", |s| [good(s), reset(s, ErrorCode::InternalError)].concat(), BrokenBody,
        "upstream rejected request with error 2").dripped(Whole, ""),
    Case::new("reset-without-error-after-the-end", |s| [good(s), reset(s, ErrorCode::NoError)].concat(), Whole, ""),
    Case::new("reset-of-three-bytes", |s| any(3, 0, s, b"123"), InvalidHeader,
        "upstream sent rst stream frame with invalid length: 3").of_connection(),

    // The end of the connection.
    Case::new("goaway-after-the-head", |s| [ok(s), goaway(0, ErrorCode::InternalError)].concat(), BrokenBody,
        "upstream sent goaway with error 2").of_connection(),
    Case::new("goaway-that-covers", |s| [goaway(s, ErrorCode::NoError), good(s)].concat(), Whole, ""),
    Case::new("goaway-in-the-body", |s| [ok(s), goaway(s, ErrorCode::InternalError), data(s, b"whole", true)].concat(), Whole, ""),
    Case::new("goaway-with-a-stream", |s| [&goaway(s, ErrorCode::NoError)[..8], &[s as u8], &goaway(s, ErrorCode::NoError)[9..]].concat(),
        InvalidHeader, "upstream sent goaway frame with non-zero stream id").of_connection(),
    Case::new("goaway-of-seven-bytes", |_| any(7, 0, 0, b"1234567"), InvalidHeader,
        "upstream sent goaway frame with invalid length: 7").of_connection(),
    Case::new("closes-before-the-head", |_| Vec::new(), Error, CLOSED_IN_HEAD).then(Closes).of_connection(),
    Case::new("closes-in-the-head", |s| ok(s)[..12].to_vec(), Error, CLOSED_IN_HEAD).then(Closes).of_connection(),
    Case::new("closes-behind-the-head", ok, BrokenBody, CLOSED_IN_BODY).then(Closes).of_connection(),
    Case::new("closes-in-the-body", |s| [ok(s), data(s, b"who", false)].concat(), BrokenBody, CLOSED_IN_BODY).then(Closes).of_connection(),
    Case::new("closes-in-a-frame", |s| [ok(s), data(s, b"whole", true)[..11].to_vec()].concat(), BrokenBody, CLOSED_IN_BODY)
        .then(Closes).of_connection(),
    Case::new("resets-before-the-head", |_| Vec::new(), Error, RESET).then(Resets).of_connection(),
    Case::new("stalls-before-the-head", |_| Vec::new(), Timeout, TIMED_OUT),
    Case::new("stalls-in-the-head", |s| ok(s)[..12].to_vec(), Timeout, TIMED_OUT),
    Case::new("stalls-in-the-body", |s| [ok(s), data(s, b"who", false)].concat(), BrokenBody, TIMED_OUT_IN_BODY),
    Case::new("nothing-at-all", |_| Vec::new(), Timeout, TIMED_OUT).then(IsSilent),

    // Another protocol.
    Case::new("http1", |_| b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole".to_vec(), InvalidHeader,
        "upstream sent too large http2 frame: 4740180").then(IsSilent).of_connection(),
    // RFC 9113, section 3.4: a server's first frame is SETTINGS. nginx waits for none.
    Case::new("no-settings-first", good, Whole, "").tidegate(InvalidHeader, "upstream sent no SETTINGS frame first")
        .then(IsSilent).of_connection(),

    // Frames where they have no place.
    Case::new("data-before-the-head", |s| data(s, b"whole", true), InvalidHeader, "upstream sent unexpected http2 frame: 0"),
    // What comes behind an answer does not make it another: nginx breaks it off where it has all
    // come at once.
    Case::new("data-behind-the-end", |s| [good(s), data(s, b"more", true)].concat(), BrokenBody,
        "upstream sent frame for closed stream").dripped(Whole, "").tidegate(Whole, ""),
    Case::new("trailers-behind-the-end", |s| [good(s), only(s, &[("a", "b")])].concat(), BrokenBody,
        "upstream sent frame for closed stream").dripped(Whole, "").tidegate(Whole, "").of_connection(),
    Case::new("data-of-another-stream", |s| [ok(s), data(s + 2, b"whole", true)].concat(), BrokenBody,
        "upstream sent data frame for unknown stream").of_connection(),
    Case::new("head-of-another-stream", |s| good(s + 2), InvalidHeader, "upstream sent frame for unknown stream").of_connection(),
    // nginx takes a head of no stream for that of the only one that there is.
    Case::new("head-of-stream-0", |_| good(0), BrokenBody, "upstream sent data frame for unknown stream 0")
        .tidegate(InvalidHeader, "upstream sent frame for unknown stream 0").of_connection(),
    Case::new("push-promise", |s| any(5, flags::END_HEADERS, s, &[&[0, 0, 0, 2][..], &block(&[(":method", "GET")])].concat()), InvalidHeader,
        "upstream sent unexpected push promise frame").of_connection(),
    Case::new("push-promise-in-the-body", |s| [ok(s), any(5, flags::END_HEADERS, s, &[&[0, 0, 0, 2][..], &block(&[(":method", "GET")])].concat())].concat(),
        BrokenBody, "upstream sent unexpected push promise frame").of_connection(),
    Case::new("continuation-of-nothing", |s| any(9, flags::END_HEADERS, s, &block(&[("a", "b")])), InvalidHeader,
        "upstream sent unexpected http2 frame: 9").of_connection(),
    Case::new("continuation-of-another-stream", |s| cut(s, &any(9, flags::END_HEADERS, s + 2, &block(&[("a", "b")]))), InvalidHeader,
        "upstream sent frame for unknown stream").of_connection(),
    Case::new("ping-within-a-head", |s| cut(s, &any(6, 0, 0, b"12345678")), InvalidHeader,
        "upstream sent unexpected http2 frame").of_connection(),
    Case::new("a-head-in-two-frames", |s| cut(s, &any(9, flags::END_HEADERS, s, &block(&[("content-length", "0")]))), Whole, ""),
    Case::new("an-unknown-frame", |s| [any(0xfa, 0xff, s, b"unknown"), good(s)].concat(), Whole, ""),
    Case::new("a-frame-too-large", |s| any(1, 0, s, &[0; 16_385]), InvalidHeader, "upstream sent too large http2 frame: 16385").of_connection(),
    Case::new("data-too-large", |s| [ok(s), any(0, 0, s, &[0; 16_385])].concat(), BrokenBody,
        "upstream sent too large http2 frame: 16385").of_connection(),
    Case::new("padding-too-long", |s| [ok(s), any(0, flags::PADDED, s, &[9, 0, 0])].concat(), BrokenBody,
        "upstream sent http2 frame with too long padding: 9 in frame 2").of_connection(),
    Case::new("padding-without-room", |s| [ok(s), any(0, flags::PADDED, s, &[])].concat(), BrokenBody,
        "upstream sent too short http2 frame").of_connection(),
    Case::new("padded", |s| [ok(s), any(0, flags::PADDED | flags::END_STREAM, s, b"\x03whole\0\0\0")].concat(), Whole, ""),

    // Heads.
    Case::new("no-status", |s| only(s, &[("server", "x")]), InvalidHeader, "upstream sent no :status header"),
    // nginx answers with a status line that has no status.
    Case::new("an-empty-head", |s| only(s, &[]), InvalidHeader, "upstream sent no :status header").not_nginx(),
    Case::new("two-statuses", |s| only(s, &[(":status", "200"), (":status", "200")]), InvalidHeader, "upstream sent duplicate :status header"),
    Case::new("status-behind-a-field", |s| only(s, &[("server", "x"), (":status", "200")]), InvalidHeader, "upstream sent no :status header"),
    Case::new("status-99", |s| only(s, &[(":status", "99")]), InvalidHeader, "upstream sent invalid :status \"99\""),
    Case::new("status-1000", |s| only(s, &[(":status", "1000")]), InvalidHeader, "upstream sent invalid :status \"1000\""),
    Case::new("status-abc", |s| only(s, &[(":status", "abc")]), InvalidHeader, "upstream sent invalid :status \"abc\""),
    Case::new("status-099", |s| only(s, &[(":status", "099")]), InvalidHeader, "upstream sent unexpected :status \"099\""),
    Case::new("status-101", |s| [headers(s, &[(":status", "101")], false), good(s)].concat(), InvalidHeader, "upstream sent unexpected :status \"101\""),
    // An interim response is no answer yet (RFC 9110, section 15.2); those of HTTP/1 are passed
    // over by nginx, too.
    Case::new("status-100", |s| [headers(s, &[(":status", "100")], false), good(s)].concat(), InvalidHeader,
        "upstream sent unexpected :status \"100\"").tidegate(Whole, ""),
    Case::new("status-103", |s| [headers(s, &[(":status", "103")], false), good(s)].concat(), Whole, ""),
    Case::new("status-103-that-ends", |s| only(s, &[(":status", "103")]), InvalidHeader, SHORTER),
    Case::new("another-pseudo-field", |s| only(s, &[(":status", "200"), (":path", "/")]), InvalidHeader, "upstream sent invalid header \":path: /\""),
    Case::new("a-capital", |s| only(s, &[(":status", "200"), ("X-Own", "x")]), InvalidHeader, "upstream sent invalid header: \"X-Own: x\""),
    Case::new("a-blank-in-a-name", |s| only(s, &[(":status", "200"), ("x own", "x")]), InvalidHeader, "upstream sent invalid header: \"x own: x\""),
    Case::new("a-line-break-in-a-value", |s| only(s, &[(":status", "200"), ("x", "a\nb: c")]), InvalidHeader, "upstream sent invalid header: \"x: a"),
    Case::new("a-name-without-length", |s| only(s, &[(":status", "200"), ("", "x")]), InvalidHeader, "upstream sent zero http2 header name length"),
    // RFC 9113, section 8.2.2: such a response is malformed. nginx takes it, and leaves the field
    // out.
    Case::new("connection", |s| with(s, "connection", "close"), Whole, "").tidegate(InvalidHeader, "upstream sent invalid header: \"connection: close\""),
    Case::new("transfer-encoding", |s| with(s, "transfer-encoding", "chunked"), Whole, "")
        .tidegate(InvalidHeader, "upstream sent invalid header: \"transfer-encoding: chunked\""),
    Case::new("upgrade", |s| with(s, "upgrade", "h2c"), Whole, "").tidegate(InvalidHeader, "upstream sent invalid header: \"upgrade: h2c\""),
    Case::new("a-length-that-is-none", |s| with(s, "content-length", "5x"), InvalidHeader,
        "upstream sent invalid \"Content-Length\" header"),
    Case::new("two-lengths", |s| headers(s, &[(":status", "200"), ("content-length", "5"), ("content-length", "5")], false), InvalidHeader,
        "upstream sent duplicate header line: \"content-length: 5\", previous value: \"content-length: 5\""),
    Case::new("a-field-too-large", |s| with(s, "x", &"x".repeat(2000)), InvalidHeader, "upstream sent too large http2 header"),
    Case::new("fields-too-large", |s| {
        let field = ("x", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
        only(s, &[vec![(":status", "200")], vec![field; 30]].concat())
    }, InvalidHeader, "upstream sent too big header").tidegate(InvalidHeader, "upstream sent too large http2 header"),
    Case::new("no-header-block", |s| any(1, flags::END_HEADERS, s, &[0xff, 0xff, 0x03]), InvalidHeader,
        "upstream sent invalid http2 table index").of_connection(),
    Case::new("index-0", |s| any(1, flags::END_HEADERS, s, &[0x80]), InvalidHeader, "upstream sent invalid http2 table index: 0").of_connection(),
    Case::new("a-header-block-cut-short", |s| any(1, flags::END_HEADERS, s, &block(&[(":status", "200")])[..8]), InvalidHeader,
        "upstream sent truncated http2 header").of_connection(),

    // Bodies and trailers.
    Case::new("two-heads", |s| [ok(s), ok(s), data(s, b"whole", true)].concat(), BrokenBody, "upstream sent invalid trailer \":status: 200\""),
    Case::new("trailers-without-end", |s| [ok(s), data(s, b"who", false), headers(s, &[("a", "b")], false)].concat(), BrokenBody,
        "upstream sent trailer without end stream flag"),
    Case::new("trailers-with-a-pseudo-field", |s| [ok(s), only(s, &[(":path", "/")])].concat(), BrokenBody,
        "upstream sent invalid trailer \":path: /\""),
    Case::new("trailers-with-a-capital", |s| [ok(s), only(s, &[("A", "b")])].concat(), BrokenBody, "upstream sent invalid trailer"),
    Case::new("longer", |s| [headers(s, &[(":status", "200"), ("content-length", "3")], false), data(s, b"whole", true)].concat(), BrokenBody, LARGER)
        .dripped(Cut, LARGER).tidegate(BrokenBody, LARGER),
    Case::new("shorter", |s| [headers(s, &[(":status", "200"), ("content-length", "9")], false), data(s, b"whole", true)].concat(), BrokenBody, SHORTER),
    Case::new("shorter-by-trailers", |s| [headers(s, &[(":status", "200"), ("content-length", "9")], false), data(s, b"whole", false),
        only(s, &[("a", "b")])].concat(), BrokenBody, SHORTER),
    // nginx finds out once the head has left.
    Case::new("no-body-of-a-length", |s| only(s, &[(":status", "200"), ("content-length", "9")]), BrokenBody, SHORTER)
        .tidegate(InvalidHeader, SHORTER),
    Case::new("a-body-of-a-204", |s| [headers(s, &[(":status", "204")], false), data(s, b"whole", true)].concat(), Empty, ""),

    // Settings, credit and floods.
    Case::new("a-window-too-large", |s| [settings(INITIAL_WINDOW_SIZE, 1 << 31), good(s)].concat(), InvalidHeader,
        "upstream sent settings frame with too large initial window size: 2147483648").of_connection(),
    // RFC 9113, section 6.5.2. nginx looks at no other setting than the window.
    Case::new("push-enabled", |s| [settings(2, 1), good(s)].concat(), Whole, "")
        .tidegate(InvalidHeader, "upstream sent SETTINGS frame with incorrect ENABLE_PUSH value 1").of_connection(),
    Case::new("frames-too-small", |s| [settings(5, 16_383), good(s)].concat(), Whole, "")
        .tidegate(InvalidHeader, "upstream sent SETTINGS frame with incorrect MAX_FRAME_SIZE value 16383").of_connection(),
    Case::new("an-unknown-setting", |s| [settings(0xfa, u32::MAX), good(s)].concat(), Whole, ""),
    Case::new("settings-of-five-bytes", |_| any(4, 0, 0, b"12345"), InvalidHeader, "upstream sent settings frame with invalid length: 5").of_connection(),
    Case::new("settings-of-a-stream", |s| any(4, 0, s, &[]), InvalidHeader, "upstream sent settings frame with non-zero stream id").of_connection(),
    Case::new("no-credit", |_| credit(0, 0), InvalidHeader, "upstream sent zero window update").of_connection(),
    Case::new("no-credit-for-the-stream", |s| credit(s, 0), InvalidHeader, "upstream sent zero window update"),
    Case::new("too-much-credit", |_| credit(0, (1 << 31) - 1), InvalidHeader, "upstream sent too large window update").of_connection(),
    Case::new("credit-of-three-bytes", |_| any(8, 0, 0, b"123"), InvalidHeader, "upstream sent window update frame with invalid length: 3").of_connection(),
    Case::new("ping-of-seven-bytes", |_| any(6, 0, 0, b"1234567"), InvalidHeader, "upstream sent ping frame with invalid length: 7").of_connection(),
    Case::new("ping-of-a-stream", |s| any(6, 0, s, b"12345678"), InvalidHeader, "upstream sent ping frame with non-zero stream id").of_connection(),
    // What answers nothing means nothing.
    Case::new("an-answer-to-no-ping", |s| [any(6, flags::ACK, 0, b"12345678"), good(s)].concat(), InvalidHeader,
        "upstream sent ping frame with ack flag").tidegate(Whole, ""),
    // nginx counts those alone that it cannot answer at once; of many PINGs at once it may say that
    // they are too big a head.
    Case::new("pings", |s| [any(6, 0, 0, b"12345678").repeat(1000), good(s)].concat(), InvalidHeader, "upstream sent too many ping frames")
        .not_nginx().of_connection(),
    Case::new("settings", |s| [any(4, 0, 0, &[]).repeat(1000), good(s)].concat(), Whole, "")
        .tidegate(InvalidHeader, "upstream sent too many settings frames").of_connection(),
    Case::new("priorities", |s| [any(2, 0, s, &[0, 0, 0, 0, 9]).repeat(10_000), good(s)].concat(), InvalidHeader,
        "upstream sent too many priority frames").not_nginx().of_connection(),
    Case::new("unknown-frames", |s| [any(0xfa, 0, 0, b"").repeat(2000), good(s)].concat(), Whole, "")
        .tidegate(InvalidHeader, "upstream sent too many empty frames").of_connection(),
    Case::new("answers-to-no-pings", |s| [any(6, flags::ACK, 0, b"12345678").repeat(2000), good(s)].concat(), InvalidHeader,
        "upstream sent ping frame with ack flag")
        .tidegate(InvalidHeader, "upstream sent too many empty frames").of_connection(),
    Case::new("data-without-bytes", |s| [ok(s), data(s, b"", false).repeat(2000), data(s, b"whole", true)].concat(), Whole, "")
        .tidegate(BrokenBody, "upstream sent too many empty frames").of_connection(),
];

/// Answers as the path says: `/PLACE/NAME`, or `/PLACE/NAME/drip` for one byte a segment.
/// `/PLACE/echo` sends back what comes.
fn answer(peer: &mut Peer, heard: Heard) {
    let stream = match heard {
        Heard::Head(stream, _) | Heard::Data(stream, ..) => stream,
        _ => return,
    };
    let asked = &peer.requests[&stream];
    let path = asked.path().to_owned();
    let mut parts = path.split('/').skip(2);
    let name = parts.next().unwrap();
    if name == "echo" {
        match heard {
            Heard::Head(..) => peer.head(stream, &[(":status", "200")], false),
            Heard::Data(_, length, ends) => {
                let body = asked.body[asked.body.len() - length..].to_vec();
                peer.data(stream, &body, ends);
            }
            _ => {}
        }
        return;
    }
    if whole(heard).is_none() {
        return;
    }
    let case = CASES.iter().find(|case| case.name == name).unwrap();
    let bytes = (case.answer)(stream);
    match parts.next() {
        // A head is waited for as a whole: it is to be over soon.
        Some("drip") => peer.drip(&bytes, (bytes.len() / 200).max(1)),
        _ => peer.send(&bytes),
    }
    match case.then {
        Closes => peer.close(),
        Resets => peer.break_off(),
        Waits | IsSilent => {}
    }
}

/// A server that passes on to one which answers badly, or, where that may be, to one which does
/// not.
fn bad_server(engine: &str, by: By, keepalive: &str) -> (Server, Upstream) {
    let speaks = Upstream::bind().serve_with(&[], answer);
    let is_silent = Upstream::bind().serve_in_silence(answer);
    let places = |name: &str| {
        let place = |prefix: &str, lines: &str| {
            format!(
                "location /{prefix}{name}/ {{ by_pass by://{name}; {lines} }}
                 location /{prefix}{name}-soon/ {{ by_pass by://{name}; {lines} by_read_timeout 400ms; }}\n"
            )
        };
        place("off-", "by_next_upstream off;")
            + &place("errors-", "")
            + &place("headers-", "by_next_upstream invalid_header;")
            + &place("unbuffered-", "proxy_buffering off;")
    };
    let group = |name: &str, upstream: &Upstream| {
        format!(
            "upstream {name} {{ {keepalive} server {} max_fails=0; server 127.0.0.2:PORT backup; }}\n",
            upstream.address()
        )
    };
    let lines = format!(
        "{}{}[http]\nproxy_read_timeout 3s; grpc_read_timeout 3s; by_buffer_size 1k; proxy_request_buffering off; server {{ listen 127.0.0.2:PORT; http2 on; return 200 good; }}\n{}{}",
        places("speaks"),
        places("silent"),
        group("speaks", &speaks),
        group("silent", &is_silent),
    );
    (server_at(engine, by, &lines, ""), speaks)
}

impl Case {
    fn path(&self, place: &str, drips: bool) -> String {
        let group = if self.then == IsSilent {
            "silent"
        } else {
            "speaks"
        };
        let soon = if self.log.contains("timed out") {
            "-soon"
        } else {
            ""
        };
        let drip = if drips { "/drip" } else { "" };
        format!("/{place}-{group}{soon}/{}{drip}", self.name)
    }
}

/// What there is to be in the log of what has come; or how it is none of what may come.
fn judge(
    answer: &Answer,
    expected: &[(Outcome, &'static str)],
    place: &str,
) -> Result<&'static str, String> {
    let found = expected
        .iter()
        .find(|(outcome, _)| is_of(answer, *outcome, place));
    let wrong = || format!("not {expected:?}: {} {:?}", answer.text(), answer);
    found.map(|(_, log)| *log).ok_or_else(wrong)
}

fn is_of(answer: &Answer, outcome: Outcome, place: &str) -> bool {
    let (status, body) = match (outcome, place) {
        (Error | Timeout, "errors") | (InvalidHeader, "headers") => (200, "good"),
        (Timeout, _) => (504, ""),
        (Error | InvalidHeader, _) => (502, ""),
        (Whole, _) => (200, "whole"),
        (Cut, _) => (200, "who"),
        (Empty, _) => (204, ""),
        (BrokenBody, _) => {
            return !answer.is_whole
                && matches!(answer.status, 0 | 200 | 204)
                && "whole".starts_with(&answer.text());
        }
    };
    let has_body = body.is_empty() || answer.text() == body || answer.text().is_empty();
    answer.status == status && answer.is_whole && has_body
}

fn bad_answers_have_their_status_their_line_and_their_retry(engine: &'static str) {
    let mut wrong = Vec::new();
    for by in By::BOTH {
        let (server, _) = bad_server(engine, by, "keepalive 0;");
        for case in CASES.iter().filter(|case| !(case.not_nginx && is_nginx())) {
            wrong.extend(wrong_in(
                &server,
                case,
                false,
                &["off", "errors", "headers"],
                by,
            ));
            wrong.extend(wrong_in(&server, case, true, &["off"], by));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

support::test_on_each_engine!(bad_answers_have_their_status_their_line_and_their_retry);

fn wrong_in(server: &Server, case: &Case, drips: bool, places: &[&str], by: By) -> Vec<String> {
    let from = server.error_log().len();
    let mut wrong = Vec::new();
    let mut logs = Vec::new();
    for place in places {
        let path = case.path(place, drips);
        match judge(&get(server.port, &path), &case.expected(drips), place) {
            Ok(log) => logs.push(log),
            Err(found) => wrong.push(format!("{by:?} {path}: {found}")),
        }
    }
    let log = logs.first().copied().unwrap_or_default();
    let wanted = if log.is_empty() { 0 } else { logs.len() };
    let found = match log {
        "" => server.error_log()[from..].matches("[error]").count(),
        log => lines_with(server, from, log, wanted),
    };
    if found != wanted {
        let lines = &server.error_log()[from..];
        let name = case.name;
        wrong.push(format!(
            "{by:?} {name} {drips}: {found} of {wanted} {log:?}\n{lines}"
        ));
    }
    wrong
}

fn others_on_the_connection_go_on_where_the_fault_is_of_one_stream(engine: &'static str) {
    if is_nginx() {
        return; // they have connections of their own
    }
    let mut wrong = Vec::new();
    for by in By::BOTH {
        let (server, upstream) = bad_server(engine, by, "keepalive 8;");
        // What is sent for others behind half of a head lands in it.
        let has_others = |case: &&Case| case.then != IsSilent && case.name != "stalls-in-the-head";
        let cases = CASES.iter().filter(has_others);
        for (case, drips) in cases.flat_map(|case| [(case, false), (case, true)]) {
            let found = beside(&server, &upstream, case, drips);
            wrong.extend(found.map(|found| format!("{by:?} {} {drips}: {found}", case.name)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

support::test_on_each_engine!(others_on_the_connection_go_on_where_the_fault_is_of_one_stream);

/// Asks for a bad answer while another is under way; what is wrong with either, if anything is.
fn beside(server: &Server, upstream: &Upstream, case: &Case, drips: bool) -> Option<String> {
    let mut client = Client::connect(server.port);
    let other = open(&mut client, "/unbuffered-speaks/echo", &[]);
    send(&mut client, other, b"a", false);
    wait_for(&mut client, other, |response| response.body == b"a");
    let connections = upstream.record().connections;
    let stream = client.request(&case.path("off", drips), &[]);
    let response = client.response(stream);
    let answer = Answer {
        status: response.status,
        is_whole: response.reset.is_none(),
        body: response.body,
        ..Answer::default()
    };
    if let Err(found) = judge(&answer, &case.expected(drips), "off") {
        return Some(found);
    }
    send(&mut client, other, b"b", true);
    let response = client.response(other);
    let is_whole = response.reset.is_none() && response.body == b"ab";
    if is_whole == case.ends_connection {
        return Some(format!("the other: {response:?}"));
    }
    let more = upstream.record().connections - connections;
    (more > 0).then(|| format!("{more} connections more"))
}

fn what_has_come_before_a_reset_is_delivered_and_not_taken_for_the_whole(engine: &'static str) {
    let lines = "location / { by_pass by://UP; access_log logs/access.log done; }
        [http]
        proxy_buffering off; log_format done '$status \"$request_completion\" $body_bytes_sent';";
    // Whether a part of the answer has left before what is reset, and by which code.
    each(engine, |engine, by| {
        for (has_begun, code) in [
            (false, ErrorCode::InternalError),
            (false, ErrorCode::NoError),
            (true, ErrorCode::InternalError),
            (true, ErrorCode::NoError),
        ] {
            let upstream = Upstream::bind();
            let server = server(engine, by, lines, &upstream);
            for version in ["1.0", "1.1"] {
                let mut client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
                client.set_read_timeout(Some(PATIENCE)).unwrap();
                let head = format!("GET / HTTP/{version}\r\nHost: a\r\n\r\n");
                client.write_all(head.as_bytes()).unwrap();
                let mut peer = upstream.accept();
                peer.settings(&[]);
                let stream = peer.wait_for_request().stream;
                let end = [data(stream, b"more", false), reset(stream, code)].concat();
                if has_begun {
                    peer.send(&[ok(stream), data(stream, b"begun", false)].concat());
                    while client.peek(&mut [0; 1000]).unwrap() < 100 {
                        thread::sleep(Duration::from_millis(1));
                    }
                    peer.send(&end);
                } else {
                    // At once: of what came before, the head might have left by then.
                    peer.send(&[ok(stream), end].concat());
                }
                let answer = super::read_answer(&mut client, false);
                assert!(!answer.is_whole, "{version}: {answer:?}");
                // What ends with its connection would pass for the whole.
                if version == "1.0" && !has_begun {
                    assert_eq!(answer.text(), "", "{code:?}");
                }
                if version == "1.1" && !is_nginx() {
                    let begun = if has_begun { "begun" } else { "" };
                    assert_eq!(answer.text(), format!("{begun}more"), "{code:?}");
                }
            }
            server.wait_for_line("access.log", "200");
            for line in server.log("access.log").lines() {
                assert!(line.contains("\"\""), "{line}");
            }
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(
    what_has_come_before_a_reset_is_delivered_and_not_taken_for_the_whole
);

/// While a client of HTTP/1 sends its body, interim heads are read as they come: only so many of
/// them, however short.
fn interim_heads_are_bounded_beside_a_body_that_comes(engine: &'static str) {
    if is_nginx() {
        return; // it takes none
    }
    let long = "x".repeat(3500);
    // More than come before any answer; fewer, and longer.
    let floods = [(101, "x", true), (60, &*long, false)];
    let lines = "location / { by_pass by://UP; }\n[http]\nproxy_request_buffering off;";
    each(engine, |engine, by| {
        for (count, value, is_too_many) in floods {
            let upstream = Upstream::bind();
            let server = server(engine, by, lines, &upstream);
            let mut client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n";
            client.write_all(head.as_bytes()).unwrap();
            let mut peer = upstream.accept();
            peer.settings(&[]);
            let stream = peer.wait_for_head();
            for _ in 0..count {
                peer.head(stream, &[(":status", "103"), ("x", value)], false);
            }
            if !is_too_many {
                peer.head(stream, &[(":status", "204")], true);
                assert_eq!(super::read_answer(&mut client, false).status, 204);
                upstream.assert_clean();
                continue;
            }
            assert_eq!(peer.wait_for_reset(stream), ErrorCode::EnhanceYourCalm);
            assert_eq!(super::read_answer(&mut client, false).status, 502);
            let text = "upstream sent too many informational responses while reading response header from upstream";
            assert_eq!(lines_with(&server, 0, text, 1), 1);
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(interim_heads_are_bounded_beside_a_body_that_comes);

fn early_hints_are_passed_on_where_they_are_wanted(engine: &'static str) {
    let lines = "location /wanted { by_pass by://UP; early_hints $http_x_wanted; } location / { by_pass by://UP; }";
    each(engine, |engine, by| {
        let upstream = Upstream::serve(|peer, heard| {
            if let Some(stream) = whole(heard) {
                for link in ["</a>", "</b>"] {
                    peer.head(stream, &[(":status", "103"), ("link", link)], false);
                }
                peer.answer(stream, "200", b"ok");
            }
        });
        let server = server(engine, by, lines, &upstream);
        let mut client = Client::connect(server.port);
        for (path, expected) in [("/wanted", &[103, 103][..]), ("/", &[])] {
            let stream = client.request(path, &[("x-wanted", "1")]);
            let response = client.response(stream);
            assert_eq!((response.status, response.text()), (200, "ok".to_owned()));
            assert_eq!(response.informational, expected, "{path}");
        }
        upstream.assert_clean();
    });
}

support::test_on_each_engine!(early_hints_are_passed_on_where_they_are_wanted);

fn frames_that_are_no_part_of_an_answer_do_not_prolong_it(engine: &'static str) {
    if is_nginx() {
        return; // each makes it wait anew
    }
    let lines = "location / { by_pass by://UP; by_read_timeout 300ms; proxy_buffering off; }";
    each(engine, |engine, by| {
        for has_head in [false, true] {
            let upstream = Upstream::bind();
            let server = server(engine, by, lines, &upstream);
            let mut client = Client::connect(server.port);
            let asked = client.request("/", &[]);
            let mut peer = upstream.accept();
            peer.settings(&[]);
            let stream = peer.wait_for_head();
            if has_head {
                peer.head(stream, &[(":status", "200")], false);
                peer.data(stream, b"who", false);
            }
            while peer.requests[&stream].reset.is_none() {
                peer.send(&any(6, 0, 0, b"12345678"));
                peer.next_soon();
                thread::sleep(Duration::from_millis(20));
            }
            let response = client.response(asked);
            let expected = if has_head { 200 } else { 504 };
            assert_eq!(
                (response.status, response.reset.is_some()),
                (expected, has_head)
            );
            upstream.assert_clean();
        }
    });
}

support::test_on_each_engine!(frames_that_are_no_part_of_an_answer_do_not_prolong_it);
