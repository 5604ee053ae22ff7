//! The filter, an XDP program: it decides which frames of an interface go to one of our queues, and
//! which to the kernel.
//!
//! ```text
//!  frame ─▶ IPv4 without options, whole, TCP? ─no──────────────────────────▶ kernel (1)
//!              ▼
//!           address and port of a listener of ours? ─no────────────────────▶ kernel
//!              ▼
//!           SYN ─▶ a listener that takes new connections? ─no──────────────▶ kernel
//!            │     a checksum that the sender's card was to complete? ─yes─▶ kernel, counted
//!              ▼
//!           a socket of the kernel's that has this connection? ─yes────────▶ kernel
//!              ▼
//!           the socket at this receive queue; without one ─────────────────▶ kernel
//! ```
//!
//! (1) Except an ICMP message that a segment was too large for the next link (fragmentation
//! needed). It is treated like the segment that it quotes, with both ends exchanged.
//!
//! A peer on the same machine leaves checksums to its card, although the segment never passes one.
//! Whether such a segment is intact cannot be verified here, so its SYN goes to the kernel, which
//! then has the connection and gets all of its later segments, too. By chance one valid SYN in
//! 65,536 has such a checksum; the kernel's listener serves its connection as well.
//!
//! The program is assembled here from eBPF instructions, because most servers have no compiler for
//! them. Throughout, `r6` is the `xdp_md` context, `r7` the first byte of the frame, `r8` the end
//! of the frame, and `r9` the listener's entry in the map.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::bpf::{BpfMap, BpfProgram, Instruction, MapKind};

/// Maximum number of addresses with ports in the map of listeners.
pub(super) const LISTENERS_MAX: u32 = 1024;

/// Maximum number of receive queues of an interface that can have a socket.
pub(super) const QUEUES_MAX: u32 = 64;

/// The only counter: SYNs that went to the kernel because their checksums were partial.
const PARTIAL_CHECKSUMS: u32 = 0;
const COUNTERS: u32 = 1;

/// Which connections to an address go to our queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taking {
    /// New connections as well as established ones.
    All,
    /// Only our established connections; new ones go to the kernel.
    Established,
}

impl Taking {
    /// The value in the map of listeners.
    fn word(self) -> u32 {
        match self {
            Taking::All => 1,
            Taking::Established => 2,
        }
    }
}

/// The maps that the filter reads.
#[derive(Debug)]
pub(super) struct Maps {
    /// The [`Taking`] of each address, by [`key_of`].
    listeners: BpfMap<8, 4>,
    /// The AF_XDP sockets, by receive queue.
    sockets: BpfMap<4, 4>,
    /// Counters, by index.
    counters: BpfMap<4, 8>,
}

impl Maps {
    /// Creates empty maps, with room for `listeners_max` addresses. With empty maps every frame
    /// goes to the kernel.
    ///
    /// # Errors
    /// `PermissionDenied` if the process lacks the capabilities for it.
    pub(super) fn new(listeners_max: u32) -> io::Result<Maps> {
        Ok(Maps {
            listeners: BpfMap::new(MapKind::Hash, "tidegate_listen", listeners_max)?,
            sockets: BpfMap::new(MapKind::Sockets, "tidegate_queues", QUEUES_MAX)?,
            counters: BpfMap::new(MapKind::Array, "tidegate_counts", COUNTERS)?,
        })
    }

    /// Sets which connections to `address` go to our queues.
    ///
    /// # Errors
    /// `E2BIG` if there are too many addresses.
    pub(super) fn listen(&self, address: SocketAddrV4, taking: Taking) -> io::Result<()> {
        self.listeners
            .put(key_of(address), taking.word().to_ne_bytes())
    }

    /// Directs frames of a receive queue to this socket, as long as the socket is open.
    ///
    /// # Errors
    /// Those of `bpf()`, for example if `socket` is not an AF_XDP socket.
    pub(super) fn hand(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let number = socket.as_raw_fd();
        self.sockets.put(queue.to_ne_bytes(), number.to_ne_bytes())
    }

