//! Passes datagrams between a worker process that is ending (the predecessor) and the worker
//! process that has taken over (the successor).
//!
//! A datagram session continues in the process in which it began. The datagrams of its client
//! arrive at the sockets that the processes share, from which only the successor receives. If the
//! successor has no session for a client, it sends the datagram to one predecessor after another.
//! So processes need not tell each other when sessions begin or end, and a client never has two
//! sessions.
//!
//! ```text
//!   successor                       predecessor
//!      │ ── Begun ─────────────────▶ │  begins no session any more
//!      │ ── Asked(datagram) ───────▶ │  takes it for its session, or
//!      │ ◀────── Unknown(datagram) ─ │  gives it back: the next one is asked, or a session begins
//!      │ ◀────── Unknown(datagram) ─ │  has received it before it stopped receiving
//!      │ ◀── takes no more ───────── │  has no session left
//!      │ ── end ───────────────────▶ │  no process receives for the predecessor: its sessions end
//! ```
//!
//! The kernel holds few messages of a channel (`net.unix.max_dgram_qlen`, mostly 10), so that
//! further ones wait in a backlog, which is bounded. If the backlog is full, the sender keeps the
//! datagram and treats it as if the other process were gone: a predecessor that hangs harms only
//! its own sessions, and delays no other client.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use engine::net::Datagram;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};

use crate::connection_handler::ListenerId;

/// Maximum length of a message, in bytes: a datagram of 65,507 bytes, its client and its listener.
const MESSAGE_MAX: usize = 72 * 1024;

/// Maximum size of the messages that wait for room in the kernel's queue, in bytes.
const BACKLOG_MAX: usize = 1 << 20;

/// Bytes that are added to the length of a waiting message.
const OVERHEAD: usize = 64;

/// How long a process that is ending waits until its remaining messages are sent.
const DRAIN_WAIT: Duration = Duration::from_secs(1);

/// A datagram on its way to another thread or process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RelayedDatagram {
    pub(super) listener: ListenerId,
    pub(super) datagram: Datagram<Vec<u8>>,
    /// The number of the successor's predecessors that have been asked.
    pub(super) asked: usize,
}

/// A message between the processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SuccessionMessage {
    /// The successor receives from now on.
    Begun,
    /// From the successor to a predecessor: pass the datagram to its session, or return it.
    Asked(RelayedDatagram),
    /// From a predecessor to the successor: the predecessor has no session for the datagram.
    Unknown(RelayedDatagram),
}

/// The kind of a message with a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) enum RelayKind {
    Asked,
    Unknown,
}

/// The first byte of a message.
mod kind {
    pub(super) const BEGUN: u8 = 1;
    pub(super) const ASKED: u8 = 2;
    pub(super) const UNKNOWN: u8 = 3;
}

/// One end of the socket between two processes, which preserves message boundaries. Sending never
/// blocks, receiving does.
#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
    backlog: Mutex<Backlog>,
    /// Notified when a backlog has been sent.
    drained: Condvar,
}

/// Messages that wait for room in the kernel's queue.
#[derive(Debug, Default)]
struct Backlog {
    messages: VecDeque<Vec<u8>>,
    /// The size of the messages, including [`OVERHEAD`]; at most [`BACKLOG_MAX`].
    bytes: usize,
    /// Whether a thread is sending the messages.
    is_being_sent: bool,
    /// Whether the channel is closed for sending after these messages.
    is_last: bool,
}

impl Channel {
    pub(super) fn new(socket: OwnedFd) -> Arc<Channel> {
        Arc::new(Channel {
            socket,
            backlog: Mutex::default(),
            drained: Condvar::new(),
        })
    }

    fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the predecessor that this process receives. False if the predecessor has ended.
    pub(super) fn send_begun(self: &Arc<Channel>) -> bool {
        self.send_parts(&[kind::BEGUN], &[])
    }

