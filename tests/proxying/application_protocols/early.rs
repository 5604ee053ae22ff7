//! Applications that say something before they have the whole request.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use support::{PATIENCE, Server, engines};

use super::{plain, status};
use support::application::{Application, Protocol, stderr, stdout};

/// More than the buffers of sockets take.
const LENGTH: usize = 16 * 1024 * 1024;

/// A warning, and a part of a head, do not end the body, which the application waits for.
#[test]
fn what_comes_before_the_answer_does_not_stop_the_body() {
    const BEGUN: &[u8] = b"X-Early: 1\r\n";
    for protocol in Protocol::ALL {
        let early = match protocol {
            Protocol::Fastcgi => [stderr(b"a warning"), stdout(BEGUN)].concat(),
            Protocol::Uwsgi | Protocol::Scgi => BEGUN.to_vec(),
        };
        let length = match protocol {
            Protocol::Uwsgi => "uwsgi_param CONTENT_LENGTH $content_length;",
            Protocol::Fastcgi | Protocol::Scgi => "",
        };
        let lines = format!(
            "client_max_body_size 0; fastcgi_read_timeout 20s;
            location /stream {{ fastcgi_pass APP; fastcgi_request_buffering off; {length} }}
            location /stored {{ fastcgi_pass APP; {length} }}"
        );
        let lines = lines.replace("fastcgi_", protocol.prefix());
        for engine in engines::lines() {
            let application = Application::start_early(protocol, early.clone(), plain);
            let lines = lines.replace("APP", &application.address());
            let server = Server::start(engine, &lines);
            for path in ["/stream", "/stored"] {
                let answer = post_in_two(&server, path);
                assert_eq!(status(&answer), 200, "{protocol:?} {path} {answer}");
                assert!(answer.contains("\r\nX-Early: 1\r\n"), "{answer}");
                assert_eq!(application.last().body.len(), LENGTH, "{protocol:?} {path}");
            }
            if protocol == Protocol::Fastcgi {
                server.wait_for_log("FastCGI sent in stderr: \"a warning\"");
            }
        }
    }
}

/// The answer to a body whose second half comes later.
fn post_in_two(server: &Server, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {LENGTH}\r\n\r\n"
    );
    let half = vec![b'x'; LENGTH / 2];
    let _ = stream.write_all(&[head.as_bytes(), &*half].concat());
    thread::sleep(Duration::from_millis(50));
    let _ = stream.write_all(&half);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}
