//! The options shared by our own modes: requests, connections and expectations.
//!
//! Each mode has its own options for the number of connections, the rate and the duration, and for
//! its output.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use engine::EngineKind;
use load::grpc;
use load::plan::{
    Arrivals, Expect, Length, Order, PIPELINE_MAX, Protocol, RequestForm, STREAMS_MAX, Spacing,
    servers,
};
use load::tls::{Settings, TlsFactory, Version};
use load::{Plan, Target, machine};

/// What is asked for.
#[derive(Args)]
pub(super) struct Urls {
    /// What to ask for: `http[s]://HOST[:PORT]/PATH` or `http[s]://unix:/SOCKET:/PATH`; several are
    /// asked for in turn
    #[arg(value_name = "URL", required_unless_present = "url_file")]
    urls: Vec<String>,
    /// A file of URLs, one a line, each with a weight behind it if it has another than 1
    #[arg(long, value_name = "FILE")]
    url_file: Option<PathBuf>,
}

/// Everything else that the modes have in common.
#[derive(Args)]
#[command(group(ArgGroup::new("over_http2").args(["http2", "grpc"]).multiple(true)))]
pub(super) struct Common {
    /// Threads that drive the connections
    #[arg(short = 't', long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// How long load is sent before anything counts
    #[arg(long, value_name = "TIME", value_parser = time)]
    warmup: Option<Duration>,
    /// How the requests of the open loop are spaced
    #[arg(long, value_enum, default_value = "constant", requires = "rate")]
    arrivals: SpacingName,
    /// Speak HTTP/2: over TLS as ALPN agrees, in the clear without asking
    #[arg(long, conflicts_with = "pipeline")]
    http2: bool,
    /// Send unary calls of gRPC, by HTTP/2: the URL's path is /PACKAGE.SERVICE/METHOD, the body one
    /// message
    #[arg(long, conflicts_with_all = ["pipeline", "method"])]
    grpc: bool,
    /// A file of messages for --grpc, one a line in Base64; each call has one, drawn at random
    #[arg(long, value_name = "FILE", requires = "grpc", conflicts_with = "body")]
    message_file: Option<PathBuf>,
    /// Requests of HTTP/2 that a connection has under way at most
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "over_http2", conflicts_with = "new_connections", value_parser = clap::value_parser!(u32).range(1..=STREAMS_MAX as i64))]
    streams: u32,
    /// Requests of HTTP/1 that a connection has under way at most
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=PIPELINE_MAX as i64))]
    pipeline: u32,
    /// A connection for each request
    #[arg(long, conflicts_with = "pipeline")]
    new_connections: bool,
    /// Over which time the connections start
    #[arg(long, value_name = "TIME", value_parser = time)]
    ramp: Option<Duration>,
    /// How long a connection waits between a response and its next request
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["rate", "pipeline"])]
    think_time: Option<Duration>,
    /// The requests' method; POST where there is a body
    #[arg(short = 'X', long, value_name = "METHOD")]
    method: Option<String>,
    /// A header field, any number of times
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = field)]
    fields: Vec<(String, String)>,
    /// A file of header fields, one a line; of several each request has one, drawn at random
    #[arg(long = "header-file", value_name = "FILE")]
    field_files: Vec<PathBuf>,
    /// Ranges in URLs and header fields, such as [001-100], stand for numbers drawn anew for each
    /// request
    #[arg(long)]
    varied: bool,
    /// The requests' body, or @FILE
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,
    /// The only status that is right; 200 to 399 are where this is not said. With --grpc the status
    /// of gRPC, 0 where this is not said
    #[arg(long, value_name = "STATUS", value_parser = clap::value_parser!(u16).range(..=999))]
    expect_status: Option<u16>,
    /// The SHA-256 that every body must have
    #[arg(long, value_name = "HEX", value_parser = sha256)]
    expect_sha256: Option<[u8; 32]>,
    /// How long connecting may take, and a request until its response is complete
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "30s")]
    timeout: Duration,
    /// An address of this machine to connect from, or a range such as 127.0.0.2-127.0.0.9; any
    /// number of times
    #[arg(long = "source", value_name = "ADDRESS", value_parser = sources)]
    sources: Vec<Sources>,
    #[command(flatten)]
    tls: TlsOptions,
    /// A host that is neither this machine nor in a private network, and may get load nevertheless
    #[arg(long, value_name = "HOST")]
    allow_remote: Vec<String>,
    /// The kernel interface of the clients
    #[arg(long, value_enum, default_value = "epoll")]
    engine: EngineName,
    /// Have connections pass the kernel by, on one thread and by this network interface, which
    /// takes root: a client that costs less than the kernel's leaves more to see of the server
    #[arg(long, value_name = "INTERFACE", conflicts_with_all = ["engine", "threads"])]
    xdp: Option<String>,
    /// Where random numbers start
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

