//! What servers have beside commands: passwords, TLS, watchers, items over a restart, and load for
//! them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::{Server, folder, read_exactly, refused, wait_for};

#[test]
fn who_must_say_who_he_is_is_let_in_by_the_file() {
    let at = folder();
    let users = at.join("users");
    fs::write(&users, "anna:secret\nbert:x").unwrap();
    let path = users.display().to_string();
    let server = Server::start(&["-Y", &path]);
    let bad = "CLIENT_ERROR unauthenticated\r\n";
    assert_eq!(server.ask(b"get a\r\nversion\r\n"), format!("{bad}{bad}"));
    let wrong = "CLIENT_ERROR authentication failure\r\n";
    let input = b"set x 0 0 11\r\nanna secreT\r\nget a\r\n";
    assert_eq!(server.ask(input), format!("{wrong}{bad}"));
    let input = b"set x 0 0 11\r\nanna secret\r\nset a 0 0 1\r\n1\r\nget a x\r\n";
    let expected = "STORED\r\nSTORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n";
    assert_eq!(server.ask(input), expected);
    let long = server.ask(b"set x 0 0 2147483646\r\n");
    assert_eq!(long, "CLIENT_ERROR auth token too long\r\n");
    // The file is read again at a signal; one that is wrong changes nothing.
    fs::write(&users, "carl:new\n").unwrap();
    support::signal(server.child.id(), "HUP");
    let input = b"set x 0 0 8\r\ncarl new\r\n";
    wait_for("the file is read", || server.ask(input) == "STORED\r\n");
    fs::write(&users, "nonsense\n").unwrap();
    support::signal(server.child.id(), "HUP");
    let said = || fs::read_to_string(server.folder.join("stderr")).unwrap();
    wait_for("the mistake is told", || {
        said().contains("line 1 of ") && said().contains("the users before stay")
    });
    assert_eq!(server.ask(input), "STORED\r\n");
    let (code, text) = refused(&["-u", "root", "-l", "127.0.0.1", "-Y", "/nonexistent"]);
    assert!(
        code == Some(1) && text.contains("/nonexistent cannot be read"),
        "{text}"
    );
    let _ = fs::remove_dir_all(at);
}

/// A packet of the binary protocol.
fn packet(opcode: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut head = [0; 24];
    (head[0], head[1], head[3]) = (0x80, opcode, key.len() as u8);
    head[11] = (key.len() + value.len()) as u8;
    [&head, key, value].concat()
}

/// Status and value of the next answer.
fn answer(stream: &mut TcpStream) -> (u8, String) {
    let mut head = [0; 24];
    stream.read_exact(&mut head).unwrap();
    let mut body = vec![0; usize::from(head[11])];
    stream.read_exact(&mut body).unwrap();
    (head[7], String::from_utf8_lossy(&body).into_owned())
}

#[test]
fn packets_have_sasl_with_the_mechanism_plain() {
    let at = folder();
    let users = at.join("users");
    fs::write(&users, "anna:secret\n").unwrap();
    let path = users.display().to_string();
    // Without -Y the file is the environment's, as in memcached.
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("memcached").env("MEMCACHED_SASL_PWDB", &path);
    let server = Server::start_by(command, folder(), &["-S"]);
    let mut stream = server.connect();
    let (version, list) = (packet(0x0b, b"", b""), packet(0x20, b"", b""));
    stream.write_all(&[version, list].concat()).unwrap();
    assert_eq!(answer(&mut stream).0, 0);
    assert_eq!(answer(&mut stream), (0, "PLAIN".to_owned()));
    for (mechanism, message, status) in [
        (&b"PLAIN"[..], &b"\0anna\0wrong"[..], 0x20),
        (b"CRAM-MD5", b"", 0x20),
        (&[b'X'; 40], b"", 0x04),
        (b"PLAIN", b"\0anna\0secret", 0),
    ] {
        stream.write_all(&packet(0x21, mechanism, message)).unwrap();
        assert_eq!(
            answer(&mut stream).0,
            status,
            "{}",
            mechanism.escape_ascii()
        );
    }
    stream.write_all(&packet(0x00, b"a", b"")).unwrap();
    assert_eq!(answer(&mut stream).0, 1, "it is let in, and finds nothing");
    // Another connection is not, and is closed.
    let mut other = server.connect();
    other.write_all(&packet(0x00, b"a", b"")).unwrap();
    assert_eq!(answer(&mut other).0, 0x20);
    assert_eq!(other.read(&mut [0]).unwrap(), 0);
    // Lines are not spoken there.
    assert_eq!(server.ask(b"get a\r\n"), "");
    let _ = fs::remove_dir_all(at);
}

