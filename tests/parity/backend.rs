//! The upstream behind `proxy_pass http://127.0.0.1:@BACKEND@`: scripted answers, or an echo.
//!
//! A `[backend /path]` section says what is answered to a request for that path: `< line`,
//! `<< text`, `pause TIME`, `early` (before the request's body has come) and, last, `close` (the
//! default), `keep`, `hang`, `stall` (read nothing) or `echo` (send back what comes, as an upgraded
//! connection). Every other path gets the request itself as the body of a 200, byte for byte, so
//! that a case shows what the proxy sent.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::case::{Ending, Step};

type Scripts = Arc<Vec<(String, Vec<Step>)>>;

/// Starts the upstream on a port that the caller has bound. Its threads live as long as the test
/// run.
pub(crate) fn start(listener: TcpListener, scripts: Vec<(String, Vec<Step>)>) {
    let scripts: Scripts = Arc::new(scripts);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let scripts = scripts.clone();
            std::thread::spawn(move || while let Ok(true) = serve(&stream, &scripts) {});
        }
    });
}

/// Fills the queue of a listener that accepts nobody: who connects now waits. The sockets live as
/// long as the test run.
pub(crate) fn fill_queue(listener: TcpListener) -> std::io::Result<()> {
    const QUEUE_MAX: usize = 5000;
    let address = listener.local_addr()?;
    for _ in 0..QUEUE_MAX {
        match TcpStream::connect_timeout(&address, Duration::from_millis(50)) {
            Ok(stream) => std::mem::forget(stream),
            Err(_) => break,
        }
    }
    std::mem::forget(listener);
    Ok(())
}

/// One request. Returns whether the connection goes on.
fn serve(mut stream: &TcpStream, scripts: &Scripts) -> std::io::Result<bool> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let Some((mut request, body_starts)) = read_head(stream)? else {
        return Ok(false);
    };
    let head = String::from_utf8_lossy(&request[..body_starts]).into_owned();
    let path = head
        .split(' ')
        .nth(1)
        .unwrap_or_default()
        .split('?')
        .next()
        .unwrap_or_default();
    let Some((_, script)) = scripts.iter().find(|(known, _)| known == path) else {
        read_body(stream, &head, &mut request, body_starts)?;
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            request.len()
        );
        stream.write_all(answer.as_bytes())?;
        stream.write_all(&request)?;
        return Ok(false);
    };
    if !script.contains(&Step::Early) {
        read_body(stream, &head, &mut request, body_starts)?;
    }
    for step in script {
        match step {
            Step::Send(bytes) => stream.write_all(bytes)?,
            Step::Pause(time) => std::thread::sleep(*time),
            Step::End(ending) => return end(stream, *ending),
            _ => {}
        }
    }
    Ok(false)
}

fn end(mut stream: &TcpStream, ending: Ending) -> std::io::Result<bool> {
    match ending {
        Ending::Close => Ok(false),
        Ending::Keep => Ok(true),
        Ending::Hang => {
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
            Ok(false)
        }
        Ending::Stall => {
            std::thread::sleep(Duration::from_secs(10));
            Ok(false)
        }
        Ending::Echo => {
            let mut buffer = [0; 4096];
            loop {
                match stream.read(&mut buffer)? {
                    0 => return Ok(false),
                    count => stream.write_all(&buffer[..count])?,
                }
            }
        }
    }
}

/// What has come once the request's head is whole, and where its body starts.
fn read_head(mut stream: &TcpStream) -> std::io::Result<Option<(Vec<u8>, usize)>> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            return Ok(Some((bytes, at + 4)));
        }
        match stream.read(&mut buffer)? {
            0 => return Ok(None),
            count => bytes.extend(&buffer[..count]),
        }
    }
}

fn read_body(
    mut stream: &TcpStream,
    head: &str,
    request: &mut Vec<u8>,
    body_starts: usize,
) -> std::io::Result<()> {
    let head = head.to_ascii_lowercase();
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok())
        .unwrap_or(0);
    let chunked = head.contains("transfer-encoding: chunked");
    let mut buffer = [0; 16 * 1024];
    loop {
        let body = &request[body_starts..];
        let whole = if chunked {
            body.ends_with(b"0\r\n\r\n")
        } else {
            body.len() >= length
        };
        if whole {
            return Ok(());
        }
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => request.extend(&buffer[..count]),
        }
    }
}
