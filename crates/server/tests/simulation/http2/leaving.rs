//! Clients that leave at any moment: after each piece of what comes, in each way. What was served
//! for them ends, and no other client notices.

use std::time::Duration;

use engine::sim::Faults;

use super::client::{End, Leaves, Manners, Talk};
use super::wish::Wish;
use super::{all, each};
use crate::random::Random;
use crate::seeds;
use crate::server::{Server, simulate, start_behind, start_echo};
use crate::site::{self, Site};

/// Something of each kind.
fn wishes(random: &mut Random) -> Vec<Wish> {
    let mut wishes: Vec<Wish> = [
        site::which("one"),
        site::behind(),
        site::slow(),
        site::mirrored(),
        site::after(),
    ]
    .iter()
    .map(Wish::of)
    .collect();
    wishes.extend((0..6).map(|_| Wish::any(random)));
    wishes.push(Wish::echo(100_000, random));
    wishes.push(Wish::echo(70_000, random));
    wishes
}

fn run(site: &Site, seed: u64) -> Result<(), String> {
    let mut random = Random(seed ^ 0x4c45);
    let faults = Faults {
        delay_max: Duration::from_millis(2),
        window: [256 * 1024, 20_000][random.below(2)],
        ..Faults::default()
    };
    simulate(seed, faults, async || {
        start_behind(random.fork());
        start_echo(random.fork());
        let server = Server::start(site);
        server.settle().await;
        let wishes = wishes(&mut random);
        let manners = Manners {
            window: 20_000,
            ..Manners::plain()
        };
        let mut whole = Talk::connect(&server.address, manners.clone(), random.fork()).await?;
        whole.ask(wishes.clone()).await?;
        let mut clients = Vec::new();
        for step in 0..whole.steps {
            for leaves in [Leaves::Resets, Leaves::Closes, Leaves::Listens] {
                let (address, wishes) = (server.address.clone(), wishes.clone());
                let (manners, random) = (manners.clone(), random.fork());
                clients.push(async move {
                    let mut talk = Talk::connect(&address, manners, random).await?;
                    talk.leaves = Some((step, leaves));
                    talk.ask(wishes).await
                });
            }
        }
        let ends = all(clients).await;
        let ends = ends.into_iter().collect::<Result<Vec<_>, String>>()?;
        let broken = ends.iter().filter(|ends| ends.contains(&End::Broken));
        if broken.count() < ends.len() / 2 {
            return Err("few have left in the middle".into());
        }
        // What was under way for them ends before any time limit.
        engine::sleep(Duration::from_secs(20)).await;
        if server.connections() != 1 {
            return Err(format!("{} connections are left", server.connections()));
        }
        // Who has stayed meanwhile, and asks again.
        let upload = Wish::echo(100_000, &mut random);
        whole.ask(vec![upload]).await?;
        whole.say_goodbye();
        server.finish().await.map(drop)
    })
}

#[test]
fn a_client_may_leave_at_any_moment() {
    each(seeds(5), run);
}
