//! Who listens at an address that could not be had, as far as `/proc` tells this user.
//!
//! proc_net_tcp(5) has the socket by its inode, and the descriptors of each process name the inodes
//! that it has open. Used for messages only, after an error.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// The state of sockets that listen, as the tables have it.
const LISTENS: &str = "0A";

/// A hint about an address that is in use.
pub(crate) fn hint(address: SocketAddr) -> String {
    match find(address) {
        Some((pid, name)) => format!("process {pid} ({name}) listens there"),
        None => "\"ss -ltnp\", run by root, says which process listens there".to_owned(),
    }
}

/// The first process that listens there, with its name. Of a server with workers that is the
/// oldest.
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

/// The inodes of sockets that listen at an address, or at every address with its port.
fn listening_at(table: &str, address: SocketAddr) -> Vec<String> {
    let lines = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, LISTENS, _, _, _, _, _, inode, ..] = fields.as_slice() else {
            return None;
        };
        let (ip, port) = local.split_once(':')?;
        let (ip, port) = (ip_of(ip)?, u16::from_str_radix(port, 16).ok()?);
        let meets = ip == address.ip() || ip.is_unspecified() || address.ip().is_unspecified();
        (port == address.port() && meets).then(|| (*inode).to_owned())
    });
    lines.collect()
}

/// An address as the tables have it: words of four bytes, in the order of the machine.
fn ip_of(text: &str) -> Option<IpAddr> {
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

/// Whether a process has one of these sockets open.
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
    fn who_listens_is_found() {
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