/// A certificate for 127.0.0.1 with its key, made for the test; `None` without openssl.
pub(super) fn certificate(at: &std::path::Path, name: &str) -> Option<(String, String)> {
    let (chain, key) = (
        at.join(format!("{name}.crt")),
        at.join(format!("{name}.key")),
    );
    let output = Command::new("openssl")
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
        ])
        .arg(format!("/CN={name}"))
        .arg("-out")
        .arg(&chain)
        .arg("-keyout")
        .arg(&key)
        .output();
    output.ok().filter(|output| output.status.success())?;
    Some((chain.display().to_string(), key.display().to_string()))
}

/// What openssl's client is answered to this, and what it tells of the handshake.
pub(super) fn ask_by_tls(port: u16, input: &str, arguments: &[&str]) -> String {
    let mut child = Command::new("openssl")
        .args([
            "s_client",
            "-ign_eof",
            "-connect",
            &format!("127.0.0.1:{port}"),
        ])
        .args(arguments)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let input = format!("{input}quit\r\n");
    // Who is refused in the handshake does not read.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn tls_is_spoken_where_the_command_line_says_so() {
    let at = folder();
    let Some((chain, key)) = certificate(&at, "first") else {
        eprintln!("skipped: openssl is missing");
        return;
    };
    let (other_chain, other_key) = certificate(&at, "second").unwrap();
    let (plain, mutual) = (support::port::free_port(), support::port::free_port());
    let files = format!("ssl_chain_cert={chain},ssl_key={key},ssl_ca_cert={other_chain}");
    let listen = format!("notls:127.0.0.1:{plain},mtls:127.0.0.1:{mutual}");
    let server = Server::start(&["-Z", "-o", &files, "-l", &listen]);
    let told = ask_by_tls(server.port, "set a 0 0 1\r\n1\r\nget a\r\n", &[]);
    assert!(
        told.contains("STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\n"),
        "{told}"
    );
    assert!(told.contains("CN = first"), "{told}");
    // The others: in the clear, and with a certificate of the client's.
    let mut stream = TcpStream::connect(("127.0.0.1", plain)).unwrap();
    stream.write_all(b"get a\r\n").unwrap();
    read_exactly(&mut stream, "VALUE a 0 1\r\n1\r\nEND\r\n");
    assert!(!ask_by_tls(mutual, "get a\r\n", &[]).contains("VALUE a"));
    let shown = ["-cert", &other_chain, "-key", &other_key];
    assert!(ask_by_tls(mutual, "get a\r\n", &shown).contains("VALUE a"));
    // Who speaks no TLS is closed.
    assert_eq!(server.ask(b"get a\r\n"), "");
    // Files are read again at the command.
    fs::copy(&other_chain, &chain).unwrap();
    fs::copy(&other_key, &key).unwrap();
    stream.write_all(b"refresh_certs\r\n").unwrap();
    read_exactly(&mut stream, "OK\r\n");
    assert!(ask_by_tls(server.port, "get a\r\n", &[]).contains("CN = second"));
    fs::write(&key, "nonsense").unwrap();
    stream.write_all(b"refresh_certs\r\n").unwrap();
    read_exactly(&mut stream, "ERROR\r\n");
    assert!(ask_by_tls(server.port, "get a\r\n", &[]).contains("CN = second"));
    let _ = fs::remove_dir_all(at);
}

