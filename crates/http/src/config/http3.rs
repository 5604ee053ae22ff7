//! The directives of HTTP/3, which is not implemented. They are accepted with a warning, no socket
//! is opened, and `Alt-Svc` in responses offers no HTTP/3.
//!
//! <https://nginx.org/en/docs/http/ngx_http_v3_module.html>, and RFC 7838 for `Alt-Svc`.

use bytes::Bytes;
use conf::{Contexts, Declared, Fault, Setter, Setting, parse};

/// The warning for each directive of HTTP/3.
pub const HTTP3_NOT_YET: &str = "HTTP/3 is not there yet: clients use HTTP/2 meanwhile, \
                                 and h3 is left out of \"Alt-Svc\"";

const HS: Contexts = Contexts::HTTP.or(Contexts::SERVER);

macro_rules! not_yet {
    ($($name:ident = $directive:literal, $syntax:literal, $contexts:expr, $check:expr, $manual:literal;)*) => {
        $(static $name: Setting<()> = Setting::new($directive, &[$syntax], $check)
            .contexts($contexts)
            .not_yet("there is no HTTP/3 yet")
            .manual($manual);)*
    };
}

/// The directives of nginx's HTTP/3 module, and `quic_bpf`.
pub const DIRECTIVES: &[&dyn Declared] = &[
    &HTTP3,
    &HTTP3_HQ,
    &HTTP3_MAX_CONCURRENT_STREAMS,
    &HTTP3_STREAM_BUFFER_SIZE,
    &QUIC_ACTIVE_CONNECTION_ID_LIMIT,
    &QUIC_BPF,
    &QUIC_GSO,
    &QUIC_HOST_KEY,
    &QUIC_RETRY,
];

not_yet! {
    HTTP3 = "http3", "on | off", HS, flag,
        "Lets clients speak HTTP/3 at addresses that listen with `quic`.";
    HTTP3_HQ = "http3_hq", "on | off", HS, flag,
        "Lets clients speak HTTP/0.9 over QUIC, as tests of interoperability do.";
    HTTP3_MAX_CONCURRENT_STREAMS = "http3_max_concurrent_streams", "number", HS, number,
        "How many requests a client may have at once on a connection of HTTP/3.";
    HTTP3_STREAM_BUFFER_SIZE = "http3_stream_buffer_size", "size", HS, size,
        "Sets the size of the buffer of each stream of QUIC.";
    QUIC_ACTIVE_CONNECTION_ID_LIMIT = "quic_active_connection_id_limit", "number", HS, number,
        "How many connection identifiers a client may keep for nginx.";
    QUIC_BPF = "quic_bpf", "on | off", Contexts::MAIN, flag,
        "Has the kernel give packets of a connection to the worker that has it, also once the client's address has changed.";
    QUIC_GSO = "quic_gso", "on | off", HS, flag,
        "Has the kernel cut packets that are sent at once.";
    QUIC_HOST_KEY = "quic_host_key", "file", HS, file,
        "Names the file with the key that tokens of QUIC are sealed with.";
    QUIC_RETRY = "quic_retry", "on | off", HS, flag,
        "Makes clients show that they receive at their addresses before a connection begins.";
}

/// Warns for `on` only: `off` asks for nothing that is missing.
fn flag(setter: &Setter<'_>) -> Result<(), Fault> {
    if parse::flag(setter)? {
        warn(setter)?;
    }
    Ok(())
}

fn number(setter: &Setter<'_>) -> Result<(), Fault> {
    parse::number(setter)?;
    warn(setter)
}

fn size(setter: &Setter<'_>) -> Result<(), Fault> {
    parse::size(setter)?;
    warn(setter)
}

fn file(setter: &Setter<'_>) -> Result<(), Fault> {
    warn(setter)
}

fn warn(setter: &Setter<'_>) -> Result<(), Fault> {
    setter.warn_once(setter.word()?, HTTP3_NOT_YET);
    Ok(())
}

/// Whether a value of `Alt-Svc` offers HTTP/3.
#[must_use]
pub fn is_offered(alt_svc: &[u8]) -> bool {
    alternatives(alt_svc).any(is_http3)
}

/// Removes the alternatives of HTTP/3 from a value of `Alt-Svc`, so that no browser tries a port
/// without a server. Empty if there are no other alternatives.
#[must_use]
pub fn without_http3(alt_svc: Bytes) -> Bytes {
    if !is_offered(&alt_svc) {
        return alt_svc;
    }
    let kept = alternatives(&alt_svc).filter(|alternative| !is_http3(alternative));
    let kept: Vec<&[u8]> = kept.map(<[u8]>::trim_ascii).collect();
    kept.join(&b", "[..]).into()
}

/// Splits a value at commas outside quotes.
fn alternatives(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    value.split(move |byte| {
        let ends = *byte == b',' && !is_quoted;
        is_quoted ^= *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && is_quoted && !is_escaped;
        ends
    })
}

/// Whether an alternative is HTTP/3, one of its drafts (`h3-29`, `h3-Q050`) or its predecessor
/// (`quic`).
fn is_http3(alternative: &[u8]) -> bool {
    let Some(equals) = memchr::memchr(b'=', alternative) else {
        return false;
    };
    let (protocol, _) = alternative.split_at(equals);
    let protocol = protocol.trim_ascii();
    matches!(protocol, b"h3" | b"hq" | b"quic")
        || protocol.starts_with(b"h3-")
        || protocol.starts_with(b"hq-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alternatives_of_http3_are_left_out() {
        for (value, kept) in [
            ("h3=\":443\"; ma=86400", ""),
            ("h3=\":443\"; ma=86400, h3-29=\":443\"; ma=86400", ""),
            ("h3=\":443\", h2=\":8443\"; ma=60", "h2=\":8443\"; ma=60"),
            (
                "h2=\"a:1\",h3=\":443\" , http/1.1=\":80\"",
                "h2=\"a:1\", http/1.1=\":80\"",
            ),
            (
                "quic=\":443\"; ma=2592000; v=\"46,43\",h2=\":1\"",
                "h2=\":1\"",
            ),
            ("h2=\"h3=,\\\",h3=:1\"", "h2=\"h3=,\\\",h3=:1\""),
            ("clear", "clear"),
            ("h30=\":1\"", "h30=\":1\""),
            ("h3", "h3"),
            ("", ""),
        ] {
            assert_eq!(without_http3(Bytes::from(value)), kept, "{value}");
        }
    }
}
