//! `bench sweep`: steps, findings, and the page.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::modes::Folder;
use support::load::{GOOD, answering, bench, number, report, request, server};
use support::port;

/// Serves two connections at a time, and refuses every other request with 503.
fn with_two_places() -> String {
    let busy = Arc::new(AtomicUsize::new(0));
    server(move |mut stream| {
        let place = busy.fetch_add(1, Ordering::SeqCst);
        let mut bytes = [0; 4096];
        while let Ok(1..) = stream.read(&mut bytes) {
            let answer = if place < 2 {
                GOOD
            } else {
                b"HTTP/1.1 503 Full\r\nContent-Length: 0\r\n\r\n"
            };
            if stream.write_all(answer).is_err() {
                break;
            }
        }
        busy.fetch_sub(1, Ordering::SeqCst);
    })
}

#[test]
fn steps_become_a_table_and_a_page() {
    let url = answering(GOOD);
    let folder = Folder::new();
    let page = folder.path("sweep.html");
    let output = bench(&[
        "sweep",
        &url,
        "-c",
        "1,2,...,4",
        "-d",
        "200ms",
        "--pause",
        "10ms",
        "--html",
        &page,
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0][0], "connections", "{text}");
    for (line, connections) in lines[1..].iter().zip(["1", "2", "3", "4"]) {
        assert_eq!(
            (line[0], line[3], line[4], line.len()),
            (connections, "0.00", "0.00", 7),
            "{text}"
        );
    }
    assert!(
        text.contains("aturation") && text.contains("Goodput counts"),
        "{text}"
    );
    let html = std::fs::read_to_string(page).unwrap();
    for part in [
        "<!DOCTYPE html>",
        "prefers-color-scheme:dark",
        ">connections</text>",
        ">responses as expected, 1/s</text>",
        ">time, ms (logarithmic)</text>",
        ">share of requests, %</text>",
        "<dt>kernel</dt>",
        "<dt>command</dt><dd>tidegate bench sweep ",
        "<dt>date</dt>",
        "<dt>client engine</dt><dd>epoll, 1 thread</dd>",
    ] {
        assert!(html.contains(part), "{part}");
    }
    // One mark for every step of every line, but where there were too few responses for a
    // percentile.
    let untold = lines[1..5]
        .concat()
        .iter()
        .filter(|word| **word == "-")
        .count();
    assert_eq!(html.matches("r=\"3\"><title>").count(), 24 - untold);
    for outside in ["<script", "src=", "href="] {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn what_is_refused_is_told_from_what_fails() {
    let refusing = report(&["sweep", &with_two_places(), "-c", "1,8", "-d", "300ms"]);
    let (_, last) = refusing.split_once("\"connections\":8").unwrap();
    assert!(
        number(last, "refused") > 0.0 && number(last, "failed") == 0.0,
        "{refusing}"
    );
    assert_eq!(number(&refusing, "broken"), 8.0, "{refusing}");

    let nobody = format!("http://127.0.0.1:{}/", port::free_port());
    let output = bench(&["sweep", &nobody, "-c", "1", "-d", "100ms", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(
        (number(&text, "refused"), number(&text, "failed")),
        (1.0, 0.0),
        "{text}"
    );
    assert!(
        text.starts_with("{\"saturation\":null,\"highest\":null,"),
        "{text}"
    );

    let closing = server(|mut stream| {
        request(&mut stream);
    });
    let failing = report(&["sweep", &closing, "-c", "2", "-d", "100ms"]);
    assert_eq!(
        (number(&failing, "refused"), number(&failing, "failed")),
        (0.0, 1.0),
        "{failing}"
    );
}

#[test]
fn a_rate_that_is_too_high_is_saturation() {
    // Each response takes a while, so that one connection cannot carry 2,000 a second.
    let slow = server(|mut stream| {
        while request(&mut stream) {
            std::thread::sleep(std::time::Duration::from_millis(5));
            if stream.write_all(GOOD).is_err() {
                return;
            }
        }
    });
    let text = report(&[
        "sweep", &slow, "-c", "1", "--rate", "1,2000", "-d", "1s", "--within", "60s",
    ]);
    assert!(number(&text, "highest") > 0.0, "{text}");
    assert!(text.contains("{\"rate\":2000,"), "{text}");
    assert_ne!(number(&text, "saturation"), 0.0, "{text}");
    let csv = bench(&["sweep", &slow, "-c", "1", "-d", "50ms", "--csv"]);
    let csv = String::from_utf8(csv.stdout).unwrap();
    let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns, [9, 9], "{csv}");
}

#[test]
fn lists_that_make_no_sense_are_refused() {
    for (arguments, code, words) in [
        (
            &["sweep", "http://127.0.0.1/"][..],
            2,
            "--connections <LIST>",
        ),
        (
            &["sweep", "http://127.0.0.1/", "-c", "2,1"],
            2,
            "rising numbers",
        ),
        (
            &["sweep", "http://127.0.0.1/", "-c", "1.5"],
            2,
            "numbers of connections",
        ),
        (
            &["sweep", "http://127.0.0.1/", "-c", "1,2", "--rate", "1,2"],
            1,
            "cannot both be lists",
        ),
        (&["sweep", "-c", "1"], 2, "URL"),
    ] {
        let output = bench(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(words), "{arguments:?}: {errors}");
    }
}
