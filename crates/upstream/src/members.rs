//! The members of a group, as the API shows and changes them: its peers, and the hosts whose
//! addresses are looked up (`resolve`).
//!
//! Each member has a number that is unique in its group and that reloads and changes keep. A change
//! makes a new list of peers; requests in flight keep their list. A change of a host applies to all
//! peers of the host. If the group saves its members ([`Keep`]), a change is saved before it takes
//! effect, and a reload reads the saved members; otherwise a reload restores the members of the
//! configuration, and [`Roster::undone`] reports the undone changes.
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
use crate::hosts::{Host, ListedHost};
use crate::peer::{Peer, PeerSet};
use crate::peers::{PeerSide, Peers};
use crate::roster::Roster;

/// Maximum number of members of a group to which a member can be added at run time.
pub const MEMBERS_MAX: usize = 10_000;

/// A peer or a host as the API shows it.
#[derive(Debug)]
pub struct Member {
    /// The member's number, which is unique in the group.
    pub number: u64,
    /// Whether it is a primary or a backup peer.
    pub side: PeerSide,
    /// The peer; if the member is a host, the template of the host's peers.
    pub peer: Peer,
    /// Whether the member was configured, or is an address that was looked up.
    pub origin: Origin,
}

/// Where a member comes from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// An address that was configured or added.
    Address,
    /// A host that was configured or added, whose addresses are looked up.
    Host(Arc<ListedHost>),
    /// An address that was looked up for a host: the host's number, and the host.
    Lookup(u64, Arc<ListedHost>),
}

/// The new values of a member's settings; `None` leaves a setting unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// The new [`Peer::address`] and [`Peer::server`], if they change.
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
    Add(Box<Peer>, PeerSide),
    /// Adds this host, whose addresses are looked up afterwards.
    AddHost(Box<Host>),
    /// Changes the member with this number.
    Change(u64, Box<Patch>),
    /// Removes the member with this number.
    Remove(u64),
}

/// Why an edit was rejected.
#[derive(Debug)]
pub enum MemberError {
    /// No member has this number.
    NotFound,
    /// The member is a host or comes from a DNS lookup, which determines its address.
    Immutable,
    /// The member comes from a DNS lookup, which determines its weight.
    WeightImmutable,
    /// Another member has the same address, or is the same host.
    Exists,
    /// A host cannot be added, because the group has no resolver.
    NoResolver,
    /// The group has [`MEMBERS_MAX`] members.
    Full,
    /// The edit could not be saved.
    Unwritten(io::Error),
}

/// Saves the members of a group: its peers, and the hosts whose addresses are looked up.
pub trait Keep: std::fmt::Debug + Send + Sync {
    /// Replaces the saved members atomically.
    ///
    /// # Errors
    /// If the members could not be saved. The saved members are unchanged then.
    fn write(&self, peers: &Peers) -> io::Result<()>;

    /// Whether the saved members are equal to these.
    fn has(&self, peers: &Peers) -> bool;
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

/// The edits of members that are not saved: [`Peer::server`], [`Peer::name`], and the kind of edit.
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

    /// Applies the changes, except for the address. If the peer was down or draining and is
    /// available now, its `slow_start` begins.
    fn patch_at(&mut self, patch: &Patch, now: Instant) {
        let was_closed = self.down || self.draining;
        self.patch(patch);
        if was_closed && !self.down && !self.draining {
            self.recover(now);
        }
    }

