//! Servers as people run them, behind the program: each with its own clients, a health check and a
//! reload in the middle. All are Debian's (tests/install-packages); a test whose server is not
//! installed says so and ends.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use support::engines;
use support::is_nginx;
use support::master::{Master, wait_for};
use support::port::free_port;

use super::{configure_whole, connect, reload, start};

/// A program that ends with the test.
struct Program(Child);

impl Program {
    fn start(command: &mut Command, log: &Path) -> Program {
        let log = fs::File::create(log).unwrap();
        let command = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap());
        Program(command.stderr(log).spawn().unwrap())
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            support::signal(self.0.id(), "TERM");
            self.end();
        }
    }
}

/// A folder of a server's own, which every user may enter.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        Folder(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn read(&self, name: &str) -> String {
        let bytes = fs::read(self.path(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether all of these are installed.
fn are_there(programs: &[&str]) -> bool {
    let is_missing = |program: &&&str| {
        let found = Command::new("sh")
            .args(["-c", "command -v \"$0\"", program])
            .env("PATH", "/usr/bin:/usr/sbin:/bin:/usr/lib/postgresql/15/bin")
            .output();
        !found.unwrap().status.success()
    };
    let missing = programs.iter().find(is_missing);
    if let Some(program) = missing {
        eprintln!("{program} is not installed (tests/install-packages): skipped");
    }
    missing.is_none() && !is_nginx()
}

/// Runs a client, which must succeed; what it has said.
fn said(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let (said, errors) = (
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr),
    );
    assert!(status.success(), "{command:?}: {said}{errors}");
    said.into_owned()
}

/// A server in a group of its own, asked every 100 ms in this way.
fn checked(port: u16, listen: u16, check: &str) -> String {
    format!(
        "upstream group {{ zone group 64k; server 127.0.0.1:{port}; }}
         server {{ listen 127.0.0.1:{listen}; proxy_pass group;
             health_check interval=100ms {check}; }}"
    )
}

fn is_up(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[test]
fn redis() {
    if !are_there(&["redis-server", "redis-cli", "redis-benchmark"]) {
        return;
    }
    for engine in engines::lines() {
        let folder = Folder::new("redis");
        let (port, listen) = (free_port(), free_port());
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--dir"]).arg(&folder.0);
        let mut server = Program::start(&mut command, &folder.path("log"));
        wait_for("Redis", || is_up(port));
        let master = start(engine, &checked(port, listen, "type=redis"));
        let cli = |arguments: &[&str]| {
            let mut command = Command::new("redis-cli");
            said(command.args(["-p", &listen.to_string()]).args(arguments))
        };
        assert_eq!(cli(&["set", "key", "before"]), "OK\n");
        let mut kept = connect(listen);
        kept.write_all(b"WATCH key\r\n").unwrap();
        let mut heard = [0; 5];
        kept.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"+OK\r\n");
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &listen.to_string(), "-n", "20000", "-c", "20", "-q"]);
        command.args(["-t", "set,get"]);
        let log = folder.path("benchmark");
        let mut load = Program::start(&mut command, &log);
        for _ in 0..3 {
            reload(&master);
        }
        assert!(
            load.0.wait().unwrap().success(),
            "{}",
            folder.read("benchmark")
        );
        assert!(folder.read("benchmark").contains("GET: "));
        // A session that has begun before goes on.
        kept.write_all(b"GET key\r\n").unwrap();
        let mut heard = [0; 12];
        kept.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"$6\r\nbefore\r\n");
        assert!(!master.read("logs/info.log").contains("unhealthy"));
        server.end();
        master.wait_for_text("logs/info.log", "peer is unhealthy");
    }
}

#[test]
fn postgres() {
    let home = "/usr/lib/postgresql/15/bin/";
    if !are_there(&["initdb", "psql", "pgbench"]) {
        return;
    }
    let folder = Folder::new("postgres");
    let data = folder.path("data");
    // The server refuses to be root.
    let is_root = said(Command::new("id").arg("-u")).trim() == "0";
    let as_user = |program: &str| {
        let program = format!("{home}{program}");
        if !is_root {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
        command.arg(program);
        command
    };
    if is_root {
        said(Command::new("chown").arg("postgres").arg(&folder.0));
    }
    said(
        as_user("initdb")
            .args(["-A", "trust", "-U", "tester", "--no-sync", "-D"])
            .arg(&data),
    );
    let port = free_port();
    let mut command = as_user("postgres");
    command.args(["-p", &port.to_string(), "-h", "127.0.0.1", "-F", "-k"]);
    command.arg(&folder.0).arg("-D").arg(&data);
    let mut server = Program::start(&mut command, &folder.path("log"));
    wait_for("PostgreSQL", || {
        folder.read("log").contains("ready to accept connections")
    });
    let mut masters = Vec::new();
    for engine in engines::lines() {
        let listen = free_port();
        let master = start(engine, &checked(port, listen, "type=postgres user=tester"));
        let of = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(["-h", "127.0.0.1", "-p", &listen.to_string(), "-U", "tester"]);
            command.args(arguments).arg("postgres");
            command
        };
        assert_eq!(said(&mut of("psql", &["-Atc", "select 40 + 2"])), "42\n");
        said(&mut of("pgbench", &["-i", "-q"]));
        let mut command = of("pgbench", &["-c", "4", "-t", "300"]);
        let mut load = Program::start(&mut command, &folder.path("pgbench"));
        for _ in 0..3 {
            reload(&master);
        }
        let ended = load.0.wait().unwrap();
        let report = folder.read("pgbench");
        assert!(ended.success(), "{report}");
        assert!(report.contains("processed: 1200/1200"), "{report}");
        assert!(!master.read("logs/info.log").contains("unhealthy"));
        masters.push(master);
    }
    // What comes from checks are no errors to the server.
    assert!(
        !folder.read("log").contains("invalid"),
        "{}",
        folder.read("log")
    );
    server.end();
    for master in masters {
        master.wait_for_text("logs/info.log", "peer is unhealthy");
    }
}

