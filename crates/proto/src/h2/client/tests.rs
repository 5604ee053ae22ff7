//! The client connection against a server whose frames are written out.

mod bodies;
mod floods;
mod shares;

use super::*;
use crate::h2::hpack::Field;
use crate::h2::hpack::literal::{self, FieldName};
use crate::header::KnownField;

const LIMITS: Limits = Limits {
    stream_window: 1 << 20,
    stream_window_max: 1 << 20,
    head_size_max: 8192,
};

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":authority", "example.com"),
    (":path", "/a"),
];

fn fields<'a>(fields: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = Field<'a>> {
    let bytes = |(name, value): &(&'a str, &'a str)| (name.as_bytes(), value.as_bytes()).into();
    fields.iter().map(bytes)
}

/// A header block as encoded by a server without a dynamic table.
fn block(status: u16, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    if status > 0 {
        literal::status(status, &mut block);
    }
    for (name, value) in fields {
        literal::field(FieldName::of(name.as_bytes()), value.as_bytes(), &mut block);
    }
    block
}

fn settings(pairs: &[(u16, u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_settings(&mut out, pairs);
    out
}

fn head(stream: u32, status: u16, fields: &[(&str, &str)], ends: bool) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_header_block(&mut out, stream, &block(status, fields), ends, 16_384);
    out
}

fn data(stream: u32, bytes: &[u8], ends: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let flags = if ends { flags::END_STREAM } else { 0 };
    frame::put_head(&mut out, Kind::Data, flags, stream, bytes.len());
    out.extend_from_slice(bytes);
    out
}

fn frame_of(put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out);
    out
}

/// A client that has received these settings, with an empty output.
fn begun(pairs: &[(u16, u32)]) -> Client<u32> {
    let mut client = Client::new(LIMITS);
    assert_eq!(feed(&mut client, &settings(pairs)), Ok(vec![]));
    client.clear_output();
    client
}

fn open(client: &mut Client<u32>, ends: bool) -> Option<u32> {
    let opening = RequestStart {
        ends,
        is_head: false,
    };
    client.open(fields(&GET), opening, 7)
}

/// All events for these bytes.
fn feed(client: &mut Client<u32>, bytes: &[u8]) -> Result<Vec<Event>, Violation> {
    let (mut events, mut at) = (Vec::new(), 0);
    while let Some(event) = client.handle(bytes, &mut at, 0)? {
        events.push(event);
    }
    assert_eq!(at, bytes.len());
    Ok(events)
}

/// The frames in the output: heads and payloads.
fn sent(client: &mut Client<u32>) -> Vec<(FrameHead, Vec<u8>)> {
    let out = client.take_output();
    let (mut frames, mut rest) = (Vec::new(), &out[..]);
    if let Some(behind) = rest.strip_prefix(PREFACE) {
        rest = behind;
    }
    while let Some((bytes, behind)) = rest.split_first_chunk() {
        let head = FrameHead::read(bytes);
        let (payload, behind) = behind.split_at(head.length as usize);
        frames.push((head, payload.to_vec()));
        rest = behind;
    }
    assert!(rest.is_empty());
    frames
}

/// The result of each response: stream, status, body, and how the response ended.
fn responses(input: &[u8], piece: usize, requests: u32) -> Vec<String> {
    let mut client = Client::new(LIMITS);
    for _ in 0..requests {
        open(&mut client, true).unwrap();
    }
    let mut said: Vec<String> = vec![String::new(); requests as usize * 2 + 1];
    for part in input.chunks(piece) {
        let mut at = 0;
        while let Some(event) = client.handle(part, &mut at, 0).unwrap() {
            let stream = match event {
                Event::Interim { stream }
                | Event::Head { stream, .. }
                | Event::Data { stream, .. }
                | Event::Trailers { stream }
                | Event::Reset { stream, .. }
                | Event::NotServed { stream } => stream,
                Event::GoAway(_) | Event::Pong => 0,
            };
            let text = match event {
                Event::Interim { .. } => format!("interim {} ", client.head().status()),
                Event::Head { ends, .. } => {
                    let server = client.head().value(KnownField::Server).unwrap_or_default();
                    let server = String::from_utf8_lossy(server);
                    let status = client.head().status();
                    format!("{status} {server} {}", if ends { "end" } else { "" })
                }
                Event::Data {
                    start,
                    length,
                    ends,
                    ..
                } => {
                    let bytes = &part[start..start + length];
                    let text = String::from_utf8_lossy(bytes).into_owned();
                    text + if ends { " end" } else { "" }
                }
                Event::Trailers { .. } => {
                    let field = client.head().fields()[0];
                    let value = field.value(client.head().bytes());
                    format!(" trailer {}", String::from_utf8_lossy(value))
                }
                Event::Reset { code, .. } => format!(" {code:?}"),
                Event::NotServed { .. } => " not served".to_owned(),
                Event::GoAway(code) => format!("{code:?}"),
                Event::Pong => "pong".to_owned(),
            };
            said[stream as usize].push_str(&text);
            if text.ends_with("end") {
                client.release(stream);
            }
        }
        assert_eq!(at, part.len());
    }
    said.retain(|text| !text.is_empty());
    said
}

