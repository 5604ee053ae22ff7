//! Streams: identifiers, states, stream errors and connection errors, the limit of concurrent
//! streams, and the two steps of GOAWAY.

use super::*;

#[test]
fn numbers_are_odd_and_rise() {
    let mut client = Client::usual();
    for stream in [1, 3, 9, 0x7fff_ffff] {
        client.get(stream);
        assert_eq!(client.machine.last_stream(), stream);
    }
    for (last, stream) in [(1, 2), (1, 0), (7, 5), (7, 2), (201, 199), (9, 4)] {
        let mut client = Client::usual();
        client.get(last);
        let bytes = frame(HEADERS, END_HEADERS | END_STREAM, stream, &literal(GET));
        // A skipped identifier cannot be used any more (section 5.1.1).
        let violation = client.expect_connection_error(&bytes, code::PROTOCOL_ERROR);
        assert_eq!(violation, Violation::HeadersIdentifier(stream, last));
    }
    // Also if a reset of this stream, or a later request, is remembered.
    let mut client = Client::usual();
    client.get(5);
    client.expect_stream_error_unknown(&frame(DATA, 0, 3, b"a"), 3);
    let bytes = frame(HEADERS, END_HEADERS | END_STREAM, 3, &literal(GET));
    client.expect_connection_error(&bytes, code::PROTOCOL_ERROR);
}

#[test]
fn a_stream_that_has_ended_does_not_begin_again() {
    let mut client = Client::usual();
    for stream in [1, 3, 5] {
        client.get(stream);
        client
            .machine
            .put_head(stream, b"\x88", true, &mut Vec::new());
        client.machine.release(stream);
    }
    assert_eq!(client.control(), b"");
    let bytes = frame(HEADERS, END_HEADERS | END_STREAM, 3, &literal(GET));
    let violation = client.expect_connection_error(&bytes, code::STREAM_CLOSED);
    assert_eq!(violation, Violation::HeadersAfterEnd(3));
}

#[test]
fn an_idle_stream_has_headers_and_priority_alone() {
    // Section 5.1; stream 2 could only be begun by us, and never is.
    for stream in [2, 3, 4] {
        for bytes in [
            frame(DATA, 0, stream, b""),
            reset(stream, 8),
            window_update(stream, 1),
        ] {
            let mut client = Client::usual();
            client.get(1);
            client.expect_connection_error(&bytes, code::PROTOCOL_ERROR);
        }
    }
    let mut client = Client::usual();
    client.get(5);
    client.expect_connection_error(&reset(2, 8), code::PROTOCOL_ERROR);
}

#[test]
fn behind_its_end_a_stream_has_neither_data_nor_headers() {
    // Half-closed (remote), section 5.1: a stream error.
    for bytes in [
        frame(DATA, 0, 1, b"a"),
        frame(DATA, END_STREAM, 1, b""),
        frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            1,
            &literal(&[("a", "b")]),
        ),
    ] {
        let mut client = Client::usual();
        client.get(1);
        let fault = client.expect_stream_error(&bytes, 1, code::STREAM_CLOSED);
        assert!(matches!(fault, StreamFault::HalfClosed(_, 1)));
        // Further frames that were already sent are ignored, until one ends the stream.
        let ends = bytes[4] & END_STREAM != 0;
        client.expect_quiet(&bytes, &[]);
        assert_eq!(client.machine.live(), 1);
        client.machine.release(1);
        if ends {
            continue;
        }
        client.expect_quiet(&bytes, &[]);
        // WINDOW_UPDATE, PRIORITY and RST_STREAM are allowed at any time.
        client.expect_quiet(&window_update(1, 9), &[]);
        client.expect_quiet(&frame(PRIORITY, 0, 1, b"\0\0\0\0\0"), &[]);
        client.expect_quiet(&reset(1, 8), &[]);
        // After the client has ended the stream as well, no further frames can follow.
        let data = frame(DATA, 0, 1, b"a");
        client.expect_quiet(&data, &reset(1, code::STREAM_CLOSED));
    }
}

