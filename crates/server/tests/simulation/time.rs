//! Time limits, pacing and graceful ends by the virtual clock.

use std::io;
use std::time::{Duration, Instant};

use engine::Buffer;
use engine::net::{Address, Listener, Stream};
use engine::sim::{self, Faults, Streams};

use crate::client::{ask, connect, end, hear, hear_all, say};
use crate::random::Random;
use crate::server::{Server, simulate, start_behind};
use crate::site::{Site, behind, large_at, slow, small, which};

/// Time on the way, both ways, and the clock's resolution.
const TOLERANCE: Duration = Duration::from_millis(10);

/// Asserts that so much time has passed since, up to the tolerance.
#[track_caller]
fn assert_passed(since: Instant, seconds: u64) {
    let passed = engine::now() - since;
    let wanted = Duration::from_secs(seconds);
    assert!(
        (wanted..wanted + TOLERANCE).contains(&passed),
        "{passed:?} instead of {wanted:?}"
    );
}

/// Serves a site to `test`, then quits; nothing may be left.
fn serve(test: impl AsyncFnOnce(&Server<'_>) -> Result<(), String>) {
    serve_over(Faults::default(), "", test);
}

/// Serves a site to `test` over a network with these faults, with further lines in the block
/// `http`.
fn serve_over(
    faults: Faults,
    lines: &str,
    test: impl AsyncFnOnce(&Server<'_>) -> Result<(), String>,
) {
    let site = Site::new();
    site.lines.replace(lines.to_owned());
    let outcome = simulate(1, faults, async || {
        start_behind(Random(1));
        let server = Server::start(&site);
        test(&server).await?;
        server.finish().await
    });
    outcome.unwrap();
}

#[test]
fn client_header_timeout_ends_a_connection_that_sends_no_head() {
    serve(async |server| {
        let (silent, slow) = (
            connect(&server.address).await?,
            connect(&server.address).await?,
        );
        let accepted = engine::now();
        engine::sleep(Duration::from_secs(20)).await;
        // As with nginx, the time for a connection's first head begins with the connection.
        say(&slow, b"GET / HT");
        end(&silent).await?;
        assert_passed(accepted, 60);
        end(&slow).await?;
        assert_passed(accepted, 60);
        assert_eq!(server.connections(), 0);
        Ok(())
    });
}

#[test]
fn a_later_head_has_its_time_from_its_first_byte() {
    serve(async |server| {
        let client = connect(&server.address).await?;
        ask(&client, &which("one")).await?;
        engine::sleep(Duration::from_secs(50)).await;
        say(&client, b"GET ");
        let begun = engine::now();
        engine::sleep(Duration::from_secs(30)).await;
        say(&client, b"/which HT");
        end(&client).await?;
        assert_passed(begun, 60);
        Ok(())
    });
}

#[test]
fn keepalive_timeout_counts_from_the_last_answer() {
    serve(async |server| {
        let client = connect(&server.address).await?;
        for _ in 0..3 {
            ask(&client, &which("one")).await?;
            engine::sleep(Duration::from_secs(70)).await;
        }
        ask(&client, &which("one")).await?;
        let answered = engine::now();
        end(&client).await?;
        assert_passed(answered, 75);
        Ok(())
    });
}

#[test]
fn limit_rate_paces_by_the_clock() {
    serve(async |server| {
        let (client, asked) = (connect(&server.address).await?, slow());
        say(&client, &asked.request);
        let begun = engine::now();
        let mut received = 0;
        while received < asked.response.len() {
            match client.recv(None).await {
                Ok(bytes) if !bytes.is_empty() => received += bytes.len(),
                other => return Err(format!("after {received}: {other:?}")),
            }
            // nginx allows the rate once for every second begun.
            let allowed = 1000 * ((engine::now() - begun + TOLERANCE).as_secs() as usize + 1);
            assert!(
                received <= allowed,
                "{received} after {:?}",
                engine::now() - begun
            );
        }
        let took = engine::now() - begun;
        assert!((8..10).contains(&took.as_secs()), "{took:?}");
        Ok(())
    });
}

/// A client that has sent more than its last request would be answered with a reset, were its
/// connection closed at once.
#[test]
fn lingering_close_waits_behind_an_answer_from_memory() {
    serve(async |server| {
        server.settle().await;
        let client = connect(&server.address).await?;
        for _ in 0..3 {
            ask(&client, &small()).await?;
        }
        let last = "GET /small.txt HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n";
        let begun = engine::now();
        say(&client, format!("{last}{last}").as_bytes());
        let answer = hear_all(&client).await?;
        assert!(answer.ends_with(b"\r\n\r\na small file\n"));
        // As with nginx, it does not end earlier with its thread.
        server.worker.quit();
        while server.connections() > 0 {
            engine::sleep(Duration::from_millis(1)).await;
        }
        assert_passed(begun, 5);
        Ok(())
    });
}

#[test]
fn send_timeout_holds_for_answers_from_memory() {
    let faults = Faults {
        window: 2000,
        ..Faults::default()
    };
    serve_over(faults, "send_timeout 7s;", async |server| {
        server.settle().await;
        let other = connect(&server.address).await?;
        for _ in 0..3 {
            ask(&other, &small()).await?;
        }
        drop(other);
        // This connection sees no other answers.
        let client = connect(&server.address).await?;
        let begun = engine::now();
        say(&client, &small().request.repeat(400));
        while server.connections() > 0 {
            engine::sleep(Duration::from_millis(1)).await;
        }
        let passed = engine::now() - begun;
        assert_eq!(passed.as_secs(), 7, "{passed:?}");
        Ok(())
    });
}

/// The turns of the loop can be told by the time that they take where nothing else takes any.
#[test]
fn a_file_is_sent_by_sendfile_max_chunk_a_turn() {
    let faults = Faults {
        delay_min: Duration::ZERO,
        delay_max: Duration::ZERO,
        short_receive: 0,
        short_send: 0,
        ..Faults::default()
    };
    serve_over(faults, "", async |server| {
        let client = connect(&server.address).await?;
        let mut took = Vec::new();
        for folder in ["/whole", "/chunks", "/whole"] {
            let begun = engine::now();
            ask(&client, &large_at(&format!("{folder}/large.txt"))).await?;
            took.push(engine::now() - begun);
        }
        assert!(took[1] > 4 * took[0], "{took:?}");
        // The next location says that there is no bound.
        assert!(took[1] > 4 * took[2], "{took:?}");
        Ok(())
    });
}

/// A network that holds little, and carries all of it.
const NARROW: Faults = Faults {
    delay_min: Duration::from_micros(10),
    delay_max: Duration::from_micros(200),
    short_receive: 50,
    short_send: 50,
    reset: 0,
    window: 20_000,
    backlog: 16,
    loss: 0,
    duplicate: 0,
    reorder: 0,
    corrupt: 0,
    streams: Streams::Direct,
};

/// As nginx does (`ngx_http_discarded_request_body_handler`): neither end waits for the other for
/// ever.
#[test]
fn a_body_that_is_not_read_is_received_beside_its_response() {
    serve_over(NARROW, "", async |server| {
        let size = 100_000;
        let chunks = format!("3e8\r\n{}\r\n", "x".repeat(1000)).repeat(size / 1000);
        let framings = [
            format!("Content-Length: {size}\r\n\r\n{}", "x".repeat(size)),
            format!("Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"),
        ];
        for asked in [large_at("/large.txt"), slow()] {
            let line = asked.logged.trim_start_matches("200 ");
            for framing in &framings {
                let client = connect(&server.address).await?;
                let request = format!("{line} HTTP/1.1\r\nHost: site\r\n{framing}");
                let begun = engine::now();
                say(&client, request.as_bytes());
                let sent = client.drained(0).await;
                sent.map_err(|error| format!("sending failed: {error}"))?;
                let passed = engine::now() - begun;
                assert!(passed < Duration::from_secs(1), "{line}: {passed:?}");
                hear(&client, &asked).await?;
                ask(&client, &which("one")).await?;
            }
        }
        Ok(())
    });
}

/// Takes so many bytes of what comes, or a few more; how many it were.
async fn take(client: &Stream, length: usize) -> Result<usize, String> {
    let mut received = 0;
    while received < length {
        match client.recv(None).await {
            Ok(bytes) if !bytes.is_empty() => received += bytes.len(),
            other => return Err(format!("after {received}: {other:?}")),
        }
    }
    Ok(received)
}

/// Takes nothing for longer than `send_timeout 7s`, and finds the connection reset then.
async fn take_nothing(client: &Stream) {
    engine::sleep(Duration::from_secs(10)).await;
    let rest = hear_all(client).await;
    let error = rest.expect_err("a reset");
    assert!(error.contains("reset by peer"), "{error}");
}

#[test]
fn reset_timedout_connection_holds_for_the_end_of_a_response() {
    let lines = "send_timeout 7s; reset_timedout_connection on;";
    serve_over(NARROW, lines, async |server| {
        let client = connect(&server.address).await?;
        let head = "GET /large.txt HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n";
        say(&client, head.as_bytes());
        // What is left after so much has been queued, and the request has ended.
        take(&client, 100_000).await?;
        take_nothing(&client).await;
        Ok(())
    });
}

/// As nginx does (`ngx_http_discarded_request_body_handler`).
#[test]
fn reset_timedout_connection_holds_for_a_body_that_is_dropped() {
    for (lines, resets) in [("reset_timedout_connection on;", true), ("", false)] {
        let lines = format!("lingering_timeout 3s; {lines}");
        serve_over(NARROW, &lines, async |server| {
            let client = connect(&server.address).await?;
            let head = "POST /one.txt HTTP/1.1\r\nHost: site\r\nContent-Length: 2000\r\n\r\nsome";
            say(&client, head.as_bytes());
            let rest = hear_all(&client).await;
            assert_eq!(rest.is_err(), resets, "{rest:?}");
            Ok(())
        });
    }
}

/// Starts a server at this address that takes one client, and does this with it once it has said so
/// much.
fn start_other<F: Future<Output = ()> + 'static>(
    address: &str,
    until: &'static [u8],
    then: impl FnOnce(Stream) -> F + 'static,
) {
    let (socket, _) = sim::listen(Address::Inet(address.parse().unwrap())).unwrap();
    engine::spawn(async move {
        let listener = Listener::new(socket).unwrap();
        let Ok(stream) = listener.accept().await else {
            return;
        };
        let mut said = Vec::new();
        while !said.ends_with(until) {
            match stream.recv(None).await {
                Ok(bytes) if !bytes.is_empty() => said.extend_from_slice(&bytes),
                _ => return,
            }
        }
        then(stream).await;
    });
}

/// As nginx does (`ngx_http_upstream_process_upgraded`).
#[test]
fn reset_timedout_connection_holds_for_a_tunnel() {
    let lines = "send_timeout 7s; reset_timedout_connection on;
        server {
            listen 10.0.0.1:80;
            server_name tunnel;
            location / {
                proxy_pass http://10.0.0.9:8082;
                proxy_http_version 1.1;
                proxy_set_header Upgrade $http_upgrade;
                proxy_set_header Connection upgrade;
            }
        }";
    serve_over(NARROW, lines, async |server| {
        start_other("10.0.0.9:8082", b"\r\n\r\n", |stream: Stream| async move {
            let head =
                "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
            say(&stream, head.as_bytes());
            say(&stream, &b"x".repeat(150_000));
            let _ = stream.recv(None).await; // until the other end has gone
        });
        let client = connect(&server.address).await?;
        let head = "GET / HTTP/1.1\r\nHost: tunnel\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
        say(&client, head.as_bytes());
        take(&client, 30_000).await?;
        take_nothing(&client).await;
        Ok(())
    });
}

/// An application that writes to its log all the time gives a silent client no more time.
#[test]
fn client_body_timeout_holds_while_an_application_says_something() {
    let lines = "server {
            listen 10.0.0.1:80;
            server_name application;
            client_body_timeout 7s;
            location / { fastcgi_pass 10.0.0.9:8082; fastcgi_request_buffering off; }
        }";
    serve_over(NARROW, lines, async |server| {
        let end_of_parameters = b"\x01\x04\x00\x01\x00\x00\x00\x00";
        start_other(
            "10.0.0.9:8082",
            end_of_parameters,
            |stream: Stream| async move {
                let is_silent = |received: io::Result<Buffer>| {
                    received.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
                };
                let soon = || Some(engine::now() + Duration::from_millis(100));
                while is_silent(stream.recv(soon()).await) {
                    say(&stream, b"\x01\x07\x00\x01\x00\x08\x00\x00working\n");
                }
            },
        );
        let client = connect(&server.address).await?;
        let head = "POST / HTTP/1.1\r\nHost: application\r\nContent-Length: 10\r\n\r\n";
        let begun = engine::now();
        say(&client, head.as_bytes());
        end(&client).await?;
        assert_passed(begun, 7);
        Ok(())
    });
}

