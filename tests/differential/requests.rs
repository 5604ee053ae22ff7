//! Random requests: conversations of one or several on a connection, biased towards what clients
//! send, with what they should not send strewn in.

use crate::answers;
use crate::configuration::Kind;
use crate::random::Random;

/// One request and the answers to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// Its bytes, each part sent once the server has read the one before.
    pub(crate) segments: Vec<Vec<u8>>,
    /// The answer has no body, whatever its fields say.
    pub(crate) head_only: bool,
}

/// A request that may stand behind a body.
const BEHIND: &[u8] = b"GET /plain.txt HTTP/1.0\r\n\r\n";

impl Exchange {
    /// Whether another request stands behind its body.
    pub(crate) fn asks_twice(&self) -> bool {
        self.segments
            .last()
            .is_some_and(|last| last.ends_with(BEHIND))
    }

    /// Whether it announces a body in chunks.
    pub(crate) fn is_in_chunks(&self) -> bool {
        let text = String::from_utf8_lossy(&self.segments.concat()).to_ascii_lowercase();
        text.contains("\ntransfer-encoding: chunked")
    }

    /// Whether less of a body comes than its head announces.
    pub(crate) fn breaks_off(&self) -> bool {
        let bytes = self.segments.concat();
        let text = String::from_utf8_lossy(&bytes);
        // Lines may end without a carriage return.
        let ends = ["\r\n\r\n", "\n\n"]
            .iter()
            .filter_map(|end| text.split_once(end));
        let Some((head, body)) = ends.min_by_key(|(head, _)| head.len()) else {
            return false;
        };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            value.trim().parse::<usize>().ok().filter(|_| is_length)
        });
        if self.is_in_chunks() {
            let behind = |line: &str| body.split_once(line).map(|(_, trailers)| trailers);
            let trailers = if body.starts_with("0\r\n") {
                behind("0\r\n")
            } else {
                behind("\r\n0\r\n")
            };
            let ends = |text: &str| text.starts_with("\r\n") || text.contains("\r\n\r\n");
            !trailers.is_some_and(ends)
        } else {
            length.is_some_and(|length| body.len() < length)
        }
    }
}

/// A certificate of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// Of an authority that configurations trust.
    Client,
    /// Of its own.
    Stranger,
}

impl Identity {
    /// The path of certificate and key, without their endings.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Identity::Client => concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls/client"),
            Identity::Stranger => concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls/stranger"),
        }
    }
}

/// What happens on one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conversation {
    /// Where the client connects.
    pub(crate) port: u16,
    /// What it says before all requests: the header of the PROXY protocol.
    pub(crate) preface: Vec<u8>,
    /// The name that is asked for in a handshake of TLS; `None` in the clear.
    pub(crate) tls: Option<String>,
    /// The certificate that the client shows in a handshake; `None` without one.
    pub(crate) identity: Option<Identity>,
    pub(crate) exchanges: Vec<Exchange>,
    /// All requests are sent at once.
    pub(crate) pipelined: bool,
    /// The client says after each request that nothing more comes.
    pub(crate) shuts: bool,
}

/// What requests are made for.
pub(crate) struct Aim<'a> {
    /// The ports to connect to, with what is spoken there; the first is in the clear.
    pub(crate) ports: &'a [(u16, Kind)],
    /// Paths that lead to locations and files.
    pub(crate) targets: &'a [String],
    /// Values of `Host`.
    pub(crate) hosts: &'a [String],
    /// Whether a file may be sent: not where nginx refuses it and ours takes it (see
    /// docs/differences.md), as all that comes later would find that file or not.
    pub(crate) puts: bool,
}

/// Targets that no configuration names.
const ODD_TARGETS: &[&str] = &[
    "//",
    "/./plain.txt",
    "/dir/../plain.txt",
    "/../plain.txt",
    "/dir/..",
    "/dir//page.html",
    "/dir%2Fpage.html",
    "/%2e%2e/plain.txt",
    "/plain.txt%00",
    "/%",
    "/%zz",
    "/plain.txt#part",
    "/plain.txt?a#b",
    "/?",
    "/?a=1&b=2",
    "/plain.txt?",
    "/plain.txt??x",
    "/dir",
    "/noindex",
    "/dir?x=1",
    "/emptyfolder",
    "/closed/one.txt",
    "/plain.txt/",
    "/plain.txt/more",
    "/%C3%BCber.html",
    "/\u{fc}",
    "/a b",
    "/%20",
    "/+",
    "/a%2Bb",
    "/a%26b=c",
    "/;x=1",
    "/.",
    "/..",
    "/...",
    "/a/./b/../b/page.html",
    "/%64ir/",
    "/dir/%2e/a.txt",
    "/PLAIN.TXT",
    "*",
    "plain.txt",
    "",
    "/?answer=s404",
    "/a?answer=chunked&x=1",
    "/%0a",
    "/%0d%0aX-Injected:%201",
    "/%7Euser",
    "/page.html?page=12&a=%20+",
];

