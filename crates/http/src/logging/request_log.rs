//! The log phase: what is noted of a request when it has ended.

use std::rc::Rc;

use crate::request::Request;

/// The log phase of a request whose connection goes on, or ends as was announced.
pub fn log(request: &mut Request) {
    // In nginx a connection is made ready for its next request before this one is logged, so that
    // `$sent_http_connection` is `close`, unless the connection ends against what was announced.
    request.keepalive.on &= request.plan.core.keepalive_timeout.is_zero();
    log_with_connection(request);
}

/// The log phase of a request that its connection ends with.
pub fn log_with_connection(request: &mut Request) {
    if request.plan.phases.endings.is_empty() {
        return;
    }
    let http = Rc::clone(&request.http);
    for ending in &http.plan(request.plan.id).phases.endings {
        ending.ended(request);
    }
}