    /// The number of SYNs that went to the kernel because their checksums were partial.
    pub(super) fn partial_checksums(&self) -> u64 {
        let count = self.counters.find(PARTIAL_CHECKSUMS.to_ne_bytes());
        count.map_or(0, u64::from_ne_bytes)
    }

    /// Loads the filter with these maps into the kernel.
    ///
    /// # Errors
    /// Those of `bpf()`; see [`BpfProgram::load`].
    pub(super) fn load(&self) -> io::Result<BpfProgram> {
        BpfProgram::load(&self.instructions(), "tidegate_filter")
    }

    fn instructions(&self) -> Vec<Instruction> {
        let mut program = Assembler::default();
        find_listener(&mut program, self.listeners.as_fd());
        look_at_syn(&mut program, self.counters.as_fd());
        look_at_icmp(&mut program, self.listeners.as_fd());
        look_for_kernel_socket(&mut program);
        redirect(&mut program, self.sockets.as_fd());
        program.finish()
    }
}

/// The key of an address in the map of listeners: the address and the port in network byte order,
/// and two zeros.
fn key_of(address: SocketAddrV4) -> [u8; 8] {
    let [a, b, c, d] = address.ip().octets();
    let [high, low] = address.port().to_be_bytes();
    [a, b, c, d, high, low, 0, 0]
}

/// Offsets of fields in an Ethernet frame with IPv4 without options, and TCP.
mod at {
    pub(super) const ETHER_TYPE: i16 = 12;
    pub(super) const VERSION: i16 = 14;
    pub(super) const TOTAL_LENGTH: i16 = 16;
    pub(super) const FRAGMENT: i16 = 20;
    pub(super) const PROTOCOL: i16 = 23;
    pub(super) const SOURCE: i16 = 26;
    pub(super) const DESTINATION: i16 = 30;
    pub(super) const SOURCE_PORT: i16 = 34;
    pub(super) const DESTINATION_PORT: i16 = 36;
    pub(super) const FLAGS: i16 = 47;
    pub(super) const CHECKSUM: i16 = 50;
    pub(super) const END: i32 = 54;
}

/// Offsets of fields in a frame with an ICMP message, and in the segment that the message quotes.
mod quoted {
    pub(super) const KIND: i16 = 34;
    pub(super) const VERSION: i16 = 42;
    pub(super) const PROTOCOL: i16 = 51;
    pub(super) const SOURCE: i16 = 54;
    pub(super) const DESTINATION: i16 = 58;
    pub(super) const SOURCE_PORT: i16 = 62;
    pub(super) const DESTINATION_PORT: i16 = 64;
    pub(super) const END: i32 = 70;
}

/// The numbers of the kernel's helper functions.
mod function {
    pub(super) const MAP_LOOKUP: i32 = 1;
    pub(super) const REDIRECT_MAP: i32 = 51;
    pub(super) const RELEASE_SOCKET: i32 = 86;
    pub(super) const FIND_TCP_SOCKET: i32 = 99;
}

/// `XDP_PASS`: the frame goes to the kernel.
const PASS: i32 = 2;

/// Offsets of fields in `struct xdp_md` and `struct bpf_sock`.
const RECORD_DATA: i16 = 0;
const RECORD_DATA_END: i16 = 4;
const RECORD_QUEUE: i16 = 16;
const SOCKET_STATE: i16 = 72;

/// `TCP_LISTEN`: the state of a listening socket.
const LISTENING: i32 = 10;

const SYN: i32 = 0x02;
const SYN_AND_ACK: i32 = 0x12;

/// Offsets of variables on the program's stack, from the frame pointer `r10`.
const KEY: i16 = -8;
const TUPLE: i16 = -24;
const COUNTER: i16 = -28;
const TUPLE_LENGTH: i32 = 12;

