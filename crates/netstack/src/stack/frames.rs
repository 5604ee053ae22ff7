//! Handling of received frames.

use std::net::SocketAddrV4;
use std::time::Duration;

use base::slab::Key;

use super::{Addresses, Neighbouring, PAYLOAD, Stack, Unlistened, is_of_a_host};
use crate::device::FrameFate;
use crate::tcp::handshake::{self, SynReceived};
use crate::tcp::{NegotiatedOptions, Outgoing, State, Tuple, clock, cookie};
use crate::wire::ethernet::{self, EtherType, MacAddress};
use crate::wire::ipv4::{self, Packet, Protocol};
use crate::wire::sequence::Sequence;
use crate::wire::tcp::{Flags, Segment};
use crate::wire::{arp, icmp};

/// The smallest MTU that an ICMP message may set, which every host must accept (RFC 791; RFC 1191,
/// section 7).
const MTU_MIN: u16 = 576;

/// Length of the IPv4 and TCP headers without options.
const HEADERS: u16 = 40;

/// TCP's protocol number.
const TCP: u8 = 6;

impl Stack {
    /// Handles a frame received by the device.
    pub fn handle_frame(&mut self, now: Duration, frame: &[u8]) -> FrameFate {
        let Ok((header, payload)) = ethernet::Header::parse(frame) else {
            return FrameFate::Passed;
        };
        let is_for_us = header.destination == self.settings.mac;
        match header.kind {
            EtherType::Arp if self.settings.neighbouring == Neighbouring::Told => FrameFate::Passed,
            EtherType::Arp if is_for_us || header.destination == MacAddress::BROADCAST => {
                self.handle_arp(now, payload)
            }
            EtherType::Ipv4 if is_for_us => self.handle_packet(now, header.source, payload),
            _ => FrameFate::Passed,
        }
    }

    /// Prefetches the memory that this frame will need when it is handled soon. With thousands of
    /// connections that memory is not cached, and the fetches for several frames can overlap.
    pub(crate) fn expect_frame(&self, frame: &[u8]) {
        if let Some(tuple) = tuple_of(frame)
            && let Some(slot) = self.table.find(&tuple).and_then(|key| self.table.get(key))
        {
            std::hint::black_box(slot.state.touch());
        }
    }

    /// RFC 826, "Packet Reception".
    fn handle_arp(&mut self, now: Duration, bytes: &[u8]) -> FrameFate {
        let Ok(message) = arp::Message::parse(bytes) else {
            return FrameFate::Passed;
        };
        let is_for_us = self.settings.addresses.has(message.target)
            // A stack that accepts any address has no address of its own to answer for.
            || self.settings.addresses == Addresses::Any
                && message.operation == arp::Operation::Reply;
        if is_of_a_host(message.sender) {
            let (host, card) = (message.sender, message.sender_mac);
            if self.neighbours.learn(now, host, card, is_for_us) {
                self.sending.extend(self.waiting.drain(..));
            }
        }
        if message.operation == arp::Operation::Request && is_for_us {
            let reply = arp::Message {
                operation: arp::Operation::Reply,
                sender_mac: self.settings.mac,
                sender: message.target,
                target_mac: message.sender_mac,
                target: message.sender,
            };
            self.send_arp(&reply, message.sender_mac);
        }
        // The kernel's neighbour cache depends on these messages too.
        match self.settings.unlistened {
            Unlistened::Pass => FrameFate::Passed,
            Unlistened::Refuse => FrameFate::Taken,
        }
    }

    fn handle_packet(&mut self, now: Duration, card: MacAddress, bytes: &[u8]) -> FrameFate {
        let Ok(packet) = Packet::parse(bytes) else {
            return FrameFate::Passed;
        };
        if packet.is_fragment
            || packet.is_source_routed
            || !self.settings.addresses.has(packet.destination)
            || !is_of_a_host(packet.source)
        {
            return FrameFate::Passed;
        }
        match packet.protocol {
            Protocol::Tcp => self.handle_tcp(now, card, &packet),
            Protocol::Icmp => self.handle_icmp(card, &packet),
            Protocol::Other(_) => FrameFate::Passed,
        }
    }

    fn handle_icmp(&mut self, card: MacAddress, packet: &Packet<'_>) -> FrameFate {
        match icmp::Message::parse(packet.payload) {
            Ok(icmp::Message::EchoRequest(request))
                if self.settings.unlistened == Unlistened::Refuse =>
            {
                self.answer_echo(card, packet, request);
                FrameFate::Taken
            }
            Ok(icmp::Message::Unreachable(unreachable)) => self.handle_unreachable(&unreachable),
            _ => FrameFate::Passed,
        }
    }

