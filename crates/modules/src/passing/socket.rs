//! `proxy_bind`, `proxy_socket_*`: what the sockets of connections to upstreams are like.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use conf::{Fault, ScopeRef};
use engine::net::{ConnectStep, SocketOptions};
use framework::compile::Compiler;
use framework::workers::{ConnectError, NotEnough};
use http::log;
use http::request::Request;
use http::text::Text;
use http::variables::Compiling as _;

use super::family::{BindLine, Family, local_address};
use super::tries::CONNECTING;

/// Where connections to the upstream come from.
enum Bind {
    /// The kernel chooses.
    Nothing,
    /// Always the same, as written; port 0 leaves the port to the kernel.
    Fixed(SocketAddr, Bytes),
    /// With variables.
    Text(Text),
}

/// What a scope says about sockets.
pub(crate) struct SocketSettings {
    bind: Bind,
    transparent: bool,
    keepalive: bool,
    receive_buffer: Option<u32>,
    send_buffer: Option<u32>,
}

/// What the sockets of one request are to be.
#[derive(Default)]
pub(crate) struct RequestSocket {
    pub(crate) options: SocketOptions,
    /// The local address as the configuration has it, for log lines.
    name: Bytes,
}

impl SocketSettings {
    /// What this scope says.
    pub(crate) fn compile(
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
        family: &Family,
    ) -> Result<SocketSettings, Fault> {
        let (bind, transparent) = match scope.written(&family.bind)? {
            None | Some(BindLine::Off) => (Bind::Nothing, false),
            Some(BindLine::Fixed {
                address,
                name,
                transparent,
            }) => (Bind::Fixed(address, name), transparent),
            Some(BindLine::Variable {
                template,
                transparent,
            }) => (Bind::Text(compiler.text(&template)), transparent),
        };
        let size = |size: u64| (size > 0).then(|| u32::try_from(size).unwrap_or(u32::MAX));
        Ok(SocketSettings {
            bind,
            transparent,
            keepalive: scope.get(&family.socket_keepalive)?,
            receive_buffer: size(scope.get(&family.socket_rcvbuf)?),
            send_buffer: size(scope.get(&family.socket_sndbuf)?),
        })
    }

    /// What it means for a request.
    pub(crate) fn of_request(&self, request: &mut Request) -> RequestSocket {
        let (from, name) = match &self.bind {
            Bind::Nothing => (None, Bytes::new()),
            Bind::Fixed(address, name) => (Some(*address), name.clone()),
            Bind::Text(text) => {
                let text = text.evaluate(request);
                let address = local_address(&text);
                if address.is_none() && !text.is_empty() {
                    let text = log::Printable(&text);
                    log::error!(request, Error, "invalid local address \"{text}\"");
                }
                (address, text)
            }
        };
        RequestSocket {
            options: SocketOptions {
                from,
                transparent: self.transparent,
                keepalive: self.keepalive,
                receive_buffer: self.receive_buffer,
                send_buffer: self.send_buffer,
            },
            name,
        }
    }
}

impl RequestSocket {
    /// The error of `connect()`. `None` where there is no socket to connect with, or no room for
    /// one, which is no peer's fault: the log is told.
    pub(crate) fn error_of_peer(
        &self,
        request: &Request,
        failed: ConnectError,
    ) -> Option<io::Error> {
        let failed = match failed {
            ConnectError::Failed(failed) => failed,
            ConnectError::NotEnough(shortage) => {
                note_shortage(request, shortage);
                return None;
            }
        };
        let error = log::Errno(&failed.error);
        match failed.step {
            ConnectStep::Connect => return Some(failed.error),
            ConnectStep::Socket => {
                log::error!(request, Alert, "socket() failed {error} {CONNECTING}");
            }
            ConnectStep::Transparent => {
                let option = match self.options.from {
                    Some(SocketAddr::V6(_)) => "IPV6_TRANSPARENT",
                    _ => "IP_TRANSPARENT",
                };
                log::error!(
                    request,
                    Alert,
                    "setsockopt({option}) failed {error} {CONNECTING}"
                );
            }
            ConnectStep::Bind => {
                let name = log::Printable(&self.name);
                log::error!(request, Crit, "bind({name}) failed {error} {CONNECTING}");
            }
        }
        None
    }
}

/// No place is left for a connection to a peer, or for one more request that shares one.
pub(super) fn note_shortage(request: &Request, shortage: NotEnough) {
    if shortage.is_told {
        log::error!(request, Alert, "{shortage} {CONNECTING}");
    }
}
