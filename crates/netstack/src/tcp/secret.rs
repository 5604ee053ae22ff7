//! Numbers that other hosts cannot predict: SipHash-2-4 (Aumasson and Bernstein, 2012) of a
//! connection's endpoints. They are used for initial sequence numbers (RFC 6528), timestamps (RFC
//! 7323, section 5.4), local ports (RFC 6056) and SYN cookies.

use std::time::Duration;

use super::Tuple;
use crate::wire::sequence::Sequence;

/// The secret key of a stack, which must be random.
#[derive(Clone, Copy)]
pub struct Secret(pub [u64; 2]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// The purpose of a number. Numbers for different purposes are independent.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    InitialSequence,
    Clock,
    Port,
    /// A SYN cookie with this content.
    Cookie(u64),
}

impl Secret {
    /// The number of a connection for a purpose.
    pub(crate) fn number(self, tuple: &Tuple, purpose: Purpose) -> u64 {
        let addresses =
            u64::from(tuple.local.ip().to_bits()) << 32 | u64::from(tuple.remote.ip().to_bits());
        let ports = u64::from(tuple.local.port()) << 16 | u64::from(tuple.remote.port());
        let (purpose, content) = match purpose {
            Purpose::InitialSequence => (1, 0),
            Purpose::Clock => (2, 0),
            Purpose::Port => (3, 0),
            Purpose::Cookie(content) => (4, content),
        };
        sip_hash(self.0, &[addresses, ports | purpose << 56, content])
    }

    /// The initial sequence number of a connection: a clock with ticks of 4 µs, offset by a number
    /// that depends on the endpoints (RFC 6528, section 3; MUST-8 and MUST-9).
    pub(crate) fn initial_sequence(self, now: Duration, tuple: &Tuple) -> Sequence {
        let clock = (now.as_micros() / 4) as u32;
        let own = self.number(tuple, Purpose::InitialSequence) as u32;
        Sequence(clock.wrapping_add(own))
    }

    /// The offset of the timestamp clock. It is the same for all connections between two hosts, so
    /// that timestamps increase from one connection to the next, as RFC 6191 requires.
    pub(crate) fn clock(self, tuple: &Tuple) -> u32 {
        let mut hosts = *tuple;
        hosts.local.set_port(0);
        hosts.remote.set_port(0);
        self.number(&hosts, Purpose::Clock) as u32
    }
}

/// SipHash-2-4 of 64-bit words.
fn sip_hash([low, high]: [u64; 2], words: &[u64]) -> u64 {
    let mut state = [
        low ^ 0x736f_6d65_7073_6575,
        high ^ 0x646f_7261_6e64_6f6d,
        low ^ 0x6c79_6765_6e65_7261,
        high ^ 0x7465_6462_7974_6573,
    ];
    let last = (words.len() as u64 * 8) << 56;
    for word in words.iter().copied().chain([last]) {
        state[3] ^= word;
        round(&mut state);
        round(&mut state);
        state[0] ^= word;
    }
    state[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut state);
    }
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

fn round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *c = c.wrapping_add(*d);
    *b = b.rotate_left(13) ^ *a;
    *d = d.rotate_left(16) ^ *c;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*b);
    *a = a.wrapping_add(*d);
    *b = b.rotate_left(17) ^ *c;
    *d = d.rotate_left(21) ^ *a;
    *c = c.rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_siphash() {
        // From the reference implementation: key 00 01 … 0f, messages 00 01 02 … of 0 and 8 bytes.
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(sip_hash(key, &[]), 0x726f_db47_dd0e_0e31);
        let eight = 0x0706_0504_0302_0100;
        assert_eq!(sip_hash(key, &[eight]), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn numbers_of_connections_go_with_the_clock_and_are_far_apart() {
        let secret = Secret([1, 2]);
        let tuple = |port| Tuple {
            local: "10.0.0.1:80".parse().unwrap(),
            remote: std::net::SocketAddrV4::new([10, 0, 0, 2].into(), port),
        };
        let (early, late) = (Duration::from_secs(1), Duration::from_secs(2));
        let first = secret.initial_sequence(early, &tuple(1));
        assert_eq!(secret.initial_sequence(late, &tuple(1)), first + 250_000);
        assert_ne!(secret.initial_sequence(early, &tuple(2)), first);
        let other = Secret([1, 3]).initial_sequence(early, &tuple(1));
        assert_ne!(other, first);
        assert_eq!(secret.clock(&tuple(1)), secret.clock(&tuple(2)));
    }
}
