//! The endpoints that paths below the API's location refer to.

use bytes::Bytes;
use proto::method::Method;

use super::failure::ApiError;

/// The supported versions.
pub(super) const VERSIONS: std::ops::RangeInclusive<u8> = 4..=9;

/// The endpoint of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// The list of versions.
    Versions,
    /// The list of endpoints of a version.
    Root,
    Nginx,
    Connections,
    /// Processes that the master has restarted.
    Processes,
    /// Memory of all zones with a slab allocator, or of the zone with this name.
    Slabs(Option<Bytes>),
    /// Resolvers with a `status_zone`, or the resolver with this name.
    Resolvers(Option<Bytes>),
    Ssl,
    /// Server certificates (not in NGINX Plus).
    Certificates,
    /// The license: an empty object, since Tidegate needs no license.
    License,
    /// Receive queues that bypass the kernel.
    XdpQueues,
    /// The state of all threads, or of the thread with this number.
    Workers(Option<u64>),
    /// The entries of a cache, for removal (not in NGINX Plus).
    CacheEntries(Bytes),
    /// Caches, or the cache with this name.
    Caches(Option<Bytes>),
    /// The list of HTTP endpoints.
    Http,
    HttpRequests,
    /// Zones of a kind, or the zone with this name.
    Zones(Kind, Option<Bytes>),
    /// Key-value pairs of a block, `http` or `stream`, or those of the zone with this name.
    Keyvals(&'static str, Option<Bytes>),
    /// The list of endpoints for TCP and UDP.
    Stream,
    /// Groups of servers of a block, `http` or `stream`.
    Upstreams(&'static str, UpstreamSelector),
}

/// A kind of zones that count requests or sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    ServerZones,
    LocationZones,
    LimitConns,
    LimitReqs,
    StreamServerZones,
    StreamLimitConns,
    MemcachedServerZones,
}

impl Kind {
    const ALL: [Kind; 7] = [
        Kind::ServerZones,
        Kind::LocationZones,
        Kind::LimitConns,
        Kind::LimitReqs,
        Kind::StreamServerZones,
        Kind::StreamLimitConns,
        Kind::MemcachedServerZones,
    ];

    /// The block in which zones of this kind are: `http`, `stream` or `memcached`.
    fn block(self) -> &'static str {
        match self {
            Kind::StreamServerZones | Kind::StreamLimitConns => "stream",
            Kind::MemcachedServerZones => "memcached",
            _ => "http",
        }
    }

    /// The name of the kind in a path.
    pub(super) fn path(self) -> &'static str {
        match self {
            Kind::ServerZones | Kind::StreamServerZones | Kind::MemcachedServerZones => {
                "server_zones"
            }
            Kind::LocationZones => "location_zones",
            Kind::LimitConns | Kind::StreamLimitConns => "limit_conns",
            Kind::LimitReqs => "limit_reqs",
        }
    }

    /// The first version of the API that has this kind.
    fn since(self) -> u8 {
        match self {
            Kind::ServerZones | Kind::StreamServerZones | Kind::MemcachedServerZones => 1,
            Kind::LocationZones => 5,
            Kind::LimitConns | Kind::LimitReqs | Kind::StreamLimitConns => 6,
        }
    }
}

/// Groups of servers, or a part of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UpstreamSelector {
    All,
    /// The group with this name.
    Group(Vec<u8>),
    /// The configuration of the servers of the group with this name.
    Servers(Vec<u8>),
    /// The configuration of one server, by the name of its group and its number.
    Server(Vec<u8>, u64),
}

/// An endpoint of a version of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestedEndpoint {
    pub(super) version: u8,
    pub(super) endpoint: Endpoint,
}

