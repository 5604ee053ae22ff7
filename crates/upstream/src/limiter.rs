//! An adaptive concurrency limit: finds the number of requests in flight at which the servers reach
//! their full throughput without queueing requests themselves, from measured response times.
//!
//! ```text
//!             answers slower than the base          the base is old, or does not fit any more
//!  Measuring ────────▶ Growing ────────▶ Following ─────────────────────────┐
//!      ▲    base known   doubles          by the gradient                   │
//!      └────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The *base* is the response time while few requests are in flight. The limit follows the
//! *gradient*, which is one and a half times the base divided by the current response time: the
//! next limit is `limit × gradient + √limit`, as in Netflix's Gradient2 and Envoy's adaptive
//! concurrency. Times are averaged as geometric means, since they are compared by ratio.
//!
//! *Cheap and expensive requests.* The limit is updated once per *window*, a series of responses
//! that are averaged. Servers spend most of their time on expensive requests, even if cheap ones
//! are far more frequent. So a response is weighted by its time (up to a few times the base, so
//! that no response dominates), and a window lasts at least as long as an average response, so that
//! each window contains expensive requests: a burst of cheap requests alone changes nothing. If
//! halving the requests in flight hardly reduces the response time, the requests do not wait for
//! each other: the measured base is too low, and is measured again.
//!
//! If for long no request in flight gets its response while others are queued, the limit is
//! *stuck*: the requests may be slow by themselves, because the servers wait for something else.
//! The limit then grows within bounds, by one each time, or twofold while there is no base. If the
//! base is being measured again, the measurement ends without result.
//!
//! The limiter reads no clock: the caller passes the time.
//! <https://github.com/Netflix/concurrency-limits>,
//! <https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/adaptive_concurrency_filter>

use std::time::Duration;

/// The lowest limit: a lower one would leave a server idle between two requests.
const LIMIT_MIN: f64 = 2.0;
/// The highest limit.
const LIMIT_MAX: f64 = 10_000.0;
/// How much slower than the base responses may be before the limit is reduced.
const TOLERANCE: f64 = 1.5;
/// The smallest factor by which the gradient may reduce the limit in one window.
const GRADIENT_MIN: f64 = 0.5;
/// The weight of a new window against the current value.
const SMOOTHING: f64 = 0.5;
/// Number of responses of a window while following: enough for an average, and enough that few of
/// their requests began before the last change of the limit.
const WINDOW_ANSWERS: u32 = 20;
/// Number of responses of a window while the limit grows, or while the base is measured for the
/// first time.
const FIRST_ANSWERS: u32 = 6;
/// The time after which a window is closed with fewer responses, but with at least
/// [`FIRST_ANSWERS`].
const WINDOW_TIME: Duration = Duration::from_secs(1);
/// The longest minimum time of a window, whatever the response times: see `window_time_min`.
const WINDOW_TIME_MAX: Duration = Duration::from_secs(3);
/// Maximum weight of a response, in multiples of the base, so that no single response dominates a
/// window.
const WEIGHT_MAX: f64 = 4.0;
/// The age at which the base is measured again. Or [`MEASURING_SHARE`] times the duration of the
/// last measurement, if that is longer, so that measuring takes only a small part of the time.
const BASE_AGE_MAX: Duration = Duration::from_secs(60);
/// See [`BASE_AGE_MAX`].
const MEASURING_SHARE: u32 = 40;
/// If responses are faster than the base by this factor although more requests are in flight, the
/// base is out of date.
const QUICKER: f64 = 1.2;
/// If halving the requests in flight makes responses faster by less than this factor, the requests
/// do not slow each other down, so the base is too low.
const SLOWER_BY_ITSELF: f64 = 1.25;
/// The base is measured again after this many successive windows that are slower than any limit
/// explains, or clearly faster than the base.
const WINDOWS_AMISS: u32 = 3;
/// The base is not measured again within this time.
const BASE_AGE_MIN: Duration = Duration::from_secs(5);
/// The time after which measuring ends without result if too few responses come.
const MEASURING_TIME_MAX: Duration = Duration::from_secs(5);
/// The limit counts as stuck if no response has come for this multiple of the base, or for
/// [`STUCK_MIN`] if that is longer.
const STUCK_SHARE: f64 = 10.0;
/// The minimum time without responses after which the limit counts as stuck, and the time if there
/// is no base.
const STUCK_MIN: Duration = Duration::from_secs(1);
/// A stuck limit grows up to twice its value, or up to this value if that is larger: servers that
/// do not respond at all must not get unlimited requests.
const STUCK_LIMIT_MAX: f64 = 32.0;

