//! The cases over a pair of virtual cards, with a Tidegate whose connections pass the kernel by.
//!
//! Cases speak of 127.0.0.1 everywhere: in configurations, in logs, in bodies. So both ends have
//! that address here as well, though frames go from one network namespace to another:
//!
//! ```text
//!  namespace of the cases' clients                    namespace of server, backends, and this
//!  connect to 127.0.0.1
//!    10.77.0.2 ─▶ 10.77.0.1      (nat)
//!    127.0.0.1 ─▶ 127.0.0.1      (each frame) ──────▶ server0, which has 127.0.0.1, too
//! ```
//!
//! The process itself moves to the server's namespace, and connects from the client's.

use std::fs::File;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use rustix::thread::LinkNameSpaceType;

#[path = "../xdp/network.rs"]
#[allow(dead_code, reason = "tests/xdp uses all of it")]
mod network;

pub(crate) use network::Network;
use network::{CARD_OF_CLIENT, CLIENT, SERVER};

/// Case files that the suite has go this way; `--bypass` alone has all of them.
pub(crate) const AREAS: [&str; 4] = ["http1", "ranges", "lingering", "ssl"];

/// The engine's line in `events`.
pub(crate) const ENGINE: &str = "xdp; xdp_interface server0; xdp_required on";

/// What the log says once connections come to the worker.
pub(crate) const IS_TAKEN: &str = "pass the kernel by";

/// The clients' namespace, where the process is in the server's.
static CLIENTS: OnceLock<File> = OnceLock::new();

/// Moves the process, which has one thread still.
///
/// # Errors
/// A sentence about what this machine does not permit.
pub(crate) fn enter(network: &Network) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("moving to a network namespace: {error}");
    let mac = network.on_server("cat /sys/class/net/server0/address");
    let back = network.on_client(&format!("cat /sys/class/net/{CARD_OF_CLIENT}/address"));
    network.on_server("ip addr add 127.0.0.1/32 dev server0");
    for command in [
        "sysctl -qw net.ipv4.conf.all.route_localnet=1".to_owned(),
        "sysctl -qw net.ipv4.conf.all.rp_filter=0".to_owned(),
        // No answer is waited for in the middle of a case.
        format!(
            "ip neigh replace {SERVER} lladdr {} dev {CARD_OF_CLIENT}",
            mac.trim()
        ),
        format!("ethtool -K {CARD_OF_CLIENT} tso off gso off gro off"),
        "nft add table ip names".to_owned(),
        "nft add chain ip names out { type nat hook output priority -100 ; }".to_owned(),
        format!("nft add rule ip names out tcp dport 1-65535 ip daddr 127.0.0.1 dnat to {SERVER}"),
        "nft add chain ip names post { type nat hook postrouting priority 100 ; }".to_owned(),
        format!("nft add rule ip names post ip daddr {SERVER} snat to {CLIENT}"),
        "nft add table netdev faces".to_owned(),
        format!(
            "nft add chain netdev faces out {{ type filter hook egress device {CARD_OF_CLIENT} \
             priority 0 ; }}"
        ),
        format!("nft add rule netdev faces out ip daddr {SERVER} ip daddr set 127.0.0.1"),
        format!("nft add rule netdev faces out ip saddr {CLIENT} ip saddr set 127.0.0.1"),
        format!(
            "nft add chain netdev faces in {{ type filter hook ingress device {CARD_OF_CLIENT} \
             priority 0 ; }}"
        ),
        format!("nft add rule netdev faces in ip saddr 127.0.0.1 ip saddr set {SERVER}"),
        format!("nft add rule netdev faces in ip daddr 127.0.0.1 ip daddr set {CLIENT}"),
    ] {
        network.on_client(&command);
    }
    network.on_server(&format!(
        "ip neigh replace {CLIENT} lladdr {} dev server0",
        back.trim()
    ));
    let clients = File::open(format!("/run/netns/{}", network.client)).map_err(failed)?;
    let _ = CLIENTS.set(clients);
    let server = File::open(format!("/run/netns/{}", network.server)).map_err(failed)?;
    let kind = Some(LinkNameSpaceType::Network);
    rustix::thread::move_into_link_name_space(server.as_fd(), kind)
        .map_err(|error| failed(error.into()))
}

/// Connects to a server as a client does.
pub(crate) fn connect(address: &str) -> std::io::Result<TcpStream> {
    let Some(clients) = CLIENTS.get().filter(|_| address.starts_with("127.0.0.1:")) else {
        return TcpStream::connect(address);
    };
    let address = address.to_owned();
    // The thread ends there, and no other one has moved.
    let connected = std::thread::spawn(move || {
        let kind = Some(LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(clients.as_fd(), kind)?;
        TcpStream::connect(address)
    });
    connected
        .join()
        .unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))
}
