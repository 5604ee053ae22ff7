//! What a proxy has told of the client by the PROXY protocol. On a connection without it, nothing is found.

use proto::proxy_protocol::{TlvError, Value};

use variables::write::decimal;

use crate::http::proxy_protocol::{End, Told};
use crate::http::request::Request;
use crate::log;
use crate::variables::{Evaluate, Found};

/// The address of one end of the client's connection to the proxy.
pub(super) fn address(request: &Request, end: fn(&Told) -> &End, out: &mut Vec<u8>) -> bool {
    let end = request.connection.client.told().map(end);
    end.is_some_and(|end| {
        out.extend_from_slice(&end.address);
        true
    })
}

/// The port of one end; port 0 is found and empty.
pub(super) fn port(request: &Request, end: fn(&Told) -> &End, out: &mut Vec<u8>) -> bool {
    let end = request.connection.client.told().map(end);
    end.is_some_and(|end| end.port == 0 || decimal(end.port.into(), out))
}

/// What else it told, by nginx's names.
pub(super) fn tlv(request: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    let told = request.connection.client.told();
    match told.map_or(Ok(None), |told| told.tlv(name)) {
        Ok(None) => false,
        Ok(Some(Value::Bytes(bytes))) => {
            out.extend_from_slice(bytes);
            true
        }
        Ok(Some(Value::Verify(result))) => decimal(result.into(), out),
        Err(error @ (TlvError::UnknownName | TlvError::InvalidNumber)) => {
            log::error!(request, Error, "{error} \"{}\"", log::Printable(name));
            false
        }
        Err(error) => {
            log::error!(request, Error, "{error}");
            false
        }
    }
}

/// The variable of a name in lower case, without `$`.
pub fn find(name: &str) -> Option<Found> {
    let evaluate: Evaluate = match name {
        "proxy_protocol_addr" => |request, out| address(request, |told| &told.source, out),
        "proxy_protocol_port" => |request, out| port(request, |told| &told.source, out),
        "proxy_protocol_server_addr" => {
            |request, out| address(request, |told| &told.destination, out)
        }
        "proxy_protocol_server_port" => |request, out| port(request, |told| &told.destination, out),
        name => return Found::of_family(name, "proxy_protocol_tlv_", tlv),
    };
    Some(Found::computed(evaluate))
}
