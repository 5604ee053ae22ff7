//! Sending: responses at once, by turns, and within the windows.

use super::*;

/// Sends everything by turns until no stream may send. Returns the streams, and the bytes of each
/// turn.
fn turns(client: &mut Client, left: &mut [(u32, usize)]) -> Vec<(u32, usize)> {
    let mut turns = Vec::new();
    while let Some((stream, most)) = client.machine.turn() {
        assert!(most > 0);
        let (_, left) = left.iter_mut().find(|(of, _)| *of == stream).unwrap();
        let part = most.min(*left);
        *left -= part;
        let head = client.machine.sent(stream, part, *left == 0, *left > 0);
        let ends = if *left == 0 { END_STREAM } else { 0 };
        assert_eq!(head, frame(0, ends, stream, &vec![0; part])[..9]);
        turns.push((stream, part));
    }
    turns
}

fn streams_of(turns: &[(u32, usize)]) -> Vec<u32> {
    turns.iter().map(|(stream, _)| *stream).collect()
}

/// A client with large windows, and requests with these priorities.
fn prioritised(priorities: &[&[u8]]) -> (Client, Vec<(u32, usize)>) {
    let mut client = Client::usual();
    client.feed(&setting(4, 1 << 24)).unwrap();
    client.feed(&window_update(0, 1 << 24)).unwrap();
    client.control();
    let mut left = Vec::new();
    for (number, priority) in priorities.iter().enumerate() {
        let stream = 2 * number as u32 + 1;
        client.get(stream);
        client
            .machine
            .set_priority(stream, Priority::parse(priority));
        client.machine.wants_to_send(stream);
        left.push((stream, 3 * 16_384));
    }
    (client, left)
}

#[test]
fn an_answer_at_once_is_its_frames() {
    let mut client = Client::usual();
    client.feed(&frame(PING, 0, 0, b"12345678")).unwrap();
    let mut out = b"before".to_vec();
    assert!(
        client
            .machine
            .answer(1, b"\x88", b"hello", 16_384, &mut out)
    );
    // Replies to frames go first.
    let expected = [
        b"before".to_vec(),
        frame(PING, ACK, 0, b"12345678"),
        frame(HEADERS, END_HEADERS, 1, b"\x88"),
        frame(DATA, END_STREAM, 1, b"hello"),
    ];
    assert_eq!(out, expected.concat());
    assert_eq!(client.control(), b"");

    let mut out = Vec::new();
    assert!(client.machine.answer(3, b"\x89", b"", 16_384, &mut out));
    assert_eq!(out, frame(HEADERS, END_HEADERS | END_STREAM, 3, b"\x89"));

    // Frames are limited by the client's maximum frame size and by the chunk size; a larger header
    // block continues in another frame.
    let body = [7; 20_000];
    let mut out = Vec::new();
    let block = [0x88; 16_385];
    assert!(
        client
            .machine
            .answer(5, &block, &body, usize::MAX, &mut out)
    );
    let expected = [
        frame(HEADERS, 0, 5, &block[..16_384]),
        frame(CONTINUATION, END_HEADERS, 5, &block[..1]),
        frame(DATA, 0, 5, &body[..16_384]),
        frame(DATA, END_STREAM, 5, &body[16_384..]),
    ];
    assert_eq!(out, expected.concat());
    let mut out = Vec::new();
    assert!(client.machine.answer(7, b"\x88", b"hello", 2, &mut out));
    let expected = [
        frame(HEADERS, END_HEADERS, 7, b"\x88"),
        frame(DATA, 0, 7, b"he"),
        frame(DATA, 0, 7, b"ll"),
        frame(DATA, END_STREAM, 7, b"o"),
    ];
    assert_eq!(out, expected.concat());
}

#[test]
fn an_answer_at_once_is_within_the_windows() {
    let mut client = Client::usual();
    let mut out = Vec::new();
    // The window of the stream.
    client.feed(&setting(4, 10)).unwrap();
    client.control();
    assert!(
        !client
            .machine
            .answer(1, b"\x88", &[0; 11], 16_384, &mut out)
    );
    assert_eq!(out, b"");
    assert!(
        client
            .machine
            .answer(1, b"\x88", &[0; 10], 16_384, &mut out)
    );
    client.feed(&setting(4, 0)).unwrap();
    assert!(!client.machine.answer(3, b"\x88", b"a", 16_384, &mut out));
    assert!(client.machine.answer(3, b"\x88", b"", 16_384, &mut out));
    // The window of the connection, of which 65,525 bytes are left.
    client.feed(&setting(4, WINDOW_MAX)).unwrap();
    out.clear();
    assert!(
        !client
            .machine
            .answer(5, b"\x88", &[0; 65_526], 16_384, &mut out)
    );
    assert_eq!(out, b"");
    assert!(
        client
            .machine
            .answer(5, b"\x88", &[0; 65_525], 16_384, &mut out)
    );
    assert!(!client.machine.answer(7, b"\x88", b"a", 16_384, &mut out));
    assert!(client.machine.answer(7, b"\x88", b"", 16_384, &mut out));
    client.feed(&window_update(0, 1)).unwrap();
    assert!(client.machine.answer(9, b"\x88", b"a", 16_384, &mut out));
}

