//! Looking at connections that pass the kernel by: metrics, `tidegate status`, `tidegate xdp dump`,
//! and what a profile costs.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use crate::network::{CLIENT, Network, SERVER};
use crate::{Client, HELLO, serve, wait_until_taken};
use support::master::{Master, wait_for};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tidegate");

#[test]
fn metrics_tell_what_a_queue_does() {
    let Some(network) = Network::new() else {
        return;
    };
    let http = "server { listen 80; location = /metrics { metrics prometheus; } }";
    let master = serve(&network, "", http);
    wait_until_taken(&master);
    let mut numbers = String::new();
    for _ in 0..3 {
        numbers = network.get("/metrics");
    }
    let number = |name: &str| -> u64 {
        let label = format!("{name}{{interface=\"{}\",queue=\"0\"}} ", network.card);
        let found = numbers.lines().find_map(|line| line.strip_prefix(&label));
        let found = found.unwrap_or_else(|| panic!("no {label} in {numbers}"));
        found.parse().unwrap()
    };
    assert_eq!(number("tidegate_xdp_accepted_total"), 3);
    assert!(number("tidegate_xdp_frames_received_total") >= 10);
    assert!(number("tidegate_xdp_frames_sent_total") >= 8);
    assert_eq!(number("tidegate_xdp_damaged_total"), 0);
    assert!(number("tidegate_xdp_connections") >= 1);
}

#[test]
fn status_shows_each_queue() {
    let Some(network) = Network::new() else {
        return;
    };
    let http = "server { listen 80; return 200 here; }
        server { listen 127.0.0.1:8081; location /api/ { api; } }";
    let master = serve(&network, "", http);
    wait_until_taken(&master);
    for _ in 0..3 {
        network.get("/");
    }
    let ask = |more: &str| {
        network.on_server(&format!(
            "{PROGRAM} status {more} http://127.0.0.1:8081/api"
        ))
    };
    let shown = ask("--once");
    let mut rows = shown
        .lines()
        .skip_while(|line| *line != "queues past the kernel");
    let heads: Vec<&str> = rows.nth(1).expect(&shown).split_whitespace().collect();
    let cells: Vec<&str> = rows.next().expect(&shown).split_whitespace().collect();
    // The queue's name is two words.
    assert_eq!(&cells[..2], [network.card.as_str(), "0"], "{shown}");
    let cell = |name: &str| -> u64 {
        let place = heads.iter().position(|head| *head == name).expect(name);
        cells[place + 1].parse().expect(&shown)
    };
    assert_eq!(cell("accepted"), 3, "{shown}");
    assert_eq!(cell("dropped"), 0, "{shown}");
    assert!(cell("received") >= 10 && cell("sent") >= 8, "{shown}");
    assert!(cell("spare") > 2000, "{shown}");
    // A response that the client does not get is sent again.
    assert_eq!(cell("resent"), 0, "{shown}");
    let mut kept = Client::connect(&network);
    network.on_client("nft add table ip deaf");
    network.on_client("nft add chain ip deaf in { type filter hook input priority -400 ; }");
    network.on_client("nft add rule ip deaf in tcp sport 80 drop");
    kept.send("/");
    wait_for("a segment that is sent again", || {
        let json = ask("--json");
        let (_, number) = json.split_once("\"retransmitted\":").expect("the key");
        !number.starts_with('0')
    });
    network.on_client("nft flush ruleset");
    assert!(kept.response().ends_with("here"));
}

