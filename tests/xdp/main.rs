//! `use xdp`: connections of a network interface that pass the kernel by, with the kernel's own
//! TCP as the client, over a pair of virtual cards between two network namespaces.
//!
//! That takes root, and a kernel that permits BPF and AF_XDP. Without, the tests fail and say so,
//! unless TIDEGATE_TEST_WITHOUT_XDP is set.

mod network;
mod watching;
mod wire;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use network::{CARD_OF_CLIENT, CLIENT, Network, SERVER, sum_of};
use support::master::{Master, wait_for};

/// A server on its host, with these lines in its `events` and `http` blocks.
fn serve(network: &Network, events: &str, http: &str) -> Master {
    let mut master = Master::new();
    network.place(&mut master);
    configure(&master, network, events, http);
    fs::create_dir(master.folder.join("www")).unwrap();
    allow_all(&master);
    master.start();
    master
}

fn configure(master: &Master, network: &Network, events: &str, http: &str) {
    let card = &network.card;
    master.configure(&format!(
        "user nobody nogroup;
        events {{ use xdp; xdp_interface {card}; {events} }}
        http {{
            access_log @/logs/access.log;
            {http}
        }}"
    ));
}

/// The worker is somebody else, and has to reach the folder.
fn allow_all(master: &Master) {
    use std::os::unix::fs::PermissionsExt;
    let all = fs::Permissions::from_mode(0o777);
    for folder in ["", "logs", "www"] {
        fs::set_permissions(master.folder.join(folder), all.clone()).unwrap();
    }
}

const HELLO: &str = r#"server { listen 80; root @/www;
    location = /hello { return 200 "$remote_addr $server_addr:$server_port\n"; }
}"#;

/// The line of the log that says that the worker has the queue, and that the filter takes.
fn wait_until_taken(master: &Master) {
    master.wait_for_text("logs/error.log", "pass the kernel by");
}

#[test]
fn a_get_passes_the_kernel_by() {
    let Some(network) = Network::new() else {
        return;
    };
    let master = serve(&network, "", HELLO);
    wait_until_taken(&master);
    assert_eq!(network.get("/hello"), format!("{CLIENT} {SERVER}:80\n"));
    let mut kept = Client::connect(&network);
    assert!(
        kept.get("/hello")
            .ends_with(&format!("{CLIENT} {SERVER}:80\n"))
    );
    assert_eq!(
        network.kernel_connections(),
        0,
        "{}",
        master.read("logs/error.log")
    );
    master.wait_for_text("logs/access.log", "GET /hello");
    // The worker has no capability, and the master none of the descriptors.
    for worker in master.workers() {
        let status = fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    }
}

/// The load tester's own connections pass the kernel by, towards our TCP and the kernel's.
#[test]
fn connections_of_bench_pass_the_kernel_by() {
    for events in ["use xdp; xdp_interface server0;", "use epoll;"] {
        let Some(network) = Network::new() else {
            return;
        };
        let mut master = Master::new();
        network.place(&mut master);
        master.configure(&format!(
            "user nobody nogroup; events {{ {events} }}
            http {{ access_log @/logs/access.log; {HELLO} }}"
        ));
        fs::create_dir(master.folder.join("www")).unwrap();
        allow_all(&master);
        master.start();
        if events.contains("xdp") {
            wait_until_taken(&master);
        } else {
            network.on_server("ethtool -K server0 tx off");
        }
        let program = env!("CARGO_BIN_EXE_tidegate");
        for more in ["", "--new-connections "] {
            let before = network.kernel_opened_by_client();
            let printed = network.on_client(&format!(
                "{program} bench --xdp {CARD_OF_CLIENT} -c 4 -n 200 {more}http://{SERVER}/hello"
            ));
            assert!(printed.contains("200"), "{events} {more}: {printed}");
            // One to see whether somebody listens.
            let opened = network.kernel_opened_by_client() - before;
            assert_eq!(opened, 1, "{events} {more}: {printed}");
        }
        let answered = || {
            let log = master.read("logs/access.log");
            log.lines().filter(|line| line.contains(" 200 ")).count() == 400
        };
        wait_for("400 answers in the log", answered);
    }
}

