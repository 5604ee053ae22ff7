//! The bpf(2) calls that a filter needs: creating maps, loading a program, attaching it to an
//! interface by a link, and a test run.
//!
//! Each map, program and link is represented by a descriptor. The kernel frees the object with its
//! last descriptor, and a freed link detaches its program.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Commands, as `linux/bpf.h` numbers them.
const MAP_CREATE: u32 = 0;
const MAP_LOOKUP: u32 = 1;
const MAP_UPDATE: u32 = 2;
const PROGRAM_LOAD: u32 = 5;
#[cfg(test)]
const PROGRAM_RUN: u32 = 10;
const OBJECT_INFO: u32 = 15;
const LINK_CREATE: u32 = 28;
const LINK_UPDATE: u32 = 29;
const LINK_BY_ID: u32 = 30;

/// `BPF_PROG_TYPE_XDP`, the type of the program.
const PROGRAM_XDP: u32 = 6;
/// `BPF_XDP`, the type of attachment.
const ATTACH_XDP: u32 = 37;

/// Size of the buffer for the verifier's log of a rejected program, in bytes.
const VERDICT_MAX: usize = 64 * 1024;

/// The type of a BPF map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapKind {
    /// Any keys (`BPF_MAP_TYPE_HASH`).
    Hash,
    /// Keys are numbers from 0 on (`BPF_MAP_TYPE_ARRAY`).
    Array,
    /// AF_XDP sockets by number (`BPF_MAP_TYPE_XSKMAP`).
    Sockets,
}

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attach {
    /// In the driver, before the kernel allocates a packet for the frame.
    Native,
    /// After the driver, for drivers without XDP support.
    Generic,
}

/// One eBPF instruction, in the kernel's layout (`struct bpf_insn`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) code: u8,
    /// The destination register in the lower four bits, the source register in the upper four.
    pub(super) registers: u8,
    pub(super) offset: i16,
    pub(super) immediate: i32,
}

/// Attributes of `BPF_MAP_CREATE`.
#[repr(C)]
#[derive(Default)]
struct CreateMap {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries_max: u32,
    flags: u32,
    inner_map: u32,
    numa_node: u32,
    name: [u8; 16],
}