/// Passes every frame to the kernel that is not an unfragmented TCP segment over IPv4 without
/// options, or not for one of our listeners. Leaves the listener's entry in `r9`.
fn find_listener(program: &mut Assembler, listeners: BorrowedFd<'_>) {
    use Register::*;
    program.copy(R6, R1);
    program.load(AccessWidth::Word, R7, R6, RECORD_DATA);
    program.load(AccessWidth::Word, R8, R6, RECORD_DATA_END);
    program.copy(R2, R7);
    program.add(R2, at::END);
    program.jump_if_greater(R2, R8, Label::Pass);
    program.load(AccessWidth::Half, R2, R7, at::ETHER_TYPE);
    program.jump_unless(R2, i32::from(0x0800_u16.to_be()), Label::Pass);
    program.load(AccessWidth::Byte, R2, R7, at::VERSION);
    program.jump_unless(R2, 0x45, Label::Pass);
    program.load(AccessWidth::Byte, R2, R7, at::PROTOCOL);
    program.jump_if(R2, 1, Label::Icmp);
    program.jump_unless(R2, 6, Label::Pass);
    program.load(AccessWidth::Half, R2, R7, at::FRAGMENT);
    program.and(R2, i32::from(0x3fff_u16.to_be()));
    program.jump_unless(R2, 0, Label::Pass);

    look_up(program, listeners, at::DESTINATION, at::DESTINATION_PORT);
    program.load(AccessWidth::Word, R9, R0, 0);
}

/// Looks up the address and the port at these offsets in the map of listeners. Passes the frame to
/// the kernel if there is no entry; otherwise `r0` points to it.
fn look_up(program: &mut Assembler, listeners: BorrowedFd<'_>, address: i16, port: i16) {
    use Register::*;
    program.load(AccessWidth::Word, R2, R7, address);
    program.store(AccessWidth::Word, R10, KEY, R2);
    program.load(AccessWidth::Half, R2, R7, port);
    program.store(AccessWidth::Half, R10, KEY + 4, R2);
    program.set(R2, 0);
    program.store(AccessWidth::Half, R10, KEY + 6, R2);
    program.copy(R2, R10);
    program.add(R2, i32::from(KEY));
    program.set_map(R1, listeners);
    program.call(function::MAP_LOOKUP);
    program.jump_if(R0, 0, Label::Pass);
}

/// Handles the ICMP message "fragmentation needed". The quoted segment was sent by us, so its
/// source is our address.
fn look_at_icmp(program: &mut Assembler, listeners: BorrowedFd<'_>) {
    use Register::*;
    program.label(Label::Icmp);
    program.copy(R2, R7);
    program.add(R2, quoted::END);
    program.jump_if_greater(R2, R8, Label::Pass);
    program.load(AccessWidth::Half, R2, R7, quoted::KIND);
    program.jump_unless(R2, i32::from(0x0304_u16.to_be()), Label::Pass);
    program.load(AccessWidth::Byte, R2, R7, quoted::VERSION);
    program.jump_unless(R2, 0x45, Label::Pass);
    program.load(AccessWidth::Byte, R2, R7, quoted::PROTOCOL);
    program.jump_unless(R2, 6, Label::Pass);
    look_up(program, listeners, quoted::SOURCE, quoted::SOURCE_PORT);
    store_tuple(
        program,
        [
            quoted::DESTINATION,
            quoted::SOURCE,
            quoted::DESTINATION_PORT,
            quoted::SOURCE_PORT,
        ],
    );
    program.jump(Label::Lookup);
}

/// Stores the addresses and ports at these offsets on the stack as a `bpf_sock_tuple`: the
/// addresses of the peer and of this host, then their ports.
fn store_tuple(program: &mut Assembler, places: [i16; 4]) {
    use Register::*;
    let [source, destination, source_port, destination_port] = places;
    for (to, size, from) in [
        (0, AccessWidth::Word, source),
        (4, AccessWidth::Word, destination),
        (8, AccessWidth::Half, source_port),
        (10, AccessWidth::Half, destination_port),
    ] {
        program.load(size, R2, R7, from);
        program.store(size, R10, TUPLE + to, R2);
    }
}

