//! The channel between the master and one worker process: small messages both ways, file
//! descriptors only from the master to the worker.
//!
//! The socket keeps message boundaries (SOCK_SEQPACKET). Since a packet can carry 253 descriptors
//! at most, a command with descriptors is sent as packets of descriptors followed by the command.
//! The master never blocks on a worker: it queues packets that the socket does not take. It accepts
//! no descriptors from a worker and bounds the size of its reports, since a worker may be
//! compromised.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt,
};

/// A command of the master to a worker; `D` is the type of a descriptor.
#[derive(Clone, Debug)]
pub(crate) enum Command<D> {
    /// Compile this bundle and keep the result until it is committed.
    Prepare {
        generation: u64,
        bundle: D,
        descriptors: Vec<D>,
    },
    Commit {
        generation: u64,
    },
    Abandon {
        generation: u64,
    },
    /// Logs opened again, with a sealed list of their keys.
    Reopen {
        keys: D,
        descriptors: Vec<D>,
    },
    /// Devices that only this worker has, with a sealed list of their keys.
    Devices {
        keys: D,
        descriptors: Vec<D>,
    },
    /// Save the worker's state into an empty memory file, and seal the file.
    Save {
        state: D,
    },
    /// Restore the state that another worker saves into this file; sent before the first bundle.
    GoOn {
        state: D,
    },
    /// The worker at the other end of this socket is about to take over from the receiver of the
    /// command, which may still be serving requests when its successor starts.
    Successor {
        channel: D,
    },
    /// The receiver of the command takes over from the worker at the other end of this socket. Sent
    /// before the first bundle, once for every predecessor.
    Predecessor {
        channel: D,
    },
    /// A reload has failed; the worker keeps its generation. For monitoring.
    ReloadFailed,
    /// End when every request has ended.
    Quit,
    /// Like `Quit`, but serve one more request on idle connections: another program accepts
    /// connections in place of this program.
    Drain,
    Terminate,
    /// A command whose descriptors were lost because this process has too many open files. Only
    /// seen by workers.
    Incomplete {
        generation: u64,
    },
}

/// A report of a worker to the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorkerReport {
    Prepared {
        generation: u64,
    },
    /// Preparing the bundle has failed; one error per line.
    Failed {
        generation: u64,
        text: String,
    },
    /// The worker serves by this generation.
    Committed {
        generation: u64,
    },
    /// The last request of a replaced generation has ended.
    Finished {
        generation: u64,
    },
    /// The worker uses the devices that it received.
    HasDevices,
    /// The worker itself got a signal to reopen its logs, which only the master may do.
    WantsLogs,
    /// The worker itself got a signal to end when every request has ended. It accepts no more
    /// connections and no further configuration.
    Leaving,
}

/// Maximum number of descriptors in one packet; the kernel's limit is 253.
const DESCRIPTORS_PER_PACKET: usize = 200;
/// Maximum length of a packet, in bytes; longer texts of `Failed` are truncated.
const PACKET_SIZE_MAX: usize = 32 * 1024;

/// The first byte of a packet.
mod kind {
    pub(super) const DESCRIPTORS: u8 = 0;
    pub(super) const PREPARE: u8 = 1;
    pub(super) const COMMIT: u8 = 2;
    pub(super) const ABANDON: u8 = 3;
    pub(super) const REOPEN: u8 = 4;
    pub(super) const QUIT: u8 = 5;
    pub(super) const TERMINATE: u8 = 6;
    pub(super) const DRAIN: u8 = 7;
    pub(super) const DEVICES: u8 = 8;
    pub(super) const SAVE: u8 = 9;
    pub(super) const GO_ON: u8 = 10;
    pub(super) const RELOAD_FAILED: u8 = 11;
    pub(super) const SUCCESSOR: u8 = 12;
    pub(super) const PREDECESSOR: u8 = 13;
    pub(super) const PREPARED: u8 = 16;
    pub(super) const FAILED: u8 = 17;
    pub(super) const FINISHED: u8 = 18;
    pub(super) const COMMITTED: u8 = 19;
    pub(super) const WANTS_LOGS: u8 = 20;
    pub(super) const LEAVING: u8 = 21;
    pub(super) const HAS_DEVICES: u8 = 22;
}

/// Both ends of a new channel; the worker's is to be passed on.
pub(crate) fn pair() -> io::Result<(MasterEnd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((
        MasterEnd {
            socket: ours,
            outgoing: VecDeque::new(),
        },
        theirs,
    ))
}

