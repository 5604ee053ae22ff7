//! Two hosts that the test makes: network namespaces with a pair of virtual cards between them.

use std::fs::File;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::thread::LinkNameSpaceType;

use support::master::Master;

/// The variable of the environment that says that this machine cannot do what these tests need.
const VARIABLE: &str = "TIDEGATE_TEST_WITHOUT_XDP";

/// The address of the server's card, and of the client's.
pub(crate) const SERVER: &str = "10.77.0.1";
pub(crate) const CLIENT: &str = "10.77.0.2";

/// A server's host and a client's, which end with this.
pub(crate) struct Network {
    server: String,
    client: String,
    /// The name of the server's card; that of the client's is `CARD_OF_CLIENT`.
    pub(crate) card: String,
}

/// The client's card, in its own namespace.
pub(crate) const CARD_OF_CLIENT: &str = "client0";

impl Network {
    /// Both hosts; `None` where the machine cannot have them and the environment says that this is
    /// known.
    ///
    /// # Panics
    /// Where the machine cannot have them.
    pub(crate) fn new() -> Option<Network> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tg{}-{number}", std::process::id());
        let network = Network {
            server: format!("{name}s"),
            client: format!("{name}c"),
            card: "server0".to_owned(),
        };
        match network.make() {
            Ok(()) => Some(network),
            Err(reason) if std::env::var_os(VARIABLE).is_some() => {
                eprintln!("skipped: {reason}");
                None
            }
            Err(reason) => panic!(
                "{reason}; root, ip(8) and ethtool(8) are needed, and {VARIABLE}=1 skips the test"
            ),
        }
    }

    fn make(&self) -> Result<(), String> {
        let Network {
            server,
            client,
            card,
        } = self;
        let peer = CARD_OF_CLIENT;
        let commands = [
            format!("ip netns add {server}"),
            format!("ip netns add {client}"),
            format!(
                "ip link add {card} netns {server} numrxqueues 1 numtxqueues 1 type veth \
                 peer name {peer} netns {client} numrxqueues 1 numtxqueues 1"
            ),
            format!("ip -n {server} addr add {SERVER}/24 dev {card}"),
            format!("ip -n {client} addr add {CLIENT}/24 dev {peer}"),
            format!("ip -n {server} link set lo up"),
            format!("ip -n {client} link set lo up"),
            format!("ip -n {server} link set {card} up"),
            format!("ip -n {client} link set {peer} up"),
            // A virtual card leaves checksums to nobody; what leaves a real one has them.
            format!("ip netns exec {client} ethtool -K {peer} tx off"),
        ];
        commands
            .iter()
            .try_for_each(|command| run(command).map(drop))
    }

    /// Has a server run on its host.
    pub(crate) fn place(&self, master: &mut Master) {
        master.wrap(&["ip", "netns", "exec", &self.server]);
    }

    /// What a command prints that runs on the client's host.
    ///
    /// # Panics
    /// Where it fails.
    pub(crate) fn on_client(&self, command: &str) -> String {
        self.try_on_client(command)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn try_on_client(&self, command: &str) -> Result<String, String> {
        run(&format!("ip netns exec {} {command}", self.client))
    }

    /// The same on the server's host.
    pub(crate) fn on_server(&self, command: &str) -> String {
        run(&format!("ip netns exec {} {command}", self.server))
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// A command of the client's host that is yet to run.
    pub(crate) fn client_command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.client, program]);
        command
    }

    /// Has the client's host lose so many of a thousand packets, each way, and send as many twice.
    pub(crate) fn lose(&self, in_thousand: u32) {
        self.on_client("nft flush ruleset");
        self.on_client("nft add table ip lossy");
        for (hook, priority) in [("input", -400), ("output", -400)] {
            self.on_client(&format!(
                "nft add chain ip lossy {hook} {{ type filter hook {hook} priority {priority} ; }}"
            ));
            if in_thousand > 0 {
                self.on_client(&format!(
                    "nft add rule ip lossy {hook} numgen random mod 1000 < {in_thousand} drop"
                ));
            }
        }
        if in_thousand > 0 {
            self.on_client(
                "nft add chain ip lossy twice { type filter hook postrouting priority -400 ; }",
            );
            self.on_client(&format!(
                "nft add rule ip lossy twice numgen random mod 1000 < {in_thousand} \
                 dup to {SERVER} device {CARD_OF_CLIENT}"
            ));
        }
    }

    /// A connection from the client's host to the server's port 80. It stays of that host, whatever
    /// thread uses it.
    ///
    /// # Panics
    /// Where there is none.
    pub(crate) fn connect(&self) -> TcpStream {
        let namespace = File::open(format!("/run/netns/{}", self.client)).unwrap();
        let connected = std::thread::spawn(move || {
            // The thread ends there, and no other one has moved.
            let network = Some(LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(namespace.as_fd(), network)?;
            let stream = TcpStream::connect((SERVER, 80))?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            std::io::Result::Ok(stream)
        });
        connected.join().unwrap().unwrap()
    }

    /// What curl gets from the server by a path.
    pub(crate) fn get(&self, path: &str) -> String {
        self.on_client(&format!("curl -sS -m 20 http://{SERVER}{path}"))
    }

    /// Connections that the kernel of the client's host has begun since its beginning.
    pub(crate) fn kernel_opened_by_client(&self) -> u64 {
        let counted = self.on_client("cat /proc/net/snmp");
        let mut tcp = counted
            .lines()
            .filter_map(|line| line.strip_prefix("Tcp: "));
        let (names, values) = (tcp.next().unwrap(), tcp.next().unwrap());
        let place = names.split(' ').position(|name| name == "ActiveOpens");
        values
            .split(' ')
            .nth(place.unwrap())
            .unwrap()
            .parse()
            .unwrap()
    }

    /// Sockets of the kernel's at the server's port 80 that have a connection.
    pub(crate) fn kernel_connections(&self) -> usize {
        let listed = self.on_server("ss -Htn state established ( sport = :80 )");
        listed.lines().count()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in [&self.server, &self.client] {
            let _ = run(&format!("ip netns del {namespace}"));
        }
    }
}

/// What a command prints; the reason where it fails. Words are separated by spaces.
fn run(command: &str) -> Result<String, String> {
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{command}: {error}"))?;
    let Output {
        status,
        stdout,
        stderr,
    } = output;
    if status.success() {
        Ok(String::from_utf8_lossy(&stdout).into_owned())
    } else {
        Err(format!(
            "{command}: {status}: {} {}",
            String::from_utf8_lossy(&stderr).trim(),
            String::from_utf8_lossy(&stdout).trim()
        ))
    }
}

/// The sum of a file, as sha256sum(1) has it.
pub(crate) fn sum_of(file: &Path) -> String {
    let printed = run(&format!("sha256sum {}", file.display())).expect("sha256sum");
    printed.split(' ').next().unwrap_or_default().to_owned()
}
