//! Finished responses leave before the connection waits for anything: at the same virtual instant,
//! and together.

use std::time::Duration;

use engine::net::Stream;
use engine::sim::{Faults, Streams};

use crate::client::{connect, hear_first, say};
use crate::random::Random;
use crate::server::{Server, simulate, start_behind};
use crate::site::{Asked, Site, after, behind, conditional, mirrored, slow, which};

/// A network on which nothing takes any time.
const INSTANT: Faults = Faults {
    delay_min: Duration::ZERO,
    delay_max: Duration::ZERO,
    short_receive: 0,
    short_send: 0,
    reset: 0,
    window: 256 * 1024,
    backlog: 16,
    loss: 0,
    duplicate: 0,
    reorder: 0,
    corrupt: 0,
    streams: Streams::Direct,
};

/// What a turn of the simulated loop takes: with a body, one looks for what has come of it.
const TURN: Duration = Duration::from_micros(1);

/// Serves the site to a client on such a network. What a test leaves unanswered is given up when it
/// ends.
fn serve(faults: Faults, seed: u64, test: impl AsyncFnOnce(&Stream) -> Result<(), String>) {
    let site = Site::new();
    let outcome = simulate(seed, faults, async || {
        start_behind(Random(seed));
        let server = Server::start(&site);
        let client = connect(&server.address).await?;
        test(&client).await?;
        drop(client);
        server.finish().await.map(drop)
    });
    if let Err(what) = outcome {
        panic!("seed {seed}: {what}");
    }
}

/// Sends `first` and something that keeps the server waiting in one piece: `first` must be answered
/// in no time.
#[track_caller]
fn assert_leaves(first: Asked, held: &[u8]) {
    assert_leaves_within(Duration::ZERO, first, held);
}

#[track_caller]
fn assert_leaves_within(limit: Duration, first: Asked, held: &[u8]) {
    serve(INSTANT, 1, async |client| {
        let begun = engine::now();
        say(client, &[&first.request, held].concat());
        hear_first(client, &first).await?;
        assert!(
            engine::now() - begun <= limit,
            "{:?} before {:?}",
            first.logged,
            String::from_utf8_lossy(held)
        );
        Ok(())
    });
}

#[test]
fn before_the_rest_of_a_head_is_awaited() {
    for held in [
        "\r\n",
        "\n",
        "\r\n\r\n\n\r\n",
        "G",
        "GET /which HTTP/1.1\r\nHost: ",
    ] {
        assert_leaves(which("one"), held.as_bytes());
    }
}

#[test]
fn before_a_body_is_awaited() {
    let head = "POST /upload HTTP/1.1\r\nHost: site\r\n";
    let upload = "POST /behind HTTP/1.1\r\nHost: site\r\n";
    for head in [head, upload] {
        for rest in [
            "Content-Length: 9\r\n\r\n12345678",
            "Transfer-Encoding: chunked\r\n\r\n9\r\n12",
        ] {
            assert_leaves_within(TURN, which("one"), [head, rest].concat().as_bytes());
        }
    }
    // Its own response, before what is left of its body is read away.
    let mut own = which("one");
    own.request = b"POST /which HTTP/1.1\r\nHost: site\r\nContent-Length: 9\r\n\r\n1234".to_vec();
    assert_leaves_within(TURN, own, b"");
}

#[test]
fn before_an_upstream_is_awaited() {
    assert_leaves(which("one"), &behind().request);
    assert_leaves(
        conditional("If-None-Match: \"65920080-d\"\r\n"),
        &behind().request,
    );
}

#[test]
fn before_a_timer_is_awaited() {
    // The second one of these is delayed by a second.
    let limited = "GET /limited HTTP/1.1\r\nHost: site\r\n\r\n".repeat(2);
    assert_leaves(which("one"), limited.as_bytes());
    assert_leaves(which("one"), &slow().request);
}

#[test]
fn before_requests_in_the_background_are_awaited() {
    assert_leaves(after(), b"");
    assert_leaves(mirrored(), b"");
}

#[test]
fn those_of_a_batch_leave_together() {
    // On a network that takes another time for each send, two sends would be seen as two.
    let faults = Faults {
        delay_max: Duration::from_millis(50),
        ..INSTANT
    };
    let ready = [
        which("one"),
        conditional("If-None-Match: \"65920080-d\"\r\n"),
        which("one"),
    ];
    for held in [&b""[..], b"\r\n", &behind().request] {
        for seed in 0..10 {
            serve(faults.clone(), seed, async |client| {
                let requests = ready.iter().flat_map(|asked| &asked.request);
                let mut requests: Vec<u8> = requests.copied().collect();
                requests.extend_from_slice(held);
                say(client, &requests);
                let wanted: usize = ready.iter().map(|asked| asked.response.len()).sum();
                match hear_first(client, &ready[0]).await? {
                    received if received == wanted => Ok(()),
                    received => Err(format!("{received} bytes of {wanted} came first")),
                }
            });
        }
    }
}
