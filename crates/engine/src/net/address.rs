//! The address of a socket: an IP address with a port, or the path of a Unix socket.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The address of a stream socket. Displayed as nginx prints it: `127.0.0.1:80`, `[::1]:80`,
/// `unix:/run/site.sock`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// An IPv4 or IPv6 address with a port.
    Inet(SocketAddr),
    /// The path of a Unix socket; empty if the socket is unnamed. A path that begins with `@` is in
    /// Linux's abstract namespace.
    Unix(PathBuf),
}

impl Address {
    /// The IP address; `None` for a Unix socket.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Address::Inet(address) => Some(address.ip()),
            Address::Unix(_) => None,
        }
    }

    /// The port; `None` for a Unix socket.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match self {
            Address::Inet(address) => Some(address.port()),
            Address::Unix(_) => None,
        }
    }

    /// The file that binding a socket to this address creates; `None` if it creates none.
    #[must_use]
    pub fn socket_file(&self) -> Option<&Path> {
        match self {
            Address::Inet(_) => None,
            Address::Unix(path) => {
                let has_file = !matches!(path.as_os_str().as_bytes(), [] | [b'@', ..]);
                has_file.then_some(path.as_path())
            }
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Inet(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Inet(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_as_nginx_does() {
        for text in ["127.0.0.1:80", "[::1]:8080"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Address::from(address).to_string(), text);
        }
        assert_eq!(
            Address::Unix("/run/x.sock".into()).to_string(),
            "unix:/run/x.sock"
        );
        assert_eq!(Address::Unix(PathBuf::new()).to_string(), "unix:");
    }

    #[test]
    fn an_abstract_name_is_no_file() {
        let unix = |path: &str| Address::Unix(path.into());
        let file = Some(Path::new("/run/x@y.sock"));
        assert_eq!(unix("/run/x@y.sock").socket_file(), file);
        assert_eq!(unix("@name").socket_file(), None);
        assert_eq!(unix("").socket_file(), None);
    }
}
