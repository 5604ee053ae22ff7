//! `bench siege` beside siege 4.

use std::io::{Read, Write};
use std::process::Output;

use crate::modes::{Folder, original};
use support::load::{bench, server};

/// Answers with the status in the path, `/404` for instance, and closes.
fn by_path() -> String {
    server(|mut stream| {
        let mut request = Vec::new();
        let mut bytes = [0; 4096];
        while !request.windows(4).any(|four| four == b"\r\n\r\n") {
            match stream.read(&mut bytes) {
                Ok(length @ 1..) => request.extend_from_slice(&bytes[..length]),
                _ => return,
            }
        }
        let text = String::from_utf8_lossy(&request);
        let path = text.split(' ').nth(1).unwrap_or_default();
        let status = path
            .get(1..4)
            .filter(|status| status.parse::<u16>().is_ok());
        let body = if text.starts_with("HEAD") { "" } else { "abc" };
        let answer = format!(
            "HTTP/1.1 {} Status\r\nContent-Length: 3\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n{body}",
            status.unwrap_or("200")
        );
        let _ = stream.write_all(answer.as_bytes());
    })
}

/// Both outputs with `N` for every number that another run would not have.
fn without_times(output: &Output) -> String {
    let text = [&output.stdout[..], b"\n---\n", &output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    // A busy machine makes the tool say so.
    let text = match text.split_once("\nwarning: ") {
        Some((before, rest)) => format!("{before}{}", rest.split_once('\n').unwrap().1),
        None => text,
    };
    let words = text.split_inclusive([' ', '\n', '\t', ',']);
    let mut kept = String::new();
    for word in words {
        let bare = word.trim_end_matches([' ', '\n', '\t', ',']);
        if bare.contains('.') && bare.parse::<f64>().is_ok() {
            // How wide the blanks before it are depends on the number.
            kept.truncate(kept.trim_end_matches(' ').len());
            kept.push_str(&word.replace(bare, " N"));
        } else {
            kept.push_str(word)
        }
    }
    kept
}

#[test]
fn reports_are_those_of_siege() {
    let url = by_path();
    let folder = Folder::new();
    std::fs::create_dir(folder.0.join(".siege")).unwrap();
    let settings = "verbose = false\njson_output = false\nparser = false\nconnection = close\n\
                    gmethod = HEAD\naccept-encoding = gzip, deflate\n";
    std::fs::write(folder.0.join(".siege/siege.conf"), settings).unwrap();
    let list = folder.path("urls");
    std::fs::write(
        &list,
        format!("# five\nAT={url}\n$(AT)200\n${{AT}}201 POST a=b\n$(AT)404\n$(AT)503\n$(AT)200 PUT <{list}\n"),
    )
    .unwrap();
    let one = format!("{url}200");
    for options in [
        &["-c2", "-r3", "-b", &*one][..],
        &["-j", "-c", "2", "--reps=3", "-b", &one],
        &["-q", "-c2", "-r3", &one],
        &["-c1", "-r4", "-A", "me", "-H", "X: y", &format!("{url}404")],
        &["-c1", "-r4", &format!("{url}500")],
        &["-c1", "-r5", "-f", &list],
        &["-c2", "-r", "once", "-f", &list],
        &["-c1", "-t1S", "-d3", &one],
        &["-g", &one],
        &["-p", &one],
        &["-g", "-q", &one],
    ] {
        let ours = bench(&[&["siege"], options].concat());
        assert!(ours.status.success(), "{options:?}");
        // How many requests a second of random delays leaves room for is chance.
        if options.contains(&"-t1S") {
            let text = String::from_utf8_lossy(&ours.stderr);
            assert!(
                text.contains("\nLifting the server siege...\nTransactions:\t\t"),
                "{text}"
            );
            continue;
        }
        if let Some(theirs) = original("siege", options, &folder.0) {
            assert_eq!(without_times(&ours), without_times(&theirs), "{options:?}");
        }
    }
}

#[test]
fn marks_and_runs_go_into_the_log() {
    let url = by_path();
    let folder = Folder::new();
    let log = folder.path("log");
    for mark in ["one", "two"] {
        let option = format!("--log={log}");
        let output = bench(&["siege", "-c1", "-r2", &option, "-m", mark, &url]);
        assert!(output.status.success());
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said, format!("LOG FILE: {log}\n"));
    }
    let log = std::fs::read_to_string(log).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 5, "{log}");
    assert!(lines[0].starts_with("      Date & Time,  Trans,  Elap Time,"));
    assert_eq!((lines[1], lines[3]), ("**** one ****", "**** two ****"));
    for line in [lines[2], lines[4]] {
        let columns: Vec<&str> = line.split(',').map(str::trim).collect();
        assert_eq!(
            (columns.len(), columns[1], columns[8], columns[9]),
            (10, "2", "2", "0"),
            "{line}"
        );
    }
}

#[test]
fn what_does_nothing_and_what_goes_wrong_is_said() {
    let url = by_path();
    let noted = bench(&[
        "siege",
        "-v",
        "-R",
        "siege.conf",
        "-c1",
        "-r1",
        &format!("{url}302"),
    ]);
    let text = String::from_utf8_lossy(&noted.stderr);
    assert!(
        text.contains("without effect here: -v (no lines), -R siege.conf (not read)"),
        "{text}"
    );
    assert!(text.contains("1 redirects were not followed"), "{text}");
    for (arguments, words) in [
        (&["-H", "x", &*url][..], "no ':' in http-header"),
        (
            &["-f", "/nonexistent/urls"],
            "unable to open file: /nonexistent/urls",
        ),
        (&["-c1", "-r1", "http://8.8.8.8/"], "--allow-remote 8.8.8.8"),
    ] {
        let output = bench(&[&["siege"], arguments].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && errors.contains(words),
            "{errors}"
        );
    }
    let nobody = format!("http://127.0.0.1:{}/", support::port::free_port());
    let failed = bench(&["siege", "-c2", "-r2", &nobody]);
    let text = String::from_utf8_lossy(&failed.stderr);
    assert!(text.contains("connection refused: 4 times"), "{text}");
    assert!(
        text.contains("\nAvailability:\t\t        0.00 %\n"),
        "{text}"
    );
    assert!(
        text.contains("\nFailed transactions:\t           4\n"),
        "{text}"
    );
}
