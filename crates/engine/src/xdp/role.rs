//! Which end of the connections of an interface we are.

/// Which end of connections we are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Others connect to listeners of ours ([`Filter::take`](super::Filter::take)).
    #[default]
    Server,
    /// The engine connects by the interface alone, from the interface's first address. There is
    /// one queue then: answers come to the queue that the card chooses, and no other thread could
    /// know the connection.
    Client,
}
