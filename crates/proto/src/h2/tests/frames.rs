//! Frames: the preface, lengths, padding, header blocks in several frames, and independence of how
//! the input is split.

use super::*;
use crate::h2::connection::FRAME_SIZE_MAX;

/// A conversation with every frame that a client may send, in every form.
fn conversation() -> Vec<Vec<u8>> {
    let mut client = Client::new(LIMITS);
    let mut frames = vec![
        PREFACE.to_vec(),
        frame(SETTINGS, 0, 0, &setting_payload(4, 1000)),
        frame(SETTINGS, ACK, 0, &[]),
        window_update(0, 70_000),
        frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1, i"),
        client.headers(1, END_STREAM, GET),
    ];
    // A block in three frames, the last of which is empty, after padding and priority fields.
    let fields = [POST, &[("content-length", "11"), ("x-own", "of mine")]].concat();
    let block = client.block(&fields);
    let (first, second) = block.split_at(10);
    let first = [b"\0\0\0\0\x0f", first].concat();
    frames.extend([
        frame(HEADERS, PADDED | WITH_PRIORITY, 3, &padded(&first, 7)),
        frame(CONTINUATION, 0, 3, second),
        frame(CONTINUATION, END_HEADERS, 3, &[]),
        frame(DATA, 0, 3, b"hello"),
        frame(DATA, PADDED, 3, &padded(b" worl", 255)),
        frame(DATA, 0, 3, b""),
        frame(DATA, PADDED, 3, &padded(b"d", 0)),
        client.headers(3, END_STREAM, &[("x-sum", "1")]),
        frame(PRIORITY, 0, 5, b"\x80\0\0\x03\x10"),
        client.headers(5, 0, POST),
        frame(DATA, END_STREAM | PADDED, 5, &padded(b"", 3)),
        frame(PING, 0, 0, b"abcdefgh"),
        frame(PING, ACK, 0, b"tidegate"),
        frame(0xfa, 0xff, 99, b"of an extension"),
        frame(0xfa, 0, 0, b""),
        client.headers(7, 0, POST),
        frame(DATA, 0, 7, &[b'x'; 300]),
        reset(7, 8),
        window_update(1, 1),
        frame(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\0bye"),
        // Two bytes more than the Content-Length.
        client.headers(9, 0, &[POST, &[("content-length", "1")]].concat()),
        frame(DATA, 0, 9, b"abc"),
        frame(DATA, PADDED, 9, &padded(b"behind it", 9)),
        client.headers(9, END_STREAM, &[("x-sum", "2")]),
        client.headers(11, END_STREAM, GET),
    ]);
    frames
}

/// Joins the parts of a body, whose boundaries depend on how the input is split.
fn joined(seen: Vec<Seen>) -> Vec<Seen> {
    let mut joined: Vec<Seen> = Vec::new();
    for next in seen {
        if let (Some(Seen::Data(stream, bytes, ends @ false)), Seen::Data(of, more, is_last)) =
            (joined.last_mut(), &next)
            && stream == of
        {
            bytes.extend_from_slice(more);
            *ends = *is_last;
            continue;
        }
        joined.push(next);
    }
    joined
}

#[test]
fn the_same_in_whatever_pieces_it_comes() {
    let input = conversation().concat();
    let take = |pieces: &[&[u8]]| {
        let mut client = Client::new(LIMITS);
        let mut seen = Vec::new();
        for piece in pieces {
            seen.extend(client.feed(piece).unwrap());
        }
        assert!(!client.machine.is_within_frame());
        (joined(seen), client.control())
    };
    let whole = take(&[&input]);
    let line = |method: &str| format!("{method} / HTTP/2.0");
    let fault = StreamFault::BodyLength(9);
    assert_eq!(
        whole.0,
        [
            Seen::Head(1, line("GET"), true, None),
            Seen::Head(3, line("POST"), false, Some(11)),
            Seen::Data(3, b"hello world".to_vec(), true),
            Seen::Head(5, line("POST"), false, None),
            Seen::Data(5, vec![], true),
            Seen::Pong,
            Seen::Head(7, line("POST"), false, None),
            Seen::Data(7, vec![b'x'; 300], false),
            Seen::Reset(7, ErrorCode::Cancel, None),
            Seen::GoAway(ErrorCode::NoError),
            Seen::Head(9, line("POST"), false, Some(1)),
            Seen::Wrong(fault),
            Seen::Head(11, line("GET"), true, None),
        ]
    );
    // Our SETTINGS and the connection's window first; then the replies.
    let ours = [
        setting_payload(3, 100),
        setting_payload(4, WINDOW),
        setting_payload(5, FRAME_SIZE_MAX),
    ];
    let answers = [
        frame(SETTINGS, 0, 0, &ours.concat()),
        window_update(0, WINDOW_MAX - 65_535),
        frame(SETTINGS, ACK, 0, &[]),
        frame(PING, ACK, 0, b"abcdefgh"),
    ];
    assert_eq!(whole.1, answers.concat());
    let bytes: Vec<&[u8]> = input.chunks(1).collect();
    assert_eq!(take(&bytes), whole);
    for size in [2, 3, 5, 7, 10, 16, 64] {
        let pieces: Vec<&[u8]> = input.chunks(size).collect();
        assert_eq!(take(&pieces), whole, "pieces of {size}");
    }
    for at in 0..=input.len() {
        let (first, second) = input.split_at(at);
        assert_eq!(take(&[first, second]), whole, "split at {at}");
    }
}

#[test]
fn a_frame_that_has_not_come_whole_is_noticed() {
    let mut client = Client::new(LIMITS);
    for piece in conversation() {
        let is_block = matches!(
            (piece[3], piece[4] & END_HEADERS),
            (HEADERS | CONTINUATION, 0)
        );
        for (count, byte) in piece.iter().enumerate() {
            client.feed(&[*byte]).unwrap();
            let is_within = count + 1 < piece.len() || is_block;
            // The data of a body do not count: they are passed on as they arrive.
            if piece[3] != DATA || count < 8 || !is_within {
                assert_eq!(client.machine.is_within_frame(), is_within);
            }
        }
    }
}

#[test]
fn a_preface_is_that_of_the_rfc() {
    for at in 0..PREFACE.len() {
        let mut bytes = PREFACE.to_vec();
        bytes[at] ^= 0x20;
        let whole = Client::new(LIMITS).expect_connection_error(&bytes, code::PROTOCOL_ERROR);
        assert_eq!(whole, Violation::Preface);
        // The error is reported at the first wrong byte, and not earlier.
        let mut client = Client::new(LIMITS);
        assert_eq!(client.feed(&bytes[..at]), Ok(vec![]));
        client.expect_connection_error(&bytes[at..=at], code::PROTOCOL_ERROR);
    }
    let http1 = b"GET / HTTP/1.1\r\n";
    Client::new(LIMITS).expect_connection_error(http1, code::PROTOCOL_ERROR);
}

#[test]
fn settings_need_not_come_first() {
    // Section 3.4 requires SETTINGS first; nginx serves a client without them, and so do we.
    let mut client = Client::new(LIMITS);
    assert_eq!(client.feed(PREFACE), Ok(vec![]));
    client.control();
    client.get(1);
    client.expect_quiet(
        &frame(PING, 0, 0, b"12345678"),
        &frame(PING, ACK, 0, b"12345678"),
    );
    client.expect_quiet(&frame(SETTINGS, 0, 0, &[]), &frame(SETTINGS, ACK, 0, &[]));
    assert!(!client.machine.is_within_frame());
}

#[test]
fn a_frame_has_no_more_than_was_said() {
    // Frames that are buffered may have 2^14 bytes, other frames as many as our SETTINGS allow. A
    // longer frame is rejected before its payload is received.
    let mut client = Client::usual();
    client.post(1);
    let longest = FRAME_SIZE_MAX as usize;
    assert_eq!(
        client.feed(&frame(0xfa, 0, 1, &vec![0; longest])),
        Ok(vec![])
    );
    let seen = client.feed(&frame(DATA, 0, 1, &[0; 17_000])).unwrap();
    assert_eq!(seen, [Seen::Data(1, vec![0; 17_000], false)]);
    for kind in 0..=0x11 {
        let longest = match kind {
            DATA | HEADERS | CONTINUATION | 0xa..=0xf | 0x11 => longest,
            _ => 16_384,
        };
        let mut client = Client::usual();
        client.post(1);
        let head = &frame(kind, 0, 1, &vec![0; longest + 1])[..9];
        let violation = client.expect_connection_error(head, code::FRAME_SIZE_ERROR);
        assert_eq!(violation, Violation::FrameTooLong(longest as u32 + 1));
    }
    let head = [0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1];
    Client::usual().expect_connection_error(&head, code::FRAME_SIZE_ERROR);
}

#[test]
fn a_block_that_is_too_large_is_not_waited_for() {
    let limits = Limits {
        block_size_max: 1000,
        ..LIMITS
    };
    // The payload outside the block is padding and priority fields.
    let block = [0x82; 1000];
    let payload = padded(&[&[0; 5][..], &block].concat(), 255);
    let longest = frame(HEADERS, PADDED | WITH_PRIORITY, 1, &payload);
    let mut client = Client::begun(limits);
    assert_eq!(client.feed(&longest), Ok(vec![]));
    let longer = frame(HEADERS, 0, 1, &vec![0x82; payload.len() + 1]);
    let mut client = Client::begun(limits);
    let violation = client.expect_connection_error(&longer[..9], code::ENHANCE_YOUR_CALM);
    assert_eq!(violation, Violation::BlockTooLong);
    let mut client = Client::begun(limits);
    let begin = frame(HEADERS, 0, 1, &block[..1]);
    assert_eq!(client.feed(&begin), Ok(vec![]));
    let more = frame(CONTINUATION, 0, 1, &block);
    let violation = client.expect_connection_error(&more[..9], code::ENHANCE_YOUR_CALM);
    assert_eq!(violation, Violation::BlockTooLong);
}

#[test]
fn frames_of_a_fixed_length_have_no_other() {
    let lengths: &[(u8, &[usize])] = &[
        (PRIORITY, &[0, 4, 6]),
        (RST_STREAM, &[0, 3, 5]),
        (PING, &[0, 7, 9]),
        (GOAWAY, &[0, 7]),
        (WINDOW_UPDATE, &[0, 3, 5]),
        (SETTINGS, &[1, 5, 7, 6 * 3 + 1]),
        (PRIORITY_UPDATE, &[0, 3]),
    ];
    for (kind, lengths) in lengths {
        for length in *lengths {
            let mut client = Client::usual();
            client.get(1);
            let stream = u32::from(matches!(*kind, PRIORITY | RST_STREAM));
            let bytes = frame(*kind, 0, stream, &vec![1; *length]);
            let violation = client.expect_connection_error(&bytes, code::FRAME_SIZE_ERROR);
            assert!(matches!(violation, Violation::Length(..)), "{violation}");
        }
    }
    // An acknowledgement of SETTINGS must be empty (section 6.5).
    let bytes = frame(SETTINGS, ACK, 0, &setting_payload(4, 1));
    Client::usual().expect_connection_error(&bytes, code::FRAME_SIZE_ERROR);
}

#[test]
fn frames_of_the_connection_are_not_those_of_streams() {
    for (kind, payload) in [
        (SETTINGS, &b""[..]),
        (PING, b"12345678"),
        (GOAWAY, b"12345678"),
        (PRIORITY_UPDATE, b"\0\0\0\x03u=1"),
    ] {
        let mut client = Client::usual();
        client.get(1);
        client.expect_connection_error(&frame(kind, 0, 1, payload), code::PROTOCOL_ERROR);
    }
    for (kind, flags, payload) in [
        (DATA, 0, &b""[..]),
        (HEADERS, END_HEADERS, &literal(GET)),
        (PRIORITY, 0, b"\0\0\0\x03\0"),
        (RST_STREAM, 0, b"\0\0\0\0"),
        (CONTINUATION, END_HEADERS, b""),
    ] {
        let bytes = frame(kind, flags, 0, payload);
        Client::usual().expect_connection_error(&bytes, code::PROTOCOL_ERROR);
    }
    let pushed = frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]);
    let violation = Client::usual().expect_connection_error(&pushed, code::PROTOCOL_ERROR);
    assert_eq!(violation, Violation::PushPromise);
}

