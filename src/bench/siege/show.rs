//! `siege -g` and `-p`: prints the exchange of a single request.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use engine::net::Address;
use load::Target;
use load::tls::Tls;

use super::flags::{Flags, Show};
use super::report::Figures;
use super::urls::{self, UrlLine, request};

/// Time limit of connecting and of each read, as in siege.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum length of a response that is shown, in bytes.
const BYTES_MAX: u64 = 64 << 20;

trait Connection: Read + Write {}

impl<T: Read + Write> Connection for T {}

/// Sends the request of `line` and prints the exchange, unless `-q` or `-j` is given. An error is
/// printed and counts as a failure.
pub(super) fn show(line: &UrlLine, flags: &Flags) -> Result<Figures, String> {
    let target =
        Target::parse(&line.url, &flags.allow_remote).map_err(|error| error.to_string())?;
    let request = request(line, &target, flags)?;
    let silent = flags.quiet || flags.json;
    let mut figures = Figures::default();
    let begin = Instant::now();
    let tls = urls::maker()
        .tls(&target)
        .map_err(|error| error.to_string())?;
    match exchange(&target.address, tls.as_ref(), &request) {
        Ok(response) => {
            figures.elapsed = begin.elapsed();
            (figures.total, figures.longest) = (figures.elapsed, figures.elapsed);
            figures.shortest = figures.elapsed;
            let (head, body) = parts(&response);
            match status(head) {
                Some(status) => figures.count(status, 1),
                None => figures.failed += 1,
            }
            figures.bytes = body.len() as u64;
            if !silent {
                let sent = head_of(&request);
                let shown = match flags.show {
                    Some(Show::Page) => [sent, b"\n", body, b"\n"].concat(),
                    _ => [sent, b"\n", head, b"\n"].concat(),
                };
                std::io::stdout()
                    .write_all(&shown)
                    .map_err(|error| error.to_string())?;
            }
        }
        Err(error) => {
            figures.elapsed = begin.elapsed();
            figures.failed += 1;
            eprintln!("[error] {}: {error}", target.address);
        }
    }
    Ok(figures)
}

/// Sends a request and reads the response until the server closes, up to [`BYTES_MAX`].
fn exchange(address: &Address, tls: Option<&Tls>, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream: Box<dyn Connection> = match address {
        Address::Inet(address) => {
            let stream = TcpStream::connect_timeout(address, TIMEOUT)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            Box::new(stream)
        }
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            Box::new(stream)
        }
    };
    if let Some(tls) = tls {
        stream = Box::new(tls.over(stream).map_err(io::Error::other)?);
    }
    stream.write_all(request)?;
    let mut response = Vec::new();
    // If a server keeps the connection open in spite of HTTP/1.0 and `close`, the read timeout ends
    // the response.
    match stream.take(BYTES_MAX).read_to_end(&mut response) {
        Err(error) if response.is_empty() => Err(error),
        _ => Ok(response),
    }
}

/// Splits a response into its head, including the empty line, and its body.
fn parts(response: &[u8]) -> (&[u8], &[u8]) {
    let end = response.windows(4).position(|four| four == b"\r\n\r\n");
    response.split_at(end.map_or(response.len(), |end| end + 4))
}

fn head_of(request: &[u8]) -> &[u8] {
    parts(request).0
}

/// Parses the status from a line such as `HTTP/1.1 200 OK`.
fn status(head: &[u8]) -> Option<usize> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let text = std::str::from_utf8(line).ok()?;
    let mut words = text.strip_prefix("HTTP/")?.split(' ').skip(1);
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_statuses() {
        assert_eq!(
            parts(b"a\r\n\r\nb"),
            (b"a\r\n\r\n".as_slice(), b"b".as_slice())
        );
        assert_eq!(parts(b"a"), (b"a".as_slice(), b"".as_slice()));
        assert_eq!(status(b"HTTP/1.1 404 Not Found\r\n"), Some(404));
        assert_eq!(
            [status(b"SSH-2.0"), status(b"HTTP/1.1"), status(b"")],
            [None; 3]
        );
    }
}
