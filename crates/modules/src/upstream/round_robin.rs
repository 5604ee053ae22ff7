//! Weighted round robin, smooth as nginx has it: a peer with weight 5 beside two with 1 is chosen
//! as `a a b a c a a`, not five times in a row.
//!
//! Each thread has [`States`] of its own, as nginx's workers have for groups without `zone`; those
//! of a group that was made for one request last as long as its selection. A request's [`Selection`] never comes back to a peer that it has tried.

use std::sync::Arc;
use std::time::Instant;

use framework::generation::Local;
use framework::slot::{OfThread, Slot, ThreadGeneration};

use super::{Group, Peer};

/// How a peer has done on this thread.
#[derive(Clone, Debug, Default)]
struct State {
    /// Grows by the effective weight in each round; the peer where it is largest is chosen.
    current_weight: i64,
    /// The weight, less what failures took; it recovers by one each round.
    effective_weight: i64,
    fails: u64,
    /// When it failed last.
    failed_at: Option<Instant>,
    /// When it failed last or was first tried again after that.
    checked_at: Option<Instant>,
}

impl State {
    fn new(peer: &Peer) -> State {
        State {
            effective_weight: peer.weight,
            ..State::default()
        }
    }

    /// Whether it has failed too often of late.
    fn is_out(&self, peer: &Peer, now: Instant) -> bool {
        peer.max_fails > 0 && self.fails >= peer.max_fails && !self.is_stale(peer, now)
    }

    /// Whether it was last looked at longer ago than failures count.
    fn is_stale(&self, peer: &Peer, now: Instant) -> bool {
        self.checked_at
            .is_none_or(|at| now.saturating_duration_since(at) > peer.fail_timeout)
    }

    /// Counts a failure; whether that puts the peer out.
    fn fail(&mut self, peer: &Peer, now: Instant) -> bool {
        self.fails = self.fails.saturating_add(1);
        self.failed_at = Some(now);
        self.checked_at = Some(now);
        let Some(share) = i64::try_from(peer.max_fails)
            .ok()
            .and_then(|fails| peer.weight.checked_div(fails))
        else {
            return false;
        };
        self.effective_weight = (self.effective_weight - share).max(0);
        self.fails >= peer.max_fails
    }

    /// Forgets failures if this was the first try after they ran out.
    fn succeed(&mut self) {
        if self.failed_at < self.checked_at {
            self.fails = 0;
        }
    }
}

/// The states of every group's peers on one thread, made when a group is first used.
#[derive(Debug, Default)]
pub struct States {
    /// By number of the group: its peers, its backups.
    groups: Vec<Option<[Box<[State]>; 2]>>,
}

impl OfThread for States {
    fn begin(_: &Local) -> States {
        States::default()
    }
}

/// How the peers of each group have done, by what one thread has seen.
pub static STATES: Slot<States, ThreadGeneration> = Slot::new();

