//! Graceful ends: a GOAWAY that announces the end, one that names the last stream, new streams that
//! cross both; and changes of generations, which end nothing.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use engine::select::{Either, either};

use super::client::{End, Manners, Talk};
use super::raw::Raw;
use super::wish::Wish;
use super::{SEEDS, all, each};
use crate::random::Random;
use crate::server::{CONNECTIONS_MAX, Server, simulate, start_behind, start_echo};
use crate::site::{self, Site};
use crate::{faults, seeds};

/// A client that asks on until the server ends the connection: each request is answered, or known
/// not to have been served.
async fn ask_on(mut talk: Talk, mut random: Random) -> Result<usize, String> {
    let mut not_served = 0;
    for _ in 0..200 {
        let wishes = (0..1 + random.below(6)).map(|_| Wish::any(&mut random));
        let ends = talk.ask(wishes.collect()).await?;
        let odd = |end: &&End| !matches!(end, End::Answered | End::NotServed);
        if let Some(end) = ends.iter().find(odd) {
            return Err(format!("a request has ended as {end:?}"));
        }
        not_served += ends.iter().filter(|end| **end == End::NotServed).count();
        if not_served > 0 {
            return match talk.goes_away {
                Some(proto::h2::ErrorCode::NoError) => Ok(not_served),
                code => Err(format!("a connection ended with {code:?}")),
            };
        }
        if random.chance(300) {
            engine::sleep(random.duration(Duration::from_secs(1))).await;
        }
    }
    Err("the server serves on and on".into())
}

/// Quits while clients ask.
fn quit(site: &Site, seed: u64) -> Result<(), String> {
    let mut random = Random(seed ^ 0x5155);
    simulate(seed, faults(&mut random, false), async || {
        start_behind(random.fork());
        start_echo(random.fork());
        let server = Server::start(site);
        server.settle().await;
        let mut clients = Vec::new();
        for _ in 0..4 {
            let manners = Manners {
                at_once: 1 + random.below(6),
                ..Manners::plain()
            };
            let talk = Talk::connect(&server.address, manners, random.fork()).await?;
            clients.push(ask_on(talk, random.fork()));
        }
        let worker = Rc::clone(&server.worker);
        let pause = random.duration(Duration::from_secs(10));
        engine::spawn(async move {
            engine::sleep(pause).await;
            worker.quit();
        });
        let outcomes = all(clients).await;
        outcomes.into_iter().collect::<Result<Vec<_>, String>>()?;
        server.finish().await.map(drop)
    })
}

#[test]
fn quitting_loses_no_request() {
    each(seeds(SEEDS), quit);
}

/// Goes over to another generation while a client asks: its connection stays, and what begins
/// afterwards is of the new one.
fn change_generation(site: &Site, seed: u64) -> Result<(), String> {
    let mut random = Random(seed ^ 0x4745);
    simulate(seed, faults(&mut random, false), async || {
        start_behind(random.fork());
        start_echo(random.fork());
        let mut server = Server::start(site);
        server.settle().await;
        let manners = Manners::plain();
        let mut asker = Talk::connect(&server.address, manners.clone(), random.fork()).await?;
        asker.ask(vec![Wish::of(&site::which("one"))]).await?;
        let busy = Talk::connect(&server.address, manners, random.fork()).await?;
        let slow = [site::slow(), site::behind(), site::slow()];
        let slow = slow.iter().map(Wish::of).collect();
        let done = Rc::new(RefCell::new(None));
        let (place, mut talk) = (Rc::clone(&done), busy);
        engine::spawn(async move {
            let outcome = talk.ask(slow).await;
            *place.borrow_mut() = Some((outcome, talk));
        });
        // Once all of them have begun.
        engine::sleep(Duration::from_secs(1) + random.duration(Duration::from_secs(3))).await;
        server.swap("two");
        asker.ask(vec![Wish::of(&site::which("two"))]).await?;
        if done.borrow().is_none() && server.generations() != 2 {
            return Err("the old generation ended before its requests".into());
        }
        let (outcome, mut busy) = loop {
            match done.take() {
                Some(outcome) => break outcome,
                None => engine::sleep(Duration::from_millis(100)).await,
            }
        };
        outcome?;
        let ends = busy.ask(vec![Wish::of(&site::which("two"))]).await?;
        if ends != [End::Answered] {
            return Err(format!("a connection has ended: {ends:?}"));
        }
        engine::sleep(Duration::from_secs(1)).await;
        if server.generations() != 1 {
            return Err(format!("{} generations are left", server.generations()));
        }
        busy.say_goodbye();
        asker.say_goodbye();
        server.finish().await.map(drop)
    })
}

