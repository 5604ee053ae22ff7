//! The same server and the same site by HTTP/2, beside clients of HTTP/1.
//!
//! Every response that comes is right to the byte, no stream waits for ever whose client reads, no
//! place, connection or generation is left, credit comes back, and each seed has one course.

mod client;
mod ending;
mod leaving;
mod raw;
pub(crate) mod wish;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use client::{End, Manners, Talk};
use engine::Event;
use raw::Raw;
use wish::Wish;

use crate::client::Script;
use crate::random::Random;
use crate::server::{Server, simulate, start_behind, start_echo};
use crate::site::Site;
use crate::{faults, seeds};

/// Seeds of each test.
const SEEDS: u64 = 100;

/// Waits for the outcomes of all tasks.
async fn all<T: 'static, F: Future<Output = T> + 'static>(tasks: Vec<F>) -> Vec<T> {
    let (outcomes, done) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Event::new()));
    let count = tasks.len();
    for task in tasks {
        let (outcomes, done) = (Rc::clone(&outcomes), Rc::clone(&done));
        engine::spawn(async move {
            let outcome = task.await;
            outcomes.borrow_mut().push(outcome);
            if outcomes.borrow().len() == count {
                done.set();
            }
        });
    }
    if count > 0 {
        done.wait().await;
    }
    outcomes.take()
}

/// What became of a client.
struct Played {
    logged: Vec<String>,
    gave_up: bool,
    trace: u64,
}

/// A client with any requests and manners, which uploads once more in the end: its credit has come
/// back.
async fn play(
    address: engine::net::Address,
    fragile: bool,
    mut random: Random,
) -> Result<Played, String> {
    let manners = Manners::any(&mut random, fragile);
    // One with small windows takes as many frames as it has windows for a body.
    let most = (manners.window as usize).saturating_mul(400);
    let wishes: Vec<Wish> = (0..=random.below(25))
        .map(|_| Wish::any(&mut random))
        .filter(|wish| wish.answer.len() <= most)
        .collect();
    let upload = Wish::echo(most.min(120_000), &mut random);
    let connected = Talk::connect(&address, manners, random.fork()).await;
    let mut talk = match connected {
        Ok(talk) => talk,
        Err(_) if fragile => {
            return Ok(Played {
                logged: Vec::new(),
                gave_up: true,
                trace: 0,
            });
        }
        Err(error) => return Err(error),
    };
    let mut ends = talk.ask(wishes).await?;
    ends.extend(talk.ask(vec![upload]).await?);
    let played = Played {
        logged: talk.logged().collect(),
        gave_up: ends.iter().any(|end| *end != End::Answered),
        trace: talk.trace(),
    };
    talk.say_goodbye();
    Ok(played)
}

/// Some clients on some network; what has come, and when.
fn run(site: &Site, seed: u64) -> Result<u64, String> {
    let mut random = Random(seed ^ 0x4832);
    let fragile = random.chance(250);
    simulate(seed, faults(&mut random, fragile), async || {
        start_behind(random.fork());
        start_echo(random.fork());
        let server = Server::start(site);
        server.settle().await;
        let clients = (0..=random.below(3)).map(|_| {
            let (address, random) = (server.address.clone(), random.fork());
            play(address, fragile, random)
        });
        let clients = clients.collect();
        // Beside one of HTTP/1 on the same port.
        let old = Script::any(&mut random, fragile);
        let mut wanted: Vec<String> = old.asked.iter().map(|asked| asked.logged.clone()).collect();
        let old = crate::client::play(server.address.clone(), old, random.fork());
        let old_played = Rc::new(Cell::new(None));
        let place = Rc::clone(&old_played);
        engine::spawn(async move { place.set(Some(old.await)) });
        let played = all(clients).await;
        let old = loop {
            match old_played.take() {
                Some(played) => break played?,
                None => engine::sleep(Duration::from_millis(10)).await,
            }
        };
        let (mut gave_up, mut trace) = (fragile, old as u64);
        for played in played {
            let played = played?;
            wanted.extend(played.logged);
            gave_up |= played.gave_up;
            trace = trace.rotate_left(7) ^ played.trace;
        }
        let mut logged = server.finish().await?;
        logged.sort();
        if fragile {
            return Ok(trace);
        }
        wanted.sort();
        if gave_up {
            // Those that were given up may have been answered.
            for line in &logged {
                if let Some(at) = wanted.iter().position(|wanted| wanted == line) {
                    wanted.remove(at);
                }
            }
            return if wanted.is_empty() {
                Ok(trace)
            } else {
                Err(format!("not in the log: {wanted:#?}"))
            };
        }
        if logged == wanted {
            Ok(trace)
        } else {
            Err(format!("logged {logged:#?}\ninstead of {wanted:#?}"))
        }
    })
}

/// Clients of their own frames, each of which does what `play` says, beside one that behaves.
fn run_raw(
    site: &Site,
    seed: u64,
    play: impl AsyncFn(&mut Raw, usize) -> Result<(), String> + Copy + 'static,
) -> Result<(), String> {
    let mut random = Random(seed ^ 0x5241);
    simulate(seed, faults(&mut random, false), async || {
        start_behind(random.fork());
        start_echo(random.fork());
        let server = Server::start(site);
        server.settle().await;
        let clients = (0..=random.below(3)).map(|_| {
            let (address, mut random) = (server.address.clone(), random.fork());
            async move {
                let steps = random.below(150);
                let mut raw = Raw::connect(&address, random).await?;
                play(&mut raw, steps).await
            }
        });
        let outcomes = all(clients.collect()).await;
        outcomes.into_iter().collect::<Result<(), String>>()?;
        let mut good = Talk::connect(&server.address, Manners::plain(), random.fork()).await?;
        let wishes = (0..5).map(|_| Wish::any(&mut random)).collect();
        good.ask(wishes).await?;
        good.say_goodbye();
        server.finish().await.map(drop)
    })
}

/// Runs all seeds.
fn each(seeds: impl IntoIterator<Item = u64>, run: impl Fn(&Site, u64) -> Result<(), String>) {
    let site = Site::new();
    for seed in seeds {
        if let Err(what) = run(&site, seed) {
            panic!("SEED={seed}: {what}\n{}", site.last_errors());
        }
    }
}

#[test]
fn every_request_gets_its_answer() {
    each(seeds(SEEDS), |site, seed| run(site, seed).map(drop));
}

#[test]
fn windows_are_kept() {
    each(seeds(SEEDS), |site, seed| {
        run_raw(site, seed, async |raw, steps| raw.play(steps).await)
    });
}

#[test]
fn who_breaks_the_protocol_harms_no_other() {
    each(seeds(SEEDS), |site, seed| {
        run_raw(site, seed, async |raw, steps| raw.offend(steps).await)
    });
}

#[test]
fn who_falls_silent_is_not_kept() {
    each(seeds(SEEDS), |site, seed| {
        run_raw(site, seed, async |raw, steps| {
            raw.fall_silent(steps / 4).await
        })
    });
}

#[test]
fn a_seed_has_one_course() {
    let site = Site::new();
    for seed in seeds(10) {
        let [first, second] = [run(&site, seed), run(&site, seed)];
        assert_eq!(first, second, "SEED={seed}");
    }
}
