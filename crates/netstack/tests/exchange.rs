//! Two stacks at the ends of a wire: connections begin, carry bytes both ways and end.

mod common;

use std::net::SocketAddrV4;
use std::time::Duration;

use bytes::Bytes;
use common::{Hosts, content, events, ms, read};
use netstack::simulated::{Wire, WireFaults};
use netstack::tcp;
use netstack::{ConnectionId, Event, FRAME_MAX, Stack};

/// Checks that one direction never stands still for longer than RFC 6298 allows.
struct Patience {
    /// When something last came, and how much had been lost by then and the time before.
    came: Duration,
    lost: [u32; 2],
}

impl Patience {
    fn new(wire: &Wire) -> Patience {
        Patience {
            came: wire.now,
            lost: [wire.lost; 2],
        }
    }

    /// The timeout is a second at first, three after a lost SYN, and below one with the round trips
    /// of these wires. A loss, also one of the last pause, whose doubling may still hold, doubles
    /// it.
    fn note(&mut self, wire: &Wire, has_come: bool) {
        let lost = wire.lost - self.lost[0];
        let longest = ms(3100) * (1 << lost.min(16));
        let pause = wire.now - self.came;
        assert!(pause <= longest, "{pause:?} with {lost} losses");
        if has_come {
            self.came = wire.now;
            self.lost = [self.lost[1], wire.lost];
        }
    }
}

/// Sends `request` one way and `response` the other, each followed by its end, and has everything
/// end in order. What both have got, and how long it took.
fn exchange(hosts: &mut Hosts, request: &Bytes, response: &Bytes) -> (Vec<u8>, Vec<u8>) {
    let begin = hosts.wire.now;
    let (client, server) = hosts.connected();
    let mut unsent = [request.clone(), response.clone()];
    let mut received = [Vec::new(), Vec::new()];
    let mut ended = [false; 2];
    let mut patience = [Patience::new(&hosts.wire), Patience::new(&hosts.wire)];
    loop {
        let ends: [(usize, ConnectionId); 2] = [(0, client), (1, server)];
        for (side, id) in ends {
            let stack = if side == 0 {
                &mut hosts.client
            } else {
                &mut hosts.server
            };
            let rest = &mut unsent[side];
            if !rest.is_empty() {
                let count = match stack.send(id, rest.clone()) {
                    Ok(count) => count,
                    Err(tcp::CallError::Connecting) => 0,
                    Err(error) => panic!("{error}"),
                };
                *rest = rest.slice(count..);
                if rest.is_empty() {
                    stack.finish(id).unwrap();
                }
            }
            let news = read(stack, id);
            ended[side] = stack.receive(id, &mut [0]) == Ok(Some(0));
            if !ended[side] {
                patience[side].note(&hosts.wire, !news.is_empty());
            }
            received[side].extend(news);
        }
        if ended == [true, true] {
            break;
        }
        assert!(hosts.step(), "nothing happens any more");
        assert!(hosts.wire.now - begin < ms(3_600_000), "an hour has passed");
    }
    let now = hosts.wire.now;
    hosts.client.release(now, client);
    hosts.server.release(now, server);
    let [of_client, of_server] = received;
    (of_server, of_client)
}

