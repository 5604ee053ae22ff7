//! `listen … proxy_protocol`: connections that begin with a PROXY protocol header.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#listen>. The header is read before TLS
//! and HTTP; `proto::proxy_protocol` parses it. Its values stay with the connection, for variables
//! and `realip`; by themselves they change nothing.
//!
//! A header may arrive in pieces, unlike with nginx, which closes such connections. For a
//! connection without a header, the variables are not found.

use std::io;
use std::time::Instant;

use bytes::Bytes;
use engine::Buffer;
use framework::address::append_address;
use logs::network::{TIMED_OUT, failure_level};
use logs::{Errno, Level, Printable, Subject, write};
use proto::proxy_protocol::{self, Address, Endpoint, Header, TlvError, Tlvs, Value};
use variables::write::decimal;
use variables::{BuiltinVariable, Evaluate};

use crate::client::{Client, HasClient};
use crate::incoming::Incoming;

/// Length limit of a header, in bytes, except before HTTP requests (nginx's
/// `NGX_PROXY_PROTOCOL_MAX_HEADER`). Before a request the limit is the size of the head buffer.
pub const LENGTH_MAX: usize = 4096;

/// The PROXY protocol header of one connection.
#[derive(Debug)]
pub struct ProxyHeader {
    /// The client's end of its connection to the proxy.
    pub source: ProxiedEndpoint,
    /// The proxy's end of the client's connection.
    pub destination: ProxiedEndpoint,
    tlvs: Box<[u8]>,
}

/// One end of the connection between client and proxy.
#[derive(Debug)]
pub struct ProxiedEndpoint {
    /// The address as variables show it. Not validated beyond the characters that addresses consist
    /// of.
    pub address: Bytes,
    /// The port of the proxied endpoint.
    pub port: u16,
}

impl ProxiedEndpoint {
    fn new(endpoint: Endpoint<'_>) -> ProxiedEndpoint {
        let address = match endpoint.address {
            Address::Text(text) => Bytes::copy_from_slice(text),
            Address::Ip(ip) => {
                let mut text = Vec::new();
                append_address(&engine::net::Address::Inet((ip, 0).into()), &mut text);
                text.into()
            }
        };
        ProxiedEndpoint {
            address,
            port: endpoint.port,
        }
    }
}

impl ProxyHeader {
    fn new(told: proxy_protocol::ProxiedConnection<'_>) -> ProxyHeader {
        ProxyHeader {
            source: ProxiedEndpoint::new(told.source),
            destination: ProxiedEndpoint::new(told.destination),
            tlvs: told.tlvs.0.into(),
        }
    }

    /// The value of `$proxy_protocol_tlv_NAME`.
    pub fn tlv(&self, name: &[u8]) -> Result<Option<Value<'_>>, TlvError> {
        Tlvs(&self.tlvs).named(name)
    }
}

/// Why the header could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoHeader {
    /// No header has been received: the client closed, timed out, or the connection failed.
    Missing,
    /// The received bytes are no header.
    Broken,
}

/// Reads the header, within a length limit and a deadline, stores its values and returns the bytes
/// that follow it.
///
/// # Errors
/// If there is no valid header, which has been logged; the caller closes the connection.
pub async fn receive<I: Incoming>(
    connection: &I,
    length_max: usize,
    deadline: Instant,
) -> Result<Buffer, NoHeader> {
    let counts = connection.counts();
    // The received pieces of a header that did not arrive at once.
    let mut pieces: Vec<u8> = Vec::new();
    connection.set_idle(true);
    loop {
        counts.waiting.add(1);
        let received = connection.transport().recv(Some(deadline)).await;
        counts.waiting.subtract(1);
        let mut input = match received {
            Ok(input) if !input.is_empty() => input,
            Ok(_) => {
                log_missing_header(connection, None);
                return Err(NoHeader::Missing);
            }
            Err(error) => {
                log_missing_header(connection, Some(&error));
                return Err(NoHeader::Missing);
            }
        };
        let before = pieces.len();
        if before > 0 {
            pieces.extend_from_slice(&input);
        }
        let bytes = if before > 0 { &pieces[..] } else { &input[..] };
        match proxy_protocol::parse(bytes, length_max) {
            Ok(Some(Header { length, told })) => {
                connection
                    .client()
                    .set_proxy_header(told.map(ProxyHeader::new));
                input.advance(length.saturating_sub(before));
                connection.set_idle(false);
                return Ok(input);
            }
            Ok(None) if before > 0 => {}
            Ok(None) => pieces.extend_from_slice(&input),
            Err(error) => {
                log_invalid_header(connection, &error.log_text());
                return Err(NoHeader::Broken);
            }
        }
    }
}

