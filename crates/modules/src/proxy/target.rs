//! The target of a request: the parsed URL of `proxy_pass`.

use std::sync::Arc;

use bytes::Bytes;
use conf::{Fault, Word};
use framework::address::{self, WrittenAddress};
use framework::compile::Compiler;
use framework::slot::{Slot, SlotValue};
use http::request::Request;
use http::slots::PassLifetime;

use proxying::driver;
use proxying::locate::Upstream;
use proxying::upstream::{Group, Groups};

/// The scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub(super) fn text(self) -> &'static [u8] {
        match self {
            Scheme::Http => b"http://",
            Scheme::Https => b"https://",
        }
    }

    pub(super) fn name(self) -> &'static [u8] {
        match self {
            Scheme::Http => b"http",
            Scheme::Https => b"https",
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// The target of proxied requests.
#[derive(Clone, Debug)]
pub struct ProxyTarget {
    /// The scheme of the connection.
    pub(super) scheme: Scheme,
    /// The group or address of the server.
    pub upstream: Upstream,
    /// Host and port in the form of `Host`.
    pub host: Bytes,
    /// The port as `$proxy_port` shows it.
    pub port: Bytes,
    /// The URI of `proxy_pass`; `None` if it has none.
    pub uri: Option<Bytes>,
}

impl driver::Target for ProxyTarget {
    fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    fn scheme(&self) -> &'static [u8] {
        self.scheme.text()
    }

    fn secure_name(&self) -> Option<&Bytes> {
        (self.scheme == Scheme::Https).then_some(&self.host)
    }
}

/// The target that `$proxy_host` and `$proxy_port` show; without a target both variables exist, and
/// are empty.
#[derive(Clone, Debug, Default)]
pub(super) struct ShownTarget(pub(super) Option<Arc<ProxyTarget>>);

impl SlotValue for ShownTarget {}

/// The target of the request in this pass.
pub(super) static TARGET: Slot<ShownTarget, PassLifetime> = Slot::new();

/// The target of a URL without variables: a group that is declared anywhere in the configuration,
/// an address, or a name, which is resolved now.
pub(super) fn of_configuration(compiler: &Compiler<'_>, word: &Word) -> Result<ProxyTarget, Fault> {
    let fault = |text: String| Fault::at(word, text).while_reading();
    let url = Url::parse(&word.bytes).map_err(|error| {
        fault(match error {
            UrlError::Prefix => error.text().to_owned(),
            UrlError::Address(_) => {
                let shown = String::from_utf8_lossy(behind_scheme(&word.bytes));
                format!("{} in upstream \"{shown}\"", error.text())
            }
        })
    })?;
    let name = String::from_utf8_lossy(url.server.name);
    let groups = compiler.registry::<Groups>();
    let mut groups = groups.borrow_mut();
    if let Some(group) = groups
        .declared(url.server.name)
        .filter(|_| !url.server.unix)
    {
        return match url.server.port {
            Some(port) => Err(fault(format!(
                "upstream \"{name}\" may not have port {port}"
            ))),
            None => Ok(url.target(Upstream::Group(Arc::clone(group)))),
        };
    }
    match url.literal() {
        Some(group) => Ok(url.target(Upstream::Group(group))),
        None => match groups.host(&url.server, compiler.files, url.scheme.default_port()) {
            Some(group) => Ok(url.target(Upstream::Group(group))),
            None => {
                let text = format!("host not found in upstream \"{name}\"");
                Err(fault(text).of_missing(&name, &["upstream"]))
            }
        },
    }
}

/// The target of a URL that was evaluated for this request, or the status of the response.
pub(super) fn of_request(request: &mut Request, text: &[u8]) -> Result<ProxyTarget, u16> {
    let parsed = match strip_scheme(text) {
        Some((_, b"")) => Err(UrlError::Prefix),
        _ => Url::parse(text),
    };
    let url = match parsed {
        Ok(url) => url,
        Err(UrlError::Address(error)) => {
            let shown = logs::Printable(behind_scheme(text));
            logs::error!(request, Error, "{error} in upstream \"{shown}\"");
            return Err(500);
        }
        Err(error) => {
            let (text, shown) = (error.text(), logs::Printable(text));
            logs::error!(request, Error, "{text} in \"{shown}\"");
            return Err(500);
        }
    };
    let groups = request
        .local
        .generation
        .part::<Groups>()
        .unwrap_or_default();
    let known = groups.named(url.server.name, url.server.port, url.scheme.default_port());
    match known
        .filter(|_| !url.server.unix)
        .cloned()
        .or_else(|| url.literal())
    {
        Some(group) => Ok(url.target(Upstream::Group(group))),
        None => Ok(url.target(Upstream::Name {
            name: Bytes::copy_from_slice(
                url.server
                    .name
                    .strip_suffix(b".")
                    .unwrap_or(url.server.name),
            ),
            port: url.server.port.unwrap_or(url.scheme.default_port()),
        })),
    }
}

/// The parts of a URL.
#[derive(Debug)]
struct Url<'a> {
    scheme: Scheme,
    /// Host and port as written.
    authority: &'a [u8],
    server: WrittenAddress<'a>,
    uri: Option<&'a [u8]>,
}

