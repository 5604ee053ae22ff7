//! `fastcgi_pass`, `uwsgi_pass`, `scgi_pass` and `memcached_pass` from outside: what applications
//! are told, what becomes of their answers, good and bad, and a real php-fpm.
//!
//! On both engines; TIDEGATE_BINARY with nginx 1.31 checks what is expected.

mod directives;
mod early;
mod fastcgi;
mod memcached;
mod php;
mod unframed;

use std::io::{Read, Write};
use std::net::TcpStream;

use support::{PATIENCE, Server};

use support::application::{Application, Protocol, Seen};

/// Runs a test on an engine with an application; `APP` in `lines` is its address.
fn on_engine(
    engine: &str,
    protocol: Protocol,
    lines: &str,
    answer: impl Fn(&Seen) -> Vec<Vec<u8>> + Clone + Send + Sync + 'static,
    test: impl Fn(&Server, &Application),
) {
    let application = Application::start(protocol, answer.clone());
    let lines = lines.replace("APP", &application.address());
    let server = Server::start(engine, &lines);
    test(&server, &application);
}

/// All that comes for a request on a connection of its own: head and body as they came.
fn ask(server: &Server, request: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn get(server: &Server, path: &str) -> String {
    ask(
        server,
        &format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
    )
}

fn status(answer: &str) -> u16 {
    let status = answer.split(' ').nth(1);
    status.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// An answer without more to it.
fn plain(seen: &Seen) -> Vec<Vec<u8>> {
    seen.answer("Content-Type: text/plain", b"ok")
}

fn pairs(text: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    text.iter().map(owned).collect()
}
