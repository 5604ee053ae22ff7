//! The directives of all modules that pass requests on to an upstream (`proxy_`, `fastcgi_` …),
//! declared once: each module makes a [`Family`] with its prefix and lists the directives that it
//! has.
//!
//! Not here: the directives of a single module, and those about buffers and TLS, which have their
//! own families.

use std::time::Duration;

use conf::{Arity, Contexts, Declared, Fault, Inherit, Setter, Setting, Word, parse};
use rules::upstream::socket::{BindLine, SocketDirectives};
use variables::size::WrittenSize;

use super::store_settings;
use crate::store_settings::StoreLine;

pub use ::upstream::Causes;

const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

/// The directives that the modules have in common. nginx's manual repeats them under each prefix.
pub struct Family {
    /// `*_hide_header`.
    pub hide_header: Setting<Vec<Word>>,
    /// `*_pass_header`.
    pub pass_header: Setting<Vec<Word>>,
    /// `*_ignore_headers`.
    pub ignore_headers: Setting<Vec<Word>>,
    /// `*_bind`.
    pub bind: Setting<BindLine>,
    /// `*_next_upstream`.
    pub next_upstream: Setting<Causes>,
    /// `*_next_upstream_tries`.
    pub next_upstream_tries: Setting<u64>,
    /// `*_next_upstream_timeout`.
    pub next_upstream_timeout: Setting<Duration>,
    /// `*_connect_timeout`.
    pub connect_timeout: Setting<Duration>,
    /// `*_send_timeout`.
    pub send_timeout: Setting<Duration>,
    /// `*_read_timeout`.
    pub read_timeout: Setting<Duration>,
    pub(crate) buffering: Setting<bool>,
    pub(crate) request_buffering: Setting<bool>,
    pub(crate) pass_request_headers: Setting<bool>,
    pub(crate) pass_request_body: Setting<bool>,
    /// `*_intercept_errors`.
    pub intercept_errors: Setting<bool>,
    pub(crate) ignore_client_abort: Setting<bool>,
    /// `*_buffer_size`.
    pub buffer_size: Setting<u64>,
    pub(crate) force_ranges: Setting<bool>,
    pub(crate) limit_rate: Setting<WrittenSize>,
    /// `*_socket_keepalive`.
    pub socket_keepalive: Setting<bool>,
    /// `*_socket_rcvbuf`.
    pub socket_rcvbuf: Setting<u64>,
    /// `*_socket_sndbuf`.
    pub socket_sndbuf: Setting<u64>,
    /// `*_send_lowat`.
    pub send_lowat: Setting<u64>,
    pub(crate) store: Setting<StoreLine>,
    pub(crate) store_access: Setting<u32>,
}

impl Family {
    /// The directives about sockets.
    pub fn sockets(&'static self) -> SocketDirectives {
        SocketDirectives {
            bind: &self.bind,
            keepalive: &self.socket_keepalive,
            receive_buffer: &self.socket_rcvbuf,
            send_buffer: &self.socket_sndbuf,
        }
    }

    /// The directives with this prefix, for a module whose servers speak HTTP.
    pub const fn of(prefix: &'static str) -> Family {
        Family::with(prefix, &[CAUSES_OF_HTTP], causes)
    }

    /// The directives of a module whose servers are application servers, which never respond with
    /// 502 or 504.
    pub const fn of_applications(prefix: &'static str) -> Family {
        Family::with(prefix, &[CAUSES_OF_APPLICATIONS], causes_of_applications)
    }

    /// The directives of a module whose servers speak gRPC, for which there is no cache.
    pub const fn of_calls(prefix: &'static str) -> Family {
        Family::with(prefix, &[CAUSES_OF_CALLS], causes_of_calls)
    }

