//! What wires and machines do to connections that pass the kernel by: frames that are lost, come
//! twice or in another order, cards that go down, rules and settings that change.

use std::fs;
use std::time::Duration;

use crate::network::{CARD_OF_CLIENT, CLIENT, Network, SERVER, sum_of};
use crate::{Client, HELLO, allow_all, configure, fetched, serve, wait_until_taken, write_file};
use support::master::{Master, wait_for};

#[test]
fn every_byte_arrives_whatever_is_lost_doubled_or_out_of_order() {
    let Some(network) = Network::new() else {
        return;
    };
    let http = r#"client_max_body_size 2m; server { listen 80; root @/www;
        location /upload/ { dav_methods PUT; create_full_put_path on;
            client_body_temp_path @/www/temp; } }"#;
    let master = serve(&network, "", http);
    let sum = write_file(&master, "large", 1 << 20);
    wait_until_taken(&master);
    for loss in [0, 1, 20, 100] {
        network.damage(loss);
        for round in 0..2 {
            assert_eq!(fetched(&network, "/large", ""), sum, "{loss} in a thousand");
            let large = master.folder.join("www/large");
            let name = format!("{loss}-{round}");
            network.on_client(&format!(
                "curl -sS -f -m 100 -T {} http://{SERVER}/upload/{name}",
                large.display()
            ));
            let came = master.folder.join("www/upload").join(name);
            assert_eq!(sum_of(&came), sum, "{loss} in a thousand");
        }
    }
    // The wire has done what it was to do, and the client's kernel has noticed.
    let slow = network.slow_bytes();
    assert!(slow.iter().all(|bytes| *bytes > 10_000), "{slow:?}");
    assert!(network.out_of_order_at_client() > 10);
    assert_eq!(network.kernel_connections(), 0);
}

/// Connections live on while a card is down, as they do in the kernel.
#[test]
fn a_card_that_goes_down_and_comes_back_loses_no_connection() {
    let Some(network) = Network::new() else {
        return;
    };
    let master = serve(&network, "", HELLO);
    let sum = write_file(&master, "large", 16 << 20);
    wait_until_taken(&master);
    let mut kept = Client::connect(&network);
    kept.get("/hello");
    std::thread::scope(|scope| {
        let begun: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| fetched(&network, "/large", "--limit-rate 6M")))
            .collect();
        for down in 0..2 {
            std::thread::sleep(Duration::from_millis(400));
            let (host, card) = if down == 0 {
                (&network.server, network.card.as_str())
            } else {
                (&network.client, CARD_OF_CLIENT)
            };
            network.set_card(host, card, "down");
            std::thread::sleep(Duration::from_millis(300));
            network.set_card(host, card, "up");
        }
        for download in begun {
            assert_eq!(download.join().unwrap(), sum);
        }
    });
    assert!(
        kept.get("/hello")
            .ends_with(&format!("{CLIENT} {SERVER}:80\n"))
    );
    let mut next = Client::connect(&network);
    next.get("/hello");
    assert_eq!(network.kernel_connections(), 0);
    assert_eq!(master.workers().len(), 1);
}

#[test]
fn an_mtu_that_changes_is_followed() {
    let Some(network) = Network::new() else {
        return;
    };
    let master = serve(&network, "", HELLO);
    let sum = write_file(&master, "large", 1 << 20);
    wait_until_taken(&master);
    let longest = |mtu: u32| {
        network.on_server(&format!("ip link set {} mtu {mtu}", network.card));
        // The worker hears of it by a message.
        std::thread::sleep(Duration::from_millis(200));
        let file = master.folder.join("frames.pcap");
        let program = env!("CARGO_BIN_EXE_tidegate");
        let mut dump = std::process::Command::new(program)
            .args(["xdp", "dump", "--pid", &master.pid().to_string()])
            .arg(&file)
            .spawn()
            .unwrap();
        wait_for("the dump to begin", || {
            fs::metadata(&file).is_ok_and(|file| file.len() >= 24)
        });
        assert_eq!(fetched(&network, "/large", ""), sum, "{mtu}");
        std::thread::sleep(Duration::from_millis(200));
        dump.kill().unwrap();
        dump.wait().unwrap();
        let written = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        let (mut rest, mut longest) = (&written[24..], 0);
        while rest.len() >= 16 {
            let length = u32::from_ne_bytes(rest[8..12].try_into().unwrap());
            longest = longest.max(length);
            rest = &rest[16 + length as usize..];
        }
        longest
    };
    // Ethernet's header comes before the packet.
    assert_eq!(longest(1500), 1514);
    assert_eq!(longest(1000), 1014);
    assert_eq!(longest(1500), 1514);
    assert_eq!(network.kernel_connections(), 0);
}