#[test]
fn the_reserved_bit_before_a_stream_is_passed_over() {
    let mut client = Client::usual();
    let bytes = client.headers(0x8000_0001, END_STREAM, GET);
    let line = "GET / HTTP/2.0".to_owned();
    assert_eq!(
        client.feed(&bytes),
        Ok(vec![Seen::Head(1, line, true, None)])
    );
    client.expect_quiet(&window_update(0x8000_0001, 0x8000_0001), &[]);
}

#[test]
fn flags_that_mean_nothing_are_passed_over() {
    let mut client = Client::usual();
    let bytes = frame(PING, 0xfe, 0, b"12345678");
    client.expect_quiet(&bytes, &frame(PING, ACK, 0, b"12345678"));
    client.expect_quiet(
        &frame(SETTINGS, 0xfe, 0, &[]),
        &frame(SETTINGS, ACK, 0, &[]),
    );
    client.expect_quiet(&frame(WINDOW_UPDATE, 0xff, 0, &[0, 0, 0, 1]), &[]);
}

#[test]
fn padding_is_shorter_than_its_frame() {
    // DATA: the padding may leave no data, but must not be longer than the payload (section 6.1).
    let mut client = Client::usual();
    client.post(1);
    client.expect_quiet(&frame(DATA, PADDED, 1, &padded(b"", 0)), &[]);
    client.expect_quiet(&frame(DATA, PADDED, 1, &padded(b"", 255)), &[]);
    let seen = client.feed(&frame(DATA, PADDED | END_STREAM, 1, &padded(b"a", 9)));
    assert_eq!(seen, Ok(vec![Seen::Data(1, b"a".to_vec(), true)]));
    for payload in [&[1][..], &[255], &[3, 0, 0], &[4, 0, 0]] {
        let mut client = Client::usual();
        client.post(1);
        let bytes = frame(DATA, PADDED, 1, payload);
        let violation = client.expect_connection_error(&bytes, code::PROTOCOL_ERROR);
        assert!(matches!(violation, Violation::Padding("DATA", ..)));
        // The error is reported at the first byte of the payload.
        let mut client = Client::usual();
        client.post(1);
        client.expect_connection_error(&bytes[..10], code::PROTOCOL_ERROR);
    }
    let mut client = Client::usual();
    client.post(1);
    client.expect_connection_error(&frame(DATA, PADDED, 1, &[]), code::FRAME_SIZE_ERROR);

    // HEADERS: as for DATA (section 6.2). An empty block is valid HPACK, but lacks the required
    // fields.
    let seen = Client::usual().feed(&frame(HEADERS, PADDED | END_HEADERS, 1, &padded(b"", 4)));
    let words = "client sent no :method header".to_owned();
    assert_eq!(seen, Ok(vec![Seen::Malformed(1, words)]));
    for payload in [&[1][..], &[3, 0x82, 0x84]] {
        let bytes = frame(HEADERS, PADDED | END_HEADERS, 1, payload);
        let violation = Client::usual().expect_connection_error(&bytes, code::PROTOCOL_ERROR);
        assert!(matches!(violation, Violation::Padding("HEADERS", ..)));
    }
    for (flags, payload) in [
        (PADDED, &[][..]),
        (WITH_PRIORITY, &[0, 0, 0, 0]),
        (PADDED | WITH_PRIORITY, &[0, 0, 0, 0, 0]),
    ] {
        let bytes = frame(HEADERS, flags | END_HEADERS, 1, payload);
        Client::usual().expect_connection_error(&bytes, code::FRAME_SIZE_ERROR);
    }
    let bytes = [&[1, 0, 0, 0, 0, 0][..], b""].concat();
    let bytes = frame(HEADERS, PADDED | WITH_PRIORITY | END_HEADERS, 1, &bytes);
    Client::usual().expect_connection_error(&bytes, code::PROTOCOL_ERROR);
}

