//! Prereading of a client's first bytes before the session's content: `ssl_preread` and
//! `mqtt_preread`.
//!
//! <https://nginx.org/en/docs/stream/ngx_stream_ssl_preread_module.html> and
//! <https://nginx.org/en/docs/stream/ngx_stream_mqtt_preread_module.html>. The upstream server gets
//! the bytes unchanged. RFC 8446 section 4.1.2 (ClientHello), RFC 6066 section 3 (server names),
//! RFC 7301 (ALPN). A ClientHello may span any number of segments and records, and the first
//! datagrams of a QUIC client.

pub(crate) mod connect;
mod initial;
mod looking;
mod quic;
pub(crate) mod seen;

use std::time::Duration;

use conf::{Contexts, Declared, Fault, ScopeRef, Setting, parse};

const CONTEXTS: Contexts = Contexts::STREAM.or(Contexts::STREAM_SERVER);

static PREREAD_BUFFER_SIZE: Setting<u64> =
    Setting::new("preread_buffer_size", &["size"], parse::size)
        .contexts(CONTEXTS)
        .default("16k")
        .manual(
            "How much of what a client says first is looked at, where `ssl_preread` or \
             `mqtt_preread` is on.",
        );

pub(crate) static PREREAD_TIMEOUT: Setting<Duration> =
    Setting::new("preread_timeout", &["time"], parse::milliseconds)
        .contexts(CONTEXTS)
        .default("30s")
        .manual(
            "How long a client may take to say it; with `mqtt` also how long its first packet may \
             take.",
        );

static SSL_PREREAD: Setting<bool> = Setting::new("ssl_preread", &["on | off"], parse::flag)
    .contexts(CONTEXTS)
    .default("off")
    .manual(
        "Whether the beginning of a TLS handshake is looked at, for the variables \
         `$ssl_preread_server_name`, `$ssl_preread_alpn_protocols` and `$ssl_preread_protocol` and \
         for `server_name`; with `listen ... udp` in the first datagrams of QUIC (versions 1 and \
         2), which then leave in their order. The handshake itself is left to the server that sessions are passed on \
         to.",
    );

static MQTT_PREREAD: Setting<bool> = Setting::new("mqtt_preread", &["on | off"], parse::flag)
    .contexts(CONTEXTS)
    .default("off")
    .manual(
        "Whether the packet is looked at that clients of MQTT begin with (CONNECT, of version 3.1, \
         3.1.1 or 5.0), for the variables `$mqtt_preread_clientid` and `$mqtt_preread_username`. \
         They are empty where a client says something else.",
    );

/// The directives of this file.
pub(crate) const DIRECTIVES: &[&dyn Declared] = &[
    &PREREAD_BUFFER_SIZE,
    &PREREAD_TIMEOUT,
    &SSL_PREREAD,
    &MQTT_PREREAD,
];

/// The preread settings of a server.
pub(crate) struct Preread {
    buffer_size: usize,
    timeout: Duration,
    /// Whether a TLS handshake is preread (`ssl_preread`).
    of_tls: bool,
    /// Whether an MQTT CONNECT is preread (`mqtt_preread`).
    of_mqtt: bool,
}

/// Reads the preread settings of a server.
pub(crate) fn of_server(server: ScopeRef<'_>) -> Result<Preread, Fault> {
    Ok(Preread {
        buffer_size: usize::try_from(server.get(&PREREAD_BUFFER_SIZE)?).unwrap_or(usize::MAX),
        timeout: server.get(&PREREAD_TIMEOUT)?,
        of_tls: server.get(&SSL_PREREAD)?,
        of_mqtt: server.get(&MQTT_PREREAD)?,
    })
}

impl Preread {
    /// Whether nothing is preread.
    pub(crate) fn is_off(&self) -> bool {
        !self.of_tls && !self.of_mqtt
    }
}
