//! The access phase: checks of modules, such as `allow` and `deny`, combined by `satisfy`.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#satisfy>. Subrequests are not checked,
//! since their main request has already been granted access.

use std::rc::Rc;

use engine::select::{Either, either};

use crate::exchange::Exchange;
use crate::exchange::abort::Abort;
use crate::module::{AccessVerdict, MaybeFuture};
use crate::request::credentials::Challenge;
use crate::request::{Request, Step};

/// Runs the access checks. The request continues with the next phase if they grant access, and ends
/// otherwise.
pub async fn run(request: &mut Request, exchange: &mut Exchange) -> Result<Step, Abort> {
    if !request.is_main() || request.plan.phases.access.is_empty() {
        return Ok(Step::Next);
    }
    let Some(status) = refusal(request, exchange).await? else {
        return Ok(Step::Next);
    };
    if Challenge::is_challenge_status(status) {
        delay(request, exchange).await?;
    }
    Ok(Step::Finish(status))
}

/// The status with which the checks together refuse the request; `None` if they grant access.
async fn refusal(request: &mut Request, exchange: &mut Exchange) -> Result<Option<u16>, Abort> {
    let any = request.plan.core.satisfy_any;
    let mut refused = None;
    let http = Rc::clone(&request.http);
    for check in &http.plan(request.plan.id).phases.access {
        let verdict = match check.check(request, exchange) {
            MaybeFuture::Now(verdict) => verdict?,
            MaybeFuture::Wait(judging) => judging.await?,
        };
        match verdict {
            AccessVerdict::Declined => {}
            AccessVerdict::Granted if any => {
                // Remove the challenge that an earlier check has set.
                let asked = Challenge::of(request).field;
                request.response.remove(asked.as_bytes());
                return Ok(None);
            }
            AccessVerdict::Granted => {}
            // Another check may still grant access. If none does, a challenge is more useful to the
            // client than a 403.
            AccessVerdict::Refused(status)
                if any && (status == 403 || Challenge::is_challenge_status(status)) =>
            {
                refused = refused
                    .filter(|refused| Challenge::is_challenge_status(*refused))
                    .or(Some(status));
            }
            AccessVerdict::Refused(status) => return Ok(Some(status)),
        }
    }
    if refused == Some(403) {
        logs::error!(request, Error, "access forbidden by rule");
    }
    Ok(refused)
}

/// `auth_delay`: delays the response, unless the client closes the connection meanwhile.
async fn delay(request: &mut Request, exchange: &mut Exchange) -> Result<(), Abort> {
    let delay = request.plan.core.auth_delay;
    if delay.is_zero() {
        return Ok(());
    }
    request.start_background();
    logs::error!(request, Info, "delaying unauthorized request");
    match either(engine::sleep(delay), exchange.client_gone()).await {
        Either::First(()) => Ok(()),
        Either::Second(abort) => Err(abort),
    }
}