#[test]
fn nothing_comes_within_a_header_block() {
    let block = literal(GET);
    let begin = |client: &mut Client| {
        let bytes = frame(HEADERS, END_STREAM, 1, &block[..9]);
        assert_eq!(client.feed(&bytes), Ok(vec![]));
        assert!(client.machine.is_within_frame());
    };
    for between in [
        frame(PING, 0, 0, b"12345678"),
        frame(SETTINGS, 0, 0, &[]),
        frame(DATA, 0, 1, b""),
        frame(HEADERS, END_HEADERS, 1, &block),
        frame(HEADERS, END_HEADERS, 3, &block),
        frame(PRIORITY, 0, 1, b"\0\0\0\x03\0"),
        reset(1, 8),
        window_update(0, 1),
        frame(0xfa, 0, 0, &[]),
        frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x03u=1"),
    ] {
        let mut client = Client::usual();
        begin(&mut client);
        let violation = client.expect_connection_error(&between, code::PROTOCOL_ERROR);
        assert_eq!(violation, Violation::ContinuationExpected);
    }
    for stream in [0, 3] {
        let mut client = Client::usual();
        begin(&mut client);
        let bytes = frame(CONTINUATION, END_HEADERS, stream, &block[9..]);
        let violation = client.expect_connection_error(&bytes, code::PROTOCOL_ERROR);
        assert_eq!(violation, Violation::ContinuationIdentifier);
    }
    let mut client = Client::usual();
    client.get(1);
    let bytes = frame(CONTINUATION, END_HEADERS, 1, &[]);
    let violation = client.expect_connection_error(&bytes, code::PROTOCOL_ERROR);
    assert_eq!(violation, Violation::UnexpectedContinuation);
}

