//! The members of a group, as the API shows and changes them.
//!
//! Each peer has a number that is unique in its group, over reloads and changes. A change makes
//! another list of peers: requests in flight keep their list. If the group saves its members
//! ([`Keep`]), a change is saved before it takes effect, and a reload reads it; otherwise a reload
//! restores the members of the configuration, and [`Roster::undone`] reports the undone changes.
//!
//! ```text
//! edit ─▶ of the roster that follows in a reload, if there is one ─▶ written down ─▶ in force here
//! ```
//!
//! Not here: permissions, and the encoding of changes in the API.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::net::Address;

use crate::balancer::Method;
use crate::peer::{Peer, PeerSet};
use crate::peers::{Peers, SideOf};
use crate::roster::{Host, Roster};

/// Members of a group at most, if they are added at run time.
pub const MEMBERS_MAX: usize = 10_000;

/// A peer as the API shows it.
#[derive(Debug)]
pub struct Member {
    /// Its number, which is unique in the group.
    pub number: u64,
    /// Whether it is a primary or a backup peer.
    pub side: SideOf,
    /// The peer of the member.
    pub peer: Peer,
    /// The number of the server whose host name has this address, if it comes from a DNS lookup.
    pub parent: Option<u64>,
}

/// Changes of a member; `None` leaves a value as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// See [`Peer::address`], with the server as it is written.
    pub address: Option<(Address, Bytes)>,
    /// The new [`Peer::weight`], if it changes.
    pub weight: Option<i64>,
    /// The new [`Peer::max_conns`], if it changes.
    pub max_conns: Option<usize>,
    /// The new [`Peer::max_fails`], if it changes.
    pub max_fails: Option<u64>,
    /// The new [`Peer::fail_timeout`], if it changes.
    pub fail_timeout: Option<Duration>,
    /// The new [`Peer::slow_start`], if it changes.
    pub slow_start: Option<Duration>,
    /// The new [`Peer::id`], if it changes.
    pub id: Option<Bytes>,
    /// The new availability, if it changes.
    pub standing: Option<Availability>,
}

/// Which requests a member gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// The member gets any request.
    Up,
    /// The member gets only requests that name it (`drain`).
    Draining,
    /// The member gets no requests (`down`).
    Down,
}

/// An edit of the members of a group.
#[derive(Clone, Debug)]
pub enum Edit {
    /// Adds this peer.
    Add(Box<Peer>, SideOf),
    /// Changes the member of this number.
    Change(u64, Box<Patch>),
    /// Removes the member of this number.
    Remove(u64),
}

/// Why an edit was rejected.
#[derive(Debug)]
pub enum MemberError {
    /// No member has this number.
    NotFound,
    /// The member comes from a DNS lookup, which determines its address.
    Immutable,
    /// The member comes from a DNS lookup, which determines its weight.
    WeightImmutable,
    /// Another member has this address.
    Exists,
    /// The group has [`MEMBERS_MAX`] members.
    Full,
    /// The edit could not be saved.
    Unwritten(io::Error),
}

/// Saves the members of a group: its peers, and the hosts whose addresses are looked up.
pub trait Keep: std::fmt::Debug + Send + Sync {
    /// Saves the members, all or nothing.
    ///
    /// # Errors
    /// The saved members have not changed.
    fn write(&self, peers: &Peers, hosts: &[Host]) -> io::Result<()>;

    /// Whether these members are the saved ones.
    fn has(&self, peers: &Peers, hosts: &[Host]) -> bool;
}

/// How a member has been edited since the configuration was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// The member was added to its group.
    Added,
    /// The member's settings were changed.
    Changed,
    /// The member was removed from its group.
    Removed,
}

/// The edited members: server as configured, address, and the edit.
pub(crate) type Edited = Vec<(Bytes, Bytes, MemberChange)>;

