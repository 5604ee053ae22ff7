//! Bodies in both directions, their windows and credit.

use super::*;

#[test]
fn bodies_of_requests_keep_within_the_windows() {
    let mut client = begun(&[(settings::INITIAL_WINDOW_SIZE, 10)]);
    let (one, two) = (
        open(&mut client, false).unwrap(),
        open(&mut client, false).unwrap(),
    );
    assert_eq!(client.turn(), None);
    client.wants_to_send(one);
    client.wants_to_send(one);
    client.wants_to_send(two);
    assert_eq!(client.turn(), Some((one, 10)));
    client.put_data(one, b"12345", false, true);
    assert_eq!(client.turn(), Some((two, 10)));
    client.put_data(two, b"1234567890", false, true);
    assert_eq!(client.turn(), Some((one, 5)));
    client.put_data(one, b"12345", false, true);
    assert_eq!(client.turn(), None);
    // A smaller initial window makes the windows negative; then credit for one stream, and a larger
    // initial window for both.
    let update = |stream, bytes| frame_of(|out| frame::put_window_update(out, stream, bytes));
    feed(&mut client, &settings(&[(4, 3)])).unwrap();
    feed(&mut client, &update(two, 7)).unwrap();
    assert_eq!(client.turn(), None);
    feed(&mut client, &update(two, 1)).unwrap();
    assert_eq!(client.turn(), Some((two, 1)));
    client.put_data(two, b"1", false, true);
    feed(&mut client, &settings(&[(4, 1 << 20)])).unwrap();
    let (first, allowed) = client.turn().unwrap();
    assert_eq!(allowed, sending::QUANTUM as usize);
    client.put_data(first, &[0; 16_384], true, false);
    let second = client.turn().unwrap().0;
    assert_ne!(first, second);
    client.put_data(second, &[0; 16_384], false, true);
    // A single stream may use all of the connection's window, before its own is exhausted.
    client.release(first);
    let mut left = 65_535 - 21 - 2 * 16_384;
    while let Some((stream, allowed)) = client.turn() {
        assert_eq!(stream, second);
        left -= allowed;
        client.put_data(stream, &vec![0; allowed], false, true);
    }
    assert_eq!(left, 0);
    feed(&mut client, &update(0, 5)).unwrap();
    assert_eq!(client.turn(), Some((second, 5)));
    let data = client.sent(second, 0, true, false);
    assert!(FrameHead::read(&data).has(flags::END_STREAM));
    assert_eq!(client.turn(), None);
    // A server that does not need the rest of a request.
    let third = open(&mut client, false).unwrap();
    client.wants_to_send(third);
    client.clear_output();
    feed(&mut client, &head(third, 200, &[], true)).unwrap();
    client.release(third);
    let frames = sent(&mut client);
    assert_eq!(frames[0].0.kind, Kind::Reset);
    assert_eq!(frames[0].1, ErrorCode::NoError.number().to_be_bytes());
    assert_eq!(client.turn(), None);
}

#[test]
fn windows_that_grow_together_give_turns_in_the_order_of_their_streams() {
    let mut client = begun(&[(settings::INITIAL_WINDOW_SIZE, 0)]);
    let streams: Vec<u32> = (0..40).map(|_| open(&mut client, false).unwrap()).collect();
    for stream in &streams {
        client.wants_to_send(*stream);
    }
    assert_eq!(client.turn(), None);
    feed(&mut client, &settings(&[(4, 5)])).unwrap();
    let mut turns = Vec::new();
    while let Some((stream, 5)) = client.turn() {
        client.put_data(stream, b"12345", true, false);
        turns.push(stream);
    }
    assert_eq!(turns, streams);
}

