//! The log phase: runs the modules that record a request when it has ended, such as access logs.

use std::rc::Rc;

use crate::logging::zone_meter;
use crate::request::Request;

/// Runs the log phase of a request whose connection is kept alive, or is closed as the response has
/// announced.
pub fn log(request: &mut Request) {
    // Before nginx logs the request, it prepares the connection for the next request, and clears
    // the request's keepalive flag. So `$sent_http_connection` says `close` in the log, although
    // the response said `keep-alive`.
    request.keepalive.on &= request.plan.core.keepalive_timeout.is_zero();
    log_with_connection(request);
}

/// Runs the log phase of a request that ends its connection.
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
