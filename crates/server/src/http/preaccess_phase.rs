//! The preaccess phase: the client's address, then limits, before the access phase asks who the client is.

use crate::http::exchange::{Abort, Exchange};
use crate::http::modules::{limit_conn, limit_req, realip};
use crate::http::request::{Request, Step};

/// `realip`, `limit_req`, then `limit_conn`.
pub async fn run(request: &mut Request, exchange: &mut Exchange) -> Result<Step, Abort> {
    realip::apply(request);
    if request.plan.limit_req.is_some() {
        match limit_req::run(request, exchange).await? {
            Step::Next => {}
            step => return Ok(step),
        }
    }
    Ok(limit_conn::check(request))
}