impl States {
    fn of(&mut self, group: &Group, side: Side) -> &mut [State] {
        let number = match group.number {
            Group::PASSING => 0,
            number => number,
        };
        if self.groups.len() <= number {
            self.groups.resize_with(number + 1, || None);
        }
        let new =
            || [&group.peers, &group.backups].map(|side| side.iter().map(State::new).collect());
        match self.groups.get_mut(number) {
            Some(slot) => match (slot.get_or_insert_with(new), side) {
                ([peers, _], Side::Peers) => peers,
                ([_, backups], Side::Backups) => backups,
            },
            None => &mut [],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Peers,
    Backups,
}

/// Which peers of a side have been tried. Up to 64 peers need no memory of their own.
#[derive(Debug, Default)]
struct Tried {
    first: u64,
    others: Vec<bool>,
}

impl Tried {
    fn contains(&self, index: usize) -> bool {
        match index.checked_sub(64) {
            None => self.first & (1 << index) != 0,
            Some(index) => self.others.get(index).is_some_and(|tried| *tried),
        }
    }

    fn insert(&mut self, index: usize) {
        match index.checked_sub(64) {
            None => self.first |= 1 << index,
            Some(index) => {
                if self.others.len() <= index {
                    self.others.resize(index + 1, false);
                }
                if let Some(tried) = self.others.get_mut(index) {
                    *tried = true;
                }
            }
        }
    }
}

/// One request's way through a group: [`Selection::next`], then [`Selection::failed`] or
/// [`Selection::done`], until a peer answers or no try is left.
#[derive(Debug)]
pub struct Selection {
    group: Arc<Group>,
    side: Side,
    tried: Tried,
    current: usize,
    tries_left: usize,
    /// The states of a group that no table has.
    own: Option<States>,
}

impl Selection {
    /// A selection that tries each peer once, and no more than `tries_max` of them unless that
    /// is 0.
    pub fn new(group: &Arc<Group>, tries_max: usize) -> Selection {
        let tries = group.tries();
        Selection {
            group: Arc::clone(group),
            side: Side::Peers,
            tried: Tried::default(),
            current: 0,
            tries_left: if tries_max == 0 {
                tries
            } else {
                tries.min(tries_max)
            },
            own: (group.number == Group::PASSING).then(States::default),
        }
    }

    /// The group that it chooses from.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// How many tries there may still be, the one under way included.
    pub fn tries_left(&self) -> usize {
        self.tries_left
    }

    /// Chooses a peer; `None` when none is left that may be asked.
    pub fn next(&mut self, states: &mut States, now: Instant) -> Option<&Peer> {
        if self.group.is_single() {
            return self.group.peers.first().filter(|peer| !peer.down);
        }
        let mut own = self.own.take();
        let states = own.as_mut().unwrap_or(states);
        let mut chosen = self.choose(states, now);
        if chosen.is_none() && self.side == Side::Peers && !self.group.backups.is_empty() {
            self.side = Side::Backups;
            self.tried = Tried::default();
            chosen = self.choose(states, now);
        }
        self.own = own;
        self.current = chosen?;
        self.peers().get(self.current)
    }

    /// The peer chosen last has failed. Whether that put it out for a while.
    pub fn failed(&mut self, states: &mut States, now: Instant) -> bool {
        if self.group.is_single() {
            self.tries_left = 0;
            return false;
        }
        self.tries_left = self.tries_left.saturating_sub(1);
        let states = self.own.as_mut().unwrap_or(states);
        let state = states.of(&self.group, self.side).get_mut(self.current);
        let peers = match self.side {
            Side::Peers => &self.group.peers,
            Side::Backups => &self.group.backups,
        };
        match (state, peers.get(self.current)) {
            (Some(state), Some(peer)) => state.fail(peer, now),
            _ => false,
        }
    }

    /// The peer chosen last has answered.
    pub fn done(&mut self, states: &mut States) {
        self.tries_left = self.tries_left.saturating_sub(1);
        if self.group.is_single() {
            self.tries_left = 0;
            return;
        }
        let states = self.own.as_mut().unwrap_or(states);
        if let Some(state) = states.of(&self.group, self.side).get_mut(self.current) {
            state.succeed();
        }
    }

    fn peers(&self) -> &[Peer] {
        match self.side {
            Side::Peers => &self.group.peers,
            Side::Backups => &self.group.backups,
        }
    }

    /// A round over the peers of one side.
    fn choose(&mut self, states: &mut States, now: Instant) -> Option<usize> {
        let states = states.of(&self.group, self.side);
        let mut total = 0_i64;
        let mut best: Option<(usize, i64)> = None;
        for (index, (peer, state)) in self.peers().iter().zip(states.iter_mut()).enumerate() {
            if self.tried.contains(index) || peer.down || state.is_out(peer, now) {
                continue;
            }
            state.current_weight = state.current_weight.saturating_add(state.effective_weight);
            total = total.saturating_add(state.effective_weight);
            if state.effective_weight < peer.weight {
                state.effective_weight += 1;
            }
            if best.is_none_or(|(_, weight)| state.current_weight > weight) {
                best = Some((index, state.current_weight));
            }
        }
        let (index, _) = best?;
        self.tried.insert(index);
        if let (Some(peer), Some(state)) = (self.peers().get(index), states.get_mut(index)) {
            state.current_weight = state.current_weight.saturating_sub(total);
            if state.is_stale(peer, now) {
                state.checked_at = Some(now);
            }
        }
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use engine::net::Address;

    use super::*;

    fn peer(name: &str) -> Peer {
        Peer::new(Address::Unix(name.into()))
    }

    fn group(peers: Vec<Peer>, backups: Vec<Peer>) -> Arc<Group> {
        Arc::new(Group {
            name: Bytes::from_static(b"u"),
            number: 3,
            peers: peers.into(),
            backups: backups.into(),
        })
    }

    fn name(peer: Option<&Peer>) -> String {
        let path = peer.map(|peer| peer.name.to_vec()).unwrap_or_default();
        String::from_utf8(path).unwrap().replace("unix:", "")
    }

    /// `count` requests, each of which succeeds at once.
    fn chosen(group: &Arc<Group>, states: &mut States, now: Instant, count: usize) -> String {
        let mut all = String::new();
        for _ in 0..count {
            let mut selection = Selection::new(group, 0);
            all += &name(selection.next(states, now));
            selection.done(states);
        }
        all
    }

    /// The sequence that nginx's own description of the algorithm shows.
    #[test]
    fn heavy_peers_are_spread() {
        let a = Peer {
            weight: 5,
            ..peer("a")
        };
        let group = group(vec![a, peer("b"), peer("c")], vec![]);
        let mut states = States::default();
        assert_eq!(
            chosen(&group, &mut states, Instant::now(), 14),
            "aabacaaaabacaa"
        );
    }

    #[test]
    fn a_request_tries_each_peer_once_then_the_backups() {
        let down = Peer {
            down: true,
            ..peer("x")
        };
        let group = group(vec![peer("a"), down, peer("b")], vec![peer("c")]);
        let mut states = States::default();
        let now = Instant::now();
        let mut selection = Selection::new(&group, 0);
        assert_eq!(selection.tries_left(), 3);
        for expected in ["a", "b", "c"] {
            assert_eq!(name(selection.next(&mut states, now)), expected);
            assert!(selection.failed(&mut states, now));
        }
        assert_eq!(selection.tries_left(), 0);
        assert!(selection.next(&mut states, now).is_none());
        // All are out for now: the next request finds none.
        assert!(Selection::new(&group, 0).next(&mut states, now).is_none());
        assert_eq!(Selection::new(&group, 2).tries_left(), 2);
    }

    #[test]
    fn a_failed_peer_is_tried_again_after_its_time() {
        let group = group(vec![peer("a"), peer("b")], vec![]);
        let mut states = States::default();
        let now = Instant::now();
        let mut selection = Selection::new(&group, 0);
        assert_eq!(name(selection.next(&mut states, now)), "a");
        assert!(selection.failed(&mut states, now));
        assert_eq!(name(selection.next(&mut states, now)), "b");
        selection.done(&mut states);
        assert_eq!(
            chosen(&group, &mut states, now + Duration::from_secs(10), 3),
            "bbb"
        );
        // Its weight was taken whole and comes back in the first round: it is chosen soon after.
        let later = now + Duration::from_secs(11);
        assert_eq!(chosen(&group, &mut states, later, 6), "bbabab");
    }

    #[test]
    fn failures_are_counted_up_to_the_limit() {
        let patient = Peer {
            max_fails: 3,
            ..peer("a")
        };
        let forgiving = Peer {
            max_fails: 0,
            ..peer("b")
        };
        let group = group(vec![patient, forgiving], vec![]);
        let mut states = States::default();
        let now = Instant::now();
        let mut out = String::new();
        for _ in 0..4 {
            let mut selection = Selection::new(&group, 0);
            while selection.next(&mut states, now).is_some() {
                out += match selection.failed(&mut states, now) {
                    true => "out ",
                    false => "failed ",
                };
            }
        }
        assert_eq!(out, "failed failed failed failed out failed failed ");
    }

    #[test]
    fn a_single_peer_is_never_given_up() {
        let single = Group::of_one("a".into(), Address::Unix("a".into()));
        let mut states = States::default();
        let now = Instant::now();
        for _ in 0..3 {
            let mut selection = Selection::new(&single, 0);
            assert_eq!(name(selection.next(&mut states, now)), "a");
            assert!(!selection.failed(&mut states, now));
            assert_eq!(selection.tries_left(), 0);
        }
        let down = Peer {
            down: true,
            ..peer("a")
        };
        let down = group(vec![down], vec![]);
        assert!(Selection::new(&down, 0).next(&mut states, now).is_none());
    }

    #[test]
    fn many_peers() {
        let group = group((0..130).map(|n| peer(&format!("{n} "))).collect(), vec![]);
        let mut states = States::default();
        let now = Instant::now();
        let mut selection = Selection::new(&group, 0);
        let mut seen = std::collections::HashSet::new();
        while let Some(peer) = selection.next(&mut states, now) {
            assert!(seen.insert(peer.name.clone()));
        }
        assert_eq!(seen.len(), 130);
    }
}
