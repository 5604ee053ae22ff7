//! Windows: how much a client may send, when it receives credit, and how much we may send (RFC
//! 9113, sections 5.2, 6.5.2, 6.9).

use super::*;

/// Sends `bytes` bytes of data on a stream, in frames of the maximum size.
fn send(client: &mut Client, stream: u32, bytes: u32) {
    let mut left = bytes as usize;
    while left > 0 {
        let part = left.min(16_384);
        let seen = client
            .feed(&frame(DATA, 0, stream, &vec![0; part]))
            .unwrap();
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert!(matches!(seen[..], [Seen::Data(..)]));
        left -= part;
    }
}

#[test]
fn a_stream_sends_no_more_than_its_window() {
    let mut client = Client::usual();
    client.post(1);
    client.post(3);
    send(&mut client, 1, WINDOW);
    // Unread data get no credit, and one more byte is an error of this stream only.
    assert_eq!(client.control(), b"");
    client.expect_quiet(&frame(DATA, 0, 1, b""), &[]);
    let fault = client.expect_stream_error(&frame(DATA, 0, 1, b"a"), 1, code::FLOW_CONTROL_ERROR);
    assert_eq!(fault, StreamFault::Flow(1, 1, 0));
    send(&mut client, 3, WINDOW);
    // Padding counts (section 6.1).
    client.post(5);
    send(&mut client, 5, WINDOW - 5);
    let bytes = frame(DATA, PADDED, 5, &padded(b"ab", 3));
    client.expect_stream_error(&bytes, 5, code::FLOW_CONTROL_ERROR);
    client.post(7);
    send(&mut client, 7, WINDOW - 6);
    assert!(
        client
            .feed(&frame(DATA, PADDED, 7, &padded(b"ab", 3)))
            .is_ok()
    );
}

#[test]
fn what_is_read_is_given_back() {
    let mut client = Client::usual();
    client.post(1);
    send(&mut client, 1, WINDOW);
    client.machine.consumed(1, 49_999);
    assert_eq!(client.control(), b"");
    client.machine.consumed(1, 1);
    assert_eq!(client.control(), window_update(1, 50_000));
    send(&mut client, 1, 50_000);
    // Credit never exceeds the received bytes.
    client.machine.consumed(1, usize::MAX);
    assert_eq!(client.control(), window_update(1, WINDOW));
    client.machine.consumed(1, usize::MAX);
    client.machine.consumed(3, 1);
    assert_eq!(client.control(), b"");
    send(&mut client, 1, WINDOW);
    // A closed stream gets no credit.
    client.machine.consumed(1, 10);
    client.machine.reset(1, ErrorCode::Cancel);
    client.control();
    client.machine.consumed(1, WINDOW as usize);
    assert_eq!(client.control(), b"");
}

#[test]
fn padding_is_given_back_by_itself() {
    let mut client = Client::usual();
    client.post(1);
    // 256 bytes of each frame are padding, including its length.
    let mut said = Vec::new();
    for _ in 0..400 {
        let seen = client.feed(&frame(DATA, PADDED, 1, &padded(b"", 255)));
        assert_eq!(seen, Ok(vec![]));
        said.extend(client.control());
    }
    // 196 frames exceed half of the window.
    assert_eq!(
        said,
        [window_update(1, 50_176), window_update(1, 50_176)].concat()
    );
}

#[test]
fn a_window_may_be_widened() {
    let mut client = Client::begun(Limits {
        stream_window: 0,
        ..LIMITS
    });
    client.post(1);
    client.expect_stream_error(&frame(DATA, 0, 1, b"a"), 1, code::FLOW_CONTROL_ERROR);
    client.post(3);
    client.machine.widen(3, 1000);
    assert_eq!(client.control(), window_update(3, 1000));
    send(&mut client, 3, 1000);
    client.machine.widen(3, 10);
    assert_eq!(client.control(), b"");
    client.machine.widen(3, u32::MAX);
    assert_eq!(client.control(), window_update(3, WINDOW_MAX - 1000));
    client.machine.consumed(3, 1000);
    assert_eq!(client.control(), b"");
    client.machine.widen(99, 1000);
    assert_eq!(client.control(), b"");
}