#[test]
fn what_is_forgiven_has_an_end() {
    let trailers = frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        1,
        &literal(&[("a", "b")]),
    );
    let mut client = Client::usual();
    client.post(1);
    client.machine.reset(1, ErrorCode::NoError);
    client.machine.release(1);
    client.control();
    client.expect_quiet(&frame(DATA, 0, 1, b"a"), &[]);
    client.expect_quiet(&trailers, &[]);
    let violation = client.expect_connection_error(&trailers, code::STREAM_CLOSED);
    assert_eq!(violation, Violation::HeadersAfterEnd(1));
    // Trailers have the same limit as a head, even if they are ignored.
    for is_recently_reset in [false, true] {
        let mut client = Client::usual();
        client.post(1);
        if is_recently_reset {
            client.machine.reset(1, ErrorCode::NoError);
            client.control();
        }
        // A field of 4,000 bytes that is added to the table, and one byte for each repetition.
        let mut block = vec![0x40, 1, b'a', 0x7f, 0xa1, 0x1e];
        block.resize(block.len() + 4000, b'x');
        block.resize(block.len() + 200, 0xbe);
        let bytes = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block);
        let violation = client.expect_connection_error(&bytes, code::ENHANCE_YOUR_CALM);
        assert_eq!(violation, Violation::BlockTooLong);
    }
}

#[test]
fn behind_its_own_reset_a_stream_has_neither_data_nor_headers() {
    for bytes in [
        frame(DATA, 0, 1, b"a"),
        frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            1,
            &literal(&[("a", "b")]),
        ),
    ] {
        let mut client = Client::usual();
        client.post(1);
        let told = Seen::Reset(1, ErrorCode::Cancel, None);
        assert_eq!(client.feed(&reset(1, 8)), Ok(vec![told]));
        // The reset is reported once.
        client.expect_quiet(&reset(1, 8), &[]);
        client.expect_quiet(&bytes, &reset(1, code::STREAM_CLOSED));
        client.expect_quiet(&bytes, &[]);
    }
}

#[test]
fn the_codes_of_resets_are_told() {
    for (number, code) in [
        (0, ErrorCode::NoError),
        (8, ErrorCode::Cancel),
        (0xd, ErrorCode::Http11Required),
        (0xffff_ffff, ErrorCode::Unknown(0xffff_ffff)),
    ] {
        let mut client = Client::usual();
        client.get(1);
        let told = Seen::Reset(1, code, None);
        assert_eq!(client.feed(&reset(1, number)), Ok(vec![told]));
        let stream = client.machine.stream(1).unwrap();
        assert!(stream.is_closed() && !stream.sends() && !stream.receives());
        // Nothing is sent on the stream any more.
        let mut out = Vec::new();
        client.machine.put_head(1, b"\x88", false, &mut out);
        client.machine.wants_to_send(1);
        assert_eq!(client.machine.turn(), None);
        client.machine.reset(1, ErrorCode::InternalError);
        client.machine.release(1);
        assert_eq!((out, client.control()), (vec![], vec![]));
    }
}

