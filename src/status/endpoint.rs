//! Finds the live API of a server.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use conf::{Disk, MissingHosts, Recorder, ScopeRef};
use process::Options;

use crate::application::registry;
use crate::cli;

/// The location of an `api`: the server's address and the request's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiLocation {
    pub(super) target: Target,
    /// The value of `Host`, which the API checks: an address or a name of the server.
    pub(super) host: String,
    /// The path of the location, without a slash at its end.
    pub(super) path: String,
    /// NAME:PASSWORD from the URL, if given.
    pub(super) credentials: Option<String>,
}

/// The address to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl ApiLocation {
    /// Parses the URL of an API: `http://[NAME:PASSWORD@]HOST[:PORT][/PATH]`, or
    /// `http://unix:/SOCKET:/PATH` as in `proxy_pass`.
    ///
    /// # Errors
    /// A sentence that says why the URL is invalid.
    pub(super) fn parse(url: &str) -> Result<ApiLocation, String> {
        let wrong = |why: &str| format!("\"{url}\": {why}");
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some((scheme, _)) => {
                return Err(wrong(&format!(
                    "the scheme \"{scheme}\" is not spoken here, only http"
                )));
            }
            None => url,
        };
        if let Some(rest) = rest.strip_prefix("unix:") {
            let (socket, path) = rest.split_once(':').unwrap_or((rest, ""));
            return Ok(ApiLocation {
                target: Target::Unix(socket.into()),
                host: "localhost".to_owned(),
                path: path.trim_end_matches('/').to_owned(),
                credentials: None,
            });
        }
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (credentials, host) = match authority.rsplit_once('@') {
            Some((credentials, host)) => (Some(credentials.to_owned()), host),
            None => (None, authority),
        };
        if host.is_empty() {
            return Err(wrong("there is no host"));
        }
        let has_port = host
            .rsplit_once(':')
            .is_some_and(|(name, port)| !name.ends_with(':') && port.parse::<u16>().is_ok());
        let with_port = if has_port && !(host.starts_with('[') && host.ends_with(']')) {
            host.to_owned()
        } else {
            format!("{host}:80")
        };
        let mut addresses = with_port
            .to_socket_addrs()
            .map_err(|error| wrong(&error.to_string()))?;
        let address = addresses
            .next()
            .ok_or_else(|| wrong("the host has no address"))?;
        Ok(ApiLocation {
            target: Target::Tcp(address),
            host: host.to_owned(),
            path: path.trim_end_matches('/').to_owned(),
            credentials,
        })
    }
}

/// The location of the first `api` in the configuration that the command line names, or else in the
/// server's default configuration.
///
/// # Errors
/// The lines that `-t` prints for an invalid configuration, or a sentence if the configuration has
/// no `api` that is reachable without TLS.
pub(super) fn of_configuration(
    conf: Option<&OsString>,
    prefix: Option<&OsString>,
) -> Result<ApiLocation, String> {
    let options = options(conf, prefix)?;
    let hosts = MissingHosts::new(Disk);
    let files = Recorder::new(&hosts);
    let mut loaded = conf::load(
        &options.conf_path,
        options.conf_prefix(),
        &options.globals,
        registry(),
        &files,
    );
    if loaded.has_errors() {
        let found = conf::arrange(&mut loaded, Vec::new());
        let lines = found.iter();
        let lines = lines.map(|found| process::log::explained(found, &loaded.sources));
        return Err(lines.collect());
    }
    let has_api = |scope: &ScopeRef<'_>| {
        let mut lines = scope.lines().iter();
        lines.any(|line| line.name.text() == "api")
    };
    let endpoints = loaded.tree.scopes().filter(has_api);
    endpoints.filter_map(of_location).next().ok_or_else(|| {
        format!(
            "{}: no location with \"api\" can be asked without TLS; \
             name the URL of one, or write \"location /api/ {{ api; allow 127.0.0.0/8; deny all; }}\"",
            options.conf_path.display()
        )
    })
}