#[test]
fn one_stalled_upload_holds_up_no_other() {
    let mut client = Client::usual();
    client.post(1);
    send(&mut client, 1, WINDOW);
    client.post(3);
    // More data than the connection's initial window.
    let mut credits = 0u64;
    let mut sent = 0u64;
    while sent < 5 << 29 {
        send(&mut client, 3, 16_384);
        client.machine.consumed(3, 16_384);
        sent += 16_384;
        for credit in client.control().chunks(13) {
            let head = &credit[..9];
            let bytes = u32::from_be_bytes(credit[9..].try_into().unwrap());
            match head[8] {
                0 => credits += u64::from(bytes),
                _ => assert_eq!(head, &window_update(3, 0)[..9]),
            }
        }
        // What the client may still send on the connection.
        let window = u64::from(WINDOW_MAX) + credits - u64::from(WINDOW) - sent;
        assert!(((1 << 30) - 16_384..1 << 31).contains(&window), "{window}");
    }
}

#[test]
fn what_reaches_nobody_gives_back_the_credit_of_the_connection() {
    let mut client = Client::usual();
    client.post(1);
    client.machine.reset(1, ErrorCode::Cancel);
    client.control();
    let mut sent = 0;
    let mut credit = 0;
    // On a stream that was reset, and on streams after the last one in our GOAWAY.
    let full = frame(DATA, 0, 1, &[0; 16_384]);
    while credit == 0 {
        assert_eq!(client.feed(&full), Ok(vec![]));
        sent += 16_384;
        let control = client.control();
        if !control.is_empty() {
            assert_eq!(control, window_update(0, sent));
            credit = sent;
        }
        assert!(sent < 1 << 31);
    }
}

#[test]
fn no_credit_is_a_violation() {
    let mut client = Client::usual();
    client.get(1);
    let fault = client.expect_stream_error(&window_update(1, 0), 1, code::PROTOCOL_ERROR);
    assert_eq!(fault, StreamFault::NoIncrement(1));
    // The highest bit is reserved.
    client.expect_connection_error(&window_update(0, 0x8000_0000), code::PROTOCOL_ERROR);
}

#[test]
fn a_window_holds_2_31_less_one() {
    let mut client = Client::usual();
    client.get(1);
    let most = WINDOW_MAX - 65_535;
    client.expect_quiet(&window_update(1, most), &[]);
    client.expect_quiet(&window_update(0, most), &[]);
    client.machine.wants_to_send(1);
    assert_eq!(client.machine.turn(), Some((1, 16_384)));
    let fault = client.expect_stream_error(&window_update(1, 1), 1, code::FLOW_CONTROL_ERROR);
    assert_eq!(
        fault,
        StreamFault::WindowOverflow(1, 1, i64::from(WINDOW_MAX))
    );
    client.get(3);
    client.expect_stream_error(&window_update(3, WINDOW_MAX), 3, code::FLOW_CONTROL_ERROR);
    let violation = client.expect_connection_error(&window_update(0, 1), code::FLOW_CONTROL_ERROR);
    assert_eq!(violation, Violation::WindowOverflow(1, WINDOW_MAX));
    Client::usual()
        .expect_connection_error(&window_update(0, WINDOW_MAX), code::FLOW_CONTROL_ERROR);
}