/// What can be said of `https://`.
#[derive(Args)]
pub(super) struct TlsOptions {
    /// Take any certificate, and check no signature made with it
    #[arg(long)]
    insecure: bool,
    /// Certificate authorities to believe in the place of the system's, in PEM
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// A certificate of our own, and what it was signed with, in PEM
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Its key, if it is not in the same file
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// The one version of TLS
    #[arg(long, value_enum, value_name = "VERSION")]
    tls_version: Option<VersionName>,
    /// Cipher suites, best first, by OpenSSL's names
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    ciphers: Vec<String>,
    /// Groups of the key exchange, best first, such as X25519 or P-256
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    curves: Vec<String>,
    /// The name to ask for and to expect in certificates, in the place of the URL's host
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
    /// Go on with earlier sessions; without it every handshake is a full one
    #[arg(long)]
    resume: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum VersionName {
    #[value(name = "1.2")]
    Tls12,
    #[value(name = "1.3")]
    Tls13,
}

impl TlsOptions {
    pub(super) fn settings(&self) -> Settings {
        Settings {
            insecure: self.insecure,
            authorities: self.cacert.clone(),
            certificate: self.cert.clone(),
            key: self.key.clone(),
            version: self.tls_version.map(|version| match version {
                VersionName::Tls12 => Version::Tls12,
                VersionName::Tls13 => Version::Tls13,
            }),
            ciphers: self.ciphers.clone(),
            groups: self.curves.clone(),
            name: self.sni.clone(),
            without_name: false,
            resume: self.resume,
            http2: false,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum SpacingName {
    Constant,
    Poisson,
}

#[derive(Clone, Copy, ValueEnum)]
pub(super) enum EngineName {
    Epoll,
    #[value(name = "io_uring")]
    Uring,
}

#[derive(Clone)]
struct Sources(Vec<IpAddr>);

impl Urls {
    /// The URLs with their weights; those of the file are last.
    pub(super) fn weighted(&self) -> Result<Vec<(String, u32)>, String> {
        let mut urls: Vec<(String, u32)> = self.urls.iter().map(|url| (url.clone(), 1)).collect();
        if let Some(path) = &self.url_file {
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            let found =
                weighted_urls(&text).map_err(|fault| format!("{}: {fault}", path.display()))?;
            urls.extend(found);
        }
        Ok(urls)
    }
}

/// The parameters of a plan that each mode determines itself.
pub(super) struct Amount {
    pub(super) connections: u32,
    /// Requests per second; `None` for the closed loop.
    pub(super) rate: Option<f64>,
    pub(super) length: Length,
}

impl Common {
    /// Builds the plan for `urls`, each with its weight.
    pub(super) fn plan(&self, urls: &[(String, u32)], amount: &Amount) -> Result<Plan, String> {
        let mut targets = Vec::new();
        for (url, weight) in urls {
            let target =
                Target::parse(url, &self.allow_remote).map_err(|error| error.to_string())?;
            targets.push((target, *weight));
        }
        if targets.is_empty() {
            return Err("there is no URL".to_owned());
        }
        let sources: Vec<IpAddr> = self
            .sources
            .iter()
            .flat_map(|range| range.0.clone())
            .collect();
        machine::check_sources(&sources)?;
        let spacing = match self.arrivals {
            SpacingName::Constant => Spacing::Constant,
            SpacingName::Poisson => Spacing::Poisson,
        };
        let protocol = self.protocol();
        self.check_status()?;
        if let Protocol::Grpc { .. } = protocol
            && let Some((target, _)) = targets.iter().find(|(of, _)| !grpc::is_method(&of.path))
        {
            return Err(format!(
                "{}: the path of a call is /PACKAGE.SERVICE/METHOD",
                target.url
            ));
        }
        let maker = TlsFactory::new(Settings {
            http2: protocol != Protocol::Http1,
            ..self.tls.settings()
        });
        let mut form = self.form(protocol)?;
        let bodies = self.bodies(&mut form)?;
        let servers = servers(&targets, &form, &maker);
        Ok(Plan {
            servers: servers.map_err(|error| error.to_string())?,
            protocol,
            bodies,
            order: Order::Random,
            connections: amount.connections as usize,
            threads: match self.xdp {
                Some(_) => 1,
                None => self.threads.min(amount.connections) as usize,
            },
            length: amount.length,
            warmup: self.warmup.unwrap_or_default(),
            pipeline: self.pipeline as usize,
            new_connections: self.new_connections,
            ramp: self.ramp.unwrap_or_default(),
            think_time: self.think_time.unwrap_or_default(),
            random_think_time: false,
            arrivals: amount.rate.map(|rate| Arrivals { rate, spacing }),
            timeout: self.timeout,
            expect: Expect {
                status: self.expect_status,
                sha256: self.expect_sha256,
                ..Expect::default()
            },
            sources,
            engine: self.engine()?,
            interface: self.xdp.clone(),
            seed: self.seed,
            samples: false,
            intervals: false,
        })
    }

    /// The seed of the random numbers.
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    fn protocol(&self) -> Protocol {
        let streams = self.streams as usize;
        match (self.grpc, self.http2) {
            (true, _) => Protocol::Grpc { streams },
            (_, true) => Protocol::Http2 { streams },
            _ => Protocol::Http1,
        }
    }

    /// Fails if the expected status is not a valid status.
    fn check_status(&self) -> Result<(), String> {
        let (range, what) = if self.grpc {
            (0..=16, "a status of gRPC: 0 to 16")
        } else {
            (200..=999, "a status: 200 to 999")
        };
        match self.expect_status {
            Some(status) if !range.contains(&status) => {
                Err(format!("--expect-status {status} is not {what}"))
            }
            _ => Ok(()),
        }
    }

    /// The bodies of HTTP/2 requests: that of the form, or the framed messages of gRPC calls, for
    /// which the form's body is taken.
    fn bodies(&self, form: &mut RequestForm) -> Result<Vec<Vec<u8>>, String> {
        let messages = match (form.protocol, &self.message_file) {
            (Protocol::Grpc { .. }, Some(path)) => {
                let of_file = |fault| format!("{}: {fault}", path.display());
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|error| of_file(error.to_string()))?;
                grpc::messages(&text).map_err(of_file)?
            }
            (Protocol::Grpc { .. }, None) => vec![form.body.take().unwrap_or_default()],
            (Protocol::Http2 { .. }, _) => return Ok(form.body.iter().cloned().collect()),
            (Protocol::Http1, _) => return Ok(Vec::new()),
        };
        let framed = messages.iter().map(|message| grpc::framed(message));
        let framed: Option<Vec<Vec<u8>>> = framed.collect();
        framed.ok_or_else(|| "a message of gRPC has less than 4 GiB".to_owned())
    }

    /// The template of the requests.
    fn form(&self, protocol: Protocol) -> Result<RequestForm, String> {
        let body = self.body.as_deref().map(body).transpose()?;
        let method = match (&self.method, &body) {
            (Some(method), _) => method.clone(),
            (None, Some(_)) => "POST".to_owned(),
            (None, None) if self.grpc => "POST".to_owned(),
            (None, None) => "GET".to_owned(),
        };
        if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("{method:?} is no method"));
        }
        let sets = self.field_files.iter().map(fields_of);
        let form = RequestForm {
            method,
            fields: self.fields.clone(),
            body,
            close: self.new_connections,
            sets: sets.collect::<Result<_, _>>()?,
            varied: self.varied,
            protocol,
        };
        if protocol != Protocol::Http1 {
            let mut fields = form.fields.iter().chain(form.sets.iter().flatten());
            if let Some((name, _)) = fields.find(|(name, value)| is_of_http1(name, value)) {
                return Err(format!("HTTP/2 has no header field {name}"));
            }
        }
        Ok(form)
    }