    fn answer_echo(&mut self, card: MacAddress, packet: &Packet<'_>, request: &[u8]) {
        let mut frame = vec![0; PAYLOAD + request.len()];
        let header = ethernet::Header {
            destination: card,
            source: self.settings.mac,
            kind: EtherType::Ipv4,
        };
        header.emit(&mut frame);
        let reply = ipv4::Header {
            source: packet.destination,
            destination: packet.source,
            protocol: Protocol::Icmp,
            payload: request.len(),
        };
        reply.emit(frame.get_mut(ethernet::HEADER..).unwrap_or_default());
        icmp::emit_echo_reply(request, frame.get_mut(PAYLOAD..).unwrap_or_default());
        self.push_reply(frame);
    }

    /// Handles ICMP's report that one of our segments was not delivered (RFC 9293, section
    /// 3.9.2.2). Established connections ignore the report and rely on their timers (MUST-56; RFC
    /// 5927, section 5.2, for hard errors); only "fragmentation needed" reduces the segment size.
    fn handle_unreachable(&mut self, unreachable: &icmp::Unreachable) -> FrameFate {
        let tuple = Tuple {
            local: unreachable.local,
            remote: unreachable.remote,
        };
        let Some(key) = self.table.find(&tuple) else {
            return FrameFate::Passed;
        };
        let Some(slot) = self.table.get_mut(key) else {
            return FrameFate::Passed;
        };
        let sequence = Sequence(unreachable.sequence);
        match (&unreachable.why, &mut slot.state) {
            (icmp::Why::FragmentationNeeded(mtu), State::Synchronized(connection)) => {
                let segment = (*mtu).max(MTU_MIN) - HEADERS;
                connection.handle_too_large(sequence, segment);
                self.settle(key);
            }
            (icmp::Why::Refused, State::SynSent(state)) => {
                let effects = state.handle_refused(sequence);
                self.apply(key, effects, None);
            }
            (icmp::Why::Refused, State::SynReceived(state)) => {
                let effects = state.handle_refused(sequence);
                self.apply(key, effects, None);
            }
            _ => {}
        }
        FrameFate::Taken
    }

    fn handle_tcp(&mut self, now: Duration, card: MacAddress, packet: &Packet<'_>) -> FrameFate {
        let (source, destination) = (packet.source, packet.destination);
        let Ok(segment) = Segment::parse(packet.payload, source, destination) else {
            // A damaged segment: its ports cannot be trusted, and the peer will retransmit it.
            self.counts.damaged += 1;
            return FrameFate::Taken;
        };
        let tuple = Tuple {
            local: SocketAddrV4::new(destination, segment.header.destination),
            remote: SocketAddrV4::new(source, segment.header.source),
        };
        let Some(key) = self.table.find(&tuple) else {
            return self.handle_stranger(now, card, &tuple, &segment, None);
        };
        self.inbox_memory.room = self.settings.memory_max.saturating_sub(self.memory);
        let Some(slot) = self.table.get_mut(key) else {
            return FrameFate::Taken;
        };
        slot.heard = Some(card);
        let settings = &self.settings.tcp;
        let memory = &mut self.inbox_memory;
        let effects = slot.state.handle_segment(now, settings, &segment, memory);
        let Some(numbers) = effects.reuse else {
            self.apply(key, effects, Some(card));
            return FrameFate::Taken;
        };
        // The previous connection is over; unread data stay until the application releases it.
        if self.table.get(key).is_some_and(|slot| slot.is_held) {
            let ended = Duration::MAX;
            if let Some(slot) = self.table.get_mut(key) {
                let effects = slot.state.handle_timeout(ended, &self.settings.tcp);
                self.apply(key, effects, None);
            }
        } else {
            self.forget(key);
        }
        self.handle_stranger(now, card, &tuple, &segment, Some(numbers))
    }

    /// Handles a segment without a connection, which may start one. `numbers` is the earliest
    /// sequence number for the new connection, if an earlier connection between the same endpoints
    /// requires one.
    fn handle_stranger(
        &mut self,
        now: Duration,
        card: MacAddress,
        tuple: &Tuple,
        segment: &Segment<'_>,
        numbers: Option<Sequence>,
    ) -> FrameFate {
        let Some(listener) = self.table.listener_at(tuple.local) else {
            if self.settings.unlistened == Unlistened::Pass {
                return FrameFate::Passed;
            }
            self.refuse(card, tuple, segment);
            return FrameFate::Taken;
        };
        // The checks of section 3.10.7.2, in its order.
        let flags = segment.header.flags;
        if flags.has(Flags::RST) {
            return FrameFate::Taken;
        }
        if flags.has(Flags::ACK) {
            if flags.has(Flags::SYN) || !self.take_cookie(now, card, tuple, segment, listener) {
                self.refuse(card, tuple, segment);
            }
        } else if flags.has(Flags::SYN) {
            self.take_syn(now, card, tuple, segment, listener, numbers);
        }
        FrameFate::Taken
    }

