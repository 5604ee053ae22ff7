//! Stream sockets: listening, accepting, connecting, receiving and sending; and
//! [`DatagramSocket`]s.
//!
//! Operations belong to the stream, not to the future that waits for them: dropping a future loses
//! no byte and frees no buffer that the kernel may still write to. All waiting is for one party
//! each: one receiver and one `drained` a stream.

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

/// How many streams of this thread were [finished](Stream::finish) and have not sent everything
/// yet. They are cut off when the runtime ends.
///
/// # Panics
/// When the thread has no runtime.
#[must_use]
pub fn finishing() -> usize {
    crate::worker::enter(|worker| worker.finishing())
}

/// How many sockets of this thread, of streams and of datagrams, it has connected to others itself,
/// or is about to. One is counted from before it connects until it is closed.
///
/// # Panics
/// When the thread has no runtime.
#[must_use]
pub fn outgoing() -> usize {
    crate::worker::enter(|worker| worker.outgoing)
}
