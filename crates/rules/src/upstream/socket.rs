//! The socket settings of connections to upstreams: `proxy_bind`, `proxy_socket_*`, and the same
//! directives of other modules.

use std::net::{IpAddr, SocketAddr};

use ::upstream::Socket;
use bytes::Bytes;
use conf::{Fault, ScopeRef, Setter, Setting, Template};
use engine::net::SocketOptions;
use framework::compile::Compiler;
use logs::{Printable, Subject};
use variables::{Compiling as _, Context, Text};

/// The value of `*_bind`.
pub enum BindLine {
    /// `off`.
    Off,
    /// A fixed address.
    Fixed {
        /// The address, with port 0 if none is set.
        address: SocketAddr,
        /// The address as it is written in the configuration.
        name: Bytes,
        /// `transparent`: the address need not belong to this machine.
        transparent: bool,
    },
    /// An address with variables.
    Variable {
        /// The address with its variables.
        template: Template,
        /// `transparent`: the address need not belong to this machine.
        transparent: bool,
    },
}

impl BindLine {
    /// Parses a line of `*_bind`.
    ///
    /// # Errors
    /// If the address is invalid, or the second parameter is not `transparent`.
    pub fn parse(setter: &Setter<'_>) -> Result<BindLine, Fault> {
        let word = setter.word()?;
        let parameter = setter.args().get(1);
        if &*word.bytes == b"off" && parameter.is_none() {
            return Ok(BindLine::Off);
        }
        let template = Template::parse(word)?;
        let address = match template.as_literal() {
            None => None,
            Some(text) => {
                let invalid = || Fault::at(word, format!("invalid address \"{}\"", word.text()));
                Some(local_address(text).ok_or_else(invalid)?)
            }
        };
        let transparent = match parameter {
            None => false,
            Some(word) if &*word.bytes == b"transparent" => true,
            Some(word) => return Err(Fault::invalid_parameter(word)),
        };
        Ok(match address {
            Some(address) => BindLine::Fixed {
                address,
                name: Bytes::copy_from_slice(&word.bytes),
                transparent,
            },
            None => BindLine::Variable {
                template,
                transparent,
            },
        })
    }
}

/// Parses an IP address with or without a port; IPv6 with a port is in brackets.
fn local_address(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    match bare.unwrap_or(text).parse::<IpAddr>() {
        Ok(address) => Some(SocketAddr::new(address, 0)),
        Err(_) => text
            .parse::<SocketAddr>()
            .ok()
            .filter(|address| address.port() > 0),
    }
}

/// The socket directives of a module.
pub struct SocketDirectives {
    /// `*_bind`.
    pub bind: &'static Setting<BindLine>,
    /// `*_socket_keepalive`.
    pub keepalive: &'static Setting<bool>,
    /// `*_socket_rcvbuf`, in bytes; 0 leaves the kernel's size.
    pub receive_buffer: &'static Setting<u64>,
    /// `*_socket_sndbuf`, in bytes; 0 leaves the kernel's size.
    pub send_buffer: &'static Setting<u64>,
}

/// The compiled local address of connections.
enum Bind<C: Context> {
    Nothing,
    /// A fixed address, and its text in the configuration. For port 0, the kernel chooses the port.
    Fixed(SocketAddr, Bytes),
    Text(Text<C>),
}

/// The socket settings of a scope.
pub struct SocketSettings<C: Context> {
    bind: Bind<C>,
    /// All options except for the local address.
    options: SocketOptions,
}

impl<C: Context> SocketSettings<C> {
    /// Compiles the settings of a scope.
    ///
    /// # Errors
    /// An invalid value, with its position.
    pub fn compile(
        compiler: &Compiler<'_>,
        scope: ScopeRef<'_>,
        directives: &SocketDirectives,
    ) -> Result<SocketSettings<C>, Fault> {
        let (bind, transparent) = match scope.written(directives.bind)? {
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
            options: SocketOptions {
                from: None,
                transparent,
                keepalive: scope.get(directives.keepalive)?,
                receive_buffer: size(scope.get(directives.receive_buffer)?),
                send_buffer: size(scope.get(directives.send_buffer)?),
            },
        })
    }
}

impl<C: Context + Subject> SocketSettings<C> {
    /// The socket options for a request or session. An invalid local address is logged, and the
    /// kernel chooses one.
    pub fn evaluate(&self, context: &mut C) -> Socket {
        let (from, name) = match &self.bind {
            Bind::Nothing => (None, Bytes::new()),
            Bind::Fixed(address, name) => (Some(*address), name.clone()),
            Bind::Text(text) => {
                let text = text.evaluate(context);
                let address = local_address(&text);
                if address.is_none() && !text.is_empty() {
                    let text = Printable(&text);
                    logs::error!(context, Error, "invalid local address \"{text}\"");
                }
                (address, text)
            }
        };
        Socket {
            options: SocketOptions {
                from,
                ..self.options
            },
            name,
        }
    }
}