    fn engine(&self) -> Result<EngineKind, String> {
        if self.xdp.is_some() {
            return Ok(EngineKind::Xdp);
        }
        let wanted = match self.engine {
            EngineName::Epoll => EngineKind::Epoll,
            EngineName::Uring => EngineKind::Uring,
        };
        let (engine, reason) = engine::choose(Some(wanted));
        if engine == wanted {
            Ok(engine)
        } else {
            Err(reason)
        }
    }
}

/// The URLs as shown in a report. If there are more than three, only the first one and the number
/// of the others.
pub(super) fn shown(urls: &[(String, u32)]) -> Vec<String> {
    match urls {
        [first, _, _, _, ..] => vec![first.0.clone(), format!("and {} more", urls.len() - 1)],
        _ => urls.iter().map(|(url, _)| url.clone()).collect(),
    }
}

/// Parses URLs with optional weights, one per line. Empty lines and lines that start with `#` are
/// skipped.
fn weighted_urls(text: &str) -> Result<Vec<(String, u32)>, String> {
    let mut urls = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace();
        let Some(url) = words.next().filter(|word| !word.starts_with('#')) else {
            continue;
        };
        let weight = match (words.next(), words.next()) {
            (None, _) => Some(1),
            (Some(weight), None) => weight.parse().ok().filter(|weight| *weight > 0),
            (Some(_), Some(_)) => None,
        };
        let weight =
            weight.ok_or_else(|| format!("line {}: URL and weight expected", index + 1))?;
        urls.push((url.to_owned(), weight));
    }
    Ok(urls)
}

