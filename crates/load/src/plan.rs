//! The parameters of a run: servers and requests, number of connections, rate and length.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use engine::EngineKind;
use engine::net::Address;
use proto::Span;

use crate::drawn::{RandomNumber, ranges};
use crate::grpc;
use crate::target::Target;
use crate::tls::{Tls, TlsError, TlsFactory};

/// Maximum number of pipelined requests on a connection (`--pipeline`).
pub const PIPELINE_MAX: usize = 1024;

/// Maximum number of concurrent streams on a connection (`--streams`).
pub const STREAMS_MAX: usize = 1024;

/// The name of HTTP/2 in ALPN (RFC 9113, section 3.2).
pub(crate) const ALPN_HTTP2: &[u8] = b"h2";

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The servers; at least one. Connections are assigned to them in turn. If every request has
    /// its own connection, the server is chosen by the total weight of its requests.
    pub servers: Vec<Server>,
    /// The protocol.
    pub protocol: Protocol,
    /// Bodies of HTTP/2 requests: each request gets a random one. Empty if requests have no body.
    pub bodies: Vec<Vec<u8>>,
    /// The order of requests.
    pub order: Order,
    /// Number of concurrent connections; at least one.
    pub connections: usize,
    /// Number of threads; at least one, and at most one per connection.
    pub threads: usize,
    /// When the run ends.
    pub length: Length,
    /// Duration of the warm-up, which is not counted.
    pub warmup: Duration,
    /// Maximum number of pipelined requests on an HTTP/1 connection.
    pub pipeline: usize,
    /// Whether every request opens its own connection.
    pub new_connections: bool,
    /// The time over which the connections are started.
    pub ramp: Duration,
    /// The pause between a response and the connection's next request; only in the closed loop.
    pub think_time: Duration,
    /// Whether each pause is instead a random fraction of `think_time`, uniformly distributed.
    pub random_think_time: bool,
    /// The open loop: requests start on a schedule, whatever the server does. `None` is the closed
    /// loop.
    pub arrivals: Option<Arrivals>,
    /// Time limit for connecting, and for a request from its sending to the end of its response.
    pub timeout: Duration,
    /// The requirements for responses.
    pub expect: Expect,
    /// Source addresses of this machine, used in turn. If empty, the kernel chooses.
    pub sources: Vec<IpAddr>,
    /// The engine of the load tester.
    pub engine: EngineKind,
    /// The network interface on which connections bypass the kernel: only with the engine `Xdp` and
    /// one thread.
    pub interface: Option<String>,
    /// The seed of the random numbers, so that a run can be repeated.
    pub seed: u64,
    /// Whether to record a [`Sample`](crate::Sample) of every request, 48 bytes each.
    pub samples: bool,
    /// Whether to record the total times of every second separately, about 300 KiB each.
    pub intervals: bool,
}

/// The protocol of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1, one request at a time on a connection.
    Http1,
    /// HTTP/2: negotiated by ALPN over TLS, otherwise with prior knowledge.
    Http2 {
        /// Maximum number of concurrent requests on a connection.
        streams: usize,
    },
    /// Unary gRPC calls over HTTP/2.
    Grpc {
        /// Maximum number of concurrent calls on a connection.
        streams: usize,
    },
}

impl Protocol {
    /// The protocol's name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Http1 => "HTTP/1.1",
            Protocol::Http2 { .. } => "HTTP/2",
            Protocol::Grpc { .. } => "gRPC",
        }
    }

    /// Maximum number of concurrent streams on a connection.
    #[must_use]
    pub fn streams(self) -> usize {
        match self {
            Protocol::Http1 => 1,
            Protocol::Http2 { streams } | Protocol::Grpc { streams } => streams,
        }
    }

    /// Whether requests are gRPC calls.
    pub(crate) fn is_grpc(self) -> bool {
        matches!(self, Protocol::Grpc { .. })
    }
}

/// How a connection chooses its next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A random one, by weight.
    Random,
    /// The next one in the list, whatever its weight. Connections start at different positions. If
    /// every request has its own connection, the list is that of the servers.
    InTurn,
}

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// After this time, not including the warm-up. Requests still in progress count as unfinished.
    Time(Duration),
    /// After this number of requests have succeeded or failed.
    Requests(u64),
    /// After this number of requests of every connection have succeeded or failed, including those
    /// of the warm-up.
    Each(u64),
}

/// The schedule of the open loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrivals {
    /// Requests per second, over all threads.
    pub rate: f64,
    /// The spacing of the start times.
    pub spacing: Spacing,
}

/// The spacing of requests' start times in the open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spacing {
    /// All intervals are equal.
    Constant,
    /// A Poisson process: intervals are exponentially distributed, as with independent users.
    Poisson,
}

