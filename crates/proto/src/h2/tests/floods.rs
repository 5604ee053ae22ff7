//! Rate limits of frames that cost us more than the client, and limits of the memory of a
//! connection.

use super::*;

/// Repeats frames until they end the connection, and returns how many were accepted. Takes the
/// queued replies from time to time, like a caller.
fn flood(client: &mut Client, mut next: impl FnMut(&mut Client, u32) -> Vec<u8>) -> u32 {
    for count in 0..100_000 {
        let bytes = next(client, count);
        if let Err(violation) = client.feed(&bytes) {
            assert_eq!(
                violation.code().number(),
                code::ENHANCE_YOUR_CALM,
                "{violation}"
            );
            return count;
        }
        let [partial, block, recently_reset, early, control] = client.machine.memory();
        assert!(partial <= 32 * 1024 && block <= 64 * 1024);
        assert!(recently_reset <= 4 * 1024 && early <= 1024 && control <= 32 * 1024);
        assert!(client.machine.live() <= 100);
        if client.machine.control_length() > 8 * 1024 {
            client.control();
        }
    }
    panic!("there is no limit");
}

/// Checks that a flood ends the connection after `max` frames in a second, and that the following
/// seconds allow the same number again.
fn flood_by_the_second(
    max: u32,
    next: impl Fn(&mut Client, u32) -> Vec<u8>,
    begin: fn() -> Client,
) {
    let mut client = begin();
    client.second = 1;
    assert_eq!(flood(&mut client, &next), max);
    let mut client = begin();
    for count in 0..3 * max {
        client.second = 5 + count / max;
        let bytes = next(&mut client, count);
        assert!(client.feed(&bytes).is_ok(), "{count}");
        client.control();
    }
}

fn with_upload() -> Client {
    let mut client = Client::usual();
    client.post(1);
    client
}

/// Begins a request, and releases the previous one, which was reset.
fn begin_next(client: &mut Client, count: u32) -> u32 {
    let stream = 2 * count + 1;
    if let Some(before) = stream.checked_sub(2) {
        client.machine.release(before);
    }
    client.post_of(stream, 3);
    stream
}

#[test]
fn rapid_resets() {
    // CVE-2023-44487
    let next = |client: &mut Client, count| reset(begin_next(client, count), 8);
    flood_by_the_second(400, next, Client::usual);
}

#[test]
fn a_client_may_give_up_all_that_it_may_have_at_once() {
    for (streams_max, most) in [(200, 400), (201, 402), (1000, 2000)] {
        let mut client = Client::begun(Limits {
            streams_max,
            ..LIMITS
        });
        let taken = flood(&mut client, |client, count| {
            reset(begin_next(client, count), 8)
        });
        assert_eq!(taken, most);
    }
}

#[test]
fn resets_that_we_are_made_to_send() {
    // CVE-2025-8671: every way to make us reset a stream.
    type Wrong = fn(&mut Client, u32) -> Vec<u8>;
    let ways: [Wrong; 8] = [
        |_, stream| window_update(stream, 0),
        |_, stream| window_update(stream, WINDOW_MAX),
        |_, stream| frame(DATA, 0, stream, b"too long"),
        |_, stream| frame(DATA, END_STREAM, stream, b""),
        |_, stream| frame(HEADERS, END_HEADERS, stream, &literal(&[("a", "b")])),
        |_, stream| {
            frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                stream,
                &literal(&[(":a", "b")]),
            )
        },
        |_, stream| {
            frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                stream,
                &literal(&[("a", "b")]),
            )
        },
        |_, stream| {
            let end = frame(DATA, END_STREAM, stream, b"abc");
            [end, frame(DATA, 0, stream, b"d")].concat()
        },
    ];
    for way in ways {
        let next = |client: &mut Client, count| {
            let stream = begin_next(client, count);
            way(client, stream)
        };
        flood_by_the_second(400, next, Client::usual);
    }
    // The window of a stream, and all of these together.
    let begin: fn() -> Client = || {
        Client::begun(Limits {
            stream_window: 2,
            ..LIMITS
        })
    };
    let next = |client: &mut Client, count| {
        let stream = begin_next(client, count);
        frame(DATA, 0, stream, b"abc")
    };
    flood_by_the_second(400, next, begin);
    let mut client = Client::usual();
    let taken = flood(&mut client, |client, count| {
        let stream = begin_next(client, count);
        match count % 9 {
            8 => reset(stream, 0),
            way => ways[way as usize](client, stream),
        }
    });
    assert_eq!(taken, 400);
}