#[test]
fn a_body_that_never_comes_costs_a_slow_client_nothing_of_the_response() {
    serve_over(NARROW, "", async |server| {
        let client = connect(&server.address).await?;
        let asked = large_at("/large.txt");
        let head = "GET /large.txt HTTP/1.1\r\nHost: site\r\nContent-Length: 10\r\n\r\n";
        say(&client, head.as_bytes());
        // What is left after so much has been queued, and is taken when `lingering_timeout` has
        // passed.
        let received = take(&client, 100_000).await?;
        engine::sleep(Duration::from_secs(10)).await;
        let rest = hear_all(&client).await?;
        assert_eq!(received + rest.len(), asked.response.len());
        Ok(())
    });
}

#[test]
fn quitting_ends_idle_connections_and_finishes_busy_ones() {
    serve(async |server| {
        let idle = connect(&server.address).await?;
        ask(&idle, &which("one")).await?;
        let busy = connect(&server.address).await?;
        let asked = behind();
        say(&busy, &asked.request);
        engine::sleep(Duration::from_millis(5)).await;
        let quit = engine::now();
        server.worker.quit();
        end(&idle).await?;
        assert_passed(quit, 0);
        // Its answer says that the connection ends.
        let mut closing = asked;
        let head = String::from_utf8_lossy(&closing.response).into_owned();
        closing.response = head.replace("keep-alive", "close").into_bytes();
        hear(&busy, &closing).await?;
        end(&busy).await?;
        server.worker.end().await;
        assert!(connect(&server.address).await.is_err());
        Ok(())
    });
}

