//! Packets of a script, whose numbers count from each end's initial one.

use std::collections::HashMap;
use std::fmt::Write;
use std::net::Ipv4Addr;

use netstack::wire::checksum::Sum;
use netstack::wire::ipv4::{self, Packet, Protocol};
use netstack::wire::sequence::Sequence;
use netstack::wire::tcp::{self, Flags, SackBlocks, Timestamps};

use super::language::{Icmp, Options, Segment};

/// The end that a script plays.
pub(crate) const THEIR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// The end that is tested.
pub(crate) const OUR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
/// Where the script listens, and where the tested end does.
pub(crate) const PORT: u16 = 80;

/// Their initial sequence number: close to the end, so that every script goes around it.
const THEIR_FIRST: Sequence = Sequence(u32::MAX - 700);

/// The byte at a place of either direction.
pub(crate) fn byte_at(place: i64) -> u8 {
    (place.rem_euclid(251) ^ place.div_euclid(251).rem_euclid(256)) as u8
}

/// What is known of both ends' numbers.
pub(crate) struct Packets {
    is_client: bool,
    /// Our initial numbers, by their port (or, where we connect, the one).
    our_first: HashMap<u16, Sequence>,
    our_port: u16,
    /// Where our clock began.
    our_clock: Option<u32>,
    /// Whether windows and clocks are compared.
    is_exact: bool,
}

impl Packets {
    pub(crate) fn new(is_client: bool, is_exact: bool) -> Packets {
        Packets {
            is_client,
            is_exact,
            our_first: HashMap::new(),
            our_port: PORT,
            our_clock: None,
        }
    }

    fn ours(&self, port: u16) -> Sequence {
        self.our_first.get(&port).copied().unwrap_or_default()
    }

    /// A packet from the script's end.
    pub(crate) fn build(&self, segment: &Segment) -> Vec<u8> {
        let ours = self.ours(segment.port);
        let at = |first: Sequence, offset: i64| Sequence(first.0.wrapping_add(offset as u32));
        let (source, destination) = if self.is_client {
            (PORT, self.our_port)
        } else {
            (segment.port, PORT)
        };
        let header = tcp::Header {
            source,
            destination,
            sequence: at(THEIR_FIRST, segment.sequence),
            acknowledgment: at(ours, segment.acknowledgment.unwrap_or_default()),
            flags: flags(&segment.flags),
            window: segment.window.unwrap_or(65_535),
            options: self.options(segment.options.as_ref(), ours),
        };
        let data: Vec<u8> = (segment.sequence..segment.sequence + segment.length as i64)
            .map(byte_at)
            .collect();
        let ends = (THEIR_ADDRESS, OUR_ADDRESS);
        let mut bytes = vec![0; ipv4::HEADER + header.length()];
        packet_header(Protocol::Tcp, header.length() + data.len()).emit(&mut bytes);
        header.emit(
            &mut bytes[ipv4::HEADER..],
            ends,
            (Sum::of(&data), data.len()),
        );
        bytes.extend_from_slice(&data);
        if segment.is_damaged
            && let Some(last) = bytes.last_mut()
        {
            *last ^= 1;
        }
        bytes
    }

    fn options(&self, options: Option<&Options>, ours: Sequence) -> tcp::Options {
        let Some(options) = options else {
            return tcp::Options::default();
        };
        let mut sack = SackBlocks::default();
        for (from, to) in &options.sack {
            sack.push(ours + *from as u32, ours + *to as u32);
        }
        let clock = self.our_clock.unwrap_or_default();
        tcp::Options {
            segment_max: options.segment_max,
            window_shift: options.window_shift,
            sack_permitted: options.sack_permitted,
            timestamps: options.timestamps.map(|(value, echo)| Timestamps {
                value: value.unwrap_or_default() as u32,
                echo: clock.wrapping_add(echo.unwrap_or_default() as u32),
            }),
            sack,
        }
    }

    /// A message about a segment that the tested end has sent.
    pub(crate) fn build_icmp(&self, icmp: &Icmp) -> Vec<u8> {
        let port = 40_000;
        let mut quoted = vec![0; ipv4::HEADER + 8];
        let header = ipv4::Header {
            source: OUR_ADDRESS,
            destination: THEIR_ADDRESS,
            protocol: Protocol::Tcp,
            payload: 1480,
        };
        header.emit(&mut quoted);
        let (from, to) = if self.is_client {
            (self.our_port, PORT)
        } else {
            (PORT, port)
        };
        let sequence = self.ours(port).0.wrapping_add(icmp.sequence as u32);
        quoted[20..22].copy_from_slice(&from.to_be_bytes());
        quoted[22..24].copy_from_slice(&to.to_be_bytes());
        quoted[24..28].copy_from_slice(&sequence.to_be_bytes());
        let mut message = vec![icmp.kind, icmp.code, 0, 0, 0, 0];
        message.extend_from_slice(&icmp.mtu.to_be_bytes());
        message.extend_from_slice(&quoted);
        let checksum = Sum::of(&message).checksum();
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        let mut bytes = vec![0; ipv4::HEADER];
        packet_header(Protocol::Icmp, message.len()).emit(&mut bytes);
        bytes.extend_from_slice(&message);
        bytes
    }