#[test]
fn a_body_is_as_long_as_it_says() {
    // Section 8.1.1: a stream error of type PROTOCOL_ERROR; a response may be sent before the
    // reset.
    let whole = [frame(DATA, 0, 1, b"abcd"), frame(DATA, END_STREAM, 1, b"e")];
    let seen = |parts: &[Vec<u8>]| {
        let mut client = Client::usual();
        client.post_of(1, 5);
        client.feed(&parts.concat())
    };
    let first = Seen::Data(1, b"abcd".to_vec(), false);
    let last = Seen::Data(1, b"e".to_vec(), true);
    assert_eq!(seen(&whole), Ok(vec![first.clone(), last]));
    // The end may arrive separately, as DATA or as trailers.
    let trailers = frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        1,
        &literal(&[("a", "b")]),
    );
    for end in [frame(DATA, END_STREAM, 1, b""), trailers.clone()] {
        let parts = [whole[0].clone(), frame(DATA, 0, 1, b"e"), end];
        let end = Seen::Data(1, vec![], true);
        let middle = Seen::Data(1, b"e".to_vec(), false);
        assert_eq!(seen(&parts), Ok(vec![first.clone(), middle, end]));
    }
    for wrong in [
        frame(DATA, END_STREAM, 1, b"abcd"),
        frame(DATA, END_STREAM, 1, b""),
        frame(DATA, 0, 1, b"abcdef"),
        frame(DATA, END_STREAM, 1, b"abcdef"),
        frame(DATA, END_STREAM | PADDED, 1, &padded(b"abcd", 1)),
        trailers.clone(),
    ] {
        let mut client = Client::usual();
        client.post_of(1, 5);
        let told = Seen::Wrong(StreamFault::BodyLength(1));
        assert_eq!(client.feed(&wrong), Ok(vec![told]));
        assert_eq!(StreamFault::BodyLength(1).code(), ErrorCode::ProtocolError);
        // The rest of the body is not reported; a response may be sent before the reset.
        client.expect_quiet(&frame(DATA, END_STREAM, 1, b"ab"), &[]);
        let mut out = Vec::new();
        client.machine.put_head(1, b"\x8c", true, &mut out);
        assert_eq!(out, frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x8c"));
        client.machine.reset_answered(1, ErrorCode::ProtocolError);
        assert_eq!(client.control(), reset(1, code::PROTOCOL_ERROR));
    }
    // Padding does not count.
    let mut client = Client::usual();
    client.post_of(1, 1);
    let bytes = frame(DATA, END_STREAM | PADDED, 1, &padded(b"a", 200));
    assert_eq!(
        client.feed(&bytes),
        Ok(vec![Seen::Data(1, b"a".to_vec(), true)])
    );
    // A body of length 0.
    let mut client = Client::usual();
    client.post_of(1, 0);
    let told = Seen::Wrong(StreamFault::BodyLength(1));
    assert_eq!(client.feed(&frame(DATA, 0, 1, b"a")), Ok(vec![told]));
}

#[test]
fn trailers_end_their_stream() {
    let mut client = Client::usual();
    client.post(1);
    let bytes = frame(HEADERS, END_HEADERS, 1, &literal(&[("a", "b")]));
    let fault = client.expect_stream_error(&bytes, 1, code::PROTOCOL_ERROR);
    assert_eq!(fault, StreamFault::Trailers(1));
    // Pseudo-header fields are not allowed in trailers (section 8.1).
    let mut client = Client::usual();
    client.post(1);
    let bytes = frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        1,
        &literal(&[(":path", "/")]),
    );
    let fault = client.expect_stream_error(&bytes, 1, code::PROTOCOL_ERROR);
    assert_eq!(fault, StreamFault::Trailers(1));
    // Neither is anything that would make a head malformed (sections 8.2.1 and 8.2.2).
    for (name, value) in [
        ("A", "b"),
        ("", "b"),
        ("a b", "c"),
        ("a:", "b"),
        ("a", "b\r\nc: d"),
        ("a", "b\0"),
        ("connection", "close"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
    ] {
        let mut client = Client::usual();
        client.post(1);
        let block = literal(&[(name, value)]);
        let bytes = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block);
        let fault = client.expect_stream_error(&bytes, 1, code::PROTOCOL_ERROR);
        assert_eq!(fault, StreamFault::Trailers(1), "{name:?}: {value:?}");
    }
    // If HEADERS is split, END_STREAM of the first frame counts.
    let mut client = Client::usual();
    client.post(1);
    let bytes = [
        frame(HEADERS, END_STREAM, 1, &[]),
        frame(CONTINUATION, END_HEADERS, 1, &literal(&[("a", "b")])),
    ];
    let seen = client.feed(&bytes.concat());
    assert_eq!(seen, Ok(vec![Seen::Data(1, vec![], true)]));
}

#[test]
fn the_rest_of_a_frame_reaches_nobody_whose_stream_has_ended() {
    let ends: [fn(&mut Client); 4] = [
        |client| client.machine.reset(1, ErrorCode::Cancel),
        |client| client.machine.release(1),
        |client| {
            let machine = &mut client.machine;
            machine.put_head(1, b"\x88", true, &mut Vec::new());
            machine.release(1);
        },
        |client| client.machine.ignore_rest(1),
    ];
    for end in ends {
        let mut client = Client::usual();
        client.post(1);
        let bytes = frame(DATA, END_STREAM | PADDED, 1, &padded(b"abcdef", 2));
        let first = client.feed(&bytes[..13]);
        assert_eq!(first, Ok(vec![Seen::Data(1, b"abc".to_vec(), false)]));
        end(&mut client);
        client.control();
        client.expect_quiet(&bytes[13..], &[]);
        client.get(3);
    }
    // Data for a released stream are discarded, even if both halves were closed.
    let mut client = Client::usual();
    client.post(1);
    let bytes = frame(DATA, END_STREAM, 1, b"abcdef");
    assert!(client.feed(&bytes[..12]).is_ok());
    client.machine.put_head(1, b"\x88", true, &mut Vec::new());
    client.machine.release(1);
    client.expect_quiet(&bytes[12..], &[]);
}

