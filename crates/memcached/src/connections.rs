//! Which connections are open, for `stats conns`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use engine::net::Address;
use store::Seconds;

use crate::lock::lock;

/// What a connection is at, in memcached's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ConnectionState {
    /// It waits for a command.
    Read,
    /// It has received a part of a value.
    Value,
    /// It reads away what nobody wants.
    Swallow,
    /// It is told of all items.
    Write,
    /// It watches.
    Watch,
}

impl ConnectionState {
    fn name(state: u8) -> &'static str {
        match state {
            state if state == ConnectionState::Value as u8 => "conn_nread",
            state if state == ConnectionState::Swallow as u8 => "conn_swallow",
            state if state == ConnectionState::Write as u8 => "conn_mwrite",
            state if state == ConnectionState::Watch as u8 => "conn_watch",
            _ => "conn_read",
        }
    }
}

/// One connection, as others see it.
#[derive(Debug)]
pub(crate) struct ConnectionRecord {
    pub(crate) peer: Address,
    pub(crate) local: Address,
    state: AtomicU8,
    /// When it had its last command.
    last: AtomicU32,
}

impl ConnectionRecord {
    pub(crate) fn new(peer: Address, local: Address, now: Seconds) -> ConnectionRecord {
        ConnectionRecord {
            peer,
            local,
            state: AtomicU8::new(ConnectionState::Read as u8),
            last: AtomicU32::new(now),
        }
    }

    /// Notes what it is at.
    pub(crate) fn note(&self, state: ConnectionState, now: Seconds) {
        self.state.store(state as u8, Ordering::Relaxed);
        self.last.store(now, Ordering::Relaxed);
    }
}

/// All sockets of a cache: those that listen, and connections by their numbers.
#[derive(Debug, Default)]
pub(crate) struct OpenSockets {
    listeners: Mutex<Vec<ListeningSocket>>,
    open: Mutex<BTreeMap<u64, Arc<ConnectionRecord>>>,
}

/// A socket that listens.
#[derive(Clone, Debug)]
struct ListeningSocket {
    address: Address,
    is_datagrams: bool,
}

/// Numbers of connections begin here: those below are of sockets that listen.
const NUMBER_MIN: u64 = 1000;

/// The number that statistics and watchers show for a connection, or 0 for datagrams.
pub(crate) fn shown_number(serial: u64) -> u64 {
    match serial {
        0 => 0,
        serial => serial.saturating_add(NUMBER_MIN),
    }
}

impl OpenSockets {
    /// Another socket listens.
    pub(crate) fn listen(&self, address: Address, is_datagrams: bool) {
        lock(&self.listeners).push(ListeningSocket {
            address,
            is_datagrams,
        });
    }

    pub(crate) fn open(&self, serial: u64, record: &Arc<ConnectionRecord>) {
        lock(&self.open).insert(serial, Arc::clone(record));
    }

    pub(crate) fn close(&self, serial: u64) {
        lock(&self.open).remove(&serial);
    }

    /// Tells all sockets: number, what of it, and that.
    pub(crate) fn tell(
        &self,
        own: u64,
        now: Seconds,
        mut tell: impl FnMut(u64, &str, std::fmt::Arguments<'_>),
    ) {
        for (number, socket) in lock(&self.listeners).iter().enumerate() {
            let number = number as u64 + 1;
            let address = shown(&socket.address, socket.is_datagrams);
            let state = if socket.is_datagrams {
                "conn_read"
            } else {
                "conn_listening"
            };
            if socket.is_datagrams {
                tell(number, "UDP", format_args!("UDP"));
            }
            tell(number, "addr", format_args!("{address}"));
            tell(number, "state", format_args!("{state}"));
            tell(number, "secs_since_last_cmd", format_args!("{now}"));
        }
        for (serial, record) in lock(&self.open).iter() {
            let number = shown_number(*serial);
            let peer = shown(&record.peer, false);
            let local = shown(&record.local, false);
            let state = if *serial == own {
                "conn_parse_cmd"
            } else {
                ConnectionState::name(record.state.load(Ordering::Relaxed))
            };
            let since = if *serial == own {
                0
            } else {
                now.saturating_sub(record.last.load(Ordering::Relaxed))
            };
            tell(number, "addr", format_args!("{peer}"));
            tell(number, "listen_addr", format_args!("{local}"));
            tell(number, "state", format_args!("{state}"));
            tell(number, "secs_since_last_cmd", format_args!("{since}"));
        }
    }
}

/// An address as memcached shows it.
fn shown(address: &Address, is_datagrams: bool) -> String {
    match address {
        Address::Inet(address) => {
            let protocol = if is_datagrams { "udp" } else { "tcp" };
            let family = if address.is_ipv4() { "" } else { "6" };
            format!("{protocol}{family}:{address}")
        }
        // A client's end has no name.
        Address::Unix(path) if path.as_os_str().is_empty() => "unix:<AF 1>".to_owned(),
        Address::Unix(path) => format!("unix:{}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_told_with_their_addresses() {
        let connections = OpenSockets::default();
        connections.listen("127.0.0.1:11211".parse().map(Address::Inet).unwrap(), false);
        connections.listen("[::1]:5".parse().map(Address::Inet).unwrap(), true);
        let record =
            ConnectionRecord::new(Address::Unix("".into()), Address::Unix("/tmp/s".into()), 10);
        let record = Arc::new(record);
        record.note(ConnectionState::Value, 12);
        connections.open(7, &record);
        let mut lines = Vec::new();
        connections.tell(3, 15, |number, what, value| {
            lines.push(format!("{number}:{what} {value}"));
        });
        let expected = [
            "1:addr tcp:127.0.0.1:11211",
            "1:state conn_listening",
            "1:secs_since_last_cmd 15",
            "2:UDP UDP",
            "2:addr udp6:[::1]:5",
            "2:state conn_read",
            "2:secs_since_last_cmd 15",
            "1007:addr unix:<AF 1>",
            "1007:listen_addr unix:/tmp/s",
            "1007:state conn_nread",
            "1007:secs_since_last_cmd 3",
        ];
        assert_eq!(lines, expected);
        connections.close(7);
        let mut count = 0;
        connections.tell(3, 15, |_, _, _| count += 1);
        assert_eq!(count, 7);
    }
}
