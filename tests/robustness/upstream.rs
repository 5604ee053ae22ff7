//! Upstreams that do what a test wants of them.

use std::net::TcpStream;
use std::time::Duration;

use support::origin;

/// Starts an upstream: each connection runs `behave` with it and the request's head, which has
/// been read. Its threads live as long as the test run. The port it listens on.
pub(crate) fn start(behave: impl Fn(TcpStream, String) + Send + Sync + 'static) -> u16 {
    origin::listen(move |stream| {
        stream.set_nodelay(true).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        if let Some(head) = origin::read_head(&stream) {
            behave(stream, head);
        }
    })
}

/// The path of a request's head.
pub(crate) fn path(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}
