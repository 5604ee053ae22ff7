//! Creates listening sockets, with the options of nginx's `listen` directive that Linux supports.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::Address;
use crate::sys;

/// The kind of traffic of a socket. TCP and UDP ports with the same number are distinct.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketKind {
    /// Streams of bytes: TCP, or a Unix socket.
    #[default]
    Streams,
    /// UDP datagrams.
    Datagrams,
}

/// The options of a listening socket. A datagram socket uses only the address, `reuseport`,
/// `rcvbuf`, `sndbuf` and `ipv6only`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// The address that the socket listens on.
    pub address: Address,
    /// The kind of traffic.
    pub carries: SocketKind,
    /// Length of the queue of connections that wait to be accepted; the kernel limits it to
    /// `net.core.somaxconn`.
    pub backlog: i32,
    /// `SO_REUSEPORT`: several sockets share the address, and the kernel distributes connections
    /// among them.
    pub reuseport: bool,
    /// `TCP_DEFER_ACCEPT`: a connection can be accepted once its first bytes have arrived.
    pub deferred: bool,
    /// `TCP_FASTOPEN` with this queue length.
    pub fastopen: Option<i32>,
    /// TCP keepalive of accepted connections; the system's default if `None`.
    pub so_keepalive: Option<KeepAlive>,
    /// `SO_RCVBUF` in bytes; the system's default if `None`.
    pub rcvbuf: Option<usize>,
    /// `SO_SNDBUF` in bytes; the system's default if `None`.
    pub sndbuf: Option<usize>,
    /// `IPV6_V6ONLY`; on if `None`, as in nginx.
    pub ipv6only: Option<bool>,
    /// `TCP_NODELAY`, which accepted connections inherit, so that no call per connection is needed.
    pub nodelay: bool,
    /// Whether connections may bypass the kernel by AF_XDP. Does not affect the socket itself.
    pub xdp: bool,
}

impl ListenOptions {
    /// nginx's defaults for `address`.
    #[must_use]
    pub fn new(address: Address) -> ListenOptions {
        ListenOptions {
            address,
            carries: SocketKind::Streams,
            backlog: 511,
            reuseport: false,
            deferred: false,
            fastopen: None,
            so_keepalive: None,
            rcvbuf: None,
            sndbuf: None,
            ipv6only: None,
            nodelay: false,
            xdp: false,
        }
    }
}

/// TCP keepalive: nginx's `so_keepalive=on|off|[idle]:[interval]:[count]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// No probes are sent on idle connections.
    Off,
    /// Probes are sent; a value that is `None` is the system's default.
    On {
        /// `TCP_KEEPIDLE`: idle time before the first probe, in whole seconds.
        idle: Option<Duration>,
        /// `TCP_KEEPINTVL`: time between probes, in whole seconds.
        interval: Option<Duration>,
        /// `TCP_KEEPCNT`: unanswered probes before the connection is closed.
        count: Option<u32>,
    },
}