#[test]
fn watchers_are_told_what_they_ask_for() {
    let server = Server::start(&["-t", "2"]);
    let mut watcher = server.connect();
    watcher
        .write_all(b"watch fetchers mutations deletions\n")
        .unwrap();
    read_exactly(&mut watcher, "OK\r\n");
    let mut connections = server.connect();
    connections.write_all(b"watch connevents\n").unwrap();
    read_exactly(&mut connections, "OK\r\n");
    assert_eq!(server.statistic("log_watchers"), 2);
    let input = "set a 0 100 3\r\nabc\r\nget a b\r\ndelete a\r\n";
    server.ask(input.as_bytes());
    let mut lines = BufReader::new(watcher).lines();
    let mut next = || {
        let line = lines.next().unwrap().unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        assert!(
            words[0].starts_with("ts=") && words[1].starts_with("gid="),
            "{line}"
        );
        words[2..]
            .iter()
            .filter(|word| !word.starts_with("cfd="))
            .copied()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let expected = [
        "type=item_get key=a status=not_found clsid=0 size=0",
        "type=item_store key=a status=stored cmd=set ttl=100 clsid=1 size=3",
        "type=item_get key=a status=found clsid=1 size=3",
        "type=item_get key=b status=not_found clsid=0 size=0",
        "type=deleted key=a cmd=delete clsid=1 size=3",
    ];
    for line in expected {
        assert_eq!(next(), line);
    }
    let mut lines = BufReader::new(&connections).lines().map(Result::unwrap);
    let mut find = |what: &str| lines.by_ref().find(|line| line.contains(what)).unwrap();
    let new = find("type=conn_new ");
    assert!(
        new.contains(" rip=127.0.0.1 rport=") && new.contains(" transport=tcp "),
        "{new}"
    );
    assert!(find("type=conn_close ").contains(" reason=normal "));
    drop(lines);
    drop(connections);
    wait_for("one has left", || server.statistic("log_watchers") == 1);
    let silent = Server::start(&["-W"]);
    let refused = "CLIENT_ERROR watch commands not allowed\r\n";
    assert_eq!(silent.ask(b"watch fetchers\r\n"), refused);
}

#[test]
fn items_outlive_a_restart_by_a_signal_and_not_a_crash() {
    let at = folder();
    let file = at.join("items");
    let path = file.display().to_string();
    let mut server = Server::start(&["-e", &path]);
    let large = "x".repeat(500_000);
    let input = format!(
        "set a 7 0 3\r\nabc\r\nset short 0 1 1\r\n1\r\nset large 0 100 500000\r\n{large}\r\ngets a\r\n"
    );
    let told = server.ask(input.as_bytes());
    let value = told
        .strip_prefix("STORED\r\nSTORED\r\nSTORED\r\n")
        .unwrap()
        .to_owned();
    assert_eq!(server.end("USR1"), Some(0));
    assert!(file.exists());
    thread::sleep(Duration::from_millis(1100));
    let mut server = Server::start(&["-e", &path]);
    wait_for("all are there", || server.statistic("curr_items") == 2);
    assert_eq!(server.ask(b"gets a\r\n"), value, "with its CAS");
    assert_eq!(
        server.ask(b"get short\r\n"),
        "END\r\n",
        "it has expired meanwhile"
    );
    assert!(server.ask(b"get large\r\n").contains(&large));
    // Killed, it leaves nothing behind that could be served.
    server.ask(b"set a 0 0 1\r\n2\r\n");
    server.end("KILL");
    assert!(!file.exists());
    let server = Server::start(&["-e", &path]);
    assert_eq!(server.ask(b"get a\r\n"), "END\r\n");
    drop(server);
    fs::write(&file, "nonsense").unwrap();
    let (code, text) = refused(&["-u", "root", "-l", "127.0.0.1", "-p", "-1", "-e", &path]);
    assert!(
        code == Some(1) && text.contains("remove it to begin empty"),
        "{text}"
    );
    assert!(file.exists(), "what is not ours is left alone");
    let _ = fs::remove_dir_all(at);
}

#[test]
fn keys_go_by_their_prefix() {
    let server = Server::start(&["-t", "2"]);
    let mut input = String::new();
    for number in 0..3000 {
        input.push_str(&format!("set user:{number} 0 0 1 noreply\r\n1\r\n"));
        input.push_str(&format!("set page:{number} 0 0 1 noreply\r\n1\r\n"));
    }
    server.ask(input.as_bytes());
    assert_eq!(
        server.ask(b"delete_prefix user:\r\nmn\r\n"),
        "DELETED 3000\r\nMN\r\n"
    );
    assert_eq!(
        server.ask(b"get user:5 page:5\r\n"),
        "VALUE page:5 0 1\r\n1\r\nEND\r\n"
    );
    assert_eq!(
        server.ask(b"delete_prefix page:29 noreply\r\nmn\r\n"),
        "MN\r\n"
    );
    assert_eq!(server.statistic("curr_items"), 3000 - 111);
    let bad = "CLIENT_ERROR bad command line format\r\n";
    assert_eq!(
        server.ask(b"delete_prefix\r\ndelete_prefix a b\r\n"),
        format!("{bad}{bad}")
    );
    let kept = Server::start(&["-F"]);
    let refused = "CLIENT_ERROR delete_prefix not allowed\r\n";
    assert_eq!(kept.ask(b"delete_prefix a\r\n"), refused);
}

#[test]
fn items_go_by_their_tags() {
    let server = Server::start(&["-t", "2"]);
    let mut input = String::new();
    for number in 0..3000 {
        let tags = if number % 3 == 0 {
            "G(third,all)"
        } else {
            "G(all)"
        };
        input.push_str(&format!("ms key{number} 2 {tags} q\r\nab\r\n"));
        input.push_str(&format!("ms other{number} 2 q\r\nab\r\n"));
    }
    server.ask(input.as_bytes());
    assert_eq!(server.statistic("curr_items"), 6000);
    assert_eq!(
        server.ask(b"delete_tag third\r\nget key3 key4\r\n"),
        "DELETED 1000\r\nVALUE key4 0 2\r\nab\r\nEND\r\n"
    );
    assert_eq!(server.ask(b"delete_tag all noreply\r\nmn\r\n"), "MN\r\n");
    assert_eq!(server.statistic("curr_items"), 3000);
    let kept = Server::start(&["-F"]);
    let refused = "CLIENT_ERROR delete_tag not allowed\r\n";
    assert_eq!(kept.ask(b"delete_tag a\r\n"), refused);
}

#[test]
fn keys_are_as_long_as_the_command_line_lets_them_be() {
    let server = Server::start(&["-o", "key_length_max=65535"]);
    let key = "k".repeat(65535);
    let set = format!("set {key} 0 0 3\r\nabc\r\n");
    assert_eq!(server.ask(set.as_bytes()), "STORED\r\n");
    let get = format!("get {key} a\r\n");
    let expected = format!("VALUE {key} 0 3\r\nabc\r\nEND\r\n");
    assert_eq!(server.ask(get.as_bytes()), expected);
    let incr = format!("incr {key} 1\r\n");
    assert!(
        server
            .ask(incr.as_bytes())
            .starts_with("CLIENT_ERROR cannot increment")
    );
    let bad = "CLIENT_ERROR bad command line format\r\n";
    assert_eq!(server.ask(format!("get {key}k\r\n").as_bytes()), bad);
    // A packet has no longer keys than its head can say.
    let mut head = [0; 24];
    (head[0], head[2], head[3]) = (0x80, 0xff, 0xff);
    (head[10], head[11]) = (0xff, 0xff);
    let mut stream = server.connect();
    stream.write_all(&[&head, key.as_bytes()].concat()).unwrap();
    let mut answer = [0; 24 + 4 + 3];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer[28..], b"abc");
}