    /// Takes over the settings of `known`, the same address before a reload, that were changed for
    /// this address alone: those that differ from the settings of `host`, the template of the host
    /// at that time.
    pub(crate) fn take_own_settings(&mut self, known: &Peer, host: &Peer) {
        if (known.down, known.draining) != (host.down, host.draining) {
            (self.down, self.draining) = (known.down, known.draining);
        }
        if known.max_conns != host.max_conns {
            self.max_conns = known.max_conns;
        }
        if known.max_fails != host.max_fails {
            self.max_fails = known.max_fails;
        }
        if known.fail_timeout != host.fail_timeout {
            self.fail_timeout = known.fail_timeout;
        }
        if known.slow_start != host.slow_start {
            self.slow_start = known.slow_start;
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
    pub fn written(&self, side: PeerSide) -> Vec<&Peer> {
        let peers = self.side(side).iter();
        peers.filter(|peer| peer.host.is_none()).collect()
    }
}

/// A copy of a group's peers and hosts, to be changed and made into the next [`Peers`].
struct PeersDraft {
    /// The primary and the backup peers.
    sides: [Vec<Peer>; 2],
    hosts: Vec<Arc<ListedHost>>,
}

/// The index of a member in a [`PeersDraft`].
#[derive(Clone, Copy)]
enum MemberPlace {
    Peer(PeerSide, usize),
    Host(usize),
}

impl PeersDraft {
    fn of(peers: &Peers) -> PeersDraft {
        let side = |side| peers.side(side).iter().map(Peer::share).collect();
        PeersDraft {
            sides: [PeerSide::Peers, PeerSide::Backups].map(side),
            hosts: peers.hosts().to_vec(),
        }
    }

    fn side(&mut self, side: PeerSide) -> &mut Vec<Peer> {
        let [primary, backup] = &mut self.sides;
        match side {
            PeerSide::Peers => primary,
            PeerSide::Backups => backup,
        }
    }

    /// The index of the member with this number; `before` knows the numbers.
    fn find(&self, before: &Peers, number: u64) -> Result<MemberPlace, MemberError> {
        for (side, peers) in [PeerSide::Peers, PeerSide::Backups]
            .into_iter()
            .zip(&self.sides)
        {
            let mut peers = peers.iter();
            if let Some(at) = peers.position(|peer| before.number_of(peer) == number) {
                return Ok(MemberPlace::Peer(side, at));
            }
        }
        let mut hosts = self.hosts.iter();
        let at = hosts.position(|host| before.number_of_host(host) == number);
        at.map(MemberPlace::Host).ok_or(MemberError::NotFound)
    }

    /// Makes the list of peers that replaces `before`.
    fn following(self, before: &Peers, method: Method) -> Peers {
        let [primary, backup] = self.sides.map(PeerSet::new);
        let after = before.followed_by(primary, backup, method);
        after.with_hosts(self.hosts)
    }
}

impl Peers {
    /// Whether a peer was configured or looked up.
    fn origin(&self, peer: &Peer) -> Origin {
        let mut hosts = self.hosts().iter();
        match hosts.find(|host| peer.host == Some(host.key)) {
            Some(host) => Origin::Lookup(self.number_of_host(host), Arc::clone(host)),
            None => Origin::Address,
        }
    }

    fn member_of_host(&self, host: &Arc<ListedHost>) -> Member {
        Member {
            number: self.number_of_host(host),
            side: host.host.side,
            peer: host.host.template.share(),
            origin: Origin::Host(Arc::clone(host)),
        }
    }

    fn member_of_peer(&self, peer: &Peer, side: PeerSide) -> Member {
        Member {
            number: self.number_of(peer),
            side,
            peer: peer.share(),
            origin: self.origin(peer),
        }
    }
}

impl Roster {
    /// All peers, primary ones first.
    pub fn members(&self) -> Vec<Member> {
        self.number_hosts();
        Roster::peers_of(&self.peers())
    }

    /// The roster of the newest configuration, which contains every edit: other threads may serve
    /// requests by a newer configuration than this thread, and edit its roster.
    pub fn newest(self: &Arc<Roster>) -> Arc<Roster> {
        let mut newest = Arc::clone(self);
        while let Some(next) = newest.next() {
            newest = next;
        }
        newest
    }

    /// All hosts and all peers, hosts first.
    pub fn servers(&self) -> Vec<Member> {
        self.number_hosts();
        let peers = self.peers();
        let hosts = peers.hosts().iter().map(|host| peers.member_of_host(host));
        hosts.chain(Roster::peers_of(&peers)).collect()
    }

    fn peers_of(peers: &Peers) -> Vec<Member> {
        let sides = [PeerSide::Peers, PeerSide::Backups].into_iter();
        let members = sides.flat_map(|side| {
            let of_side = peers.side(side).iter();
            of_side.map(move |peer| peers.member_of_peer(peer, side))
        });
        members.collect()
    }

    /// Number of removed peers that still have requests in flight.
    pub fn zombies(&self) -> usize {
        self.peers().removed().len()
    }

    /// Gives a new peer the health checks of the group.
    pub fn prepare(&self, peer: &mut Peer) {
        let peers = self.peers();
        let checks = peers.iter().find_map(|known| known.checks.clone());
        peer.checks = checks.or_else(|| self.checks.clone());
    }

    /// Changes the members. Returns the member after the change or, if it was removed, before its
    /// removal.
    ///
    /// # Errors
    /// If the edit was rejected. Nothing has changed then.
    pub fn edit(&self, edit: Edit, now: Instant) -> Result<Member, MemberError> {
        let _changing = self.changing();
        // Hosts get their numbers in order, before any new member gets one.
        self.number_hosts();
        let Some(next) = self.next() else {
            return self.make(edit, None, now);
        };
        // After a reload, the edit is one of the next roster, which saves it.
        let made = next.edit(edit.clone(), now)?;
        let edit = match edit {
            // Both rosters share the member's number and state.
            Edit::Add(..) => Edit::Add(Box::new(made.peer.share()), made.side),
            edit => edit,
        };
        // The edit also applies to this roster, for requests in flight, unless this roster lacks
        // the member.
        let _ = self.make(edit, Some(made.number), now);
        Ok(made)
    }

    /// Applies an edit to this roster. If the next roster has applied and saved the edit already,
    /// `number` is the member's number there; otherwise `None`.
    fn make(&self, edit: Edit, number: Option<u64>, now: Instant) -> Result<Member, MemberError> {
        let before = self.peers();
        let mut draft = PeersDraft::of(&before);
        let is_host = matches!(edit, Edit::AddHost(_));
        let (member, done) = match edit {
            Edit::Add(peer, side) => (
                Roster::add(&before, &mut draft, *peer, side)?,
                MemberChange::Added,
            ),
            Edit::AddHost(host) => (
                self.add_host(&before, &mut draft, *host, number)?,
                MemberChange::Added,
            ),
            Edit::Change(number, patch) => {
                let member = match draft.find(&before, number)? {
                    MemberPlace::Peer(side, at) => {
                        Roster::change(&before, &mut draft, (side, at), &patch, now)?
                    }
                    MemberPlace::Host(at) => {
                        Roster::change_host(&before, &mut draft, at, &patch, now)?
                    }
                };
                (member, MemberChange::Changed)
            }
            Edit::Remove(number) => {
                let member = match draft.find(&before, number)? {
                    MemberPlace::Peer(side, at) => Roster::remove(&before, &mut draft, side, at)?,
                    MemberPlace::Host(at) => Roster::remove_host(&before, &mut draft, at),
                };
                (member, MemberChange::Removed)
            }
        };
        let after = draft.following(&before, self.method());
        if let (Some(keep), None) = (self.keep(), number) {
            keep.write(&after).map_err(MemberError::Unwritten)?;
        }
        if done == MemberChange::Removed {
            Roster::note_gone(&before, &member);
        }
        self.note_edit(&member.peer, done);
        self.put(after);
        if let (true, Some(lookup)) = (is_host, self.lookup()) {
            lookup.host_added();
        }
        // A request that waits for a peer may find a peer now.
        self.peers().queue().call_next();
        Ok(member)
    }

    fn add(
        before: &Peers,
        draft: &mut PeersDraft,
        peer: Peer,
        side: PeerSide,
    ) -> Result<Member, MemberError> {
        if before.iter().any(|known| known.name == peer.name) {
            return Err(MemberError::Exists);
        }
        has_room(before)?;
        let member = before.member_of_peer(&peer, side);
        draft.side(side).push(peer);
        Ok(member)
    }

    /// Adds a host. `number` is its number if the next roster has added it already.
    fn add_host(
        &self,
        before: &Peers,
        draft: &mut PeersDraft,
        host: Host,
        number: Option<u64>,
    ) -> Result<Member, MemberError> {
        if self.lookup().is_none() {
            return Err(MemberError::NoResolver);
        }
        if draft.hosts.iter().any(|known| known.host.is_same(&host)) {
            return Err(MemberError::Exists);
        }
        has_room(before)?;
        let listed = self.list(host);
        if let Some(number) = number {
            let _ = listed.number.set(number); // it has none yet
        }
        let member = before.member_of_host(&listed);
        draft.hosts.push(listed);
        Ok(member)
    }

    fn change(
        before: &Peers,
        draft: &mut PeersDraft,
        (side, at): (PeerSide, usize),
        patch: &Patch,
        now: Instant,
    ) -> Result<Member, MemberError> {
        let peer = draft.side(side).get_mut(at).ok_or(MemberError::NotFound)?;
        let number = before.number_of(peer);
        let is_taken = |address: &Address| {
            let others = before.iter();
            let mut others = others.filter(|other| before.number_of(other) != number);
            others.any(|other| other.address == *address)
        };
        match &patch.address {
            Some((address, _)) if *address == peer.address => {}
            Some(_) if peer.host.is_some() => return Err(MemberError::Immutable),
            Some((address, _)) if is_taken(address) => return Err(MemberError::Exists),
            Some((address, server)) => {
                let mut moved = peer.at(address.clone());
                moved.server = server.clone();
                // The member keeps its number, but its counters and failures are reset.
                let _ = moved.state().number.set(number);
                before.note_removed(peer);
                *peer = moved;
            }
            None => {}
        }
        if peer.host.is_some() && patch.weight.is_some_and(|weight| weight != peer.weight) {
            return Err(MemberError::WeightImmutable);
        }
        peer.patch_at(patch, now);
        Ok(before.member_of_peer(peer, side))
    }

    /// Changes a host and all its peers.
    fn change_host(
        before: &Peers,
        draft: &mut PeersDraft,
        at: usize,
        patch: &Patch,
        now: Instant,
    ) -> Result<Member, MemberError> {
        let listed = draft.hosts.get_mut(at).ok_or(MemberError::NotFound)?;
        let weight = listed.host.template.weight;
        if patch.address.is_some() {
            return Err(MemberError::Immutable);
        }
        // The weights of a service's servers come from SRV records.
        let is_service = listed.host.service.is_some();
        if is_service && patch.weight.is_some_and(|asked| asked != weight) {
            return Err(MemberError::WeightImmutable);
        }
        let mut changed = ListedHost::clone(listed);
        changed.host.template.patch(patch);
        *listed = Arc::new(changed);
        let listed = Arc::clone(listed);
        let of_peers = Patch {
            weight: patch.weight.filter(|_| !is_service),
            id: None,
            ..patch.clone()
        };
        let peers = draft.sides.iter_mut().flatten();
        for peer in peers.filter(|peer| peer.host == Some(listed.key)) {
            peer.patch_at(&of_peers, now);
            if patch.id.is_some() {
                peer.id = listed.host.id_for(&peer.name);
            }
        }
        Ok(before.member_of_host(&listed))
    }

    fn remove(
        before: &Peers,
        draft: &mut PeersDraft,
        side: PeerSide,
        at: usize,
    ) -> Result<Member, MemberError> {
        let of = draft.side(side);
        if of.get(at).is_none_or(|peer| peer.host.is_some()) {
            return Err(MemberError::Immutable);
        }
        Ok(before.member_of_peer(&of.remove(at), side))
    }

    /// Removes a host and all its peers.
    fn remove_host(before: &Peers, draft: &mut PeersDraft, at: usize) -> Member {
        let listed = draft.hosts.remove(at);
        for peers in &mut draft.sides {
            peers.retain(|peer| peer.host != Some(listed.key));
        }
        before.member_of_host(&listed)
    }

    /// Notes that a member has left the group; if the member is a host, its peers have too.
    fn note_gone(before: &Peers, member: &Member) {
        match &member.origin {
            Origin::Host(listed) => {
                let peers = before.iter();
                peers
                    .filter(|peer| peer.host == Some(listed.key))
                    .for_each(|peer| before.note_removed(peer));
                listed.removal.raise();
            }
            _ => before.note_removed(&member.peer),
        }
    }

    /// Records an edit that is not saved, merged with an earlier edit of the same member.
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

    /// Takes over the edits of `previous`, the roster before a reload, which is locked. If the
    /// members are saved and were changed after this configuration read them, the members of
    /// `previous` are taken over. If they are not saved, edits that the configuration contradicts
    /// are recorded as undone.
    pub(crate) fn take_edits(&self, previous: &Roster) {
        if let Some(keep) = self.keep() {
            let known = previous.peers();
            let differs = !is_written_alike(&known, &self.peers());
            if previous.keep().is_some() && differs && keep.has(&known) {
                self.take_members(&known);
            }
            return;
        }
        let now = self.peers();
        let then = previous.peers();
        // `Peer::share` must not be used here: it would give these peers a new state, so they could
        // not adopt the previous state.
        fn find<'a>(peers: &'a Peers, server: &Bytes, name: &Bytes) -> Option<&'a Peer> {
            let hosts = peers.hosts().iter().map(|host| &host.host.template);
            // The text of a host's server may lack the port, but its name always contains it.
            let mut hosts = hosts.filter(|template| template.name == *name);
            let mut all = peers.iter();
            all.find(|peer| (&peer.server, &peer.name) == (server, name))
                .or_else(|| hosts.next())
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

    /// Takes over the members `known` of another roster, except for peers from DNS lookups.
    fn take_members(&self, known: &Peers) {
        let checks = self.checks.clone();
        let sides = [PeerSide::Peers, PeerSide::Backups].map(|side| {
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
        let hosts = known.hosts().iter().map(|listed| {
            let mut host = listed.host.clone();
            host.template.checks.clone_from(&checks);
            self.list(host)
        });
        // Without a resolver, hosts cannot be members; they stay in the saved file, and the next
        // start reports them.
        let hosts = hosts.filter(|_| self.takes_hosts()).collect::<Vec<_>>();
        let peers = Peers::new(primary, backup, self.method());
        self.put(peers.with_hosts(hosts));
    }

    /// Takes the edits that the reload with this configuration has undone, each with the name of
    /// the member.
    pub fn undone(&self) -> Vec<(Bytes, MemberChange)> {
        std::mem::take(&mut lock(&self.undone))
    }

    /// The roster of the next configuration that there is still.
    fn next(&self) -> Option<Arc<Roster>> {
        self.peers().roster_after(self)
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

/// Whether two lists have the same members with the same settings, apart from peers that come from
/// DNS lookups.
fn is_written_alike(one: &Peers, other: &Peers) -> bool {
    let are_peers_alike = [PeerSide::Peers, PeerSide::Backups]
        .into_iter()
        .all(|side| {
            let (one, other) = (one.written(side), other.written(side));
            let mut pairs = one.iter().zip(other.iter());
            one.len() == other.len()
                && pairs.all(|(one, other)| one.name == other.name && one.is_set_like(other))
        });
    let (one, other) = (one.hosts(), other.hosts());
    let mut hosts = one.iter().zip(other.iter());
    let are_hosts_alike = hosts.all(|(one, other)| {
        one.host.is_same(&other.host) && one.host.template.is_set_like(&other.host.template)
    });
    are_peers_alike && one.len() == other.len() && are_hosts_alike
}

/// An error if the group has no room for another member.
fn has_room(peers: &Peers) -> Result<(), MemberError> {
    let members = peers.iter().count() + peers.hosts().len();
    if members < MEMBERS_MAX {
        Ok(())
    } else {
        Err(MemberError::Full)
    }
}

/// No code that holds these locks can panic half-way.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