const METHODS: &[&str] = &[
    "POST",
    "POST",
    "POST",
    "PUT",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "PROPFIND",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "TRACE",
    "CONNECT",
    "BREW",
    "get",
    "G-E_T",
    "PROPPATCH",
];

const FIELDS: &[&str] = &[
    "If-Modified-Since: Thu, 04 Mar 2021 05:06:07 GMT",
    "If-Modified-Since: Thu, 04 Mar 2021 05:06:06 GMT",
    "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT",
    "If-Modified-Since: nonsense",
    "If-Modified-Since: Thursday, 04-Mar-21 05:06:07 GMT",
    "If-Unmodified-Since: Thu, 04 Mar 2021 05:06:07 GMT",
    "If-Unmodified-Since: Wed, 03 Mar 2021 05:06:07 GMT",
    "If-None-Match: *",
    "If-None-Match: \"60406aff-32\"",
    "If-None-Match: W/\"60406aff-32\", \"other\"",
    "If-None-Match: \"abc\"",
    "If-Match: *",
    "If-Match: \"abc\"",
    "If-Match: \"60406aff-32\"",
    "If-Range: \"60406aff-32\"",
    "If-Range: Thu, 04 Mar 2021 05:06:07 GMT",
    "If-Range: \"other\"",
    "Range: bytes=0-4",
    "Range: bytes=5-",
    "Range: bytes=-5",
    "Range: bytes=0-0,2-3",
    "Range: bytes=0-0,-1,3-7",
    "Range: bytes=1000000-",
    "Range: bytes=5-2",
    "Range: bytes=",
    "Range: lines=1-2",
    "Range: bytes=0-0, 9-9,bad",
    "Range: bytes = 0-4",
    "Range: bytes=-0",
    "Range: bytes=0-9999999999",
    "Accept-Encoding: gzip",
    "Accept-Encoding: gzip, deflate, br",
    "Accept-Encoding: gzip;q=0",
    "Accept-Encoding: identity",
    "Accept-Encoding: *",
    "Accept-Encoding: gzip;q=0.5, br;q=1.0, zstd",
    "Cookie: a=1",
    "Cookie: session=xyz; a=2",
    "Cookie: a=1; a=2;b",
    "Cookie: =",
    "Authorization: Basic YWxpY2U6c2VjcmV0",
    "Authorization: Basic YWxpY2U6d3Jvbmc=",
    "Authorization: Basic !",
    "Authorization: Bearer abc",
    "X-Forwarded-For: 192.0.2.1",
    "X-Forwarded-For: 192.0.2.1, 10.0.0.1",
    "X-Forwarded-For: nonsense",
    "X-Real-IP: 192.0.2.7",
    "X-Test: one",
    "X-Test: a",
    "X-Test: b",
    "x-lower: x",
    "X_Under: score",
    "X-Under: line",
    "User-Agent: Mozilla/5.0 (compatible; MSIE 6.0)",
    "User-Agent: curl/8.0",
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64) Firefox/120.0",
    "Referer: http://one.example/page",
    "Referer: http://evil.example/",
    "Referer: nonsense",
    "Accept: text/html",
    "Accept-Language: de,en;q=0.5",
    "Connection: close",
    "Connection: keep-alive",
    "Connection: Upgrade",
    "Connection: close, X-Test",
    "Upgrade: websocket",
    "Keep-Alive: 100",
    "TE: trailers",
    "TE: gzip",
    "Destination: /upload/copied.txt",
    "Destination: http://127.0.0.1/upload/moved.txt",
    "Destination: /upload/new/",
    "Destination: nonsense",
    "Depth: 0",
    "Depth: 1",
    "Depth: infinity",
    "Overwrite: F",
    "Overwrite: T",
    "Date: Thu, 04 Mar 2021 05:06:07 GMT",
    "Via: 1.1 other",
    "Content-Type: text/plain",
    "Content-Type: application/x-www-form-urlencoded",
    "Content-Encoding: gzip",
    "Cache-Control: no-cache",
    "Pragma: no-cache",
    "Proxy-Connection: keep-alive",
    "Proxy: evil",
    "X-Empty:",
    "X-Spaces:    a   b  ",
    "Early-Data: 1",
    "Max-Forwards: 0",
    "X-Accel-Redirect: /plain.txt",
    "Front-End-Https: on",
    "Host2: x",
    "X-Bytes: \u{e9}\u{4e2d}",
    "Upgrade-Insecure-Requests: 1",
];