    /// Sends a datagram or queues it. False if the other end is closed, or if the backlog is full
    /// or was closed.
    pub(super) fn send<B: AsRef<[u8]>>(
        self: &Arc<Channel>,
        relay: RelayKind,
        listener: &ListenerId,
        datagram: &Datagram<B>,
        asked: usize,
    ) -> bool {
        let kind = match relay {
            RelayKind::Asked => kind::ASKED,
            RelayKind::Unknown => kind::UNKNOWN,
        };
        let head = head(kind, listener, datagram, asked);
        head.is_some_and(|head| self.send_parts(&head, datagram.bytes.as_ref()))
    }

    fn send_parts(self: &Arc<Channel>, head: &[u8], bytes: &[u8]) -> bool {
        let mut backlog = self.backlog();
        if !backlog.is_being_sent {
            match self.try_send(&[head, bytes], SendFlags::DONTWAIT) {
                Err(Errno::AGAIN) => {}
                sent => return sent.is_ok(),
            }
        }
        let message = [head, bytes].concat();
        let weight = message.len() + OVERHEAD;
        if backlog.is_last || backlog.bytes + weight > BACKLOG_MAX {
            return false;
        }
        if !backlog.is_being_sent {
            let channel = Arc::clone(self);
            let started = std::thread::Builder::new()
                .name("backlog".to_owned())
                .spawn(move || channel.send_backlog());
            if started.is_err() {
                return false;
            }
            backlog.is_being_sent = true;
        }
        backlog.bytes += weight;
        backlog.messages.push_back(message);
        true
    }

    fn try_send(&self, parts: &[&[u8]; 2], flags: SendFlags) -> Result<usize, Errno> {
        let parts = parts.map(IoSlice::new);
        loop {
            let mut nothing = SendAncillaryBuffer::default();
            let flags = flags | SendFlags::NOSIGNAL;
            match rustix::net::sendmsg(&self.socket, &parts, &mut nothing, flags) {
                Err(Errno::INTR) => {}
                sent => return sent,
            }
        }
    }

    /// Sends the messages of the backlog, in order, until it is empty. Drops them if the other end
    /// is closed.
    fn send_backlog(&self) {
        let mut is_gone = false;
        loop {
            let mut backlog = self.backlog();
            if is_gone {
                (backlog.messages, backlog.bytes) = (VecDeque::new(), 0);
            }
            let Some(message) = backlog.messages.pop_front() else {
                backlog.is_being_sent = false;
                if backlog.is_last {
                    self.shut_down(Shutdown::Write);
                }
                self.drained.notify_all();
                return;
            };
            backlog.bytes -= message.len() + OVERHEAD;
            drop(backlog);
            is_gone = self.try_send(&[&message, &[]], SendFlags::empty()).is_err();
        }
    }

    /// Waits until the backlog is empty, at most [`DRAIN_WAIT`].
    pub(super) fn drain(&self) {
        let waited = self
            .drained
            .wait_timeout_while(self.backlog(), DRAIN_WAIT, |backlog| backlog.is_being_sent);
        drop(waited);
    }