#[test]
fn a_request_and_its_response_and_both_ends() {
    let mut hosts = Hosts::new(0, WireFaults::default(), &tcp::Settings::default());
    let (client, server) = hosts.connected();
    let request = Bytes::from_static(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(
        hosts.client.send(client, request.clone()),
        Ok(request.len())
    );
    hosts.step();
    hosts.step();
    assert_eq!(read(&mut hosts.server, server), request);
    let response = content(1000);
    hosts.server.send(server, response.clone()).unwrap();
    hosts.server.finish(server).unwrap();
    hosts.step();
    hosts.step();
    assert_eq!(read(&mut hosts.client, client), response);
    assert_eq!(hosts.client.receive(client, &mut [0]), Ok(Some(0)));
    let seen = events(&mut hosts.client);
    assert!(seen.contains(&Event::Connected(client)), "{seen:?}");
    assert!(seen.contains(&Event::Readable(client)), "{seen:?}");
    // The one that finished last is in TIME-WAIT no longer than the other.
    let now = hosts.wire.now;
    hosts.client.release(now, client);
    hosts.server.release(now, server);
    while hosts.step() {}
    assert_eq!(hosts.client.connections(), 0);
    assert_eq!(hosts.server.connections(), 0);
    assert_eq!(hosts.server.memory() + hosts.client.memory(), 0);
    let waited = hosts.wire.now - now;
    assert!(ms(60_000) <= waited && waited < ms(61_000), "{waited:?}");
}

#[test]
fn much_goes_both_ways_at_once() {
    let mut hosts = Hosts::new(0, WireFaults::default(), &tcp::Settings::default());
    let (request, response) = (content(300_000), content(1_000_000));
    let received = exchange(&mut hosts, &request, &response);
    assert_eq!(received, (request.to_vec(), response.to_vec()));
    // A megabyte through a window of 256 KB and 2 ms of round trip.
    assert!(hosts.wire.now < ms(100), "{:?}", hosts.wire.now);
}

#[test]
fn nobody_listens() {
    let mut hosts = Hosts::new(0, WireFaults::default(), &tcp::Settings::default());
    hosts.address.set_port(81);
    let now = hosts.wire.now;
    let client = hosts.client.connect(now, None, hosts.address).unwrap();
    while hosts.step() {}
    let reason = tcp::Reason::Refused;
    assert!(events(&mut hosts.client).contains(&Event::Closed(client, reason)));
    assert_eq!(
        hosts.client.receive(client, &mut [0]),
        Err(tcp::CallError::Ended(reason))
    );
}

/// Wires that lose up to a tenth of all frames, and double, reorder and damage some.
fn faults(seed: u64) -> WireFaults {
    WireFaults {
        delay_min: ms([0, 1, 20][seed as usize % 3]),
        delay_max: ms([1, 5, 60][seed as usize / 3 % 3]).max(ms([0, 1, 20][seed as usize % 3])),
        loss: (seed % 101) as u32,
        duplicate: [0, 10, 100][seed as usize / 9 % 3],
        reorder: [0, 50, 500][seed as usize / 27 % 3],
        corrupt: [0, 0, 20][seed as usize / 81 % 3],
    }
}

/// What both ends are capable of, in all combinations.
fn capabilities(seed: u64) -> tcp::Settings {
    tcp::Settings {
        timestamps: seed & 1 == 0,
        sack: seed & 2 == 0,
        window_scale: seed & 4 == 0,
        no_delay: seed & 8 == 0,
        receive_max: [256 * 1024, 20_000, 3000][seed as usize / 16 % 3],
        send_max: [256 * 1024, 10_000][seed as usize / 48 % 2],
        ..tcp::Settings::default()
    }
}

#[test]
fn every_byte_is_right_whatever_the_wire_does() {
    let one: Option<u64> = std::env::var("SEED").ok().map(|seed| seed.parse().unwrap());
    let seeds = one.map_or(0..1000, |seed| seed..seed + 1);
    for seed in seeds {
        let mut hosts = Hosts::new(seed, faults(seed), &capabilities(seed / 7));
        let request = content(1 + (seed * 37 % 5000) as usize);
        let response = content(1 + (seed * 7919 % 100_000) as usize);
        let (got_request, got_response) = exchange(&mut hosts, &request, &response);
        assert!(got_request == request, "SEED={seed}");
        assert!(got_response == response, "SEED={seed}");
        while hosts.step() {}
        assert_eq!(hosts.client.connections(), 0, "SEED={seed}");
        assert_eq!(hosts.server.connections(), 0, "SEED={seed}");
        let left = hosts.server.memory() + hosts.client.memory();
        assert_eq!(left, 0, "SEED={seed}");
    }
}

#[test]
fn much_comes_before_anything_can_be_acknowledged() {
    let mut hosts = Hosts::new(0, WireFaults::default(), &tcp::Settings::default());
    let (client, server) = hosts.connected();
    while hosts.wire.next_arrival().is_some() {
        hosts.step();
    }
    let now = hosts.wire.now;
    let mut frame = [0; FRAME_MAX];
    // Single bytes, which the window of congestion allows by the thousand.
    let mut come = 0;
    while come < 300 {
        hosts.client.send(client, Bytes::from_static(b"a")).unwrap();
        while let Some(length) = hosts.client.poll_frame(now, &mut frame) {
            hosts.server.handle_frame(now, &frame[..length]);
            come += 1;
        }
    }
    assert_eq!(read(&mut hosts.server, server).len(), come);
}

/// A server that closes first has its connections in TIME-WAIT for a minute: they make room for new
/// ones where all places are taken.
#[test]
fn time_wait_makes_room_for_new_connections() {
    let tcp = netstack::tcp::Settings::default();
    let mut hosts = Hosts::new(1, WireFaults::default(), &tcp);
    hosts.server = Stack::new(netstack::Settings {
        connections_max: 3,
        ..common::settings(common::SERVER, tcp)
    });
    hosts.listener = hosts.server.listen(hosts.address, 8).unwrap();
    for round in 0..10 {
        let (client, server) = hosts.connected();
        hosts.server.release(hosts.wire.now, server);
        hosts.run();
        while !hosts
            .client
            .poll_event()
            .is_some_and(|event| event == Event::Readable(client))
        {
            assert!(hosts.step(), "{round}");
        }
        hosts.client.release(hosts.wire.now, client);
        hosts.run();
        let until = hosts.wire.now + ms(100);
        while hosts.wire.now < until && hosts.step() {}
        assert!(hosts.server.connections() <= 3);
    }
    assert_eq!(hosts.server.connections(), 3);
}

/// A client that starts anew has its connections to a server that is in TIME-WAIT with those of the
/// one before it, at the same ports: no SYN of it has to be sent twice.
#[test]
fn a_stack_goes_on_with_the_clocks_of_the_one_before_it() {
    for timestamps in [true, false] {
        let tcp = tcp::Settings {
            timestamps,
            ..tcp::Settings::default()
        };
        let mut hosts = Hosts::new(3, WireFaults::default(), &tcp);
        let from = SocketAddrV4::new(common::CLIENT, 40_000);
        let connect = |hosts: &mut Hosts| {
            let now = hosts.wire.now;
            let client = hosts.client.connect(now, Some(from), hosts.address);
            let (client, begun) = (client.unwrap(), now);
            let server = loop {
                if let Some((server, _)) = hosts.server.accept(hosts.listener) {
                    break server;
                }
                assert!(hosts.step(), "nothing happens any more");
            };
            (client, server, hosts.wire.now - begun)
        };
        let (client, server, _) = connect(&mut hosts);
        // The server ends first, and waits.
        let now = hosts.wire.now;
        hosts.server.release(now, server);
        while hosts.client.receive(client, &mut [0]) != Ok(Some(0)) {
            assert!(hosts.step());
        }
        let now = hosts.wire.now;
        hosts.client.release(now, client);
        while hosts.client.is_busy() || hosts.server.is_busy() {
            assert!(hosts.step());
        }
        assert_eq!(hosts.server.connections(), 1, "in TIME-WAIT");
        // Another process, whose time begins with it.
        let later = hosts.wire.now + ms(5);
        let tcp = tcp::Settings {
            clock_begins: later,
            ..tcp
        };
        hosts.client = Stack::new(common::settings(common::CLIENT, tcp));
        let (_, _, took) = connect(&mut hosts);
        assert!(took < ms(500), "{took:?}: the first SYN was refused");
    }
}