/// `-r` and `-k`, as the kernel has them of the process.
#[test]
fn memory_is_locked_and_core_files_are_left_where_that_is_asked_for() {
    let server = Server::start(&["-k", "-r", "-m", "8"]);
    let about =
        |file: &str| fs::read_to_string(format!("/proc/{}/{file}", server.child.id())).unwrap();
    let limits = about("limits");
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    let core: Vec<&str> = core.unwrap().split_whitespace().collect();
    assert_eq!(core[4], core[5], "{limits}");
    let said = fs::read_to_string(server.folder.join("stderr")).unwrap();
    let status = about("status");
    let locked = status
        .lines()
        .find_map(|line| line.strip_prefix("VmLck:"))
        .unwrap();
    let locked: u64 = locked.trim().trim_end_matches(" kB").parse().unwrap();
    if said.contains("-k: memory is not locked: ") {
        eprintln!("skipped: {said}");
    } else {
        assert!(locked > 1000, "{status}");
    }
    let usual = Server::start(&[]);
    let status = fs::read_to_string(format!("/proc/{}/status", usual.child.id())).unwrap();
    assert!(status.contains("VmLck:\t       0 kB"), "{status}");
}

#[test]
fn clients_are_served_by_io_uring_where_that_is_asked_for() {
    let server = Server::start(&["-o", "engine=io_uring"]);
    let said = fs::read_to_string(server.folder.join("stderr")).unwrap();
    if said.contains("io_uring was asked for, but") {
        eprintln!("skipped: {said}");
        return;
    }
    let rings = || {
        let open = fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap();
        let links = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links
            .filter(|link| link.to_string_lossy().contains("io_uring"))
            .count()
    };
    wait_for("its rings", || rings() > 0);
    assert_eq!(
        server.ask(b"set a 0 0 1\r\nx\r\nget a\r\n"),
        "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n"
    );
}

