//! The least that an HTTP server can do, to measure the engine alone: one fixed answer for each
//! request head seen.
//!
//! `responder epoll|uring ADDRESS [BODY_BYTES [close]]`. Nothing is parsed: a head ends with an
//! empty line, and that is all. Heads that came together are answered in one send.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use engine::net::{ListenOptions, Listener, Stream, listen};
use engine::{EngineKind, Runtime, Settings};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let kind = match arguments.next().as_deref() {
        Some("uring") => EngineKind::Uring,
        _ => EngineKind::Epoll,
    };
    let address: SocketAddr = arguments
        .next()
        .as_deref()
        .unwrap_or("127.0.0.1:8081")
        .parse()?;
    let body: usize = arguments.next().as_deref().unwrap_or("1024").parse()?;
    // With a fourth argument each connection ends after its first answers.
    let close = arguments.next().is_some();
    let response = Bytes::from(format!(
        "HTTP/1.1 200 OK\r\nServer: responder\r\nContent-Length: {body}\r\nConnection: {}\r\n\r\n{}",
        if close { "close" } else { "keep-alive" },
        "x".repeat(body)
    ));

    let mut options = ListenOptions::new(address.into());
    options.nodelay = true;
    let socket = listen(&options)?;
    let mut runtime = Runtime::new(
        kind,
        Settings {
            connections: 4096,
            ..Settings::default()
        },
    )?;
    runtime.block_on(async move {
        let listener = Listener::new(socket)?;
        loop {
            match listener.accept().await {
                Ok(stream) => engine::spawn(serve(stream, response.clone(), close)),
                Err(_) => engine::sleep(Duration::from_millis(100)).await,
            }
        }
    })
}

async fn serve(stream: Stream, response: Bytes, close: bool) {
    let mut matched = 0;
    loop {
        let deadline = engine::now() + Duration::from_secs(75);
        let Ok(buffer) = stream.recv_idle(Some(deadline)).await else {
            return;
        };
        if buffer.is_empty() {
            return;
        }
        for &byte in buffer.iter() {
            matched = match (matched, byte) {
                (0 | 2, b'\r') => matched + 1,
                (1, b'\n') => 2,
                (3, b'\n') => {
                    stream.push(response.clone());
                    0
                }
                _ => 0,
            };
        }
        if close {
            return stream.finish();
        }
        drop(buffer);
        stream.start_send();
        if stream.backlog() > 65_536 && stream.drained(65_536).await.is_err() {
            return;
        }
    }
}
