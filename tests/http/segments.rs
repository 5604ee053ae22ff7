//! How responses are cut into TCP segments: `tcp_nopush`. TIDEGATE_BINARY may name nginx, which
//! gives the same.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;

use support::{PATIENCE, Server};

const FILE: usize = 200_000;

/// In how many segments with data a response has come, as the client's kernel counts them.
fn segments(server: &Server, path: &str) -> u32 {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut received = Vec::new();
    let length = loop {
        let mut buffer = [0; 64 * 1024];
        let count = match stream.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read.unwrap(),
        };
        assert!(count > 0, "the response is cut off");
        received.extend_from_slice(&buffer[..count]);
        if let Some(end) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n")
            && received.len() >= end + 4 + FILE
        {
            break received.len() - end - 4;
        }
    };
    assert_eq!(length, FILE);
    let port = stream.local_addr().unwrap().port();
    let filter = format!("sport = :{port} and dport = :{}", server.port);
    let shown = Command::new("ss").args(["-tinH", &filter]).output();
    let shown = String::from_utf8(shown.expect("ss of iproute2").stdout).unwrap();
    let count = shown
        .split_whitespace()
        .find_map(|word| word.strip_prefix("data_segs_in:"));
    count
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("no count of segments in {shown:?}"))
}

/// A head of its own, and five chunks that end within a segment, against segments of 64 KB that are
/// filled.
fn files_fill_segments_where_nothing_is_to_be_pushed(engine: &'static str) {
    let server = Server::start(
        engine,
        "sendfile on; sendfile_max_chunk 40k;\n\
         location /pushed/ { alias www/; }\n\
         location /filled/ { alias www/; tcp_nopush on; }\n",
    );
    server.write("file", &vec![b'x'; FILE]);
    let (pushed, filled) = (
        segments(&server, "/pushed/file"),
        segments(&server, "/filled/file"),
    );
    assert!(pushed >= 6, "{engine} {pushed} and {filled}");
    assert!(filled <= 5, "{engine} {pushed} and {filled}");
}

support::test_on_each_engine!(files_fill_segments_where_nothing_is_to_be_pushed);

/// What fills no segment is not held back behind the last file.
fn the_end_of_a_response_leaves_at_once(engine: &'static str) {
    let server = Server::start(
        engine,
        "sendfile on; sendfile_max_chunk 40k; tcp_nopush on;",
    );
    server.write("file", &vec![b'x'; FILE]);
    // The kernel holds a segment back for 200 ms at most: a hundred responses would take 20 s.
    let started = std::time::Instant::now();
    for _ in 0..100 {
        segments(&server, "/file");
    }
    let took = started.elapsed();
    assert!(
        took < std::time::Duration::from_secs(15),
        "{engine} {took:?}"
    );
}

support::test_on_each_engine!(the_end_of_a_response_leaves_at_once);
