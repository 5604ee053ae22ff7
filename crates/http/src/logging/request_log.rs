//! The log phase: runs the modules that record a request when it has ended, such as access logs.

use std::rc::Rc;

use crate::logging::zone_meter;
use crate::request::Request;

/// Runs the log phase of a request whose connection is kept alive, or closes as the response has
/// announced.
pub fn log(request: &mut Request) {
    // nginx prepares a connection for its next request, and clears the request's keepalive flag,
    // before it logs the request. `$sent_http_connection` then says `close`, although the response
    // said `keep-alive`.
    request.keepalive.on &= request.plan.core.keepalive_timeout.is_zero();
    log_with_connection(request);
}

/// Runs the log phase of a request with which its connection ends.
pub fn log_with_connection(request: &mut Request) {
    zone_meter::ended(request);
    if request.plan.phases.endings.is_empty() {
        return;
    }
    let http = Rc::clone(&request.http);
    for ending in &http.plan(request.plan.id).phases.endings {
        ending.ended(request);
    }
}