/// The requirements for responses. The length is always verified against the head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expect {
    /// The expected status. `None` accepts 200 to 399 or, for gRPC, whose own status is meant, 0.
    pub status: Option<u16>,
    /// The SHA-256 digest of every body.
    pub sha256: Option<[u8; 32]>,
    /// Whether any status is accepted, regardless of `status`.
    pub any_status: bool,
    /// Whether every body must be as long as the first one of its thread.
    pub same_length: bool,
    /// The time limit for responses that count as good
    /// ([`Tally::good`](crate::tally::Tally::good)); slower ones still succeed. `None` is no limit.
    pub within: Option<Duration>,
}

impl Expect {
    pub(crate) fn takes(&self, status: u16) -> bool {
        match self.status {
            _ if self.any_status => true,
            Some(expected) => status == expected,
            None => (200..400).contains(&status),
        }
    }
}

/// A server and its requests.
#[derive(Clone, Debug)]
pub struct Server {
    /// The address to connect to.
    pub address: Address,
    /// The TLS settings; `None` without TLS.
    pub tls: Option<Tls>,
    /// The requests; at least one.
    pub requests: Vec<Request>,
}

/// An encoded request.
#[derive(Clone, Debug)]
pub struct Request {
    /// For HTTP/1, head and body; for HTTP/2, the names and values of `fields`.
    pub bytes: Bytes,
    /// For HTTP/2, the ranges of names and values in `bytes`, pseudo-header fields first.
    pub fields: Vec<(Span, Span)>,
    /// Whether the method is HEAD, so that the response has no body.
    pub is_head: bool,
    /// The weight relative to the server's other requests; at least 1.
    pub weight: u32,
    /// Numbers in `bytes` that are drawn at random for each request.
    pub drawn: Vec<RandomNumber>,
}

impl Request {
    /// A fixed HTTP/1 request. `is_head` says whether the method is HEAD.
    #[must_use]
    pub fn http1(bytes: Vec<u8>, is_head: bool) -> Request {
        Request {
            bytes: bytes.into(),
            fields: Vec::new(),
            is_head,
            weight: 1,
            drawn: Vec::new(),
        }
    }
}

/// The template of the requests.
#[derive(Clone, Debug)]
pub struct RequestForm {
    /// The method.
    pub method: String,
    /// Header fields other than `Host`, unless it is overridden.
    pub fields: Vec<(String, String)>,
    /// The body, whose length becomes `Content-Length`. gRPC calls use messages instead.
    pub body: Option<Vec<u8>>,
    /// Whether to send `Connection: close`. Not possible in HTTP/2.
    pub close: bool,
    /// Sets of additional fields. There is one request for each set, all with the same weight. If
    /// empty, there are no additional fields.
    pub sets: Vec<Vec<(String, String)>>,
    /// Whether ranges such as `[001-100]` in the head stand for numbers that are
    /// [drawn](crate::drawn) at random for each request.
    pub varied: bool,
    /// The protocol for which the requests are encoded.
    pub protocol: Protocol,
}

impl RequestForm {
    /// Encodes the requests for `target`: one for each set of fields.
    fn requests(&self, target: &Target, weight: u32) -> Vec<Request> {
        match &self.sets[..] {
            [] => vec![self.request(target, weight, &[])],
            sets => {
                let request = |set: &Vec<_>| self.request(target, weight, set);
                sets.iter().map(request).collect()
            }
        }
    }