#[test]
fn connections_and_prefixes_are_told() {
    let server = Server::start(&["-D", "."]);
    let mut sending = server.connect();
    sending.write_all(b"set a 0 0 6\r\n").unwrap();
    wait_for("the other one is told", || {
        server
            .ask(b"stats conns\r\n")
            .contains(":state conn_nread\r\n")
    });
    let told = server.ask(b"stats conns\r\n");
    let port = server.port;
    for line in [
        format!("STAT 1:addr tcp:127.0.0.1:{port}\r\nSTAT 1:state conn_listening\r\n"),
        format!(":listen_addr tcp:127.0.0.1:{port}\r\n"),
        ":state conn_parse_cmd\r\n".to_owned(),
    ] {
        assert!(told.contains(&line), "{line}: {told}");
    }
    server.ask(b"set p.1 0 0 1\r\n1\r\nget p.1 p.2\r\ndelete p.3\r\nget q\r\n");
    let told = server.ask(b"stats detail dump\r\n");
    assert_eq!(told, "PREFIX p get 2 hit 1 set 1 del 1\r\nEND\r\n");
}

#[test]
fn load_counts_what_the_server_counts() {
    let server = Server::start(&["-t", "2"]);
    let at = format!("127.0.0.1:{}", server.port);
    for protocol in ["text", "meta", "binary"] {
        for keys in ["1", "20"] {
            let before = server.statistic("cmd_get");
            let (sets, hits) = (server.statistic("cmd_set"), server.statistic("get_hits"));
            let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
                .args([
                    "bench",
                    "memcached",
                    &at,
                    "-p",
                    protocol,
                    "-m",
                    keys,
                    "-n",
                    "2000",
                ])
                .args([
                    "-c", "4", "-k", "500", "-s", "10-2000", "--zipf", "1.0", "--json",
                ])
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{said}{output:?}");
            let number = |name: &str| -> u64 {
                let begin = format!("\"{name}\":");
                let rest = said
                    .split(&begin)
                    .nth(1)
                    .unwrap_or_else(|| panic!("{name}: {said}"));
                let end = rest.find([',', '}', '.']).unwrap();
                rest[..end].parse().unwrap()
            };
            assert_eq!(number("gets") + number("sets"), 2000, "{said}");
            assert_eq!((number("wrong"), number("broken")), (0, 0), "{said}");
            let wide = 2000 / 10;
            assert!(number("sets").abs_diff(wide) < 80, "nine to one: {said}");
            assert_eq!(server.statistic("cmd_get") - before, number("keys_asked"));
            assert_eq!(server.statistic("get_hits") - hits, number("hits"));
            assert_eq!(
                number("hits"),
                number("keys_asked"),
                "all keys were set: {said}"
            );
            assert_eq!(server.statistic("cmd_set") - sets, number("sets") + 500);
        }
    }
}

/// What a run of the load tester says, as JSON.
fn bench(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", "memcached", "--json"])
        .args(arguments)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{output:?}");
    said
}

