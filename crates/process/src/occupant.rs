//! Finds the process that occupies an address after `bind()` has failed with EADDRINUSE, as far as
//! `/proc` shows it to this user.
//!
//! `/proc/net/tcp` (proc_net_tcp(5)) lists the inode of each listening socket, and `/proc/PID/fd`
//! the inodes that a process has open. The result is for an error message only.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// `TCP_LISTEN` in the tables' column `st`.
const STATE_LISTEN: &str = "0A";

/// The hint of the error message for an address that is in use.
pub(crate) fn hint(address: SocketAddr) -> String {
    match find(address) {
        Some((pid, name)) => format!("process {pid} ({name}) listens there"),
        None => "\"ss -ltnp\", run by root, says which process listens there".to_owned(),
    }
}

/// The pid and the name of the process that listens at an address. Of several that share the
/// socket, such as a master and its workers, it is the one with the lowest pid.
fn find(address: SocketAddr) -> Option<(u32, String)> {
    let inodes: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| std::fs::read_to_string(table).ok())
        .flat_map(|table| listening_at(&table, address))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    if inodes.is_empty() {
        return None;
    }
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    let pid = numbers.into_iter().find(|pid| has_open(*pid, &inodes))?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some((pid, name.trim_end().to_owned()))
}

/// The inodes of the sockets whose listening address overlaps with `address`, wildcards included.
fn listening_at(table: &str, address: SocketAddr) -> Vec<String> {
    let lines = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, STATE_LISTEN, _, _, _, _, _, inode, ..] = fields.as_slice() else {
            return None;
        };
        let (ip, port) = local.split_once(':')?;
        let (ip, port) = (parse_ip(ip)?, u16::from_str_radix(port, 16).ok()?);
        let overlaps = ip == address.ip() || ip.is_unspecified() || address.ip().is_unspecified();
        (port == address.port() && overlaps).then(|| (*inode).to_owned())
    });
    lines.collect()
}

/// Parses an address of the tables: 32-bit words in hexadecimal, in the byte order of the machine.
fn parse_ip(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let word = text.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(word, 16).ok()?.to_ne_bytes())
    };
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for (at, bytes) in bytes.chunks_exact_mut(4).enumerate() {
                bytes.copy_from_slice(&word(at)?);
            }
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

/// Whether a process has one of these sockets open. False for processes of other users.
fn has_open(pid: u32, sockets: &[String]) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    descriptors.flatten().any(|entry| {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        sockets.iter().any(|socket| Path::new(socket) == target)
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_listening_process_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (pid, _) = find(address).unwrap();
        assert_eq!(pid, std::process::id());
        let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
        assert_eq!(find(everywhere).map(|(pid, _)| pid), Some(pid));
        assert!(hint(address).starts_with(&format!("process {pid} (")));
        let elsewhere = SocketAddr::from((Ipv4Addr::new(127, 3, 2, 1), address.port()));
        assert_eq!(find(elsewhere), None);
    }
}