#[test]
fn data_for_streams_that_never_were() {
    let next = |client: &mut Client, count| {
        if count == 0 {
            client.get(0x7fff_ffff);
        }
        frame(DATA, 0, 2 * count + 1, b"a")
    };
    flood_by_the_second(400, next, Client::usual);
}

#[test]
fn settings_and_their_acknowledgements() {
    flood_by_the_second(100, |_, _| setting(4, 1), Client::usual);
    let mut client = Client::usual();
    client.second = 1;
    let taken = flood(&mut client, |_, _| frame(SETTINGS, ACK, 0, &[]));
    assert_eq!(taken, 100);
}

#[test]
fn pings_and_their_answers() {
    flood_by_the_second(200, |_, _| frame(PING, 0, 0, &[0; 8]), Client::usual);
    flood_by_the_second(200, |_, _| frame(PING, ACK, 0, &[0; 8]), Client::usual);
}

#[test]
fn pings_behind_data_that_was_sent() {
    // As in grpc-go: a PING whenever DATA has arrived after the acknowledgement of the last PING.
    let ping = frame(PING, 0, 0, &[0; 8]);
    let mut client = Client::usual();
    client.get(1);
    for _ in 0..5000 {
        let _ = client.machine.sent(1, 1, false, true);
        assert!(client.feed(&ping).is_ok());
        client.control();
    }
    assert_eq!(flood(&mut client, |_, _| ping.clone()), 200);
    // Responses sent at once permit PING frames as well, up to a limit.
    let mut client = Client::usual();
    for number in 0..5000 {
        let stream = 2 * number + 1;
        client.get(stream);
        assert!(
            client
                .machine
                .answer(stream, b"\x88", b"a", 10, &mut Vec::new())
        );
        client.machine.release(stream);
    }
    assert_eq!(flood(&mut client, |_, _| ping.clone()), 1000 + 200);
}

#[test]
fn priorities_of_both_kinds() {
    flood_by_the_second(2000, |_, _| frame(PRIORITY, 0, 1, &[0; 5]), Client::usual);
    let next = |_: &mut Client, count: u32| {
        let payload = [&(2 * count + 1).to_be_bytes()[..], b"u=1"].concat();
        frame(PRIORITY_UPDATE, 0, 0, &payload)
    };
    flood_by_the_second(2000, next, Client::usual);
}

#[test]
fn frames_that_say_nothing() {
    flood_by_the_second(200, |_, _| frame(DATA, 0, 1, b""), with_upload);
    flood_by_the_second(200, |_, _| frame(0xfa, 0, 0, b"abc"), Client::usual);
    flood_by_the_second(200, |_, _| goaway(0, 0), Client::usual);
    // Also on a stream that was reset.
    let begin: fn() -> Client = || {
        let mut client = with_upload();
        client.machine.reset(1, ErrorCode::Cancel);
        client.machine.release(1);
        client
    };
    flood_by_the_second(200, |_, _| frame(DATA, 0, 1, b""), begin);
}

#[test]
fn tiny_parts_of_a_body() {
    let next = |client: &mut Client, _| {
        client.machine.consumed(1, 1);
        frame(DATA, 0, 1, b"a")
    };
    flood_by_the_second(20_000, next, with_upload);
    // A gRPC message has a prefix of five bytes.
    let mut client = with_upload();
    for _ in 0..30_000 {
        client.machine.consumed(1, 5);
        assert!(client.feed(&frame(DATA, 0, 1, &[0; 5])).is_ok());
    }
    let next = |_: &mut Client, _| frame(DATA, PADDED, 1, &padded(b"", 0));
    flood_by_the_second(20_000, next, with_upload);
    // Many small bodies, each of another request.
    let mut client = Client::usual();
    for number in 0..30_000 {
        let stream = 2 * number + 1;
        client.post(stream);
        assert!(client.feed(&frame(DATA, END_STREAM, stream, b"a")).is_ok());
        client
            .machine
            .put_head(stream, b"\x88", true, &mut Vec::new());
        client.machine.release(stream);
    }
}

#[test]
fn tiny_credit() {
    flood_by_the_second(20_000, |_, _| window_update(0, 1), Client::usual);
    let mut client = Client::usual();
    client.get(1);
    let taken = flood(&mut client, |_, _| window_update(1, 1));
    assert_eq!(taken, 20_000);
    // An increment of a kilobyte does not count as small.
    let mut client = Client::usual();
    for _ in 0..30_000 {
        client.expect_quiet(&window_update(0, 1024), &[]);
    }
}