#[test]
fn a_header_block_has_a_bound_and_so_have_its_frames() {
    // 64 frames after the first are accepted, even empty ones; one more is not.
    let block = literal(GET);
    let mut client = Client::usual();
    let begin = frame(HEADERS, END_STREAM, 1, &block);
    assert_eq!(client.feed(&begin), Ok(vec![]));
    for _ in 0..63 {
        assert_eq!(client.feed(&frame(CONTINUATION, 0, 1, &[])), Ok(vec![]));
    }
    let seen = client.feed(&frame(CONTINUATION, END_HEADERS, 1, &[]));
    assert!(matches!(seen.as_deref(), Ok([Seen::Head(1, ..)])));

    let mut client = Client::usual();
    assert_eq!(client.feed(&begin), Ok(vec![]));
    for _ in 0..64 {
        assert_eq!(client.feed(&frame(CONTINUATION, 0, 1, &[])), Ok(vec![]));
    }
    let more = frame(CONTINUATION, 0, 1, &[]);
    let violation = client.expect_connection_error(&more, code::ENHANCE_YOUR_CALM);
    assert_eq!(violation, Violation::TooManyContinuations);

    // An encoded block may have 32 KiB; one more byte is too many, whatever it contains.
    let mut client = Client::usual();
    assert_eq!(
        client.feed(&frame(HEADERS, 0, 1, &[0x82; 16_384])),
        Ok(vec![])
    );
    let full = frame(CONTINUATION, 0, 1, &[0x82; 16_384]);
    assert_eq!(client.feed(&full), Ok(vec![]));
    assert!(client.machine.memory()[1] <= 64 * 1024);
    let more = frame(CONTINUATION, 0, 1, &[0x82]);
    let violation = client.expect_connection_error(&more, code::ENHANCE_YOUR_CALM);
    assert_eq!(violation, Violation::BlockTooLong);
}