/// Passes a SYN to the kernel if the listener takes no new connections, or if the checksum is
/// partial: then it covers only the pseudo header, as a sender leaves it for its card to complete.
fn look_at_syn(program: &mut Assembler, counters: BorrowedFd<'_>) {
    use Register::*;
    program.load(AccessWidth::Byte, R1, R7, at::FLAGS);
    program.and(R1, SYN_AND_ACK);
    program.jump_unless(R1, SYN, Label::Known);
    program.jump_unless(R9, Taking::All.word().cast_signed(), Label::Pass);

    program.load(AccessWidth::Word, R1, R7, at::SOURCE);
    program.load(AccessWidth::Word, R2, R7, at::DESTINATION);
    program.add_register(R1, R2);
    program.load(AccessWidth::Half, R2, R7, at::TOTAL_LENGTH);
    program.swap_network_half(R2);
    program.add(R2, -20); // without the IPv4 header
    program.swap_network_half(R2);
    program.add_register(R1, R2);
    program.add(R1, i32::from(6_u16.to_be()));
    // The sum has up to 34 bits: it is folded to 32 bits, then to 16, and once more for a last
    // carry.
    program.fold(R1, R2, 32);
    program.fold(R1, R2, 16);
    program.fold(R1, R2, 16);
    program.load(AccessWidth::Half, R2, R7, at::CHECKSUM);
    program.jump_unless_equal(R1, R2, Label::Known);

    program.set(R2, PARTIAL_CHECKSUMS.cast_signed());
    program.store(AccessWidth::Word, R10, COUNTER, R2);
    program.copy(R2, R10);
    program.add(R2, i32::from(COUNTER));
    program.set_map(R1, counters);
    program.call(function::MAP_LOOKUP);
    program.jump_if(R0, 0, Label::Pass);
    program.set(R1, 1);
    program.add_atomically(R0, 0, R1);
    program.jump(Label::Pass);
}

/// Passes the frame to the kernel if a kernel socket has its connection. A listening kernel socket
/// does not count, since there is one at each of our listeners' addresses.
fn look_for_kernel_socket(program: &mut Assembler) {
    use Register::*;
    program.label(Label::Known);
    store_tuple(
        program,
        [
            at::SOURCE,
            at::DESTINATION,
            at::SOURCE_PORT,
            at::DESTINATION_PORT,
        ],
    );
    program.label(Label::Lookup);
    program.copy(R1, R6);
    program.copy(R2, R10);
    program.add(R2, i32::from(TUPLE));
    program.set(R3, TUPLE_LENGTH);
    program.set(R4, -1); // the interface's own network namespace
    program.set(R5, 0);
    program.call(function::FIND_TCP_SOCKET);
    program.jump_if(R0, 0, Label::Redirect);
    program.load(AccessWidth::Word, R9, R0, SOCKET_STATE);
    program.copy(R1, R0);
    program.call(function::RELEASE_SOCKET);
    program.jump_unless(R9, LISTENING, Label::Pass);
}

/// Directs the frame to the socket of the receive queue that it arrived at.
fn redirect(program: &mut Assembler, sockets: BorrowedFd<'_>) {
    use Register::*;
    program.label(Label::Redirect);
    program.load(AccessWidth::Word, R2, R6, RECORD_QUEUE);
    program.set_map(R1, sockets);
    program.set(R3, PASS); // where there is none
    program.call(function::REDIRECT_MAP);
    program.exit();
    program.label(Label::Pass);
    program.set(R0, PASS);
    program.exit();
}

/// A register of eBPF.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Register {
    R0 = 0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// The width of a load or store, as instructions encode it: four, two or one bytes.