#[test]
fn windows_that_become_too_large_are_the_servers_fault() {
    let update = |stream, bytes| frame_of(|out| frame::put_window_update(out, stream, bytes));
    let mut client = begun(&[]);
    open(&mut client, false).unwrap();
    assert_eq!(
        feed(&mut client, &update(0, WINDOW_MAX)),
        Err(Violation::WindowOverflow(WINDOW_MAX, 65_535))
    );
    let mut client = begun(&[]);
    open(&mut client, false).unwrap();
    assert_eq!(
        feed(&mut client, &update(0, 0)),
        Err(Violation::NoIncrement)
    );
    assert_eq!(
        feed(&mut client, &update(1, 5)),
        Ok(vec![]),
        "credit is taken"
    );
    assert_eq!(
        feed(&mut client, &settings(&[(4, WINDOW_MAX)])),
        Err(Violation::SettingOverflows(WINDOW_MAX))
    );
    for (bytes, fault, ends) in [
        (0, StreamFault::NoIncrement(1), false),
        // Also on a stream on which nothing is to be sent.
        (0, StreamFault::NoIncrement(1), true),
        (
            WINDOW_MAX,
            StreamFault::WindowOverflow(1, WINDOW_MAX, 65_535),
            false,
        ),
    ] {
        let mut client = begun(&[]);
        open(&mut client, ends).unwrap();
        let events = feed(&mut client, &update(1, bytes)).unwrap();
        let expected = Event::Reset {
            stream: 1,
            code: fault.code(),
            fault: Some(fault),
        };
        assert_eq!(events, [expected]);
    }
}

#[test]
fn credit_is_given_in_large_steps() {
    let mut client = Client::new(Limits {
        stream_window: 40_000,
        stream_window_max: 40_000,
        ..LIMITS
    });
    feed(&mut client, &settings(&[])).unwrap();
    client.clear_output();
    let stream = open(&mut client, true).unwrap();
    client.clear_output();
    feed(&mut client, &head(stream, 200, &[], false)).unwrap();
    let part = data(stream, &[0; 16_000], false);
    feed(&mut client, &part).unwrap();
    client.consumed(stream, 16_000);
    assert_eq!(client.output(), b"");
    feed(&mut client, &part).unwrap();
    // Half of the received bytes are still unread, so that only the rest is credited.
    client.consumed(stream, 8000);
    let frames = sent(&mut client);
    assert_eq!(frames.len(), 1);
    assert_eq!(
        (frames[0].0.kind, frames[0].0.stream),
        (Kind::WindowUpdate, 1)
    );
    assert_eq!(frames[0].1, 24_000_u32.to_be_bytes());
    // 8,000 bytes are unread, and 32,000 more may be received.
    feed(&mut client, &part).unwrap();
    feed(&mut client, &part).unwrap();
    let events = feed(&mut client, &data(stream, b"x", false)).unwrap();
    let fault = StreamFault::Flow(stream, 1, 0);
    assert_eq!(
        events,
        [Event::Reset {
            stream,
            code: ErrorCode::FlowControlError,
            fault: Some(fault)
        }]
    );
    // A stream that is not read does not exhaust the connection's window.
    let mut credit = 0;
    for _ in 0..70_000 {
        feed(&mut client, &data(stream, &[0; 16_384], false)).unwrap();
        for (head, payload) in sent(&mut client) {
            if (head.kind, head.stream) == (Kind::WindowUpdate, 0) {
                credit += u32::from_be_bytes(payload.try_into().unwrap());
            }
        }
    }
    assert!(credit > WINDOW_MAX / 2);
}

/// Sends as much on a stream as the window allows, and returns how much. `is_read`: the client
/// consumes it at once.
fn receive(client: &mut Client<u32>, stream: u32, is_read: bool) -> usize {
    let mut received = 0;
    loop {
        let window = client.windows(Some(stream)).unwrap().receives.unwrap();
        let length = usize::try_from(window).unwrap().min(16_384);
        if length == 0 || received > 10_000_000 {
            return received;
        }
        feed(client, &data(stream, &vec![0; length], false)).unwrap();
        client.clear_output();
        received += length;
        if is_read {
            client.consumed(stream, length);
        }
    }
}