/// The location of an `api` block, if its path is fixed and its server is reachable without TLS.
fn of_location(location: ScopeRef<'_>) -> Option<ApiLocation> {
    let line = location.line()?;
    let words: Vec<_> = line.args.iter().map(conf::Word::text).collect();
    let path = match words.as_slice() {
        [path] => path,
        [modifier, path] if modifier == "^~" || modifier == "=" => path,
        _ => return None,
    };
    let mut server = location.parent()?;
    while server.line()?.name.text() != "server" {
        server = server.parent()?;
    }
    let listens: Vec<Vec<String>> = server
        .lines()
        .iter()
        .filter(|line| line.name.text() == "listen")
        .map(|line| line.args.iter().map(|word| word.text().into_owned()))
        .map(Iterator::collect)
        .collect();
    let target = if listens.is_empty() {
        Target::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 80)))
    } else {
        listens.iter().find_map(|words| target(words))?
    };
    let host = match &target {
        Target::Tcp(address) => address.to_string(),
        Target::Unix(_) => "localhost".to_owned(),
    };
    Some(ApiLocation {
        target,
        host,
        path: path.trim_end_matches('/').to_owned(),
        credentials: None,
    })
}

/// The address at which a `listen` line is reached; `None` unless the line is for unencrypted HTTP.
fn target(listen: &[String]) -> Option<Target> {
    let (address, options) = listen.split_first()?;
    let is_other = |word: &String| matches!(word.as_str(), "ssl" | "quic" | "proxy_protocol");
    if options.iter().any(is_other) {
        return None;
    }
    if let Some(path) = address.strip_prefix("unix:") {
        return Some(Target::Unix(path.into()));
    }
    if let Ok(port) = address.parse::<u16>() {
        return Some(Target::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port))));
    }
    let with_port = match address.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => address.clone(),
        _ => format!("{address}:80"),
    };
    let with_port = with_port.replacen("*:", "0.0.0.0:", 1);
    let mut address = with_port.to_socket_addrs().ok()?.next()?;
    // A wildcard socket is reached at the loopback address.
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    Some(Target::Tcp(address))
}

/// The options that locate the configuration, by the rules of the server's own command line.
fn options(conf: Option<&OsString>, prefix: Option<&OsString>) -> Result<Options, String> {
    let mut flags = vec![OsString::from("-t")];
    for (flag, value) in [("-c", conf), ("-p", prefix)] {
        if let Some(value) = value {
            flags.extend([flag.into(), value.clone()]);
        }
    }
    let options = cli::parse(flags)?.options;
    options.ok_or_else(|| "the command line asks for nothing".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(address: &str, host: &str, path: &str) -> ApiLocation {
        ApiLocation {
            target: Target::Tcp(address.parse().unwrap()),
            host: host.to_owned(),
            path: path.to_owned(),
            credentials: None,
        }
    }

    #[test]
    fn urls_are_read() {
        for (url, expected) in [
            (
                "http://127.0.0.1:8081/api/",
                tcp("127.0.0.1:8081", "127.0.0.1:8081", "/api"),
            ),
            ("127.0.0.1/api", tcp("127.0.0.1:80", "127.0.0.1", "/api")),
            ("http://[::1]", tcp("[::1]:80", "[::1]", "")),
            ("http://[::1]:81/a", tcp("[::1]:81", "[::1]:81", "/a")),
        ] {
            assert_eq!(ApiLocation::parse(url), Ok(expected), "{url}");
        }
        let unix = ApiLocation::parse("http://unix:/run/api.sock:/api").unwrap();
        assert_eq!(unix.target, Target::Unix("/run/api.sock".into()));
        assert_eq!(
            (unix.host.as_str(), unix.path.as_str()),
            ("localhost", "/api")
        );
        let protected = ApiLocation::parse("http://me:p@ss@127.0.0.1/").unwrap();
        assert_eq!(protected.credentials.as_deref(), Some("me:p@ss"));
        for wrong in [
            "https://127.0.0.1/api",
            "http:///api",
            "http://127.0.0.1:99999/",
        ] {
            assert!(ApiLocation::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn listening_sockets_are_reached() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (listen, expected) in [
            ("8081", Some("127.0.0.1:8081")),
            ("*:8081 default_server", Some("127.0.0.1:8081")),
            ("127.0.0.3", Some("127.0.0.3:80")),
            ("[::]:81", Some("[::1]:81")),
            ("443 ssl", None),
            ("81 proxy_protocol", None),
        ] {
            let expected = expected.map(|address| Target::Tcp(address.parse().unwrap()));
            assert_eq!(target(&words(listen)), expected, "{listen}");
        }
        let unix = Some(Target::Unix("/run/api".into()));
        assert_eq!(target(&words("unix:/run/api")), unix);
    }
}