#[test]
fn what_crosses_a_reset_is_no_fault() {
    let mut client = Client::usual();
    // More resets than are remembered on a connection with few streams.
    for number in 0..100 {
        let stream = 2 * number + 1;
        client.post(stream);
        client.machine.reset(stream, ErrorCode::Cancel);
        client.machine.release(stream);
        assert_eq!(client.control(), reset(stream, code::CANCEL));
    }
    for number in 0..100 {
        let stream = 2 * number + 1;
        client.expect_quiet(&frame(DATA, 0, stream, b"abc"), &[]);
        // The fields of ignored trailers are added to the table.
        let trailers = client.headers(stream, END_STREAM, &[("x-sum", "of-this-body")]);
        client.expect_quiet(&trailers, &[]);
        client.expect_quiet(&window_update(stream, 1), &[]);
    }
    client.get(201);
    let fields = [GET, &[("x-sum", "of-this-body")]].concat();
    let bytes = client.headers(203, END_STREAM, &fields);
    // The field takes one byte: it was added to the table.
    assert_eq!(bytes.len(), 9 + 5);
    assert!(matches!(
        client.feed(&bytes).as_deref(),
        Ok([Seen::Head(203, ..)])
    ));
    let last = client.head.fields().first().unwrap();
    assert_eq!(last.value(&client.bytes), b"of-this-body");
}

#[test]
fn a_place_is_free_when_its_stream_is_released() {
    let mut client = Client::begun(Limits {
        streams_max: 2,
        ..LIMITS
    });
    client.get(1);
    client.get(3);
    // The client has reset the stream, but the work for it continues (CVE-2023-44487).
    client.feed(&reset(1, 8)).unwrap();
    let refused = |client: &mut Client, stream: u32| {
        // The fields of a refused request are added to the table.
        let value = format!("value-of-{stream}");
        let bytes = client.headers(stream, END_STREAM, &[GET, &[("x-own", &value)]].concat());
        let fault = StreamFault::TooManyStreams(stream);
        assert_eq!(client.feed(&bytes), Ok(vec![Seen::Refused(fault)]));
        assert_eq!(client.control(), reset(stream, code::REFUSED_STREAM));
        // Further frames on the stream are ignored.
        client.expect_quiet(&frame(DATA, END_STREAM, stream, b"abc"), &[]);
    };
    refused(&mut client, 5);
    // A complete response does not make room for another stream, either.
    client.machine.put_head(3, b"\x88", true, &mut Vec::new());
    refused(&mut client, 7);
    assert_eq!(client.machine.live(), 2);
    client.machine.release(3);
    client.get(9);
    refused(&mut client, 11);
    client.machine.release(1);
    let fields = [GET, &[("x-own", "value-of-11"), ("x-own", "value-of-5")]].concat();
    let bytes = client.headers(13, END_STREAM, &fields);
    assert!(client.feed(&bytes).is_ok());
    let values: Vec<&[u8]> = client
        .head
        .fields()
        .iter()
        .map(|field| field.value(&client.bytes))
        .collect();
    assert_eq!(values, [&b"value-of-11"[..], b"value-of-5", b"example.org"]);
}

#[test]
fn a_body_that_comes_before_a_small_window_is_known_is_refused() {
    // As in nginx: the client may send 65,535 bytes until it receives our smaller window.
    for (window, is_refused) in [(65_534, true), (65_535, false)] {
        let mut client = Client::new(Limits {
            stream_window: window,
            ..LIMITS
        });
        let input = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
        client.feed(&input).unwrap();
        client.control();
        client.get(1);
        let bytes = client.headers(3, 0, POST);
        let seen = client.feed(&bytes).unwrap();
        let fault = StreamFault::TooEarly(3);
        assert_eq!(seen == [Seen::Refused(fault)], is_refused);
        if is_refused {
            assert_eq!(client.control(), reset(3, code::REFUSED_STREAM));
            client.expect_quiet(&frame(DATA, END_STREAM, 3, b"abc"), &[]);
        }
        client.expect_quiet(&frame(SETTINGS, ACK, 0, &[]), &[]);
        client.post(5);
    }
}

