//! Stream sockets: listening, accepting, connecting, receiving and sending; and
//! [`DatagramSocket`]s.
//!
//! Operations belong to the stream, not to the future that waits for them: dropping a future loses
//! no byte and frees no buffer that the kernel may still write to. Of each stream at most one task
//! may wait to receive, and at most one for [`Stream::drained`].

mod address;
mod bound;
mod connect;
mod datagram;
pub(crate) mod datagram_socket;
mod listen;
pub(crate) mod listener;
mod options;
mod segment;
pub mod steering;
mod stored_error;
mod stream;
mod stream_state;
pub(crate) mod table;

pub use address::Address;
pub use bound::BoundSocket;
pub use connect::{connect, connect_with, unconnected};
pub use datagram::Datagram;
pub use datagram_socket::DatagramSocket;
pub use listen::{
    CallError, KeepAlive, ListenOptions, SocketKind, adjust, bound_address, listen, share,
};
pub use listener::{Accept, Listener};
pub use options::{ConnectError, ConnectStep, SocketOptions};
pub use segment::Segment;
pub use stream::{Drained, Recv, Stream};

pub use crate::sys::TcpInfo;

/// The number of this thread's streams that were [finished](Stream::finish) and still have data to
/// send. They are closed without sending it when the runtime ends.
///
/// # Panics
/// If the thread has no runtime.
#[must_use]
pub fn finishing() -> usize {
    crate::worker::enter(|worker| worker.finishing())
}

/// The number of outgoing sockets of this thread: streams and datagram sockets that it has
/// connected or is connecting. A socket counts until it is closed.
///
/// # Panics
/// If the thread has no runtime.
#[must_use]
pub fn outgoing() -> usize {
    crate::worker::enter(|worker| worker.outgoing)
}