/// Where the load tester cannot connect by the interface it says so.
#[test]
fn bench_says_why_an_interface_cannot_be_used() {
    let Some(network) = Network::new() else {
        return;
    };
    let kernels = HELLO.replace("listen 80", "listen 81");
    let passing = HELLO.replace("listen 80", "listen 80 xdp");
    let master = serve(&network, "", &format!("{passing} {kernels}"));
    wait_until_taken(&master);
    let program = env!("CARGO_BIN_EXE_tidegate");
    let bench = |more: &str, port: u16| {
        let url = format!("http://{SERVER}:{port}/hello");
        let failed = network.try_on_client(&format!("{program} bench -c 1 -n 1 {more} {url}"));
        failed.unwrap_err()
    };
    let missing = bench("--xdp nothing0", 80);
    assert!(
        missing.contains("looking up for interface \"nothing0\" failed"),
        "{missing}"
    );
    let both = bench("--xdp client0 --threads 2", 80);
    assert!(both.contains("cannot be used with"), "{both}");
    // The answers of the kernel's listener have no right checksums here.
    let warning = bench("--timeout 1s --xdp client0", 81);
    assert!(warning.contains("ethtool -K INTERFACE tx off"), "{warning}");
}

#[test]
fn an_interface_that_cannot_be_used_stays_with_the_kernel() {
    let Some(network) = Network::new() else {
        return;
    };
    let mut master = Master::new();
    network.place(&mut master);
    let configure = |lines: &str| {
        master.configure(&format!(
            "user nobody nogroup; events {{ use xdp; xdp_interface nothing0; {lines} }}
            http {{ access_log off; {HELLO} }}"
        ));
    };
    configure("xdp_required on;");
    let (code, printed) = master.run(&[]);
    assert_eq!(code, Some(1), "{printed}");
    assert!(
        printed.contains("[emerg] looking up for interface \"nothing0\""),
        "{printed}"
    );
    configure("");
    fs::create_dir(master.folder.join("www")).unwrap();
    allow_all(&master);
    master.start();
    master.wait_for_text("logs/error.log", "the kernel serves its connections");
    assert_eq!(network.get("/hello"), format!("{CLIENT} {SERVER}:80\n"));
}

#[test]
fn a_second_program_has_to_do_without() {
    let Some(network) = Network::new() else {
        return;
    };
    let first = serve(&network, "", HELLO);
    wait_until_taken(&first);
    let second = serve(&network, "", &HELLO.replace("listen 80", "listen 81"));
    let why = "another XDP program is attached to it";
    second.wait_for_text("logs/error.log", why);
    let hello = network.on_client(&format!("curl -sS -m 20 http://{SERVER}:81/hello"));
    assert_eq!(hello, format!("{CLIENT} {SERVER}:81\n"));
    // Once the first has gone, the second has the interface by itself.
    drop(first);
    wait_until_taken(&second);
    assert_eq!(second.read("logs/error.log").matches(why).count(), 1);
    let hello = network.on_client(&format!("curl -sS -m 20 http://{SERVER}:81/hello"));
    assert_eq!(hello, format!("{CLIENT} {SERVER}:81\n"));
}

