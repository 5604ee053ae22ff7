//! A stack to which anything is done: segments that are almost right, calls in any order, time in
//! any steps, each made of a few bytes. Of seeds and of the fuzzer.
//!
//! Whatever it is, nothing panics; what leaves are right frames within the MTU, whose windows never
//! go back; memory and connections stay within their bounds; and no deadline that has passed is
//! left.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use bytes::Bytes;
use netstack::tcp::{self, KeepAlive, Prebuilt, Secret};
use netstack::wire::arp;
use netstack::wire::checksum::Sum;
use netstack::wire::ethernet::{self, EtherType, MacAddress};
use netstack::wire::ipv4::{self, Packet, Protocol};
use netstack::wire::sequence::Sequence;
use netstack::wire::tcp::{Flags, Header, Options, SackBlocks, Segment, Timestamps};
use netstack::{
    Addresses, ConnectionId, Event, FRAME_MAX, ListenerId, Neighbouring, Settings, Stack,
    Unlistened,
};

const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OUR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const THEIR_MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const PORT: u16 = 80;

const CONNECTIONS_MAX: usize = 8;
const MEMORY_MAX: usize = 100_000;

/// What a frame that was let in and an application's call may add beyond the bound: that is looked
/// at before.
const MEMORY_SLACK: usize = 2 * 70_000;

/// Frames that one step may lead to at most.
const FRAMES_MAX: usize = 10_000;

/// What the script's end knows of one of its connections.
#[derive(Default)]
struct Peer {
    /// The next place that we expect of it, and where our windows end.
    expected: Sequence,
    edge: Option<Sequence>,
    /// The next place that we would send from.
    next: Sequence,
    is_passive: bool,
    shift: u8,
    clock: u32,
}

struct World {
    stack: Stack,
    now: Duration,
    listener: ListenerId,
    connections: Vec<ConnectionId>,
    /// By their port and ours.
    peers: HashMap<(u16, u16), Peer>,
    last_port: (u16, u16),
}

/// Does what `data` say.
pub(crate) fn run(data: &[u8]) {
    let Some(([kind, buffer], mut rest)) = data.split_first_chunk() else {
        return;
    };
    let mut world = World::new(*kind, *buffer);
    while let Some((step, later)) = rest.split_first_chunk::<6>() {
        rest = later;
        world.step(*step);
    }
    // Whatever was done, everything ends.
    for id in std::mem::take(&mut world.connections) {
        world.stack.release(world.now, id);
    }
    world.stack.unlisten(world.listener);
    for _ in 0..1000 {
        world.look();
        let Some(at) = world.stack.next_deadline() else {
            break;
        };
        world.now = world.now.max(at);
        world.stack.handle_timeout(world.now);
    }
    assert_eq!(world.stack.connections(), 0);
    assert_eq!(world.stack.memory(), 0);
}

impl World {
    fn new(kind: u8, buffer: u8) -> World {
        let tcp = tcp::Settings {
            timestamps: kind & 1 == 0,
            sack: kind & 2 == 0,
            window_scale: kind & 4 == 0,
            no_delay: kind & 8 == 0,
            receive_max: 1000 + 1000 * u32::from(buffer),
            send_max: 20_000,
            give_up: Duration::from_secs(180),
            ..tcp::Settings::default()
        };
        let mut stack = Stack::new(Settings {
            mac: OUR_MAC,
            addresses: Addresses::These(vec![OURS]),
            prefix_length: 24,
            gateway: None,
            neighbouring: Neighbouring::Asks,
            tcp,
            unlistened: Unlistened::Refuse,
            connections_max: CONNECTIONS_MAX,
            memory_max: MEMORY_MAX,
            secret: Secret([1, u64::from(kind)]),
        });
        let listener = stack.listen(SocketAddrV4::new(OURS, PORT), 3).unwrap();
        World {
            stack,
            now: Duration::ZERO,
            listener,
            connections: Vec::new(),
            peers: HashMap::new(),
            last_port: (5000, PORT),
        }
    }

