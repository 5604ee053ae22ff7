//! Making listening sockets, with the options of nginx's `listen` directive that Linux has.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::Address;
use crate::sys;

/// What a listening socket shall be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Where to listen.
    pub address: Address,
    /// Length of the queue of connections that wait to be accepted; the kernel bounds it by `net.core.somaxconn`.
    pub backlog: i32,
    /// `SO_REUSEPORT`: several sockets share the address, and the kernel spreads connections over them.
    pub reuseport: bool,
    /// `TCP_DEFER_ACCEPT`: a connection is accepted when its first bytes are there.
    pub deferred: bool,
    /// `TCP_FASTOPEN` with this queue length.
    pub fastopen: Option<i32>,
    /// TCP keepalive of accepted connections; the system's default if `None`.
    pub so_keepalive: Option<KeepAlive>,
    /// `SO_RCVBUF` in bytes.
    pub rcvbuf: Option<usize>,
    /// `SO_SNDBUF` in bytes.
    pub sndbuf: Option<usize>,
    /// `IPV6_V6ONLY`; on if `None`, as in nginx.
    pub ipv6only: Option<bool>,
    /// `TCP_NODELAY`, which accepted connections inherit, so that none needs a call of its own.
    pub nodelay: bool,
}

impl ListenOptions {
    /// nginx's defaults for `address`.
    #[must_use]
    pub fn new(address: Address) -> ListenOptions {
        ListenOptions {
            address,
            backlog: 511,
            reuseport: false,
            deferred: false,
            fastopen: None,
            so_keepalive: None,
            rcvbuf: None,
            sndbuf: None,
            ipv6only: None,
            nodelay: false,
        }
    }
}

/// TCP keepalive: nginx's `so_keepalive=on|off|[idle]:[interval]:[count]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// No probes.
    Off,
    /// Probes; each value is the system's where it is `None`.
    On {
        /// `TCP_KEEPIDLE`: silence before the first probe, whole seconds.
        idle: Option<Duration>,
        /// `TCP_KEEPINTVL`: time between probes, whole seconds.
        interval: Option<Duration>,
        /// `TCP_KEEPCNT`: probes without an answer before the connection is dead.
        count: Option<u32>,
    },
}

/// A system call that failed, by name, so that logs can say `bind() to 0.0.0.0:80 failed (98: Address already in use)`.
#[derive(Debug)]
pub struct CallError {
    /// The call with its parentheses: `bind()`, `setsockopt(SO_REUSEPORT)`.
    pub call: &'static str,
    /// What it returned.
    pub error: io::Error,
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed: {}", self.call, self.error)
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<CallError> for io::Error {
    fn from(error: CallError) -> io::Error {
        error.error
    }
}

/// Creates a socket, sets its options, binds it and listens.
///
/// A Unix socket gets mode 0666, as from nginx; an old file at its path is an error (`EADDRINUSE`).
///
/// # Errors
/// The first call that failed.
pub fn listen(options: &ListenOptions) -> Result<OwnedFd, CallError> {
    let socket = new_socket(&options.address).map_err(named("socket()"))?;
    set_options(&socket, options)?;
    match &options.address {
        Address::Inet(address) => {
            rustix::net::bind(&socket, address).map_err(|e| named("bind()")(e.into()))?;
        }
        Address::Unix(path) => {
            let address = sys::unix_address(path).map_err(named("bind()"))?;
            rustix::net::bind(&socket, &address).map_err(|e| named("bind()")(e.into()))?;
            if address.path().is_some() {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))
                    .map_err(named("chmod()"))?;
            }
        }
    }
    rustix::net::listen(&socket, options.backlog).map_err(|e| named("listen()")(e.into()))?;
    Ok(socket)
}

fn new_socket(address: &Address) -> io::Result<OwnedFd> {
    let family = match address {
        Address::Inet(SocketAddr::V4(_)) => AddressFamily::INET,
        Address::Inet(SocketAddr::V6(_)) => AddressFamily::INET6,
        Address::Unix(_) => AddressFamily::UNIX,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(
        family,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

fn set_options(socket: &OwnedFd, o: &ListenOptions) -> Result<(), CallError> {
    let rustix = |call| {
        move |error: rustix::io::Errno| CallError {
            call,
            error: error.into(),
        }
    };

    sockopt::set_socket_reuseaddr(socket, true).map_err(rustix("setsockopt(SO_REUSEADDR)"))?;
    if let Some(bytes) = o.rcvbuf {
        sockopt::set_socket_recv_buffer_size(socket, bytes)
            .map_err(rustix("setsockopt(SO_RCVBUF)"))?;
    }
    if let Some(bytes) = o.sndbuf {
        sockopt::set_socket_send_buffer_size(socket, bytes)
            .map_err(rustix("setsockopt(SO_SNDBUF)"))?;
    }
    let Address::Inet(address) = &o.address else {
        return Ok(());
    };
    if o.reuseport {
        sockopt::set_socket_reuseport(socket, true).map_err(rustix("setsockopt(SO_REUSEPORT)"))?;
    }
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(socket, o.ipv6only.unwrap_or(true))
            .map_err(rustix("setsockopt(IPV6_V6ONLY)"))?;
    }
    if o.nodelay {
        sockopt::set_tcp_nodelay(socket, true).map_err(rustix("setsockopt(TCP_NODELAY)"))?;
    }
    if o.deferred {
        // nginx's value, one second: the kernel gives up deferring after that.
        sys::set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 1)
            .map_err(named("setsockopt(TCP_DEFER_ACCEPT)"))?;
    }
    if let Some(length) = o.fastopen {
        sys::set_option(
            socket.as_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_FASTOPEN,
            length,
        )
        .map_err(named("setsockopt(TCP_FASTOPEN)"))?;
    }
    match o.so_keepalive {
        None => {}
        Some(KeepAlive::Off) => sockopt::set_socket_keepalive(socket, false)
            .map_err(rustix("setsockopt(SO_KEEPALIVE)"))?,
        Some(KeepAlive::On {
            idle,
            interval,
            count,
        }) => {
            sockopt::set_socket_keepalive(socket, true)
                .map_err(rustix("setsockopt(SO_KEEPALIVE)"))?;
            if let Some(idle) = idle {
                sockopt::set_tcp_keepidle(socket, idle)
                    .map_err(rustix("setsockopt(TCP_KEEPIDLE)"))?;
            }
            if let Some(interval) = interval {
                sockopt::set_tcp_keepintvl(socket, interval)
                    .map_err(rustix("setsockopt(TCP_KEEPINTVL)"))?;
            }
            if let Some(count) = count {
                sockopt::set_tcp_keepcnt(socket, count)
                    .map_err(rustix("setsockopt(TCP_KEEPCNT)"))?;
            }
        }
    }
    Ok(())
}

fn named(call: &'static str) -> impl Fn(io::Error) -> CallError {
    move |error| CallError { call, error }
}