    /// The directives of every module that proxies whole requests: all except `send_lowat`.
    pub const fn of_requests(&'static self) -> [&'static dyn Declared; 24] {
        [
            &self.hide_header,
            &self.pass_header,
            &self.ignore_headers,
            &self.bind,
            &self.connect_timeout,
            &self.send_timeout,
            &self.read_timeout,
            &self.buffering,
            &self.request_buffering,
            &self.pass_request_headers,
            &self.pass_request_body,
            &self.intercept_errors,
            &self.ignore_client_abort,
            &self.next_upstream,
            &self.next_upstream_tries,
            &self.next_upstream_timeout,
            &self.buffer_size,
            &self.force_ranges,
            &self.limit_rate,
            &self.socket_keepalive,
            &self.socket_rcvbuf,
            &self.socket_sndbuf,
            &self.store,
            &self.store_access,
        ]
    }

    const fn with(
        prefix: &'static str,
        next_upstream: &'static [&'static str],
        causes: fn(&Setter<'_>) -> Result<Causes, Fault>,
    ) -> Family {
        Family {
            hide_header: Setting::family(prefix, "hide_header", &["field"], words)
                .contexts(HSL)
                .inherit(Inherit::List)
                .manual("A field of the answer that is not passed to the client."),
            pass_header: Setting::family(prefix, "pass_header", &["field"], words)
                .contexts(HSL)
                .inherit(Inherit::List)
                .manual("A field of the answer that is passed to the client though it is hidden by default."),
            ignore_headers: Setting::family(prefix, "ignore_headers", &["field ..."], ignored)
                .contexts(HSL)
                .arity(Arity::at_least(1))
                .inherit(Inherit::List)
                .manual("Fields of the answer that are not acted upon: X-Accel-Redirect, X-Accel-Limit-Rate, X-Accel-Buffering, X-Accel-Charset, X-Accel-Expires, Expires, Cache-Control, Set-Cookie, Vary."),
            bind: Setting::family(prefix, "bind", &["address [transparent]", "off"], BindLine::parse)
                .contexts(HSL)
                .arity(Arity::between(1, 2))
                .manual("The local address, with or without a port, that connections to the upstream come from. Variables may be used; where they give nothing, the kernel chooses. With transparent it may be an address that the machine does not have, such as the client's ($remote_addr); worker processes keep the capability CAP_NET_RAW for that, and routes must lead the upstream's answers back."),
            next_upstream: Setting::family(
                prefix,
                "next_upstream",
                next_upstream,
                causes,
            )
            .contexts(HSL)
            .arity(Arity::at_least(1))
            .inherit(Inherit::List)
            .default("error timeout")
            .manual("When the next server of a group is tried. Requests that change something (POST, LOCK, PATCH) are only sent again with non_idempotent. `updating` is taken, as by nginx, where it says nothing here either: it is about what a cache holds."),
            next_upstream_tries: Setting::family(prefix, "next_upstream_tries", &["number"], parse::number)
                .contexts(HSL)
                .default("0")
                .manual("The most servers that a request is passed to; 0 is all of the group."),
            next_upstream_timeout: time(prefix, "next_upstream_timeout", "0")
                .manual("How long after the first try a next one may begin; 0 is always."),
            connect_timeout: time(prefix, "connect_timeout", "60s")
                .manual("How long connecting to the upstream may take (504 after it)."),
            send_timeout: time(prefix, "send_timeout", "60s")
                .manual("The longest time between two successful writes to the upstream (504 after it)."),
            read_timeout: time(prefix, "read_timeout", "60s")
                .manual("The longest time between two successful reads from the upstream (504 after it)."),
            buffering: flag(prefix, "buffering", "on").manual(
                "Off: every part of the answer is sent on as it comes. On: parts that come together leave together.",
            ),
            request_buffering: flag(prefix, "request_buffering", "on").manual(
                "Reads the whole request body before the upstream is asked; off passes it on as it comes.",
            ),
            pass_request_headers: flag(prefix, "pass_request_headers", "on")
                .manual("Passes the client's header fields on."),
            pass_request_body: flag(prefix, "pass_request_body", "on")
                .manual("Passes the client's body on."),
            intercept_errors: flag(prefix, "intercept_errors", "off")
                .manual("Lets error_page take answers with a status of 300 or more."),
            ignore_client_abort: flag(prefix, "ignore_client_abort", "off")
                .manual("Goes on with the upstream's request when the client has gone."),
            buffer_size: Setting::family(prefix, "buffer_size", &["size"], parse::size)
                .contexts(HSL)
                .default("4k")
                .manual("The longest head of an answer."),
            force_ranges: flag(prefix, "force_ranges", "off").manual(
                "Cuts one range out of an answer of known length if the client asks for it, whatever the upstream's Accept-Ranges says.",
            ),
            limit_rate: Setting::family(prefix, "limit_rate", &["rate"], WrittenSize::parse)
                .contexts(HSL)
                .default("0")
                .manual("Bytes per second that an answer's body is read from the upstream at, for each request; 0 means no limit. Variables may be used. It holds for buffered answers."),
            socket_keepalive: flag(prefix, "socket_keepalive", "off").manual(
                "Sets SO_KEEPALIVE for connections to the upstream: the kernel finds out when the other end has gone.",
            ),
            socket_rcvbuf: socket_size(prefix, "socket_rcvbuf")
                .manual("The size of the kernel's receive buffer (SO_RCVBUF) of connections to the upstream; 0 leaves it to the kernel."),
            socket_sndbuf: socket_size(prefix, "socket_sndbuf")
                .manual("The size of the kernel's send buffer (SO_SNDBUF) of connections to the upstream; 0 leaves it to the kernel."),
            send_lowat: socket_size(prefix, "send_lowat")
                .no_effect("Linux has no low-water mark for sending")
                .manual("On BSD: how much room must be in the kernel's send buffer before more is written to the upstream."),
            store: Setting::family(prefix, "store", &["on | off | path"], store_settings::parse)
                .contexts(HSL)
                .default("off")
                .manual("Stores the body of each answer with status 200 as a file: with on where root or alias put the URI, else at the path, which may hold variables. Directories are made. The file comes into its place when the answer is whole, with the time of its Last-Modified, and before the client has the end of it. Only buffered answers are stored; that the client leaves stops nothing."),
            store_access: Setting::family(
                prefix,
                "store_access",
                &["users:permissions ..."],
                parse::access,
            )
            .contexts(HSL)
            .arity(Arity::between(1, 3))
            .default("user:rw")
            .manual("The permissions of stored files and of directories for them: `user:`, `group:` or `all:` with `r` or `rw`. Without `user:` the user may read and write."),
        }
    }
}