/// A failed system call, by name, so that logs can say `bind() to 0.0.0.0:80 failed (98: Address
/// already in use)`.
#[derive(Debug)]
pub struct CallError {
    /// The call with its parentheses: `bind()`, `setsockopt(SO_REUSEPORT)`.
    pub call: &'static str,
    /// The error that the call returned.
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

/// Creates a socket, sets its options, binds it and, for streams, listens.
///
/// A Unix socket gets mode 0666, as with nginx. An existing file at its path is an error
/// (`EADDRINUSE`).
///
/// # Errors
/// The first call that failed.
pub fn listen(options: &ListenOptions) -> Result<OwnedFd, CallError> {
    let socket = new_socket(&options.address, options.carries).map_err(named("socket()"))?;
    set_options(&socket, options)?;
    match &options.address {
        Address::Inet(address) => {
            if options.carries == SocketKind::Datagrams {
                // Set this before the bind, so that every datagram carries its local address: one
                // that arrives earlier would not.
                sys::enable_packet_info(socket.as_fd(), *address)
                    .map_err(named("setsockopt(IP_PKTINFO)"))?;
            }
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
    if options.carries == SocketKind::Streams {
        rustix::net::listen(&socket, options.backlog).map_err(|e| named("listen()")(e.into()))?;
    }
    Ok(socket)
}

/// The address and the kind of traffic of an open socket.
///
/// # Errors
/// If the kernel does not report them.
pub fn bound_address(socket: &OwnedFd) -> io::Result<(Address, SocketKind)> {
    Ok((sys::local(socket.as_fd())?, carries(socket)?))
}

/// The kind of traffic of an open socket.
///
/// # Errors
/// If the descriptor is not a socket.
pub(crate) fn carries(socket: impl AsFd) -> io::Result<SocketKind> {
    Ok(match sockopt::socket_type(socket)? {
        SocketType::DGRAM => SocketKind::Datagrams,
        _ => SocketKind::Streams,
    })
}

fn new_socket(address: &Address, carries: SocketKind) -> io::Result<OwnedFd> {
    let family = match address {
        Address::Inet(SocketAddr::V4(_)) => AddressFamily::INET,
        Address::Inet(SocketAddr::V6(_)) => AddressFamily::INET6,
        Address::Unix(_) => AddressFamily::UNIX,
    };
    let kind = match carries {
        SocketKind::Streams => SocketType::STREAM,
        SocketKind::Datagrams => SocketType::DGRAM,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, kind, flags, None)?)
}

/// Sets the options that must be set before the bind, and those that can be changed later.
fn set_options(socket: &OwnedFd, o: &ListenOptions) -> Result<(), CallError> {
    // With SO_REUSEADDR a second server could silently bind the same UDP port and take the
    // datagrams of the first.
    if o.carries == SocketKind::Streams {
        sockopt::set_socket_reuseaddr(socket, true).map_err(failed("setsockopt(SO_REUSEADDR)"))?;
    }
    if let Address::Inet(address) = &o.address {
        if o.reuseport {
            share(socket)?;
        }
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(socket, o.ipv6only.unwrap_or(true))
                .map_err(failed("setsockopt(IPV6_V6ONLY)"))?;
        }
    }
    changeable(socket, o).into_iter().collect()
}

/// Lets further sockets listen on the address of an open socket, when a reload adds `reuseport`.
///
/// # Errors
/// If the kernel rejects `SO_REUSEPORT`.
pub fn share(socket: &OwnedFd) -> Result<(), CallError> {
    sockopt::set_socket_reuseport(socket, true).map_err(failed("setsockopt(SO_REUSEPORT)"))
}

/// Applies these options to an open listening socket, except those that are fixed by the bind
/// (`reuseport`, `ipv6only`). An option that is not configured keeps its current value if the
/// kernel's default is unknown, as in nginx.
///
/// All calls are tried; the failed ones are returned.
#[must_use]
pub fn adjust(socket: &OwnedFd, options: &ListenOptions) -> Vec<CallError> {
    let mut results = changeable(socket, options);
    if options.carries == SocketKind::Datagrams {
        return results.into_iter().filter_map(Result::err).collect();
    }
    if matches!(options.address, Address::Inet(_)) && !options.deferred {
        results.push(defer_accept(socket, 0));
    }
    // Listening again changes the length of the queue.
    let listen = rustix::net::listen(socket, options.backlog);
    results.push(listen.map_err(failed("listen()")));
    results.into_iter().filter_map(Result::err).collect()
}

/// Sets the options that can also be changed later, on an open socket. Returns the result of each
/// call.
fn changeable(socket: &OwnedFd, o: &ListenOptions) -> Vec<Result<(), CallError>> {
    let mut results = Vec::new();
    if let Some(bytes) = o.rcvbuf {
        let result = sockopt::set_socket_recv_buffer_size(socket, bytes);
        results.push(result.map_err(failed("setsockopt(SO_RCVBUF)")));
    }
    if let Some(bytes) = o.sndbuf {
        let result = sockopt::set_socket_send_buffer_size(socket, bytes);
        results.push(result.map_err(failed("setsockopt(SO_SNDBUF)")));
    }
    if matches!(o.address, Address::Unix(_)) || o.carries == SocketKind::Datagrams {
        return results;
    }
    let nodelay = sockopt::set_tcp_nodelay(socket, o.nodelay);
    results.push(nodelay.map_err(failed("setsockopt(TCP_NODELAY)")));
    if o.deferred {
        // nginx's value, one second, after which the kernel stops deferring.
        results.push(defer_accept(socket, 1));
    }
    if let Some(length) = o.fastopen {
        let fd = socket.as_fd();
        let result = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, length);
        results.push(result.map_err(named("setsockopt(TCP_FASTOPEN)")));
    }
    if let Some(keepalive) = o.so_keepalive {
        set_keepalive(socket, keepalive, &mut results);
    }
    results
}