#[test]
fn a_head_that_does_not_come_in_time_is_given_up() {
    let block = literal(GET);
    let cut = |bytes: &[u8]| {
        let mut client = Client::usual();
        client.post(1);
        client.feed(bytes).unwrap();
        client
    };
    // Within the first frame, or between frames: the rest of the block only updates the table.
    let whole = frame(HEADERS, END_HEADERS | END_STREAM, 3, &block);
    let parts = [
        frame(HEADERS, END_STREAM, 3, &block[..9]),
        frame(CONTINUATION, END_HEADERS, 3, &block[9..]),
    ]
    .concat();
    for bytes in [whole, parts] {
        for at in [9, 10, 18, 20] {
            let mut client = cut(&bytes[..at]);
            assert!(client.machine.is_within_frame());
            assert!(client.machine.time_out_frame() && client.machine.time_out_frame());
            client.expect_quiet(&bytes[at..], &reset(3, code::PROTOCOL_ERROR));
            assert!(!client.machine.is_within_frame());
            client.expect_quiet(&frame(DATA, 0, 3, b"a"), &[]);
            client.get(5);
        }
    }
    // No other frame is given up, nor one whose head is incomplete.
    for bytes in [
        &frame(HEADERS, END_HEADERS, 3, &block)[..8],
        &frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)[..10],
        &frame(HEADERS, END_STREAM, 1, &block),
        &frame(PING, 0, 0, b"12345678")[..12],
        &frame(DATA, 0, 1, b"12345678")[..12],
        &[],
    ] {
        let mut client = cut(bytes);
        assert!(!client.machine.time_out_frame());
        assert_eq!(client.control(), b"");
    }
}

#[test]
fn a_malformed_request_feeds_the_table() {
    let mut client = Client::usual();
    let fields = [GET, &[("connection", "close"), ("x-own", "value")]].concat();
    let bytes = client.headers(1, END_STREAM, &fields);
    let words = "client sent \"Connection\" header".to_owned();
    assert_eq!(client.feed(&bytes), Ok(vec![Seen::Malformed(1, words)]));
    let bytes = client.headers(3, END_STREAM, &[GET, &[("x-own", "value")]].concat());
    assert!(matches!(
        client.feed(&bytes).as_deref(),
        Ok([Seen::Head(3, ..)])
    ));
    let own = client.head.fields().first().unwrap();
    assert_eq!(own.value(&client.bytes), b"value");
}

#[test]
fn a_connection_ends_in_two_steps() {
    let mut client = Client::usual();
    client.get(1);
    client.machine.announce_end();
    let announced = [
        goaway(WINDOW_MAX, code::NO_ERROR),
        frame(PING, 0, 0, b"tidegate"),
    ];
    assert_eq!(client.control(), announced.concat());
    assert!(!client.machine.is_going_away());
    // Requests that the client sent before it received the announcement are processed.
    client.post(3);
    let pong = client.feed(&frame(PING, ACK, 0, b"tidegate"));
    assert_eq!(pong, Ok(vec![Seen::Pong]));
    client.machine.send_goaway();
    assert_eq!(client.control(), goaway(3, code::NO_ERROR));
    assert!(client.machine.is_going_away());
    // The final GOAWAY is sent once, and the first step cannot follow it.
    client.machine.send_goaway();
    client.machine.announce_end();
    assert_eq!(client.control(), b"");
    // Later requests are ignored, but their fields update the table, and their data count against
    // the window.
    for stream in [5, 7] {
        let bytes = client.headers(stream, 0, &[POST, &[("x-own", "value")]].concat());
        client.expect_quiet(&bytes, &[]);
        client.expect_quiet(&frame(DATA, 0, stream, b"abc"), &[]);
        let trailers = client.headers(stream, END_STREAM, &[("x-own", "value")]);
        client.expect_quiet(&trailers, &[]);
    }
    let length = client.headers(9, 0, &[("x-own", "value")]).len();
    assert_eq!(length, 9 + 1);
    // Earlier requests are processed.
    let seen = client.feed(&frame(DATA, END_STREAM, 3, b"abc"));
    assert_eq!(seen, Ok(vec![Seen::Data(3, b"abc".to_vec(), true)]));
    // The last GOAWAY does not raise the last stream (section 6.8).
    let violation = client.feed(&frame(PING, 0, 3, b"12345678")).unwrap_err();
    client.machine.fail(violation.code());
    assert_eq!(client.control(), goaway(3, code::PROTOCOL_ERROR));
}