/// What `worker_shutdown_timeout` makes of a reload.
#[test]
fn a_limit_ends_what_is_open_and_nothing_that_comes_later() {
    serve(async |server| {
        let idle = connect(&server.address).await?;
        ask(&idle, &which("one")).await?;
        let (busy, mut closing) = (connect(&server.address).await?, behind());
        say(&busy, &closing.request);
        let slowest = connect(&server.address).await?;
        say(&slowest, &slow().request);
        engine::sleep(Duration::from_millis(5)).await;
        let limited = engine::now();
        server.worker.limit_open(Duration::from_secs(5));
        end(&idle).await?;
        assert_passed(limited, 0);
        engine::sleep(Duration::from_millis(5)).await;
        let later = connect(&server.address).await?;
        ask(&later, &which("one")).await?;
        let head = String::from_utf8_lossy(&closing.response).into_owned();
        closing.response = head.replace("keep-alive", "close").into_bytes();
        hear(&busy, &closing).await?;
        end(&busy).await?;
        while let Ok(bytes) = slowest.recv(None).await
            && !bytes.is_empty()
        {}
        assert_passed(limited, 5);
        ask(&later, &which("one")).await
    });
}

/// As from nginx, clients get what the kernel has of their response by then.
#[test]
fn a_limit_takes_nothing_back() {
    serve_over(NARROW, "", async |server| {
        let client = connect(&server.address).await?;
        say(&client, b"GET /large.txt HTTP/1.1\r\nHost: site\r\n\r\n");
        engine::sleep(Duration::from_millis(5)).await;
        server.worker.limit_open(Duration::from_secs(5));
        engine::sleep(Duration::from_secs(10)).await;
        let heard = hear_all(&client).await?;
        assert!(heard.len() > 1000, "{}", heard.len());
        Ok(())
    });
}

#[test]
fn time_on_the_way_does_not_count() {
    let site = Site::new();
    let delay = Duration::from_millis(200);
    let faults = Faults {
        delay_min: delay,
        delay_max: delay,
        ..Faults::default()
    };
    simulate(1, faults, async || {
        let server = Server::start(&site);
        let begun = engine::now();
        let client = connect(&server.address).await.unwrap();
        end(&client).await.unwrap();
        // There and back, and a minute between.
        let passed = engine::now() - begun;
        let wanted = Duration::from_secs(60) + 2 * delay;
        assert!((wanted..wanted + TOLERANCE).contains(&passed), "{passed:?}");
        server.finish().await.unwrap();
    });
}
