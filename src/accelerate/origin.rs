//! The origin: how the command line names the server, and which pages it shows only to clients on
//! this machine.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Time limit for each read and write when the origin is asked at the start.
const PATIENCE: Duration = Duration::from_secs(2);

/// Number of bytes that are read from a response for its status.
const STATUS_READ: usize = 64;

/// Pages that Apache shows to clients on its own machine. Behind an accelerator, all requests come
/// from there.
pub(super) const PAGES: [&str; 2] = ["/server-status", "/server-info"];

/// A server that requests are passed on to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) is_secure: bool,
    /// The host and port, or the Unix socket.
    at: At,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    Host { name: String, port: u16 },
    Socket(String),
}

/// The pages that the origin would show to everybody, if requests are passed on from this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExposedPages {
    /// The pages, out of [`PAGES`].
    Pages(Vec<&'static str>),
    /// The pages are not known; the reason.
    Unknown(String),
}

impl Origin {
    /// Parses `http://HOST[:PORT]`, `https://HOST[:PORT]`, `HOST:PORT`, `PORT` or `unix:PATH`.
    ///
    /// # Errors
    /// The line to print.
    pub(super) fn parse(text: &str) -> Result<Origin, String> {
        let wrong = |what: &str| format!("\"{text}\": {what}");
        if let Some(path) = text.strip_prefix("unix:") {
            let is_path = path.starts_with('/') && !path.contains([':', '"', '\n']);
            return if is_path {
                Ok(Origin {
                    is_secure: false,
                    at: At::Socket(path.to_owned()),
                })
            } else {
                Err(wrong(
                    "a socket is named by its absolute path, as in unix:/run/app.sock",
                ))
            };
        }
        let (is_secure, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some(_) => return Err(wrong("the server behind is asked by http:// or https://")),
            None => (false, text),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#']) {
            return Err(wrong(
                "a path is not taken: each request is passed on with its own",
            ));
        }
        if rest.contains('@') {
            return Err(wrong("names and passwords are not taken"));
        }
        let default = if is_secure { 443 } else { 80 };
        let (name, port) = split_port(rest).ok_or_else(|| wrong("there is no such port"))?;
        let (name, port) = match port {
            Some(port) => (name, port),
            // A number alone is a port of this machine.
            None if name.bytes().all(|byte| byte.is_ascii_digit()) => {
                let port = name.parse().ok().filter(|port| *port != 0);
                (
                    "127.0.0.1",
                    port.ok_or_else(|| wrong("there is no such port"))?,
                )
            }
            None => (name, default),
        };
        let name = if name.is_empty() { "127.0.0.1" } else { name };
        let is_bracketed = name.starts_with('[') && name.ends_with(']');
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
        let is_name = if is_bracketed {
            name[1..name.len() - 1]
                .parse::<std::net::Ipv6Addr>()
                .is_ok()
        } else {
            name.chars().all(is_plain)
        };
        if !is_name {
            return Err(wrong("this is no name of a host"));
        }
        Ok(Origin {
            is_secure,
            at: At::Host {
                name: name.to_ascii_lowercase(),
                port,
            },
        })
    }

    /// The argument of `server` in an upstream.
    pub(super) fn server(&self) -> String {
        match &self.at {
            At::Host { name, port } => format!("{name}:{port}"),
            At::Socket(path) => format!("unix:{path}"),
        }
    }

    /// The name that is requested and that a certificate must have.
    pub(super) fn name(&self) -> &str {
        match &self.at {
            At::Host { name, .. } => name,
            At::Socket(_) => "localhost",
        }
    }