impl Endpoint {
    /// The endpoints of a version.
    pub(super) fn of_root(version: u8) -> Vec<&'static str> {
        let mut all = vec![
            "nginx",
            "processes",
            "connections",
            "slabs",
            "http",
            "stream",
        ];
        if version >= 5 {
            all.push("resolvers");
        }
        all.push("ssl");
        if version >= 9 {
            all.extend(["workers", "license"]);
        }
        all
    }

    /// Parses the path after the location's name. A slash at its end makes no difference.
    pub(super) fn parse(path: &[u8]) -> Result<RequestedEndpoint, ApiError> {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let path = path.strip_suffix(b"/").unwrap_or(path);
        let mut parts = path.split(|byte| *byte == b'/');
        let version = match parts.next() {
            None | Some(b"") => {
                return Ok(RequestedEndpoint {
                    version: *VERSIONS.end(),
                    endpoint: Endpoint::Versions,
                });
            }
            Some(version) => version_of(version).ok_or(ApiError::UnknownVersion)?,
        };
        let parts: Vec<&[u8]> = parts.collect();
        let endpoint = match parts.as_slice() {
            [] => Endpoint::Root,
            [b"nginx"] => Endpoint::Nginx,
            [b"connections"] => Endpoint::Connections,
            [b"processes"] => Endpoint::Processes,
            [b"slabs"] => Endpoint::Slabs(None),
            [b"slabs", name] => Endpoint::Slabs(Some(Bytes::copy_from_slice(name))),
            [b"resolvers"] if version >= 5 => Endpoint::Resolvers(None),
            [b"resolvers", name] if version >= 5 => {
                Endpoint::Resolvers(Some(Bytes::copy_from_slice(name)))
            }
            [b"ssl"] => Endpoint::Ssl,
            [b"ssl", b"certificates"] => Endpoint::Certificates,
            [b"license"] if version >= 9 => Endpoint::License,
            [b"workers"] if version >= 9 => Endpoint::Workers(None),
            [b"workers", id] if version >= 9 => {
                Endpoint::Workers(Some(number(id).ok_or(ApiError::WorkerNotFound)?))
            }
            [b"http", b"caches"] => Endpoint::Caches(None),
            [b"http", b"caches", name] => Endpoint::Caches(Some(Bytes::copy_from_slice(name))),
            [b"http", b"caches", name, b"entries"] => {
                Endpoint::CacheEntries(Bytes::copy_from_slice(name))
            }
            [b"http"] => Endpoint::Http,
            [b"http", b"requests"] => Endpoint::HttpRequests,
            [b"http", b"upstreams", rest @ ..] => {
                Endpoint::Upstreams("http", UpstreamSelector::parse(rest)?)
            }
            [b"http", rest @ ..] => Endpoint::of_zones("http", version, rest)?,
            [b"stream"] => Endpoint::Stream,
            [b"stream", b"upstreams", rest @ ..] => {
                Endpoint::Upstreams("stream", UpstreamSelector::parse(rest)?)
            }
            [b"stream", rest @ ..] => Endpoint::of_zones("stream", version, rest)?,
            // NGINX Plus has no such endpoint, so no list of endpoints contains it.
            [b"xdp"] => Endpoint::XdpQueues,
            [b"memcached", rest @ ..] => Endpoint::of_zones("memcached", version, rest)?,
            _ => return Err(ApiError::PathNotFound),
        };
        Ok(RequestedEndpoint { version, endpoint })
    }

    /// Parses the rest of a path that names zones of a block. An error if this version of the API
    /// lacks their kind.
    fn of_zones(block: &'static str, version: u8, path: &[&[u8]]) -> Result<Endpoint, ApiError> {
        let (kind, name) = match path {
            [kind] => (*kind, None),
            [kind, name] => (*kind, Some(Bytes::copy_from_slice(name))),
            _ => return Err(ApiError::PathNotFound),
        };
        if kind == b"keyvals" && block != "memcached" {
            return Ok(Endpoint::Keyvals(block, name));
        }
        let mut kinds = Kind::ALL.into_iter();
        let known = kinds.find(|known| known.block() == block && known.path().as_bytes() == kind);
        let kind = known.filter(|known| known.since() <= version);
        Ok(Endpoint::Zones(kind.ok_or(ApiError::PathNotFound)?, name))
    }

    /// The HTTP endpoints of a version.
    pub(super) fn of_http(version: u8) -> Vec<&'static str> {
        let mut all = vec!["requests", "upstreams", "keyvals", "caches"];
        all.extend(Endpoint::kinds("http", version));
        all
    }

    /// The endpoints of a version for TCP and UDP.
    pub(super) fn of_stream(version: u8) -> Vec<&'static str> {
        let mut all = vec!["upstreams", "keyvals"];
        all.extend(Endpoint::kinds("stream", version));
        all
    }

    /// The paths of the kinds of zones that a block has in a version of the API.
    fn kinds(block: &'static str, version: u8) -> impl Iterator<Item = &'static str> {
        let kinds = Kind::ALL.into_iter();
        let kinds = kinds.filter(move |kind| kind.block() == block && kind.since() <= version);
        kinds.map(Kind::path)
    }

    /// Whether requests with this method have a body.
    pub(super) fn takes_body(method: Method) -> bool {
        matches!(method, Method::Post | Method::Patch)
    }

    /// The methods that the endpoint supports, separated by commas.
    pub(super) fn methods(&self) -> &'static str {
        match self {
            Endpoint::Versions
            | Endpoint::Root
            | Endpoint::Nginx
            | Endpoint::License
            | Endpoint::XdpQueues
            | Endpoint::Certificates
            | Endpoint::Http
            | Endpoint::Stream => "GET, HEAD",
            Endpoint::Processes
            | Endpoint::Slabs(_)
            | Endpoint::Resolvers(None)
            | Endpoint::Caches(None) => "GET, HEAD",
            Endpoint::CacheEntries(_) => "DELETE",
            Endpoint::Caches(Some(_)) | Endpoint::Workers(_) | Endpoint::Resolvers(Some(_)) => {
                "GET, HEAD, DELETE"
            }
            Endpoint::Connections | Endpoint::HttpRequests | Endpoint::Ssl => "GET, HEAD, DELETE",
            Endpoint::Keyvals(_, Some(_)) => "GET, HEAD, POST, PATCH, DELETE",
            Endpoint::Zones(_, None) | Endpoint::Keyvals(_, None) => "GET, HEAD",
            Endpoint::Zones(_, Some(_)) => "GET, HEAD, DELETE",
            Endpoint::Upstreams(_, of) => match of {
                UpstreamSelector::All => "GET, HEAD",
                UpstreamSelector::Group(_) => "GET, HEAD, DELETE",
                UpstreamSelector::Servers(_) => "GET, HEAD, POST",
                UpstreamSelector::Server(..) => "GET, HEAD, PATCH, DELETE",
            },
        }
    }
}

