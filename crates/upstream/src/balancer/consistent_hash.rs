//! `hash … consistent`: a ring of points, 160 for each part of a server's weight, by the function of Cache::Memcached::Fast:
//! `crc32(HOST \0 PORT PREVIOUS)`.

use crc32fast::Hasher;

use super::{Asked, Balancer, Key};
use crate::peer::Side;

/// How many points a server has for each part of its weight.
const POINTS: i64 = 160;

/// The points in order, each with the place of the first peer whose server has it.
#[derive(Debug)]
pub(super) struct Ring {
    points: Box<[(u32, usize)]>,
}

impl Ring {
    pub(super) fn new(side: &Side) -> Ring {
        let mut points = Vec::new();
        for (place, peer) in side.iter().enumerate() {
            let (host, port) = parts(&peer.server);
            let mut base = Hasher::new();
            base.update(host);
            base.update(b"\0");
            base.update(port);
            let mut previous = 0_u32;
            for _ in 0..peer.weight.saturating_mul(POINTS) {
                let mut hasher = base.clone();
                hasher.update(&previous.to_le_bytes());
                previous = hasher.finalize();
                points.push((previous, place));
            }
        }
        points.sort_by_key(|(hash, _)| *hash);
        points.dedup_by_key(|(hash, _)| *hash);
        Ring {
            points: points.into(),
        }
    }
}

/// A server as written, taken apart at the colon before its port.
fn parts(server: &[u8]) -> (&[u8], &[u8]) {
    if let Some((scheme, path)) = server.split_at_checked(5)
        && scheme.eq_ignore_ascii_case(b"unix:")
    {
        return (path, b"");
    }
    let digits = server.iter().rev().take_while(|byte| byte.is_ascii_digit());
    let port = server.len() - digits.count();
    match port.checked_sub(1) {
        Some(colon) if server.get(colon) == Some(&b':') => (
            server.get(..colon).unwrap_or_default(),
            server.get(port..).unwrap_or_default(),
        ),
        _ => (server, b""),
    }
}

impl Balancer for Ring {
    fn choose(&self, asked: &mut Asked<'_>) -> Option<usize> {
        let Key::Text(key) = asked.key else {
            return None;
        };
        if key.is_empty() || self.points.is_empty() || asked.search.is_over() {
            return None;
        }
        if let Some(hinted) = asked.hinted() {
            return Some(hinted);
        }
        if asked.search.rounds == 0 {
            let hash = crc32fast::hash(key);
            let point = self.points.partition_point(|(point, _)| *point < hash);
            asked.search.hash = u32::try_from(point).ok()?;
            asked.search.rounds = 1;
        }
        loop {
            let at = (asked.search.hash as usize).checked_rem(self.points.len())?;
            let (_, place) = self.points.get(at)?;
            let server = &asked.side.get(*place)?.server;
            let places = 0..asked.side.len();
            let chosen = super::round_robin::spread(asked, places, |peer| peer.server == *server);
            if chosen.is_some() {
                return chosen;
            }
            asked.search.hash = asked.search.hash.wrapping_add(1);
            if asked.search.miss() {
                return None;
            }
        }
    }
}
