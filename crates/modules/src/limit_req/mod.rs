//! `limit_req`: how many requests a second there may be for one key, as a leaky bucket.
//!
//! <https://nginx.org/en/docs/http/ngx_http_limit_req_module.html>. What a zone keeps stands in
//! `buckets`. Requests are counted in thousandths, as in nginx, so that rates below one a second
//! are exact and results are the same.

mod buckets;
mod settings;

use std::time::Duration;

pub use buckets::Buckets;
pub use settings::{LimitReq, compile};

use bytes::Bytes;
use engine::select::{Either, either};
use framework::slot::{Kept, Slot};
use http::exchange::Exchange;
use http::log::{self, Level};
use http::module::{Handle, Ran};
use http::request::{Request, Step};
use http::slots::OfMain;
use http::variables::Found;
use variables::write::text;

use self::buckets::{Admission, Pinned};
use self::settings::Limit;

/// The longest key, in bytes; longer ones are not limited.
const KEY_LENGTH_MAX: usize = 65_535;

/// What has become of a request under `limit_req`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It went on at once.
    Passed,
    /// It waited.
    Delayed,
    /// It was refused.
    Rejected,
    /// It would have waited.
    DelayedDryRun,
    /// It would have been refused.
    RejectedDryRun,
}

impl Outcome {
    /// Every one of them.
    const ALL: [Outcome; 5] = [
        Outcome::Passed,
        Outcome::Delayed,
        Outcome::Rejected,
        Outcome::DelayedDryRun,
        Outcome::RejectedDryRun,
    ];

    /// What a zone tells of it by.
    fn fact(self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Delayed => "delayed",
            Outcome::Rejected => "rejected",
            Outcome::DelayedDryRun => "delayed_dry_run",
            Outcome::RejectedDryRun => "rejected_dry_run",
        }
    }

    /// The value of `$limit_req_status`.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Passed => "PASSED",
            Outcome::Delayed => "DELAYED",
            Outcome::Rejected => "REJECTED",
            Outcome::DelayedDryRun => "DELAYED_DRY_RUN",
            Outcome::RejectedDryRun => "REJECTED_DRY_RUN",
        }
    }
}

/// `$limit_req_status`, once a limit has been asked: for a main request or for any of its subrequests.
#[derive(Default)]
struct Told(Option<Outcome>);

static TOLD: Slot<Told, OfMain> = Slot::new();

impl Kept for Told {}

impl Told {
    /// The outcome for a request.
    fn outcome(request: &Request) -> Option<Outcome> {
        request.shared.main.borrow().get(&TOLD)?.0
    }
}

impl Handle for LimitReq {
    /// Counts the request, lets it wait or refuses it. Of a request and its subrequests only one is
    /// counted.
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> Ran<'a> {
        if Told::outcome(request).is_some() {
            return Ran::Now(Ok(Step::Next));
        }
        let (outcome, step) = match decide(request, self) {
            Decision::Uncounted => return Ran::Now(Ok(Step::Next)),
            Decision::Pass => (Outcome::Passed, Ok(Step::Next)),
            Decision::Delay(_) if self.dry_run => (Outcome::DelayedDryRun, Ok(Step::Next)),
            Decision::Delay(delay) => (Outcome::Delayed, Err(delay)),
            Decision::Reject if self.dry_run => (Outcome::RejectedDryRun, Ok(Step::Next)),
            Decision::Reject => (Outcome::Rejected, Ok(Step::Finish(self.status))),
        };
        request.shared.main.borrow_mut().enter(&TOLD).0 = Some(outcome);
        let delay = match step {
            Ok(step) => return Ran::Now(Ok(step)),
            Err(delay) => delay,
        };
        request.start_background();
        Ran::wait(async move {
            match either(engine::sleep(delay), exchange.client_gone()).await {
                Either::First(()) => Ok(Step::Next),
                Either::Second(abort) => Err(abort),
            }
        })
    }
}

/// What the limits of a scope say of a request.
enum Decision {
    /// No limit has a key for it.
    Uncounted,
    Pass,
    Delay(Duration),
    Reject,
}

