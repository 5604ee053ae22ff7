//! How streams share the connection's window.

use super::*;

/// The initial window of a connection.
const WINDOW: usize = INITIAL_WINDOW_SIZE_DEFAULT as usize;

fn update(stream: u32, bytes: usize) -> Vec<u8> {
    frame_of(|out| frame::put_window_update(out, stream, bytes as u32))
}

/// A client with this many streams, whose windows are larger than the connection's.
fn with_streams(count: usize) -> (Client<u32>, Vec<u32>) {
    let mut client = begun(&[(crate::h2::settings::INITIAL_WINDOW_SIZE, 1 << 30)]);
    let streams = (0..count).map(|_| open(&mut client, false).unwrap());
    let streams = streams.collect();
    client.clear_output();
    (client, streams)
}

/// Sends as much on the streams as the windows allow, and returns how much each has sent.
fn send_all(client: &mut Client<u32>, streams: &[u32]) -> Vec<usize> {
    streams
        .iter()
        .for_each(|stream| client.wants_to_send(*stream));
    let mut sent = vec![0; streams.len()];
    while let Some((stream, most)) = client.turn() {
        let place = streams.iter().position(|other| *other == stream);
        sent[place.unwrap()] += most;
        client.put_data(stream, &vec![0; most], false, true);
        client.clear_output();
    }
    sent
}

#[test]
fn a_stream_that_is_alone_may_use_all() {
    let (mut client, streams) = with_streams(1);
    assert!(client.has_window());
    assert_eq!(send_all(&mut client, &streams), [WINDOW]);
    assert!(!client.has_window());
    feed(&mut client, &update(0, WINDOW)).unwrap();
    assert!(client.has_window());
}

#[test]
fn a_stream_that_is_not_read_leaves_some_for_others() {
    let (mut client, streams) = with_streams(3);
    // More than half of the window, because servers give credit when half of it is used at the
    // latest.
    let [first] = send_all(&mut client, &streams[..1])[..] else {
        panic!()
    };
    assert!((WINDOW / 2 + 4096..WINDOW * 2 / 3).contains(&first));
    assert!(!client.has_window());
    let left = WINDOW - first;
    // A second stream that the server does not read leaves most of the rest, and so on.
    let second = send_all(&mut client, &streams[..2]);
    assert_eq!(second[0], 0);
    assert!((left / 8..=left / 4 + 1).contains(&second[1]));
    let third = send_all(&mut client, &streams)[2];
    assert!((left / 8..left / 4).contains(&third));
    assert!(client.send_window as usize > left / 2);
    // No stream is held back forever: with credit for the stream alone, or for the connection, it
    // continues.
    feed(&mut client, &update(streams[1], second[1])).unwrap();
    assert!(send_all(&mut client, &streams)[1] > 0);
    feed(&mut client, &update(0, WINDOW)).unwrap();
    assert!(send_all(&mut client, &streams)[0] > 0);
}

#[test]
fn a_stream_that_is_read_goes_on_beside_one_that_is_not() {
    let (mut client, streams) = with_streams(2);
    send_all(&mut client, &streams[..1]);
    let mut sent = 0;
    for _ in 0..100 {
        let now = send_all(&mut client, &streams)[1];
        assert!(now > 4096);
        sent += now;
        let credit = [update(0, now), update(streams[1], now)].concat();
        feed(&mut client, &credit).unwrap();
    }
    assert!(sent > 6 * WINDOW);
}

/// A server may give no credit for streams whose windows are larger than any body.
#[test]
fn streams_whose_server_gives_credit_to_the_connection_alone_go_on() {
    let (mut client, streams) = with_streams(2);
    for _ in 0..100 {
        // As late as any server gives credit.
        let sent: usize = send_all(&mut client, &streams).iter().sum();
        assert!(sent > WINDOW / 2);
        feed(&mut client, &update(0, sent)).unwrap();
    }
}

#[test]
fn the_last_stream_gets_what_others_were_to_have() {
    let (mut client, streams) = with_streams(2);
    send_all(&mut client, &streams[..1]);
    let left = client.send_window as usize;
    assert!(left > 0);
    client.release(streams[1]);
    assert_eq!(send_all(&mut client, &streams[..1]), [left]);
}

#[test]
fn streams_are_held_back_once_however_often_they_ask() {
    let (mut client, streams) = with_streams(2);
    send_all(&mut client, &streams[..1]);
    for _ in 0..100 {
        feed(&mut client, &update(streams[0], 1)).unwrap();
        assert_eq!(client.turn(), None);
    }
    assert_eq!(client.window_waiters, [streams[0]]);
}

#[test]
fn a_large_window_keeps_back_no_more_than_is_useful() {
    let (mut client, streams) = with_streams(2);
    feed(&mut client, &update(0, 1 << 24)).unwrap();
    let sent = send_all(&mut client, &streams[..1])[0];
    assert_eq!(sent, WINDOW + (1 << 24) - (1 << 20));
    assert!(!client.has_window());
}