impl Peer {
    /// Applies the changes, except for the address.
    pub fn patch(&mut self, patch: &Patch) {
        self.weight = patch.weight.unwrap_or(self.weight);
        self.max_conns = patch.max_conns.unwrap_or(self.max_conns);
        self.max_fails = patch.max_fails.unwrap_or(self.max_fails);
        self.fail_timeout = patch.fail_timeout.unwrap_or(self.fail_timeout);
        self.slow_start = patch.slow_start.unwrap_or(self.slow_start);
        if let Some(id) = &patch.id {
            self.id = id.clone();
        }
        if let Some(asked) = patch.standing {
            self.down = asked == Availability::Down;
            self.draining = asked == Availability::Draining;
        }
    }

    /// Whether both peers have the same settings.
    fn is_set_like(&self, other: &Peer) -> bool {
        let of = |peer: &Peer| {
            (
                (peer.weight, peer.max_conns, peer.max_fails),
                (peer.fail_timeout, peer.slow_start),
                (peer.down, peer.draining, peer.id.clone()),
            )
        };
        of(self) == of(other)
    }
}

impl Peers {
    /// The primary or backup peers that do not come from a DNS lookup.
    pub fn written(&self, side: SideOf) -> Vec<&Peer> {
        let peers = self.side(side).iter();
        peers.filter(|peer| peer.host.is_none()).collect()
    }
}

impl Roster {
    /// All members, primary peers first.
    pub fn members(&self) -> Vec<Member> {
        self.number_hosts();
        let peers = self.peers();
        let sides = [SideOf::Peers, SideOf::Backups].into_iter();
        let members = sides.flat_map(|side| {
            let of_side = peers.side(side).iter();
            of_side.map(move |peer| (side, peer))
        });
        members
            .map(|(side, peer)| Member {
                number: peers.number_of(peer),
                side,
                peer: peer.share(),
                parent: peer.host.and_then(|host| self.number_of_host(host)),
            })
            .collect()
    }

    /// The servers whose host names are looked up, with their numbers.
    pub fn parents(&self) -> Vec<(u64, &Host)> {
        self.number_hosts();
        let hosts = self.hosts().iter().enumerate();
        hosts
            .filter_map(|(at, host)| Some((self.number_of_host(at)?, host)))
            .collect()
    }

    /// How many removed peers still have requests.
    pub fn zombies(&self) -> usize {
        self.peers().removed().len()
    }

    /// Gives a new peer the health checks of the group.
    pub fn prepare(&self, peer: &mut Peer) {
        let peers = self.peers();
        let checks = peers.iter().find_map(|known| known.checks.clone());
        peer.checks = checks.or_else(|| self.checks.clone());
    }

    /// Changes the members. Returns the member that was changed, as it is now, or as it was before
    /// its removal.
    ///
    /// # Errors
    /// If nothing has changed, with the reason.
    pub fn edit(&self, edit: Edit, now: Instant) -> Result<Member, MemberError> {
        let _changing = self.changing();
        // Hosts are numbered in their order, and before any new member.
        self.number_hosts();
        // During a reload, the change also applies to the next roster, which saves it.
        let next = self.next();
        let edit = match &next {
            Some(next) => match (edit.clone(), next.edit(edit, now)?) {
                // Both rosters share the member's number and state.
                (Edit::Add(..), added) => Edit::Add(Box::new(added.peer), added.side),
                (edit, _) => edit,
            },
            None => edit,
        };
        let before = self.peers();
        let mut sides = [SideOf::Peers, SideOf::Backups].map(|side| {
            let peers = before.side(side).iter();
            peers.map(Peer::share).collect::<Vec<Peer>>()
        });
        let (member, done) = match edit {
            Edit::Add(peer, side) => (
                self.add(&before, &mut sides, *peer, side)?,
                MemberChange::Added,
            ),
            Edit::Change(number, patch) => (
                self.change(&before, &mut sides, number, &patch, now)?,
                MemberChange::Changed,
            ),
            Edit::Remove(number) => (
                self.remove(&before, &mut sides, number)?,
                MemberChange::Removed,
            ),
        };
        let [primary, backup] = sides.map(PeerSet::new);
        let after = before.followed_by(primary, backup, self.method());
        if let (Some(keep), None) = (self.keep(), &next) {
            keep.write(&after, self.hosts())
                .map_err(MemberError::Unwritten)?;
        }
        if done == MemberChange::Removed {
            before.note_removed(&member.peer);
        }
        self.note_edit(&member.peer, done);
        self.put(after);
        // A request that waits for a peer may find one now.
        self.peers().queue().call_next();
        Ok(member)
    }

