//! What the kernel knows of another process's sockets, by copies of its descriptors.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// The socket of a process that is connected to this address.
pub fn socket_to(pid: u32, address: SocketAddr) -> Option<OwnedFd> {
    let process = Pid::from_raw(pid.cast_signed())?;
    let process = pidfd_open(process, PidfdFlags::empty()).unwrap();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).ok()? {
        let name = entry.ok()?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(copy) = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        let peer = rustix::net::getpeername(&copy).ok().flatten();
        if peer.and_then(|peer| SocketAddr::try_from(peer).ok()) == Some(address) {
            return Some(copy);
        }
    }
    None
}