    fn request(&self, target: &Target, weight: u32, set: &[(String, String)]) -> Request {
        if self.protocol != Protocol::Http1 {
            return self.request_http2(target, weight, set);
        }
        let fields = || self.fields.iter().chain(set);
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, target.path);
        let mut field = |name: &str, value: &str| {
            head.push_str(&format!("{name}: {value}\r\n"));
        };
        let written = |name: &str| {
            let mut names = fields().map(|(name, _)| name);
            names.any(|known| known.eq_ignore_ascii_case(name))
        };
        if !written("Host") {
            field("Host", &target.authority);
        }
        if !written("User-Agent") {
            field(
                "User-Agent",
                concat!("tidegate/", env!("CARGO_PKG_VERSION")),
            );
        }
        for (name, value) in fields() {
            field(name, value);
        }
        if let Some(body) = &self.body
            && !written("Content-Length")
        {
            field("Content-Length", &body.len().to_string());
        }
        if self.close && !written("Connection") {
            field("Connection", "close");
        }
        head.push_str("\r\n");
        let (head, drawn) = if self.varied {
            ranges(&head)
        } else {
            (head, Vec::new())
        };
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(self.body.as_deref().unwrap_or_default());
        Request {
            weight,
            drawn,
            ..Request::http1(bytes, self.method == "HEAD")
        }
    }

    fn request_http2(&self, target: &Target, weight: u32, set: &[(String, String)]) -> Request {
        let fields = || self.fields.iter().chain(set);
        let find = |wanted: &str| {
            let mut fields = fields();
            let found = fields.find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| &**value)
        };
        let (mut text, mut places, mut drawn) = (String::new(), Vec::new(), Vec::new());
        let mut put = |part: &str| {
            let start = text.len();
            if self.varied {
                let (plain, numbers) = ranges(part);
                text.push_str(&plain);
                drawn.extend(numbers.into_iter().map(|number| number.moved(start)));
            } else {
                text.push_str(part)
            }
            Span::new(start, text.len())
        };
        let mut field = |name: &str, value: &str| places.push((put(name), put(value)));
        field(":method", &self.method);
        field(":scheme", if target.secure { "https" } else { "http" });
        field(":authority", find("Host").unwrap_or(&target.authority));
        field(":path", &target.path);
        if find("User-Agent").is_none() {
            let agent = concat!("tidegate/", env!("CARGO_PKG_VERSION"));
            field("user-agent", agent);
        }
        if self.protocol.is_grpc() {
            for (name, value) in [("te", "trailers"), ("content-type", grpc::MEDIA_TYPE)] {
                if find(name).is_none() {
                    field(name, value);
                }
            }
        }
        for (name, value) in fields().filter(|(name, _)| !name.eq_ignore_ascii_case("Host")) {
            field(&name.to_ascii_lowercase(), value);
        }
        if let Some(body) = &self.body
            && find("Content-Length").is_none()
        {
            field("content-length", &body.len().to_string());
        }
        Request {
            bytes: text.into_bytes().into(),
            fields: places,
            is_head: self.method == "HEAD",
            weight,
            drawn,
        }
    }
}

/// Groups the targets into servers: targets with the same address, and for TLS with the same name,
/// share a server.
///
/// # Errors
/// If the TLS configuration of one of them is invalid.
pub fn servers(
    targets: &[(Target, u32)],
    form: &RequestForm,
    maker: &TlsFactory,
) -> Result<Vec<Server>, TlsError> {
    let mut servers = Vec::new();
    for (target, weight) in targets {
        for request in form.requests(target, (*weight).max(1)) {
            add(&mut servers, target, request, maker)?;
        }
    }
    Ok(servers)
}

