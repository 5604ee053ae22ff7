//! A connection before its protocol starts, as the PROXY protocol header and the TLS handshake see
//! it.

use std::rc::Rc;

use framework::counters::ThreadCounters;
use framework::generation::GenerationView;
use logs::Subject;

use crate::client::Client;
use crate::transport::Transport;

/// A connection whose protocol has not started.
pub trait Incoming: Subject {
    /// The connected client.
    fn client(&self) -> &Client;

    /// The transport of the connection's bytes.
    fn transport(&self) -> &Transport;

    /// The counters of the connection's thread.
    fn counts(&self) -> &ThreadCounters;

    /// The generation for the connection's next request.
    fn generation(&self) -> Rc<GenerationView>;

    /// Sets whether the connection is idle, so that it may be closed without loss.
    fn set_idle(&self, idle: bool);
}