impl UpstreamSelector {
    fn parse(path: &[&[u8]]) -> Result<UpstreamSelector, ApiError> {
        match path {
            [] => Ok(UpstreamSelector::All),
            [name] => Ok(UpstreamSelector::Group(name.to_vec())),
            [name, b"servers"] => Ok(UpstreamSelector::Servers(name.to_vec())),
            [name, b"servers", id] => {
                let id = number(id).ok_or(ApiError::BadServerId)?;
                Ok(UpstreamSelector::Server(name.to_vec(), id))
            }
            _ => Err(ApiError::PathNotFound),
        }
    }
}

fn version_of(text: &[u8]) -> Option<u8> {
    let version = u8::try_from(number(text)?).ok()?;
    (VERSIONS.contains(&version) && text.len() == 1).then_some(version)
}

/// Parses a number that consists of digits only.
fn number(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(text).ok().filter(|_| is_number)?;
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(path: &str) -> Result<(u8, Endpoint), ApiError> {
        Endpoint::parse(path.as_bytes()).map(|asked| (asked.version, asked.endpoint))
    }

    #[test]
    fn paths_lead_to_endpoints() {
        let group = || b"backend".to_vec();
        for (path, version, endpoint) in [
            ("", 9, Endpoint::Versions),
            ("/", 9, Endpoint::Versions),
            ("9", 9, Endpoint::Root),
            ("/4/", 4, Endpoint::Root),
            ("/9/nginx", 9, Endpoint::Nginx),
            ("/9/connections/", 9, Endpoint::Connections),
            ("/8/http/requests", 8, Endpoint::HttpRequests),
            (
                "/9/http/upstreams/",
                9,
                Endpoint::Upstreams("http", UpstreamSelector::All),
            ),
            (
                "/9/http/upstreams/backend",
                9,
                Endpoint::Upstreams("http", UpstreamSelector::Group(group())),
            ),
            (
                "/9/http/upstreams/backend/servers/",
                9,
                Endpoint::Upstreams("http", UpstreamSelector::Servers(group())),
            ),
            (
                "/9/http/upstreams/backend/servers/12",
                9,
                Endpoint::Upstreams("http", UpstreamSelector::Server(group(), 12)),
            ),
        ] {
            assert_eq!(parsed(path), Ok((version, endpoint)), "{path}");
        }
    }

    /// By the history on nginx.org's page about the API.
    #[test]
    fn zones_came_with_versions() {
        for (kind, since) in [
            ("server_zones", 4),
            ("location_zones", 5),
            ("limit_conns", 6),
            ("limit_reqs", 6),
        ] {
            for version in VERSIONS {
                let path = format!("/{version}/http/{kind}/one");
                let known = parsed(&path).is_ok();
                assert_eq!(known, version >= since, "{path}");
                let is_listed = Endpoint::of_http(version).contains(&kind);
                assert_eq!(is_listed, known, "{path}");
            }
        }
    }

    #[test]
    fn paths_that_lead_nowhere() {
        for version in [
            "3",
            "10",
            "09",
            "x",
            "-9",
            "+9",
            "265",
            "99999999999999999999",
        ] {
            let path = format!("/{version}/nginx");
            assert_eq!(parsed(&path), Err(ApiError::UnknownVersion), "{path}");
        }
        for path in ["/9/x", "/9/nginx/x", "/9/http/x", "/9/http/upstreams/a/b"] {
            assert_eq!(parsed(path), Err(ApiError::PathNotFound), "{path}");
        }
        // A number that overflows is invalid.
        for id in ["x", "-1", "+1", "", "18446744073709551616", "1e3", "0x1"] {
            let path = format!("/9/http/upstreams/a/servers/{id}/");
            assert_eq!(parsed(&path), Err(ApiError::BadServerId), "{path}");
        }
    }
}