    fn refuse(&mut self, card: MacAddress, tuple: &Tuple, segment: &Segment<'_>) {
        if let Some(reset) = Outgoing::reset_for(segment) {
            self.reply(tuple, reset, Some(card));
        }
    }

    /// Handles a SYN for a listener.
    fn take_syn(
        &mut self,
        now: Duration,
        card: MacAddress,
        tuple: &Tuple,
        segment: &Segment<'_>,
        at: Key,
        numbers: Option<Sequence>,
    ) {
        self.make_place();
        let secret = self.settings.secret;
        let has_place = self.table.len() < self.settings.connections_max
            && self.memory < self.settings.memory_max;
        let offset = self.clock_offset(tuple);
        let Some(listener) = self.table.listener_mut(at) else {
            return;
        };
        if listener.ready.len() >= listener.backlog {
            return;
        }
        if !has_place || listener.handshakes >= listener.backlog {
            let offer = &segment.header.options;
            let agreed = NegotiatedOptions::new(&self.settings.tcp, offer, now, offset);
            let theirs = segment.header.sequence;
            let marks = cookie::Marks::of_offer(offer, &self.settings.tcp);
            let size = agreed.segment_max();
            let ours = cookie::give(secret, now, tuple, (theirs, marks), size);
            let marked = marks.on_clock(clock(now, offset));
            let numbers = (ours, theirs);
            let answer =
                handshake::answer(&self.settings.tcp, &agreed.for_cookie(), marked, numbers);
            self.counts.cookies += 1;
            self.reply(tuple, answer, Some(card));
            return;
        }
        listener.handshakes += 1;
        let mut ours = self.initial_sequence(now, tuple);
        if let Some(numbers) = numbers {
            ours = ours.max(numbers);
        }
        let state = SynReceived::new(now, &self.settings.tcp, segment, ours, offset);
        let key = self
            .table
            .insert(*tuple, State::SynReceived(state), Some(at));
        if let Some(slot) = self.table.get_mut(key) {
            slot.heard = Some(card);
        }
        self.settle(key);
    }

    /// Handles an acknowledgment without a connection, which may carry a SYN cookie. Returns
    /// whether it did.
    fn take_cookie(
        &mut self,
        now: Duration,
        card: MacAddress,
        tuple: &Tuple,
        segment: &Segment<'_>,
        at: Key,
    ) -> bool {
        let secret = self.settings.secret;
        let header = &segment.header;
        let theirs = header.sequence - 1;
        let given = header.acknowledgment - 1;
        let marks = cookie::Marks::of_echo(&header.options, &self.settings.tcp);
        let Some(size) = cookie::take(secret, now, tuple, (theirs, marks), given) else {
            return false;
        };
        self.make_place();
        let has_place = self.table.len() < self.settings.connections_max
            && self.memory < self.settings.memory_max
            && self
                .table
                .listener(at)
                .is_some_and(|listener| listener.ready.len() < listener.backlog);
        if !has_place {
            // Treated as lost: the peer sends the acknowledgment again with its first data.
            return true;
        }
        let mut offer = header.options;
        offer.segment_max = Some(size);
        marks.offered(&mut offer);
        let offset = self.clock_offset(tuple);
        let settings = &self.settings.tcp;
        let beginning = handshake::from_cookie(now, settings, &offer, offset, segment);
        let memory = &mut self.inbox_memory;
        memory.room = self.settings.memory_max.saturating_sub(self.memory);
        let effects = handshake::establish(now, settings, beginning, segment, memory);
        // A placeholder that `apply` replaces with the connection at once.
        let state = SynReceived::new(now, settings, segment, given, offset);
        let key = self
            .table
            .insert(*tuple, State::SynReceived(state), Some(at));
        if let Some(slot) = self.table.get_mut(key) {
            slot.heard = Some(card);
        }
        if let Some(listener) = self.table.listener_mut(at) {
            listener.handshakes += 1;
        }
        self.apply(key, effects, Some(card));
        true
    }
}

/// The endpoints of a TCP segment over IPv4 without options, without any validation.
fn tuple_of(frame: &[u8]) -> Option<Tuple> {
    let headers: &[u8; PAYLOAD + 4] = frame.first_chunk()?;
    let packet = headers.get(ethernet::HEADER..)?;
    let &[
        0x45,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        _,
        TCP,
        _,
        _,
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        from_high,
        from_low,
        to_high,
        to_low,
    ] = packet
    else {
        return None;
    };
    let end = |address: [u8; 4], port: [u8; 2]| {
        SocketAddrV4::new(address.into(), u16::from_be_bytes(port))
    };
    Some(Tuple {
        local: end([e, f, g, h], [to_high, to_low]),
        remote: end([a, b, c, d], [from_high, from_low]),
    })
}