/// Why a URL is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UrlError {
    /// The URL begins neither with `http://` nor with `https://`.
    Prefix,
    /// The address is invalid, for nginx's reason.
    Address(&'static str),
}

impl UrlError {
    fn text(self) -> &'static str {
        match self {
            UrlError::Prefix => "invalid URL prefix",
            UrlError::Address(text) => text,
        }
    }
}

impl Url<'_> {
    fn parse(text: &[u8]) -> Result<Url<'_>, UrlError> {
        let (scheme, rest) = strip_scheme(text).ok_or(UrlError::Prefix)?;
        let (authority, uri) = match rest.strip_prefix(b"unix:") {
            // The path ends at a colon, and the URI follows it.
            Some(path) => {
                let path_length = memchr::memchr(b':', path).unwrap_or(path.len());
                let (address, uri) = rest.split_at(path_length + b"unix:".len());
                (address, uri.get(1..).unwrap_or_default())
            }
            None => {
                let end = memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len());
                rest.split_at(end)
            }
        };
        let server = address::parse(authority).map_err(UrlError::Address)?;
        Ok(Url {
            scheme,
            authority: if server.unix { b"localhost" } else { authority },
            server,
            uri: Some(uri).filter(|uri| !uri.is_empty()),
        })
    }

    /// A group of a single address, if the URL has a literal one.
    fn literal(&self) -> Option<Arc<Group>> {
        let address = self.server.literal(self.scheme.default_port())?;
        Some(Group::of_one(
            Bytes::copy_from_slice(self.authority),
            address,
        ))
    }

    /// The target of the URL, with the upstream that was found for its server.
    fn target(&self, upstream: Upstream) -> ProxyTarget {
        let default_port = self.scheme.default_port();
        let port = if self.server.unix {
            Bytes::new()
        } else {
            self.server.port.unwrap_or(default_port).to_string().into()
        };
        // `Host` omits the default port.
        let host = match self.server.port {
            Some(port) if port == default_port => memchr::memrchr(b':', self.authority)
                .and_then(|colon| self.authority.get(..colon))
                .unwrap_or(self.authority),
            _ => self.authority,
        };
        ProxyTarget {
            scheme: self.scheme,
            upstream,
            host: Bytes::copy_from_slice(host),
            port,
            uri: self.uri.map(|uri| match uri.first() {
                Some(b'/') => Bytes::copy_from_slice(uri),
                _ => [b"/", uri].concat().into(),
            }),
        }
    }
}

/// The scheme, ignoring case, and the rest of the URL.
fn strip_scheme(text: &[u8]) -> Option<(Scheme, &[u8])> {
    [Scheme::Http, Scheme::Https]
        .into_iter()
        .find_map(|scheme| {
            let (front, rest) = text.split_at_checked(scheme.text().len())?;
            front
                .eq_ignore_ascii_case(scheme.text())
                .then_some((scheme, rest))
        })
}

/// The part of a URL that error messages show.
fn behind_scheme(text: &[u8]) -> &[u8] {
    strip_scheme(text).map_or(text, |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_urls() {
        let target = |text: &'static str| {
            let url = Url::parse(text.as_bytes()).unwrap();
            let target = url.target(Upstream::Group(url.literal().unwrap()));
            let uri = target
                .uri
                .map(|uri| String::from_utf8(uri.to_vec()).unwrap());
            let [host, port] =
                [target.host, target.port].map(|text| String::from_utf8(text.to_vec()).unwrap());
            (host, port, uri)
        };
        let of = |host: &str, port: &str, uri: Option<&str>| {
            (host.to_owned(), port.to_owned(), uri.map(str::to_owned))
        };
        assert_eq!(target("http://10.0.0.1"), of("10.0.0.1", "80", None));
        assert_eq!(
            target("http://10.0.0.1:80/"),
            of("10.0.0.1", "80", Some("/"))
        );
        assert_eq!(
            target("HTTP://10.0.0.1:81/a?b"),
            of("10.0.0.1:81", "81", Some("/a?b"))
        );
        assert_eq!(target("http://[::1]?b"), of("[::1]", "80", Some("/?b")));
        assert_eq!(
            target("http://unix:/run/a:/b:c"),
            of("localhost", "", Some("/b:c"))
        );
        assert_eq!(target("http://unix:/run/a"), of("localhost", "", None));
        assert_eq!(target("https://10.0.0.1"), of("10.0.0.1", "443", None));
        assert_eq!(target("https://10.0.0.1:443"), of("10.0.0.1", "443", None));
        assert_eq!(target("HTTPS://10.0.0.1:80"), of("10.0.0.1:80", "80", None));
    }

    #[test]
    fn urls_that_are_none() {
        let error = |text: &str| Url::parse(text.as_bytes()).unwrap_err();
        assert_eq!(error("10.0.0.1"), UrlError::Prefix);
        assert_eq!(error("ftp://a"), UrlError::Prefix);
        assert_eq!(error("http://"), UrlError::Address("no host"));
        assert_eq!(error("http://a:b/c"), UrlError::Address("invalid port"));
        assert_eq!(error("http://a:80#b"), UrlError::Address("invalid port"));
    }
}