#[test]
fn a_change_of_generations_ends_no_connection() {
    each(seeds(SEEDS / 4), change_generation);
}

/// A response from memory waits no longer for credit than any other.
#[test]
fn who_gives_no_credit_is_not_waited_for() {
    let site = Site::new();
    simulate(1, engine::sim::Faults::default(), async || {
        let server = Server::start(&site);
        server.settle().await;
        // Once it is in memory.
        let mut first = Talk::connect(&server.address, Manners::plain(), Random(1))
            .await
            .unwrap();
        let asked = Wish::of(&site::small());
        for _ in 0..5 {
            first.ask(vec![asked.clone()]).await.unwrap();
            engine::sleep(Duration::from_millis(100)).await;
        }
        let manners = Manners {
            window: 0,
            ..Manners::plain()
        };
        let mut talk = Talk::connect(&server.address, manners, Random(2))
            .await
            .unwrap();
        let begun = engine::now();
        let outcome = talk.ask(vec![asked]).await;
        let (what, passed) = (outcome.unwrap_err(), engine::now() - begun);
        assert!(what.contains("ProtocolError"), "{what}");
        assert!(passed.as_secs() == 60, "{passed:?}");
        server.finish().await.unwrap();
    });
}

/// A connection that a reload ends (`worker_shutdown_timeout`) and that lingers is closed for
/// others as any idle one.
#[test]
fn who_is_waited_for_at_the_end_makes_room() {
    let site = Site::new();
    simulate(1, engine::sim::Faults::default(), async || {
        // A place for each of both ends.
        let server = Server::start_with(&site, 2 * CONNECTIONS_MAX);
        server.settle().await;
        let mut talk = Talk::connect(&server.address, Manners::plain(), Random(1))
            .await
            .unwrap();
        talk.ask(vec![Wish::of(&site::small())]).await.unwrap();
        server.worker.limit_open(Duration::from_secs(4));
        // The client is told, does not confirm that, and has five seconds from then on.
        engine::sleep(Duration::from_secs(2)).await;
        assert_eq!(server.connections(), 1);
        let mut others = Vec::new();
        for _ in 1..CONNECTIONS_MAX {
            others.push(crate::client::connect(&server.address).await.unwrap());
        }
        engine::sleep(Duration::from_millis(100)).await;
        // It and some of those that have said nothing.
        let left = CONNECTIONS_MAX - 64..CONNECTIONS_MAX - 16;
        assert!(
            left.contains(&server.connections()),
            "{}",
            server.connections()
        );
        drop((talk, others));
        // The limit holds the worker until it is over.
        engine::sleep(Duration::from_secs(4)).await;
        server.finish().await.unwrap();
    });
}

/// A client that asks on and does not confirm that it has heard of the end keeps its connection no
/// longer for it.
#[test]
fn who_asks_on_does_not_keep_the_thread() {
    let site = Site::new();
    simulate(1, engine::sim::Faults::default(), async || {
        start_behind(Random(1));
        let server = Server::start(&site);
        server.settle().await;
        let mut raw = Raw::connect(&server.address, Random(1)).await.unwrap();
        let worker = Rc::clone(&server.worker);
        engine::spawn(async move {
            engine::sleep(Duration::from_secs(10)).await;
            worker.quit();
        });
        let begun = engine::now();
        let asking = either(raw.ask_on(), engine::sleep(Duration::from_secs(60))).await;
        assert!(matches!(asking, Either::First(_)), "it is served on and on");
        let passed = engine::now() - begun;
        assert!((11..17).contains(&passed.as_secs()), "{passed:?}");
        drop(raw);
        server.finish().await.unwrap();
    });
}
