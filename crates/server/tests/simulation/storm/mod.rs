//! Storms: clients that leave at any moment, servers behind that fail in every way, reloads and
//! other addresses in the middle. Then all is quiet, and nothing may be left: no request counts
//! against a server (`max_conns`, `least_conn`, `least_time … inflight`), no one waits in a queue,
//! no connection and no generation is held.
//!
//! Every answer that comes whole must be the one to its request, and no connection on which a
//! server has said too much is used again. What a seed does not decide: the draws of `random` and
//! `p2c`, and the names that `sticky cookie` gives.

mod behind;
mod behind_http2;
mod client;
mod settings;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use engine::Event;
use engine::net::Address;
use engine::sim::Faults;
use upstream::{Remembered, ResolvedAddress, Roster, State};

use crate::random::Random;
use crate::server::{Server, simulate};
use crate::site::Site;
use crate::{faults, seeds};
use settings::Settings;

/// How long it takes until all time limits of a storm are over.
const QUIET: Duration = Duration::from_secs(300);

/// Storms of `make test`; `make storms` has more.
const SEEDS: u64 = 200;

/// What all that take part in a storm share.
#[derive(Default)]
struct Storm {
    /// What must not be, and was.
    violations: RefCell<Vec<String>>,
    /// States of all servers that were ever asked.
    states: RefCell<Vec<(String, Arc<State>)>>,
    /// The most requests that a server is given at a time; 0 is no limit.
    max_conns: usize,
    /// Bytes that are sent together arrive together.
    is_orderly: bool,
    /// Servers behind that are not there for now: connections to them are reset.
    away: [Cell<bool>; settings::BEHIND],
    /// Answers that clients got whole.
    answered: Cell<usize>,
    /// Answers by HTTP/2 that servers behind gave whole.
    behind_answered: Cell<usize>,
}

impl Storm {
    fn violated(&self, what: impl Into<String>) {
        self.violations.borrow_mut().push(what.into());
    }

    /// Keeps the states of the servers that a group has now, and sees to it that none has more
    /// requests than it may have.
    fn look(&self, roster: &Roster) {
        let peers = roster.peers();
        for peer in peers.iter() {
            let name = String::from_utf8_lossy(&peer.name).into_owned();
            let state = peer.state();
            let mut states = self.states.borrow_mut();
            if !states.iter().any(|(_, known)| Arc::ptr_eq(known, state)) {
                states.push((name, Arc::clone(state)));
            }
        }
        for (name, state) in &*self.states.borrow() {
            let connections = state.connections();
            if self.max_conns > 0 && connections > self.max_conns {
                self.violated(format!("{connections} requests at {name}"));
            }
        }
    }

    /// What is left of requests after all of them are over.
    fn leftovers(&self, roster: &Roster) -> Vec<String> {
        let mut left = Vec::new();
        for (name, state) in &*self.states.borrow() {
            let (connections, unanswered) = (state.connections(), state.unanswered());
            if (connections, unanswered) != (0, 0) {
                left.push(format!(
                    "{connections} requests, {unanswered} without an answer at {name}"
                ));
            }
        }
        match roster.peers().waiting() {
            0 => {}
            waiting => left.push(format!("{waiting} in the queue")),
        }
        left
    }
}

/// The servers of the group now.
fn roster(server: &Server<'_>) -> Arc<Roster> {
    let local = server.worker.current();
    let zone = local.generation.zones.find::<Remembered>("http upstream u");
    Arc::clone(zone.unwrap().settings())
}

/// The name that is looked up has other addresses now: as many of these as chance has it.
fn resolve(roster: &Roster, random: &mut Random) {
    let found: Vec<ResolvedAddress> = (0..settings::BEHIND)
        .filter(|_| random.chance(500))
        .map(|number| ResolvedAddress {
            address: settings::address(number),
            server: None,
            weight: None,
            is_backup: false,
        })
        .collect();
    for host in roster.hosts().iter() {
        roster.resolved(host.key, &found);
    }
}

/// One storm; whether all was as it must be.
fn run(site: &Site, seed: u64) -> Result<(usize, usize), String> {
    let mut random = Random(seed);
    let fragile = random.chance(300);
    let faults: Faults = faults(&mut random, fragile);
    let is_orderly = faults.short_send == 0 && faults.window > 100_000;
    let settings = Settings::any(&mut random);
    simulate(seed, faults, async || {
        let storm = Rc::new(Storm {
            max_conns: settings.max_conns,
            is_orderly,
            ..Storm::default()
        });
        behind::start(&storm, &mut random);
        site.lines.replace(settings.lines(&mut random));
        let mut server = Server::start(site);
        resolve(&roster(&server), &mut random);
        let (running, done) = (
            Rc::new(Cell::new(1 + random.below(10))),
            Rc::new(Event::new()),
        );
        for number in 0..running.get() {
            let (storm, random) = (Rc::clone(&storm), random.fork());
            let (running, done) = (Rc::clone(&running), Rc::clone(&done));
            let address: Address = server.address.clone();
            engine::spawn(async move {
                client::play(&storm, &address, number, random).await;
                running.set(running.get() - 1);
                if running.get() == 0 {
                    done.set();
                }
            });
        }
        for _ in 0..random.below(12) {
            engine::sleep(random.duration(Duration::from_millis(800))).await;
            match random.below(4) {
                0 => {
                    site.lines.replace(settings.lines(&mut random));
                    server.swap("again");
                }
                1 => resolve(&roster(&server), &mut random),
                _ => {
                    let away = &storm.away[random.below(settings::BEHIND)];
                    away.set(!away.get());
                }
            }
            storm.look(&roster(&server));
        }
        done.wait().await;
        storm.look(&roster(&server));
        engine::sleep(QUIET).await;
        let mut wrong = storm.leftovers(&roster(&server));
        wrong.append(&mut storm.violations.borrow_mut());
        if !wrong.is_empty() {
            let lines = site.lines.borrow();
            return Err(format!(
                "{}\n{lines}\n{}",
                wrong.join("\n"),
                site.last_errors()
            ));
        }
        let answered = (storm.answered.get(), storm.behind_answered.get());
        server.finish().await.map(|_| answered)
    })
}

#[test]
fn nothing_is_left_of_a_storm() {
    let site = Site::new();
    let (mut answered, mut by_http2) = (0, 0);
    let seeds = seeds(SEEDS);
    for seed in &seeds {
        match run(&site, *seed) {
            Ok((of_clients, of_behind)) => {
                answered += of_clients;
                by_http2 += of_behind;
            }
            Err(what) => panic!("SEED={seed}: {what}"),
        }
    }
    // Storms in which no one gets an answer would show nothing.
    assert!(answered > seeds.len() / 2, "{answered} answers");
    if seeds.len() >= 50 {
        assert!(by_http2 > seeds.len() / 5, "{by_http2} answers by HTTP/2");
    }
}