const BAD_FIELDS: &[&str] = &[
    "No colon",
    ": no name",
    "Bad Name: x",
    "Bad\tTab: x",
    "X-Nul: a\0b",
    " folded: x",
    "X-Bell: a\u{7}b",
    "Content-Length: 5, 5",
    "Content-Length: -1",
    "Content-Length: 18446744073709551617",
    "Transfer-Encoding: gzip",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: chunked, gzip",
    "Host: second.example",
    "Content-Length: +3",
    "Content-Length: 0x3",
    "(paren): x",
    "X-CR: a\rb",
    "Transfer-Encoding : chunked",
    "If-Modified-Since: a\r\nIf-Modified-Since: b",
    "Authorization: x\r\nAuthorization: y",
    "Content-Type: a\r\nContent-Type: b",
    "Range: bytes=0-1\r\nRange: bytes=2-3",
    "User-Agent: a\r\nUser-Agent: b",
    "Content-Length: 3\r\nContent-Length: 3",
];

pub(crate) const ODD_HOSTS: &[&str] = &[
    "",
    "one.example:80",
    "one.example.",
    "ONE.EXAMPLE",
    "..",
    "a..b",
    "[::1]",
    "[::1]:80",
    "a b",
    "one.example:port",
    "a/b",
    "-",
    "\u{fc}.example",
    "127.0.0.1:99999",
    "one.example,two.example",
    "user@one.example",
    "%6fne.example",
    "a:b:c",
    "[::1",
    "1.2.3.4:",
    ":80",
];

/// A list of conversations with about so many requests.
pub(crate) fn random(random: &mut Random, aim: &Aim, count: usize) -> Vec<Conversation> {
    let mut conversations = Vec::new();
    let mut made = 0;
    while made < count {
        let maker = Maker {
            aim,
            random: random.fork(),
        };
        let batch = maker.batch();
        made += batch
            .iter()
            .map(|conversation| conversation.exchanges.len())
            .sum::<usize>();
        conversations.extend(batch);
    }
    conversations
}

struct Maker<'a> {
    aim: &'a Aim<'a>,
    random: Random,
}