fn defer_accept(socket: &OwnedFd, seconds: i32) -> Result<(), CallError> {
    let fd = socket.as_fd();
    sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, seconds)
        .map_err(named("setsockopt(TCP_DEFER_ACCEPT)"))
}

fn set_keepalive(socket: &OwnedFd, keepalive: KeepAlive, results: &mut Vec<Result<(), CallError>>) {
    let on = matches!(keepalive, KeepAlive::On { .. });
    let result = sockopt::set_socket_keepalive(socket, on);
    results.push(result.map_err(failed("setsockopt(SO_KEEPALIVE)")));
    let KeepAlive::On {
        idle,
        interval,
        count,
    } = keepalive
    else {
        return;
    };
    if let Some(idle) = idle {
        let result = sockopt::set_tcp_keepidle(socket, idle);
        results.push(result.map_err(failed("setsockopt(TCP_KEEPIDLE)")));
    }
    if let Some(interval) = interval {
        let result = sockopt::set_tcp_keepintvl(socket, interval);
        results.push(result.map_err(failed("setsockopt(TCP_KEEPINTVL)")));
    }
    if let Some(count) = count {
        let result = sockopt::set_tcp_keepcnt(socket, count);
        results.push(result.map_err(failed("setsockopt(TCP_KEEPCNT)")));
    }
}

/// Like [`named`], for an `Errno`.
fn failed(call: &'static str) -> impl Fn(rustix::io::Errno) -> CallError {
    move |error| named(call)(error.into())
}

/// Adds the name of the failed call to an error.
fn named(call: &'static str) -> impl Fn(io::Error) -> CallError {
    move |error| CallError { call, error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn an_open_socket_takes_new_options() {
        let address = Address::Inet(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let mut options = ListenOptions::new(address);
        let socket = listen(&options).unwrap();
        options.rcvbuf = Some(8192);
        options.nodelay = true;
        options.so_keepalive = Some(KeepAlive::On {
            idle: Some(Duration::from_secs(77)),
            interval: None,
            count: Some(3),
        });
        assert!(adjust(&socket, &options).is_empty());
        // The kernel doubles the size, to account for its own overhead.
        assert_eq!(sockopt::socket_recv_buffer_size(&socket).unwrap(), 16384);
        assert!(sockopt::tcp_nodelay(&socket).unwrap());
        let idle = sockopt::tcp_keepidle(&socket).unwrap();
        assert_eq!(idle, Duration::from_secs(77));
        options.so_keepalive = Some(KeepAlive::Off);
        assert!(adjust(&socket, &options).is_empty());
        assert!(!sockopt::socket_keepalive(&socket).unwrap());
    }

    #[test]
    fn what_cannot_be_set_is_named() {
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let address = Address::Inet(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let calls: Vec<_> = adjust(&file, &ListenOptions::new(address))
            .iter()
            .map(|failed| failed.call)
            .collect();
        assert_eq!(
            calls,
            [
                "setsockopt(TCP_NODELAY)",
                "setsockopt(TCP_DEFER_ACCEPT)",
                "listen()"
            ]
        );
    }
}
