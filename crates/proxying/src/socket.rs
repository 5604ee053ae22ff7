//! `proxy_bind`, `proxy_socket_*`: what the sockets of connections to upstreams are like.

use std::net::SocketAddr;

use ::upstream::Socket;
use bytes::Bytes;
use conf::{Fault, ScopeRef};
use engine::net::SocketOptions;
use framework::compile::Compiler;
use http::config::text::Text;
use http::request::Request;
use http::variables::Compiling as _;

use super::family::{BindLine, Family, local_address};

/// Where connections to the upstream come from.
enum Bind {
    Nothing,
    /// Always the same, as written; port 0 leaves the port to the kernel.
    Fixed(SocketAddr, Bytes),
    Text(Text),
}

/// What a scope says about sockets.
pub struct SocketSettings {
    bind: Bind,
    transparent: bool,
    keepalive: bool,
    receive_buffer: Option<u32>,
    send_buffer: Option<u32>,
}

impl SocketSettings {
    /// What this scope says.
    pub fn compile(
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
    pub fn of_request(&self, request: &mut Request) -> Socket {
        let (from, name) = match &self.bind {
            Bind::Nothing => (None, Bytes::new()),
            Bind::Fixed(address, name) => (Some(*address), name.clone()),
            Bind::Text(text) => {
                let text = text.evaluate(request);
                let address = local_address(&text);
                if address.is_none() && !text.is_empty() {
                    let text = logs::Printable(&text);
                    logs::error!(request, Error, "invalid local address \"{text}\"");
                }
                (address, text)
            }
        };
        Socket {
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
