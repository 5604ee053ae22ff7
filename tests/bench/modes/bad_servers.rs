//! Servers that behave badly, in every mode: each run ends, and says what went wrong.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::modes::Folder;
use support::load::{GOOD, RUN_MAX, answering, bench, number, report, request, server};

#[test]
fn what_a_server_breaks_off_or_makes_up_has_its_own_heading() {
    let resets_in_body = server(|mut stream| {
        let mut one = [0; 1];
        let _ = std::io::Read::read(&mut stream, &mut one);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc");
        // Closing with unread bytes resets.
    });
    // Closing with bytes unread resets; where the request has not come yet, it is an ordinary end.
    let resets_at_once = server(|stream| {
        let _ = stream.set_read_timeout(Some(Duration::from_secs(60)));
        let _ = stream.peek(&mut [0; 1]);
    });
    let closes_at_once = server(drop);
    let resets_after_head = server(|mut stream| {
        let _ = std::io::Read::read(&mut stream, &mut [0; 1]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n");
    });
    let stalls_in_body = server(|mut stream| {
        request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc");
        while request(&mut stream) {}
    });
    let stalls_in_head = server(|mut stream| {
        request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-");
        while request(&mut stream) {}
    });
    let closes_in_chunk = server(|mut stream| {
        request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nabc");
    });
    let closes_before_last_chunk = server(|mut stream| {
        request(&mut stream);
        let _ =
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    });
    let one_line_without_end = server(|mut stream| {
        request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX: ");
        while stream.write_all(&[b'y'; 4096]).is_ok() {}
    });
    for (url, kinds) in [
        // Which of the two comes first is the kernel's.
        (&resets_in_body, &["reset", "closed_in_body"][..]),
        (&stalls_in_body, &["timeout"]),
        (&stalls_in_head, &["timeout"]),
        (&closes_in_chunk, &["closed_in_body"]),
        (&closes_before_last_chunk, &["closed_in_body"]),
        (&one_line_without_end, &["head_too_large"]),
        (
            &answering(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
            &["garbage_head"],
        ),
        (
            &answering(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n"),
            &["garbage_head"],
        ),
        (
            &answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
            &["garbage_head"],
        ),
        (
            &answering(b"HTTP/1.1 200 OK\r\nA\0: b\r\n\r\n"),
            &["garbage_head"],
        ),
        (&answering(b"HTTP/1.1 2000 OK\r\n\r\n"), &["garbage_head"]),
        (
            &answering(b"HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n"),
            &["garbage_head"],
        ),
        (
            &answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\n"),
            &["garbage_head"],
        ),
        (
            &answering(
                b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            ),
            &["garbage_head"],
        ),
        (
            &answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n"),
            &["garbage_body"],
        ),
        (
            &answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n"),
            &["garbage_body"],
        ),
        (&resets_at_once, &["reset", "closed_early"]),
        (&resets_after_head, &["reset", "closed_in_body"]),
        (&closes_at_once, &["reset", "closed_early"]),
        (&answering(b"\0\0\0\0"), &["garbage_head"]),
        (
            &answering(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n",
            ),
            &["garbage_body"],
        ),
    ] {
        let report = report(&[url, "-n", "4", "-c", "2", "--timeout", "300ms"]);
        let counted: f64 = kinds.iter().map(|kind| number(&report, kind)).sum();
        assert_eq!(
            (counted, number(&report, "failed")),
            (4.0, 4.0),
            "{kinds:?}: {report}"
        );
    }
}

/// A server that stops, or drips, wherever it can: the time limit ends each request.
#[test]
fn stalls_and_drips_end_with_the_time_limit() {
    let drips = |bytes: &'static [u8], again: &'static [u8]| {
        server(move |mut stream| {
            request(&mut stream);
            let _ = stream.write_all(bytes);
            while stream.write_all(again).is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        })
    };
    let never_reads = server(|stream| {
        // Kept open until the client gives up, which resets or ends it.
        let _ = stream.set_read_timeout(Some(RUN_MAX));
        let mut byte = [0; 1];
        while matches!(stream.peek(&mut byte), Ok(1)) {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let folder = Folder::new();
    let body = folder.path("body");
    std::fs::write(&body, vec![b'x'; 16 << 20]).unwrap();
    let body = format!("@{body}");
    let small = "x".to_owned();
    for (what, url, body) in [
        ("reads no body", &never_reads, &body),
        (
            "drips a status line",
            &drips(b"HTTP/1.1 200 ", b"O"),
            &small,
        ),
        (
            "drips a header",
            &drips(b"HTTP/1.1 200 OK\r\nA: ", b"b"),
            &small,
        ),
        (
            "drips a body",
            &drips(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b"b"),
            &small,
        ),
        (
            "drips the size of a chunk",
            &drips(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0",
                b"0",
            ),
            &small,
        ),
        (
            "drips the extension of a chunk",
            &drips(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;",
                b"e",
            ),
            &small,
        ),
        (
            "drips trailers",
            &drips(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
                b"A: b\r\n",
            ),
            &small,
        ),
        (
            "drips until it closes, which is never",
            &drips(b"HTTP/1.0 200 OK\r\n\r\n", b"b"),
            &small,
        ),
        (
            "promises a huge chunk",
            &drips(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7ffffffffffffff\r\n",
                b"b",
            ),
            &small,
        ),
        (
            "promises the largest length",
            &drips(
                b"HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\n",
                b"b",
            ),
            &small,
        ),
    ] {
        for engine in support::engines::names() {
            let report = report(&[
                url,
                "-n",
                "2",
                "-c",
                "2",
                "--timeout",
                "400ms",
                "--body",
                body,
                "--engine",
                engine,
            ]);
            // On a busy machine even connecting may take that long.
            let late = number(&report, "timeout") + number(&report, "connect_timeout");
            assert_eq!(
                (late, number(&report, "failed")),
                (2.0, 2.0),
                "{what}, {engine}: {report}"
            );
        }
    }
}

/// Answers that nobody asked for yet, or that are left over, never count as the answer to a later
/// request.
#[test]
fn what_was_not_asked_for_is_no_answer() {
    // The first one may be taken for the answer to the request that crosses it; a second one is too
    // many.
    let speaks_first = server(|mut stream| {
        let _ = stream.write_all(&GOOD.repeat(2));
        while request(&mut stream) {}
    });
    let report_of = report(&[&speaks_first, "-n", "4", "-c", "2", "--timeout", "60s"]);
    assert_eq!(number(&report_of, "succeeded"), 0.0, "{report_of}");
    assert_eq!(number(&report_of, "wrong_length"), 4.0, "{report_of}");

    // What comes too much while the connection has nothing to do is noticed.
    let too_much = server(|mut stream| {
        while request(&mut stream) {
            let _ = stream.write_all(GOOD);
            std::thread::sleep(Duration::from_millis(50));
            let _ = stream.write_all(b"and more");
        }
    });
    let report_of = report(&[
        &too_much,
        "-n",
        "3",
        "-c",
        "1",
        "--think-time",
        "1s",
        "--timeout",
        "60s",
    ]);
    // On a busy machine it may come when the next request is under way, and is no head then.
    let noticed = number(&report_of, "wrong_length") + number(&report_of, "garbage_head");
    assert!(noticed >= 2.0, "{report_of}");
}

/// Of several requests under way only those are lost that the server does not answer.
#[test]
fn a_pipeline_that_is_broken_off_is_counted() {
    let answers_one_and = |last: &'static [u8]| {
        server(move |mut stream| {
            request(&mut stream);
            let _ = stream.write_all(last);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            while request(&mut stream) {}
        })
    };
    const CLOSES: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc";
    for (answer, succeeded, closed_early) in [
        // It says that it closes: the others are asked again elsewhere.
        (CLOSES, 8.0, 0.0),
        // It does not: they are lost with the connection, four on each.
        (GOOD, 2.0, 6.0),
    ] {
        let url = answers_one_and(answer);
        let report = report(&[
            &url,
            "-n",
            "8",
            "-c",
            "1",
            "--pipeline",
            "4",
            "--timeout",
            "60s",
        ]);
        assert_eq!(
            (
                number(&report, "succeeded"),
                number(&report, "closed_early")
            ),
            (succeeded, closed_early),
            "{report}"
        );
    }
}

#[test]
fn no_mode_hangs_or_takes_bad_for_good() {
    let folder = Folder::new();
    let list = folder.path("urls");
    let stalls = server(|mut stream| while request(&mut stream) {});
    let closes = server(|mut stream| {
        request(&mut stream);
        let _ = stream.write_all(&GOOD[..GOOD.len() - 1]);
    });
    let garbage = answering(b"SSH-2.0-OpenSSH\r\n");
    for url in [&stalls, &closes, &garbage] {
        std::fs::write(&list, url).unwrap();
        for (arguments, word) in [
            (
                &["ab", "-r", "-s", "1", "-n", "4", "-c", "2", &**url][..],
                "Failed requests:        4\n",
            ),
            (
                &[
                    "http_load",
                    "-timeout",
                    "1",
                    "-parallel",
                    "2",
                    "-fetches",
                    "4",
                    &list,
                ],
                "0 fetches, ",
            ),
            (
                &["siege", "-c2", "-t2S", "-b", url],
                "\nTransactions:\t\t           0 hits\n",
            ),
            (
                &["sweep", "-c", "2", "-d", "1s", "--timeout", "500ms", url],
                "Nothing came as expected",
            ),
        ] {
            let output = bench(arguments);
            let text = [&output.stdout[..], &output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            assert!(text.contains(word), "{arguments:?}: {text}");
        }
    }
}

#[test]
fn a_terminal_is_told_how_it_goes() {
    let url = answering(GOOD);
    let line = format!("{} bench {url} -d 2s", env!("CARGO_BIN_EXE_tidegate"));
    // Of util-linux: runs a command on a terminal of its own.
    let run = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::null())
        .output();
    let Ok(output) = run else {
        return eprintln!("skipped, there is no script(1)");
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains(" requests, 0 failed") && text.contains("p99.999"),
        "{text}"
    );
}

#[test]
fn an_interrupt_ends_every_mode_with_its_report() {
    let folder = Folder::new();
    let list = folder.path("urls");
    for (arguments, word) in [
        (
            &["ab", "-k", "-n", "1000000000", "URL"][..],
            "Requests per second:",
        ),
        (
            &["http_load", "-parallel", "2", "-seconds", "600", &list],
            " fetches/sec, ",
        ),
        (&["siege", "-c2", "URL"], "\nTransactions:\t\t"),
        (&["sweep", "-c", "1,2", "-d", "600s", "URL"], "interrupted"),
    ] {
        // A server for each mode: one that all share may still tell of the mode before.
        let (said, told) = std::sync::mpsc::channel();
        let url = server(move |mut stream| {
            while request(&mut stream) && stream.write_all(GOOD).is_ok() {
                let _ = said.send(());
            }
        });
        std::fs::write(&list, &url).unwrap();
        let with_url = arguments.iter().map(|word| word.replace("URL", &url));
        let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("bench")
            .args(with_url)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It runs when the server has been asked.
        told.recv_timeout(Duration::from_secs(60)).unwrap();
        let killed = Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status();
        assert!(killed.unwrap().success());
        let output = child.wait_with_output().unwrap();
        let text = [&output.stdout[..], &output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains(word), "{arguments:?}: {text}");
    }
}
