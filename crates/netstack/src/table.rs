//! All connections of a stack in one table by both their ends, and listeners by address and port.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};

use base::hash::Map;
use base::slab::{Key, Slab};
use base::wheel::Entry;

use crate::tcp::{Reason, State, Tuple};
use crate::wire::ethernet::MacAddress;

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) tuple: Tuple,
    pub(crate) state: State,
    /// The listener that it was asked for at, until it has been accepted.
    pub(crate) listener: Option<Key>,
    /// The application has it.
    pub(crate) is_held: bool,
    /// What the application calls it.
    pub(crate) name: Option<Key>,
    pub(crate) notices: Notices,
    /// The card that its last segment came from.
    pub(crate) heard: Option<MacAddress>,
    /// The card that the kernel knows the way to, as of an epoch of the stack's ways.
    pub(crate) told: Option<(u32, Option<MacAddress>)>,
    /// It stands in the stack's queue of those that may have something to send.
    pub(crate) is_sending: bool,
    /// When the wheel hands it over, in milliseconds.
    pub(crate) timer: Option<(u64, Entry)>,
    /// What its memory counts for.
    pub(crate) charged: usize,
}

impl Slot {
    /// Has the connection asked for what it sends, once.
    pub(crate) fn queue_for_sending(&mut self, key: Key, sending: &mut VecDeque<Key>) {
        if !std::mem::replace(&mut self.is_sending, true) {
            sending.push_back(key);
        }
    }

    /// Has the memory of all connections, `memory`, count what this one takes now.
    pub(crate) fn charge(&mut self, memory: &mut usize) {
        let occupied = self.state.occupied();
        *memory = *memory + occupied - self.charged;
        self.charged = occupied;
    }
}

/// What the application is to be told about a connection.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    /// It stands in the stack's queue of those with news.
    pub(crate) is_queued: bool,
    pub(crate) is_connected: bool,
    pub(crate) is_readable: bool,
    pub(crate) is_writable: bool,
    pub(crate) closed: Option<Reason>,
}

/// Somebody who takes connections at an address.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) address: SocketAddrV4,
    /// Handshakes at most, and connections that wait to be accepted.
    pub(crate) backlog: usize,
    pub(crate) handshakes: usize,
    pub(crate) ready: VecDeque<Key>,
    pub(crate) is_noticed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: Slab<Slot>,
    by_tuple: Map<Tuple, Key>,
    listeners: Slab<Listener>,
    by_address: Map<SocketAddrV4, Key>,
}

impl Table {
    /// How many connections there are, whatever their state.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// What all connections are at.
    pub(crate) fn states(&self) -> impl Iterator<Item = &State> {
        self.slots.iter().map(|(_, slot)| &slot.state)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Slot> {
        self.slots.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Slot> {
        self.slots.get_mut(key)
    }

    /// The connection between these ends.
    pub(crate) fn find(&self, tuple: &Tuple) -> Option<Key> {
        self.by_tuple.get(tuple).copied()
    }

    /// Puts a connection in its place.
    pub(crate) fn insert(&mut self, tuple: Tuple, state: State, listener: Option<Key>) -> Key {
        let key = self.slots.insert(Slot {
            tuple,
            state,
            listener,
            is_held: listener.is_none(),
            name: None,
            notices: Notices::default(),
            heard: None,
            told: None,
            is_sending: false,
            timer: None,
            charged: 0,
        });
        self.by_tuple.insert(tuple, key);
        key
    }

    /// Has segments between a connection's ends find it no longer: another one may begin there.
    pub(crate) fn unlink(&mut self, key: Key) {
        if let Some(slot) = self.slots.get(key)
            && self.by_tuple.get(&slot.tuple) == Some(&key)
        {
            self.by_tuple.remove(&slot.tuple);
        }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Slot> {
        self.unlink(key);
        self.slots.remove(key)
    }

    /// Adds a listener, if its address is free.
    pub(crate) fn listen(&mut self, address: SocketAddrV4, backlog: usize) -> Option<Key> {
        if self.by_address.contains_key(&address) {
            return None;
        }
        let key = self.listeners.insert(Listener {
            address,
            backlog,
            handshakes: 0,
            ready: VecDeque::new(),
            is_noticed: false,
        });
        self.by_address.insert(address, key);
        Some(key)
    }

    /// Who listens at this address, or at its port on all.
    pub(crate) fn listener_at(&self, address: SocketAddrV4) -> Option<Key> {
        let everywhere = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, address.port());
        let exact = self.by_address.get(&address);
        exact.or_else(|| self.by_address.get(&everywhere)).copied()
    }

    pub(crate) fn listener(&self, key: Key) -> Option<&Listener> {
        self.listeners.get(key)
    }

    pub(crate) fn listener_mut(&mut self, key: Key) -> Option<&mut Listener> {
        self.listeners.get_mut(key)
    }

    /// Forgets a listener; the connections that it was asked for and has not handed out.
    pub(crate) fn unlisten(&mut self, key: Key) -> Vec<Key> {
        let Some(listener) = self.listeners.remove(key) else {
            return Vec::new();
        };
        self.by_address.remove(&listener.address);
        let slots = self.by_tuple.values().copied();
        let is_its = |slot: &Slot| slot.listener == Some(key);
        let mut left: Vec<Key> = slots
            .filter(|slot| self.slots.get(*slot).is_some_and(is_its))
            .collect();
        left.sort_unstable();
        left
    }
}
