//! Parts of small files are sent from memory: as they are sent of files that no memory keeps.

use std::fs::File;
use std::time::{Duration, SystemTime};

use support::Server;

/// No response of a plan with `max_ranges` is kept.
const LINES: &str = "\
location /kept/ { alias www/; add_header X-A b; gzip on; gzip_types text/css; gzip_min_length 1; }\n\
location /cold/ { alias www/; add_header X-A b; gzip on; gzip_types text/css; gzip_min_length 1; max_ranges 100; }\n";

const RANGES: [&str; 14] = [
    "bytes=0-0",
    "bytes=0-",
    "bytes=5-9",
    "bytes=-3",
    "bytes=-2000",
    "bytes=999-5000",
    "bytes=1000-",
    "bytes=9-5",
    "bytes=0-1,5-6",
    "bytes=0-1,2000-",
    "bytes=",
    "bytes",
    "lines=0-1",
    "bytes=0-1\r\nRange: bytes=2-3",
];

const FIELDS: [&str; 9] = [
    "",
    "If-Range: @ETAG@\r\n",
    "If-Range: \"other\"\r\n",
    "If-Range: Thu, 01 Jan 2026 00:00:00 GMT\r\n",
    "If-None-Match: @ETAG@\r\n",
    "If-None-Match: \"other\"\r\n",
    "If-Match: \"other\"\r\n",
    "Accept-Encoding: gzip\r\n",
    "Connection: close\r\n",
];

/// The answers to two requests on one connection, of which the second ends it; boundaries are
/// numbers that count up.
fn answers(server: &Server, line: &str, fields: &str) -> String {
    let last = "GET /none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut lines = server.lines_for(&format!("{line}\r\nHost: localhost\r\n{fields}\r\n{last}"));
    for line in &mut lines {
        if let Some(at) = line.find("boundary=") {
            line.truncate(at);
        } else if line.starts_with("--0000") {
            line.truncate(2);
        }
    }
    lines.join("\n")
}

fn parts_from_memory_are_those_of_the_long_way(engine: &'static str) {
    let server = Server::start(engine, LINES);
    let bytes: Vec<u8> = (0..1000).map(|at| b'a' + (at % 26) as u8).collect();
    for name in ["file.css", "file.bin", "empty.bin"] {
        let bytes = if name.starts_with("empty") {
            &[][..]
        } else {
            &bytes
        };
        server.write(name, bytes);
        let file = File::options()
            .write(true)
            .open(server.prefix.join("www").join(name));
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        file.unwrap().set_modified(time).unwrap();
        // Asked for twice it is kept from the third time on.
        let line = format!("GET /kept/{name} HTTP/1.1");
        let [_, _, whole] = [(); 3].map(|()| answers(&server, &line, ""));
        let etag = whole.lines().find_map(|line| line.strip_prefix("ETag: "));
        let etag = etag.expect("an ETag");
        for range in RANGES {
            for fields in FIELDS {
                for version in ["HTTP/1.1", "HTTP/1.0"] {
                    for method in ["GET", "HEAD"] {
                        let fields =
                            format!("Range: {range}\r\n{}", fields.replace("@ETAG@", etag));
                        let ask = |place: &str| {
                            let line = format!("{method} /{place}/{name} {version}");
                            answers(&server, &line, &fields)
                        };
                        let (cold, kept, again) = (ask("cold"), ask("kept"), ask("kept"));
                        assert_eq!(cold, kept, "{engine} {method} {name} {fields}");
                        assert_eq!(kept, again, "{engine} {method} {name} {fields}");
                    }
                }
            }
        }
        let whole_again = answers(&server, &format!("GET /kept/{name} HTTP/1.1"), "");
        assert_eq!(whole, whole_again, "{engine} {name}");
    }
    let part = answers(
        &server,
        "GET /kept/file.bin HTTP/1.1",
        "Range: bytes=5-9\r\n",
    );
    assert!(part.starts_with("HTTP/1.1 206 Partial Content\n"), "{part}");
    assert!(part.contains("\nContent-Range: bytes 5-9/1000\n"), "{part}");
    assert!(part.contains("\nContent-Length: 5\n"), "{part}");
    assert!(part.contains("\n\nfghijHTTP/1.1 404"), "{part}");
}

support::test_on_each_engine!(parts_from_memory_are_those_of_the_long_way);
