//! The owner of a port's listener, by the kernel's tables (proc_pid_net(5)): on a machine with many
//! users, any of them may listen on php-fpm's usual port.

use std::fs;

/// The id of a user who listens on a port and is neither root, nor the user of this process, nor
/// `also`.
pub(super) fn foreign_listener(port: u16, also: Option<u32>) -> Option<u32> {
    let own = rustix::process::geteuid().as_raw();
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let tables = tables.map(|path| fs::read_to_string(path).unwrap_or_default());
    let mut users = tables.iter().flat_map(|table| users(table, port));
    users.find(|user| *user != 0 && *user != own && Some(*user) != also)
}

/// The users whose sockets in a table listen on a port.
fn users(table: &str, port: u16) -> impl Iterator<Item = u32> {
    const LISTEN: &str = "0A";
    table.lines().filter_map(move |line| {
        // sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid
        let mut fields = line.split_whitespace().skip(1);
        let (_, local) = fields.next()?.rsplit_once(':')?;
        let state = fields.nth(1)?;
        let user = fields.nth(3)?;
        let is_listener = state == LISTEN && u16::from_str_radix(local, 16) == Ok(port);
        user.parse().ok().filter(|_| is_listener)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found_in_the_tables_of_the_kernel() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                     0: 0100007F:2328 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 5634 1 0 100 0 0 10 0\n   \
                     1: 0100007F:2328 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1001        0 5635 1 0 20 4 30 10 -1\n   \
                     2: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 5636 1 0 100 0 0 10 0\n";
        assert!(users(table, 9000).eq([1000]));
        assert!(users(table, 80).eq([0]));
        assert!(users(table, 81).next().is_none());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(foreign_listener(port, None), None);
    }
}