#[test]
fn a_block_that_cannot_be_decoded_ends_the_connection() {
    // Index 70 of an empty table (RFC 7541, section 2.3.3): in a new stream, in trailers, and in a
    // refused stream.
    let bad = [0xc6];
    let bytes = frame(HEADERS, END_HEADERS | END_STREAM, 1, &bad);
    Client::usual().expect_connection_error(&bytes, code::COMPRESSION_ERROR);
    let mut client = Client::usual();
    client.post(1);
    client.expect_connection_error(&bytes, code::COMPRESSION_ERROR);
    let mut client = Client::begun(Limits {
        streams_max: 0,
        ..LIMITS
    });
    client.expect_connection_error(&bytes, code::COMPRESSION_ERROR);
    // An incomplete integer has another error code in nginx.
    let bytes = frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xff]);
    Client::usual().expect_connection_error(&bytes, code::FRAME_SIZE_ERROR);
    let bytes = frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x40, 5, b'a']);
    Client::usual().expect_connection_error(&bytes, code::COMPRESSION_ERROR);
}

#[test]
fn a_stream_does_not_depend_on_itself() {
    // Removed from RFC 9113, a stream error in RFC 7540, section 5.3.1; nginx ends the connection.
    let payload = [b"\0\0\0\x01\0", &literal(GET)[..]].concat();
    let bytes = frame(
        HEADERS,
        END_HEADERS | END_STREAM | WITH_PRIORITY,
        1,
        &payload,
    );
    Client::usual().expect_connection_error(&bytes, code::PROTOCOL_ERROR);
    let bytes = frame(PRIORITY, 0, 5, b"\x80\0\0\x05\0");
    Client::usual().expect_connection_error(&bytes, code::PROTOCOL_ERROR);
    Client::usual().expect_quiet(&frame(PRIORITY, 0, 5, b"\0\0\0\x07\0"), &[]);
    // Also for a stream that has not begun, or that a client cannot use.
    Client::usual().expect_quiet(&frame(PRIORITY, 0, 6, b"\0\0\0\0\0"), &[]);
}