/// A queue without a thread is the kernel's, also where the card gets it meanwhile.
#[test]
fn queues_that_come_and_go_leave_nobody_without_an_answer() {
    let Some(network) = Network::with_queues(4) else {
        return;
    };
    let card = &network.card;
    let count = |queues: u32| {
        network.on_server(&format!("ethtool -L {card} rx {queues} tx {queues}"));
    };
    // A virtual card takes no filter with fewer queues to receive by than its peer sends by.
    network.on_client(&format!("ethtool -L {CARD_OF_CLIENT} rx 2 tx 2"));
    count(2);
    let master = serve(&network, "", HELLO);
    wait_until_taken(&master);
    let log = master.read("logs/error.log");
    assert!(
        log.contains("1 of its 2 receive queues have a thread, about 50% of its connections"),
        "{log}"
    );
    for queues in [2, 4, 3, 2] {
        count(queues);
        for _ in 0..10 {
            assert_eq!(network.get("/hello"), format!("{CLIENT} {SERVER}:80\n"));
        }
    }
    assert_eq!(master.workers().len(), 1);
}

/// IPv6 is the kernel's, at the same listener's port.
#[test]
fn ipv6_goes_to_the_kernel_beside() {
    let Some(network) = Network::new() else {
        return;
    };
    for (host, card, address) in [
        (&network.server, network.card.as_str(), "fd77::1"),
        (&network.client, CARD_OF_CLIENT, "fd77::2"),
    ] {
        network.on(host, &format!("ip addr add {address}/64 dev {card} nodad"));
    }
    let http = "server { listen 80; listen [::]:80; return 200 $remote_addr; }";
    let master = serve(&network, "", http);
    wait_until_taken(&master);
    assert_eq!(network.get("/"), CLIENT);
    let by_ipv6 = network.on_client("curl -sS -m 20 http://[fd77::1]/");
    assert_eq!(by_ipv6, "fd77::2");
}

/// Requests on connections of their own all get their answers, whatever is reloaded meanwhile.
#[test]
fn switching_on_and_off_under_load_fails_no_request() {
    let Some(network) = Network::new() else {
        return;
    };
    let master = serve(&network, "", HELLO);
    wait_until_taken(&master);
    let off = |more: &str| {
        master.configure(&format!(
            "user nobody nogroup; events {{ use epoll; {more} }}
            http {{ access_log off; {HELLO} }}"
        ));
    };
    let program = env!("CARGO_BIN_EXE_tidegate");
    let load =
        format!("{program} bench --json -c 8 -d 12s --new-connections http://{SERVER}/hello");
    let taken = || {
        let log = master.read("logs/error.log");
        log.matches("pass the kernel by").count()
    };
    std::thread::scope(|scope| {
        let load = scope.spawn(|| network.on_client(&load));
        std::thread::sleep(Duration::from_secs(1));
        for _ in 0..2 {
            let (before, workers) = (taken(), master.workers());
            off("");
            master.signal("HUP");
            wait_for("another worker", || master.workers() != workers);
            std::thread::sleep(Duration::from_millis(500));
            configure(&master, &network, "", HELLO);
            allow_all(&master);
            master.signal("HUP");
            wait_for("the interface again", || taken() > before);
            std::thread::sleep(Duration::from_millis(500));
        }
        let report = load.join().unwrap();
        let number = |name: &str| -> u64 {
            let (_, rest) = report.split_once(&format!("\"{name}\":")).expect(&report);
            let end = rest.find([',', '}']).unwrap();
            rest[..end].parse().expect(&report)
        };
        assert_eq!(number("failed"), 0, "{report}");
        assert!(number("succeeded") > 100, "{report}");
    });
}

/// Sends SYNs for as many seconds as its argument says, each from another address and port that no
/// host has.
const FLOOD: &str = r#"
import socket, struct, sys, time
def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff
to, end, count = socket.inet_aton("10.77.0.1"), time.monotonic() + float(sys.argv[1]), 0
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
while time.monotonic() < end:
    for _ in range(100):
        count += 1
        source = struct.pack("!BBH", 10, 80 + count % 100, count & 0xffff)
        port = 1024 + count % 60000
        def tcp(sum):
            return struct.pack("!HHIIBBHHH", port, 80, count, 0, 0x50, 2, 64240, sum, 0)
        segment = tcp(checksum(source + to + struct.pack("!HH", 6, 20) + tcp(0)))
        packet = struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, 64, 6, 0) + source + to + segment
        raw.sendto(packet, ("10.77.0.1", 0))