#[test]
fn an_answer_does_not_pass_those_who_wait() {
    let mut client = Client::usual();
    client.get(1);
    client.machine.wants_to_send(1);
    let mut out = Vec::new();
    assert!(!client.machine.answer(3, b"\x88", b"a", 16_384, &mut out));
    // A response without a body delays no other stream, and needs no window.
    assert!(client.machine.answer(3, b"\x88", b"", 16_384, &mut out));
    assert_eq!(out, frame(HEADERS, END_HEADERS | END_STREAM, 3, b"\x88"));
    assert!(client.machine.turn().is_some());
    let _ = client.machine.sent(1, 10, true, false);
    assert!(client.machine.answer(5, b"\x88", b"a", 16_384, &mut out));
}

#[test]
fn a_smaller_table_is_answered_in_the_next_block() {
    // RFC 7541, section 4.2: a size update begins the first block after the change. We use the size
    // 0, which any limit allows.
    let mut client = Client::usual();
    client.get(1);
    let mut out = Vec::new();
    client.machine.put_head(1, b"\x88", false, &mut out);
    assert_eq!(out, frame(HEADERS, END_HEADERS, 1, b"\x88"));
    // The smallest size counts, even if a larger one follows in the same frame.
    let settings = [setting_payload(1, 100), setting_payload(1, 4096)];
    client
        .feed(&frame(SETTINGS, 0, 0, &settings.concat()))
        .unwrap();
    client.control();
    out.clear();
    client
        .machine
        .put_head(1, b"\x40\x01a\x01b", true, &mut out);
    let expected = frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x20\x40\x01a\x01b");
    assert_eq!(out, expected);
    // Once is enough, because the table is empty.
    client.feed(&setting(1, 0)).unwrap();
    client.control();
    out.clear();
    assert!(client.machine.answer(3, b"\x88", b"", 16_384, &mut out));
    assert_eq!(out, frame(HEADERS, END_HEADERS | END_STREAM, 3, b"\x88"));

    let mut client = Client::usual();
    client.feed(&setting(1, 65_536)).unwrap();
    client.control();
    out.clear();
    assert!(client.machine.answer(1, b"\x88", b"", 16_384, &mut out));
    assert_eq!(out, frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88"));
    client.feed(&setting(1, 4095)).unwrap();
    client.control();
    out.clear();
    assert!(client.machine.answer(3, b"\x88", b"", 16_384, &mut out));
    assert_eq!(
        out,
        frame(HEADERS, END_HEADERS | END_STREAM, 3, b"\x20\x88")
    );
}

#[test]
fn heads_leave_on_streams_that_are_open() {
    let mut client = Client::usual();
    client.get(1);
    let mut out = Vec::new();
    // An informational head, the head of the response, and trailers.
    client.machine.put_head(1, b"\x08\x03103", false, &mut out);
    client.machine.put_head(1, b"\x88", false, &mut out);
    client
        .machine
        .put_head(1, b"\x00\x01a\x01b", true, &mut out);
    let expected = [
        frame(HEADERS, END_HEADERS, 1, b"\x08\x03103"),
        frame(HEADERS, END_HEADERS, 1, b"\x88"),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x01a\x01b"),
    ];
    assert_eq!(out, expected.concat());
    client.machine.put_head(1, b"\x88", false, &mut out);
    client.machine.put_head(3, b"\x88", false, &mut out);
    assert_eq!(out, expected.concat());
}

#[test]
fn a_turn_is_within_all_windows() {
    let mut client = Client::usual();
    client.feed(&setting(4, 20_000)).unwrap();
    client.get(1);
    client.get(3);
    client.machine.wants_to_send(1);
    client.machine.wants_to_send(1);
    client.machine.wants_to_send(3);
    let mut left = [(1, 100_000), (3, 100_000)];
    let first = turns(&mut client, &mut left);
    let expected = [(1, 16_384), (1, 3616), (3, 16_384), (3, 3616)];
    assert_eq!(first, expected);
    client.feed(&window_update(1, 100_000)).unwrap();
    // The connection has 25,535 bytes left.
    assert_eq!(turns(&mut client, &mut left), [(1, 16_384), (1, 9151)]);
    client.feed(&window_update(0, 1)).unwrap();
    assert_eq!(turns(&mut client, &mut left), [(1, 1)]);
    client.feed(&window_update(3, 7)).unwrap();
    assert_eq!(turns(&mut client, &mut left), []);
    client.feed(&window_update(0, 1_000_000)).unwrap();
    let most: usize = turns(&mut client, &mut left)
        .iter()
        .map(|(_, part)| part)
        .sum();
    assert_eq!(most, 100_000 - 20_000 - 25_535 - 1 + 7);
    assert_eq!(left, [(1, 0), (3, 79_993)]);
}

#[test]
fn frames_have_at_most_the_size_that_the_client_takes() {
    for (size, most) in [(16_384, 16_384), (20_000, 20_000), (16_777_215, 64 * 1024)] {
        let mut client = Client::usual();
        client.feed(&setting(5, size)).unwrap();
        client.feed(&setting(4, WINDOW_MAX)).unwrap();
        client.feed(&window_update(0, 1 << 20)).unwrap();
        client.get(1);
        client.machine.wants_to_send(1);
        // A turn is limited to the quantum, whatever the maximum frame size.
        assert_eq!(client.machine.turn(), Some((1, most)));
    }
}

#[test]
fn urgent_responses_go_first() {
    let (mut client, mut left) = prioritised(&[b"u=5", b"u=1", b"", b"u=0"]);
    let order = streams_of(&turns(&mut client, &mut left));
    assert_eq!(order, [7, 7, 7, 3, 3, 3, 5, 5, 5, 1, 1, 1]);
}

#[test]
fn whole_responses_go_one_after_the_other_and_incremental_ones_take_turns() {
    let (mut client, mut left) = prioritised(&[b"", b"", b""]);
    let order = streams_of(&turns(&mut client, &mut left));
    assert_eq!(order, [1, 1, 1, 3, 3, 3, 5, 5, 5]);
    let (mut client, mut left) = prioritised(&[b"i", b"i", b"i"]);
    let order = streams_of(&turns(&mut client, &mut left));
    assert_eq!(order, [1, 3, 5, 1, 3, 5, 1, 3, 5]);
    // Within one urgency, incremental and non-incremental responses have half of the turns each.
    let (mut client, mut left) = prioritised(&[b"", b"i", b"", b"i"]);
    let order = streams_of(&turns(&mut client, &mut left));
    assert_eq!(order[..6], [1, 3, 1, 7, 1, 3]);
}

#[test]
fn no_urgency_is_starved() {
    let mut client = Client::usual();
    client.feed(&setting(4, WINDOW_MAX)).unwrap();
    client.feed(&window_update(0, WINDOW_MAX - 65_535)).unwrap();
    for (stream, priority) in [(1, b"u=0"), (3, b"u=4"), (5, b"u=6"), (7, b"u=7")] {
        client.get(stream);
        client
            .machine
            .set_priority(stream, Priority::parse(priority));
        client.machine.wants_to_send(stream);
    }
    let mut count = [0; 4];
    for _ in 0..16 * 30 {
        let (stream, _) = client.machine.turn().unwrap();
        count[stream as usize / 2] += 1;
        let _ = client.machine.sent(stream, 1, false, true);
    }
    // Fifteen of sixteen turns go to the most urgent stream; the others share the rest equally.
    assert_eq!(count, [450, 10, 10, 10]);
}

#[test]
fn a_client_changes_priorities() {
    let update = |stream: u32, value: &[u8]| {
        let payload = [&stream.to_be_bytes()[..], value].concat();
        frame(PRIORITY_UPDATE, 0, 0, &payload)
    };
    let of = |client: &Client, stream: u32| client.machine.stream(stream).unwrap().priority();
    let priority = |urgency: u8, incremental: bool| Priority {
        urgency,
        incremental,
    };
    // RFC 9218, section 7: before a stream begins, and while it waits.
    let mut client = Client::usual();
    client.expect_quiet(&update(3, b"u=0, i"), &[]);
    client.expect_quiet(&update(3, b"u=2"), &[]);
    client.expect_quiet(&update(5, b"i"), &[]);
    client.get(1);
    assert_eq!(of(&client, 1), Priority::default());
    client.get(3);
    // The last PRIORITY_UPDATE applies, with defaults for missing parameters.
    assert_eq!(of(&client, 3), priority(2, false));
    client.get(5);
    assert_eq!(of(&client, 5), priority(3, true));
    for stream in [1, 3, 5] {
        client.machine.wants_to_send(stream);
    }
    client.expect_quiet(&update(1, b"u=7"), &[]);
    client.expect_quiet(&update(5, b"u=1"), &[]);
    client.expect_quiet(&update(5, b"u=1"), &[]);
    let mut left = [(1, 10), (3, 10), (5, 10)];
    assert_eq!(streams_of(&turns(&mut client, &mut left)), [5, 3, 1]);
    // A released stream has no priority; a stream number that clients cannot use is an error.
    client.machine.release(1);
    client.expect_quiet(&update(1, b"u=7"), &[]);
    for stream in [0, 2, 8] {
        let mut client = Client::usual();
        client.expect_connection_error(&update(stream, b"u=1"), code::PROTOCOL_ERROR);
    }
    // An invalid value is ignored (section 7 leaves this to us).
    let mut client = Client::usual();
    client.expect_quiet(&update(1, b"\xff=,;"), &[]);
    client.get(1);
    assert_eq!(of(&client, 1), Priority::default());
}

#[test]
fn early_priorities_have_a_bound_and_leave_with_their_streams() {
    let update = |stream: u32, value: &[u8]| {
        let payload = [&stream.to_be_bytes()[..], value].concat();
        frame(PRIORITY_UPDATE, 0, 0, &payload)
    };
    let mut client = Client::usual();
    for number in 0..1000 {
        client.expect_quiet(&update(2 * number + 1, b"u=1"), &[]);
    }
    assert_eq!(client.machine.early_priorities.len(), 32);
    // Early priorities of streams that are answered without being opened are dropped.
    let mut client = Client::usual();
    for number in 0..1000 {
        let stream = 2 * number + 1;
        client.expect_quiet(&update(stream, b"u=1"), &[]);
        client.get(stream);
        client.machine.streams.remove(&stream);
        client
            .machine
            .early_priorities
            .push((stream, Priority::default()));
    }
    client.expect_quiet(&update(2001, b"u=1"), &[]);
    assert_eq!(client.machine.early_priorities.len(), 1);
    client.get(2001);
    assert_eq!(client.machine.stream(2001).unwrap().priority().urgency, 1);
}

#[test]
fn a_turn_is_never_that_of_a_stream_that_cannot_send() {
    let begun = || {
        let mut client = Client::usual();
        for stream in [1, 3] {
            client.get(stream);
            client.machine.wants_to_send(stream);
        }
        client
    };
    let next = |client: &mut Client| client.machine.turn().map(|(stream, _)| stream);
    // A stream that trailers have ended.
    let mut client = begun();
    client.machine.put_head(1, b"\x88", true, &mut Vec::new());
    assert_eq!([next(&mut client), next(&mut client)], [Some(3), None]);
    // A stream that was reset by the client, reset by us, or released.
    let mut client = begun();
    client.feed(&reset(1, 8)).unwrap();
    assert_eq!([next(&mut client), next(&mut client)], [Some(3), None]);
    let mut client = begun();
    client.machine.reset(1, ErrorCode::InternalError);
    assert_eq!([next(&mut client), next(&mut client)], [Some(3), None]);
    let mut client = begun();
    client.machine.release(1);
    assert_eq!([next(&mut client), next(&mut client)], [Some(3), None]);
    // A stream whose record is missing, although it is in the schedule.
    let mut client = begun();
    client.machine.streams.remove(&1);
    assert_eq!([next(&mut client), next(&mut client)], [Some(3), None]);
    // A stream whose window SETTINGS have closed; it is scheduled again when the window opens.
    let mut client = begun();
    client.feed(&window_update(3, 1)).unwrap();
    client.feed(&setting(4, 0)).unwrap();
    assert_eq!([next(&mut client), next(&mut client)], [Some(3), None]);
    client.feed(&window_update(1, 1)).unwrap();
    assert_eq!([next(&mut client), next(&mut client)], [Some(1), None]);
    // All streams were released.
    let mut client = begun();
    client.machine.release(1);
    client.machine.release(3);
    assert_eq!(next(&mut client), None);
    assert!(client.machine.schedule.is_none());
}