/// tcpdump, which sees nothing of these connections, reads what we write of them.
#[test]
fn a_dump_has_every_frame_of_a_connection_in_its_order() {
    let Some(network) = Network::new() else {
        return;
    };
    let master = serve(&network, "", HELLO);
    wait_until_taken(&master);
    let file = master.folder.join("frames.pcap");
    let dump = |more: &[&str]| {
        let mut command = std::process::Command::new(PROGRAM);
        command.args(["xdp", "dump", "--pid", &master.pid().to_string()]);
        command.args(more).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    };
    // Nobody has looked on before: nothing of this is in the file.
    network.get("/hello?early");
    let errors = master.folder.join("dump.log");
    let mut looking = dump(&["--seconds", "20", "-i", &network.card]);
    looking.arg(&file);
    looking.stderr(fs::File::create(&errors).unwrap());
    let mut looking = looking.spawn().unwrap();
    wait_for("the dump to begin", || {
        fs::read_to_string(&errors)
            .unwrap()
            .contains("are written to")
    });
    let second = dump(&["--seconds", "1", "/dev/null"]).output().unwrap();
    let second = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.contains("somebody looks on already"), "{second}");
    assert_eq!(
        network.get("/hello?seen"),
        format!("{CLIENT} {SERVER}:80\n")
    );
    let read = || {
        let printed = std::process::Command::new("tcpdump")
            .args(["-nn", "-A", "-S", "-r"])
            .arg(&file)
            .output()
            .expect("tcpdump(8)");
        String::from_utf8_lossy(&printed.stdout).into_owned()
    };
    wait_for("both ends of the connection", || {
        read().matches("Flags [F.]").count() >= 2
    });
    // Killed, as by an interrupt: the file is whole, and nothing is copied any more.
    looking.kill().unwrap();
    looking.wait().unwrap();
    let shown = read();
    let client = format!("{CLIENT}.");
    let expected = [
        "Flags [S],",
        "Flags [S.],",
        "GET /hello?seen",
        "200 OK",
        "Flags [F.]",
    ];
    let mut rest = shown.as_str();
    for what in expected {
        let at = rest
            .find(what)
            .unwrap_or_else(|| panic!("no {what} in its place: {shown}"));
        rest = &rest[at..];
    }
    assert!(
        shown.contains(&client) && !shown.contains("early"),
        "{shown}"
    );
    // Checksums are those that were sent.
    let verbose = std::process::Command::new("tcpdump")
        .args(["-nn", "-vv", "-r"])
        .arg(&file)
        .output()
        .unwrap();
    let verbose = String::from_utf8_lossy(&verbose.stdout).into_owned();
    assert!(verbose.contains("(correct)"), "{verbose}");
    assert!(
        !verbose.contains("incorrect") && !verbose.contains("bad cksum"),
        "{verbose}"
    );
    // A number of frames ends it; standard output is a place, too.
    let mut counted = dump(&["--count", "3"]);
    let mut counted = counted.stdout(Stdio::piped()).spawn().unwrap();
    wait_for("an end after three frames", || {
        network.get("/hello");
        counted.try_wait().unwrap().is_some()
    });
    let printed = counted.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&printed.stderr).into_owned();
    assert!(
        said.contains("3 frames were written, 0 came too fast"),
        "{said}"
    );
    assert_eq!(printed.stdout[..4], 0xa1b2_3c4d_u32.to_ne_bytes());
    // Where nothing can be seen, it says so.
    let none = dump(&["-i", "other0", "/dev/null"]).output().unwrap();
    assert_eq!(none.status.code(), Some(1));
    let none = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(
        none.contains("takes frames of \"other0\" past the kernel"),
        "{none}"
    );
}

/// Clock ticks, a hundred a second, that the worker has had of a processor.
fn ticks(master: &Master) -> u64 {
    let worker = master.workers()[0];
    let stat = fs::read_to_string(format!("/proc/{worker}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn the_profile_latency_asks_the_card_and_balanced_sleeps() {
    let Some(network) = Network::new() else {
        return;
    };
    let card = &network.card;
    let setting = |name: &str| {
        let value = network.on_server(&format!("cat /sys/class/net/{card}/{name}"));
        value.trim().to_owned()
    };
    let before = (
        setting("napi_defer_hard_irqs"),
        setting("gro_flush_timeout"),
    );
    let mut spent = Vec::new();
    for (profile, said, deferred) in [
        ("balanced", "(native, with copies),", "0"),
        ("latency", "(native, with copies, busy polling),", "2"),
    ] {
        let mut master = serve(&network, &format!("xdp_profile {profile};"), HELLO);
        wait_until_taken(&master);
        let log = master.read("logs/error.log");
        assert!(log.contains(said), "{profile}: {log}");
        assert_eq!(setting("napi_defer_hard_irqs"), deferred, "{profile}");
        let mut client = Client::connect(&network);
        for _ in 0..100 {
            client.get("/hello");
        }
        assert_eq!(network.kernel_connections(), 0, "{profile}");
        let begun = ticks(&master);
        std::thread::sleep(Duration::from_secs(2));
        spent.push(ticks(&master) - begun);
        client.get("/hello");
        drop(client);
        master.signal("QUIT");
        master.wait();
        let after = (
            setting("napi_defer_hard_irqs"),
            setting("gro_flush_timeout"),
        );
        assert_eq!(after, before, "{profile}");
    }
    // A master process that is killed leaves its settings; the next one sets the defaults again.
    let killed = serve(&network, "xdp_profile latency;", HELLO);
    wait_until_taken(&killed);
    drop(killed);
    assert_eq!(setting("napi_defer_hard_irqs"), "2");
    let next = serve(&network, "", HELLO);
    wait_until_taken(&next);
    assert_eq!(setting("napi_defer_hard_irqs"), "0");
    assert_eq!(setting("gro_flush_timeout"), "0");
    // Of two seconds without anything to do; the machine may have others who work.
    assert!(spent[0] < 10 && spent[1] > 40, "{spent:?}");
}