#[test]
fn responses_come_in_pieces_of_every_size() {
    let padded = frame_of(|out| {
        frame::put_head(out, Kind::Data, flags::PADDED, 5, 6);
        out.extend_from_slice(b"\x02abc\0\0");
    });
    let long = "x".repeat(300);
    let continued = frame_of(|out| {
        let block = block(404, &[("server", "s"), ("a", &long)]);
        frame::put_header_block(out, 7, &block, true, 100);
    });
    let padded_head = frame_of(|out| {
        let block = block(200, &[]);
        let length = block.len() + 1 + 5 + 3;
        let flags = flags::PADDED | flags::PRIORITY | flags::END_HEADERS;
        frame::put_head(out, Kind::Headers, flags, 9, length);
        out.push(3);
        out.extend_from_slice(&[0, 0, 0, 0, 16]);
        out.extend_from_slice(&block);
        out.extend_from_slice(&[0; 3]);
    });
    let input = [
        settings(&[(3, 10)]),
        head(1, 200, &[("server", "s"), ("content-length", "5")], false),
        head(3, 103, &[("link", "x")], false),
        data(1, b"hel", false),
        head(3, 204, &[], true),
        frame_of(|out| frame::put_ping(out, true, *b"12345678")),
        head(5, 200, &[("server", "s"), ("content-length", "5")], false),
        padded,
        data(1, b"lo", true),
        continued,
        data(5, b"", false),
        data(5, b"de", false),
        head(5, 0, &[("grpc-status", "0")], true),
        padded_head,
        data(9, b"", true),
        frame_of(|out| frame::put_reset(out, 11, ErrorCode::RefusedStream)),
        frame_of(|out| frame::put_goaway(out, 11, ErrorCode::NoError)),
    ]
    .concat();
    let expected = [
        "pongNoError",
        "200 s hello end",
        "interim 103 204  end",
        "200 s abcde trailer 0",
        "404 s end",
        "200   end",
        " RefusedStream",
        " not served",
    ];
    let whole = responses(&input, input.len(), 7);
    assert_eq!(whole, expected);
    // In pieces, the end of a body may be reported separately from its last byte.
    for piece in 1..input.len() {
        assert_eq!(responses(&input, piece, 7), expected, "by {piece}");
    }
}

