//! The interface of HTTP's core to a handler's record of its upstreams: the upstream's name for log
//! lines, and the end of the request.

use std::any::Any;
use std::rc::Rc;

/// A handler's record of the upstreams to which it has passed a request. The handler's variables
/// downcast the record to its concrete type.
pub trait UpstreamReport: Any {
    /// Calls `show` with the upstream's name for error log lines, such as
    /// `http://127.0.0.1:8081/path`; empty until an upstream has been chosen.
    fn show(&self, show: &mut dyn FnMut(&[u8]));

    /// Called when the request ends. An upstream's response that was not read to its end is
    /// dropped.
    fn end(&self);

    /// Called after the request has ended. The record may keep its memory for later requests.
    fn recycle(self: Rc<Self>) {}
}
