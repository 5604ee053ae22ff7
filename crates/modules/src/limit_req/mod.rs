//! `limit_req`: limits the rate of requests per key, with a leaky bucket.
//!
//! <https://nginx.org/en/docs/http/ngx_http_limit_req_module.html>. `buckets` has the contents of a
//! zone. Requests are counted in thousandths, as in nginx, so that rates below one per second are
//! exact and results are the same.

mod buckets;
mod settings;

use std::time::Duration;

pub use buckets::Buckets;
pub use settings::{LimitReq, compile};

use bytes::Bytes;
use engine::select::{Either, either};
use framework::slot::{Slot, SlotValue};
use http::exchange::Exchange;
use http::module::{MaybeFuture, PhaseHandler};
use http::request::{Request, Step};
use http::slots::MainRequestLifetime;
use http::variables::BuiltinVariable;
use logs::Level;
use variables::write::text;

use self::buckets::{Admission, PinnedEntry};
use self::settings::Limit;

/// Maximum length of a key, in bytes; longer keys are not limited.
const KEY_LENGTH_MAX: usize = 65_535;

/// The outcome of `limit_req` for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitOutcome {
    /// The request was not delayed.
    Passed,
    /// The request was delayed.
    Delayed,
    /// The request was rejected.
    Rejected,
    /// The request would have been delayed.
    DelayedDryRun,
    /// The request would have been rejected.
    RejectedDryRun,
}

impl LimitOutcome {
    /// All outcomes.
    const ALL: [LimitOutcome; 5] = [
        LimitOutcome::Passed,
        LimitOutcome::Delayed,
        LimitOutcome::Rejected,
        LimitOutcome::DelayedDryRun,
        LimitOutcome::RejectedDryRun,
    ];

    /// The name of the outcome in a zone's status.
    fn fact(self) -> &'static str {
        match self {
            LimitOutcome::Passed => "passed",
            LimitOutcome::Delayed => "delayed",
            LimitOutcome::Rejected => "rejected",
            LimitOutcome::DelayedDryRun => "delayed_dry_run",
            LimitOutcome::RejectedDryRun => "rejected_dry_run",
        }
    }

    /// The value of `$limit_req_status`.
    pub fn name(self) -> &'static str {
        match self {
            LimitOutcome::Passed => "PASSED",
            LimitOutcome::Delayed => "DELAYED",
            LimitOutcome::Rejected => "REJECTED",
            LimitOutcome::DelayedDryRun => "DELAYED_DRY_RUN",
            LimitOutcome::RejectedDryRun => "REJECTED_DRY_RUN",
        }
    }
}

/// `$limit_req_status`, which is set once a limit has been checked for a main request or any of its
/// subrequests.
#[derive(Default)]
struct LimitStatus(Option<LimitOutcome>);

static TOLD: Slot<LimitStatus, MainRequestLifetime> = Slot::new();

impl SlotValue for LimitStatus {}

impl LimitStatus {
    /// The outcome for a request.
    fn outcome(request: &Request) -> Option<LimitOutcome> {
        request.shared.main.borrow().get(&TOLD)?.0
    }
}

impl PhaseHandler for LimitReq {
    /// Counts the request, and delays or rejects it. A main request and its subrequests are counted
    /// once.
    fn run<'a>(&'a self, request: &'a mut Request, exchange: &'a mut Exchange) -> MaybeFuture<'a> {
        if LimitStatus::outcome(request).is_some() {
            return MaybeFuture::Now(Ok(Step::Next));
        }
        let (outcome, step) = match decide(request, self) {
            Decision::Uncounted => return MaybeFuture::Now(Ok(Step::Next)),
            Decision::Pass => (LimitOutcome::Passed, Ok(Step::Next)),
            Decision::Delay(_) if self.refusal.dry_run => {
                (LimitOutcome::DelayedDryRun, Ok(Step::Next))
            }
            Decision::Delay(delay) => (LimitOutcome::Delayed, Err(delay)),
            Decision::Reject if self.refusal.dry_run => {
                (LimitOutcome::RejectedDryRun, Ok(Step::Next))
            }
            Decision::Reject => (
                LimitOutcome::Rejected,
                Ok(Step::Finish(self.refusal.status)),
            ),
        };
        request.shared.main.borrow_mut().enter(&TOLD).0 = Some(outcome);
        let delay = match step {
            Ok(step) => return MaybeFuture::Now(Ok(step)),
            Err(delay) => delay,
        };
        request.start_background();
        MaybeFuture::wait(async move {
            match either(engine::sleep(delay), exchange.client_gone()).await {
                Either::First(()) => Ok(Step::Next),
                Either::Second(abort) => Err(abort),
            }
        })
    }
}

