//! Parses URLs into the address to connect to and the path to request.
//!
//! `http://HOST[:PORT][/PATH][?QUERY]`, and `http://unix:/PATH/OF/SOCKET:/URI` as in nginx's
//! `proxy_pass`; also with `https`. Not here: credentials in a URL.

use std::fmt;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;

use engine::net::Address;

/// A parsed URL with its resolved address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The URL as given on the command line.
    pub url: String,
    /// Whether the scheme is `https`.
    pub secure: bool,
    /// The address to connect to.
    pub address: Address,
    /// The host without its port, for `--allow-remote`; empty for a Unix socket.
    pub host: String,
    /// The value of `Host`.
    pub authority: String,
    /// Path and query, as in the request line.
    pub path: String,
}

/// Why a URL cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetError {
    /// The scheme is neither `http` nor `https`.
    Scheme(String),
    /// There is no host, the port is not a number, or the URL contains blanks or control
    /// characters.
    Malformed(String),
    /// The host's name has no address.
    Unknown(String),
    /// The address belongs neither to this machine nor to a private network, and was not allowed.
    Remote(String),
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetError::Scheme(url) => write!(f, "{url}: only http:// and https:// are spoken"),
            TargetError::Malformed(url) => write!(f, "{url}: not a URL"),
            TargetError::Unknown(host) => write!(f, "{host}: no address is known for it"),
            TargetError::Remote(host) => write!(
                f,
                "{host} is neither this machine nor in a private network: load is sent there only with \
                 --allow-remote {host}"
            ),
        }
    }
}

impl Target {
    /// Parses `url` and resolves its host. Hosts in `allowed` may have any address.
    ///
    /// # Errors
    /// One variant of [`TargetError`] for each cause.
    pub fn parse(url: &str, allowed: &[String]) -> Result<Target, TargetError> {
        let malformed = || TargetError::Malformed(url.to_owned());
        if url.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
            return Err(malformed());
        }
        let (secure, rest) = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some(_) => return Err(TargetError::Scheme(url.to_owned())),
            None => (false, url),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        if let Some(socket) = rest.strip_prefix("unix:") {
            let (socket, path) = socket.split_once(':').unwrap_or((socket, "/"));
            return Ok(Target {
                url: url.to_owned(),
                secure,
                address: Address::Unix(PathBuf::from(socket)),
                host: String::new(),
                authority: "localhost".to_owned(),
                path: absolute(path),
            });
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (host, port) = host_and_port(authority).ok_or_else(malformed)?;
        let port = port.unwrap_or(if secure { 443 } else { 80 });
        let mut found = (host, port)
            .to_socket_addrs()
            .map_err(|_| TargetError::Unknown(host.to_owned()))?;
        let address = found
            .next()
            .ok_or_else(|| TargetError::Unknown(host.to_owned()))?;
        if !is_near(address.ip()) && !allowed.iter().any(|name| name == host) {
            return Err(TargetError::Remote(host.to_owned()));
        }
        Ok(Target {
            url: url.to_owned(),
            secure,
            address: Address::Inet(address),
            host: host.to_owned(),
            authority: authority.to_owned(),
            path: absolute(path),
        })
    }
}

fn absolute(path: &str) -> String {
    match path.strip_prefix('/') {
        Some(_) => path.to_owned(),
        None => format!("/{path}"),
    }
}

/// The host without brackets, and the port if there is one.
fn host_and_port(authority: &str) -> Option<(&str, Option<u16>)> {
    if authority.contains('@') {
        return None;
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            (
                host,
                if port.is_empty() {
                    None
                } else {
                    Some(port.strip_prefix(':')?)
                },
            )
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = match port {
        Some(port) => Some(port.parse().ok().filter(|port| *port != 0)?),
        None => None,
    };
    (!host.is_empty()).then_some((host, port))
}

/// Whether an address is a loopback, private or link-local one (RFC 1918, RFC 3927, RFC 4193, RFC
/// 4291).
fn is_near(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => is_near(IpAddr::V4(ip)),
            None => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<(String, String, String), TargetError> {
        let target = Target::parse(url, &["203.0.113.9".to_owned()])?;
        Ok((target.address.to_string(), target.authority, target.path))
    }

    #[test]
    fn urls() {
        for (url, address, authority, path) in [
            ("http://127.0.0.1/", "127.0.0.1:80", "127.0.0.1", "/"),
            ("127.0.0.1:81", "127.0.0.1:81", "127.0.0.1:81", "/"),
            (
                "HTTP://127.0.0.1:81/a?b#c",
                "127.0.0.1:81",
                "127.0.0.1:81",
                "/a?b",
            ),
            ("http://127.0.0.1?b", "127.0.0.1:80", "127.0.0.1", "/?b"),
            ("http://[::1]:81/x", "[::1]:81", "[::1]:81", "/x"),
            ("http://[fd00::1]", "[fd00::1]:80", "[fd00::1]", "/"),
            (
                "http://unix:/run/a.sock:/b",
                "unix:/run/a.sock",
                "localhost",
                "/b",
            ),
            (
                "http://unix:/run/a.sock",
                "unix:/run/a.sock",
                "localhost",
                "/",
            ),
            ("https://[::1]/x", "[::1]:443", "[::1]", "/x"),
            ("HTTPS://127.0.0.1:81", "127.0.0.1:81", "127.0.0.1:81", "/"),
            ("http://203.0.113.9/", "203.0.113.9:80", "203.0.113.9", "/"),
        ] {
            let expected = (address.to_owned(), authority.to_owned(), path.to_owned());
            assert_eq!(read(url), Ok(expected), "{url}");
        }
    }

    #[test]
    fn faults() {
        for url in [
            "",
            "http://",
            "http://:80/",
            "http://h:x/",
            "http://h:0/",
            "http://a@h/",
            "http://h/a b",
            "http://[::1/",
        ] {
            assert_eq!(
                read(url),
                Err(TargetError::Malformed(url.to_owned())),
                "{url}"
            );
        }
        let scheme = TargetError::Scheme("ftp://127.0.0.1/".to_owned());
        assert_eq!(read("ftp://127.0.0.1/"), Err(scheme));
        for host in ["203.0.113.8", "8.8.8.8"] {
            let remote = TargetError::Remote(host.to_owned());
            assert_eq!(read(&format!("http://{host}/")), Err(remote));
        }
        assert!(matches!(
            read("http://[2001:db8::1]/"),
            Err(TargetError::Remote(_))
        ));
    }
}