/// Asks one limit after the other. All but the last only look, and count when none has refused: a
/// refused request counts nowhere.
fn decide(request: &mut Request, settings: &LimitReq) -> Decision {
    let now = buckets::now_ms();
    let last = settings.limits.len().saturating_sub(1);
    let mut looked_at: Vec<(&Limit, Pinned)> = Vec::new();
    let mut counted = None;
    let rejected = match settings.dry_run {
        true => Outcome::RejectedDryRun,
        false => Outcome::Rejected,
    };
    for (index, limit) in settings.limits.iter().enumerate() {
        let Some(key) = key(request, limit) else {
            continue;
        };
        let zone = limit.zone.settings();
        let answer = limit
            .zone
            .state()
            .look_up(&key, now, zone.rate, limit.burst, index == last);
        match answer {
            Admission::Counted(excess) => counted = Some((limit, excess)),
            Admission::Pinned(pinned) => looked_at.push((limit, pinned)),
            Admission::Exceeded(excess) => {
                log_excess(request, settings, limit, excess);
                limit.zone.state().note(rejected);
                unpin(&looked_at);
                return Decision::Reject;
            }
            Admission::Full => {
                let zone = limit.zone.name();
                log::event!(
                    Alert,
                    "could not allocate node in limit_req zone \"{zone}\""
                );
                limit.zone.state().note(rejected);
                unpin(&looked_at);
                return Decision::Reject;
            }
        }
    }
    if counted.is_none() && looked_at.is_empty() {
        return Decision::Uncounted;
    }
    count(request, settings, counted, &looked_at, now)
}

/// The key of a limit for this request; `None` where the limit does not apply.
fn key(request: &mut Request, limit: &Limit) -> Option<Bytes> {
    let zone = limit.zone.settings();
    let key = zone.key.evaluate(request);
    if key.len() > KEY_LENGTH_MAX {
        log::error!(
            request,
            Error,
            "the value of the \"{}\" key is more than 65535 bytes: \"{}\"",
            zone.key_text,
            log::Printable(&key)
        );
    }
    (1..=KEY_LENGTH_MAX).contains(&key.len()).then_some(key)
}

/// Counts the request where it was only looked at, and finds the longest of all delays.
fn count(
    request: &Request,
    settings: &LimitReq,
    counted: Option<(&Limit, u64)>,
    looked_at: &[(&Limit, Pinned)],
    now: u64,
) -> Decision {
    let mut longest = (0, None);
    let later = looked_at.iter().rev().map(|(limit, pinned)| {
        let rate = limit.zone.settings().rate;
        (*limit, limit.zone.state().count(*pinned, now, rate))
    });
    for (limit, excess) in counted.into_iter().chain(later) {
        let delay = limit.delay_ms(excess);
        if delay > longest.0 {
            longest = (delay, Some((limit, excess)));
        }
    }
    let slowest = longest.1.map(|(limit, _): (&Limit, u64)| limit);
    let all = counted.iter().map(|(limit, _)| *limit);
    for limit in all.chain(looked_at.iter().map(|(limit, _)| *limit)) {
        let is_slowest = slowest.is_some_and(|slowest| std::ptr::eq(slowest, limit));
        limit
            .zone
            .state()
            .note(match (is_slowest, settings.dry_run) {
                (false, _) => Outcome::Passed,
                (true, false) => Outcome::Delayed,
                (true, true) => Outcome::DelayedDryRun,
            });
    }
    let (delay, Some((limit, excess))) = longest else {
        return Decision::Pass;
    };
    log_delay(request, settings, limit, excess);
    Decision::Delay(Duration::from_millis(delay))
}

fn unpin(looked_at: &[(&Limit, Pinned)]) {
    for (limit, pinned) in looked_at {
        limit.zone.state().unpin(*pinned);
    }
}

fn log_excess(request: &Request, settings: &LimitReq, limit: &Limit, excess: u64) {
    let dry_run = if settings.dry_run { ", dry run" } else { "" };
    log::write(
        request,
        settings.level,
        format_args!(
            "limiting requests{dry_run}, excess: {}.{:03} by zone \"{}\"",
            excess / 1000,
            excess % 1000,
            limit.zone.name()
        ),
    );
}

/// One level below that of a refusal.
fn log_delay(request: &Request, settings: &LimitReq, limit: &Limit, excess: u64) {
    let level = match settings.level {
        Level::Error => Level::Warn,
        Level::Warn => Level::Notice,
        _ => Level::Info,
    };
    let dry_run = if settings.dry_run { ", dry run" } else { "" };
    log::write(
        request,
        level,
        format_args!(
            "delaying request{dry_run}, excess: {}.{:03}, by zone \"{}\"",
            excess / 1000,
            excess % 1000,
            limit.zone.name()
        ),
    );
}

/// The variable of a name in lower case, without `$`.
pub fn find(name: &str) -> Option<Found> {
    (name == "limit_req_status").then(|| {
        Found::computed(|request, out| match Told::outcome(request) {
            Some(outcome) => text(outcome.name(), out),
            None => false,
        })
    })
}
