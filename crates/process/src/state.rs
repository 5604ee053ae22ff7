//! Hands over the state of a worker process (the contents of zones) to the worker that replaces it:
//! after a reload that needs a new process, or in another program after USR2.
//!
//! The master makes an empty memory file and sends it to the serving worker, which writes the state
//! and then seals the file, and to the new worker, which waits for the seal. The master does not
//! read the file, because its contents come from clients.
//!
//! A new program after USR2 gets one end of a socket, whose number is in [`VARIABLE`], and requests
//! the file when its own configuration is ready, so that the state is of that moment. nginx does
//! not request the file.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt,
};

use crate::bundle;

/// The environment variable with the descriptor number of the socket.
pub(crate) const VARIABLE: &str = "TIDEGATE_STATE";

/// How long a worker waits for another worker's state, and a new program for the file.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interval between two checks whether the file is sealed.
const PAUSE: Duration = Duration::from_millis(1);

/// The message by which a new program requests the file.
const QUESTION: &[u8] = b"?";

/// An empty memory file for the state of a worker.
pub(crate) fn empty() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(rustix::fs::memfd_create("tidegate-state", flags)?)
}

/// Writes the state, and seals the file.
pub(crate) fn write(file: OwnedFd, state: &[u8]) -> io::Result<()> {
    let mut file = File::from(file);
    file.write_all(state)?;
    rustix::fs::fcntl_add_seals(&file, bundle::SEALS)?;
    Ok(())
}

/// Waits until another worker has sealed the file, and returns the state. The error is a text for
/// the log.
pub(crate) fn read(file: OwnedFd) -> Result<Vec<u8>, String> {
    let until = Instant::now() + PATIENCE;
    loop {
        let seals = rustix::fs::fcntl_get_seals(&file);
        if seals.is_ok_and(|seals| seals.contains(bundle::SEALS)) {
            return bundle::unseal(file).map_err(|error| error.to_string());
        }
        if Instant::now() > until {
            let seconds = PATIENCE.as_secs();
            return Err(format!("it was not written in {seconds}s"));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Both ends of the socket between two programs. The first, for the older program, does not block.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

/// Whether the new program has requested the file; an error if it has closed the socket.
pub(crate) fn is_asked(socket: &OwnedFd) -> io::Result<bool> {
    let mut bytes = [0; 8];
    match rustix::net::recv(socket, &mut bytes[..], RecvFlags::empty()) {
        Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok((length, _)) => Ok(bytes.get(..length) == Some(QUESTION)),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Replies with a file to which the worker may still be writing.
pub(crate) fn answer(socket: &OwnedFd, file: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    let parts = [IoSlice::new(QUESTION)];
    rustix::net::sendmsg(socket, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The socket that the older program has handed over. Must be called once, before this program
/// opens a socket.
pub(crate) fn take() -> Option<OwnedFd> {
    let number: i32 = std::env::var(VARIABLE).ok()?.parse().ok()?;
    if number <= 2 {
        return None;
    }
    // SAFETY: the borrowed descriptor is only used to read socket options, which fails if the
    // number is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let is_socket = sockopt::socket_type(borrowed) == Ok(SocketType::SEQPACKET)
        && sockopt::socket_domain(borrowed) == Ok(AddressFamily::UNIX)
        && sockopt::socket_acceptconn(borrowed) == Ok(false);
    if !is_socket {
        return None;
    }
    // SAFETY: the program that started this one has left the socket open for it, and this program
    // has opened no socket yet, so nothing else owns the number.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    // Workers must not inherit the socket.
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).ok()?;
    Some(socket)
}

/// Requests the file from the older program; `None` if it has no state to hand over.
pub(crate) fn ask(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let limit = Some(PATIENCE);
    sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, limit)?;
    rustix::net::send(socket, QUESTION, SendFlags::NOSIGNAL)?;
    let mut bytes = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    rustix::net::recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    Ok(files.next().and_then(|mut files| files.next()))
}

/// The variable's value for a socket.
pub(crate) fn value(socket: &OwnedFd) -> String {
    socket.as_fd().as_raw_fd().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_writes_the_other_reads_once_it_is_whole() {
        let file = empty().unwrap();
        let (writing, reading) = (file.try_clone().unwrap(), file);
        let reader = std::thread::spawn(move || read(reading));
        std::thread::sleep(Duration::from_millis(20));
        write(writing, b"state").unwrap();
        assert_eq!(reader.join().unwrap(), Ok(b"state".to_vec()));
    }

    #[test]
    fn what_is_not_written_is_not_waited_for_long() {
        let text = read(empty().unwrap()).unwrap_err();
        assert_eq!(text, "it was not written in 2s");
    }

    #[test]
    fn a_program_asks_and_is_answered() {
        let (older, newer) = pair().unwrap();
        assert!(!is_asked(&older).unwrap());
        let asking = std::thread::spawn(move || ask(&newer).map(Option::unwrap));
        while !is_asked(&older).unwrap() {
            std::thread::sleep(PAUSE);
        }
        let file = empty().unwrap();
        answer(&older, file.as_fd()).unwrap();
        let theirs = asking.join().unwrap().unwrap();
        write(file, b"state").unwrap();
        assert_eq!(read(theirs), Ok(b"state".to_vec()));
        // The other program has ended.
        let gone = is_asked(&older).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::UnexpectedEof);
    }
}
