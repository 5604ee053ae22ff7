//! The request to explain: a URL, a method, header fields and addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use engine::net::Address;

/// A request to be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The method; `GET` by default.
    pub method: String,
    /// Header fields: names and values. They are sent after `Host`; a `Host` among them replaces
    /// it.
    pub fields: Vec<(String, String)>,
    /// The client's address.
    pub from: IpAddr,
    /// The address that the client connects to, if it does not follow from the URL.
    pub to: Option<Address>,
    secure: bool,
    /// The host of the URL, without a port; may be empty.
    host: String,
    port: Option<u16>,
    target: String,
}

/// The host and the port of a URL's authority. An IPv6 address keeps its brackets (RFC 3986,
/// section 3.2.2).
fn host_and_port(authority: &str) -> Result<(&str, Option<u16>), &'static str> {
    let end = match authority.strip_prefix('[') {
        Some(rest) => {
            let length = rest.find(']').ok_or("no \"]\" behind the address")?;
            let address = rest.get(..length).unwrap_or_default();
            address
                .parse::<Ipv6Addr>()
                .map_err(|_| "no IPv6 address between the brackets")?;
            length + 2
        }
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, rest) = authority.split_at(end);
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Ok((host, None)),
        None => Err("something behind the brackets"),
        Some(port) if port.contains(':') => {
            Err("more than one colon; brackets go around IPv6 addresses")
        }
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            let port = port.parse().map_err(|_| "invalid port")?;
            Ok((host, Some(port)))
        }
        Some(_) => Err("invalid port"),
    }
}

impl Question {
    /// A GET request for a URL. The scheme may be omitted (`http` is used), and so may the host of
    /// a URL that starts with `/`.
    ///
    /// # Errors
    /// A sentence that says why the URL is invalid.
    pub fn new(url: &str) -> Result<Question, String> {
        // A control character could end the request line, or control the terminal that shows the
        // URL.
        if url.contains(char::is_control) {
            return Err(format!("{url:?} holds a control character"));
        }
        let (secure, rest) = match url.split_once("://") {
            None => (false, url),
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some((scheme, _)) => return Err(format!("unknown scheme \"{scheme}\" in \"{url}\"")),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let (host, port) =
            host_and_port(authority).map_err(|fault| format!("{fault} in \"{url}\""))?;
        let target = match target.strip_prefix('?') {
            Some(_) => format!("/{target}"),
            None if target.is_empty() => "/".to_owned(),
            None => target.to_owned(),
        };
        Ok(Question {
            method: "GET".to_owned(),
            fields: Vec::new(),
            from: Ipv4Addr::LOCALHOST.into(),
            to: None,
            secure,
            host: host.to_owned(),
            port,
            target,
        })
    }

    /// Adds a header field, written as `Name: value`.
    ///
    /// # Errors
    /// If the text has no colon.
    pub fn add_field(&mut self, text: &str) -> Result<(), String> {
        let (name, value) = text
            .split_once(':')
            .ok_or_else(|| format!("\"{text}\" is no header field"))?;
        self.fields.push((name.trim().into(), value.trim().into()));
        Ok(())
    }

    /// The port of the URL, or the default port of its scheme.
    pub fn port(&self) -> u16 {
        let usual = if self.secure { 443 } else { 80 };
        self.port.unwrap_or(usual)
    }

    /// The address that the client connects to, if known: [`to`](Self::to), or the URL's host if it
    /// is an address.
    pub fn address(&self) -> Option<Address> {
        if self.to.is_some() {
            return self.to.clone();
        }
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        let ip: IpAddr = bare.parse().ok()?;
        Some(Address::Inet(SocketAddr::from((ip, self.port()))))
    }

    /// The request's head as a client sends it.
    pub fn head(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        let has_host = self
            .fields
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("host"));
        if !has_host {
            let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
            head.push_str(&format!("Host: {}{port}\r\n", self.host));
        }
        for (name, value) in &self.fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        head.into_bytes()
    }
}

impl fmt::Display for Question {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(out, "{} {scheme}://{}", self.method, self.host)?;
        if let Some(port) = self.port {
            write!(out, ":{port}")?;
        }
        out.write_str(&self.target)
    }
}