const fn time(
    prefix: &'static str,
    stem: &'static str,
    default: &'static str,
) -> Setting<Duration> {
    Setting::family(prefix, stem, &["time"], parse::milliseconds)
        .contexts(HSL)
        .default(default)
}

const fn socket_size(prefix: &'static str, stem: &'static str) -> Setting<u64> {
    Setting::family(prefix, stem, &["size"], parse::size)
        .contexts(HSL)
        .default("0")
}

const fn flag(prefix: &'static str, stem: &'static str, default: &'static str) -> Setting<bool> {
    Setting::family(prefix, stem, &["on | off"], parse::flag)
        .contexts(HSL)
        .default(default)
}

/// The syntax of `*_next_upstream`, as in the manual.
pub(super) const CAUSES_OF_HTTP: &str = "error | timeout | invalid_header | http_500 | http_502 | http_503 | http_504 | http_403 | http_404 | http_429 | non_idempotent | updating | off ...";
const CAUSES_OF_CALLS: &str = "error | timeout | invalid_header | http_500 | http_502 | http_503 | http_504 | http_403 | http_404 | http_429 | non_idempotent | off ...";
pub(super) const CAUSES_OF_APPLICATIONS: &str = "error | timeout | invalid_header | http_500 | http_503 | http_403 | http_404 | http_429 | non_idempotent | updating | off ...";

