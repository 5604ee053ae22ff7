//! How many requests servers are to be given at a time so that they do as much as they can, and
//! none waits at a server that could wait here: found out from how long answers take.
//!
//! ```text
//!             answers slower than the base          the base is old, or does not fit any more
//!  Measuring ────────▶ Growing ────────▶ Following ─────────────────────────┐
//!      ▲    base known   doubles          by the gradient                   │
//!      └────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The *base* is how long answers take while few requests are under way. The limit follows
//! the *gradient*,
//! the base (and half of it more) by how long answers take now: `limit × gradient + √limit`, as
//! Netflix's Gradient2 and Envoy's adaptive concurrency do. Times are averaged as geometric means,
//! since it is by ratios that they are compared.
//!
//! *Two kinds of page.* Servers spend their time with dear pages, however many cheap ones they
//! answer beside them. So an answer weighs as much as the time that it took (up to a few times the
//! base: one alone does not stand for all), and a window lasts at least as long as an answer of the
//! last one took, so that dear pages are in each: a burst of cheap ones alone changes nothing.
//! Where half as many at a time take hardly less, it is not the others that they wait for: the base
//! was measured by too few, and is measured again.
//!
//! Where none of those who are under way is answered for long and others wait, those may be slow by
//! themselves, waiting for something else. Then the limit grows, by one each time and within
//! bounds, twofold while there is no base; and a base is not measured.
//!
//! No clock: the caller says when it is. <https://github.com/Netflix/concurrency-limits>,
//! <https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/adaptive_concurrency_filter>

use std::time::Duration;

/// The least that are let through: fewer would leave a server idle between two requests.
const LIMIT_MIN: f64 = 2.0;
const LIMIT_MAX: f64 = 10_000.0;
/// How much slower than the base answers may be before the limit is taken back.
const TOLERANCE: f64 = 1.5;
/// The most that it is taken back by at a time.
const GRADIENT_MIN: f64 = 0.5;
/// How much of what a window says is taken over.
const SMOOTHING: f64 = 0.5;
/// Answers of a window while it follows: enough for an average, and so many that those from before
/// the last change are few.
const WINDOW_ANSWERS: u32 = 20;
/// Answers of a window while the limit grows, or is measured for the first time.
const FIRST_ANSWERS: u32 = 6;
/// A window with a few answers is closed after this time.
const WINDOW_TIME: Duration = Duration::from_secs(1);
/// No window need last longer, whatever answers take.
const WINDOW_TIME_MAX: Duration = Duration::from_secs(3);
/// So many times the base an answer weighs at most, that one alone does not stand for all.
const WEIGHT_MAX: f64 = 4.0;
/// A base is measured again after this time, and after so many times as long as measuring took
/// last.
const BASE_AGE_MAX: Duration = Duration::from_secs(60);
const MEASURING_SHARE: u32 = 40;
/// Answers that come so much quicker than the base though more are under way say that the base is
/// another by now.
const QUICKER: f64 = 1.2;
/// Where half as many at a time take hardly less, the base is not theirs either: by less than so
/// much.
const SLOWER_BY_ITSELF: f64 = 1.25;
/// A base is measured again where so many windows in a row were too slow for any limit, or too
/// quick for it.
const WINDOWS_AMISS: u32 = 3;
/// But not sooner after the last time.
const BASE_AGE_MIN: Duration = Duration::from_secs(5);
/// Measuring gives up after this time, for want of answers.
const MEASURING_TIME_MAX: Duration = Duration::from_secs(5);
/// So much longer than the base none is answered where those who are under way are slow by
/// themselves, or
const STUCK_SHARE: f64 = 10.0;
/// this long where that is more, or there is no base.
const STUCK_MIN: Duration = Duration::from_secs(1);
/// The limit grows by that up to twice what it was, or up to this where that is more: servers that
/// answer nothing at all are not to be given whatever comes.
const STUCK_LIMIT_MAX: f64 = 32.0;