#[test]
fn only_listeners_that_say_so_are_taken_where_any_does() {
    let Some(network) = Network::new() else {
        return;
    };
    let http = r#"server { listen 80 xdp; return 200 taken; }
        server { listen 8080; return 200 kernel; }"#;
    let master = serve(&network, "", http);
    wait_until_taken(&master);
    let log = master.read("logs/error.log");
    assert!(
        log.contains(&format!("connections to {SERVER}:80 by")),
        "{log}"
    );
    assert_eq!(network.get("/"), "taken");
    let other = network.on_client(&format!("curl -sS -m 20 http://{SERVER}:8080/"));
    assert_eq!(other, "kernel");
    // What is none of ours is the kernel's as ever.
    let refused = network.try_on_client(&format!("curl -sS -m 20 http://{SERVER}:82/"));
    assert!(refused.unwrap_err().contains("exit status: 7"));
    assert_eq!(
        network.on_server("curl -sS -m 20 http://127.0.0.1/"),
        "taken"
    );
}

/// Writes a file of the site with content that repeats nowhere; its sum.
fn write_file(master: &Master, name: &str, length: usize) -> String {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    let file = master.folder.join("www").join(name);
    fs::write(&file, bytes).unwrap();
    sum_of(&file)
}

/// The same for a file that would take long to make up: each part of a megabyte is another one.
fn write_large_file(master: &Master, name: &str, length: usize) -> String {
    write_file(master, name, 1 << 20);
    let file = master.folder.join("www").join(name);
    let mut part = fs::read(&file).unwrap();
    let mut out = fs::File::create(&file).unwrap();
    for number in 0..length / part.len() {
        part[..8].copy_from_slice(&(number as u64).to_le_bytes());
        out.write_all(&part).unwrap();
    }
    sum_of(&file)
}

/// The sum of what curl gets by a path.
fn fetched(network: &Network, path: &str, options: &str) -> String {
    let mut command = network.client_command("sh");
    let script = format!("curl -sS -m 100 {options} http://{SERVER}{path} | sha256sum");
    let output = command.args(["-c", &script]).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.is_empty(), "{errors}");
    printed.split(' ').next().unwrap_or_default().to_owned()
}

/// Three hundred responses that stand still are more segments than the card's memory has frames.
#[test]
fn clients_that_never_read_leave_frames_for_others() {
    let Some(network) = Network::new() else {
        return;
    };
    let master = serve(&network, "", HELLO);
    wait_until_taken(&master);
    write_file(&master, "large", 16 << 20);
    let sum = write_file(&master, "other", 4 << 20);
    let silent = (0..300).map(|_| {
        let mut client = Client::connect(&network);
        client.send("/large");
        client
    });
    let silent: Vec<Client> = silent.collect();
    let mut client = Client::connect(&network);
    for _ in 0..100 {
        client.get("/hello");
    }
    assert_eq!(fetched(&network, "/other", ""), sum);
    assert_eq!(network.kernel_connections(), 0);
    drop(silent);
}

/// Requests of one turn share a look at their file; none of them gets what was there before it was
/// sent.
#[test]
fn a_file_that_changes_is_seen_by_the_next_request() {
    let Some(network) = Network::new() else {
        return;
    };
    let master = serve(&network, "", HELLO);
    wait_until_taken(&master);
    let file = master.folder.join("www/changing");
    let next = master.folder.join("www/next");
    let write = |content: &str| {
        fs::write(&next, content).unwrap();
        fs::rename(&next, &file).unwrap();
    };
    write("0");
    let program = env!("CARGO_BIN_EXE_tidegate");
    let load = format!("{program} bench --json -c 32 -d 4s http://{SERVER}/changing");
    std::thread::scope(|scope| {
        let load = scope.spawn(|| network.on_client(&load));
        std::thread::sleep(Duration::from_millis(500));
        let mut clients = [Client::connect(&network), Client::connect(&network)];
        let mut changes = 0;
        while !load.is_finished() {
            changes += 1;
            write(&changes.to_string());
            for client in &mut clients {
                let response = client.get("/changing");
                let body = response.split("\r\n\r\n").nth(1);
                assert_eq!(body, Some(changes.to_string().as_str()));
            }
        }
        assert!(changes > 5, "{changes}");
        let report = load.join().unwrap();
        assert!(report.contains("\"failed\":0,"), "{report}");
    });
}

