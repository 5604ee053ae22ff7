//! Which end of an interface's connections the engine is.

/// The engine's end of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Peers connect to the engine's listeners ([`Filter::take`](super::Filter::take)).
    #[default]
    Server,
    /// The engine connects through this interface only, from the interface's first address. The
    /// interface has one queue then: the card chooses the queue of received frames, and other
    /// threads would not know the connection.
    Client,
}