    fn add(
        &self,
        before: &Peers,
        sides: &mut [Vec<Peer>; 2],
        peer: Peer,
        side: SideOf,
    ) -> Result<Member, MemberError> {
        if before.iter().any(|known| known.name == peer.name) {
            return Err(MemberError::Exists);
        }
        if before.iter().count() >= MEMBERS_MAX {
            return Err(MemberError::Full);
        }
        let member = Member {
            number: before.number_of(&peer),
            side,
            peer: peer.share(),
            parent: None,
        };
        of_side(sides, side).push(peer);
        Ok(member)
    }

    fn change(
        &self,
        before: &Peers,
        sides: &mut [Vec<Peer>; 2],
        number: u64,
        patch: &Patch,
        now: Instant,
    ) -> Result<Member, MemberError> {
        let (side, at) = self.find(before, sides, number)?;
        let is_taken = |address: &Address| {
            let others = before.iter();
            let mut others = others.filter(|other| before.number_of(other) != number);
            others.any(|other| other.address == *address)
        };
        let parent = before.side(side).get(at).and_then(|peer| peer.host);
        let peer = of_side(sides, side)
            .get_mut(at)
            .ok_or(MemberError::NotFound)?;
        match &patch.address {
            Some((address, _)) if *address == peer.address => {}
            Some(_) if parent.is_some() => return Err(MemberError::Immutable),
            Some((address, _)) if is_taken(address) => return Err(MemberError::Exists),
            Some((address, server)) => {
                let mut moved = peer.at(address.clone());
                moved.server = server.clone();
                // The member keeps its number, but its state begins anew.
                let _ = moved.state().number.set(number);
                before.note_removed(peer);
                *peer = moved;
            }
            None => {}
        }
        if parent.is_some() && patch.weight.is_some_and(|weight| weight != peer.weight) {
            return Err(MemberError::WeightImmutable);
        }
        let was_closed = peer.down || peer.draining;
        peer.patch(patch);
        if was_closed && !peer.down && !peer.draining {
            peer.recover(now);
        }
        Ok(Member {
            number,
            side,
            peer: peer.share(),
            parent: parent.and_then(|host| self.number_of_host(host)),
        })
    }

    fn remove(
        &self,
        before: &Peers,
        sides: &mut [Vec<Peer>; 2],
        number: u64,
    ) -> Result<Member, MemberError> {
        let (side, at) = self.find(before, sides, number)?;
        let of = of_side(sides, side);
        if of.get(at).is_none_or(|peer| peer.host.is_some()) {
            return Err(MemberError::Immutable);
        }
        Ok(Member {
            number,
            side,
            peer: of.remove(at),
            parent: None,
        })
    }

    /// The position of the member with a number.
    fn find(
        &self,
        before: &Peers,
        sides: &[Vec<Peer>; 2],
        number: u64,
    ) -> Result<(SideOf, usize), MemberError> {
        for (side, peers) in [SideOf::Peers, SideOf::Backups].into_iter().zip(sides) {
            let at = peers
                .iter()
                .position(|peer| before.number_of(peer) == number);
            if let Some(at) = at {
                return Ok((side, at));
            }
        }
        let is_parent = self.parents().iter().any(|(parent, _)| *parent == number);
        Err(if is_parent {
            MemberError::Immutable
        } else {
            MemberError::NotFound
        })
    }

