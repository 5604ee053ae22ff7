//! Simulates many requests to a few servers in simulated time: five servers share one core, like
//! the children of php-fpm, and a page needs ten milliseconds of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{Admitted, Concurrency, Entry, Gate, Patience, Terms, WaitingRequest};

const STEP: Duration = Duration::from_millis(1);
const SERVERS: usize = 5;
/// How long a client waits for its response.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);

/// Random numbers from a seed (xorshift, Marsaglia 2003).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// An exponential distribution with mean 1, as of times between arrivals.
    fn exponential(&mut self) -> f64 {
        -(1.0 - self.next()).ln()
    }
}

struct Request {
    came: Duration,
    user: Option<usize>,
    /// The remaining computing time, in milliseconds of the core.
    cost: f64,
    is_dear: bool,
}

#[derive(Default, Debug)]
struct Seen {
    served: usize,
    /// The served expensive pages.
    dear: usize,
    refused: usize,
    expired: usize,
    given_up: usize,
}

/// The source of requests.
enum Offer {
    /// This many users, each of whom sends the next request this long after a response or a
    /// refusal.
    Users(usize, Duration),
    /// A constant number of requests per second, independent of the responses.
    Rate(f64),
}

struct World {
    now: Duration,
    gate: Arc<Gate>,
    terms: Terms,
    draw: Draw,
    /// The costs of cheap and of expensive pages in milliseconds, and the share of expensive ones.
    costs: (f64, f64, f64),
    servers: usize,
    /// This many cheap pages arrive at once, at this interval.
    bursts: Option<(usize, Duration)>,
    /// Nothing is computed until this time.
    stalled_until: Duration,
    /// The servers wait without using the core while they have a request.
    is_idle_work: bool,
    in_service: Vec<(Request, Admitted)>,
    backlog: VecDeque<(Request, Admitted)>,
    waiting: VecDeque<(Request, WaitingRequest)>,
    seen: Seen,
    due: f64,
    back: Vec<(Duration, usize)>,
}

fn terms(concurrency: Concurrency) -> Terms {
    Terms {
        version: 1,
        concurrency,
        patience: Patience {
            length: 10_000,
            expected_max: Duration::from_secs(6),
        },
    }
}

impl World {
    fn new(seed: u64) -> World {
        World {
            now: Duration::from_secs(1),
            gate: Arc::default(),
            terms: terms(Concurrency::Adaptive),
            draw: Draw(seed),
            costs: (10.0, 10.0, 0.0),
            servers: SERVERS,
            bursts: None,
            stalled_until: Duration::ZERO,
            is_idle_work: false,
            in_service: Vec::new(),
            backlog: VecDeque::new(),
            waiting: VecDeque::new(),
            seen: Seen::default(),
            due: 0.0,
            back: Vec::new(),
        }
    }

    fn limit(&self) -> usize {
        self.gate.load().limit.unwrap()
    }

    /// Simulates this much time, and returns the results.
    fn run(&mut self, time: Duration, offer: &Offer) -> Seen {
        self.seen = Seen::default();
        let end = self.now + time;
        if let Offer::Users(users, _) = offer {
            let known: Vec<usize> = self.back.iter().map(|(_, user)| *user).collect();
            let busy = (self.in_service.iter().chain(&self.backlog)).map(|(one, _)| one.user);
            let busy: Vec<usize> = busy
                .chain(self.waiting.iter().map(|(one, _)| one.user))
                .flatten()
                .chain(known)
                .collect();
            let idle = (0..*users).filter(|user| !busy.contains(user));
            self.back.extend(idle.map(|user| (self.now, user)));
        }
        while self.now < end {
            self.now += STEP;
            self.arrive(offer);
            self.go_on(offer);
            self.compute(offer);
        }
        std::mem::take(&mut self.seen)
    }

