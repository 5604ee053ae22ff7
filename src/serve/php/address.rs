//! Addresses of php-fpm, and checks of a listener: whether it speaks FastCGI, and whether it can
//! see the folder.
//!
//! The checks run no script: `FCGI_GET_VALUES` concerns the application itself, and a folder is no
//! script.

use std::fmt::{self, Display};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proto::cgi::Variables;
use proto::fastcgi::{PARAMS_LENGTH_MAX, RequestWriter, STDIN_END};

use crate::serve::User;

/// Time limit for each answer: a pool whose children are all busy does not answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// `FCGI_GET_VALUES` without names, which php-fpm answers with an empty list (FastCGI
/// specification, section 4.1).
const GET_VALUES: [u8; 8] = [1, 9, 0, 0, 0, 0, 0, 0];
const GET_VALUES_RESULT: u8 = 10;
const VERSION: u8 = 1;

/// Limit of bytes read from an answer; php-fpm's answers are shorter.
const ANSWER_LENGTH_MAX: usize = 64 * 1024;

/// An address at which php-fpm listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// Formats the address as in the configuration's `server` and in messages.
impl Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => address.fmt(f),
        }
    }
}

/// The result of checking an address.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AddressCheck {
    /// A FastCGI application that sees the folder.
    Usable,
    Absent(String),
    /// Something that cannot be used listens there; the reason.
    Refused(String),
    /// A FastCGI application that does not see the folder, because it runs in a container or as
    /// another user.
    Blind,
    /// A FastCGI application whose answer does not tell whether it sees the folder, unlike
    /// php-fpm's.
    Odd,
}

impl Address {
    /// Parses `unix:PATH`, the PATH of a socket, or `HOST:PORT`.
    pub(super) fn parse(text: &str) -> Result<Address, String> {
        let path = text
            .strip_prefix("unix:")
            .or(text.starts_with('/').then_some(text));
        if let Some(path) = path {
            return Ok(Address::Unix(PathBuf::from(path)));
        }
        let found = text.to_socket_addrs();
        let found = found.map_err(|error| format!("--php={text}: {error}"))?;
        let first = found.into_iter().next();
        first
            .map(Address::Tcp)
            .ok_or_else(|| format!("--php={text}: the host has no address"))
    }

