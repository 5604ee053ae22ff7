//! A connection before the protocol of its address begins, as seen by what comes first: the header
//! of the PROXY protocol, and the handshake of TLS.

use std::rc::Rc;

use framework::counters::ThreadCounters;
use framework::generation::GenerationView;
use logs::Subject;

use crate::client::Client;
use crate::transport::Transport;

/// A connection whose protocol has not begun.
pub trait Incoming: Subject {
    /// The client that has connected.
    fn client(&self) -> &Client;

    /// The bytes of the incoming.
    fn transport(&self) -> &Transport;

    /// What its thread counts.
    fn counts(&self) -> &ThreadCounters;

    /// The generation that serves what it asks for next.
    fn generation(&self) -> Rc<GenerationView>;

    /// Whether it waits for something that the client has not promised: it may then be closed
    /// without loss.
    fn set_idle(&self, idle: bool);
}
