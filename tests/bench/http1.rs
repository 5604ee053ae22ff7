//! `tidegate bench` from outside, against servers that are made here: good ones, and every kind of
//! bad one, which must be counted under its own heading and never hold up the run.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use support::load::{GOOD, RUN_MAX, answering, bench, number, report, request, server};

#[test]
fn good_responses_are_good() {
    let kept = answering(GOOD);
    let chunked =
        answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    let until_close = server(|mut stream| {
        if request(&mut stream) {
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nabc");
        }
    });
    for url in [&kept, &chunked, &until_close] {
        let report = report(&[url, "-n", "40", "-c", "4", "-t", "2"]);
        for (name, expected) in [
            ("succeeded", 40.0),
            ("failed", 0.0),
            ("body_bytes", 120.0),
            ("unfinished", 0.0),
            ("200", 40.0),
        ] {
            assert_eq!(number(&report, name), expected, "{name} of {url}: {report}");
        }
    }
}

#[test]
fn bad_servers_are_counted_by_kind() {
    let resets = server(|mut stream| {
        // Closing with unread bytes resets.
        let _ = stream.read(&mut [0; 1]);
    });
    let stalls = server(|mut stream| while request(&mut stream) {});
    let closes = server(|mut stream| {
        request(&mut stream);
    });
    let closes_in_head = server(|mut stream| {
        request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConte");
    });
    let closes_in_body = server(|mut stream| {
        request(&mut stream);
        let _ = stream.write_all(&GOOD[..GOOD.len() - 1]);
    });
    let endless_head = server(|mut stream| {
        request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream.write_all(b"Field: and so on and so on\r\n").is_ok() {}
    });
    let endless_interim = server(|mut stream| {
        request(&mut stream);
        while stream
            .write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n")
            .is_ok()
        {}
    });
    let endless_body = server(|mut stream| {
        request(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while stream.write_all(b"3\r\nabc\r\n").is_ok() {}
    });
    let half_closes = server(|mut stream| {
        let _ = stream.shutdown(Shutdown::Write);
        while request(&mut stream) {}
    });
    let nobody = format!("http://127.0.0.1:{}/", support::port::free_port());
    for (url, kind) in [
        (&resets, "reset"),
        (&stalls, "timeout"),
        (&closes, "closed_early"),
        (&closes_in_head, "closed_early"),
        (&half_closes, "closed_early"),
        (&closes_in_body, "closed_in_body"),
        (&endless_head, "head_too_large"),
        (&endless_interim, "timeout"),
        (&endless_body, "timeout"),
        (&answering(b"SSH-2.0-OpenSSH\r\n"), "garbage_head"),
        (
            &answering(b"HTTP/1.1 200 OK\r\nContent-Length: 3x\r\n\r\n"),
            "garbage_head",
        ),
        (
            &answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz"),
            "garbage_body",
        ),
        (
            &answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc"),
            "wrong_length",
        ),
        (
            &answering(b"HTTP/1.1 503 No\r\nContent-Length: 3\r\n\r\nabc"),
            "status",
        ),
        (&nobody, "connect_refused"),
    ] {
        let timeout = if kind == "timeout" { "300ms" } else { "60s" };
        let report = report(&[url, "-n", "6", "-c", "2", "--timeout", timeout]);
        assert_eq!(number(&report, kind), 6.0, "{kind}: {report}");
        assert_eq!(number(&report, "failed"), 6.0, "{kind}: {report}");
        assert_eq!(number(&report, "succeeded"), 0.0, "{kind}: {report}");
    }
    assert_eq!(bench(&[&nobody, "-n", "1"]).status.code(), Some(1));
}

#[test]
fn expectations() {
    let url = answering(GOOD);
    // FIPS 180-2, appendix B.1
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let other = abc.replace('b', "c");
    for (option, value, good) in [
        ("--expect-sha256", abc, 4.0),
        ("--expect-sha256", &other, 0.0),
        ("--expect-status", "200", 4.0),
        ("--expect-status", "204", 0.0),
    ] {
        let report = report(&[&url, "-n", "4", option, value]);
        assert_eq!(
            number(&report, "succeeded"),
            good,
            "{option} {value}: {report}"
        );
    }
}

#[test]
fn pipelines_new_connections_warmup_and_io_uring() {
    // Answers as many requests as have come.
    let url = server(|mut stream| {
        let mut bytes = [0; 65536];
        while let Ok(length @ 1..) = stream.read(&mut bytes) {
            let ends = bytes[..length]
                .windows(4)
                .filter(|four| four == b"\r\n\r\n")
                .count();
            if stream.write_all(&GOOD.repeat(ends)).is_err() {
                return;
            }
        }
    });
    // io_uring, unless it is left out
    let engine = support::engines::names().pop().unwrap_or("epoll");
    for (options, connections) in [
        (&["--pipeline", "4"][..], 2.0),
        (&["--new-connections"], 40.0),
        (&["--think-time", "1ms", "--ramp", "10ms"], 2.0),
        (&["--rate", "2000", "--arrivals", "poisson"], 2.0),
        (&["--engine", engine], 2.0),
    ] {
        let output = bench(&[&[&*url, "-n", "40", "-c", "2", "--json"], options].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        let report = String::from_utf8(output.stdout).unwrap();
        assert_eq!(
            number(&report, "succeeded"),
            40.0,
            "{options:?}: {report}{errors}"
        );
        assert_eq!(
            number(&report, "connections_made"),
            connections,
            "{options:?}: {report}"
        );
    }
    let report = report(&[&url, "-n", "40", "--warmup", "100ms"]);
    assert_eq!(number(&report, "succeeded"), 40.0, "{report}");
}

#[test]
fn sockets_sources_and_files_of_urls() {
    let folder = std::env::temp_dir().join(format!("tidegate-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let socket = folder.join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || while request(&mut stream) && stream.write_all(GOOD).is_ok() {});
        }
    });
    let on_socket = report(&[&format!("http://unix:{}:/x", socket.display()), "-n", "6"]);
    assert_eq!(number(&on_socket, "succeeded"), 6.0, "{on_socket}");

    // Only requests from the last source find something.
    let url = server(|mut stream| {
        let known = stream.peer_addr().unwrap().ip().to_string() == "127.0.0.9";
        let answer: &[u8] = if known {
            GOOD
        } else {
            b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"
        };
        while request(&mut stream) && stream.write_all(answer).is_ok() {}
    });
    let two = report(&[
        &url,
        "-c",
        "2",
        "-n",
        "80",
        "--source",
        "127.0.0.8-127.0.0.9",
        "--new-connections",
    ]);
    let (good, bad) = (number(&two, "succeeded"), number(&two, "status"));
    assert!(good > 0.0 && bad > 0.0 && good + bad == 80.0, "{two}");

    // Only /often is there, and it has nearly all of the weight.
    let url = server(|mut stream| {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut bytes) {
            let found = bytes[..length].starts_with(b"GET /often ");
            let answer: &[u8] = if found {
                GOOD
            } else {
                b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"
            };
            let _ = stream.write_all(answer);
        }
    });
    let file = folder.join("urls");
    std::fs::write(&file, format!("{url}often 9\n{url}seldom\n")).unwrap();
    let mixed = report(&["--url-file", file.to_str().unwrap(), "-n", "200"]);
    let seldom = number(&mixed, "status");
    assert!((1.0..60.0).contains(&seldom), "{mixed}");

    // A single connection at a time comes to every server where each request has one of its own.
    let two = [
        &*answering(GOOD),
        &*answering(b"HTTP/1.1 201 Yes\r\nContent-Length: 0\r\n\r\n"),
    ];
    let options = [
        "-c",
        "1",
        "-n",
        "100",
        "--new-connections",
        "--think-time",
        "1ms",
    ];
    let both = report(&[&two[..], &options].concat());
    assert!(
        number(&both, "200") > 10.0 && number(&both, "201") > 10.0,
        "{both}"
    );
    let output = bench(&[&two[..], &["-c", "1", "-n", "4"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("1 connection for 2 servers"), "{errors}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_open_loop_counts_from_the_intended_start() {
    // Serves nothing during the second 200 ms: requests that should have started then have waited.
    let begin = std::sync::OnceLock::new();
    let url = server(move |mut stream| {
        while request(&mut stream) {
            let elapsed = begin.get_or_init(Instant::now).elapsed();
            if (200..400).contains(&elapsed.as_millis()) {
                thread::sleep(Duration::from_millis(400) - elapsed);
            }
            if stream.write_all(GOOD).is_err() {
                return;
            }
        }
    });
    let open = report(&[&url, "-c", "1", "--rate", "200", "-d", "800ms"]);
    // A fifth of the moments fell into the pause; in a closed loop it would be a single request.
    let (_, total) = open.split_once("\"total_us\":").unwrap();
    assert!(number(total, "p90") > 50_000.0, "{open}");
}

/// A report of ApacheBench with `N` for every number that another run would not have, and without
/// its doubts.
fn without_times(report: &str) -> Vec<String> {
    let varies = |line: &str| {
        let known = [
            "per second",
            "per request",
            "taken",
            "rate:",
            "Connect:",
            "Processing:",
            "Waiting:",
            "Total:",
            "% ",
        ];
        known.iter().any(|known| line.contains(known))
    };
    let doubts = ["WARNING", "ERROR", "        These", "       deviation"];
    let lines = report
        .lines()
        .filter(|line| !doubts.iter().any(|doubt| line.starts_with(doubt)));
    lines
        .map(|line| {
            if !varies(line) {
                return line.to_owned();
            }
            let words = line.split_whitespace();
            let words = words.map(|word| {
                if word.parse::<f64>().is_ok() {
                    "N"
                } else {
                    word
                }
            });
            words.collect::<Vec<_>>().join(" ")
        })
        .collect()
}

/// The request's method decides the answer, in the way of HTTP/1.0 or kept alive.
fn for_ab() -> String {
    server(|mut stream| {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut bytes) {
            let kept = bytes[..length].windows(10).any(|ten| ten == b"Keep-Alive");
            let connection = if kept { "keep-alive" } else { "close" };
            let head = format!(
                "HTTP/1.1 200 OK\r\nServer: x/1\r\nContent-Length: 3\r\nConnection: {connection}\r\n\r\n"
            );
            let body: &[u8] = if bytes.starts_with(b"HEAD") {
                b""
            } else {
                b"abc"
            };
            if stream.write_all(&[head.as_bytes(), body].concat()).is_err() || !kept {
                return;
            }
        }
    })
}

#[test]
fn ab_reports_as_apachebench_does() {
    let url = for_ab();
    let options = [
        &["-n", "20", "-c", "4", "-k"][..],
        &["-n20", "-q", "-i"],
        &["-n", "7", "-S", "-l"],
        &["-n", "7", "-d", "-H", "A: b", "-m", "PUT"],
        &["-n", "1"],
    ];
    for options in options {
        let ours = bench(&[&["ab"], options, &[&url]].concat());
        let text = String::from_utf8(ours.stdout).unwrap();
        assert!(ours.status.success(), "{options:?}: {text}");
        for line in ["Server Software:        x/1", "Failed requests:        0"] {
            assert!(
                text.lines().any(|known| known == line),
                "{options:?}: {text}"
            );
        }
        match Command::new("ab").args(options).arg(&url).output() {
            Ok(theirs) => {
                let theirs = String::from_utf8(theirs.stdout).unwrap();
                assert_eq!(without_times(&text), without_times(&theirs), "{options:?}");
            }
            Err(_) => eprintln!("skipped, there is no ab to compare with"),
        }
    }
}

/// A table without what another run would have otherwise: of numbers only how many decimals they
/// have.
fn form(table: &str) -> Vec<String> {
    let cell = |cell: &str| match cell.parse::<f64>() {
        Ok(_) => {
            let decimals = cell
                .split_once('.')
                .map_or(0, |(_, decimals)| decimals.len());
            format!("a number with {decimals} decimals")
        }
        Err(_) => cell.replace(|c: char| c.is_ascii_digit(), "9"),
    };
    let line = |line: &str| {
        // "Sun Nov 22 07:16:10 2026" is a cell, and its names are those of today.
        let cells = line.split(['\t', ',']).map(cell);
        cells
            .collect::<Vec<_>>()
            .join(if line.contains(',') { "," } else { "\t" })
    };
    table.lines().map(line).collect()
}

/// The whole time of each request in a table for gnuplot.
fn whole_times(table: &str) -> Vec<u64> {
    let whole = |line: &str| line.split('\t').nth(4).unwrap().parse().unwrap();
    table.lines().skip(1).map(whole).collect()
}

#[test]
fn ab_writes_files_and_fails_as_apachebench_does() {
    let folder = std::env::temp_dir().join(format!("tidegate-ab-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (table, percentages, ab) = (folder.join("g"), folder.join("e"), folder.join("ab"));
    let url = for_ab();
    let written = bench(&[
        "ab",
        "-n",
        "60",
        "-g",
        table.to_str().unwrap(),
        "-e",
        percentages.to_str().unwrap(),
        &url,
    ]);
    assert!(written.status.success());
    let table = std::fs::read_to_string(table).unwrap();
    assert_eq!(
        table.lines().next(),
        Some("starttime\tseconds\tctime\tdtime\tttime\twait")
    );
    assert_eq!(table.lines().count(), 61);
    let percentages = std::fs::read_to_string(percentages).unwrap();
    assert_eq!(percentages.lines().count(), 102);
    // Both files have ab's form and order.
    let (theirs, of_theirs) = (folder.join("g-ab"), folder.join("e-ab"));
    let written = Command::new("ab")
        .args(["-q", "-n", "60", "-g"])
        .arg(&theirs)
        .arg("-e")
        .arg(&of_theirs)
        .arg(&url)
        .output();
    match written {
        Ok(_) => {
            let theirs = std::fs::read_to_string(&theirs).unwrap();
            assert_eq!(form(&table), form(&theirs));
            let of_theirs = std::fs::read_to_string(&of_theirs).unwrap();
            assert_eq!(form(&percentages), form(&of_theirs));
            for table in [&table, &theirs] {
                assert!(whole_times(table).is_sorted(), "{table}");
            }
        }
        Err(_) => eprintln!("skipped, there is no ab to compare with"),
    }
    // Where a file cannot be written the report is there all the same.
    for (flag, what) in [("-g", "gnuplot"), ("-e", "CSV")] {
        let nowhere = folder.join("none/file");
        let output = bench(&["ab", "-n", "2", flag, nowhere.to_str().unwrap(), &url]);
        let (text, errors) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(text.contains("(longest request)"), "{text}");
        let expected = format!("Cannot open {what} output file: ");
        assert!(errors.contains(&expected), "{errors}");
    }

    // Called by that name it is that program.
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tidegate"), &ab).unwrap();
    let named = Command::new(&ab).args(["-n", "2", &url]).output().unwrap();
    let text = String::from_utf8_lossy(&named.stdout);
    assert!(text.contains("Complete requests:      2\n"), "{text}");
    std::fs::remove_dir_all(&folder).unwrap();

    // The second body is longer than the first.
    let growing = server({
        let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        move |mut stream| {
            request(&mut stream);
            let length = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
            let head = format!("HTTP/1.0 200 OK\r\nContent-Length: {length}\r\n\r\n");
            let _ = stream.write_all(&[head.as_bytes(), &b"x".repeat(length)].concat());
        }
    });
    let failed = String::from_utf8(bench(&["ab", "-n", "3", &growing]).stdout).unwrap();
    let expected = "Complete requests:      3\nFailed requests:        2\n   (Connect: 0, Receive: 0, Length: 2, Exceptions: 0)\n";
    assert!(failed.contains(expected), "{failed}");

    let nobody = format!("http://127.0.0.1:{}/", support::port::free_port());
    for (arguments, code, words) in [
        (
            &["ab", "-n", "9", &nobody][..],
            111,
            "apr_socket_recv: Connection refused (111)",
        ),
        (&["ab", "-n", "2", "-c", "4", &nobody], 22, "Usage: ab "),
        (
            &["ab", "-X", "p:1", &nobody],
            22,
            "-X is not supported here",
        ),
        (&["ab"], 22, "wrong number of arguments"),
    ] {
        let output = bench(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(words), "{arguments:?}: {errors}");
    }
}

#[test]
fn http_load_reports_as_it_did() {
    let url = for_ab();
    let file = std::env::temp_dir().join(format!("tidegate-http-load-{}", std::process::id()));
    std::fs::write(&file, format!("{url}\n{url}other\n")).unwrap();
    let file = file.to_str().unwrap();
    for options in [
        ["-parallel", "3", "-fetches", "40"],
        ["-rate", "200", "-fetches", "40"],
    ] {
        let output = bench(&[&["http_load"], &options[..], &[file]].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7, "{text}");
        assert!(
            lines[0].starts_with("40 fetches, ")
                && lines[0].contains(" max parallel, 120 bytes, in "),
            "{text}"
        );
        assert_eq!(lines[1], "3 mean bytes/connection");
        assert!(
            lines[2].contains(" fetches/sec, ") && lines[2].ends_with(" bytes/sec"),
            "{text}"
        );
        for (line, start) in [
            (lines[3], "msecs/connect: "),
            (lines[4], "msecs/first-response: "),
        ] {
            assert!(line.starts_with(start) && line.ends_with(" min"), "{text}");
        }
        assert_eq!(lines[5..], ["HTTP response codes:", "  code 200 -- 40"]);
    }
    for options in [
        &["-parallel", "3", file][..],
        &["-checksum", "-parallel", "3", "-fetches", "1", file],
        &["-rate", "1"],
    ] {
        let output = bench(&[&["http_load"], options].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && errors.contains("usage:"),
            "{options:?}: {errors}"
        );
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn an_interrupt_prints_the_report_so_far() {
    let (asked, begun) = std::sync::mpsc::channel();
    let url = server(move |mut stream| {
        while request(&mut stream) && stream.write_all(GOOD).is_ok() {
            let _ = asked.send(());
        }
    });
    let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", &url, "-d", "300s"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    begun.recv_timeout(RUN_MAX).expect("it asks");
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
    let begin = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(begin.elapsed() < RUN_MAX);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("\ninterrupted:") && text.contains("p99.999"),
        "{text}"
    );
}

#[test]
fn formats_and_faults() {
    let url = answering(GOOD);
    let csv = bench(&[&url, "-n", "5", "--csv"]);
    let csv = String::from_utf8(csv.stdout).unwrap();
    let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert!(columns.len() == 2 && columns[0] == columns[1], "{csv}");

    let file = std::env::temp_dir().join(format!("tidegate-bench-{}.hlog", std::process::id()));
    assert!(
        bench(&[&url, "-n", "5", "--histogram-log", file.to_str().unwrap()])
            .status
            .success()
    );
    let log = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(log.lines().any(|line| line.contains(",HISTFAAAA")), "{log}");

    for (arguments, code, words) in [
        (&["http://8.8.8.8/"][..], 1, "--allow-remote 8.8.8.8"),
        (&["ftp://127.0.0.1/"], 1, "only http:// and https:// are"),
        (&["http://127.0.0.1:x/"], 1, "not a URL"),
        (&[], 2, "URL"),
        (&["127.0.0.1", "-n", "0"], 2, "--requests"),
        (
            &["127.0.0.1", "-n", "1", "-d", "1s"],
            2,
            "cannot be used with",
        ),
        (&["127.0.0.1", "-d", "1x"], 2, "a time such as"),
    ] {
        let output = bench(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(words), "{arguments:?}: {errors}");
    }
}

#[test]
fn times_that_too_few_requests_have_are_left_out() {
    let url = answering(GOOD);
    let json = report(&[&url, "-c", "1", "-n", "60"]);
    let (_, times) = json.split_once("\"total_us\":").unwrap();
    for percentile in ["p50", "p75", "p90"] {
        assert!(number(times, percentile) > 0.0, "{json}");
    }
    assert!(
        times.contains(
            "\"p95\":null,\"p99\":null,\"p99.9\":null,\"p99.99\":null,\"p99.999\":null,\"max\":"
        ),
        "{json}"
    );
    assert!(number(times, "max") > 0.0, "{json}");
    let (_, handshakes) = json.split_once("\"handshake_us\":").unwrap();
    assert!(
        handshakes.starts_with(
            "{\"count\":0,\"min\":null,\"mean\":null,\"deviation\":null,\"p50\":null,"
        ),
        "{json}"
    );
    let csv = bench(&[&url, "-c", "1", "-n", "60", "--csv"]);
    let csv = String::from_utf8(csv.stdout).unwrap();
    let mut lines = csv.lines().map(|line| line.split(','));
    let columns: Vec<_> = lines.next().unwrap().zip(lines.next().unwrap()).collect();
    for (name, value) in columns {
        let few = ["p95", "p99", "p99.9", "p99.99", "p99.999"];
        let few = ["total_", "first_byte_"].into_iter().any(|times| {
            let percentile = name.strip_prefix(times);
            percentile.is_some_and(|percentile| few.contains(&percentile))
        });
        // A single connection was made, and no handshake.
        let one = name.starts_with("connect_p");
        let none = name.starts_with("handshake_") && name != "handshake_count";
        assert_eq!(value.is_empty(), few || one || none, "{name}: {csv}");
    }
}
