//! Servers that behave badly, in every mode: each run ends, and says what went wrong.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::Folder;
use crate::load::{GOOD, answering, bench, number, report, request, server};

#[test]
fn what_a_server_breaks_off_or_makes_up_has_its_own_heading() {
    let resets_in_body = server(|mut stream| {
        let mut one = [0; 1];
        let _ = std::io::Read::read(&mut stream, &mut one);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc");
        // Closing with unread bytes resets.
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
    let (said, told) = std::sync::mpsc::channel();
    let url = server(move |mut stream| {
        while request(&mut stream) && stream.write_all(GOOD).is_ok() {
            let _ = said.send(());
        }
    });
    std::fs::write(&list, &url).unwrap();
    for (arguments, word) in [
        (
            &["ab", "-k", "-n", "1000000000", &*url][..],
            "Requests per second:",
        ),
        (
            &["http_load", "-parallel", "2", "-seconds", "600", &list],
            " fetches/sec, ",
        ),
        (&["siege", "-c2", &url], "\nTransactions:\t\t"),
        (&["sweep", "-c", "1,2", "-d", "600s", &url], "interrupted"),
    ] {
        while told.try_recv().is_ok() {}
        let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("bench")
            .args(arguments)
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
