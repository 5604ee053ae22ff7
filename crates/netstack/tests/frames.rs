//! Which frames are a stack's and which are the kernel's, and what is answered beside TCP.

#[allow(dead_code)] // Each test uses a part of it.
mod common;

use std::net::{Ipv4Addr, SocketAddrV4};

use common::{CLIENT, SERVER, ms, settings};
use netstack::wire::arp;
use netstack::wire::checksum::Sum;
use netstack::wire::ethernet::{self, EtherType, MacAddress};
use netstack::wire::icmp;
use netstack::wire::ipv4::{self, Packet, Protocol};
use netstack::wire::sequence::Sequence;
use netstack::wire::tcp::{Flags, Header, Options, Segment};
use netstack::{FRAME_MAX, FrameFate, Neighbouring, Route, Stack, Unlistened, tcp};

const THEIR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const OUR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

fn stack(unlistened: Unlistened) -> Stack {
    let settings = netstack::Settings {
        unlistened,
        ..settings(SERVER, tcp::Settings::default())
    };
    Stack::new(settings)
}

fn frame(destination: MacAddress, kind: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; ethernet::HEADER];
    let header = ethernet::Header {
        destination,
        source: THEIR_MAC,
        kind,
    };
    header.emit(&mut frame);
    frame.extend_from_slice(payload);
    frame
}

fn packet(protocol: Protocol, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ipv4::HEADER];
    let header = ipv4::Header {
        source: CLIENT,
        destination: SERVER,
        protocol,
        payload: payload.len(),
    };
    header.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

/// A SYN for a port.
fn syn(port: u16) -> Vec<u8> {
    let header = Header {
        source: 5000,
        destination: port,
        sequence: Sequence(7),
        acknowledgment: Sequence(0),
        flags: Flags::SYN,
        window: 1000,
        options: Options::default(),
    };
    let mut bytes = vec![0; header.length()];
    header.emit(&mut bytes, (CLIENT, SERVER), (Sum::default(), 0));
    packet(Protocol::Tcp, &bytes)
}