#[test]
fn settings_have_the_values_of_the_rfc() {
    for (name, value, code) in [
        (2, 2, code::PROTOCOL_ERROR),
        (4, 0x8000_0000, code::FLOW_CONTROL_ERROR),
        (4, u32::MAX, code::FLOW_CONTROL_ERROR),
        (5, 16_383, code::PROTOCOL_ERROR),
        (5, 16_777_216, code::PROTOCOL_ERROR),
        (8, 2, code::PROTOCOL_ERROR),
        (9, 2, code::PROTOCOL_ERROR),
    ] {
        Client::usual().expect_connection_error(&setting(name, value), code);
    }
    let mut client = Client::usual();
    let good = [
        setting_payload(1, 0),
        setting_payload(2, 0),
        setting_payload(3, 0),
        setting_payload(4, WINDOW_MAX),
        setting_payload(5, 16_777_215),
        setting_payload(6, 0),
        setting_payload(9, 1),
        setting_payload(0xffff, u32::MAX),
        setting_payload(4, 17),
    ];
    let bytes = frame(SETTINGS, 0, 0, &good.concat());
    client.expect_quiet(&bytes, &frame(SETTINGS, ACK, 0, &[]));
    let peer = client.machine.peer();
    // If a setting occurs twice, the last value applies (section 6.5.3).
    assert_eq!((peer.header_table_size, peer.initial_window), (0, 17));
    assert_eq!((peer.frame_size_max, peer.streams_max), (16_777_215, 0));
}