/// The causes of all modules.
const CAUSES_OF_CONNECTIONS: [(&str, Causes); 3] = [
    ("error", Causes::ERROR),
    ("timeout", Causes::TIMEOUT),
    ("off", Causes::OFF),
];

/// The additional causes of modules whose upstreams respond to requests.
const CAUSES_OF_ANSWERS: [(&str, Causes); 7] = [
    ("invalid_header", Causes::INVALID_HEADER),
    ("non_idempotent", Causes::NON_IDEMPOTENT),
    ("http_500", Causes::HTTP_500),
    ("http_503", Causes::HTTP_503),
    ("http_403", Causes::HTTP_403),
    ("http_404", Causes::HTTP_404),
    ("http_429", Causes::HTTP_429),
];

/// The additional causes of modules with a cache.
const CAUSES_OF_CACHES: [(&str, Causes); 1] = [("updating", Causes::UPDATING)];

const CAUSES_OF_GATEWAYS: [(&str, Causes); 2] = [
    ("http_502", Causes::HTTP_502),
    ("http_504", Causes::HTTP_504),
];

/// The additional causes of modules whose upstreams return values.
const CAUSES_OF_VALUES: [(&str, Causes); 2] = [
    ("invalid_response", Causes::INVALID_HEADER),
    ("not_found", Causes::HTTP_404),
];

/// `*_next_upstream` for upstreams that speak HTTP.
pub(super) fn causes(setter: &Setter<'_>) -> Result<Causes, Fault> {
    let known: [&[_]; 4] = [
        &CAUSES_OF_CONNECTIONS,
        &CAUSES_OF_ANSWERS,
        &CAUSES_OF_GATEWAYS,
        &CAUSES_OF_CACHES,
    ];
    causes_among(setter, &known)
}

/// `*_next_upstream` for upstreams that speak gRPC.
fn causes_of_calls(setter: &Setter<'_>) -> Result<Causes, Fault> {
    let known: [&[_]; 3] = [
        &CAUSES_OF_CONNECTIONS,
        &CAUSES_OF_ANSWERS,
        &CAUSES_OF_GATEWAYS,
    ];
    causes_among(setter, &known)
}

/// `*_next_upstream` for application servers.
pub(super) fn causes_of_applications(setter: &Setter<'_>) -> Result<Causes, Fault> {
    let known: [&[_]; 3] = [
        &CAUSES_OF_CONNECTIONS,
        &CAUSES_OF_ANSWERS,
        &CAUSES_OF_CACHES,
    ];
    causes_among(setter, &known)
}

/// `*_next_upstream` for modules in which only the connection can fail.
pub fn causes_of_connections(setter: &Setter<'_>) -> Result<Causes, Fault> {
    causes_among(setter, &[&CAUSES_OF_CONNECTIONS])
}

/// `*_next_upstream` for modules whose response is a value or none.
pub fn causes_of_values(setter: &Setter<'_>) -> Result<Causes, Fault> {
    causes_among(setter, &[&CAUSES_OF_CONNECTIONS, &CAUSES_OF_VALUES])
}

fn causes_among(setter: &Setter<'_>, known: &[&[(&str, Causes)]]) -> Result<Causes, Fault> {
    let mut causes = Causes::NONE;
    for word in setter.lines().iter().flat_map(|line| &line.args) {
        let mut known = known.iter().copied().flatten();
        let is_it = |(name, _): &&(&str, Causes)| word.bytes.eq_ignore_ascii_case(name.as_bytes());
        let Some((_, cause)) = known.find(is_it).copied() else {
            return Err(Fault::invalid_value(word));
        };
        if causes.contains(cause) {
            setter.warn(word, format!("duplicate value \"{}\"", word.text()));
        }
        causes = causes.with(cause);
    }
    Ok(if causes.contains(Causes::OFF) {
        Causes::NONE
    } else {
        causes
    })
}