/// Size of the buffer between two workers, in bytes; the kernel may reduce it.
const BETWEEN_WORKERS_MAX: usize = 1 << 18;

/// Both ends of a message socket between two workers.
pub(crate) fn between_workers() -> io::Result<(Rc<OwnedFd>, Rc<OwnedFd>)> {
    let flags = SocketFlags::CLOEXEC;
    let (one, other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    for end in [&one, &other] {
        sockopt::set_socket_send_buffer_size(end, BETWEEN_WORKERS_MAX)?;
    }
    Ok((Rc::new(one), Rc::new(other)))
}

/// The master's end of a channel. Neither reads nor writes block.
pub(crate) struct MasterEnd {
    socket: OwnedFd,
    outgoing: VecDeque<Packet>,
}

/// A queued packet, with its descriptors.
struct Packet {
    bytes: Vec<u8>,
    descriptors: Vec<Rc<OwnedFd>>,
}

impl AsFd for MasterEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl MasterEnd {
    /// Queues a command and sends as much as the socket takes. Errors are ignored:
    /// [`MasterEnd::receive`] reports the end of a worker.
    pub(crate) fn send(&mut self, command: Command<Rc<OwnedFd>>) {
        let (kind, generation, descriptors) = match command {
            Command::Prepare {
                generation,
                bundle,
                descriptors,
            } => (
                kind::PREPARE,
                generation,
                [vec![bundle], descriptors].concat(),
            ),
            Command::Reopen { keys, descriptors } => {
                (kind::REOPEN, 0, [vec![keys], descriptors].concat())
            }
            Command::Devices { keys, descriptors } => {
                (kind::DEVICES, 0, [vec![keys], descriptors].concat())
            }
            Command::Save { state } => (kind::SAVE, 0, vec![state]),
            Command::GoOn { state } => (kind::GO_ON, 0, vec![state]),
            Command::Successor { channel } => (kind::SUCCESSOR, 0, vec![channel]),
            Command::Predecessor { channel } => (kind::PREDECESSOR, 0, vec![channel]),
            Command::Commit { generation } => (kind::COMMIT, generation, Vec::new()),
            Command::Abandon { generation } => (kind::ABANDON, generation, Vec::new()),
            Command::ReloadFailed => (kind::RELOAD_FAILED, 0, Vec::new()),
            Command::Quit => (kind::QUIT, 0, Vec::new()),
            Command::Drain => (kind::DRAIN, 0, Vec::new()),
            Command::Terminate => (kind::TERMINATE, 0, Vec::new()),
            Command::Incomplete { .. } => return,
        };
        for chunk in descriptors.chunks(DESCRIPTORS_PER_PACKET) {
            let bytes = packet(kind::DESCRIPTORS, 0, b"");
            self.outgoing.push_back(Packet {
                bytes,
                descriptors: chunk.to_vec(),
            });
        }
        let bytes = packet(kind, generation, b"");
        self.outgoing.push_back(Packet {
            bytes,
            descriptors: Vec::new(),
        });
        self.flush();
    }

    /// Sends queued packets until the socket takes no more.
    pub(crate) fn flush(&mut self) {
        while let Some(packet) = self.outgoing.front() {
            match send_packet(self.socket.as_fd(), &packet.bytes, &packet.descriptors) {
                Ok(()) => drop(self.outgoing.pop_front()),
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::TOOMANYREFS) => return,
                Err(_) => return self.outgoing.clear(),
            }
        }
    }

    /// Whether [`MasterEnd::flush`] has something to do.
    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// The next report, if one is there. The end of the channel is the error `UnexpectedEof`; an
    /// invalid packet is `InvalidData`.
    pub(crate) fn receive(&self) -> io::Result<Option<WorkerReport>> {
        let mut bytes = vec![0; PACKET_SIZE_MAX];
        // No room for descriptors: the kernel closes whatever a worker attaches.
        let length = match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::empty()) {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((length, _)) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(Errno::CONNRESET) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => return Err(error.into()),
        };
        let (kind, generation, text) = bytes
            .get(..length)
            .and_then(parse)
            .ok_or(io::ErrorKind::InvalidData)?;
        match kind {
            kind::PREPARED => Ok(Some(WorkerReport::Prepared { generation })),
            kind::FINISHED => Ok(Some(WorkerReport::Finished { generation })),
            kind::COMMITTED => Ok(Some(WorkerReport::Committed { generation })),
            kind::WANTS_LOGS => Ok(Some(WorkerReport::WantsLogs)),
            kind::LEAVING => Ok(Some(WorkerReport::Leaving)),
            kind::HAS_DEVICES => Ok(Some(WorkerReport::HasDevices)),
            kind::FAILED => {
                let text = String::from_utf8_lossy(text).into_owned();
                Ok(Some(WorkerReport::Failed { generation, text }))
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The worker's end of the channel. Reads and writes block.
pub(crate) struct WorkerEnd {
    socket: OwnedFd,
    /// Descriptors received for the next command.
    arrived: Vec<OwnedFd>,
    /// Whether some of them were lost because this process has too many open files.
    missing: bool,
}

impl AsFd for WorkerEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl WorkerEnd {
    /// The worker's end of a channel made by [`pair`].
    pub(crate) fn new(socket: OwnedFd) -> WorkerEnd {
        WorkerEnd {
            socket,
            arrived: Vec::new(),
            missing: false,
        }
    }

    /// Sends a report to the master. Errors are ignored: the end of the master is detected by the
    /// channel.
    pub(crate) fn send(&self, report: &WorkerReport) {
        let bytes = match report {
            WorkerReport::Prepared { generation } => packet(kind::PREPARED, *generation, b""),
            WorkerReport::Finished { generation } => packet(kind::FINISHED, *generation, b""),
            WorkerReport::Committed { generation } => packet(kind::COMMITTED, *generation, b""),
            WorkerReport::WantsLogs => packet(kind::WANTS_LOGS, 0, b""),
            WorkerReport::Leaving => packet(kind::LEAVING, 0, b""),
            WorkerReport::HasDevices => packet(kind::HAS_DEVICES, 0, b""),
            WorkerReport::Failed { generation, text } => {
                packet(kind::FAILED, *generation, text.as_bytes())
            }
        };
        while send_packet(self.socket.as_fd(), &bytes, &[]) == Err(Errno::INTR) {}
    }

    /// Reads one packet; `None` if it contained descriptors only. The end of the channel is the
    /// error `UnexpectedEof`.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Command<OwnedFd>>> {
        let mut bytes = [0; 64];
        let (length, missing) = receive_packet(self.socket.as_fd(), &mut bytes, &mut self.arrived)?;
        self.missing |= missing;
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let (kind, generation, _) = bytes.get(..length).and_then(parse).ok_or_else(invalid)?;
        if kind == kind::DESCRIPTORS {
            return Ok(None);
        }
        let mut descriptors = std::mem::take(&mut self.arrived).into_iter();
        if std::mem::take(&mut self.missing) {
            return Ok(Some(Command::Incomplete { generation }));
        }
        Ok(Some(match kind {
            kind::PREPARE => Command::Prepare {
                generation,
                bundle: descriptors.next().ok_or_else(invalid)?,
                descriptors: descriptors.collect(),
            },
            kind::REOPEN => Command::Reopen {
                keys: descriptors.next().ok_or_else(invalid)?,
                descriptors: descriptors.collect(),
            },
            kind::DEVICES => Command::Devices {
                keys: descriptors.next().ok_or_else(invalid)?,
                descriptors: descriptors.collect(),
            },
            kind::SAVE => Command::Save {
                state: descriptors.next().ok_or_else(invalid)?,
            },
            kind::GO_ON => Command::GoOn {
                state: descriptors.next().ok_or_else(invalid)?,
            },
            kind::SUCCESSOR => Command::Successor {
                channel: descriptors.next().ok_or_else(invalid)?,
            },
            kind::PREDECESSOR => Command::Predecessor {
                channel: descriptors.next().ok_or_else(invalid)?,
            },
            kind::COMMIT => Command::Commit { generation },
            kind::ABANDON => Command::Abandon { generation },
            kind::RELOAD_FAILED => Command::ReloadFailed,
            kind::QUIT => Command::Quit,
            kind::DRAIN => Command::Drain,
            kind::TERMINATE => Command::Terminate,
            _ => return Err(invalid()),
        }))
    }
}

/// Encodes a packet: its kind, a generation, a text.
fn packet(kind: u8, generation: u64, text: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&generation.to_le_bytes());
    let room = PACKET_SIZE_MAX - bytes.len();
    bytes.extend_from_slice(text.get(..room).unwrap_or(text));
    bytes
}

/// Decodes a packet made by [`packet`].
fn parse(bytes: &[u8]) -> Option<(u8, u64, &[u8])> {
    let (kind, rest) = bytes.split_first()?;
    let (generation, text) = rest.split_first_chunk::<8>()?;
    Some((*kind, u64::from_le_bytes(*generation), text))
}

fn send_packet(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[Rc<OwnedFd>],
) -> Result<(), Errno> {
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_PACKET))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&borrowed));
    }
    let parts = [IoSlice::new(bytes)];
    rustix::net::sendmsg(socket, &parts, &mut ancillary, SendFlags::NOSIGNAL).map(|_| ())
}