/// Stores the values of the header that a datagram begins with, and returns its length in bytes.
///
/// # Errors
/// If there is no whole header.
pub fn take<'a>(client: &Client, datagram: &'a [u8]) -> Result<usize, proxy_protocol::Error<'a>> {
    let Header { length, told } = proxy_protocol::parse_datagram(datagram, LENGTH_MAX)?;
    client.set_proxy_header(told.map(ProxyHeader::new));
    Ok(length)
}

/// Logs that no header was received: the client closed, or receiving failed.
fn log_missing_header(client: &dyn Subject, cause: Option<&io::Error>) {
    const ACTION: &str = "reading PROXY protocol";
    match cause {
        None => {
            let text = format_args!("client closed connection while {ACTION}");
            write(client, Level::Info, text);
        }
        Some(cause) if cause.kind() == io::ErrorKind::TimedOut => {
            let text = format_args!("client timed out {TIMED_OUT} while {ACTION}");
            write(client, Level::Info, text);
        }
        Some(cause) => {
            let text = format_args!("recv() failed {} while {ACTION}", Errno(cause));
            write(client, failure_level(cause), text);
        }
    }
}

/// Logs that the received bytes are not a header.
fn log_invalid_header(client: &dyn Subject, text: &[u8]) {
    let text = format_args!("{} while reading PROXY protocol", Printable(text));
    write(client, Level::Error, text);
}

/// The address of one end of the client's connection to the proxy.
fn address<C: HasClient>(
    context: &C,
    end: fn(&ProxyHeader) -> &ProxiedEndpoint,
    out: &mut Vec<u8>,
) -> bool {
    let end = context.client().proxy_header().map(end);
    end.is_some_and(|end| {
        out.extend_from_slice(&end.address);
        true
    })
}

/// The port of one end. Port 0 gives an empty value, but counts as found.
fn port<C: HasClient>(
    context: &C,
    end: fn(&ProxyHeader) -> &ProxiedEndpoint,
    out: &mut Vec<u8>,
) -> bool {
    let end = context.client().proxy_header().map(end);
    end.is_some_and(|end| end.port == 0 || decimal(end.port.into(), out))
}

/// The value of the TLV (a type-length-value field of the header) with nginx's name for it.
fn tlv<C: HasClient>(context: &mut C, name: &[u8], out: &mut Vec<u8>) -> bool {
    let told = context.client().proxy_header();
    match told.map_or(Ok(None), |told| told.tlv(name)) {
        Ok(None) => false,
        Ok(Some(Value::Bytes(bytes))) => {
            out.extend_from_slice(bytes);
            true
        }
        Ok(Some(Value::Verify(result))) => decimal(result.into(), out),
        Err(error @ (TlvError::UnknownName | TlvError::InvalidNumber)) => {
            logs::error!(context, Error, "{error} \"{}\"", Printable(name));
            false
        }
        Err(error) => {
            logs::error!(context, Error, "{error}");
            false
        }
    }
}

/// The variable with this name (in lower case, without `$`).
pub fn find<C: HasClient>(name: &str) -> Option<BuiltinVariable<C>> {
    let evaluate: Evaluate<C> = match name {
        "proxy_protocol_addr" => |context, out| address(context, |told| &told.source, out),
        "proxy_protocol_port" => |context, out| port(context, |told| &told.source, out),
        "proxy_protocol_server_addr" => {
            |context, out| address(context, |told| &told.destination, out)
        }
        "proxy_protocol_server_port" => |context, out| port(context, |told| &told.destination, out),
        name => return BuiltinVariable::of_family(name, "proxy_protocol_tlv_", tlv),
    };
    Some(BuiltinVariable::computed(evaluate))
}