fn words(setter: &Setter<'_>) -> Result<Vec<Word>, Fault> {
    Ok(setter
        .lines()
        .iter()
        .flat_map(|line| line.args.iter().cloned())
        .collect())
}

fn ignored(setter: &Setter<'_>) -> Result<Vec<Word>, Fault> {
    const KNOWN: [&str; 9] = [
        "X-Accel-Redirect",
        "X-Accel-Expires",
        "X-Accel-Limit-Rate",
        "X-Accel-Buffering",
        "X-Accel-Charset",
        "Expires",
        "Cache-Control",
        "Set-Cookie",
        "Vary",
    ];
    let words = words(setter)?;
    for (at, word) in words.iter().enumerate() {
        let earlier = words.get(..at).unwrap_or_default();
        let equals = |other: &Word| other.bytes.eq_ignore_ascii_case(&word.bytes);
        if earlier.iter().any(equals) {
            setter.warn(word, format!("duplicate value \"{}\"", word.text()));
        }
        if !KNOWN
            .iter()
            .any(|known| known.as_bytes().eq_ignore_ascii_case(&word.bytes))
        {
            return Err(Fault::at(
                word,
                format!("invalid value \"{}\"", word.text()),
            ));
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use conf::{Declared, Loaded, RecordedFiles, Recording, Registry, manual};
    use framework::compile::{Compiler, Environment};
    use http::request::Request;

    use super::super::{buffers, ssl};
    use super::*;

    // As two modules of one program would declare them.
    static PROXY: Family = Family::of("proxy_");
    static PROXY_BUFFERS: buffers::Family = buffers::Family::of("proxy_");
    static OTHER: Family = Family::of("other_");
    static OTHER_BUFFERS: buffers::Family = buffers::Family::of("other_");
    static OTHER_TLS: ssl::Family = ssl::family("other_");

    const BOTH: &[&dyn Declared] = &[
        &PROXY.hide_header,
        &PROXY.connect_timeout,
        &PROXY.read_timeout,
        &PROXY.next_upstream,
        &PROXY.buffer_size,
        &OTHER.hide_header,
        &OTHER.connect_timeout,
        &OTHER.read_timeout,
        &OTHER.next_upstream,
        &OTHER.buffer_size,
    ];
    const PROXY_SIZES: [&dyn Declared; 5] = PROXY_BUFFERS.all();
    const OTHER_SIZES: [&dyn Declared; 5] = OTHER_BUFFERS.all();
    const OTHER_TRUST: [&dyn Declared; 15] = OTHER_TLS.all();

    fn registry() -> Registry {
        let tables: &[&'static [&'static dyn Declared]] = &[
            http::config::compile::DIRECTIVES,
            rules::server_name::DIRECTIVES,
            BOTH,
            &PROXY_SIZES,
            &OTHER_SIZES,
            &OTHER_TRUST,
        ];
        Registry::new(tables)
    }

    fn load(lines: &str) -> (Loaded, RecordedFiles) {
        let text = format!("http {{ server {{ {lines} }} }}");
        let files = RecordedFiles::new(Recording {
            files: vec![("/nginx.conf".into(), text.into_bytes())],
            ..Recording::default()
        });
        let (path, root) = (Path::new("/nginx.conf"), Path::new("/"));
        (conf::load(path, root, &[], &registry(), &files), files)
    }

    #[test]
    fn no_declaration_of_either_has_a_fault() {
        let faults = registry().faults();
        let of_either = |fault: &&String| fault.contains("proxy_") || fault.contains("other_");
        assert_eq!(faults.iter().find(of_either), None);
    }

    #[test]
    fn each_prefix_has_its_own_values_and_defaults() {
        let (loaded, _) = load(
            "proxy_connect_timeout 1s; proxy_hide_header A; proxy_next_upstream http_502;
             other_read_timeout 2s; other_hide_header B; other_hide_header C; other_next_upstream off;",
        );
        assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
        let http = loaded.tree.root().children("http").next().unwrap();
        let server = http.children("server").next().unwrap();
        let time = |setting: &Setting<Duration>| server.get(setting).unwrap().as_secs();
        assert_eq!(time(&PROXY.connect_timeout), 1);
        assert_eq!(time(&OTHER.connect_timeout), 60);
        assert_eq!(time(&PROXY.read_timeout), 60);
        assert_eq!(time(&OTHER.read_timeout), 2);
        let hidden = |setting: &Setting<Vec<Word>>| server.get(setting).unwrap().len();
        assert_eq!(hidden(&PROXY.hide_header), 1);
        assert_eq!(hidden(&OTHER.hide_header), 2);
        assert_eq!(server.get(&PROXY.next_upstream).unwrap(), Causes::HTTP_502);
        assert_eq!(server.get(&OTHER.next_upstream).unwrap(), Causes::NONE);
        let default = Causes::ERROR.with(Causes::TIMEOUT);
        assert_eq!(http.get(&OTHER.next_upstream).unwrap(), default);
    }

    /// Sizes are compared within a family, and messages contain the names of its own directives.
    #[test]
    fn checks_name_the_directives_of_their_own_prefix() {
        let (loaded, _) = load("other_buffer_size 64k; proxy_max_temp_file_size 1;");
        let server = loaded.tree.root().children("http").next().unwrap();
        let server = server.children("server").next().unwrap();
        let check =
            |family: &buffers::Family, head| family.check(server, head).unwrap_err().message;
        assert_eq!(
            check(&OTHER_BUFFERS, &OTHER.buffer_size),
            "\"other_busy_buffers_size\" must be less than the size of all \"other_buffers\" minus one buffer"
        );
        assert_eq!(
            check(&PROXY_BUFFERS, &PROXY.buffer_size),
            "\"proxy_max_temp_file_size\" must be equal to zero to disable temporary files usage or must be \
             equal to or greater than the maximum of the value of \"proxy_buffer_size\" and one of the \"proxy_buffers\""
        );
    }

    #[test]
    fn tls_of_another_prefix_is_its_own() {
        let refusal = |lines: &str| {
            let (loaded, files) = load(lines);
            assert!(loaded.diagnostics.is_empty(), "{:?}", loaded.diagnostics);
            let compiler = Compiler::new(&Environment {
                prefix: Path::new("/"),
                conf_prefix: Path::new("/"),
                files: &files,
                privileged: false,
            });
            let http = loaded.tree.root().children("http").next().unwrap();
            let server = http.children("server").next().unwrap();
            let compiled = OTHER_TLS.compile::<Request>(&compiler, server, Vec::new());
            compiled.err().map(|fault| fault.message)
        };
        assert_eq!(refusal(""), None);
        assert_eq!(
            refusal("other_ssl_verify on;").as_deref(),
            Some("no other_ssl_trusted_certificate for other_ssl_verify")
        );
        assert_eq!(
            refusal("other_ssl_certificate a.crt;").as_deref(),
            Some("no \"other_ssl_certificate_key\" is defined for certificate \"a.crt\"")
        );
    }

    #[test]
    fn each_prefix_has_its_own_pages() {
        let pages = manual::pages(&registry(), manual::Guide::NONE);
        let proxy = &pages["proxy_read_timeout.md"];
        let other = &pages["other_read_timeout.md"];
        assert!(
            other.starts_with("# other_read_timeout\n\n```nginx\nother_read_timeout time;\n```"),
            "{other}"
        );
        assert_eq!(proxy.replace("proxy_", "other_"), *other);
        let key = &pages["other_ssl_certificate_key.md"];
        assert!(
            key.contains("A file with the private key of `other_ssl_certificate`, in PEM."),
            "{key}"
        );
    }
}
