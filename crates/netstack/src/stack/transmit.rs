//! Writing of frames to send: complete frames first, then one segment per connection in turn.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::{Neighbouring, PAYLOAD, Stack};
use crate::neighbours::Neighbour;
use crate::tcp::{Effects, Outgoing, Reason, State, Tuple};
use crate::wire::checksum::Sum;
use crate::wire::ethernet::{self, EtherType, MacAddress};
use crate::wire::ipv4::{self, Protocol};
use crate::wire::{arp, tcp};

impl Stack {
    /// Writes the next frame to `into`, which has room for [`FRAME_MAX`](super::FRAME_MAX) bytes.
    /// Returns its length, or `None` if there is no frame to send now.
    pub fn poll_frame(&mut self, now: Duration, into: &mut [u8]) -> Option<usize> {
        while let Some(host) = self.neighbours.poll_question() {
            self.ask(host);
        }
        if let Some(reply) = self.replies.pop_front() {
            let place = into.get_mut(..reply.len())?;
            place.copy_from_slice(&reply);
            return Some(reply.len());
        }
        while let Some(key) = self.sending.pop_front() {
            let Some(slot) = self.table.get_mut(key) else {
                continue;
            };
            if matches!(slot.state, State::Closed(..)) {
                slot.is_sending = false;
                continue;
            }
            let remote = *slot.tuple.remote.ip();
            let card = match self.settings.neighbouring {
                Neighbouring::Told => {
                    let epoch = self.ways.epoch();
                    let told = match slot.told {
                        Some((at, card)) if at == epoch => card,
                        _ => self.ways.card(remote),
                    };
                    slot.told = Some((epoch, told));
                    told.or(slot.heard)
                }
                Neighbouring::Asks => {
                    let hop = self.next_hop(remote);
                    match self.neighbours.find(now, hop) {
                        Neighbour::Known(card, _) => Some(card),
                        Neighbour::Absent(_) => None,
                        Neighbour::Asked(..) => {
                            self.waiting.push(key);
                            self.note_deadline(key);
                            continue;
                        }
                    }
                }
            };
            if let Some(length) = self.transmit(now, key, card, into) {
                return Some(length);
            }
        }
        match self.neighbours.poll_question() {
            Some(host) => {
                self.ask(host);
                self.poll_frame(now, into)
            }
            None => None,
        }
    }

    /// Writes a connection's next segment, if it has one. If the hardware address of the next hop
    /// is unknown, the segment counts as sent and lost.
    fn transmit(
        &mut self,
        now: Duration,
        key: base::slab::Key,
        card: Option<MacAddress>,
        into: &mut [u8],
    ) -> Option<usize> {
        let slot = self.table.get_mut(key)?;
        slot.is_sending = false;
        let outgoing = slot.state.poll_segment(now, &self.settings.tcp);
        let Some(outgoing) = outgoing else {
            self.note_deadline(key);
            return None;
        };
        let Some(card) = card else {
            if matches!(slot.state, State::SynSent(_)) {
                let effects = Effects::closed(Reason::Unreachable);
                self.apply(key, effects, None);
            } else {
                self.settle(key);
            }
            return None;
        };
        let header = ethernet_header(self.settings.mac, card);
        header.emit(into);
        let tuple = slot.tuple;
        let segment = header_of(&tuple, &outgoing);
        let data = PAYLOAD + segment.length();
        let end = data + outgoing.length;
        let sum = match &mut slot.state {
            State::Synchronized(connection) if outgoing.length > 0 => {
                self.counts.sent_again += u64::from(std::mem::take(&mut connection.sent_again));
                let place = into.get_mut(data..end).unwrap_or_default();
                connection.copy(outgoing.offset, place)
            }
            _ => Sum::default(),
        };
        emit_packet(into, &tuple, &segment, (sum, outgoing.length));
        let may_have_more = match &slot.state {
            State::Synchronized(connection) => connection.may_have_segment(),
            _ => true,
        };
        if may_have_more {
            slot.queue_for_sending(key, &mut self.sending);
        } else {
            self.note_deadline(key);
        }
        Some(end)
    }

    /// Sends an ARP request for an address.
    fn ask(&mut self, host: Ipv4Addr) {
        let ours = match &self.settings.addresses {
            super::Addresses::Any => Ipv4Addr::UNSPECIFIED,
            super::Addresses::These(ours) => ours.first().copied().unwrap_or(Ipv4Addr::UNSPECIFIED),
        };
        let message = arp::Message {
            operation: arp::Operation::Request,
            sender_mac: self.settings.mac,
            sender: ours,
            target_mac: MacAddress::default(),
            target: host,
        };
        self.send_arp(&message, MacAddress::BROADCAST);
    }

    /// Sends an ARP message.
    pub(super) fn send_arp(&mut self, message: &arp::Message, to: MacAddress) {
        let mut frame = vec![0; ethernet::HEADER + arp::LENGTH];
        let header = ethernet::Header {
            destination: to,
            source: self.settings.mac,
            kind: EtherType::Arp,
        };
        header.emit(&mut frame);
        message.emit(frame.get_mut(ethernet::HEADER..).unwrap_or_default());
        self.push_reply(frame);
    }
}

/// Writes a segment without data as a complete frame. Returns its length.
pub(super) fn emit(
    into: &mut [u8],
    from: MacAddress,
    to: MacAddress,
    tuple: &Tuple,
    outgoing: &Outgoing,
) -> usize {
    ethernet_header(from, to).emit(into);
    let segment = header_of(tuple, outgoing);
    emit_packet(into, tuple, &segment, (Sum::default(), 0));
    PAYLOAD + segment.length()
}

fn ethernet_header(from: MacAddress, to: MacAddress) -> ethernet::Header {
    ethernet::Header {
        destination: to,
        source: from,
        kind: EtherType::Ipv4,
    }
}

fn header_of(tuple: &Tuple, outgoing: &Outgoing) -> tcp::Header {
    tcp::Header {
        source: tuple.local.port(),
        destination: tuple.remote.port(),
        sequence: outgoing.sequence,
        acknowledgment: outgoing.acknowledgment,
        flags: outgoing.flags,
        window: outgoing.window,
        options: outgoing.options,
    }
}

/// Writes the headers of a packet whose data are already in place.
fn emit_packet(into: &mut [u8], tuple: &Tuple, segment: &tcp::Header, data: (Sum, usize)) {
    let ends = (*tuple.local.ip(), *tuple.remote.ip());
    let packet = ipv4::Header {
        source: ends.0,
        destination: ends.1,
        protocol: Protocol::Tcp,
        payload: segment.length() + data.1,
    };
    packet.emit(into.get_mut(ethernet::HEADER..).unwrap_or_default());
    segment.emit(into.get_mut(PAYLOAD..).unwrap_or_default(), ends, data);
}