#[test]
fn settings_move_windows_below_zero_and_back() {
    // The example of section 6.9.2: 60 KiB are sent, then the initial window becomes 16 KiB.
    let mut client = Client::usual();
    let ack = frame(SETTINGS, ACK, 0, &[]);
    client.get(1);
    client.expect_quiet(&window_update(0, 1 << 20), &[]);
    client.machine.wants_to_send(1);
    let mut sent = 0;
    while sent < 60 * 1024 {
        let window = 65_535 - sent;
        assert_eq!(client.machine.turn(), Some((1, window.min(16_384))));
        let part = window.min(60 * 1024 - sent).min(16_384);
        let _ = client.machine.sent(1, part, false, true);
        sent += part;
    }
    client.expect_quiet(&setting(4, 16 * 1024), &ack);
    // The stream is scheduled, but its window is -44 KiB.
    assert_eq!(client.machine.turn(), None);
    client.expect_quiet(&window_update(1, 44 * 1024), &[]);
    assert_eq!(client.machine.turn(), None);
    client.expect_quiet(&window_update(1, 1), &[]);
    assert_eq!(client.machine.turn(), Some((1, 1)));
    let _ = client.machine.sent(1, 0, false, true);
    client.expect_quiet(&setting(4, WINDOW_MAX), &ack);
    assert_eq!(client.machine.turn(), Some((1, 16_384)));
    let _ = client.machine.sent(1, 0, false, true);
    client.expect_quiet(&setting(4, 0), &ack);
    assert_eq!(client.machine.turn(), None);
    // A new stream has no window, until SETTINGS open it.
    client.get(3);
    client.machine.wants_to_send(3);
    assert_eq!(client.machine.turn(), None);
    client.expect_quiet(&setting(4, 1), &ack);
    assert_eq!(client.machine.turn(), Some((3, 1)));
    assert_eq!(client.machine.turn(), None);
}

#[test]
fn settings_that_open_a_window_too_far_end_the_connection() {
    // Section 6.9.2.
    let mut client = Client::usual();
    client.get(1);
    client.expect_quiet(&window_update(1, 1), &[]);
    let violation =
        client.expect_connection_error(&setting(4, WINDOW_MAX), code::FLOW_CONTROL_ERROR);
    assert_eq!(violation, Violation::SettingOverflows(WINDOW_MAX));
    // A stream on which we send no more has no send window.
    let mut client = Client::usual();
    client.get(1);
    client.expect_quiet(&window_update(1, 1), &[]);
    client.machine.put_head(1, b"\x88", true, &mut Vec::new());
    client.get(3);
    client.expect_quiet(&setting(4, WINDOW_MAX), &frame(SETTINGS, ACK, 0, &[]));
}

#[test]
fn more_than_the_window_of_the_connection_is_a_violation() {
    // The connection's window is refilled before it is exhausted, so that a client cannot exceed
    // it: the test reduces the window.
    let mut client = Client::usual();
    client.post(1);
    client.machine.set_receive_window(16_383);
    let bytes = frame(DATA, 0, 1, &[0; 16_384]);
    let violation = client.expect_connection_error(&bytes, code::FLOW_CONTROL_ERROR);
    assert_eq!(violation, Violation::ConnectionFlow(16_384, 16_383));
}

#[test]
fn credit_for_what_has_ended_is_passed_over() {
    let mut client = Client::usual();
    client.get(1);
    client.machine.put_head(1, b"\x88", true, &mut Vec::new());
    for increment in [0, 1, WINDOW_MAX, WINDOW_MAX] {
        client.expect_quiet(&window_update(1, increment), &[]);
    }
    client.machine.release(1);
    client.expect_quiet(&window_update(1, WINDOW_MAX), &[]);
}

#[test]
fn windows_that_grow_together_give_turns_in_the_order_of_their_streams() {
    let mut client = Client::usual();
    client.feed(&setting(4, 0)).unwrap();
    let streams: Vec<u32> = (1..=79).step_by(2).collect();
    for stream in &streams {
        client.get(*stream);
        let priority = Priority {
            incremental: true,
            ..Priority::default()
        };
        client.machine.set_priority(*stream, priority);
        client.machine.wants_to_send(*stream);
    }
    assert_eq!(client.machine.turn(), None);
    client.feed(&setting(4, 5)).unwrap();
    let mut turns = Vec::new();
    while let Some((stream, 5)) = client.machine.turn() {
        let _ = client.machine.sent(stream, 5, true, false);
        turns.push(stream);
    }
    assert_eq!(turns, streams);
}
