//! `$ssl_preread_*` and `$mqtt_preread_*`: values from a client's first bytes.

use bytes::Bytes;
use proto::mqtt::Connect;
use proto::tls::preread::{ClientHelloInfo, TLS13};
use variables::{BuiltinVariable, Evaluate};

use crate::session::Session;

/// Values from an MQTT client's CONNECT.
pub(crate) struct SeenConnect {
    client_id: Bytes,
    username: Option<Bytes>,
}

impl SeenConnect {
    /// The values of a packet that was parsed from these bytes.
    pub(crate) fn of(connect: &Connect, packet: &[u8]) -> SeenConnect {
        SeenConnect {
            client_id: Bytes::copy_from_slice(connect.client_id(packet)),
            username: connect.username(packet).map(Bytes::copy_from_slice),
        }
    }
}

/// The variable with this name (in lower case, without `$`).
pub(crate) fn find(name: &str) -> Option<BuiltinVariable<Session>> {
    let evaluate: Evaluate<Session> = match name {
        "ssl_preread_server_name" => |session, out| with(session, out, |hello| &hello.server_name),
        "ssl_preread_alpn_protocols" => |session, out| with(session, out, |hello| &hello.protocols),
        "ssl_preread_protocol" => {
            |session, out| with(session, out, |hello| version(hello.version).as_bytes())
        }
        "mqtt_preread_clientid" => |session, out| {
            let connect = session.preread_connect.as_deref();
            found(connect.map(|connect| &connect.client_id), out)
        },
        "mqtt_preread_username" => |session, out| {
            let connect = session.preread_connect.as_deref();
            found(connect.and_then(|connect| connect.username.as_ref()), out)
        },
        _ => return None,
    };
    Some(BuiltinVariable::computed(evaluate))
}

/// Appends a value of the ClientHello; false if none was preread.
fn with(session: &Session, out: &mut Vec<u8>, value: fn(&ClientHelloInfo) -> &[u8]) -> bool {
    let hello = session.preread_hello.as_deref();
    hello.is_some_and(|hello| {
        out.extend_from_slice(value(hello));
        true
    })
}

/// Appends an optional value; returns whether it exists.
fn found(value: Option<&Bytes>, out: &mut Vec<u8>) -> bool {
    out.extend_from_slice(value.map_or(b"", |value| value));
    value.is_some()
}

/// The name of a TLS version, as in OpenSSL.
fn version(number: u16) -> &'static str {
    match number {
        2 => "SSLv2",
        0x0300 => "SSLv3",
        0x0301 => "TLSv1",
        0x0302 => "TLSv1.1",
        0x0303 => "TLSv1.2",
        TLS13 => "TLSv1.3",
        _ => "",
    }
}