#[test]
fn dns() {
    if !are_there(&["dnsmasq", "dig"]) {
        return;
    }
    for engine in engines::lines() {
        let folder = Folder::new("dns");
        let (port, listen) = (free_port(), free_port());
        let mut command = Command::new("dnsmasq");
        command.args([
            "--no-daemon",
            "--no-resolv",
            "--no-hosts",
            "--conf-file=/dev/null",
        ]);
        command.args(["--bind-interfaces", "--listen-address=127.0.0.1"]);
        command.arg(format!("--port={port}"));
        command.args(["--address=/www.example.test/192.0.2.80", "--pid-file="]);
        // More than a datagram of a client without EDNS takes: it asks again over TCP.
        for number in 0..8 {
            let text = format!("{number}").repeat(200);
            command.arg(format!("--txt-record=long.example.test,{text}"));
        }
        let mut server = Program::start(&mut command, &folder.path("log"));
        wait_for("dnsmasq", || is_up(port));
        let master = start(
            engine,
            &format!(
                "match dns {{
                     send \"\\xAB\\xCD\\x01\\x00\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\x01\";
                     expect ~ \"^\\xAB\\xCD\";
                 }}
                 health_check_timeout 1s;
                 upstream names {{ zone names 64k; server 127.0.0.1:{port}; }}
                 server {{ listen 127.0.0.1:{listen} udp; proxy_pass names; proxy_responses 1;
                     health_check udp interval=100ms match=dns; }}
                 server {{ listen 127.0.0.1:{listen}; proxy_pass names; }}"
            ),
        );
        let dig = |arguments: &[&str]| {
            let mut command = Command::new("dig");
            command.args([
                "@127.0.0.1",
                "-p",
                &listen.to_string(),
                "+tries=1",
                "+time=20",
            ]);
            said(command.arg("+short").args(arguments))
        };
        let all_texts: String = (0..8)
            .map(|number| format!("{number}").repeat(200))
            .collect();
        for round in 0..3 {
            for _ in 0..5 {
                assert_eq!(dig(&["www.example.test"]), "192.0.2.80\n");
                assert_eq!(dig(&["www.example.test", "+tcp"]), "192.0.2.80\n");
            }
            let texts = dig(&["long.example.test", "TXT", "+noedns"]);
            assert_eq!(texts.len(), all_texts.len() + 8 * 3, "{texts}");
            if round < 2 {
                reload(&master);
            }
        }
        let log = master.read("logs/sessions.log");
        let count = |protocol: &str| log.lines().filter(|line| line.contains(protocol)).count();
        assert!(count(" UDP 200 ") >= 15, "{log}");
        assert!(count(" TCP 200 ") >= 15, "{log}");
        assert!(!log.contains(" 502 "), "{log}");
        assert!(!master.read("logs/info.log").contains("unhealthy"));
        server.end();
        master.wait_for_text("logs/info.log", "peer is unhealthy");
    }
}

