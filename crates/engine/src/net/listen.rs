//! Making listening sockets, with the options of nginx's `listen` directive that Linux has.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::Address;
use crate::sys;

/// What a socket carries. A port of TCP and one of UDP are two, whatever their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carries {
    /// Streams of bytes: TCP, or a Unix socket.
    #[default]
    Streams,
    /// The socket carries datagrams of UDP.
    Datagrams,
}

/// What a listening socket shall be like. Of one for datagrams nothing else counts than address,
/// `reuseport`, `rcvbuf`, `sndbuf` and `ipv6only`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// The address that the socket listens on.
    pub address: Address,
    /// What comes to the socket.
    pub carries: Carries,
    /// Length of the queue of connections that wait to be accepted; the kernel bounds it by
    /// `net.core.somaxconn`.
    pub backlog: i32,
    /// `SO_REUSEPORT`: several sockets share the address, and the kernel spreads connections over
    /// them.
    pub reuseport: bool,
    /// `TCP_DEFER_ACCEPT`: a connection is accepted when its first bytes are there.
    pub deferred: bool,
    /// `TCP_FASTOPEN` with this queue length.
    pub fastopen: Option<i32>,
    /// TCP keepalive of accepted connections; the system's default if `None`.
    pub so_keepalive: Option<KeepAlive>,
    /// `SO_RCVBUF` in bytes; `None` leaves the system's.
    pub rcvbuf: Option<usize>,
    /// `SO_SNDBUF` in bytes; `None` leaves the system's.
    pub sndbuf: Option<usize>,
    /// `IPV6_V6ONLY`; on if `None`, as in nginx.
    pub ipv6only: Option<bool>,
    /// `TCP_NODELAY`, which accepted connections inherit, so that none needs a call of its own.
    pub nodelay: bool,
    /// Connections may pass the kernel by: says nothing of the socket itself.
    pub xdp: bool,
}

impl ListenOptions {
    /// nginx's defaults for `address`.
    #[must_use]
    pub fn new(address: Address) -> ListenOptions {
        ListenOptions {
            address,
            carries: Carries::Streams,
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

/// A system call that failed, by name, so that logs can say
/// `bind() to 0.0.0.0:80 failed (98: Address already in use)`.
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

/// Creates a socket, sets its options, binds it and, if it is for streams, listens.
///
/// A Unix socket gets mode 0666, as from nginx; an old file at its path is an error (`EADDRINUSE`).
///
/// # Errors
/// The first call that failed.
pub fn listen(options: &ListenOptions) -> Result<OwnedFd, CallError> {
    let socket = new_socket(&options.address, options.carries).map_err(named("socket()"))?;
    set_options(&socket, options)?;
    match &options.address {
        Address::Inet(address) => {
            if options.carries == Carries::Datagrams {
                // Before the first datagram can come: one that waits for the thread which is to
                // receive it tells no address else.
                sys::tell_local_address(socket.as_fd(), *address)
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
    if options.carries == Carries::Streams {
        rustix::net::listen(&socket, options.backlog).map_err(|e| named("listen()")(e.into()))?;
    }
    Ok(socket)
}

/// Where an open socket listens, and for what.
///
/// # Errors
/// When the kernel does not say so.
pub fn bound_address(socket: &OwnedFd) -> io::Result<(Address, Carries)> {
    Ok((sys::local(socket.as_fd())?, carries(socket)?))
}

/// What an open socket carries.
///
/// # Errors
/// When it is no socket.
pub(crate) fn carries(socket: impl AsFd) -> io::Result<Carries> {
    Ok(match sockopt::socket_type(socket)? {
        SocketType::DGRAM => Carries::Datagrams,
        _ => Carries::Streams,
    })
}

fn new_socket(address: &Address, carries: Carries) -> io::Result<OwnedFd> {
    let family = match address {
        Address::Inet(SocketAddr::V4(_)) => AddressFamily::INET,
        Address::Inet(SocketAddr::V6(_)) => AddressFamily::INET6,
        Address::Unix(_) => AddressFamily::UNIX,
    };
    let kind = match carries {
        Carries::Streams => SocketType::STREAM,
        Carries::Datagrams => SocketType::DGRAM,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, kind, flags, None)?)
}

/// What is set before the socket is bound, the changeable options included.
fn set_options(socket: &OwnedFd, o: &ListenOptions) -> Result<(), CallError> {
    // Of datagrams a second server with that option would take those of the first, unnoticed.
    if o.carries == Carries::Streams {
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

/// Lets further sockets listen on the address of an open one (`reuseport` written by a reload).
///
/// # Errors
/// When the kernel refuses `SO_REUSEPORT`.
pub fn share(socket: &OwnedFd) -> Result<(), CallError> {
    sockopt::set_socket_reuseport(socket, true).map_err(failed("setsockopt(SO_REUSEPORT)"))
}

/// Gives an open listening socket these options, all but the ones that are fixed when it is bound
/// (`reuseport`, `ipv6only`). An option that is not written stays as it is where the kernel's
/// default is unknown, as in nginx.
///
/// Every call is tried; those that failed come back.
#[must_use]
pub fn adjust(socket: &OwnedFd, options: &ListenOptions) -> Vec<CallError> {
    let mut results = changeable(socket, options);
    if options.carries == Carries::Datagrams {
        return results.into_iter().filter_map(Result::err).collect();
    }
    if matches!(options.address, Address::Inet(_)) && !options.deferred {
        results.push(defer_accept(socket, 0));
    }
    // The queue's length is changed by listening again.
    let listen = rustix::net::listen(socket, options.backlog);
    results.push(listen.map_err(failed("listen()")));
    results.into_iter().filter_map(Result::err).collect()
}

/// Sets the options that an open socket can be given as well.
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
    if matches!(o.address, Address::Unix(_)) || o.carries == Carries::Datagrams {
        return results;
    }
    let nodelay = sockopt::set_tcp_nodelay(socket, o.nodelay);
    results.push(nodelay.map_err(failed("setsockopt(TCP_NODELAY)")));
    if o.deferred {
        // nginx's value, one second: the kernel gives up deferring after that.
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

fn failed(call: &'static str) -> impl Fn(rustix::io::Errno) -> CallError {
    move |error| named(call)(error.into())
}

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
        // The kernel doubles it for its own books.
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