    /// Checks the address, on behalf of `user` if that is not the user of this process.
    pub(super) fn ask(&self, directory: &Path, user: Option<&User>) -> AddressCheck {
        if let (Address::Unix(path), Some(user)) = (self, user)
            && path.exists()
            && !user.may_connect(path)
        {
            let name = user.name();
            return AddressCheck::Refused(format!("user {name} may not connect to it"));
        }
        match self.speaks_fastcgi() {
            Ok(true) => {}
            Ok(false) => return AddressCheck::Refused("it does not speak FastCGI".to_owned()),
            Err(AddressError::Connecting(error)) => {
                let text = process::log::failure("connect() failed", &error);
                return match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                        AddressCheck::Absent(text)
                    }
                    _ => AddressCheck::Refused(text),
                };
            }
            Err(AddressError::Answering(error)) => {
                return AddressCheck::Refused(match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                        format!("it does not answer within {} s", ANSWER_LIMIT.as_secs())
                    }
                    _ => process::log::failure("it does not answer", &error),
                });
            }
        }
        match self.sees(directory) {
            Some(false) => AddressCheck::Blind,
            Some(true) => AddressCheck::Usable,
            None => AddressCheck::Odd,
        }
    }

    /// Whether a FastCGI application answers here.
    pub(super) fn speaks_fastcgi(&self) -> Result<bool, AddressError> {
        let answer = self.exchange(&GET_VALUES, |answer| answer.len() >= GET_VALUES.len())?;
        Ok(matches!(
            answer.as_slice(),
            [VERSION, GET_VALUES_RESULT, ..]
        ))
    }

    /// Whether the application sees the folder. php-fpm answers 404 for a script that does not
    /// exist, and for a folder that the script may not be run (`security.limit_extensions`).
    fn sees(&self, directory: &Path) -> Option<bool> {
        use std::os::unix::ffi::OsStrExt;

        let mut request = Vec::new();
        let mut writer = RequestWriter::new(&mut request, false);
        writer.push(b"SCRIPT_FILENAME", directory.as_os_str().as_bytes());
        writer.push(b"REQUEST_METHOD", b"HEAD");
        writer.push(b"SCRIPT_NAME", b"/");
        writer.finish(PARAMS_LENGTH_MAX).ok()?;
        request.extend_from_slice(&STDIN_END);
        let answer = self.exchange(&request, |_| false).ok()?;
        let says = |text: &[u8]| answer.windows(text.len()).any(|window| window == text);
        match (says(b"Status: 404 "), says(b"Status: 403 ")) {
            (true, _) => Some(false),
            (_, true) => Some(true),
            _ => None,
        }
    }

    /// Sends bytes, and reads until the answer is complete or the peer closes.
    fn exchange(
        &self,
        request: &[u8],
        is_enough: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<u8>, AddressError> {
        let limit = Some(ANSWER_LIMIT);
        match self {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(AddressError::Connecting)?;
                let timeouts = stream
                    .set_read_timeout(limit)
                    .and(stream.set_write_timeout(limit));
                timeouts.map_err(AddressError::Answering)?;
                converse(stream, request, is_enough)
            }
            Address::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, ANSWER_LIMIT)
                    .map_err(AddressError::Connecting)?;
                let timeouts = stream
                    .set_read_timeout(limit)
                    .and(stream.set_write_timeout(limit));
                timeouts.map_err(AddressError::Answering)?;
                converse(stream, request, is_enough)
            }
        }
    }
}

/// The step of a check that failed.
#[derive(Debug)]
pub(super) enum AddressError {
    Connecting(io::Error),
    Answering(io::Error),
}

fn converse(
    mut stream: impl Read + Write,
    request: &[u8],
    is_enough: impl Fn(&[u8]) -> bool,
) -> Result<Vec<u8>, AddressError> {
    let deadline = Instant::now() + ANSWER_LIMIT;
    stream.write_all(request).map_err(AddressError::Answering)?;
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    while !is_enough(&answer) && answer.len() < ANSWER_LENGTH_MAX {
        let count = stream.read(&mut part).map_err(AddressError::Answering)?;
        if count == 0 {
            break;
        }
        answer.extend_from_slice(part.get(..count).unwrap_or_default());
        if Instant::now() > deadline {
            return Err(AddressError::Answering(io::ErrorKind::TimedOut.into()));
        }
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn addresses_are_read() {
        let unix = |path: &str| Ok(Address::Unix(PathBuf::from(path)));
        assert_eq!(Address::parse("unix:/run/a b.sock"), unix("/run/a b.sock"));
        assert_eq!(Address::parse("/run/a.sock"), unix("/run/a.sock"));
        let tcp = Address::parse("127.0.0.1:9000").unwrap();
        assert_eq!(tcp.to_string(), "127.0.0.1:9000");
        for text in ["", "9000", "127.0.0.1", "127.0.0.1:http:x"] {
            let error = Address::parse(text).unwrap_err();
            assert!(error.starts_with(&format!("--php={text}: ")), "{error}");
        }
    }

    #[test]
    fn what_is_no_application_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .unwrap();
        });
        let answer = address.ask(Path::new("/"), None);
        server.join().unwrap();
        assert_eq!(
            answer,
            AddressCheck::Refused("it does not speak FastCGI".to_owned())
        );
        assert!(matches!(
            address.ask(Path::new("/"), None),
            AddressCheck::Absent(_)
        ));
        let missing = Address::Unix(PathBuf::from("/nonexistent/php.sock"));
        assert!(matches!(
            missing.ask(Path::new("/"), None),
            AddressCheck::Absent(_)
        ));
    }
}