    fn step(&mut self, [what, a, b, c, d, e]: [u8; 6]) {
        let id = self
            .connections
            .get(usize::from(a) % self.connections.len().max(1))
            .copied();
        match (what % 16, id) {
            (0..=6, _) => self.segment([what, a, b, c, d, e]),
            (7, _) => self.now += Duration::from_micros(u64::from(a) * 1000 + u64::from(b)),
            (8, _) => {
                if let Some(at) = self.stack.next_deadline() {
                    self.now = self.now.max(at);
                }
            }
            (9, Some(id)) => {
                let length = usize::from(b) * 40;
                let _ = self.stack.send(id, Bytes::from(vec![c; length]));
            }
            (10, Some(id)) => {
                let mut into = vec![0; usize::from(b) * 40];
                let _ = self.stack.receive(id, &mut into);
            }
            (11, Some(id)) => match b % 6 {
                0 => drop(self.stack.finish(id)),
                1 => self.forget(id, |world| world.stack.release(world.now, id)),
                2 => self.forget(id, |world| world.stack.abort(id)),
                3 => {
                    let settings = KeepAlive {
                        idle: Duration::from_secs(u64::from(c)),
                        interval: Duration::from_secs(1 + u64::from(d)),
                        probes_max: u32::from(e % 4),
                    };
                    let _ = self.stack.set_keep_alive(id, Some(settings));
                }
                _ => {
                    let bytes = Bytes::from(vec![c; usize::from(d) * 20]);
                    let _ = self.stack.send_prebuilt(id, Prebuilt::new(bytes));
                }
            },
            (12, _) => {
                let to = SocketAddrV4::new(THEIRS, 5000 + u16::from(a % 4));
                if let Ok(id) = self.stack.connect(self.now, None, to) {
                    self.connections.push(id);
                }
            }
            (13, _) => self.unreachable(a, b, c),
            // Bytes that are nothing at all.
            (14, _) => self.give(EtherType::Ipv4, &[a, b, c, d, e, what, 0x45, a, b]),
            _ => {
                if let Some((id, _)) = self.stack.accept(self.listener) {
                    self.connections.push(id);
                }
            }
        }
        self.stack.handle_timeout(self.now);
        self.look();
    }

    fn forget(&mut self, id: ConnectionId, call: impl FnOnce(&mut World)) {
        self.connections.retain(|other| *other != id);
        call(self);
    }

    /// A segment at, or close to, the place where one is expected.
    fn segment(&mut self, [what, a, b, c, d, e]: [u8; 6]) {
        if a & 0x80 != 0 {
            self.last_port = (5000 + u16::from(a % 4), PORT);
        }
        let ports = self.last_port;
        let peer = self.peers.entry(ports).or_default();
        let near = |place: Sequence, by: u8| match by % 8 {
            0..=3 => place,
            4 => place + u32::from(by),
            5 => place - u32::from(by),
            6 => place + 100 * u32::from(by),
            _ => Sequence(u32::from(by) << 24 | 0x00ff_00ff),
        };
        let flags = match what >> 4 {
            0..=5 => Flags::ACK,
            6 => Flags::ACK.with(Flags::FIN),
            7 => Flags::SYN,
            8 => Flags::SYN.with(Flags::ACK),
            9 => Flags::RST,
            10 => Flags::RST.with(Flags::ACK),
            11 => Flags::FIN,
            12 => Flags::NONE,
            13 => Flags::SYN.with(Flags::FIN),
            _ => Flags::ACK.with(Flags::PSH).with(Flags::URG),
        };
        let sequence = near(peer.next, b);
        let acknowledgment = near(peer.expected, c);
        let mut options = Options::default();
        if d & 1 == 0 {
            peer.clock = peer.clock.wrapping_add(u32::from(d & 7));
            let clock = Timestamps {
                value: peer.clock,
                echo: self.now.as_millis() as u32,
            };
            options.timestamps = Some(clock);
        }
        if flags.has(Flags::SYN) {
            options.segment_max = Some(u16::from(e) * 10);
            options.window_shift = (d & 2 == 0).then_some(d >> 4);
            options.sack_permitted = d & 4 == 0;
        } else if d & 0x18 == 0x18 {
            let mut sack = SackBlocks::default();
            sack.push(acknowledgment + 10, acknowledgment + 10 + u32::from(e));
            sack.push(near(acknowledgment, e), near(acknowledgment, d));
            options.sack = sack;
        }
        let header = Header {
            source: ports.0,
            destination: ports.1,
            sequence,
            acknowledgment,
            flags,
            window: if d & 0xe0 == 0 { 0 } else { u16::from(d) << 6 },
            options,
        };
        let length = match what & 0x0f {
            0 | 1 => 0,
            2 => 1,
            _ => usize::from(e) * 5,
        };
        let mut bytes = vec![0; header.length()];
        let data = vec![e; length];
        header.emit(&mut bytes, (THEIRS, OURS), (Sum::of(&data), length));
        bytes.extend_from_slice(&data);
        self.packet(Protocol::Tcp, &bytes);
    }

