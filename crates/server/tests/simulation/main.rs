//! The whole server in one process under a virtual clock: a configuration compiled as always, the
//! worker's own code, the simulated engine, and clients that send by seed in any way that TCP
//! allows.
//!
//! Every complete request of an unbroken connection must get its answer, in order and to the byte;
//! time limits must act at their time; nothing may be left in the end. A seed that fails fails
//! again: `SEED=n` runs it alone, and `SEEDS=n` runs so many instead of a few. Files and logs are
//! real, the network and the clock are not.

mod client;
mod http2;
mod leaving;
mod over_tcp;
mod random;
mod server;
mod sessions;
mod site;
mod storm;
mod time;
mod tls;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use client::Script;
use engine::Event;
use engine::sim::Faults;
use random::Random;
use server::{Server, simulate, start_behind};
use site::{Site, behind, slow, which};

const SEEDS: u64 = 200;

/// The seeds to run: so many, as many as SEEDS says, or the one that SEED names.
fn seeds(count: u64) -> Vec<u64> {
    let variable = |name| {
        std::env::var(name)
            .ok()
            .map(|number| number.parse().unwrap())
    };
    match (variable("SEED"), variable("SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, count_wanted) => (0..count_wanted.unwrap_or(count)).collect(),
    }
}

/// A network of any manners; `fragile` ones lose connections.
fn faults(random: &mut Random, fragile: bool) -> Faults {
    Faults {
        delay_max: Duration::from_micros([50, 2000, 40_000][random.below(3)]),
        short_receive: [0, 50, 500][random.below(3)],
        short_send: [0, 50, 500][random.below(3)],
        reset: if fragile { 5 } else { 0 },
        window: [256 * 1024, 20_000, 2000][random.below(3)],
        ..Faults::default()
    }
}

/// Plays all scripts at once. How many requests were answered whole.
async fn play_all(
    server: &Server<'_>,
    scripts: Vec<Script>,
    random: &mut Random,
) -> Result<usize, String> {
    let outcomes = Rc::new(RefCell::new(Vec::new()));
    let count = scripts.len();
    let done = Rc::new(Event::new());
    for script in scripts {
        let (address, random) = (server.address.clone(), random.fork());
        let (outcomes, done) = (Rc::clone(&outcomes), Rc::clone(&done));
        engine::spawn(async move {
            let outcome = client::play(address, script, random).await;
            outcomes.borrow_mut().push(outcome);
            if outcomes.borrow().len() == count {
                done.set();
            }
        });
    }
    done.wait().await;
    outcomes.take().into_iter().sum()
}

/// Some clients on some network; whether all was as it must be.
fn run(site: &Site, seed: u64) -> Result<(), String> {
    run_on(site, seed, faults)
}

/// Runs some clients on a network of this kind; fails if anything is not as it must be.
fn run_on(
    site: &Site,
    seed: u64,
    network: impl Fn(&mut Random, bool) -> Faults,
) -> Result<(), String> {
    let mut random = Random(seed);
    let fragile = random.chance(300);
    simulate(seed, network(&mut random, fragile), async || {
        start_behind(random.fork());
        let server = Server::start(site);
        if random.chance(500) {
            server.settle().await;
        }
        let scripts: Vec<Script> = (0..=random.below(5))
            .map(|_| Script::any(&mut random, fragile))
            .collect();
        let mut wanted: Vec<String> = scripts
            .iter()
            .flat_map(|script| &script.asked)
            .map(|asked| asked.logged.clone())
            .collect();
        let answered = play_all(&server, scripts, &mut random).await?;
        let mut logged = server.finish().await?;
        if fragile {
            return if logged.len() < answered {
                Err(format!(
                    "{answered} answers, {} lines in the log",
                    logged.len()
                ))
            } else {
                Ok(())
            };
        }
        wanted.sort();
        logged.sort();
        if logged == wanted {
            Ok(())
        } else {
            Err(format!("logged {logged:#?}\ninstead of {wanted:#?}"))
        }
    })
}

#[test]
fn every_request_gets_its_answer() {
    let site = Site::new();
    for seed in seeds(SEEDS) {
        if let Err(what) = run(&site, seed) {
            panic!("SEED={seed}: {what}");
        }
    }
}

/// Clients before, during and after a change of generations. `Err` as in [`run`].
fn change_generation(site: &Site, seed: u64) -> Result<(), String> {
    let mut random = Random(seed);
    simulate(seed, faults(&mut random, false), async || {
        start_behind(random.fork());
        let mut server = Server::start(site);
        let before = Rc::new(RefCell::new(Vec::new()));
        for _ in 0..4 {
            let asked = if random.chance(500) {
                vec![behind(), slow()]
            } else {
                vec![slow(), behind(), behind()]
            };
            let (address, random) = (server.address.clone(), random.fork());
            let before = Rc::clone(&before);
            engine::spawn(async move {
                let played = client::play(address, Script::plain(asked), random).await;
                before.borrow_mut().push(played);
            });
        }
        let asker = client::connect(&server.address).await?;
        let first = client::ask(&asker, &which("one")).await;
        engine::sleep(random.duration(Duration::from_secs(3))).await;
        server.swap("two");
        first?;
        client::ask(&asker, &which("two")).await?;
        play_all(
            &server,
            vec![Script::plain(vec![which("two")])],
            &mut random,
        )
        .await?;
        if before.borrow().is_empty() && server.generations() != 2 {
            return Err("the old generation ended before its requests".into());
        }
        drop(asker);
        while before.borrow().len() < 4 {
            engine::sleep(Duration::from_millis(100)).await;
        }
        before.take().into_iter().sum::<Result<usize, String>>()?;
        engine::sleep(Duration::from_secs(1)).await;
        if server.generations() != 1 {
            return Err(format!("{} generations are left", server.generations()));
        }
        server.finish().await.map(drop)
    })
}

#[test]
fn a_change_of_generations_loses_nothing() {
    let site = Site::new();
    for seed in seeds(SEEDS / 4) {
        if let Err(what) = change_generation(&site, seed) {
            panic!("SEED={seed}: {what}");
        }
    }
}
