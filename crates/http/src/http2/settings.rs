//! The directives of HTTP/2.
//!
//! <https://nginx.org/en/docs/http/ngx_http_v2_module.html>.

use conf::{Arity, Contexts, Declared, Fault, ScopeRef, Setter, Setting, parse};

use crate::config::ignored_directives::pool_size;

const HS: Contexts = Contexts::HTTP.or(Contexts::SERVER);
const HSL: Contexts = HS.or(Contexts::LOCATION);

/// The largest initial window of a stream, in bytes.
const WINDOW_MAX: u64 = (1 << 31) - 1;

/// Declares the directive `http2`.
pub static HTTP2: Setting<bool> = Setting::new("http2", &["on | off"], parse::flag)
    .contexts(HS)
    .default("off")
    .since("1.25.1")
    .manual("Lets clients speak HTTP/2: over TLS where they offer it (ALPN), in the clear where they begin with its preface.");

/// Declares the directive `http2_max_concurrent_streams`.
pub static CONCURRENT_STREAMS: Setting<u64> =
    Setting::new("http2_max_concurrent_streams", &["number"], parse::number)
    .contexts(HS)
    .default("128")
    .manual("How many requests a client may have at once on a connection. A place is free again when the work for its request has ended.");

/// Declares the directive `http2_body_preread_size`.
pub static BODY_PREREAD_SIZE: Setting<u64> =
    Setting::new("http2_body_preread_size", &["size"], |setter| {
        let size = parse::size(setter)?;
        if size <= WINDOW_MAX {
            Ok(size)
        } else {
            Err(Fault::new(format!(
                "the maximum body preread buffer size is {WINDOW_MAX}"
            )))
        }
    })
    .contexts(HS)
    .default("64k")
    .manual("How much of a request's body may come before it is read: the window of each stream.");

/// Declares the directive `http2_chunk_size`.
pub static CHUNK_SIZE: Setting<u64> = Setting::new("http2_chunk_size", &["size"], |setter| {
    match parse::size(setter)? {
        0 => Err(Fault::new("the http2 chunk size cannot be zero")),
        size => Ok(size.min(proto::h2::frame::SIZE_MAX.into())),
    }
})
.contexts(HSL)
.default("8k")
.manual("At most so much of a response stands in one frame, so that another one has its turn.");

macro_rules! without_effect {
    ($($name:ident = $directive:literal, $syntax:literal, $contexts:expr, $parse:expr, $reason:literal, $manual:literal;)*) => {
        $(static $name: Setting<()> = Setting::new($directive, &[$syntax], $parse)
            .contexts($contexts)
            .arity(Arity::exactly(1))
            .no_effect($reason)
            .manual($manual);)*
    };
}

without_effect! {
    RECV_BUFFER_SIZE = "http2_recv_buffer_size", "size", Contexts::HTTP, receive_buffer,
        "buffers are those of the event loop",
        "Sets the size of the buffer in which a worker of nginx receives.";
    POOL_SIZE = "http2_pool_size", "size", HS, pool_size,
        "there are no memory pools",
        "Sets how much memory nginx takes at once for a stream.";
    STREAMS_INDEX_SIZE = "http2_streams_index_size", "number", HS, power_of_two,
        "tables size themselves",
        "Sets the size of nginx's table of streams.";
    RECV_TIMEOUT = "http2_recv_timeout", "time", HS, |setter| obsolete(setter, Some("client_header_timeout")),
        "it is obsolete: use `client_header_timeout`",
        "Was the time within which a client had to send more.";
    IDLE_TIMEOUT = "http2_idle_timeout", "time", HS, |setter| obsolete(setter, Some("keepalive_timeout")),
        "it is obsolete: use `keepalive_timeout`",
        "Was the time after which an idle connection was closed.";
    MAX_REQUESTS = "http2_max_requests", "number", HS, |setter| obsolete(setter, Some("keepalive_requests")),
        "it is obsolete: use `keepalive_requests`",
        "Was the number of requests of a connection.";
    MAX_FIELD_SIZE = "http2_max_field_size", "size", HS, |setter| obsolete(setter, Some("large_client_header_buffers")),
        "it is obsolete: use `large_client_header_buffers`",
        "Was the largest size of a field of a head.";
    MAX_HEADER_SIZE = "http2_max_header_size", "size", HS, |setter| obsolete(setter, Some("large_client_header_buffers")),
        "it is obsolete: use `large_client_header_buffers`",
        "Was the largest size of a head.";
    MAX_CONCURRENT_PUSHES = "http2_max_concurrent_pushes", "number", HS, |setter| obsolete(setter, None),
        "browsers take no pushed responses any more",
        "Was the number of pushed responses at once.";
    PUSH_PRELOAD = "http2_push_preload", "on | off", HSL, |setter| obsolete(setter, None),
        "browsers take no pushed responses any more",
        "Made nginx push what `Link` fields name.";
    PUSH = "http2_push", "uri | off", HSL, |setter| obsolete(setter, None),
        "browsers take no pushed responses any more",
        "Made nginx push a response.";
}

/// The directives that have no effect.
pub const OBSOLETE: &[&dyn Declared] = &[
    &RECV_BUFFER_SIZE,
    &POOL_SIZE,
    &STREAMS_INDEX_SIZE,
    &RECV_TIMEOUT,
    &IDLE_TIMEOUT,
    &MAX_REQUESTS,
    &MAX_FIELD_SIZE,
    &MAX_HEADER_SIZE,
    &MAX_CONCURRENT_PUSHES,
    &PUSH_PRELOAD,
    &PUSH,
];

/// The size of nginx's receive buffer, which is only checked against nginx's minimum.
fn receive_buffer(setter: &Setter<'_>) -> Result<(), Fault> {
    match parse::size(setter)? {
        0..=16 => Err(Fault::new(format!(
            "\"{}\" directive value is too small",
            setter.name()
        ))),
        _ => Ok(()),
    }
}

fn power_of_two(setter: &Setter<'_>) -> Result<(), Fault> {
    if parse::number(setter)?.is_power_of_two() {
        Ok(())
    } else {
        Err(Fault::new(format!(
            "\"{}\" directive must be a power of two",
            setter.name()
        )))
    }
}

/// Accepts a directive that nginx ignores too, with nginx's warning.
fn obsolete(setter: &Setter<'_>, instead: Option<&str>) -> Result<(), Fault> {
    let name = setter.name();
    let text = match instead {
        Some(instead) => {
            format!("the \"{name}\" directive is obsolete, use the \"{instead}\" directive instead")
        }
        None => format!("the \"{name}\" directive is obsolete, ignored"),
    };
    setter.warn(setter.word()?, text);
    Ok(())
}

/// A virtual server's settings of HTTP/2.
#[derive(Clone, Copy, Debug)]
pub struct Http2 {
    /// Whether `http2` is on for the server.
    pub on: bool,
    /// The value of `http2_max_concurrent_streams` in this scope.
    pub streams_max: u32,
    /// The value of `http2_body_preread_size` in this scope.
    pub window: u32,
}

impl Http2 {
    /// The settings in a scope.
    pub fn of(scope: ScopeRef<'_>) -> Result<Http2, Fault> {
        Ok(Http2 {
            on: scope.get(&HTTP2)?,
            streams_max: u32::try_from(scope.get(&CONCURRENT_STREAMS)?).unwrap_or(u32::MAX),
            window: u32::try_from(scope.get(&BODY_PREREAD_SIZE)?).unwrap_or(u32::MAX),
        })
    }
}