/// Adds a request to the target's server, and adds the server if it is missing.
///
/// # Errors
/// If the TLS configuration is invalid.
pub fn add(
    servers: &mut Vec<Server>,
    target: &Target,
    request: Request,
    maker: &TlsFactory,
) -> Result<(), TlsError> {
    let tls = maker.tls(target)?;
    let same = |server: &&mut Server| server.address == target.address && server.tls == tls;
    match servers.iter_mut().find(same) {
        Some(server) => server.requests.push(request),
        None => servers.push(Server {
            address: target.address.clone(),
            tls,
            requests: vec![request],
        }),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::Settings;

    #[test]
    fn requests_are_written_in_full() {
        let target = Target::parse("http://127.0.0.1:81/a?b", &[]).unwrap();
        let mut form = RequestForm {
            method: "GET".to_owned(),
            fields: Vec::new(),
            body: None,
            close: false,
            sets: Vec::new(),
            varied: false,
            protocol: Protocol::Http1,
        };
        let agent = concat!("User-Agent: tidegate/", env!("CARGO_PKG_VERSION"));
        let expected = format!("GET /a?b HTTP/1.1\r\nHost: 127.0.0.1:81\r\n{agent}\r\n\r\n");
        assert_eq!(form.request(&target, 1, &[]).bytes, expected);
        form.method = "POST".to_owned();
        form.fields = vec![
            ("host".to_owned(), "x".to_owned()),
            ("User-Agent".to_owned(), "y".to_owned()),
        ];
        form.body = Some(b"abc".to_vec());
        form.close = true;
        let expected = "POST /a?b HTTP/1.1\r\nhost: x\r\nUser-Agent: y\r\nContent-Length: 3\r\n\
                        Connection: close\r\n\r\nabc";
        assert_eq!(form.request(&target, 1, &[]).bytes, expected);
    }

    #[test]
    fn requests_may_vary() {
        let target = Target::parse("http://127.0.0.1:81/[1-3]?[00-19]", &[]).unwrap();
        let set = |agent: &str| vec![("User-Agent".to_owned(), agent.to_owned())];
        let form = RequestForm {
            method: "POST".to_owned(),
            fields: vec![("Cookie".to_owned(), "id=[000-999]".to_owned())],
            body: Some(b"[0-9]".to_vec()),
            close: false,
            sets: vec![set("x"), set("y")],
            varied: true,
            protocol: Protocol::Http1,
        };
        let requests = form.requests(&target, 1);
        for (request, agent) in requests.iter().zip(["x", "y"]) {
            let expected = format!(
                "POST /1?00 HTTP/1.1\r\nHost: 127.0.0.1:81\r\nCookie: id=000\r\nUser-Agent: {agent}\r\n\
                 Content-Length: 5\r\n\r\n[0-9]"
            );
            assert_eq!(request.bytes, expected);
            assert_eq!(request.drawn.len(), 3);
        }
        assert_eq!(requests.len(), 2);
        let same = RequestForm {
            varied: false,
            sets: Vec::new(),
            ..form
        };
        let request = &same.requests(&target, 1)[0];
        assert!(request.bytes.starts_with(b"POST /[1-3]?[00-19] "));
        assert!(request.drawn.is_empty());
    }

    #[test]
    fn requests_of_http2_are_fields() {
        let target = Target::parse("https://127.0.0.1:81/[1-3]?b", &[]).unwrap();
        let form = RequestForm {
            method: "POST".to_owned(),
            fields: vec![
                ("HOST".to_owned(), "x".to_owned()),
                ("Cookie".to_owned(), "id=[000-999]".to_owned()),
            ],
            body: Some(b"[0-9]".to_vec()),
            close: true,
            sets: vec![vec![("User-Agent".to_owned(), "y".to_owned())]],
            varied: true,
            protocol: Protocol::Http2 { streams: 1 },
        };
        let request = &form.requests(&target, 1)[0];
        let text = |span: &Span| String::from_utf8_lossy(span.of(&request.bytes)).into_owned();
        let fields: Vec<String> = request
            .fields
            .iter()
            .map(|(name, value)| format!("{}: {}", text(name), text(value)))
            .collect();
        let expected = [
            ":method: POST",
            ":scheme: https",
            ":authority: x",
            ":path: /1?b",
            "cookie: id=000",
            "user-agent: y",
            "content-length: 5",
        ];
        assert_eq!(fields, expected);
        assert_eq!(request.drawn.len(), 2);
        let mut bytes = request.bytes.to_vec();
        let mut random = crate::schedule::Random::new(3);
        for number in &request.drawn {
            number.draw(&mut bytes, &mut random);
        }
        let (_, path) = &request.fields[3];
        let (_, cookie) = &request.fields[4];
        let path = String::from_utf8_lossy(path.of(&bytes)).into_owned();
        assert!(["/1?b", "/2?b", "/3?b"].contains(&&*path), "{path}");
        let cookie = cookie.of(&bytes).strip_prefix(b"id=").unwrap();
        assert!(cookie.len() == 3 && cookie.iter().all(u8::is_ascii_digit));
    }

    #[test]
    fn calls_of_grpc_have_the_fields_of_calls() {
        let target = Target::parse("http://127.0.0.1:81/a.B/C", &[]).unwrap();
        let mut form = RequestForm {
            method: "POST".to_owned(),
            fields: vec![("X-Id".to_owned(), "7".to_owned())],
            body: None,
            close: false,
            sets: Vec::new(),
            varied: false,
            protocol: Protocol::Grpc { streams: 1 },
        };
        let fields = |form: &RequestForm| {
            let request = form.request(&target, 1, &[]);
            let text = |span: &Span| String::from_utf8_lossy(span.of(&request.bytes)).into_owned();
            let fields = request.fields.iter();
            let lines = fields.map(|(name, value)| format!("{}: {}", text(name), text(value)));
            lines.collect::<Vec<String>>()
        };
        let agent = concat!("user-agent: tidegate/", env!("CARGO_PKG_VERSION"));
        let expected = [
            ":method: POST",
            ":scheme: http",
            ":authority: 127.0.0.1:81",
            ":path: /a.B/C",
            agent,
            "te: trailers",
            "content-type: application/grpc",
            "x-id: 7",
        ];
        assert_eq!(fields(&form), expected);
        form.fields = vec![("Content-Type".to_owned(), "application/grpc+x".to_owned())];
        let expected = ["te: trailers", "content-type: application/grpc+x"];
        assert_eq!(fields(&form)[5..], expected);
    }

    #[test]
    fn targets_of_one_address_are_one_server() {
        let form = RequestForm {
            method: "HEAD".to_owned(),
            fields: Vec::new(),
            body: None,
            close: false,
            sets: Vec::new(),
            varied: false,
            protocol: Protocol::Http1,
        };
        let target = |url| (Target::parse(url, &[]).unwrap(), 1);
        let targets = ["127.0.0.1/a", "127.0.0.2/b", "127.0.0.1/c"].map(target);
        let servers = servers(&targets, &form, &TlsFactory::new(Settings::default())).unwrap();
        let counts: Vec<usize> = servers.iter().map(|server| server.requests.len()).collect();
        assert_eq!(counts, [2, 1]);
        assert!(servers[0].requests[0].is_head);
    }
}