#[test]
fn a_window_stays_as_it_is_for_a_stream_whose_reader_is_behind() {
    let mut client = Client::new(Limits {
        stream_window: 65_536,
        stream_window_max: 262_144,
        ..LIMITS
    });
    feed(&mut client, &settings(&[])).unwrap();
    let stream = open(&mut client, true).unwrap();
    feed(&mut client, &head(stream, 200, &[], false)).unwrap();
    let part = data(stream, &[0; 16_384], false);
    feed(&mut client, &part).unwrap();
    for _ in 0..100 {
        feed(&mut client, &part).unwrap();
        client.consumed(stream, 16_384);
        client.clear_output();
    }
    let unread = 16_384 + receive(&mut client, stream, false);
    assert!(unread <= 65_536, "{unread}");
    assert_eq!(client.wider, 0);
}

#[test]
fn windows_become_wider_for_streams_that_are_read() {
    let mut client = Client::new(Limits {
        stream_window: 65_536,
        stream_window_max: 262_144,
        ..LIMITS
    });
    feed(&mut client, &settings(&[])).unwrap();
    let mut streams: Vec<u32> = (0..20).map(|_| open(&mut client, true).unwrap()).collect();
    for stream in &streams {
        feed(&mut client, &head(*stream, 200, &[], false)).unwrap();
    }
    // A stream that is never read, and one that is read for a while.
    assert_eq!(receive(&mut client, streams[0], false), 65_536);
    assert!(receive(&mut client, streams[1], true) > 1_000_000);
    let left = |client: &mut Client<u32>, stream| receive(client, stream, false) as u32;
    let most = left(&mut client, streams[1]);
    assert!((131_072..=262_144).contains(&most), "{most}");
    // The total is limited, and the share of a released stream becomes available to others.
    let mut unread = 65_536 + most;
    for stream in &streams[2..] {
        receive(&mut client, *stream, true);
        unread += left(&mut client, *stream);
    }
    assert!(unread <= WINDOWS_MAX, "{unread}");
    // With so many streams that no window grows, each stream has only its initial window.
    let more: Vec<u32> = (0..20).map(|_| open(&mut client, true).unwrap()).collect();
    for stream in &more {
        feed(&mut client, &head(*stream, 200, &[], false)).unwrap();
        receive(&mut client, *stream, true);
        assert!(left(&mut client, *stream) <= 65_536);
    }
    streams.extend(more);
    for stream in streams {
        client.release(stream);
    }
    assert_eq!(client.wider, 0);
}

#[test]
fn the_end_of_a_body_waits_for_no_window() {
    let mut client = begun(&[(crate::h2::settings::INITIAL_WINDOW_SIZE, 0)]);
    let stream = open(&mut client, false).unwrap();
    client.clear_output();
    client.wants_to_send(stream);
    assert_eq!(client.turn(), None);
    client.put_end(stream);
    client.put_end(stream);
    let frames = sent(&mut client);
    assert_eq!(frames.len(), 1);
    let (head, payload) = &frames[0];
    assert!(head.kind == Kind::Data && head.has(flags::END_STREAM) && payload.is_empty());
}

#[test]
fn trailers_of_a_request_end_its_body() {
    let mut client = begun(&[]);
    let stream = open(&mut client, false).unwrap();
    client.wants_to_send(stream);
    client.clear_output();
    client.put_trailers(stream, fields(&[("checksum", "1")]));
    let frames = sent(&mut client);
    assert_eq!(frames.len(), 1);
    assert!(frames[0].0.has(flags::END_STREAM));
    assert_eq!(client.turn(), None);
    client.put_trailers(stream, fields(&[("checksum", "1")]));
    assert_eq!(client.output(), b"");
    assert_eq!(client.open_again(1), None);
}

#[test]
fn pings_behind_data_that_was_sent_do_not_count() {
    let mut client = begun(&[]);
    let stream = open(&mut client, false).unwrap();
    let ping = frame_of(|out| frame::put_ping(out, false, *b"12345678"));
    // gRPC servers estimate the bandwidth-delay product in this way.
    for _ in 0..5000 {
        client.put_data(stream, b"a", false, true);
        assert_eq!(feed(&mut client, &ping), Ok(vec![]));
        client.clear_output();
    }
    let flood = ping.repeat(201);
    let violation = Violation::TooMany("PING frames");
    assert_eq!(feed(&mut client, &flood), Err(violation));
}