    /// What is different from `wanted` in a packet that has left.
    pub(crate) fn compare(&mut self, packet: &[u8], wanted: &Segment) -> Result<(), String> {
        let packet = Packet::parse(packet).map_err(|what| format!("no packet: {what:?}"))?;
        let parsed = tcp::Segment::parse(packet.payload, packet.source, packet.destination);
        let segment = parsed.map_err(|what| format!("no segment: {what:?}"))?;
        let header = segment.header;
        let port = if self.is_client {
            40_000
        } else {
            header.destination
        };
        if header.flags.has(Flags::SYN) {
            self.our_port = header.source;
            self.our_first.entry(port).or_insert(header.sequence);
            if let Some(timestamps) = header.options.timestamps {
                self.our_clock.get_or_insert(timestamps.value);
            }
        }
        if port != wanted.port {
            return Err(format!("it goes to port {port}"));
        }
        // When a segment asks to be handed over at once is each system's own, too.
        let without_push = |text: &str| flags(&text.replace('P', ""));
        let are_right = if self.is_exact {
            header.flags == flags(&wanted.flags)
        } else {
            let wanted = without_push(&wanted.flags);
            header.flags == wanted || header.flags == wanted.with(Flags::PSH)
        };
        if !are_right {
            return Err("other flags".to_owned());
        }
        let ours = self.ours(port);
        // A reset that answers a stranger has the stranger's number, whatever ours are.
        let sequence = header.sequence.0.wrapping_sub(ours.0).cast_signed();
        if i64::from(sequence) != wanted.sequence || segment.data.len() != wanted.length {
            return Err("another place".to_owned());
        }
        let acknowledgment = header.acknowledgment.0.wrapping_sub(THEIR_FIRST.0);
        if let Some(wanted) = wanted.acknowledgment
            && i64::from(acknowledgment.cast_signed()) != wanted
        {
            return Err("another acknowledgment".to_owned());
        }
        if self.is_exact && wanted.window.is_some_and(|window| window != header.window) {
            return Err("another window".to_owned());
        }
        // The first place of data is 1, the SYN's is 0.
        let pattern = (wanted.sequence - 1..).map(byte_at);
        if segment
            .data
            .iter()
            .zip(pattern)
            .any(|(is, should)| *is != should)
        {
            return Err("other bytes".to_owned());
        }
        self.compare_options(&header.options, wanted.options.as_ref())
    }

    fn compare_options(&self, are: &tcp::Options, wanted: Option<&Options>) -> Result<(), String> {
        let Some(wanted) = wanted else { return Ok(()) };
        let clock = self.our_clock.unwrap_or_default();
        let sack: Vec<(i64, i64)> = are
            .sack
            .as_slice()
            .iter()
            .map(|(from, to)| {
                let at = |place: &Sequence| i64::from(place.0.wrapping_sub(THEIR_FIRST.0));
                (at(from), at(to))
            })
            .collect();
        let timestamps_differ = match (are.timestamps, wanted.timestamps) {
            (None, None) => false,
            (Some(are), Some((value, echo))) => {
                let since = i64::from(are.value.wrapping_sub(clock).cast_signed());
                self.is_exact && value.is_some_and(|value| value != since)
                    || echo.is_some_and(|echo| echo != i64::from(are.echo))
            }
            _ => true,
        };
        let shifts_differ = if self.is_exact {
            are.window_shift != wanted.window_shift
        } else {
            are.window_shift.is_some() != wanted.window_shift.is_some()
        };
        if are.segment_max != wanted.segment_max
            || shifts_differ
            || are.sack_permitted != wanted.sack_permitted
            || sack != wanted.sack
            || timestamps_differ
        {
            return Err("other options".to_owned());
        }
        Ok(())
    }

    /// A packet as a script would have it.
    pub(crate) fn show(&self, packet: &[u8]) -> String {
        let Ok(packet) = Packet::parse(packet) else {
            return "no packet".to_owned();
        };
        let (source, destination) = (packet.source, packet.destination);
        let Ok(segment) = tcp::Segment::parse(packet.payload, source, destination) else {
            return "no segment".to_owned();
        };
        let header = segment.header;
        let ours = self.ours(if self.is_client {
            40_000
        } else {
            header.destination
        });
        let sequence = if header.flags.has(Flags::SYN) {
            0
        } else {
            header.sequence.0.wrapping_sub(ours.0).cast_signed()
        };
        let mut text = String::new();
        for (name, flag) in NAMES {
            if header.flags.has(flag) {
                text.push(name);
            }
        }
        let length = segment.data.len();
        let acknowledgment = header.acknowledgment.0.wrapping_sub(THEIR_FIRST.0);
        let acknowledgment = acknowledgment.cast_signed();
        let end = i64::from(sequence) + length as i64;
        let _ = write!(text, " {sequence}:{end}({length}) ack {acknowledgment}");
        let _ = write!(text, " win {}", header.window);
        let options = &header.options;
        if let Some(timestamps) = options.timestamps {
            let since = timestamps
                .value
                .wrapping_sub(self.our_clock.unwrap_or_default());
            let _ = write!(text, " ts {since} {}", timestamps.echo);
        }
        for (from, to) in options.sack.as_slice() {
            let at = |place: &Sequence| place.0.wrapping_sub(THEIR_FIRST.0);
            let _ = write!(text, " sack {}:{}", at(from), at(to));
        }
        let _ = write!(text, " mss {:?}", options.segment_max);
        let _ = write!(text, " port {}", header.destination);
        text
    }
}

const NAMES: [(char, Flags); 6] = [
    ('F', Flags::FIN),
    ('S', Flags::SYN),
    ('R', Flags::RST),
    ('P', Flags::PSH),
    ('.', Flags::ACK),
    ('U', Flags::URG),
];

fn flags(text: &str) -> Flags {
    let named = |name: char| NAMES.iter().find(|(other, _)| *other == name);
    text.chars()
        .filter_map(named)
        .fold(Flags::NONE, |flags, (_, flag)| flags.with(*flag))
}

fn packet_header(protocol: Protocol, payload: usize) -> ipv4::Header {
    ipv4::Header {
        source: THEIR_ADDRESS,
        destination: OUR_ADDRESS,
        protocol,
        payload,
    }
}