    /// Whether the origin is at one of these addresses, at which this server listens.
    pub(super) fn is_one_of(&self, listening: &[SocketAddr]) -> bool {
        let At::Host { name, port } = &self.at else {
            return false;
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let found = (name, *port).to_socket_addrs();
        let found: Vec<SocketAddr> = found.map(Iterator::collect).unwrap_or_default();
        listening.iter().any(|listening| {
            let is_any = listening.ip().is_unspecified();
            found.iter().any(|behind| {
                let same = behind.ip() == listening.ip() || (is_any && behind.ip().is_loopback());
                same && behind.port() == listening.port()
            })
        })
    }

    /// Requests [`PAGES`] like a forwarded request of a client on another machine.
    pub(super) fn shown(&self) -> ExposedPages {
        if self.is_secure {
            return ExposedPages::Unknown("it speaks TLS".to_owned());
        }
        let mut pages = Vec::new();
        for page in PAGES {
            match self.status(page) {
                Ok(200..=299) => pages.push(page),
                Ok(_) => {}
                Err(error) => return ExposedPages::Unknown(error.to_string()),
            }
        }
        ExposedPages::Pages(pages)
    }

    /// The status of the origin's response to a request for a path.
    fn status(&self, path: &str) -> io::Result<u16> {
        match &self.at {
            At::Host { name, port } => {
                let name = name.trim_start_matches('[').trim_end_matches(']');
                let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
                for address in (name, *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, PATIENCE) {
                        Ok(stream) => {
                            stream.set_read_timeout(Some(PATIENCE))?;
                            stream.set_write_timeout(Some(PATIENCE))?;
                            return self.ask(stream, path);
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
            At::Socket(socket) => {
                let stream = UnixStream::connect(socket)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                self.ask(stream, path)
            }
        }
    }

    fn ask(&self, mut stream: impl Read + Write, path: &str) -> io::Result<u16> {
        // A documentation address (RFC 5737): an origin that evaluates the field refuses it.
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nX-Forwarded-For: 192.0.2.1\r\nConnection: close\r\n\r\n",
            self.name()
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(STATUS_READ as u64).read_to_end(&mut answer)?;
        let text = String::from_utf8_lossy(&answer);
        let status = text
            .strip_prefix("HTTP/1.")
            .and_then(|rest| rest.get(2..5)?.parse().ok());
        status.ok_or_else(|| io::Error::other("it does not answer by HTTP"))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_secure { "https" } else { "http" };
        match &self.at {
            At::Host { name, port } => {
                let default = if self.is_secure { 443 } else { 80 };
                if *port == default {
                    write!(f, "{scheme}://{name}")
                } else {
                    write!(f, "{scheme}://{name}:{port}")
                }
            }
            At::Socket(path) => write!(f, "unix:{path}"),
        }
    }
}

/// Splits a host from its port, if there is one; `None` if the port is invalid.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    match text.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            let port = port.parse().ok().filter(|port| *port != 0)?;
            Some((name, Some(port)))
        }
        _ => Some((text, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_as_people_do() {
        for (text, server, shown) in [
            (
                "http://127.0.0.1:8080",
                "127.0.0.1:8080",
                "http://127.0.0.1:8080",
            ),
            ("HTTP://App.Local/", "app.local:80", "http://app.local"),
            ("https://app.test", "app.test:443", "https://app.test"),
            ("localhost:9000", "localhost:9000", "http://localhost:9000"),
            (":9000", "127.0.0.1:9000", "http://127.0.0.1:9000"),
            ("9000", "127.0.0.1:9000", "http://127.0.0.1:9000"),
            ("[::1]:81", "[::1]:81", "http://[::1]:81"),
            ("http://[::1]", "[::1]:80", "http://[::1]"),
            (
                "unix:/run/app.sock",
                "unix:/run/app.sock",
                "unix:/run/app.sock",
            ),
        ] {
            let origin = Origin::parse(text).unwrap();
            assert_eq!((&*origin.server(), &*origin.to_string()), (server, shown));
        }
        for text in [
            "ftp://a",
            "http://a/b",
            "a:0",
            "a:99999",
            "70000",
            "http://u:p@a",
            "a b",
            "::1",
            "http://a;b",
            "unix:app.sock",
            "unix:/a\"b",
            "[::g]:80",
        ] {
            assert!(Origin::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_listened_on_is_no_server_behind() {
        let is = |origin: &str, listening: &str| {
            let origin = Origin::parse(origin).unwrap();
            origin.is_one_of(&[listening.parse().unwrap()])
        };
        assert!(is("8080", "127.0.0.1:8080") && is("8080", "0.0.0.0:8080"));
        assert!(!is("8080", "127.0.0.1:80") && !is("127.0.0.2:8080", "127.0.0.1:8080"));
    }
}