    /// The next message; `None` when the other end is closed for sending. Unknown messages, which
    /// another version of the program may send, are skipped.
    pub(super) fn receive(&self, room: &mut Vec<u8>) -> Option<SuccessionMessage> {
        room.resize(MESSAGE_MAX, 0);
        loop {
            match rustix::net::recv(&self.socket, &mut room[..], RecvFlags::empty()) {
                Ok((0, _)) => return None,
                Ok((length, _)) => {
                    let message = room.get(..length).and_then(parse);
                    if message.is_some() {
                        return message;
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }

    /// Closes this end for sending, after the backlog.
    pub(super) fn stop_sending(&self) {
        let mut backlog = self.backlog();
        backlog.is_last = true;
        if !backlog.is_being_sent {
            self.shut_down(Shutdown::Write);
        }
    }

    /// Closes this end for receiving: the other end can send nothing more, but messages that it has
    /// sent are still received.
    pub(super) fn stop_receiving(&self) {
        self.shut_down(Shutdown::Read);
    }

    fn shut_down(&self, direction: Shutdown) {
        let _ = rustix::net::shutdown(&self.socket, direction); // the other end may have gone
    }
}

/// The part of a message before the datagram's bytes; `None` if the datagram has no sender, or a
/// number or length does not fit into its field.
fn head<B>(
    kind: u8,
    listener: &ListenerId,
    datagram: &Datagram<B>,
    asked: usize,
) -> Option<Vec<u8>> {
    let name = listener.0.as_bytes();
    let mut head = vec![kind, u8::try_from(asked).ok()?];
    let client = datagram.peer?;
    push_ip(&mut head, Some(client.ip()));
    head.extend_from_slice(&client.port().to_be_bytes());
    let (flow, scope) = match client {
        SocketAddr::V4(_) => (0, 0),
        SocketAddr::V6(client) => (client.flowinfo(), client.scope_id()),
    };
    head.extend_from_slice(&flow.to_be_bytes());
    head.extend_from_slice(&scope.to_be_bytes());
    push_ip(&mut head, datagram.local);
    head.extend_from_slice(&u16::try_from(name.len()).ok()?.to_be_bytes());
    head.extend_from_slice(name);
    Some(head)
}

/// Appends the length of an address in bytes, 0 for none, and the address.
fn push_ip(head: &mut Vec<u8>, ip: Option<IpAddr>) {
    match ip {
        None => head.push(0),
        Some(IpAddr::V4(ip)) => {
            head.push(4);
            head.extend_from_slice(&ip.octets());
        }
        Some(IpAddr::V6(ip)) => {
            head.push(16);
            head.extend_from_slice(&ip.octets());
        }
    }
}

/// Parses a message: a head as [`head`] makes it, and the datagram's bytes.
fn parse(bytes: &[u8]) -> Option<SuccessionMessage> {
    let (&kind, rest) = bytes.split_first()?;
    let message = match kind {
        kind::BEGUN => return rest.is_empty().then_some(SuccessionMessage::Begun),
        kind::ASKED => SuccessionMessage::Asked,
        kind::UNKNOWN => SuccessionMessage::Unknown,
        _ => return None,
    };
    let mut rest = rest;
    let [asked] = take(&mut rest)?;
    let ip = take_ip(&mut rest)??;
    let port = u16::from_be_bytes(take(&mut rest)?);
    let flow = u32::from_be_bytes(take(&mut rest)?);
    let scope = u32::from_be_bytes(take(&mut rest)?);
    let client = match ip {
        IpAddr::V4(ip) => SocketAddr::from((ip, port)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, flow, scope).into(),
    };
    let local = take_ip(&mut rest)?;
    let length = u16::from_be_bytes(take(&mut rest)?);
    let (name, bytes) = rest.split_at_checked(length.into())?;
    let name = std::str::from_utf8(name).ok()?;
    Some(message(RelayedDatagram {
        listener: ListenerId(Arc::new(name.to_owned())),
        datagram: Datagram {
            bytes: bytes.to_vec(),
            peer: Some(client),
            local,
        },
        asked: asked.into(),
    }))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, behind) = rest.split_first_chunk::<N>()?;
    *rest = behind;
    Some(*taken)
}

/// Reads an address that [`push_ip`] has written, which may be none.
fn take_ip(rest: &mut &[u8]) -> Option<Option<IpAddr>> {
    let [length] = take(rest)?;
    Some(match length {
        0 => None,
        4 => Some(Ipv4Addr::from(take::<4>(rest)?).into()),
        16 => Some(Ipv6Addr::from(take::<16>(rest)?).into()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relayed(client: &str, local: Option<&str>, bytes: Vec<u8>) -> RelayedDatagram {
        RelayedDatagram {
            listener: ListenerId(Arc::new("listen udp [::]:53".to_owned())),
            datagram: Datagram {
                bytes,
                peer: Some(client.parse().unwrap()),
                local: local.map(|ip| ip.parse().unwrap()),
            },
            asked: 3,
        }
    }

    fn bytes_of(relayed: &RelayedDatagram) -> Vec<u8> {
        let head = head(kind::ASKED, &relayed.listener, &relayed.datagram, 3).unwrap();
        [head, relayed.datagram.bytes.clone()].concat()
    }

    #[test]
    fn datagrams_survive_the_way() {
        for one in [
            relayed("192.0.2.1:7", None, Vec::new()),
            relayed("[2001:db8::1]:53", Some("2001:db8::2"), vec![b'x'; 65_507]),
            relayed("[fe80::1%3]:9", Some("127.0.0.1"), b"one".to_vec()),
        ] {
            assert_eq!(parse(&bytes_of(&one)), Some(SuccessionMessage::Asked(one)));
        }
        assert_eq!(parse(&[kind::BEGUN]), Some(SuccessionMessage::Begun));
    }

    #[test]
    fn what_is_cut_off_or_changed_means_nothing_else() {
        let one = relayed("[2001:db8::1]:53", Some("192.0.2.7"), Vec::new());
        let whole = bytes_of(&one);
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), None, "{length} bytes");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0xff;
            assert_ne!(parse(&changed), Some(SuccessionMessage::Asked(one.clone())));
        }
    }

    fn pair() -> (Arc<Channel>, Arc<Channel>) {
        let flags = rustix::net::SocketFlags::CLOEXEC;
        let (one, other) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            flags,
            None,
        )
        .unwrap();
        (Channel::new(one), Channel::new(other))
    }

    #[test]
    fn a_channel_says_when_no_process_listens() {
        let (one, other) = pair();
        let mut room = Vec::new();
        let asked = relayed("192.0.2.1:7", None, vec![b'x'; 65_507]);
        assert!(one.send_begun());
        assert!(one.send(RelayKind::Asked, &asked.listener, &asked.datagram, 3));
        other.stop_receiving();
        assert!(!one.send_begun(), "it takes no more");
        // Messages that were sent before are not lost.
        assert_eq!(other.receive(&mut room), Some(SuccessionMessage::Begun));
        assert_eq!(
            other.receive(&mut room),
            Some(SuccessionMessage::Asked(asked.clone()))
        );
        assert_eq!(other.receive(&mut room), None);
        assert!(other.send(RelayKind::Unknown, &asked.listener, &asked.datagram, 3));
        assert_eq!(
            one.receive(&mut room),
            Some(SuccessionMessage::Unknown(asked.clone()))
        );
        // The sender does not wait for an end that does not read, which later gets all accepted
        // messages.
        let mut taken = 0;
        while other.send(RelayKind::Unknown, &asked.listener, &asked.datagram, 3) {
            taken += 1;
        }
        other.stop_sending();
        assert!(!other.send_begun(), "that was the last");
        drop(other);
        for _ in 0..taken {
            assert_eq!(
                one.receive(&mut room),
                Some(SuccessionMessage::Unknown(asked.clone()))
            );
        }
        assert_eq!(one.receive(&mut room), None);
        assert!(!one.send_begun());
    }

    #[test]
    fn many_messages_are_held_for_one_that_is_slow() {
        let (one, other) = pair();
        let asked = relayed("192.0.2.1:7", None, b"short".to_vec());
        for number in 0..500 {
            let sent = one.send(
                RelayKind::Asked,
                &asked.listener,
                &asked.datagram,
                number % 9,
            );
            assert!(sent, "message {number}");
        }
        let mut room = Vec::new();
        for number in 0..500 {
            let asked = RelayedDatagram {
                asked: number % 9,
                ..asked.clone()
            };
            assert_eq!(
                other.receive(&mut room),
                Some(SuccessionMessage::Asked(asked))
            );
        }
        one.drain();
        assert!(one.send_begun());
        assert_eq!(other.receive(&mut room), Some(SuccessionMessage::Begun));
    }
}