/// A limit that follows how long answers take.
#[derive(Debug)]
pub(crate) struct Limiter {
    limit: f64,
    doing: Doing,
    /// Of requests that began before this has changed, nothing is known that counts.
    era: u64,
    /// The logarithm of the seconds that an answer takes while few are under way.
    base: Option<f64>,
    window: Window,
    measured_at: Duration,
    /// The logarithm of the seconds that answers of the last window took.
    recent: Option<f64>,
    /// The first window since it follows that was too slow: the limit then, and the logarithm of
    /// its time.
    slow_at: Option<(f64, f64)>,
    /// When the first was let through since the base is being measured.
    measuring_since: Option<Duration>,
    measuring_took: Duration,
    /// When one was let through, answered or let through out of turn last.
    moved_at: Duration,
    /// The limit before it has grown since.
    stuck_at: Option<f64>,
    amiss: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Measuring,
    Growing,
    Following,
}

/// Answers that are judged together.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    /// `None` before the first answer.
    began: Option<Duration>,
    answers: u32,
    /// Of their times, each within its bound.
    weight: f64,
    /// Of the logarithms of their times, in seconds, by these weights.
    sum: f64,
    /// The most that were under way.
    most: usize,
}

/// What is known of a request as it is let through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimiterSample {
    era: u64,
    /// How many were under way with it.
    beside: usize,
}

impl Limiter {
    /// One that knows nothing yet.
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

    /// How many may be under way now.
    pub(crate) fn limit(&self) -> usize {
        match self.doing {
            Doing::Measuring => self.few(),
            Doing::Growing | Doing::Following => self.limit as usize,
        }
    }

    /// Whether it knows by now how much the servers can do.
    pub(crate) fn is_settled(&self) -> bool {
        self.base.is_some() && self.doing != Doing::Growing
    }

    /// So few that their answers tell the base.
    fn few(&self) -> usize {
        let share = match self.base {
            Some(_) => self.limit / 4.0,
            None => self.limit,
        };
        share.max(LIMIT_MIN) as usize
    }

    /// What time alone changes; `others_wait` where as many are under way as may be, and others
    /// wait.
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

    fn stuck_after(&self) -> Duration {
        let base = self.base.map_or(0.0, f64::exp) * STUCK_SHARE;
        Duration::try_from_secs_f64(base)
            .unwrap_or(Duration::MAX)
            .max(STUCK_MIN)
    }

    /// A request is let through, the last of so many that are under way.
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

    /// Its answer came after `time`.
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

    /// So long a window lasts at least: as long as an answer takes, so that those that take long
    /// have their share in each.
    fn window_time_min(&self) -> Duration {
        let longest = self.base.into_iter().chain(self.recent).reduce(f64::max);
        let seconds = longest.map_or(0.0, f64::exp);
        let least = Duration::try_from_secs_f64(seconds)
            .unwrap_or(WINDOW_TIME_MAX)
            .min(WINDOW_TIME_MAX);
        // Here all begin anew, and of those that take long the quickest are answered first.
        match self.doing {
            Doing::Measuring => (2 * least).min(WINDOW_TIME_MAX),
            Doing::Growing | Doing::Following => least,
        }
    }

    fn judge(&mut self, now: Duration, window: Window) {
        let mean = window.sum / window.weight;
        self.recent = Some(mean);
        self.stuck_at = None;
        let Some(base) = self.base.filter(|_| self.doing != Doing::Measuring) else {
            let is_first = self.base.replace(mean).is_none() || self.limit <= LIMIT_MIN;
            if is_first {
                // It may have grown while nothing was answered.
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
            // As good as having measured.
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
            // Fewer at a time would take less, if they were slow because of each other.
            if self.limit <= limit / 2.0 && mean > before - SLOWER_BY_ITSELF.ln() {
                self.amiss = WINDOWS_AMISS;
            }
        }
        let aim = self.limit * gradient.max(GRADIENT_MIN) + self.limit.sqrt();
        let next = match self.doing {
            Doing::Growing if gradient >= 1.0 => self.limit * 2.0,
            // By a base that is no longer true nothing can be judged.
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

    /// Has done with measuring.
    fn follow(&mut self, now: Duration, doing: Doing) {
        self.doing = doing;
        self.measured_at = now;
        self.window = Window::default();
        self.slow_at = None;
        self.era += 1;
    }
}