#[test]
fn a_client_may_go_away() {
    let mut client = Client::usual();
    client.get(1);
    let bytes = frame(GOAWAY, 0x55, 0, b"\0\0\0\0\0\0\0\x02and why");
    let told = Seen::GoAway(ErrorCode::InternalError);
    assert_eq!(code::INTERNAL_ERROR, 2);
    assert_eq!(client.feed(&bytes), Ok(vec![told]));
    // The client's GOAWAY does not prevent it from opening streams.
    client.get(3);
}

#[test]
fn a_response_that_is_complete_first_ends_the_request() {
    // Section 8.1: RST_STREAM with NO_ERROR after the response.
    let mut client = Client::usual();
    client.post(1);
    let mut out = Vec::new();
    client.machine.put_head(1, b"\x8d", true, &mut out);
    let head = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x8d");
    assert_eq!(out, head);
    assert_eq!(client.control(), b"");
    client.machine.release(1);
    assert_eq!(client.control(), reset(1, code::NO_ERROR));
    client.expect_quiet(&frame(DATA, 0, 1, b"abc"), &[]);

    client.post(3);
    let mut out = Vec::new();
    client.machine.put_head(3, b"\x88", false, &mut out);
    client.machine.wants_to_send(3);
    assert_eq!(client.machine.turn().map(|(stream, _)| stream), Some(3));
    let head = client.machine.sent(3, 2, true, false);
    out.extend_from_slice(&head);
    out.extend_from_slice(b"ok");
    let expected = [
        frame(HEADERS, END_HEADERS, 3, b"\x88"),
        frame(DATA, END_STREAM, 3, b"ok"),
    ];
    assert_eq!(out, expected.concat());
    // Until the stream is released, its data are reported, and it may end.
    let part = Seen::Data(3, b"abc".to_vec(), false);
    assert_eq!(client.feed(&frame(DATA, 0, 3, b"abc")), Ok(vec![part]));
    client.machine.release(3);
    assert_eq!(client.control(), reset(3, code::NO_ERROR));
    client.expect_quiet(&frame(DATA, 0, 3, b"abc"), &[]);

    // A complete request needs no reset, even after the response; an incomplete response is
    // cancelled.
    client.get(5);
    client.post(7);
    client.post(9);
    let mut out = Vec::new();
    client.machine.put_head(5, b"\x88", true, &mut out);
    client.machine.put_head(7, b"\x88", true, &mut out);
    client.machine.put_head(9, b"\x88", false, &mut out);
    let last = Seen::Data(7, b"abc".to_vec(), true);
    let bytes = frame(DATA, END_STREAM, 7, b"abc");
    assert_eq!(client.feed(&bytes), Ok(vec![last]));
    for stream in [5, 7, 9] {
        client.machine.release(stream);
    }
    assert_eq!(client.control(), reset(9, code::CANCEL));
}

#[test]
fn what_is_released_unfinished_is_cancelled() {
    let mut client = Client::usual();
    client.get(1);
    client.post(3);
    client.machine.release(1);
    client.machine.release(3);
    client.machine.release(3);
    let expected = [reset(1, code::CANCEL), reset(3, code::CANCEL)];
    assert_eq!(client.control(), expected.concat());
    assert_eq!(client.machine.live(), 0);
    // `reset_answered` resets a stream in any state.
    client.get(5);
    client.machine.put_head(5, b"\x8c", true, &mut Vec::new());
    client.machine.reset_answered(5, ErrorCode::ProtocolError);
    assert_eq!(client.control(), reset(5, code::PROTOCOL_ERROR));
}

impl Client {
    /// Asserts that the bytes reset a stream that the caller does not know.
    fn expect_stream_error_unknown(&mut self, bytes: &[u8], stream: u32) {
        self.expect_quiet(bytes, &reset(stream, code::STREAM_CLOSED));
    }
}