/// Attributes of `BPF_MAP_LOOKUP_ELEM` and `BPF_MAP_UPDATE_ELEM`.
#[repr(C)]
struct MapElement {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Attributes of `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct LoadProgram {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

/// Attributes of `BPF_PROG_TEST_RUN`.
#[cfg(test)]
#[repr(C)]
#[derive(Default)]
struct RunProgram {
    program: u32,
    verdict: u32,
    in_size: u32,
    out_size: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
}

/// Attributes of `BPF_LINK_CREATE`.
#[repr(C)]
struct CreateLink {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// Attributes of `BPF_OBJ_GET_INFO_BY_FD`.
#[repr(C)]
struct ObjectInfo {
    object: u32,
    length: u32,
    info: u64,
}

/// The start of `struct bpf_link_info`; the kernel fills as much of it as there is room for.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
}

/// Attributes of `BPF_LINK_GET_FD_BY_ID`.
#[repr(C)]
#[derive(Default)]
struct LinkById {
    id: u32,
    next: u32,
    open_flags: u32,
}

/// Attributes of `BPF_LINK_UPDATE`.
#[repr(C)]
struct UpdateLink {
    link: u32,
    program: u32,
    flags: u32,
    program_before: u32,
}

/// # Safety
/// `T` is the attribute structure of the command, and every address in it points to as much memory
/// as the command reads or writes there.
unsafe fn bpf<T>(command: u32, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: the attributes live until the call returns, and their size is given; the caller
    // promises the rest.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            size_of::<T>(),
        )
    };
    match result {
        0.. => Ok(i32::try_from(result).unwrap_or(i32::MAX)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes ownership of the descriptor that a successful call has returned.
fn owned(number: i32) -> OwnedFd {
    // SAFETY: the kernel has just created this descriptor for this process, and nothing else owns
    // it.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// The number of a descriptor.
fn number(descriptor: &impl AsFd) -> u32 {
    descriptor.as_fd().as_raw_fd().cast_unsigned()
}

/// The address of a value, for the kernel.
fn address<T: ?Sized>(of: &T) -> u64 {
    std::ptr::from_ref(of).cast::<u8>().addr() as u64
}

/// An object's name for the kernel: the first 15 bytes of `text`, null-terminated.
fn named(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    name.iter_mut()
        .zip(text.bytes().take(15))
        .for_each(|(to, byte)| *to = byte);
    name
}

/// A map with keys of `KEY` bytes and values of `VALUE` bytes.
#[derive(Debug)]
pub(super) struct BpfMap<const KEY: usize, const VALUE: usize>(OwnedFd);

impl<const KEY: usize, const VALUE: usize> BpfMap<KEY, VALUE> {
    /// Creates an empty map.
    ///
    /// # Errors
    /// `PermissionDenied` if the process lacks the capabilities for it.
    pub(super) fn new(kind: MapKind, name: &str, entries_max: u32) -> io::Result<Self> {
        let mut attributes = CreateMap {
            kind: match kind {
                MapKind::Hash => 1,
                MapKind::Array => 2,
                MapKind::Sockets => 17,
            },
            key_size: KEY as u32,
            value_size: VALUE as u32,
            entries_max,
            name: named(name),
            ..CreateMap::default()
        };
        // SAFETY: attributes of this command, without addresses.
        unsafe { bpf(MAP_CREATE, &mut attributes) }.map(|made| BpfMap(owned(made)))
    }

    /// Stores a value under `key`, replacing the previous one.
    ///
    /// # Errors
    /// Those of `bpf()`: `E2BIG` if the map is full.
    pub(super) fn put(&self, key: [u8; KEY], value: [u8; VALUE]) -> io::Result<()> {
        let mut attributes = self.element(&key, address(&value));
        // SAFETY: the key and the value have the sizes that the map was created with, and outlive
        // the call.
        unsafe { bpf(MAP_UPDATE, &mut attributes) }.map(drop)
    }

    /// The value under `key`.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub(super) fn find(&self, key: [u8; KEY]) -> io::Result<[u8; VALUE]> {
        let mut value = [0; VALUE];
        let mut attributes = self.element(&key, std::ptr::from_mut(&mut value).addr() as u64);
        // SAFETY: as for `put`; the kernel writes `VALUE` bytes to `value`.
        unsafe { bpf(MAP_LOOKUP, &mut attributes) }.map(|_| value)
    }

    /// The attributes for an operation on one entry; `value` is the address of its value.
    fn element(&self, key: &[u8; KEY], value: u64) -> MapElement {
        MapElement {
            map: number(&self.0),
            padding: 0,
            key: address(key),
            value,
            flags: 0,
        }
    }
}

impl<const KEY: usize, const VALUE: usize> AsFd for BpfMap<KEY, VALUE> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A program that the kernel has verified and loaded.
#[derive(Debug)]
pub(super) struct BpfProgram(OwnedFd);

impl BpfProgram {
    /// Loads a program, which the kernel verifies first.
    ///
    /// # Errors
    /// If the kernel refuses the command of `bpf(2)`. For a program that the verifier rejects, the text includes the last lines
    /// of the verifier's log.
    pub(super) fn load(instructions: &[Instruction], name: &str) -> io::Result<BpfProgram> {
        let mut attributes = LoadProgram {
            kind: PROGRAM_XDP,
            count: u32::try_from(instructions.len()).unwrap_or(u32::MAX),
            instructions: address(instructions),
            license: address(c"Dual MIT/GPL".to_bytes_with_nul()),
            name: named(name),
            attach_type: ATTACH_XDP,
            ..LoadProgram::default()
        };
        // SAFETY: `count` is the number of instructions, and the license is null-terminated.
        let refused = match unsafe { bpf(PROGRAM_LOAD, &mut attributes) } {
            Ok(made) => return Ok(BpfProgram(owned(made))),
            Err(error) => error,
        };
        // Producing the log costs time, so it is requested only after a rejection.
        let mut said = vec![0_u8; VERDICT_MAX];
        attributes.log_level = 1;
        attributes.log_size = VERDICT_MAX as u32;
        attributes.log = said.as_mut_ptr().addr() as u64;
        // SAFETY: as above; the kernel writes at most `log_size` bytes to the log.
        match unsafe { bpf(PROGRAM_LOAD, &mut attributes) } {
            Ok(made) => Ok(BpfProgram(owned(made))),
            Err(_) => {
                let text = said.split(|byte| *byte == 0).next().unwrap_or_default();
                let text = String::from_utf8_lossy(text);
                let last = text.trim_end().lines().rev().take(3).collect::<Vec<_>>();
                let last = last.into_iter().rev().collect::<Vec<_>>().join("; ");
                if last.is_empty() {
                    Err(refused)
                } else {
                    Err(io::Error::new(refused.kind(), format!("{refused}: {last}")))
                }
            }
        }
    }

    /// Attaches the program to an interface. It stays attached as long as the returned descriptor
    /// of the link is open.
    ///
    /// # Errors
    /// `EBUSY` if another program is attached, `EOPNOTSUPP` if the driver does not support XDP.
    pub(super) fn attach(&self, interface: u32, how: Attach) -> io::Result<OwnedFd> {
        let mut attributes = CreateLink {
            program: number(&self.0),
            interface,
            attach_type: ATTACH_XDP,
            flags: match how {
                Attach::Generic => 1 << 1,
                Attach::Native => 1 << 2,
            },
        };
        // SAFETY: attributes of this command, without addresses.
        unsafe { bpf(LINK_CREATE, &mut attributes) }.map(owned)
    }

    /// Runs the program on a frame, and returns its verdict as the kernel numbers it.
    ///
    /// # Errors
    /// If the kernel refuses the command of `bpf(2)`.
    #[cfg(test)]
    pub(super) fn try_on(&self, frame: &[u8]) -> io::Result<u32> {
        let mut attributes = RunProgram {
            program: number(&self.0),
            in_size: u32::try_from(frame.len()).unwrap_or(u32::MAX),
            data_in: address(frame),
            repeat: 1,
            ..RunProgram::default()
        };
        // SAFETY: `in_size` is the length of the frame; the kernel writes only to the attributes.
        unsafe { bpf(PROGRAM_RUN, &mut attributes) }?;
        Ok(attributes.verdict)
    }
}

/// The kernel's ID of a link.
///
/// # Errors
/// If the kernel refuses the command of `bpf(2)`.
pub(super) fn link_id(link: &OwnedFd) -> io::Result<u32> {
    let mut info = LinkInfo::default();
    let mut attributes = ObjectInfo {
        object: number(link),
        length: size_of::<LinkInfo>() as u32,
        info: std::ptr::from_mut(&mut info).addr() as u64,
    };
    // SAFETY: the kernel writes at most `length` bytes, which is the size of `info`.
    unsafe { bpf(OBJECT_INFO, &mut attributes) }.map(|_| info.id)
}

/// Replaces the program of a link whose descriptor belongs to another process.
///
/// # Errors
/// `NotFound` if the link no longer exists; `PermissionDenied` without `CAP_SYS_ADMIN`.
pub(super) fn replace_program(link_id: u32, program: &BpfProgram) -> io::Result<()> {
    let mut attributes = LinkById {
        id: link_id,
        ..LinkById::default()
    };
    // SAFETY: attributes of this command, without addresses.
    let link = owned(unsafe { bpf(LINK_BY_ID, &mut attributes) }?);
    let mut attributes = UpdateLink {
        link: number(&link),
        program: number(&program.0),
        flags: 0,
        program_before: 0,
    };
    // SAFETY: attributes of this command, without addresses.
    unsafe { bpf(LINK_UPDATE, &mut attributes) }.map(drop)
}