/// An adaptive limit of requests in flight: see the top of this file.
#[derive(Debug)]
pub(crate) struct Limiter {
    limit: f64,
    doing: Doing,
    /// Incremented when measuring begins or ends. Responses to requests of an earlier era are
    /// ignored.
    era: u64,
    /// The logarithm of the base: the response time in seconds while few requests are in flight.
    base: Option<f64>,
    window: Window,
    measured_at: Duration,
    /// The logarithm of the average response time of the last window, in seconds.
    recent: Option<f64>,
    /// The first window that was too slow since following began: the limit at that time, and the
    /// logarithm of its response time.
    slow_at: Option<(f64, f64)>,
    /// When the first request of the current measurement of the base was admitted.
    measuring_since: Option<Duration>,
    measuring_took: Duration,
    /// When a request was last admitted or answered, or the limit was last found to be stuck.
    moved_at: Duration,
    /// The limit before it grew because it was stuck; `None` after the next window.
    stuck_at: Option<f64>,
    amiss: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Measuring,
    Growing,
    Following,
}

/// A series of responses whose times are averaged.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// When the first response came; `None` before that.
    began: Option<Duration>,
    answers: u32,
    /// The sum of the weights of the responses: their times in seconds, up to [`WEIGHT_MAX`] times
    /// the base.
    weight: f64,
    /// The weighted sum of the logarithms of the response times, in seconds.
    sum: f64,
    /// Maximum number of requests in flight at the admission of the window's requests.
    most: usize,
}

/// The data of an admitted request that the limiter needs when the response comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimiterSample {
    era: u64,
    /// Requests in flight when the request was admitted, this request included.
    beside: usize,
}

impl Limiter {
    /// A limiter without any measurement.
    pub(crate) fn new(now: Duration) -> Limiter {
        Limiter {
            limit: LIMIT_MIN,
            doing: Doing::Measuring,
            era: 0,
            base: None,
            window: Window::default(),
            measured_at: now,
            recent: None,
            slow_at: None,
            measuring_since: None,
            measuring_took: Duration::ZERO,
            moved_at: now,
            stuck_at: None,
            amiss: 0,
        }
    }

    /// The current limit of requests in flight.
    pub(crate) fn limit(&self) -> usize {
        match self.doing {
            Doing::Measuring => self.few(),
            Doing::Growing | Doing::Following => self.limit as usize,
        }
    }

    /// Whether the base has been measured and the limit has stopped growing, so that estimates of
    /// waiting times are reliable.
    pub(crate) fn is_settled(&self) -> bool {
        self.base.is_some() && self.doing != Doing::Growing
    }

    /// The number of requests in flight up to which response times count for the base.
    fn few(&self) -> usize {
        let share = match self.base {
            Some(_) => self.limit / 4.0,
            None => self.limit,
        };
        share.max(LIMIT_MIN) as usize
    }

    /// Checks whether too much time has passed: whether the limit is stuck, or measuring takes too
    /// long. `others_wait` says that the limit is reached and requests are queued.
    pub(crate) fn look(&mut self, now: Duration, others_wait: bool) {
        let is_stuck = others_wait && now.saturating_sub(self.moved_at) > self.stuck_after();
        let is_measuring = self.doing == Doing::Measuring && self.base.is_some();
        let measured_for = self.measuring_since.map(|since| now.saturating_sub(since));
        if is_measuring && (is_stuck || measured_for.is_some_and(|time| time > MEASURING_TIME_MAX))
        {
            self.follow(now, Doing::Following);
        } else if is_stuck {
            let more = match self.base {
                Some(_) => 1.0,
                None => self.limit,
            };
            let before = *self.stuck_at.get_or_insert(self.limit);
            let most = (2.0 * before).clamp(STUCK_LIMIT_MAX, LIMIT_MAX);
            self.limit = (self.limit + more).min(most).max(self.limit);
        }
        if is_stuck {
            self.moved_at = now;
        }
    }

    /// The time without responses after which the limit counts as stuck.
    fn stuck_after(&self) -> Duration {
        let base = self.base.map_or(0.0, f64::exp) * STUCK_SHARE;
        Duration::try_from_secs_f64(base)
            .unwrap_or(Duration::MAX)
            .max(STUCK_MIN)
    }

    /// Notes that a request is admitted, as the last of `under_way` requests in flight.
    pub(crate) fn begin(&mut self, now: Duration, under_way: usize) -> LimiterSample {
        self.moved_at = self.moved_at.max(now);
        if self.doing == Doing::Measuring {
            self.measuring_since.get_or_insert(now);
        }
        LimiterSample {
            era: self.era,
            beside: under_way,
        }
    }