/// The decision of a scope's limits about a request.
enum Decision {
    /// No limit has a key for the request.
    Uncounted,
    Pass,
    Delay(Duration),
    Reject,
}

/// Checks the limits in turn. A rejected request is not counted: every limit but the last only pins
/// an entry, in which the request is counted once no limit has rejected it.
fn decide(request: &mut Request, settings: &LimitReq) -> Decision {
    let now = buckets::now_ms();
    let last = settings.limits.len().saturating_sub(1);
    let mut looked_at: Vec<(&Limit, PinnedEntry)> = Vec::new();
    let mut counted = None;
    let rejected = if settings.refusal.dry_run {
        LimitOutcome::RejectedDryRun
    } else {
        LimitOutcome::Rejected
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
            Admission::PinnedEntry(pinned) => looked_at.push((limit, pinned)),
            Admission::Exceeded(excess) => {
                log_excess(request, settings, limit, excess);
                limit.zone.state().note(rejected);
                unpin(&looked_at);
                return Decision::Reject;
            }
            Admission::Full => {
                let zone = limit.zone.name();
                logs::event!(
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

/// The key of a limit for this request; `None` if the limit does not apply.
fn key(request: &mut Request, limit: &Limit) -> Option<Bytes> {
    let zone = limit.zone.settings();
    let key = zone.key.evaluate(request);
    if key.len() > KEY_LENGTH_MAX {
        logs::error!(
            request,
            Error,
            "the value of the \"{}\" key is more than 65535 bytes: \"{}\"",
            zone.key_text,
            logs::Printable(&key)
        );
    }
    (1..=KEY_LENGTH_MAX).contains(&key.len()).then_some(key)
}

/// Counts the request in the pinned entries, and returns the longest delay.
fn count(
    request: &Request,
    settings: &LimitReq,
    counted: Option<(&Limit, u64)>,
    looked_at: &[(&Limit, PinnedEntry)],
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
            .note(match (is_slowest, settings.refusal.dry_run) {
                (false, _) => LimitOutcome::Passed,
                (true, false) => LimitOutcome::Delayed,
                (true, true) => LimitOutcome::DelayedDryRun,
            });
    }
    let (delay, Some((limit, excess))) = longest else {
        return Decision::Pass;
    };
    log_delay(request, settings, limit, excess);
    Decision::Delay(Duration::from_millis(delay))
}

fn unpin(looked_at: &[(&Limit, PinnedEntry)]) {
    for (limit, pinned) in looked_at {
        limit.zone.state().unpin(*pinned);
    }
}

fn log_excess(request: &Request, settings: &LimitReq, limit: &Limit, excess: u64) {
    let dry_run = if settings.refusal.dry_run {
        ", dry run"
    } else {
        ""
    };
    logs::write(
        request,
        settings.refusal.level,
        format_args!(
            "limiting requests{dry_run}, excess: {}.{:03} by zone \"{}\"",
            excess / 1000,
            excess % 1000,
            limit.zone.name()
        ),
    );
}

/// Logs a delay, one level below the level of a rejection.
fn log_delay(request: &Request, settings: &LimitReq, limit: &Limit, excess: u64) {
    let level = match settings.refusal.level {
        Level::Error => Level::Warn,
        Level::Warn => Level::Notice,
        _ => Level::Info,
    };
    let dry_run = if settings.refusal.dry_run {
        ", dry run"
    } else {
        ""
    };
    logs::write(
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

/// The variable with this name (in lower case, without `$`).
pub fn find(name: &str) -> Option<BuiltinVariable> {
    (name == "limit_req_status").then(|| {
        BuiltinVariable::computed(|request, out| match LimitStatus::outcome(request) {
            Some(outcome) => text(outcome.name(), out),
            None => false,
        })
    })
}