/// Whether a field is not allowed in HTTP/2, for instance because it is connection-specific (RFC
/// 9113, section 8.2.2).
fn is_of_http1(name: &str, value: &str) -> bool {
    let names = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "upgrade",
    ];
    let is = |known: &&str| name.eq_ignore_ascii_case(known);
    names.iter().any(is)
        || (is(&"te") && !value.eq_ignore_ascii_case("trailers"))
        || name.starts_with(':')
}

/// Parses the header fields of a file, one per line. Empty lines are skipped.
fn fields_of(path: &PathBuf) -> Result<Vec<(String, String)>, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let lines = text.lines().enumerate();
    let written = lines.filter(|(_, line)| !line.trim().is_empty());
    let read = |(index, line)| {
        field(line).map_err(|fault| format!("{}: line {}: {fault}", path.display(), index + 1))
    };
    written.map(read).collect()
}

fn body(text: &str) -> Result<Vec<u8>, String> {
    match text.strip_prefix('@') {
        Some(path) => std::fs::read(path).map_err(|error| format!("{path}: {error}")),
        None => Ok(text.as_bytes().to_vec()),
    }
}

/// Parses a time with the unit `ms`, `s`, `m` or `h`; without a unit, in seconds.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let units = [
        ("ms", 0.001),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
        ("", 1.0),
    ];
    let fault = || "a time such as 10s, 500ms or 2m is expected".to_owned();
    let (number, unit) = units
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))
        .ok_or_else(fault)?;
    let seconds = number.parse::<f64>().map_err(|_| fault())? * unit;
    if seconds > 0.0 && seconds <= 1e7 {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(fault())
    }
}