#[test]
fn mosquitto() {
    if !are_there(&["mosquitto", "mosquitto_pub", "mosquitto_sub"]) {
        return;
    }
    for engine in engines::lines() {
        let folder = Folder::new("mosquitto");
        let (port, listen) = (free_port(), free_port());
        let configuration = folder.path("mosquitto.conf");
        let lines = format!("listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n");
        fs::write(&configuration, lines).unwrap();
        let mut command = Command::new("mosquitto");
        command.args(["-v", "-c"]).arg(&configuration);
        let mut server = Program::start(&mut command, &folder.path("log"));
        wait_for("mosquitto", || is_up(port));
        let master = start(
            engine,
            &format!(
                "upstream brokers {{ zone brokers 64k; hash $mqtt_preread_clientid consistent;
                     server 127.0.0.1:{port}; }}
                 mqtt_preread on; mqtt on;
                 server {{ listen 127.0.0.1:{listen}; proxy_pass brokers;
                     mqtt_set_connect clientid by-tidegate-$mqtt_preread_clientid;
                     mqtt_set_connect username $mqtt_preread_username-$remote_addr;
                     health_check interval=100ms; }}"
            ),
        );
        for version in ["mqttv311", "mqttv5"] {
            let client = |program: &str, id: &str| {
                let mut command = Command::new(program);
                command.args(["-h", "127.0.0.1", "-p", &listen.to_string(), "-t", "tides"]);
                command.args(["-V", version, "-u", "bob", "-q", "1", "-i"]);
                command.arg(format!("{id}-{version}"));
                command
            };
            let heard = folder.path("heard");
            let mut command = client("mosquitto_sub", "reader");
            let mut reader = Program::start(command.args(["-C", "2"]), &heard);
            let subscribed = format!("by-tidegate-reader-{version} 1 tides");
            wait_for("subscription", || folder.read("log").contains(&subscribed));
            said(client("mosquitto_pub", "one").args(["-m", "high water"]));
            reload(&master);
            said(client("mosquitto_pub", "two").args(["-m", "low water"]));
            assert!(reader.0.wait().unwrap().success());
            assert_eq!(folder.read("heard"), "high water\nlow water\n");
            assert!(folder.read("log").contains("u'bob-127.0.0.1'"));
        }
        assert!(!master.read("logs/info.log").contains("unhealthy"));
        server.end();
        master.wait_for_text("logs/info.log", "peer is unhealthy");
    }
}

#[test]
fn ssh_beside_https() {
    if !are_there(&["/usr/sbin/sshd", "ssh", "ssh-keygen", "curl", "openssl"]) {
        return;
    }
    if said(Command::new("id").arg("-u")).trim() != "0" {
        return; // sshd lets in nobody else then
    }
    let user = said(Command::new("id").arg("-un")).trim().to_owned();
    fs::create_dir_all("/run/sshd").unwrap();
    for engine in engines::lines() {
        let folder = Folder::new("ssh");
        let [port, listen, https] = [(); 3].map(|()| free_port());
        for name in ["host", "client"] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]);
            said(command.arg(folder.path(name)));
        }
        let mut command = Command::new("/usr/sbin/sshd");
        command.args(["-D", "-e", "-f", "/dev/null", "-p", &port.to_string()]);
        command.arg("-h").arg(folder.path("host"));
        for option in [
            "ListenAddress=127.0.0.1",
            "UsePAM=no",
            "PidFile=none",
            "StrictModes=no",
        ] {
            command.args(["-o", option]);
        }
        command.arg("-o").arg(format!(
            "AuthorizedKeysFile={}",
            folder.path("client.pub").display()
        ));
        let mut server = Program::start(&mut command, &folder.path("log"));
        wait_for("sshd", || is_up(port));
        let mut command = Command::new("openssl");
        command.args([
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=www.test",
        ]);
        command.arg("-keyout").arg(folder.path("key"));
        said(command.arg("-out").arg(folder.path("certificate")));
        let mut master = Master::new();
        let lines = format!(
            "map $ssl_preread_server_name $behind {{ www.test 127.0.0.1:{https}; \"\" ssh; }}
             match ssh {{ expect \"SSH-2.0-\"; }}
             upstream ssh {{ zone ssh 64k; server 127.0.0.1:{port}; }}
             server {{ listen 127.0.0.1:{listen}; ssl_preread on; proxy_pass $behind; }}
             server {{ listen 127.0.0.1:{}; proxy_pass ssh;
                 health_check interval=100ms match=ssh; }}",
            free_port()
        );
        let others = format!(
            "http {{ access_log off; server {{ listen 127.0.0.1:{https} ssl; return 200 hello;
                 ssl_certificate {0}/certificate; ssl_certificate_key {0}/key; }} }}",
            folder.0.display()
        );
        configure_whole(&master, engine, &lines, &others);
        master.start();
        let mut command = Command::new("ssh");
        command.args(["-p", &listen.to_string(), "-F", "/dev/null", "-i"]);
        command.arg(folder.path("client"));
        for option in [
            "BatchMode=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
        ] {
            command.args(["-o", option]);
        }
        command.arg(format!("{user}@127.0.0.1")).arg("cat");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut shell = child.unwrap();
        let mut input = shell.stdin.take().unwrap();
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        let curl = || {
            let mut command = Command::new("curl");
            command.args(["-sk", "--max-time", "60"]);
            command
                .arg("--resolve")
                .arg(format!("www.test:{listen}:127.0.0.1"));
            said(command.arg(format!("https://www.test:{listen}/")))
        };
        let mut line = String::new();
        for text in ["before\n", "after\n"] {
            input.write_all(text.as_bytes()).unwrap();
            line.clear();
            output.read_line(&mut line).unwrap();
            assert_eq!(line, text, "{}", folder.read("log"));
            assert_eq!(curl(), "hello");
            if text == "before\n" {
                reload(&master);
            }
        }
        drop(input);
        assert!(shell.wait().unwrap().success());
        assert!(!master.read("logs/info.log").contains("unhealthy"));
        server.end();
        master.wait_for_text("logs/info.log", "peer is unhealthy");
    }
}