    fn arrive(&mut self, offer: &Offer) {
        let mut users = Vec::new();
        match offer {
            Offer::Rate(rate) => {
                self.due -= STEP.as_secs_f64() * rate;
                while self.due < 0.0 {
                    self.due += self.draw.exponential();
                    users.push(None);
                }
            }
            Offer::Users(count, _) => {
                let now = self.now;
                let ready = self.back.extract_if(.., |(at, _)| *at <= now);
                users.extend(
                    ready
                        .filter(|(_, user)| user < count)
                        .map(|(_, user)| Some(user)),
                );
            }
        }
        let mut asked: Vec<(Option<usize>, bool)> = Vec::new();
        for user in users {
            let is_dear = self.draw.next() < self.costs.2;
            asked.push((user, is_dear));
        }
        if let Some((count, every)) = self.bursts
            && self.now.as_millis().is_multiple_of(every.as_millis())
        {
            asked.extend((0..count).map(|_| (None, false)));
        }
        for (user, is_dear) in asked {
            let (cheap, dear, _) = self.costs;
            let cost = if is_dear { dear } else { cheap };
            let request = Request {
                came: self.now,
                user,
                cost: cost * (0.5 + self.draw.next()),
                is_dear,
            };
            match self.gate.enter_at(self.now, &self.terms) {
                Entry::Admitted(admitted) => self.backlog.push_back((request, admitted)),
                Entry::Waiting(waiting) => self.waiting.push_back((request, waiting)),
                Entry::Refused(_) => {
                    self.seen.refused += 1;
                    self.comes_back(&request, offer);
                }
            }
        }
    }

    fn comes_back(&mut self, request: &Request, offer: &Offer) {
        if let (Some(user), Offer::Users(_, think)) = (request.user, offer) {
            let pause = think.mul_f64(0.5 + self.draw.next());
            self.back.push((self.now + pause.max(STEP), user));
        }
    }

    /// Admits this many requests that never end by themselves, and that wait without using a
    /// server.
    fn hold(&mut self, count: usize, offer: &Offer) -> Vec<Admitted> {
        let mut context = Context::from_waker(Waker::noop());
        let mut held = Vec::new();
        while held.len() < count {
            let mut waiting = match self.gate.enter_at(self.now, &self.terms) {
                Entry::Admitted(admitted) => {
                    held.push(admitted);
                    continue;
                }
                Entry::Waiting(waiting) => waiting,
                Entry::Refused(load) => panic!("{load:?}"),
            };
            loop {
                if let Poll::Ready(admitted) = waiting.poll_at(self.now, &mut context) {
                    held.push(admitted);
                    break;
                }
                waiting.look(self.now);
                self.run(STEP * 100, offer);
            }
        }
        held
    }

    /// Admits or expires waiting requests.
    fn go_on(&mut self, offer: &Offer) {
        let mut context = Context::from_waker(Waker::noop());
        let timeout = self.terms.patience.expected_max * 4 / 3;
        while let Some((request, mut waiting)) = self.waiting.pop_front() {
            match waiting.poll_at(self.now, &mut context) {
                Poll::Ready(admitted) => self.backlog.push_back((request, admitted)),
                Poll::Pending if self.now - request.came > timeout => {
                    waiting.end(self.now);
                    waiting.expire();
                    self.seen.expired += 1;
                    self.comes_back(&request, offer);
                }
                Poll::Pending => {
                    waiting.look(self.now);
                    return self.waiting.push_front((request, waiting));
                }
            }
        }
    }