print(count)
"#;

/// The places for handshakes are taken after 4,096 of them: other clients get cookies then, and
/// their requests are answered.
#[test]
fn a_flood_of_syns_leaves_others_served() {
    let Some(network) = Network::new() else {
        return;
    };
    let http = "server { listen 80; location = /metrics { metrics prometheus; }
        location / { return 200 $remote_addr; } }";
    let master = serve(&network, "", http);
    wait_until_taken(&master);
    let mut kept = Client::connect(&network);
    kept.get("/");
    let mut flood = network.client_command("python3");
    flood.args(["-c", FLOOD, "4"]);
    let flood = flood.stdout(std::process::Stdio::piped()).spawn().unwrap();
    // Some ten thousand in a second, on a slow machine.
    std::thread::sleep(Duration::from_secs(2));
    for _ in 0..20 {
        let mut client = Client::connect(&network);
        assert!(client.get("/").ends_with(CLIENT));
        assert!(kept.get("/").ends_with(CLIENT));
    }
    let sent = flood.wait_with_output().unwrap();
    let sent: u64 = String::from_utf8_lossy(&sent.stdout)
        .trim()
        .parse()
        .unwrap();
    let numbers = network.get("/metrics");
    let number = |name: &str| -> u64 {
        let label = format!("{name}{{interface=\"{}\",queue=\"0\"}} ", network.card);
        let found = numbers.lines().find_map(|line| line.strip_prefix(&label));
        found.expect(&numbers).parse().unwrap()
    };
    assert!(sent > 6000, "{sent} SYNs");
    assert!(number("tidegate_xdp_frames_received_total") > sent / 2);
    assert!(number("tidegate_xdp_syncookies_total") > 20, "{numbers}");
    // Each handshake takes a place, and each connection of the test.
    let connections = number("tidegate_xdp_connections");
    assert!((4096..4200).contains(&connections), "{connections}");
    assert_eq!(network.kernel_connections(), 0);
}

/// A queue that the card gets later is the kernel's until the configuration is loaded again; then a
/// thread serves it.
#[test]
fn a_queue_that_comes_later_is_served_after_a_reload() {
    let Some(network) = Network::with_queues(2) else {
        return;
    };
    let card = &network.card;
    network.on_client(&format!("ethtool -L {CARD_OF_CLIENT} rx 1 tx 1"));
    network.on_server(&format!("ethtool -L {card} rx 1 tx 1"));
    let mut master = Master::new();
    network.place(&mut master);
    master.configure(&format!(
        "user nobody nogroup; worker_processes 2;
        events {{ use xdp; xdp_interface {card}; }} http {{ access_log off; {HELLO} }}"
    ));
    fs::create_dir(master.folder.join("www")).unwrap();
    allow_all(&master);
    master.start();
    wait_until_taken(&master);
    let workers = master.workers();
    let clients = || -> Vec<Client> {
        let clients = (0..16).map(|_| {
            let mut client = Client::connect(&network);
            client.get("/hello");
            client
        });
        clients.collect()
    };
    let _of_one_queue = clients();
    assert_eq!(network.kernel_connections(), 0);
    network.on_server(&format!("ethtool -L {card} rx 2 tx 2"));
    network.on_client(&format!("ethtool -L {CARD_OF_CLIENT} rx 2 tx 2"));
    let _of_both_queues = clients();
    let of_kernel = network.kernel_connections();
    assert!((1..16).contains(&of_kernel), "{of_kernel}");
    master.signal("HUP");
    let said = format!("2 of 2 receive queues of \"{card}\" have a thread now");
    master.wait_for_text("logs/error.log", &said);
    // The thread has the queue a moment after that line.
    std::thread::sleep(Duration::from_millis(500));
    let mut kept = clients();
    assert_eq!(network.kernel_connections(), of_kernel);
    assert_eq!(master.workers(), workers, "no other process was needed");
    // One more reload changes nothing.
    master.signal("HUP");
    master.wait_for_text("logs/error.log", "reconfiguring");
    std::thread::sleep(Duration::from_millis(500));
    for client in &mut kept {
        client.get("/hello");
    }
    assert_eq!(master.read("logs/error.log").matches(&said).count(), 1);
}