pub(super) fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok();
    rate.filter(|rate| (0.001..=1e8).contains(rate))
        .ok_or_else(|| "a number of requests a second is expected".to_owned())
}

fn field(text: &str) -> Result<(String, String), String> {
    let fault = || "NAME: VALUE is expected".to_owned();
    let (name, value) = text.split_once(':').ok_or_else(fault)?;
    let token = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
    if !token || value.contains(['\r', '\n', '\0']) {
        return Err(fault());
    }
    Ok((name.to_owned(), value.trim().to_owned()))
}

fn sha256(text: &str) -> Result<[u8; 32], String> {
    let fault = || "64 hexadecimal digits are expected".to_owned();
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(fault());
    }
    let mut digest = [0; 32];
    for (byte, digits) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digits = std::str::from_utf8(digits).map_err(|_| fault())?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| fault())?;
    }
    Ok(digest)
}

/// Parses an address or a range of IPv4 addresses.
fn sources(text: &str) -> Result<Sources, String> {
    /// Maximum number of addresses in a range.
    const SOURCES_MAX: u32 = 65_536;
    let fault = || "an address, or a range such as 127.0.0.2-127.0.0.9, is expected".to_owned();
    let parse = |text: &str| text.parse::<IpAddr>().map_err(|_| fault());
    let Some((first, last)) = text.split_once('-') else {
        return Ok(Sources(vec![parse(text)?]));
    };
    match (parse(first)?, parse(last)?) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            let (first, last) = (u32::from(first), u32::from(last));
            if last < first || last - first >= SOURCES_MAX {
                return Err(fault());
            }
            let addresses = (first..=last).map(|number| IpAddr::V4(number.into()));
            Ok(Sources(addresses.collect()))
        }
        _ => Err(fault()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let seconds = |text| time(text).map(|time| time.as_secs_f64());
        for (text, expected) in [
            ("10s", 10.0),
            ("500ms", 0.5),
            ("2m", 120.0),
            ("1.5", 1.5),
            ("1h", 3600.0),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for text in ["", "s", "-1s", "0", "x", "1d", "nan", "inf"] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn files_of_urls() {
        let urls = weighted_urls("# ours\nhttp://a/\n\n  http://b/ 10\n").unwrap();
        assert_eq!(
            urls,
            [("http://a/".to_owned(), 1), ("http://b/".to_owned(), 10)]
        );
        for text in ["http://a/ 0", "http://a/ x", "http://a/ 1 2"] {
            assert!(
                weighted_urls(text).unwrap_err().contains("line 1"),
                "{text}"
            );
        }
    }

    #[test]
    fn sources_may_be_a_range() {
        assert_eq!(sources("127.0.0.2-127.0.0.4").unwrap().0.len(), 3);
        assert_eq!(sources("::1").unwrap().0.len(), 1);
        for text in [
            "",
            "x",
            "127.0.0.4-127.0.0.2",
            "::1-::2",
            "0.0.0.0-255.255.255.255",
        ] {
            assert!(sources(text).is_err(), "{text}");
        }
    }

    #[test]
    fn fields_and_digests() {
        assert_eq!(field("A: b "), Ok(("A".to_owned(), "b".to_owned())));
        for text in ["A", ": b", "A b: c", "A: b\r\nC: d"] {
            assert!(field(text).is_err(), "{text:?}");
        }
        assert_eq!(sha256(&"0f".repeat(32)), Ok([15; 32]));
        assert!(sha256("0f").is_err() && sha256(&"+f".repeat(32)).is_err());
    }
}