    fn note_edit(&self, peer: &Peer, done: MemberChange) {
        if self.keep().is_some() {
            return;
        }
        let mut edited = lock(&self.edited);
        let same = |known: &(Bytes, Bytes, MemberChange)| {
            (&known.0, &known.1) == (&peer.server, &peer.name)
        };
        let before = edited.iter().position(same).map(|at| edited.remove(at).2);
        let done = match (before, done) {
            (Some(MemberChange::Added), MemberChange::Removed) => return,
            (Some(MemberChange::Added), _) => MemberChange::Added,
            (Some(MemberChange::Removed), _) => MemberChange::Changed,
            (_, done) => done,
        };
        edited.push((peer.server.clone(), peer.name.clone(), done));
    }

    /// Takes over the edits of the roster before a reload. If the members are saved and were
    /// changed after this configuration read them, the previous members are taken over; if they are
    /// not saved, edits that the configuration contradicts are undone.
    pub(crate) fn take_edits(self: &Arc<Self>, previous: &Roster) {
        let _changing = previous.changing();
        *lock(&previous.next) = Arc::downgrade(self);
        if let Some(keep) = self.keep() {
            let known = previous.peers();
            let differs = !is_written_alike(&known, &self.peers());
            if previous.keep().is_some() && differs && keep.has(&known, previous.hosts()) {
                self.take_members(&known);
            }
            return;
        }
        let now = self.peers();
        let then = previous.peers();
        // The peers are not shared here: `share` would give them a state, and they could not adopt
        // one.
        fn find<'a>(peers: &'a Peers, server: &Bytes, name: &Bytes) -> Option<&'a Peer> {
            let mut all = peers.iter();
            all.find(|peer| (&peer.server, &peer.name) == (server, name))
        }
        let undone = lock(&previous.edited)
            .iter()
            .filter(|(server, name, done)| {
                let (then, now) = (find(&then, server, name), find(&now, server, name));
                match (done, then, now) {
                    (MemberChange::Removed, _, now) => now.is_some(),
                    (_, Some(then), Some(now)) => !then.is_set_like(now),
                    (_, then, now) => then.is_some() && now.is_none(),
                }
            })
            .map(|(_, name, done)| (name.clone(), *done))
            .collect();
        *lock(&self.undone) = undone;
    }

    /// Takes over the members of another roster, except for those from DNS lookups.
    fn take_members(&self, known: &Peers) {
        let checks = self.checks.clone();
        let sides = [SideOf::Peers, SideOf::Backups].map(|side| {
            let peers = known.side(side).iter().filter(|peer| peer.host.is_none());
            let peers = peers.map(|peer| {
                let mut taken = peer.at(peer.address.clone());
                taken.name = peer.name.clone();
                taken.checks.clone_from(&checks);
                taken
            });
            PeerSet::new(peers.collect::<Vec<Peer>>())
        });
        let [primary, backup] = sides;
        self.put(Peers::new(primary, backup, self.method()));
    }

    /// Takes the changes that the reload with this configuration has undone, by the names of the
    /// members.
    pub fn undone(&self) -> Vec<(Bytes, MemberChange)> {
        std::mem::take(&mut lock(&self.undone))
    }

    fn next(&self) -> Option<Arc<Roster>> {
        lock(&self.next).upgrade()
    }
}

impl Method {
    /// Whether a group with this method may have backup peers.
    pub fn takes_backups(self) -> bool {
        !matches!(
            self,
            Method::Hash
                | Method::ConsistentHash
                | Method::BoundedHash(_)
                | Method::IpHash
                | Method::Random
                | Method::RandomTwo
        )
    }
}

/// Whether two lists have the same members with the same settings.
fn is_written_alike(one: &Peers, other: &Peers) -> bool {
    [SideOf::Peers, SideOf::Backups].into_iter().all(|side| {
        let (one, other) = (one.written(side), other.written(side));
        let mut pairs = one.iter().zip(other.iter());
        one.len() == other.len()
            && pairs.all(|(one, other)| one.name == other.name && one.is_set_like(other))
    })
}

fn of_side(sides: &mut [Vec<Peer>; 2], side: SideOf) -> &mut Vec<Peer> {
    let [primary, backup] = sides;
    match side {
        SideOf::Peers => primary,
        SideOf::Backups => backup,
    }
}

/// No code that holds these locks can panic half-way.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
