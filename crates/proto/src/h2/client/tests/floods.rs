//! Floods by a server: frames that cost us more than the server, and the limits beyond which they
//! end the connection.

use super::*;
use crate::h2::meter;

fn update(stream: u32, bytes: u32) -> Vec<u8> {
    frame_of(|out| frame::put_window_update(out, stream, bytes))
}

/// A client with two requests: on stream 1 the head of the response was received, stream 3 was
/// reset by the client.
fn asked() -> Client<u32> {
    let mut client = begun(&[]);
    for _ in 0..2 {
        open(&mut client, false).unwrap();
    }
    feed(&mut client, &head(1, 200, &[], false)).unwrap();
    client.release(3);
    client.clear_output();
    client
}

#[test]
fn what_comes_too_often_ends_the_connection() {
    let any = |kind, flags, stream, payload: &[u8]| {
        frame_of(|out| {
            frame::put_head(out, kind, flags, stream, payload.len());
            out.extend_from_slice(payload);
        })
    };
    let too_many = Violation::TooMany;
    // The frame, its limit per second, and the violation beyond the limit.
    for (frame, most, violation) in [
        (
            update(0, 1),
            meter::WINDOW_UPDATES_MAX,
            too_many("WINDOW_UPDATE frames"),
        ),
        (
            update(1, 1),
            meter::WINDOW_UPDATES_MAX,
            too_many("WINDOW_UPDATE frames"),
        ),
        (
            any(Kind::Priority, 0, 1, &[0, 0, 0, 0, 1]),
            meter::PRIORITIES_MAX,
            too_many("PRIORITY frames"),
        ),
        (
            any(Kind::Ping, 0, 0, &[0; 8]),
            meter::PINGS_MAX,
            too_many("PING frames"),
        ),
        (
            any(Kind::Ping, flags::ACK, 0, &[0; 8]),
            meter::EMPTY_MAX,
            Violation::Flood,
        ),
        (
            settings(&[]),
            meter::SETTINGS_MAX - 1,
            too_many("SETTINGS frames"),
        ),
        (
            any(Kind::Settings, flags::ACK, 0, &[]),
            meter::SETTINGS_MAX - 1,
            too_many("SETTINGS frames"),
        ),
        (
            any(Kind::Unknown(0x77), 0, 0, b"what"),
            meter::EMPTY_MAX,
            Violation::Flood,
        ),
        (data(1, b"", false), meter::EMPTY_MAX, Violation::Flood),
        (
            data(1, b"a", false),
            meter::SMALL_DATA_MAX,
            too_many("small DATA frames"),
        ),
        (
            frame_of(|out| frame::put_goaway(out, 99, ErrorCode::NoError)),
            meter::EMPTY_MAX,
            Violation::Flood,
        ),
        // Two requests have been sent, each of which permits a reset.
        (
            any(Kind::Reset, 0, 3, &[0, 0, 0, 8]),
            meter::RESETS_MAX + 2,
            too_many("RST_STREAM frames"),
        ),
        (
            head(3, 200, &[], false),
            // And the head and trailers of the request that was reset.
            meter::RESETS_MAX + 2,
            too_many("HEADERS frames for closed streams"),
        ),
    ] {
        let mut client = asked();
        for _ in 0..most {
            assert!(feed(&mut client, &frame).is_ok(), "{violation:?}");
            client.consumed(1, 1);
        }
        assert_eq!(feed(&mut client, &frame), Err(violation));
    }
}

#[test]
fn credit_that_is_worth_its_frame_or_follows_data_is_not_counted() {
    let mut client = asked();
    for _ in 0..meter::WINDOW_UPDATES_MAX * 2 {
        feed(&mut client, &update(0, 1024)).unwrap();
    }
    let mut client = asked();
    for _ in 0..meter::WINDOW_UPDATES_MAX * 2 {
        client.put_data(1, b"a", false, true);
        feed(&mut client, &update(0, 1)).unwrap();
        feed(&mut client, &update(1, 1)).unwrap();
        client.clear_output();
    }
}

#[test]
fn each_request_may_be_reset() {
    let mut client = begun(&[]);
    for _ in 0..meter::RESETS_MAX * 5 {
        let stream = open(&mut client, true).unwrap();
        let reset = frame_of(|out| frame::put_reset(out, stream, ErrorCode::InternalError));
        assert_eq!(feed(&mut client, &reset).unwrap().len(), 1);
        client.release(stream);
        client.clear_output();
    }
}