    fn unreachable(&mut self, a: u8, b: u8, c: u8) {
        let ports = self.last_port;
        let sequence = self
            .peers
            .get(&ports)
            .map_or(Sequence(0), |peer| peer.expected);
        let mut message = vec![3, a % 5, 0, 0, 0, 0, b, c];
        let mut quoted = vec![0; ipv4::HEADER + 8];
        let header = ipv4::Header {
            source: OURS,
            destination: THEIRS,
            protocol: Protocol::Tcp,
            payload: 8,
        };
        header.emit(&mut quoted);
        quoted[20..22].copy_from_slice(&ports.1.to_be_bytes());
        quoted[22..24].copy_from_slice(&ports.0.to_be_bytes());
        let sequence = sequence - u32::from(c);
        quoted[24..28].copy_from_slice(&sequence.0.to_be_bytes());
        message.extend_from_slice(&quoted);
        let checksum = Sum::of(&message).checksum();
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        self.packet(Protocol::Icmp, &message);
    }

    fn packet(&mut self, protocol: Protocol, payload: &[u8]) {
        let mut bytes = vec![0; ipv4::HEADER];
        let header = ipv4::Header {
            source: THEIRS,
            destination: OURS,
            protocol,
            payload: payload.len(),
        };
        header.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        self.give(EtherType::Ipv4, &bytes);
    }

    fn give(&mut self, kind: EtherType, payload: &[u8]) {
        let mut frame = vec![0; ethernet::HEADER];
        let header = ethernet::Header {
            destination: OUR_MAC,
            source: THEIR_MAC,
            kind,
        };
        header.emit(&mut frame);
        frame.extend_from_slice(payload);
        self.stack.handle_frame(self.now, &frame);
    }

    /// Looks at everything that leaves, and at what must be true in between.
    fn look(&mut self) {
        let mut frame = [0; FRAME_MAX];
        let mut count = 0;
        while let Some(length) = self.stack.poll_frame(self.now, &mut frame) {
            count += 1;
            assert!(count < FRAMES_MAX, "frames without an end");
            assert!(length <= FRAME_MAX);
            let (header, payload) = ethernet::Header::parse(&frame[..length]).unwrap();
            match header.kind {
                EtherType::Arp => self.answer(payload),
                EtherType::Ipv4 => self.note(payload),
                EtherType::Other(kind) => panic!("a frame of kind {kind}"),
            }
        }
        while let Some(event) = self.stack.poll_event() {
            if let Event::Closed(id, _) = event {
                assert!(self.connections.contains(&id));
            }
        }
        assert!(self.stack.memory() <= MEMORY_MAX + MEMORY_SLACK);
        assert!(self.stack.connections() <= CONNECTIONS_MAX);
        let deadline = self.stack.next_deadline();
        assert!(deadline.is_none_or(|at| at + Duration::from_millis(1) > self.now));
    }

    fn answer(&mut self, payload: &[u8]) {
        let asked = arp::Message::parse(payload).unwrap();
        let reply = arp::Message {
            operation: arp::Operation::Reply,
            sender_mac: THEIR_MAC,
            sender: asked.target,
            target_mac: OUR_MAC,
            target: OURS,
        };
        let mut bytes = [0; arp::LENGTH];
        reply.emit(&mut bytes);
        self.give(EtherType::Arp, &bytes);
    }

    /// A segment that has left: its sums are right, and its window's end is no earlier than before.
    fn note(&mut self, payload: &[u8]) {
        let packet = Packet::parse(payload).unwrap();
        assert_eq!((packet.source, packet.destination), (OURS, THEIRS));
        if packet.protocol != Protocol::Tcp {
            return;
        }
        let segment = Segment::parse(packet.payload, OURS, THEIRS).unwrap();
        let header = segment.header;
        let ports = (header.destination, header.source);
        let peer = self.peers.entry(ports).or_default();
        self.last_port = ports;
        if header.flags.has(Flags::RST) {
            peer.edge = None;
            return;
        }
        peer.next = header.acknowledgment;
        let has_ack = header.flags.has(Flags::ACK);
        let mut shift = peer.shift;
        if header.flags.has(Flags::SYN) {
            peer.expected = header.sequence + 1;
            // Whether windows are shifted is known where the other end's SYN is.
            peer.shift = header.options.window_shift.unwrap_or_default();
            peer.edge = None;
            peer.is_passive = has_ack;
            shift = 0;
        }
        peer.expected = peer.expected.max(segment.end());
        let edge = header.acknowledgment + (u32::from(header.window) << shift);
        if peer.is_passive {
            let before = peer.edge.unwrap_or(edge);
            assert!(
                edge >= before,
                "a window went back from {before:?} to {edge:?}"
            );
            peer.edge = Some(edge);
        }
    }
}