#[test]
fn connections_begun_in_the_kernel_live_on() {
    let Some(network) = Network::new() else {
        return;
    };
    let mut master = Master::new();
    network.place(&mut master);
    let http = format!("access_log off; {HELLO}");
    master.configure(&format!(
        "user nobody nogroup; events {{ use epoll; }} http {{ {http} }}"
    ));
    fs::create_dir(master.folder.join("www")).unwrap();
    allow_all(&master);
    master.start();
    // A gigabyte that begins before, and less that begins after it.
    let sum = write_file(&master, "large", 64 << 20);
    let huge = write_large_file(&master, "huge", 1 << 30);
    let mut kept = Client::connect(&network);
    kept.get("/hello");
    std::thread::scope(|scope| {
        let options = "--limit-rate 16M";
        let begun = scope.spawn(|| fetched(&network, "/huge", "--limit-rate 120M"));
        wait_for("its connection", || network.kernel_connections() == 2);
        configure(&master, &network, "", HELLO);
        master.signal("HUP");
        wait_until_taken(&master);
        let mut passing_by = Client::connect(&network);
        passing_by.get("/hello");
        // The idle connection may have been ended with its worker's listeners; the download goes on.
        assert!((1..=2).contains(&network.kernel_connections()));
        assert_eq!(begun.join().unwrap(), huge);
        // And the other way round.
        master.configure(&format!(
            "user nobody nogroup; events {{ use epoll; }} http {{ {http} }}"
        ));
        let begun = scope.spawn(|| fetched(&network, "/large", options));
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(network.kernel_connections(), 0);
        let before = master.workers();
        master.signal("HUP");
        wait_for("a new worker", || master.workers() != before);
        wait_for("the kernel's connections again", || {
            let mut client = Client::connect(&network);
            client.get("/hello");
            network.kernel_connections() > 0
        });
        assert_eq!(begun.join().unwrap(), sum);
    });
}

#[test]
fn a_reload_changes_listeners_and_no_connection() {
    let Some(network) = Network::new() else {
        return;
    };
    let master = serve(&network, "", HELLO);
    let sum = write_file(&master, "large", 32 << 20);
    wait_until_taken(&master);
    std::thread::scope(|scope| {
        let begun = scope.spawn(|| fetched(&network, "/large", "--limit-rate 16M"));
        std::thread::sleep(Duration::from_millis(300));
        let both = HELLO.replace("listen 80;", "listen 80; listen 81;");
        configure(&master, &network, "", &both);
        master.signal("HUP");
        master.wait_for_text("logs/error.log", &format!("connections to {SERVER}:81 by"));
        let second = network.on_client(&format!("curl -sS -m 20 http://{SERVER}:81/hello"));
        assert_eq!(second, format!("{CLIENT} {SERVER}:81\n"));
        // The port of the download goes; the download does not.
        configure(
            &master,
            &network,
            "",
            &HELLO.replace("listen 80;", "listen 81;"),
        );
        master.signal("HUP");
        wait_for("the end of port 80", || {
            let tried = network.try_on_client(&format!("curl -sS -m 20 http://{SERVER}/hello"));
            tried.is_err_and(|error| error.contains("exit status: 7"))
        });
        assert_eq!(begun.join().unwrap(), sum);
    });
    assert_eq!(master.workers().len(), 1, "no other process was needed");
}

