//! What HTTP knows of an upstream that a handler has asked: that it was, and how log lines name it.

use std::any::Any;
use std::rc::Rc;

/// What a handler keeps of the upstreams that it asks for a request. Its variables know the kind
/// behind it.
pub trait UpstreamReport: Any {
    /// Lends what error lines show, `http://127.0.0.1:8081/path`; empty until it is known who is
    /// asked.
    fn show(&self, show: &mut dyn FnMut(&[u8]));

    /// The request ends, and with it what has not been read to its end.
    fn end(&self);

    /// The request is over: whoever keeps memory of its kind for the next ones may do so.
    fn put_away(self: Rc<Self>) {}
}
