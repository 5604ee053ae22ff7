//! What a subrequest of `auth_request` comes to on its way is its own business: the request that it
//! is asked for, and the connection, go on as if it had not been. On both engines; TIDEGATE_BINARY
//! with nginx checks what is expected.

use std::io::{Read, Write};
use std::net::TcpStream;

use support::{PATIENCE, Server};

/// Subrequests that are refused, whose error pages then grant access. In nginx it is the subrequest
/// that expects no body any more and keeps no connection (`ngx_http_special_response_handler`), and
/// not what it belongs to.
const LINES: &str = "
    client_body_timeout 20s; lingering_timeout 1s;
    location /upload/403 { auth_request /refused; proxy_pass http://self/taken; }
    location /upload/500 { auth_request /failed; proxy_pass http://self/taken; }
    location /upload/204 { auth_request /granted; proxy_pass http://self/taken; }
    location /file/500 { auth_request /failed; }
    location /denied/ { auth_request /denied-for-good; proxy_pass http://self/taken; }
    location = /refused { error_page 403 =204 /granted; return 403; }
    location = /failed { error_page 500 =204 /granted; return 500; }
    location = /granted { return 204; }
    location = /denied-for-good { return 403; }
    location = /taken { return 200 $http_content_length; }
[http]
    upstream self { server 127.0.0.1:PORT; }";

/// Begins an upload that waits for `100 Continue` (RFC 9110, section 10.1.1).
fn begin_upload(server: &Server, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

fn rest_of(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn a_client_is_told_to_go_on_whatever_its_subrequest_comes_to(engine: &'static str) {
    let server = Server::start(engine, LINES);
    for path in ["/upload/204", "/upload/403", "/upload/500"] {
        let mut stream = begin_upload(&server, path);
        let mut go_on = [0; 25];
        stream.read_exact(&mut go_on).unwrap();
        let go_on = String::from_utf8_lossy(&go_on).into_owned();
        assert_eq!(go_on, "HTTP/1.1 100 Continue\r\n\r\n", "{path}");
        stream.write_all(b"text").unwrap();
        let answer = rest_of(stream);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
        assert!(answer.ends_with("\r\n\r\n4"), "{path}: {answer}");
    }
    // One that is refused itself is not asked for what nobody wants.
    let answer = rest_of(begin_upload(&server, "/denied/"));
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

support::test_on_each_engine!(a_client_is_told_to_go_on_whatever_its_subrequest_comes_to);

fn a_connection_goes_on_whatever_a_subrequest_comes_to(engine: &'static str) {
    let server = Server::start(engine, LINES);
    std::fs::create_dir(server.prefix.join("www/file")).unwrap();
    server.write("file/500", b"a file");
    let mut connection = server.connect();
    for _ in 0..3 {
        let answer = connection.get("/file/500").unwrap();
        assert_eq!((answer.status, &*answer.body), (200, &b"a file"[..]));
        assert!(!answer.closes(), "{}", answer.head);
    }
}

support::test_on_each_engine!(a_connection_goes_on_whatever_a_subrequest_comes_to);