#[test]
fn refused_streams() {
    // Over the life of a connection, as in nginx: 128, or the limit of concurrent streams if that
    // is higher.
    for (streams_max, most) in [(1, 128), (100, 128), (200, 200)] {
        let mut client = Client::begun(Limits {
            streams_max,
            ..LIMITS
        });
        for number in 0..streams_max {
            client.get(2 * number + 1);
        }
        for count in 0..most {
            client.second = count;
            let stream = 2 * (streams_max + count) + 1;
            let bytes = client.headers(stream, END_STREAM, GET);
            let fault = StreamFault::TooManyStreams(stream);
            assert_eq!(client.feed(&bytes), Ok(vec![Seen::Refused(fault)]));
        }
        assert_eq!(client.machine.live(), streams_max as usize);
        let bytes = client.headers(2 * (streams_max + most) + 1, END_STREAM, GET);
        client.expect_connection_error(&bytes, code::ENHANCE_YOUR_CALM);
    }
}

#[test]
fn what_is_forgiven_has_a_bound() {
    for (streams_max, most) in [(1, 64), (100, 100), (1 << 31, 1024)] {
        let mut client = Client::begun(Limits {
            streams_max,
            ..LIMITS
        });
        for number in 0..3000 {
            let stream = 2 * number + 1;
            client.post(stream);
            client.machine.reset(stream, ErrorCode::Cancel);
            client.machine.release(stream);
        }
        client.control();
        let [_, _, recently_reset, _, _] = client.machine.memory();
        assert!(recently_reset <= 2 * 4 * most as usize);
        // The most recent resets are remembered, earlier ones are not.
        client.expect_quiet(&frame(DATA, 0, 5999, b"a"), &[]);
        client.expect_quiet(&frame(DATA, 0, 2 * (3000 - most) + 1, b"a"), &[]);
        let before = 2 * (3000 - most) - 1;
        client.expect_quiet(
            &frame(DATA, 0, before, b"a"),
            &reset(before, code::STREAM_CLOSED),
        );
    }
}

#[test]
fn a_large_head_is_the_end_and_takes_no_more_memory_than_its_limit() {
    // A kilobyte from the table for each byte of the block (RFC 7541, section 7.3).
    let mut client = Client::usual();
    let value = "x".repeat(3000);
    let bytes = client.headers(1, END_STREAM, &[GET, &[("x-own", &value)]].concat());
    assert!(client.feed(&bytes).is_ok());
    let mut block = client.block(GET);
    block.resize(16_384, 0xbe); // index 62, the last field of the table
    let bytes = frame(HEADERS, END_HEADERS | END_STREAM, 3, &block);
    let violation = client.expect_connection_error(&bytes, code::ENHANCE_YOUR_CALM);
    assert_eq!(violation, Violation::BlockTooLong);
    assert!(client.bytes.capacity() <= 160 * 1024);

    // A large field in trailers, which are not stored but cost as much to decode.
    let mut client = Client::usual();
    let bytes = client.headers(1, 0, &[POST, &[("x-own", &value)]].concat());
    assert!(client.feed(&bytes).is_ok());
    let bytes = frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xbe; 16_384]);
    let violation = client.expect_connection_error(&bytes, code::ENHANCE_YOUR_CALM);
    assert_eq!(violation, Violation::BlockTooLong);
    assert!(client.bytes.capacity() <= 160 * 1024);

    // Very large limits do not overflow.
    let mut client = Client::usual();
    client.rules.fields_max = usize::MAX;
    client.rules.head_size_max = usize::MAX;
    client.get(1);
}

#[test]
fn many_streams_may_change_places_often() {
    // As many streams as possible, and SETTINGS that change all their windows.
    let mut client = Client::begun(Limits {
        streams_max: 20_000,
        ..LIMITS
    });
    for number in (0..20_000).rev() {
        let stream = 2 * (20_000 - number) - 1;
        client.get(stream);
        client.machine.wants_to_send(stream);
    }
    for round in 0..50 {
        client.second = round;
        client.feed(&setting(4, 0)).unwrap();
        assert_eq!(client.machine.turn(), None);
        client.feed(&setting(4, 65_535)).unwrap();
        let (stream, most) = client.machine.turn().unwrap();
        assert_eq!(most, 16_384);
        let _ = client.machine.sent(stream, 0, false, true);
    }
}
