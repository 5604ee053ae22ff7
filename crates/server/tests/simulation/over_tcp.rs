//! The same server and clients with every byte between them in frames of our own TCP, on a wire
//! that loses up to a tenth of them, doubles, reorders and damages some.

use std::time::Duration;

use engine::sim::{Faults, Streams};

use crate::client;
use crate::random::Random;
use crate::server::{Server, simulate};
use crate::site::{Site, which};
use crate::{run_on, seeds};

const SEEDS: u64 = 200;

/// A segment that is lost five times in a row is late by more than the five seconds for which a
/// server waits for a body that it does not read; here it has more patience than any wire needs,
/// and less than the simulation, which waits ten minutes for a connection whose reset was lost.
const PATIENT: &str = "client_header_timeout 4m; client_body_timeout 4m; send_timeout 4m;
    keepalive_timeout 4m; lingering_timeout 4m; lingering_time 4m;";

/// A wire of any manners.
fn wire(random: &mut Random, fragile: bool) -> Faults {
    Faults {
        streams: Streams::Tcp,
        loss: random.below(101) as u32,
        duplicate: [0, 10, 100][random.below(3)],
        reorder: [0, 50, 500][random.below(3)],
        corrupt: [0, 5][random.below(2)],
        reset: if fragile { 5 } else { 0 },
        ..crate::faults(random, fragile)
    }
}

#[test]
fn one_request_over_our_tcp() {
    let site = Site::new();
    let faults = Faults {
        streams: Streams::Tcp,
        ..Faults::default()
    };
    let took = simulate(0, faults, async || {
        let server = Server::start(&site);
        let begin = engine::now();
        let connection = client::connect(&server.address).await.unwrap();
        client::ask(&connection, &which("one")).await.unwrap();
        let took = engine::now() - begin;
        drop(connection);
        assert_eq!(server.finish().await.unwrap().len(), 1);
        took
    });
    // A round trip for the handshake and one for the request, at most 0.2 ms each way.
    assert!(took < Duration::from_millis(1), "{took:?}");
}

#[test]
fn every_request_gets_its_answer_over_our_tcp() {
    let site = Site::new();
    site.lines.replace(PATIENT.to_owned());
    for seed in seeds(SEEDS) {
        if let Err(what) = run_on(&site, seed, wire) {
            panic!("SEED={seed}: {what}");
        }
    }
}
