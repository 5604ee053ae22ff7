//! `$ssl_preread_*`: what was seen of what a client says first.

use proto::tls::preread::{Seen, TLS13};
use variables::{BuiltinVariable, Evaluate};

use crate::session::Session;

/// The variable of a name in lower case, without `$`.
pub(crate) fn find(name: &str) -> Option<BuiltinVariable<Session>> {
    let evaluate: Evaluate<Session> = match name {
        "ssl_preread_server_name" => |session, out| with(session, out, |hello| &hello.server_name),
        "ssl_preread_alpn_protocols" => |session, out| with(session, out, |hello| &hello.protocols),
        "ssl_preread_protocol" => {
            |session, out| with(session, out, |hello| version(hello.version).as_bytes())
        }
        _ => return None,
    };
    Some(BuiltinVariable::computed(evaluate))
}

/// A value of the handshake that was seen; not found where there was none.
fn with(session: &Session, out: &mut Vec<u8>, value: fn(&Seen) -> &[u8]) -> bool {
    let hello = session.preread_hello.as_deref();
    hello.is_some_and(|hello| {
        out.extend_from_slice(value(hello));
        true
    })
}

/// A version's name, as OpenSSL gives it.
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