#[test]
fn load_is_sent_by_datagrams_and_through_tls() {
    let server = Server::start(&["-U", "-1", "-t", "2"]);
    let ports = fs::read_to_string(server.folder.join("ports")).unwrap();
    let udp = ports
        .lines()
        .find_map(|line| line.strip_prefix("UDP INET: "))
        .unwrap();
    let at = format!("127.0.0.1:{udp}");
    // Answers of a hundred keys take several datagrams.
    for keys in ["1", "100"] {
        let before = server.statistic("get_hits");
        let said = bench(&[
            &at, "--udp", "-n", "500", "-c", "4", "-k", "200", "-m", keys, "-s", "300",
        ]);
        assert!(said.contains("\"wrong\":0,\"broken\":0"), "{said}");
        let hits = format!("\"hits\":{},", server.statistic("get_hits") - before);
        assert!(said.contains(&hits), "{said}");
    }
    let at = folder();
    let Some((chain, key)) = certificate(&at, "server") else {
        eprintln!("skipped: openssl is missing");
        return;
    };
    let tls = format!("ssl_chain_cert={chain},ssl_key={key}");
    let secure = Server::start(&["-Z", "-o", &tls]);
    let address = format!("127.0.0.1:{}", secure.port);
    let said = bench(&[
        &address,
        "--tls",
        "--insecure",
        "-n",
        "500",
        "-c",
        "4",
        "-k",
        "100",
        "-m",
        "20",
    ]);
    assert!(said.contains("\"wrong\":0,\"broken\":0"), "{said}");
    let told = ask_by_tls(secure.port, "stats\r\n", &[]);
    assert!(told.contains("STAT ssl_proto_errors 0\r\n"), "{told}");
    assert!(!told.contains("STAT cmd_get 0\r\n"), "{told}");
    let _ = fs::remove_dir_all(at);
}

#[test]
fn two_servers_are_put_beside_each_other_and_connections_are_swept() {
    let (one, other) = (Server::start(&["-t", "1"]), Server::start(&["-t", "1"]));
    let (a, b) = (
        format!("127.0.0.1:{}", one.port),
        format!("127.0.0.1:{}", other.port),
    );
    let (pid_a, pid_b) = (one.child.id().to_string(), other.child.id().to_string());
    let said = bench(&[
        &a, "--beside", &b, "--pid-a", &pid_a, "--pid-b", &pid_b, "--rounds", "6", "-d", "200ms",
        "-c", "4", "-k", "10",
    ]);
    assert!(
        said.starts_with("{\"rounds\":6,\"figures\":[{\"name\":\"requests/s\""),
        "{said}"
    );
    assert!(
        said.contains("\"name\":\"requests/CPU s\"") && !said.contains("null"),
        "{said}"
    );
    assert!(
        one.statistic("cmd_get") > other.statistic("cmd_get"),
        "A has two turns a round"
    );

    let said = bench(&[&a, "-c", "1,2,4", "-n", "100", "-k", "10"]);
    let lines: Vec<&str> = said.lines().collect();
    for (line, connections) in lines.iter().zip([1, 2, 4]) {
        assert!(
            line.contains(&format!("\"connections\":{connections},")),
            "{said}"
        );
    }
    assert_eq!(lines.len(), 3);
    let refused = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", "memcached", &a, "--beside", &b, "-c", "1,2"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        said.contains("--beside takes one number of connections"),
        "{said}"
    );
}

/// An answer may have hundreds of datagrams, more than the server lets wait for the network.
#[test]
fn a_large_item_is_told_by_datagrams() {
    let server = Server::start(&["-U", "-1", "-t", "1", "-I", "2m"]);
    let ports = fs::read_to_string(server.folder.join("ports")).unwrap();
    let udp = ports
        .lines()
        .find_map(|line| line.strip_prefix("UDP INET: "))
        .unwrap();
    let value = "x".repeat(1_500_000);
    let set = format!("set big 0 0 1500000\r\n{value}\r\n");
    assert_eq!(server.ask(set.as_bytes()), "STORED\r\n");
    let expected = format!("VALUE big 0 1500000\r\n{value}\r\nEND\r\n");
    // The kernel may drop some where this end reads slowly and has little room.
    let is_whole = (1..=50_u8).any(|number| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        let room = 8 << 20; // the kernel allows less where it must
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, room)
            .or_else(|_| rustix::net::sockopt::set_socket_recv_buffer_size(&socket, room));
        socket.connect(format!("127.0.0.1:{udp}")).unwrap();
        let request = [&[0, number, 0, 0, 0, 1, 0, 0][..], b"get big\r\n"].concat();
        socket.send(&request).unwrap();
        let mut parts = std::collections::BTreeMap::new();
        let mut datagram = [0; 2000];
        while let Ok(length) = socket.recv(&mut datagram) {
            let place = u16::from_be_bytes([datagram[2], datagram[3]]);
            parts.insert(place, datagram[8..length].to_vec());
            let all = u16::from_be_bytes([datagram[4], datagram[5]]);
            if parts.len() == usize::from(all) {
                break;
            }
        }
        parts.into_values().flatten().eq(expected.bytes())
    });
    assert!(is_whole);
}