    fn compute(&mut self, offer: &Offer) {
        while self.in_service.len() < self.servers
            && let Some(next) = self.backlog.pop_front()
        {
            self.in_service.push(next);
        }
        if self.now < self.stalled_until || self.in_service.is_empty() {
            return;
        }
        let share = if self.is_idle_work {
            1.0
        } else {
            1.0 / self.in_service.len() as f64
        };
        for (request, _) in &mut self.in_service {
            request.cost -= share;
        }
        let done: Vec<_> = self
            .in_service
            .extract_if(.., |(request, _)| request.cost <= 0.0)
            .collect();
        for (request, mut admitted) in done {
            admitted.answered_at(self.now);
            admitted.end(self.now);
            if self.now - request.came < CLIENT_PATIENCE {
                self.seen.served += 1;
                self.seen.dear += usize::from(request.is_dear);
            } else {
                self.seen.given_up += 1;
            }
            self.comes_back(&request, offer);
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn it_finds_how_many_serve_best() {
    for seed in [1, 2, 3, 5, 8] {
        let mut world = World::new(seed);
        let seen = world.run(10 * SECOND, &Offer::Users(60, Duration::ZERO));
        assert!(seen.served > 930, "{seen:?}");
        for _ in 0..60 {
            world.run(2 * SECOND, &Offer::Users(60, Duration::ZERO));
            assert!((2..=9).contains(&world.limit()), "{}", world.limit());
        }
        // Now requests that wait without using the core.
        let mut world = World::new(seed);
        world.is_idle_work = true;
        world.costs = (50.0, 50.0, 0.0);
        world.run(10 * SECOND, &Offer::Users(60, Duration::ZERO));
        let seen = world.run(60 * SECOND, &Offer::Users(60, Duration::ZERO));
        assert!(seen.served > 5700, "{seen:?}");
        assert!((5..=16).contains(&world.limit()), "{}", world.limit());
    }
}

#[test]
fn two_hundred_and_eighty_users_are_all_served() {
    for users in [1, 10, 60, 120, 180, 200, 240, 280] {
        let mut world = World::new(users as u64);
        let seen = world.run(30 * SECOND, &Offer::Users(users, Duration::ZERO));
        assert_eq!(
            (seen.refused, seen.expired, seen.given_up),
            (0, 0, 0),
            "{users}"
        );
        assert!(seen.served > 2500, "{users}: {seen:?}");
    }
}

#[test]
fn what_is_served_stays_the_same_whatever_is_offered() {
    for load in [1.0, 1.5, 2.0, 4.0, 8.0, 18.0] {
        let mut world = World::new(7);
        let seen = world.run(60 * SECOND, &Offer::Rate(100.0 * load));
        assert!(seen.served as f64 > 60.0 * 95.0 - 100.0, "{load}: {seen:?}");
        assert_eq!((seen.expired, seen.given_up), (0, 0), "{load}: {seen:?}");
        // After the overload everything is as before.
        world.run(10 * SECOND, &Offer::Rate(0.001));
        let seen = world.run(10 * SECOND, &Offer::Rate(50.0));
        assert!(seen.served > 400 && seen.refused == 0, "{load}: {seen:?}");
    }
    let mut world = World::new(7);
    let seen = world.run(30 * SECOND, &Offer::Users(5000, SECOND));
    assert!(seen.served > 2800, "{seen:?}");
    assert_eq!((seen.expired, seen.given_up), (0, 0), "{seen:?}");
}

#[test]
fn it_recovers_from_a_stall_and_follows_servers_that_become_slow_or_quick() {
    let users = Offer::Users(60, Duration::ZERO);
    let mut world = World::new(11);
    world.run(20 * SECOND, &users);
    world.stalled_until = world.now + 5 * SECOND;
    world.run(7 * SECOND, &users);
    let seen = world.run(10 * SECOND, &users);
    assert!(
        seen.served > 930,
        "after a stall: {seen:?}, {}",
        world.limit()
    );
    for cost in [50.0, 10.0, 2.0, 10.0] {
        world.costs = (cost, cost, 0.0);
        world.run(10 * SECOND, &users);
        let seen = world.run(20 * SECOND, &users);
        let possible = 20_000.0 / cost;
        assert!(seen.served as f64 > possible * 0.9, "{cost}: {seen:?}");
        assert!(
            (2..=12).contains(&world.limit()),
            "{cost}: {}",
            world.limit()
        );
    }
}

#[test]
fn those_that_are_slow_by_themselves_do_not_hold_up_the_others() {
    let users = Offer::Users(60, Duration::ZERO);
    for held in [2, 8] {
        // Long enough for the base to be measured again several times.
        let mut world = World::new(19);
        world.run(20 * SECOND, &users);
        let mut holding = world.hold(held, &users);
        world.run(10 * SECOND, &users);
        let seen = world.run(180 * SECOND, &users);
        assert!(seen.served > 18_000 * 9 / 10, "{held}: {seen:?}");
        assert_eq!((seen.refused, seen.expired), (0, 0), "{held}: {seen:?}");
        holding.iter_mut().for_each(|one| one.end(world.now));
        let seen = world.run(20 * SECOND, &users);
        assert!(seen.served > 1900, "{held}: {seen:?}");
        // The requests arrive when nothing has been measured.
        let mut world = World::new(23);
        let mut holding = world.hold(held, &Offer::Rate(0.0));
        let seen = world.run(60 * SECOND, &users);
        assert!(seen.served > 5000, "{held}: {seen:?}");
        holding.iter_mut().for_each(|one| one.end(world.now));
    }
}

#[test]
fn cheap_and_dear_pages_are_served_beside_each_other() {
    let users = Offer::Users(100, Duration::ZERO);
    let mut world = World::new(13);
    world.costs = (2.0, 200.0, 0.05);
    world.run(20 * SECOND, &users);
    let seen = world.run(60 * SECOND, &users);
    let mean = 0.95 * 2.0 + 0.05 * 200.0;
    assert!(seen.served as f64 > 60_000.0 / mean * 0.85, "{seen:?}");
    assert!(world.limit() >= 2);
}

/// Expensive pages wait 300 milliseconds without using the core; cheap pages of the same servers
/// arrive in bursts or steadily.
#[test]
fn cheap_pages_do_not_take_the_servers_from_dear_ones() {
    let users = Offer::Users(60, Duration::ZERO);
    let millis = Duration::from_millis;
    for seed in [1, 2, 3] {
        for (cheap, bursts) in [
            (2.0, None),
            (2.0, Some((200, SECOND))),
            (2.0, Some((50, millis(200)))),
            (2.0, Some((1, millis(50)))),
            (2.0, Some((1, millis(7)))),
            (10.0, Some((100, SECOND))),
            (1.0, Some((1000, 7 * SECOND))),
        ] {
            let mut world = World::new(seed);
            (world.is_idle_work, world.servers) = (true, 40);
            world.costs = (cheap, 300.0, 1.0);
            world.run(30 * SECOND, &users);
            world.bursts = bursts;
            let seen = world.run(180 * SECOND, &users);
            assert!(
                seen.dear > 180 * 125,
                "{seed}: {bursts:?} of {cheap}: {seen:?}, {}",
                world.limit()
            );
        }
    }
}

/// Like the test above, but all pages share one core: an expensive page needs ten milliseconds of
/// it, and waiting for the core must not raise the limit.
#[test]
fn cheap_pages_do_not_open_the_gate_for_dear_ones() {
    let users = Offer::Users(60, Duration::ZERO);
    for seed in [1, 2, 3] {
        for (count, every) in [(20, 200), (100, 1000), (1, 10), (400, 5000)] {
            let mut world = World::new(seed);
            world.costs = (0.5, 10.0, 1.0);
            world.bursts = Some((count, Duration::from_millis(every)));
            world.run(20 * SECOND, &users);
            let mut wide = 0;
            for _ in 0..20 {
                let seen = world.run(6 * SECOND, &users);
                let (dear, limit) = (seen.dear / 6, world.limit());
                assert!(dear > 80, "{seed}: {count} in {every} ms: {dear}, {limit}");
                wide += usize::from(limit > 12);
            }
            // A burst that finds the servers fast may raise the limit for a moment.
            assert!(wide <= 3, "{seed}: {count} in {every} ms: {wide}");
        }
    }
}

#[test]
fn whatever_becomes_of_them_the_count_comes_back() {
    let mut draw = Draw(17);
    for concurrency in [Concurrency::Fixed(3), Concurrency::Adaptive] {
        let gate = Arc::<Gate>::default();
        let mut context = Context::from_waker(Waker::noop());
        let (mut admitted, mut waiting) = (Vec::new(), Vec::new());
        let mut now = Duration::from_secs(1);
        let mut terms = terms(concurrency);
        for round in 0..20_000 {
            now += STEP;
            let at = |length: usize, draw: &mut Draw| (draw.next() * length as f64) as usize;
            match at(5, &mut draw) {
                0 | 1 => match gate.enter_at(now, &terms) {
                    Entry::Admitted(one) => admitted.push(one),
                    Entry::Waiting(one) => waiting.push(one),
                    Entry::Refused(_) => {}
                },
                2 if !admitted.is_empty() => {
                    let mut one = admitted.swap_remove(at(admitted.len(), &mut draw));
                    if draw.next() < 0.5 {
                        one.answered_at(now);
                    }
                    one.end(now);
                }
                3 if !waiting.is_empty() => {
                    let mut one = waiting.swap_remove(at(waiting.len(), &mut draw));
                    one.end(now);
                }
                _ if !waiting.is_empty() => {
                    let place = at(waiting.len(), &mut draw);
                    if let Poll::Ready(one) = waiting[place].poll_at(now, &mut context) {
                        waiting.swap_remove(place);
                        admitted.push(one);
                    }
                }
                _ => {}
            }
            if round % 1000 == 999 {
                // A reload: sometimes another limit, or none.
                terms.version += 1;
                let limit =
                    [Some(Concurrency::Fixed(5)), None, Some(concurrency)][at(3, &mut draw)];
                gate.with(now, |core| core.set(now, terms.version, limit));
                terms.version += 1;
            }
            let load = gate.load();
            assert!(load.under_way >= admitted.len());
            assert_eq!(
                load.under_way + load.waiting,
                admitted.len() + waiting.len()
            );
        }
        drop(waiting);
        drop(admitted);
        let load = gate.load();
        assert_eq!((load.under_way, load.waiting), (0, 0));
    }
}

#[test]
fn a_fixed_limit_is_kept_first_come_first_served() {
    let gate = Arc::<Gate>::default();
    let mut terms = terms(Concurrency::Fixed(2));
    terms.patience.length = 3;
    let now = Duration::from_secs(1);
    let mut context = Context::from_waker(Waker::noop());
    let enter = || gate.enter_at(now, &terms);
    let (Entry::Admitted(first), Entry::Admitted(_second)) = (enter(), enter()) else {
        panic!("two may be under way");
    };
    let mut waiting: Vec<WaitingRequest> = (0..3)
        .map(|_| match enter() {
            Entry::Waiting(waiting) => waiting,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(matches!(enter(), Entry::Refused(load) if load.waiting == 3 && load.refused == 1));
    // The request in the middle leaves the queue, and the others move up.
    drop(waiting.remove(1));
    drop(first);
    let mut is_called = |place: usize| waiting[place].poll_at(now, &mut context).is_ready();
    assert!(!is_called(1));
    assert!(is_called(0));
}

#[test]
fn streams_do_not_take_a_measured_limit_for_ever() {
    for (concurrency, is_measured) in [
        (Concurrency::Adaptive, true),
        (Concurrency::Fixed(2), false),
    ] {
        let gate = Arc::<Gate>::default();
        let terms = terms(concurrency);
        let mut context = Context::from_waker(Waker::noop());
        let mut now = Duration::from_secs(1);
        let mut streams = Vec::new();
        let mut is_stuck = false;
        for _ in 0..50 {
            now += SECOND / 10;
            let mut admitted = match gate.enter_at(now, &terms) {
                Entry::Admitted(admitted) => admitted,
                Entry::Waiting(mut waiting) => {
                    now += 4 * SECOND;
                    waiting.look(now);
                    match waiting.poll_at(now, &mut context) {
                        Poll::Ready(admitted) => admitted,
                        Poll::Pending => {
                            is_stuck = true;
                            break;
                        }
                    }
                }
                Entry::Refused(load) => panic!("{load:?}"),
            };
            admitted.answered_at(now + SECOND / 100);
            streams.push(admitted);
        }
        assert_eq!(is_stuck, !is_measured);
        assert!(!is_measured || streams.len() == 50);
        for mut stream in streams {
            stream.end(now);
        }
        let load = gate.load();
        assert_eq!((load.under_way, load.waiting), (0, 0));
    }
}