    /// Notes that a request has got its response after `time`, or has timed out.
    pub(crate) fn answered(&mut self, now: Duration, begun: LimiterSample, time: Duration) {
        self.moved_at = self.moved_at.max(now);
        let is_of_few = begun.beside <= self.few();
        if begun.era != self.era || (self.doing == Doing::Measuring && !is_of_few) {
            return;
        }
        let window = &mut self.window;
        let began = *window.began.get_or_insert(now);
        let seconds = time.max(Duration::from_micros(1)).as_secs_f64();
        let weight = self
            .base
            .map_or(seconds, |base| seconds.min(base.exp() * WEIGHT_MAX));
        window.answers += 1;
        window.weight += weight;
        window.sum += weight * seconds.ln();
        window.most = window.most.max(begun.beside);
        let whole = match self.doing {
            Doing::Following => WINDOW_ANSWERS.max(self.limit as u32),
            Doing::Growing => FIRST_ANSWERS.max(self.limit as u32),
            Doing::Measuring if self.base.is_none() => FIRST_ANSWERS,
            Doing::Measuring => WINDOW_ANSWERS,
        };
        let lasted = now.saturating_sub(began);
        let is_late = lasted >= WINDOW_TIME && window.answers >= FIRST_ANSWERS;
        if (window.answers >= whole || is_late) && lasted >= self.window_time_min() {
            let window = std::mem::take(&mut self.window);
            self.judge(now, window);
        }
    }

    /// The minimum time of a window: the average response time or the base, whichever is longer, so
    /// that each window also contains slow responses.
    fn window_time_min(&self) -> Duration {
        let longest = self.base.into_iter().chain(self.recent).reduce(f64::max);
        let seconds = longest.map_or(0.0, f64::exp);
        let least = Duration::try_from_secs_f64(seconds)
            .unwrap_or(WINDOW_TIME_MAX)
            .min(WINDOW_TIME_MAX);
        // Measuring ignores earlier requests, so the first responses are those of the fastest
        // requests.
        match self.doing {
            Doing::Measuring => (2 * least).min(WINDOW_TIME_MAX),
            Doing::Growing | Doing::Following => least,
        }
    }

    /// Updates the base or the limit from a complete window.
    fn judge(&mut self, now: Duration, window: Window) {
        let mean = window.sum / window.weight;
        self.recent = Some(mean);
        self.stuck_at = None;
        let Some(base) = self.base.filter(|_| self.doing != Doing::Measuring) else {
            let is_first = self.base.replace(mean).is_none() || self.limit <= LIMIT_MIN;
            if is_first {
                // The limit may have grown while there were no responses.
                self.limit = LIMIT_MIN;
            }
            let since = self.measuring_since.unwrap_or(now);
            self.measuring_took = now.saturating_sub(since);
            let was_amiss = std::mem::take(&mut self.amiss) >= WINDOWS_AMISS;
            return self.follow(
                now,
                if is_first || was_amiss {
                    Doing::Growing
                } else {
                    Doing::Following
                },
            );
        };
        let is_used = window.most as f64 >= self.limit * 0.75;
        if window.most <= self.few() && !is_used {
            // So few requests were in flight that the window is equivalent to a measurement of the
            // base.
            self.base = Some(base + (mean - base) * SMOOTHING);
            self.measured_at = now;
            self.amiss = 0;
            return;
        }
        let gradient = (TOLERANCE * (base - mean).exp()).min(1.0);
        let is_quicker = (base - mean).exp() > QUICKER;
        self.amiss = if gradient < GRADIENT_MIN || is_quicker {
            self.amiss + 1
        } else {
            0
        };
        if gradient < 1.0 {
            let (limit, before) = *self.slow_at.get_or_insert((self.limit, mean));
            // Fewer requests in flight would be faster if the requests slowed each other down.
            if self.limit <= limit / 2.0 && mean > before - SLOWER_BY_ITSELF.ln() {
                self.amiss = WINDOWS_AMISS;
            }
        }
        let aim = self.limit * gradient.max(GRADIENT_MIN) + self.limit.sqrt();
        let next = match self.doing {
            Doing::Growing if gradient >= 1.0 => self.limit * 2.0,
            // The base is probably outdated, so the limit stays until the base has been measured
            // again.
            Doing::Following if is_quicker => self.limit,
            _ => self.limit + (aim - self.limit) * SMOOTHING,
        };
        if gradient < 1.0 {
            self.doing = Doing::Following;
        }
        if is_used || next < self.limit {
            self.limit = next.clamp(LIMIT_MIN, LIMIT_MAX);
        }
        let age = now.saturating_sub(self.measured_at);
        let is_old = age > BASE_AGE_MAX.max(self.measuring_took * MEASURING_SHARE);
        if is_old || (self.amiss >= WINDOWS_AMISS && age > BASE_AGE_MIN) {
            self.doing = Doing::Measuring;
            self.measured_at = now;
            self.measuring_since = None;
            self.era += 1;
        }
    }

    /// Ends measuring, with or without a result; `doing` is the next state.
    fn follow(&mut self, now: Duration, doing: Doing) {
        self.doing = doing;
        self.measured_at = now;
        self.window = Window::default();
        self.slow_at = None;
        self.era += 1;
    }
}