/// Reads one packet: its length, and whether descriptors were lost because of the limit of open
/// files.
fn receive_packet(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    arrived: &mut Vec<OwnedFd>,
) -> io::Result<(usize, bool)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_PACKET))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(bytes)];
    let received =
        rustix::net::recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            arrived.extend(descriptors);
        }
    }
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((received.bytes, received.flags.contains(ReturnFlags::CTRUNC)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle;

    fn receive(end: &mut WorkerEnd) -> Command<OwnedFd> {
        loop {
            if let Some(command) = end.receive().unwrap() {
                return command;
            }
        }
    }

    #[test]
    fn more_descriptors_than_a_packet_takes_arrive_in_order() {
        let (mut master, worker) = pair().unwrap();
        let mut worker = WorkerEnd::new(worker);
        let texts: Vec<String> = (0..450)
            .map(|number| format!("descriptor {number}"))
            .collect();
        let seal = |text: &String| Rc::new(bundle::seal(text.as_bytes()).unwrap());
        let descriptors = texts.iter().map(seal).collect();
        let bundle = Rc::new(bundle::seal(b"bundle").unwrap());
        master.send(Command::Prepare {
            generation: 3,
            bundle,
            descriptors,
        });
        master.send(Command::Commit { generation: 3 });

        let Command::Prepare {
            generation: 3,
            bundle,
            descriptors,
        } = receive(&mut worker)
        else {
            panic!("not prepare");
        };
        assert_eq!(bundle::unseal(bundle).unwrap(), b"bundle");
        for (descriptor, text) in descriptors.into_iter().zip(&texts) {
            assert_eq!(bundle::unseal(descriptor).unwrap(), text.as_bytes());
        }
        assert!(matches!(
            receive(&mut worker),
            Command::Commit { generation: 3 }
        ));
    }

    #[test]
    fn a_slow_worker_does_not_stop_the_master() {
        let (mut master, worker) = pair().unwrap();
        let mut worker = WorkerEnd::new(worker);
        const COUNT: u64 = 10_000;
        for generation in 0..COUNT {
            master.send(Command::Commit { generation });
        }
        assert!(master.has_outgoing());
        for expected in 0..COUNT {
            let command = receive(&mut worker);
            assert!(matches!(command, Command::Commit { generation } if generation == expected));
            master.flush();
        }
        assert!(!master.has_outgoing());
    }

    #[test]
    fn reports_arrive_and_long_texts_are_cut() {
        let (master, worker) = pair().unwrap();
        let worker = WorkerEnd::new(worker);
        assert_eq!(master.receive().unwrap(), None);
        worker.send(&WorkerReport::Prepared { generation: 1 });
        worker.send(&WorkerReport::Failed {
            generation: 2,
            text: "x".repeat(100_000),
        });
        worker.send(&WorkerReport::Finished { generation: 3 });
        assert_eq!(
            master.receive().unwrap(),
            Some(WorkerReport::Prepared { generation: 1 })
        );
        let Some(WorkerReport::Failed {
            generation: 2,
            text,
        }) = master.receive().unwrap()
        else {
            panic!("not failed");
        };
        assert_eq!(text.len(), PACKET_SIZE_MAX - 9);
        assert_eq!(
            master.receive().unwrap(),
            Some(WorkerReport::Finished { generation: 3 })
        );
        drop(worker);
        assert_eq!(
            master.receive().unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }

    #[test]
    fn a_master_that_is_gone_is_the_end() {
        let (master, worker) = pair().unwrap();
        drop(master);
        let mut worker = WorkerEnd::new(worker);
        assert_eq!(
            worker.receive().unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        worker.send(&WorkerReport::Prepared { generation: 1 });
    }

    #[test]
    fn nonsense_is_an_error() {
        let (master, worker) = pair().unwrap();
        for bytes in [
            &b"\x63"[..],
            b"\x63\0\0\0\0\0\0\0\0",
            b"\x01\0\0\0\0\0\0\0\0",
        ] {
            send_packet(worker.as_fd(), bytes, &[]).unwrap();
            assert_eq!(
                master.receive().unwrap_err().kind(),
                io::ErrorKind::InvalidData
            );
        }
    }
}
