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
    pub(crate) server: String,
    pub(crate) client: String,
    /// The name of the server's card; that of the client's is `CARD_OF_CLIENT`.
    pub(crate) card: String,
}

/// The client's card, in its own namespace.
pub(crate) const CARD_OF_CLIENT: &str = "client0";

/// A card of the client's host that what comes passes by where the wire is damaged, and the class
/// of frames there that are late.
const BACK: &str = "back0";
const SLOW_LANE: &str = "1:2";

impl Network {
    /// Both hosts; `None` where the machine cannot have them and the environment says that this is
    /// known.
    ///
    /// # Panics
    /// Where the machine cannot have them.
    pub(crate) fn new() -> Option<Network> {
        Network::with_queues(1)
    }

    /// The same with so many queues at the server's card.
    pub(crate) fn with_queues(queues: u32) -> Option<Network> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tg{}-{number}", std::process::id());
        let network = Network {
            server: format!("{name}s"),
            client: format!("{name}c"),
            card: "server0".to_owned(),
        };
        match network.make(queues) {
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

    fn make(&self, queues: u32) -> Result<(), String> {
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
                "ip link add {card} netns {server} numrxqueues {queues} numtxqueues {queues} type veth \
                 peer name {peer} netns {client} numrxqueues {queues} numtxqueues {queues}"
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

    /// Has the wire lose so many of a thousand packets, each way. Beside that, always, one of some
    /// fifty comes twice and one so late that others come before it.
    pub(crate) fn damage(&self, in_thousand: u32) {
        let peer = CARD_OF_CLIENT;
        let all = |commands: &[String]| {
            for command in commands {
                self.on_client(command);
            }
        };
        if self.try_on_client(&format!("ip link show {BACK}")).is_err() {
            self.add_slow_lanes();
        }
        // What a time before has added is gone with its tables.
        for table in ["netdev wire", "ip lossy"] {
            let _ = self.try_on_client(&format!("nft delete table {table}"));
            self.on_client(&format!("nft add table {table}"));
        }
        all(&[
            format!(
                "nft add chain netdev wire out \
                 {{ type filter hook egress device {peer} priority 0 ; }}"
            ),
            format!(
                "nft add rule netdev wire out numgen random mod 50 < 1 meta priority set {SLOW_LANE}"
            ),
            format!("nft add rule netdev wire out numgen random mod 50 < 1 dup to {peer}"),
            "nft add chain ip lossy in { type filter hook input priority -400 ; }".to_owned(),
        ]);
        if in_thousand > 0 {
            for chain in ["netdev wire out", "ip lossy in"] {
                self.on_client(&format!(
                    "nft add rule {chain} numgen random mod 1000 < {in_thousand} drop"
                ));
            }
        }
    }

    /// Gives the client's card a lane for what is late. What comes passes by such a lane of another
    /// card; which of it is late, or doubled, is said by some bits of TCP's checksum, which are as
    /// good as chance.
    fn add_slow_lanes(&self) {
        let peer = CARD_OF_CLIENT;
        for command in [
            format!("ethtool -K {peer} tso off gso off gro off"),
            format!("ip link add {BACK} type ifb"),
            format!("ip link set {BACK} up"),
            format!("tc qdisc add dev {peer} handle ffff: ingress"),
            format!(
                "tc filter add dev {peer} parent ffff: protocol ip pref 1 \
                 u32 match u16 0 0x3f at 36 \
                 action mirred egress mirror dev {BACK} pipe \
                 action mirred egress redirect dev {BACK}"
            ),
            format!(
                "tc filter add dev {peer} parent ffff: protocol all pref 2 \
                 u32 match u32 0 0 action mirred egress redirect dev {BACK}"
            ),
        ] {
            self.on_client(&command);
        }
        for card in [peer, BACK] {
            for command in [
                format!("tc qdisc add dev {card} root handle 1: htb default 1 r2q 1000"),
                format!("tc class add dev {card} parent 1: classid 1:1 htb rate 1gbit"),
                format!(
                    "tc class add dev {card} parent 1: classid {SLOW_LANE} htb rate 4mbit \
                     burst 1600 cburst 1600"
                ),
            ] {
                self.on_client(&command);
            }
        }
        self.on_client(&format!(
            "tc filter add dev {BACK} parent 1: protocol ip pref 1 \
             u32 match u16 1 0x3f at 36 flowid {SLOW_LANE}"
        ));
    }

    /// Bytes that were held up, each way.
    pub(crate) fn slow_bytes(&self) -> [u64; 2] {
        [CARD_OF_CLIENT, BACK].map(|card| {
            let classes = self.on_client(&format!("tc -s class show dev {card}"));
            let slow = classes
                .split("class htb ")
                .find(|class| class.starts_with(SLOW_LANE));
            let sent = slow.and_then(|slow| slow.split_once(" Sent ")).unwrap().1;
            sent.split(' ').next().unwrap().parse().unwrap()
        })
    }

    /// Segments that came to the client's kernel before others that belong before them.
    pub(crate) fn out_of_order_at_client(&self) -> u64 {
        self.counted("/proc/net/netstat", "TcpExt: ", "TCPOFOQueue")
    }

    /// A number of the client's kernel.
    fn counted(&self, file: &str, group: &str, name: &str) -> u64 {
        let counted = self.on_client(&format!("cat {file}"));
        let mut lines = counted.lines().filter_map(|line| line.strip_prefix(group));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let place = names.split(' ').position(|known| known == name).unwrap();
        values.split(' ').nth(place).unwrap().parse().unwrap()
    }

    /// Sets a card of a host `up` or `down`.
    pub(crate) fn set_card(&self, host: &str, card: &str, to: &str) {
        self.on(host, &format!("ip link set {card} {to}"));
    }

    /// What a command prints that runs on a host.
    pub(crate) fn on(&self, host: &str, command: &str) -> String {
        run(&format!("ip netns exec {host} {command}")).unwrap_or_else(|error| panic!("{error}"))
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
        self.counted("/proc/net/snmp", "Tcp: ", "ActiveOpens")
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