#[derive(Clone, Copy)]
#[repr(u8)]
enum AccessWidth {
    Word = 0x00,
    Half = 0x08,
    Byte = 0x10,
}

/// Targets of jumps. All jumps are forward.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Icmp,
    Known,
    Lookup,
    Redirect,
    Pass,
}

/// Collects instructions, and resolves jumps to labels.
#[derive(Default)]
struct Assembler {
    instructions: Vec<Instruction>,
    /// The indexes of jumps whose label has not been placed yet.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn push(&mut self, code: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        self.instructions.push(Instruction {
            code,
            registers: to as u8 | (from as u8) << 4,
            offset,
            immediate,
        });
    }

    fn copy(&mut self, to: Register, from: Register) {
        self.push(0xbf, to, from, 0, 0);
    }

    fn set(&mut self, to: Register, value: i32) {
        self.push(0xb7, to, Register::R0, 0, value);
    }

    fn add(&mut self, to: Register, value: i32) {
        self.push(0x07, to, Register::R0, 0, value);
    }

    fn add_register(&mut self, to: Register, from: Register) {
        self.push(0x0f, to, from, 0, 0);
    }

    fn and(&mut self, to: Register, value: i32) {
        self.push(0x57, to, Register::R0, 0, value);
    }

    /// Adds the bits of `sum` above the lower `bits` to the lower ones. Overwrites `spare`.
    fn fold(&mut self, sum: Register, spare: Register, bits: i32) {
        self.copy(spare, sum);
        self.push(0x77, spare, Register::R0, 0, bits);
        match bits {
            // A 32-bit move clears the upper half.
            32 => self.push(0xbc, sum, sum, 0, 0),
            _ => self.and(sum, 0xffff),
        }
        self.add_register(sum, spare);
    }

    /// Converts the lower 16 bits of a register between network and machine byte order.
    fn swap_network_half(&mut self, of: Register) {
        self.push(0xdc, of, Register::R0, 0, 16);
    }

    fn load(&mut self, size: AccessWidth, to: Register, from: Register, offset: i16) {
        self.push(0x61 | size as u8, to, from, offset, 0);
    }

    fn store(&mut self, size: AccessWidth, to: Register, offset: i16, from: Register) {
        self.push(0x63 | size as u8, to, from, offset, 0);
    }

    /// Adds `from` to eight bytes in memory atomically, since several processors may run the
    /// program.
    fn add_atomically(&mut self, to: Register, offset: i16, from: Register) {
        self.push(0xdb, to, from, offset, 0);
    }

    fn set_map(&mut self, to: Register, map: BorrowedFd<'_>) {
        // One instruction of double length. The source register 1 marks the immediate value as a
        // map's descriptor.
        self.push(0x18, to, Register::R1, 0, map.as_raw_fd());
        self.push(0x00, Register::R0, Register::R0, 0, 0);
    }

    fn call(&mut self, function: i32) {
        self.push(0x85, Register::R0, Register::R0, 0, function);
    }

    fn exit(&mut self) {
        self.push(0x95, Register::R0, Register::R0, 0, 0);
    }

    fn jump(&mut self, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(0x05, Register::R0, Register::R0, 0, 0);
    }

    fn jump_if(&mut self, register: Register, value: i32, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(0x15, register, Register::R0, 0, value);
    }

    fn jump_unless(&mut self, register: Register, value: i32, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(0x55, register, Register::R0, 0, value);
    }

    fn jump_unless_equal(&mut self, one: Register, other: Register, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(0x5d, one, other, 0, 0);
    }

    fn jump_if_greater(&mut self, one: Register, other: Register, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(0x2d, one, other, 0, 0);
    }

    /// Places a label before the next instruction.
    fn label(&mut self, label: Label) {
        let here = self.instructions.len();
        let instructions = &mut self.instructions;
        self.jumps.retain(|(from, to)| {
            if *to != label {
                return true;
            }
            if let Some(jump) = instructions.get_mut(*from) {
                jump.offset = i16::try_from(here - from - 1).unwrap_or(i16::MAX);
            }
            false
        });
    }

    fn finish(self) -> Vec<Instruction> {
        debug_assert!(self.jumps.is_empty(), "a label is nowhere");
        self.instructions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdp::{socket, umem};
    use netstack::wire::checksum::Sum;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    const OURS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 7, 0, 1), 80);
    const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 7, 0, 2), 40_000);
    const TO_US: u32 = 4;
    const TO_KERNEL: u32 = PASS as u32;
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;

    /// The filter over maps with a socket at the queue that trials come by.
    struct Filter {
        maps: Maps,
        program: BpfProgram,
        _socket: OwnedFd,
    }

    impl Filter {
        /// None where nothing can be tried, for want of capabilities.
        fn new() -> Option<Filter> {
            let maps = match Maps::new(LISTENERS_MAX) {
                Ok(maps) => maps,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    eprintln!("skipped: this process may not load BPF programs ({error})");
                    return None;
                }
                Err(error) => panic!("{error}"),
            };
            let program = maps.load().unwrap();
            let socket = socket::make(&umem::file().unwrap()).unwrap();
            maps.hand(0, socket.as_fd()).unwrap();
            Some(Filter {
                maps,
                program,
                _socket: socket,
            })
        }

        fn verdict(&self, frame: &[u8]) -> u32 {
            self.program.try_on(frame).unwrap()
        }
    }

    /// A segment without data, whose checksum nobody looks at.
    fn segment(from: SocketAddrV4, to: SocketAddrV4, flags: u8) -> Vec<u8> {
        let mut frame = vec![0_u8; 54];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&40_u16.to_be_bytes());
        frame[22] = 64;
        frame[23] = 6;
        frame[26..30].copy_from_slice(&from.ip().octets());
        frame[30..34].copy_from_slice(&to.ip().octets());
        frame[34..36].copy_from_slice(&from.port().to_be_bytes());
        frame[36..38].copy_from_slice(&to.port().to_be_bytes());
        frame[46] = 0x50;
        frame[47] = flags;
        frame[50..52].copy_from_slice(&[0x12, 0x34]);
        frame
    }

    #[test]
    fn only_whole_segments_for_a_listener_of_ours_are_taken() {
        let Some(filter) = Filter::new() else { return };
        let frame = segment(CLIENT, OURS, ACK);
        assert_eq!(filter.verdict(&frame), TO_KERNEL, "nobody listens");
        filter.maps.listen(OURS, Taking::All).unwrap();
        assert_eq!(filter.verdict(&frame), TO_US);
        assert_eq!(filter.verdict(&frame[..53]), TO_KERNEL, "cut off");
        let changes: [(&str, usize, u8); 8] = [
            ("another port", 37, 81),
            ("another address", 33, 9),
            ("ARP", 13, 0x06),
            ("IPv6", 12, 0x86),
            ("options of IPv4", 14, 0x46),
            ("UDP", 23, 17),
            ("the first fragment", 20, 0x20),
            ("a later fragment", 21, 0x01),
        ];
        for (name, at, byte) in changes {
            let mut frame = frame.clone();
            frame[at] = byte;
            assert_eq!(filter.verdict(&frame), TO_KERNEL, "{name}");
        }
        let mut whole = frame.clone();
        whole[20] = 0x40; // that it must not be cut is no reason
        assert_eq!(filter.verdict(&whole), TO_US);
    }

    #[test]
    fn without_a_socket_everything_goes_to_the_kernel() {
        let Some(filter) = Filter::new() else { return };
        filter.maps.listen(OURS, Taking::All).unwrap();
        let frame = segment(CLIENT, OURS, ACK);
        let Filter {
            maps,
            program,
            _socket,
        } = filter;
        drop(_socket);
        drop(maps);
        assert_eq!(program.try_on(&frame).unwrap(), TO_KERNEL);
    }

    #[test]
    fn a_listener_that_takes_no_new_connections_keeps_those_that_stand() {
        let Some(filter) = Filter::new() else { return };
        filter.maps.listen(OURS, Taking::Established).unwrap();
        let verdict = |flags| filter.verdict(&segment(CLIENT, OURS, flags));
        assert_eq!((verdict(SYN), verdict(ACK)), (TO_KERNEL, TO_US));
        filter.maps.listen(OURS, Taking::All).unwrap();
        assert_eq!((verdict(SYN), verdict(ACK)), (TO_US, TO_US));
    }

    #[test]
    fn a_syn_whose_checksum_is_not_complete_is_the_kernels() {
        let Some(filter) = Filter::new() else { return };
        filter.maps.listen(OURS, Taking::All).unwrap();
        for port in [1_u16, 443, 40_000, 65_535] {
            // Addresses whose sums carry, too.
            for ip in [[10, 7, 0, 2], [255, 255, 255, 254]] {
                let from = SocketAddrV4::new(ip.into(), port);
                let mut frame = segment(from, OURS, SYN);
                let mut pseudo = frame[26..34].to_vec();
                pseudo.extend([0, 6, 0, 20]);
                let sum = !Sum::of(&pseudo).checksum();
                frame[50..52].copy_from_slice(&sum.to_be_bytes());
                let before = filter.maps.partial_checksums();
                assert_eq!(filter.verdict(&frame), TO_KERNEL, "{from}");
                assert_eq!(filter.maps.partial_checksums(), before + 1);
                // Of another segment it says nothing.
                frame[47] = ACK;
                assert_eq!(filter.verdict(&frame), TO_US, "{from}");
                frame[47] = SYN;
                frame[51] ^= 1;
                assert_eq!(filter.verdict(&frame), TO_US, "{from}");
            }
        }
    }

    #[test]
    fn a_routers_word_goes_where_the_segment_that_it_quotes_came_from() {
        let Some(filter) = Filter::new() else { return };
        filter.maps.listen(OURS, Taking::All).unwrap();
        let segment = segment(OURS, CLIENT, ACK);
        let mut frame = segment[..34].to_vec();
        frame[23] = 1;
        frame[30..34].copy_from_slice(&OURS.ip().octets());
        frame.extend([3, 4, 0, 0, 0, 0, 0x05, 0x14]);
        frame.extend(&segment[14..42]);
        assert_eq!(filter.verdict(&frame), TO_US);
        assert_eq!(filter.verdict(&frame[..69]), TO_KERNEL, "cut off");
        for (name, at, byte) in [
            ("another kind", 34, 8),
            ("another reason", 35, 1),
            ("about UDP", 51, 17),
            ("about another port", 63, 81),
            ("about another host", 57, 9),
        ] {
            let mut frame = frame.clone();
            frame[at] = byte;
            assert_eq!(filter.verdict(&frame), TO_KERNEL, "{name}");
        }
    }

    #[test]
    fn connections_of_the_kernels_stay_there() {
        let Some(filter) = Filter::new() else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let SocketAddr::V4(address) = listener.local_addr().unwrap() else {
            panic!("of another family");
        };
        let client = TcpStream::connect(address).unwrap();
        let SocketAddr::V4(peer) = client.local_addr().unwrap() else {
            panic!("of another family");
        };
        let _served = listener.accept().unwrap();
        filter.maps.listen(address, Taking::All).unwrap();
        for flags in [ACK, SYN] {
            let theirs = segment(peer, address, flags);
            assert_eq!(filter.verdict(&theirs), TO_KERNEL);
            let other = SocketAddrV4::new(*peer.ip(), peer.port() ^ 1);
            let new = segment(other, address, flags);
            assert_eq!(filter.verdict(&new), TO_US, "that it listens is no reason");
        }
    }
}