#[test]
fn after_a_crash_the_kernel_serves_until_another_worker_has_the_interface() {
    let Some(network) = Network::new() else {
        return;
    };
    let master = serve(&network, "", HELLO);
    wait_until_taken(&master);
    for _ in 0..3 {
        let mut kept = Client::connect(&network);
        kept.get("/hello");
        let workers = master.workers();
        let log = master.read("logs/error.log");
        let taken = log.matches("pass the kernel by").count();
        support::signal(workers[0], "KILL");
        // No request is refused: the port is the kernel's in between.
        let begun = std::time::Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            network.get("/hello");
        }
        wait_for("the interface again", || {
            master
                .read("logs/error.log")
                .matches("pass the kernel by")
                .count()
                > taken
        });
        assert!(kept.is_over(), "its connection went with the worker");
        let mut next = Client::connect(&network);
        next.get("/hello");
        assert_eq!(network.kernel_connections(), 0);
    }
}

#[test]
fn a_client_that_leaves_checksums_to_its_card_is_the_kernels() {
    let Some(network) = Network::new() else {
        return;
    };
    let master = serve(&network, "", HELLO);
    wait_until_taken(&master);
    network.on_client(&format!("ethtool -K {CARD_OF_CLIENT} tx on"));
    let mut client = Client::connect(&network);
    assert!(client.get("/hello").contains(SERVER));
    assert_eq!(network.kernel_connections(), 1);
}

#[test]
fn rules_of_a_firewall_keep_the_interface_with_the_kernel() {
    let Some(network) = Network::new() else {
        return;
    };
    network.on_server("nft add table inet guard");
    network.on_server("nft add chain inet guard incoming { type filter hook input priority 0 ; }");
    // A chain without a rule filters nothing.
    let master = serve(&network, "", HELLO);
    wait_until_taken(&master);
    drop(master);
    network.on_server("nft add rule inet guard incoming tcp dport 22 drop");
    let master = serve(&network, "", HELLO);
    master.wait_for_text("logs/error.log", "nftables has rules in \"guard incoming\"");
    let mut client = Client::connect(&network);
    client.get("/hello");
    assert_eq!(network.kernel_connections(), 1);
    drop((client, master));
    let master = serve(&network, "xdp_bypass_firewall on;", HELLO);
    wait_until_taken(&master);
    let mut client = Client::connect(&network);
    client.get("/hello");
    assert_eq!(network.kernel_connections(), 0);
}

#[test]
fn frames_are_taken_in_the_driver_or_behind_it() {
    let Some(network) = Network::new() else {
        return;
    };
    for (mode, said, shown) in [
        ("native", "(native, with copies)", " xdp "),
        ("generic", "(generic)", " xdpgeneric "),
        ("auto", "(native, with copies)", " xdp "),
    ] {
        let master = serve(&network, &format!("xdp_mode {mode};"), HELLO);
        wait_until_taken(&master);
        let log = master.read("logs/error.log");
        assert!(log.contains(said), "{mode}: {log}");
        let link = network.on_server(&format!("ip link show {}", network.card));
        assert!(link.contains(shown), "{mode}: {link}");
        let mut client = Client::connect(&network);
        client.get("/hello");
        assert_eq!(network.kernel_connections(), 0, "{mode}");
    }
}

/// A connection that is kept.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(network: &Network) -> Client {
        Client(BufReader::new(network.connect()))
    }

    fn get(&mut self, path: &str) -> String {
        self.send(path);
        self.response()
    }

    fn send(&mut self, path: &str) {
        let Client(connection) = self;
        write!(
            connection.get_mut(),
            "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"
        )
        .unwrap();
    }

    /// One response, whose length its head tells.
    fn response(&mut self) -> String {
        let Client(connection) = self;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let count = connection.read_line(&mut head).unwrap();
            assert!(count > 0, "cut off: {head}");
        }
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "))
            .expect("a length");
        let mut body = vec![0; length.parse().unwrap()];
        connection.read_exact(&mut body).unwrap();
        head + &String::from_utf8(body).unwrap()
    }

    /// Whether the other end has ended it: what is sent is answered by a reset at the latest.
    fn is_over(&mut self) -> bool {
        let Client(connection) = self;
        let _ = write!(connection.get_mut(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        matches!(connection.read(&mut [0]), Ok(0) | Err(_))
    }
}