/// A packet with one byte of its header changed and its checksum right again.
fn with(mut packet: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    packet[at] = value;
    packet[10..12].fill(0);
    let checksum = Sum::of(&packet[..ipv4::HEADER]).checksum();
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// What a stack answers to a frame, and what became of that.
fn give(stack: &mut Stack, frame: &[u8]) -> (FrameFate, Option<Vec<u8>>) {
    let verdict = stack.handle_frame(ms(1000), frame);
    let mut answer = vec![0; FRAME_MAX];
    let length = stack.poll_frame(ms(1000), &mut answer);
    answer.truncate(length.unwrap_or_default());
    (verdict, length.map(|_| answer))
}

#[test]
fn what_is_not_ours_is_passed_on_without_a_word() {
    let mut stack = stack(Unlistened::Refuse);
    let ours = syn(80);
    let passed = [
        // A fragment, the first one and a later one.
        frame(OUR_MAC, EtherType::Ipv4, &with(ours.clone(), 6, 0x20)),
        frame(OUR_MAC, EtherType::Ipv4, &with(ours.clone(), 7, 1)),
        // Another protocol, host, card; no unicast source; a header that lies.
        frame(
            OUR_MAC,
            EtherType::Ipv4,
            &packet(Protocol::Other(17), b"datagram"),
        ),
        frame(OUR_MAC, EtherType::Ipv4, &with(ours.clone(), 19, 99)),
        frame(THEIR_MAC, EtherType::Ipv4, &ours),
        frame(MacAddress::BROADCAST, EtherType::Ipv4, &ours),
        frame(OUR_MAC, EtherType::Ipv4, &with(ours.clone(), 12, 224)),
        frame(OUR_MAC, EtherType::Ipv4, &with(ours.clone(), 0, 0x44)),
        frame(OUR_MAC, EtherType::Other(0x86dd), &ours),
        frame(OUR_MAC, EtherType::Arp, b"short"),
        vec![0; 10],
    ];
    for (number, frame) in passed.iter().enumerate() {
        assert_eq!(
            give(&mut stack, frame),
            (FrameFate::Passed, None),
            "{number}"
        );
    }
}

#[test]
fn a_port_without_a_listener_is_refused_or_left_to_the_kernel() {
    let frame = frame(OUR_MAC, EtherType::Ipv4, &syn(81));
    let (verdict, answer) = give(&mut stack(Unlistened::Refuse), &frame);
    assert_eq!(verdict, FrameFate::Taken);
    let answer = answer.unwrap();
    let packet = Packet::parse(&answer[ethernet::HEADER..]).unwrap();
    let reset = Segment::parse(packet.payload, SERVER, CLIENT).unwrap();
    assert_eq!(reset.header.flags, Flags::RST.with(Flags::ACK));
    assert_eq!(reset.header.acknowledgment, Sequence(8));
    let left = give(&mut stack(Unlistened::Pass), &frame);
    assert_eq!(left, (FrameFate::Passed, None));
}

#[test]
fn who_asks_for_our_card_is_told_it() {
    let question = arp::Message {
        operation: arp::Operation::Request,
        sender_mac: THEIR_MAC,
        sender: CLIENT,
        target_mac: MacAddress::default(),
        target: SERVER,
    };
    let asked = |target| {
        let mut bytes = [0; arp::LENGTH];
        arp::Message { target, ..question }.emit(&mut bytes);
        let frame = frame(MacAddress::BROADCAST, EtherType::Arp, &bytes);
        give(&mut stack(Unlistened::Refuse), &frame).1
    };
    let answer = asked(SERVER).unwrap();
    let (header, payload) = ethernet::Header::parse(&answer).unwrap();
    assert_eq!(header.destination, THEIR_MAC);
    let answer = arp::Message::parse(payload).unwrap();
    assert_eq!(answer.operation, arp::Operation::Reply);
    assert_eq!((answer.sender, answer.sender_mac), (SERVER, OUR_MAC));
    assert_eq!(asked(CLIENT), None);
}

#[test]
fn an_echo_is_answered_by_the_only_stack_of_a_host() {
    let mut request = b"\x08\0\0\0\0\x01\0\x02are you there?".to_vec();
    let checksum = Sum::of(&request).checksum();
    request[2..4].copy_from_slice(&checksum.to_be_bytes());
    let asked = frame(OUR_MAC, EtherType::Ipv4, &packet(Protocol::Icmp, &request));
    let (_, answer) = give(&mut stack(Unlistened::Refuse), &asked);
    let answer = answer.unwrap();
    let packet = Packet::parse(&answer[ethernet::HEADER..]).unwrap();
    assert_eq!((packet.source, packet.destination), (SERVER, CLIENT));
    assert_eq!(
        icmp::Message::parse(packet.payload),
        Ok(icmp::Message::Other)
    );
    assert_eq!(packet.payload[0], 0);
    assert_eq!(packet.payload[4..], request[4..]);
    let left = give(&mut stack(Unlistened::Pass), &asked);
    assert_eq!(left, (FrameFate::Passed, None));
}

/// Whom a frame is for.
fn receiver(frame: &[u8]) -> MacAddress {
    ethernet::Header::parse(frame).unwrap().0.destination
}

#[test]
fn a_stack_that_is_told_of_neighbours_asks_nobody() {
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
    let near = Route {
        network: Ipv4Addr::new(10, 0, 0, 0),
        prefix_length: 24,
        gateway: None,
    };
    let mut stack = Stack::new(netstack::Settings {
        neighbouring: Neighbouring::Told,
        ..settings(SERVER, tcp::Settings::default())
    });
    let listener = stack.listen(SocketAddrV4::new(SERVER, 80), 8).unwrap();
    // ARP is the kernel's, and what it knows is not known yet: back to where it came from.
    let arp = frame(MacAddress::BROADCAST, EtherType::Arp, &[0; 28]);
    assert_eq!(give(&mut stack, &arp), (FrameFate::Passed, None));
    let request = frame(OUR_MAC, EtherType::Ipv4, &syn(80));
    let (verdict, answer) = give(&mut stack, &request);
    assert_eq!(verdict, FrameFate::Taken);
    assert_eq!(receiver(&answer.unwrap()), THEIR_MAC);
    // The kernel knows another card for that host, and then another way there.
    let theirs = MacAddress([2, 0, 0, 0, 0, 77]);
    stack.set_routes(vec![near]);
    stack.set_neighbour(CLIENT, Some(theirs));
    let reset = frame(OUR_MAC, EtherType::Ipv4, &syn(81));
    let (_, answer) = give(&mut stack, &reset);
    assert_eq!(receiver(&answer.unwrap()), theirs);
    let gateways = MacAddress([2, 0, 0, 0, 0, 254]);
    stack.set_neighbour(GATEWAY, Some(gateways));
    stack.set_routes(vec![Route {
        gateway: Some(GATEWAY),
        ..near
    }]);
    // The answer to the SYN is sent again after a second, once there was nothing else to send.
    let mut again = vec![0; FRAME_MAX];
    assert_eq!(stack.poll_frame(ms(1000), &mut again), None);
    stack.handle_timeout(ms(2500));
    let length = stack.poll_frame(ms(2500), &mut again).unwrap();
    assert_eq!(receiver(&again[..length]), gateways);
    assert_eq!(stack.poll_frame(ms(2500), &mut again), None);
    stack.set_neighbour(GATEWAY, None);
    stack.handle_timeout(ms(6000));
    let length = stack.poll_frame(ms(6000), &mut again).unwrap();
    assert_eq!(receiver(&again[..length]), THEIR_MAC);
    assert!(stack.is_busy());
    // Who begins a connection with a listener that goes can begin another one elsewhere.
    assert_eq!((stack.handshakes(listener), stack.connections()), (1, 1));
    stack.unlisten(listener);
    assert_eq!((stack.handshakes(listener), stack.connections()), (0, 0));
    assert_eq!(stack.poll_frame(ms(6000), &mut again), None);
}