impl Maker<'_> {
    /// One request, as often and on as many connections as it is worth.
    fn batch(mut self) -> Vec<Conversation> {
        let ports = self.aim.ports;
        let (port, kind) = ports[if self.random.chance(70) {
            0
        } else {
            self.random.below(ports.len())
        }];
        let tls = (kind == Kind::Tls).then(|| self.name());
        let preface = if kind == Kind::Proxied {
            self.preface()
        } else {
            Vec::new()
        };
        if self.random.chance(3) {
            let mut cut = self.cut(port, preface, tls);
            cut.identity = self.identity(kind);
            return vec![cut];
        }
        let of = |exchanges: Vec<Exchange>, pipelined: bool| Conversation {
            port,
            preface: preface.clone(),
            tls: tls.clone(),
            identity: None,
            exchanges,
            pipelined,
            shuts: false,
        };
        let exchange = self.exchange();
        let mut batch = match self.random.below(12) {
            // Often enough for every shortcut, on one connection.
            0 | 1 => vec![of(vec![exchange; 5], false)],
            2 | 3 => vec![of(vec![exchange], false); 5],
            4 => {
                let exchanges = (0..4).map(|_| self.exchange()).collect();
                vec![of(exchanges, false)]
            }
            5 => {
                let mut exchanges: Vec<Exchange> = (0..3).map(|_| self.exchange()).collect();
                exchanges.insert(1, exchange);
                let at_once = may_go_at_once(&exchanges);
                vec![of(exchanges, at_once)]
            }
            6 => {
                let exchanges = vec![exchange; 3];
                let at_once = may_go_at_once(&exchanges);
                vec![of(exchanges, at_once)]
            }
            7 => vec![of(vec![self.in_pieces(exchange)], false)],
            8 => vec![of(vec![exchange.clone(), self.exchange(), exchange], false)],
            _ => vec![of(vec![exchange], false); 2],
        };
        // Drawn last, so that the requests of a seed are those of the same seed in the clear.
        let identity = self.identity(kind);
        for conversation in &mut batch {
            conversation.identity = identity;
        }
        batch
    }

    /// Who the client says it is in a handshake.
    fn identity(&mut self, kind: Kind) -> Option<Identity> {
        match self.random.below(5) {
            0 | 1 if kind == Kind::Tls => Some(Identity::Client),
            2 if kind == Kind::Tls => Some(Identity::Stranger),
            _ => None,
        }
    }

    /// A request that ends before it is whole.
    fn cut(&mut self, port: u16, preface: Vec<u8>, tls: Option<String>) -> Conversation {
        let mut bytes = self.exchange().segments.concat();
        bytes.truncate(self.random.below(bytes.len()).max(1));
        let exchange = Exchange {
            segments: vec![bytes],
            head_only: false,
        };
        Conversation {
            port,
            preface,
            tls,
            identity: None,
            exchanges: vec![exchange],
            pipelined: false,
            shuts: true,
        }
    }

    /// The name that a handshake asks for.
    fn name(&mut self) -> String {
        let hosts = self.aim.hosts;
        let host = match hosts.len() {
            0 => "",
            count => hosts[self.random.below(count)].as_str(),
        };
        String::from(host.split(':').next().unwrap_or(host))
    }

    fn preface(&mut self) -> Vec<u8> {
        let texts: &[&str] = &[
            "PROXY TCP4 192.0.2.1 192.0.2.2 1234 80\r\n",
            "PROXY TCP4 10.1.2.3 127.0.0.1 5000 8080\r\n",
            "PROXY UNKNOWN\r\n",
            "PROXY TCP6 2001:db8::1 2001:db8::2 1234 443\r\n",
            "PROXY TCP4 nonsense\r\n",
        ];
        self.random.pick(texts).as_bytes().to_vec()
    }

    fn in_pieces(&mut self, mut exchange: Exchange) -> Exchange {
        let whole = exchange.segments.concat();
        let mut at = 0;
        exchange.segments.clear();
        while at < whole.len() && exchange.segments.len() < 4 {
            let end = (at + 1 + self.random.below(60)).min(whole.len());
            exchange.segments.push(whole[at..end].to_vec());
            at = end;
        }
        if at < whole.len() {
            exchange.segments.push(whole[at..].to_vec());
        }
        exchange
    }

    fn exchange(&mut self) -> Exchange {
        let method = match self.random.below(10) {
            0..=6 => "GET",
            7 => "HEAD",
            _ => match METHODS[self.random.below(METHODS.len())] {
                "PUT" if !self.aim.puts => "POST",
                method => method,
            },
        };
        let target = self.target();
        if self.random.chance(1) {
            let line = format!("GET {target}\r\n");
            return Exchange {
                segments: vec![line.into_bytes()],
                head_only: false,
            };
        }
        let version = match self.random.below(40) {
            0..=5 => "HTTP/1.0",
            6 => self.random.pick(&[
                "HTTP/1.2",
                "HTTP/2.0",
                "HTTP/1.",
                "HTTP/0.9",
                "http/1.1",
                "HTTP/1.10",
                "FTP/1.1",
                "HTTP/1.1 ",
            ]),
            _ => "HTTP/1.1",
        };
        let mut head = format!("{method} {target} {version}\r\n");
        self.host(&mut head, version);
        self.fields(&mut head);
        let (fields, body) = self.body(method);
        head.push_str(&fields);
        let expects = head.contains("Expect:");
        head.push_str("\r\n");
        if self.random.chance(1) {
            head = head.replace("\r\n", "\n");
        }
        let mut segments = vec![head.into_bytes()];
        if expects {
            segments.push(body);
        } else {
            segments[0].extend_from_slice(&body);
        }
        Exchange {
            segments,
            head_only: method == "HEAD",
        }
    }

    fn target(&mut self) -> String {
        let mut target = match self.random.below(20) {
            0 | 1 => String::from(ODD_TARGETS[self.random.below(ODD_TARGETS.len())]),
            _ if self.aim.targets.is_empty() => String::from("/"),
            _ => self.aim.targets[self.random.below(self.aim.targets.len())].clone(),
        };
        if self.random.chance(25) && !target.contains('?') {
            let queries: &[&str] = &[
                "?",
                "?a=1",
                "?a=1&b=2",
                "?page=12",
                "?a=%2F%20+&a=2",
                "?answer=s404",
                "?answer=chunked,f3,b300",
                "?x",
                "?a=<b>\"'",
                "?=&&=",
            ];
            target.push_str(self.random.pick(queries));
        }
        if self.random.chance(2) {
            let before: &[&str] = &[
                "http://one.example",
                "http://127.0.0.1",
                "https://two.example:8443",
                "http://",
                "http://user@host",
                "ftp://one.example",
            ];
            target.insert_str(0, self.random.pick(before));
        }
        target.replace(' ', "%20")
    }

    fn host(&mut self, head: &mut String, version: &str) {
        let host = match self.random.below(30) {
            0 => ODD_HOSTS[self.random.below(ODD_HOSTS.len())],
            1 => return,
            2..=6 if version == "HTTP/1.0" => return,
            _ if self.aim.hosts.is_empty() => "127.0.0.1",
            _ => &self.aim.hosts[self.random.below(self.aim.hosts.len())],
        };
        head.push_str(&format!("Host: {host}\r\n"));
    }

    fn fields(&mut self, head: &mut String) {
        for _ in 0..[0, 0, 0, 1, 1, 2, 3, 5][self.random.below(8)] {
            head.push_str(FIELDS[self.random.below(FIELDS.len())]);
            head.push_str("\r\n");
        }
        if self.random.chance(40) {
            head.push_str(&format!(
                "X-Answer: {}\r\n",
                answers::random(&mut self.random)
            ));
        }
        if self.random.chance(2) {
            head.push_str(BAD_FIELDS[self.random.below(BAD_FIELDS.len())]);
            head.push_str("\r\n");
        }
        if self.random.chance(1) {
            let length = [200, 1_000, 2_000, 9_000, 40_000][self.random.below(5)];
            head.push_str(&format!("X-Long: {}\r\n", "l".repeat(length)));
        }
    }

    /// The fields of a body, and the body.
    fn body(&mut self, method: &str) -> (String, Vec<u8>) {
        let likely = if matches!(method, "POST" | "PUT" | "PATCH" | "PROPFIND" | "LOCK") {
            85
        } else {
            4
        };
        if !self.random.chance(likely) {
            return (String::new(), Vec::new());
        }
        let length = [0, 1, 10, 10, 300, 2_000, 9_000, 40_000][self.random.below(8)];
        let body: Vec<u8> = b"a=1&body=0123456789\n"
            .iter()
            .copied()
            .cycle()
            .take(length)
            .collect();
        let expect = if self.random.chance(8) {
            self.random.pick(&[
                "Expect: 100-continue\r\n",
                "Expect: 100-Continue\r\n",
                "Expect: other\r\n",
            ])
        } else {
            ""
        };
        match self.random.below(20) {
            0..=9 => (format!("Content-Length: {length}\r\n{expect}"), body),
            10 => (
                format!("Content-Length: {length}\r\n{expect}"),
                [body.as_slice(), BEHIND].concat(),
            ),
            11 => (
                format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
                chunked(&body, "", ""),
            ),
            12 => (
                String::from("Transfer-Encoding: chunked\r\n"),
                chunked(&body, ";name=value", ""),
            ),
            13 => (
                String::from("Transfer-Encoding: chunked\r\n"),
                chunked(&body, "", "X-Trailer: one\r\n"),
            ),
            14 => (
                String::from("Transfer-Encoding: chunked\r\n"),
                b"5\r\nabcdeX\r\n0\r\n\r\n".to_vec(),
            ),
            15 => (
                String::from("Transfer-Encoding: chunked\r\n"),
                b"zz\r\nabc\r\n0\r\n\r\n".to_vec(),
            ),
            _ => (
                format!("Transfer-Encoding: chunked\r\n{expect}"),
                chunked(&body, "", ""),
            ),
        }
    }
}

/// Whether requests may be sent without waiting for answers. nginx closes after a 412 (see the
/// table of differences); what it did not answer would change what the upstreams answer to those
/// that follow.
fn may_go_at_once(exchanges: &[Exchange]) -> bool {
    let fails = |exchange: &Exchange| {
        let bytes = exchange.segments.concat();
        ["\nIf-Match:", "\nIf-Unmodified-Since:"]
            .iter()
            .any(|name| crate::upstream::find(&bytes, name.as_bytes()).is_some())
    };
    !exchanges.iter().rev().skip(1).any(fails)
}

/// The body in chunks.
fn chunked(body: &[u8], extension: &str, trailers: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in body.chunks(1_500) {
        bytes.extend_from_slice(format!("{:x}{extension}\r\n", part.len()).as_bytes());
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
    bytes
}
