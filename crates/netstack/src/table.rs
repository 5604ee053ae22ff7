//! The table of a stack: connections by their endpoints, and listeners by address and port.

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
    /// The listener of an incoming connection, until it has been accepted.
    pub(crate) listener: Option<Key>,
    /// Whether the application holds the connection.
    pub(crate) is_held: bool,
    /// The application's name for the connection.
    pub(crate) name: Option<Key>,
    pub(crate) notices: Notices,
    /// The hardware address that the connection's last segment came from.
    pub(crate) heard: Option<MacAddress>,
    /// The hardware address according to the kernel, with the epoch of the stack's routes for which
    /// it is valid.
    pub(crate) told: Option<(u32, Option<MacAddress>)>,
    /// Whether the connection is in the stack's send queue.
    pub(crate) is_sending: bool,
    /// The connection's timer, in milliseconds, with its entry in the wheel.
    pub(crate) timer: Option<(u64, Entry)>,
    /// The memory charged for the connection.
    pub(crate) charged: usize,
}

impl Slot {
    /// Puts the connection into the send queue, unless it is there already.
    pub(crate) fn queue_for_sending(&mut self, key: Key, sending: &mut VecDeque<Key>) {
        if !std::mem::replace(&mut self.is_sending, true) {
            sending.push_back(key);
        }
    }

    /// Updates `memory`, the total of all connections, by the change of this connection's memory.
    pub(crate) fn charge(&mut self, memory: &mut usize) {
        let occupied = self.state.occupied();
        *memory = *memory + occupied - self.charged;
        self.charged = occupied;
    }
}

/// The pending events of a connection.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    /// Whether the connection is in the stack's queue of connections with events.
    pub(crate) is_queued: bool,
    pub(crate) is_connected: bool,
    pub(crate) is_readable: bool,
    pub(crate) is_writable: bool,
    pub(crate) closed: Option<Reason>,
}

/// A listener.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) address: SocketAddrV4,
    /// Limit of handshakes in progress, and of connections that wait to be accepted.
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
    /// Number of connections in any state.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The states of all connections.
    pub(crate) fn states(&self) -> impl Iterator<Item = &State> {
        self.slots.iter().map(|(_, slot)| &slot.state)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Slot> {
        self.slots.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Slot> {
        self.slots.get_mut(key)
    }

    /// The connection between these endpoints.
    pub(crate) fn find(&self, tuple: &Tuple) -> Option<Key> {
        self.by_tuple.get(tuple).copied()
    }

    /// Inserts a connection.
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

    /// Removes a connection's endpoints from the table, so that another connection can use them.
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

    /// The listener at this address, or at its port on the unspecified address.
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

    /// Removes a listener. Returns its connections that have not been accepted.
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