#[test]
fn bytes_that_are_changed_anywhere_are_no_panic_and_break_no_window() {
    let input = [
        settings(&[(3, 10), (4, 1 << 20)]),
        head(1, 200, &[("server", "s"), ("content-length", "5")], false),
        data(1, b"hello", true),
        head(3, 103, &[("link", "x")], false),
        frame_of(|out| frame::put_ping(out, false, *b"12345678")),
        head(3, 200, &[], false),
        head(3, 0, &[("grpc-status", "0")], true),
        frame_of(|out| frame::put_window_update(out, 5, 1000)),
        frame_of(|out| frame::put_reset(out, 5, ErrorCode::RefusedStream)),
        frame_of(|out| frame::put_goaway(out, 7, ErrorCode::NoError)),
    ]
    .concat();
    let mut outcomes = [0, 0];
    for place in 0..input.len() {
        for change in [1, 4, 0x20, 0x80, 0xff] {
            let mut changed = input.clone();
            changed[place] ^= change;
            let mut client = Client::new(LIMITS);
            for _ in 0..5 {
                let stream = open(&mut client, false).unwrap();
                client.wants_to_send(stream);
            }
            let mut at = 0;
            let ended = loop {
                let event = client.handle(&changed, &mut at, 0);
                while let Some((stream, allowed)) = client.turn() {
                    client.put_data(stream, &vec![0; allowed], false, true);
                }
                match event {
                    Ok(Some(Event::Reset { stream, .. } | Event::NotServed { stream })) => {
                        client.release(stream);
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break 0,
                    Err(violation) => {
                        client.fail(violation);
                        break 1;
                    }
                }
            };
            outcomes[ended] += 1;
            assert!(client.send_window >= 0 && at <= changed.len());
            sent(&mut client);
        }
    }
    assert!(outcomes.iter().all(|count| *count > 50), "{outcomes:?}");
}

#[test]
fn the_preface_and_requests_are_those_of_the_rfc() {
    let mut client: Client<u32> = Client::new(LIMITS);
    assert!(client.output().starts_with(PREFACE));
    assert!(!client.has_begun());
    open(&mut client, true).unwrap();
    let frames = sent(&mut client);
    let kinds: Vec<Kind> = frames.iter().map(|(head, _)| head.kind).collect();
    assert_eq!(kinds, [Kind::Settings, Kind::WindowUpdate, Kind::Headers]);
    let (head, block) = &frames[2];
    assert_eq!(head.stream, 1);
    assert!(head.has(flags::END_STREAM | flags::END_HEADERS));
    let (mut decoder, mut bytes, mut names) = (Decoder::new(), Vec::new(), Vec::new());
    let mut read = |block: &[u8]| {
        names.clear();
        let outcome = decoder.decode(block, 1000, &mut bytes, |field, bytes| {
            let of = |span: crate::Span| String::from_utf8_lossy(span.of(bytes)).into_owned();
            names.push((of(field.name), of(field.value)));
        });
        assert!(outcome.is_ok());
        names.clone()
    };
    let expected = GET.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(read(block), expected);

    // The first block has changed the dynamic table, so that it cannot be repeated; the second one
    // can.
    assert_eq!(client.open_again(7), None);
    assert_eq!(open(&mut client, true), Some(3));
    assert_eq!(client.open_again(8), Some(5));
    assert_eq!(client.user(5), Some(&mut 8));
    let frames = sent(&mut client);
    assert_eq!(frames[0].1, frames[1].1);
    assert!(frames[1].1.len() < block.len());
    assert_eq!(read(&frames[0].1), expected);
    // A new table size in the server's SETTINGS is announced in the next block.
    assert_eq!(feed(&mut client, &settings(&[(1, 0)])), Ok(vec![]));
    assert_eq!(client.open_again(9), None);
    assert_eq!(open(&mut client, true), Some(7));
    let frames = sent(&mut client);
    assert_eq!(frames[1].1.first(), Some(&0x20));
    assert_eq!(read(&frames[1].1), expected);
}

#[test]
fn as_many_streams_are_open_as_the_server_takes() {
    let mut client: Client<u32> = Client::new(LIMITS);
    for _ in 0..STREAMS_BEFORE_SETTINGS {
        assert!(open(&mut client, true).is_some());
    }
    assert_eq!(open(&mut client, true), None);
    let mut client = begun(&[(settings::MAX_CONCURRENT_STREAMS, 2)]);
    assert_eq!(open(&mut client, true), Some(1));
    assert_eq!(open(&mut client, true), Some(3));
    assert_eq!(
        (open(&mut client, true), client.open_again(0)),
        (None, None)
    );
    let events = feed(&mut client, &head(1, 200, &[], true)).unwrap();
    assert_eq!(
        events,
        [Event::Head {
            stream: 1,
            ends: true
        }]
    );
    assert!(!client.may_open());
    assert_eq!(client.release(1), Some(7));
    assert_eq!(open(&mut client, true), Some(5));
    client.next_stream = STREAM_MAX + 2;
    assert!(client.is_ending() && !client.may_open());
}

#[test]
fn a_head_that_repeats_is_the_same_and_another_is_read() {
    let mut client = begun(&[]);
    let status = |client: &mut Client<u32>, bytes: &[u8]| {
        let stream = open(client, true).unwrap();
        let mut bytes = bytes.to_vec();
        bytes[5..9].copy_from_slice(&stream.to_be_bytes());
        let events = feed(client, &bytes).unwrap();
        assert_eq!(events, [Event::Head { stream, ends: true }]);
        client.release(stream);
        let server = client.head().value(KnownField::Server).unwrap_or_default();
        (client.head().status(), server.to_vec())
    };
    let (one, other) = (
        head(1, 200, &[("server", "a")], true),
        head(1, 404, &[("server", "b")], true),
    );
    for _ in 0..3 {
        assert_eq!(status(&mut client, &one), (200, b"a".to_vec()));
        assert_eq!(status(&mut client, &one), (200, b"a".to_vec()));
        assert_eq!(status(&mut client, &other), (404, b"b".to_vec()));
    }
    // A server with a dynamic table: its first index refers to another field after each new one.
    let mut server = Encoder::new(4096);
    let mut encoded = |name: &str| {
        let mut block = Vec::new();
        let fields = [(":status", "200"), ("server", name)];
        server.encode(self::fields(&fields), &mut block);
        frame_of(|out| frame::put_header_block(out, 1, &block, true, 16_384))
    };
    let (first, second) = (encoded("a"), encoded("a"));
    assert_eq!(status(&mut client, &first).1, b"a");
    assert_eq!(status(&mut client, &second).1, b"a");
    assert_eq!(status(&mut client, &second).1, b"a");
    let third = encoded("c");
    assert_eq!(status(&mut client, &third).1, b"c");
    // The bytes of `second`, whose index now refers to "c".
    assert_eq!(status(&mut client, &second).1, b"c");
    // An empty block is not a repetition.
    let stream = open(&mut client, true).unwrap();
    let empty = frame_of(|out| frame::put_header_block(out, stream, b"", true, 100));
    let events = feed(&mut client, &empty).unwrap();
    assert!(matches!(events[..], [Event::Reset { fault: Some(_), .. }]));
}

#[test]
fn streams_above_the_last_are_given_back() {
    let mut client = begun(&[]);
    for expected in [1, 3, 5, 7] {
        assert_eq!(open(&mut client, true), Some(expected));
    }
    let goaway = |last| frame_of(|out| frame::put_goaway(out, last, ErrorCode::NoError));
    // The first GOAWAY of a graceful shutdown.
    assert_eq!(
        feed(&mut client, &goaway(STREAM_MAX)),
        Ok(vec![Event::GoAway(ErrorCode::NoError)])
    );
    assert!(client.is_ending() && !client.may_open());
    assert_eq!(
        (open(&mut client, true), client.open_again(1)),
        (None, None)
    );
    let events = feed(&mut client, &goaway(3)).unwrap();
    let expected = [
        Event::GoAway(ErrorCode::NoError),
        Event::NotServed { stream: 5 },
        Event::NotServed { stream: 7 },
    ];
    assert_eq!(events, expected);
    client.clear_output();
    for stream in [5, 7] {
        assert_eq!(client.release(stream), Some(7));
    }
    assert_eq!(client.output(), b"");
    // Streams up to the last one are processed to their end, and the last stream is never raised.
    assert_eq!(
        feed(&mut client, &goaway(9)),
        Ok(vec![Event::GoAway(ErrorCode::NoError)])
    );
    let events = feed(&mut client, &head(3, 200, &[], true)).unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(client.drain().count(), 2);
    assert_eq!(client.live(), 0);
}

#[test]
fn what_follows_our_own_reset_is_no_fault() {
    let mut client = begun(&[]);
    for _ in 0..3 {
        open(&mut client, true).unwrap();
    }
    client.clear_output();
    feed(&mut client, &head(1, 200, &[], false)).unwrap();
    client.reset(1, ErrorCode::Cancel);
    client.release(1);
    client.release(3);
    let frames = sent(&mut client);
    let resets: Vec<u32> = frames.iter().map(|(head, _)| head.stream).collect();
    assert_eq!(resets, [1, 3]);
    let late = [
        data(1, b"late", true),
        head(3, 200, &[], false),
        data(3, b"late", true),
        frame_of(|out| frame::put_reset(out, 3, ErrorCode::Cancel)),
    ]
    .concat();
    assert_eq!(feed(&mut client, &late), Ok(vec![]));
    assert_eq!(client.output(), b"");
    // A reset by the server closes both halves.
    let reset = frame_of(|out| frame::put_reset(out, 5, ErrorCode::InternalError));
    let expected = Event::Reset {
        stream: 5,
        code: ErrorCode::InternalError,
        fault: None,
    };
    assert_eq!(feed(&mut client, &reset), Ok(vec![expected]));
    client.release(5);
    assert_eq!(client.output(), b"");
    assert_eq!(
        feed(&mut client, &head(5, 200, &[], true)),
        Err(Violation::HeadersAfterEnd(5))
    );
}

#[test]
fn so_many_of_our_own_resets_are_forgiven_as_there_may_be() {
    let mut client = begun(&[]);
    let mut last = 0;
    for _ in 0..2 * FORGIVEN_MAX {
        last = open(&mut client, true).unwrap();
        client.release(last);
        client.clear_output();
    }
    let live = open(&mut client, true).unwrap();
    client.clear_output();
    for stream in [1, 3, last] {
        assert_eq!(
            feed(&mut client, &head(stream, 200, &[], false)),
            Ok(vec![])
        );
        assert_eq!(feed(&mut client, &data(stream, b"x", true)), Ok(vec![]));
    }
    assert!(sent(&mut client).is_empty());
    let events = feed(&mut client, &head(live, 200, &[], true)).unwrap();
    assert_eq!(
        events,
        [Event::Head {
            stream: live,
            ends: true
        }]
    );
}

#[test]
fn who_lets_go_of_a_stream_hears_no_more_of_its_frame() {
    let lets_go: [fn(&mut Client<u32>, u32); 2] = [
        |client, stream| client.reset(stream, ErrorCode::Cancel),
        |client, stream| _ = client.release(stream),
    ];
    for let_go in lets_go {
        let mut client = begun(&[]);
        let (one, two) = (
            open(&mut client, true).unwrap(),
            open(&mut client, true).unwrap(),
        );
        feed(&mut client, &head(one, 200, &[], false)).unwrap();
        feed(&mut client, &head(two, 200, &[], false)).unwrap();
        let sent = data(one, b"0123456789", true);
        let (first, rest) = sent.split_at(frame::HEAD_LENGTH + 4);
        let events = feed(&mut client, first).unwrap();
        assert!(matches!(events[..], [Event::Data { length: 4, .. }]));
        let_go(&mut client, one);
        assert_eq!(feed(&mut client, rest), Ok(vec![]));
        let events = feed(&mut client, &data(two, b"12", true)).unwrap();
        assert!(matches!(events[..], [Event::Data { length: 2, .. }]));
    }
}

#[test]
fn faults_of_a_stream_end_that_stream() {
    let fault_of = |frames: &[Vec<u8>], is_head: bool| {
        let mut client = begun(&[]);
        let opening = RequestStart {
            ends: true,
            is_head,
        };
        client.open(fields(&GET), opening, 7).unwrap();
        client.clear_output();
        let events = feed(&mut client, &frames.concat()).unwrap();
        let Some(Event::Reset {
            stream: 1,
            code,
            fault: Some(fault),
        }) = events.last().copied()
        else {
            return None;
        };
        assert_eq!(code, fault.code());
        let frames = sent(&mut client);
        assert_eq!(frames[0].0.kind, Kind::Reset);
        assert_eq!(frames[0].1, code.number().to_be_bytes());
        Some(fault)
    };
    let length = |length| head(1, 200, &[("content-length", length)], false);
    let malformed = |fault| Some(StreamFault::Response(1, fault));
    let trailers = |ends| head(1, 0, &[("a", "b")], ends);
    for (frames, expected) in [
        (vec![length("3"), data(1, b"abc", true)], None),
        (
            vec![length("3"), data(1, b"abcd", false)],
            Some(StreamFault::BodyLength(1)),
        ),
        (
            vec![length("3"), data(1, b"ab", true)],
            Some(StreamFault::BodyShort(1)),
        ),
        (
            vec![length("3"), data(1, b"ab", false), trailers(true)],
            Some(StreamFault::BodyShort(1)),
        ),
        (
            vec![head(1, 200, &[("content-length", "3")], true)],
            Some(StreamFault::BodyShort(1)),
        ),
        (vec![data(1, b"ab", true)], Some(StreamFault::NoHead(1))),
        (
            vec![length("3"), trailers(false)],
            Some(StreamFault::Trailers(1)),
        ),
        (
            vec![length("0"), head(1, 200, &[], true)],
            malformed(ResponseFault::Pseudo),
        ),
        (
            vec![head(1, 101, &[], false)],
            malformed(ResponseFault::Interim),
        ),
        (
            vec![head(1, 100, &[], true)],
            malformed(ResponseFault::Interim),
        ),
        (vec![trailers(true)], malformed(ResponseFault::NoStatus)),
        (
            vec![head(1, 200, &[("connection", "close")], true)],
            malformed(ResponseFault::OfConnection("connection")),
        ),
    ] {
        assert_eq!(fault_of(&frames, false), expected);
    }
    // Responses without a body, whatever their Content-Length.
    let not_modified = head(1, 304, &[("content-length", "3")], true);
    assert_eq!(fault_of(&[not_modified], false), None);
    let of_head = head(1, 200, &[("content-length", "3")], true);
    assert_eq!(fault_of(&[of_head], true), None);
    assert_eq!(
        fault_of(&[length("3"), data(1, b"abc", true)], true),
        Some(StreamFault::BodyLength(1))
    );
    // Frames after the end of the response.
    let mut client = begun(&[]);
    open(&mut client, false).unwrap();
    let twice = [
        head(1, 200, &[], false),
        data(1, b"", true),
        data(1, b"x", true),
    ]
    .concat();
    let events = feed(&mut client, &twice).unwrap();
    let fault = StreamFault::HalfClosed("DATA", 1);
    assert!(
        matches!(events.last(), Some(Event::Reset { fault: Some(found), .. }) if *found == fault)
    );
}

#[test]
fn violations_end_the_connection() {
    let violation = |frames: Vec<u8>| {
        let mut client = begun(&[]);
        open(&mut client, true).unwrap();
        client.clear_output();
        let violation = feed(&mut client, &frames).unwrap_err();
        client.fail(violation);
        let frames = sent(&mut client);
        assert_eq!(frames.last().unwrap().0.kind, Kind::GoAway);
        assert_eq!(
            frames.last().unwrap().1[4..],
            violation.code().number().to_be_bytes()
        );
        violation
    };
    let raw = |kind, flags, stream, payload: &[u8]| {
        frame_of(|out| {
            frame::put_head(out, kind, flags, stream, payload.len());
            out.extend_from_slice(payload);
        })
    };
    let flood = |frame: Vec<u8>| frame.repeat(1000);
    let continuations = frame_of(|out| {
        frame::put_head(out, Kind::Headers, 0, 1, 0);
        for _ in 0..100 {
            frame::put_head(out, Kind::Continuation, 0, 1, 0);
        }
    });
    let endless = frame_of(|out| {
        frame::put_head(out, Kind::Headers, 0, 1, 0);
        for _ in 0..10 {
            frame::put_head(out, Kind::Continuation, 0, 1, 10_000);
            out.extend_from_slice(&[0; 10_000]);
        }
    });
    for (frames, expected) in [
        (head(3, 200, &[], true), Violation::HeadersIdentifier(3, 1)),
        (head(2, 200, &[], true), Violation::HeadersIdentifier(2, 1)),
        (head(0, 200, &[], true), Violation::HeadersIdentifier(0, 1)),
        (data(3, b"", true), Violation::Identifier("DATA")),
        (
            raw(Kind::Reset, 0, 0, &[0; 4]),
            Violation::Identifier("RST_STREAM"),
        ),
        (
            raw(Kind::Reset, 0, 1, &[0; 5]),
            Violation::Length("RST_STREAM", 5),
        ),
        (
            raw(Kind::Settings, 0, 1, b""),
            Violation::Identifier("SETTINGS"),
        ),
        (
            raw(Kind::Settings, 0, 0, &[0; 5]),
            Violation::Length("SETTINGS", 5),
        ),
        (
            raw(Kind::Settings, 1, 0, &[0; 6]),
            Violation::Length("SETTINGS", 6),
        ),
        (settings(&[(2, 1)]), Violation::Setting("ENABLE_PUSH", 1)),
        (settings(&[(5, 1)]), Violation::Setting("MAX_FRAME_SIZE", 1)),
        (flood(settings(&[])), Violation::TooMany("SETTINGS frames")),
        (
            flood(raw(Kind::Ping, 0, 0, &[0; 8])),
            Violation::TooMany("PING frames"),
        ),
        (
            raw(Kind::Ping, 0, 1, &[0; 8]),
            Violation::Identifier("PING"),
        ),
        (raw(Kind::Ping, 0, 0, &[0; 7]), Violation::Length("PING", 7)),
        (
            raw(Kind::GoAway, 0, 0, &[0; 7]),
            Violation::Length("GOAWAY", 7),
        ),
        (
            raw(Kind::GoAway, 0, 1, &[0; 8]),
            Violation::Identifier("GOAWAY"),
        ),
        (
            raw(Kind::WindowUpdate, 0, 3, &[1; 4]),
            Violation::Identifier("WINDOW_UPDATE"),
        ),
        (
            raw(Kind::WindowUpdate, 0, 1, &[1; 3]),
            Violation::Length("WINDOW_UPDATE", 3),
        ),
        (
            raw(Kind::PushPromise, 4, 1, &[0; 9]),
            Violation::PushPromise,
        ),
        (
            raw(Kind::PriorityUpdate, 0, 0, &[0; 9]),
            Violation::PriorityUpdate,
        ),
        (
            raw(Kind::Priority, 0, 1, &[0; 4]),
            Violation::Length("PRIORITY", 4),
        ),
        (
            raw(Kind::Headers, flags::END_HEADERS, 1, &[0xff; 3]),
            Violation::Compression(crate::h2::hpack::Error::IntegerTruncated),
        ),
        (
            raw(Kind::Headers, flags::PADDED, 1, &[3, 0]),
            Violation::Padding("HEADERS", 2, 3),
        ),
        (
            raw(Kind::Headers, flags::PRIORITY, 1, &[0; 4]),
            Violation::Length("HEADERS", 4),
        ),
        (
            raw(Kind::Continuation, 0, 1, b""),
            Violation::UnexpectedContinuation,
        ),
        (continuations, Violation::TooManyContinuations),
        (endless, Violation::BlockTooLong),
        (
            raw(Kind::Ping, 0, 0, &[0; 16_385]),
            Violation::FrameTooLong(16_385),
        ),
    ] {
        assert_eq!(violation(frames), expected);
    }
    let mut client: Client<u32> = Client::new(LIMITS);
    let no_settings = raw(Kind::Ping, 0, 0, &[0; 8]);
    assert_eq!(feed(&mut client, &no_settings), Err(Violation::NoSettings));
    // Not HTTP/2.
    let mut client: Client<u32> = Client::new(LIMITS);
    let answer = b"HTTP/1.1 400 Bad Request\r\n\r\n";
    assert!(feed(&mut client, answer).is_err());
    assert!(!client.has_begun());
}

#[test]
fn frames_of_the_connection_are_answered() {
    let mut client = begun(&[]);
    let input = [
        settings(&[(5, 20_000)]),
        frame_of(|out| frame::put_ping(out, false, *b"12345678")),
        frame_of(|out| {
            frame::put_head(out, Kind::Priority, 0, 1, 5);
            out.extend_from_slice(&[0; 5]);
        }),
    ]
    .concat();
    assert_eq!(feed(&mut client, &input), Ok(vec![]));
    let frames = sent(&mut client);
    let kinds: Vec<(Kind, u8)> = frames
        .iter()
        .map(|(head, _)| (head.kind, head.flags))
        .collect();
    assert_eq!(kinds, [(Kind::Settings, 1), (Kind::Ping, 1)]);
    assert_eq!(frames[1].1, b"12345678");
    assert_eq!(client.peer().frame_size_max, 20_000);
    client.put_ping();
    client.send_goaway();
    let frames = sent(&mut client);
    assert_eq!(frames[0].0.kind, Kind::Ping);
    assert_eq!(frames[1].1, [0; 8]);
    assert!(!client.is_within_frame());
    feed(&mut client, &[0, 0]).unwrap();
    assert!(client.is_within_frame());
}
