//! The `memcached` block of a configuration: beside HTTP, over reloads, and with rules.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use support::PATIENCE;
use support::master::{Master, wait_for};
use support::port::free_port;

use super::features::{ask_by_tls, certificate};

/// A client that asks for one line after another.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(port: u16) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client(BufReader::new(stream))
    }

    /// The first line of the answer.
    fn ask(&mut self, command: &str) -> String {
        self.0.get_mut().write_all(command.as_bytes()).unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }
}

/// The same of a server that may be ending.
fn try_get(port: u16, key: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("get {key}\r\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line)
}

fn configure(master: &Master, engine: &str, lines: &str) {
    master.configure(&format!(
        "error_log @/logs/error.log info;\nevents {{ {engine} }}\n{lines}"
    ));
}

fn get(port: u16, key: &str) -> String {
    Client::connect(port).ask(&format!("get {key}\r\n"))
}

fn items_of_a_block_outlive_reloads_until_their_cache_changes(engine: &'static str) {
    let (port, other, http) = (free_port(), free_port(), free_port());
    let mut master = Master::new();
    let lines = |size: &str, more: &str| {
        format!(
            "memcached {{
                 zone items size={size};
                 server {{ listen 127.0.0.1:{port}; }}
                 server {{ listen 127.0.0.1:{other}; zone others size=2m; }}
                 {more}
             }}
             http {{ server {{ listen 127.0.0.1:{http}; return 200 web; }} }}"
        )
    };
    configure(&master, engine, &lines("8m", ""));
    master.start();
    let mut kept = Client::connect(port);
    assert_eq!(kept.ask("set a 0 0 1\r\nx\r\n"), "STORED\r\n");
    assert_eq!(get(port, "a"), "VALUE a 0 1\r\n");
    assert_eq!(get(other, "a"), "END\r\n", "another zone is another cache");
    let limit = Client::connect(port).ask("stats settings\r\n");
    assert_eq!(limit, "STAT maxbytes 8388608\r\n");
    let mut web = TcpStream::connect(("127.0.0.1", http)).unwrap();
    web.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    web.read_to_string(&mut page).unwrap();
    assert!(page.ends_with("web"), "{page}");

    // A server that joins the zone has its items, and who is connected stays.
    let third = free_port();
    let joined = format!("server {{ listen 127.0.0.1:{third}; }}");
    configure(&master, engine, &lines("8m", &joined));
    master.signal("HUP");
    wait_for("the third server", || {
        TcpStream::connect(("127.0.0.1", third)).is_ok()
    });
    assert_eq!(get(third, "a"), "VALUE a 0 1\r\n");
    assert_eq!(kept.ask("get a\r\n"), "VALUE a 0 1\r\n");

    // As any zone one of another size begins empty.
    configure(&master, engine, &lines("16m", &joined));
    master.signal("HUP");
    wait_for("the larger cache", || get(port, "a") == "END\r\n");
}

support::test_on_each_engine!(items_of_a_block_outlive_reloads_until_their_cache_changes);

#[test]
fn rules_say_who_may_ask_a_block() {
    let (port, closed) = (free_port(), free_port());
    let mut master = Master::new();
    let lines = format!(
        "memcached {{
             allow 127.0.0.1;
             deny all;
             server {{ listen 127.0.0.1:{port}; }}
             server {{ listen 127.0.0.1:{closed}; deny 127.0.0.0/8; }}
         }}"
    );
    configure(&master, "", &lines);
    master.start();
    assert_eq!(get(port, "a"), "END\r\n");
    let mut denied = TcpStream::connect(("127.0.0.1", closed)).unwrap();
    denied.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = denied.write_all(b"get a\r\n");
    let mut answer = Vec::new();
    let _ = denied.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{answer:?}");
    master.wait_for_text(
        "logs/error.log",
        "access forbidden by rule, client: 127.0.0.1:",
    );
}

#[test]
fn what_is_wrong_in_a_block_is_named() {
    for (lines, said) in [
        ("server { }", "no \"listen\" is defined for server"),
        (
            "server { listen 127.0.0.1:1; zone a size=1k; }",
            "a cache has at least 1m",
        ),
        (
            "server { listen 127.0.0.1:1; } server { listen 127.0.0.1:1; }",
            "a duplicate listen 127.0.0.1:1",
        ),
        (
            "zone a size=2m; server { listen 127.0.0.1:1; }
             server { listen 127.0.0.1:2; item_size_max 2k; }",
            "the servers of zone \"a\" differ in \"item_size_max\"",
        ),
        (
            "server { listen 127.0.0.1:1 ssl; }",
            "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive",
        ),
        (
            "server { listen 127.0.0.1:1; zone a; }",
            "\"zone\" must have \"size\" parameter",
        ),
        (
            "server { listen 127.0.0.1:1; zone a size=2m keep; }",
            "invalid parameter \"keep\"",
        ),
        (
            "server { listen 127.0.0.1:1; zone a size=2m state=/tmp/f; }
             server { listen 127.0.0.1:2; zone b size=2m state=/tmp/f; }",
            "\"/tmp/f\" keeps the items of zone \"a\" already",
        ),
        (
            "zone a size=2m; server { listen 127.0.0.1:1; }
             server { listen 127.0.0.1:2; zone a size=2m state=f; }",
            "the servers of zone \"a\" differ in \"item_size_max\", \"key_length_max\" or \"state\"",
        ),
        (
            "server { listen 127.0.0.1:1; key_length_max 70000; }",
            "keys may have between 250 and 65535 bytes at most",
        ),
        (
            "server { listen 127.0.0.1:1; auth_file /nonexistent/users; }",
            "open() \"/nonexistent/users\" failed (2: No such file or directory)",
        ),
        (
            "server { listen 127.0.0.1:1; access_log logs/a.log; }",
            "log format is not specified",
        ),
        (
            "log_format a $nonsense; access_log logs/a.log a; server { listen 127.0.0.1:1; }",
            "unknown \"nonsense\" variable",
        ),
        (
            "server { listen 127.0.0.1:1; limit_conn none 1; }",
            "zero size shared memory zone \"none\"",
        ),
        (
            "server { listen 1; }",
            "every client that reaches 0.0.0.0:1 can read and change the whole cache",
        ),
    ] {
        let master = Master::new();
        configure(&master, "", &format!("memcached {{ {lines} }}"));
        let (_, output) = master.run(&["-t"]);
        assert!(output.contains(said), "{lines}: {output}");
    }
}

#[test]
fn an_item_is_as_large_as_the_block_lets_it_be() {
    let (small, large) = (free_port(), free_port());
    let mut master = Master::new();
    let lines = format!(
        "memcached {{
             server {{ listen 127.0.0.1:{small}; item_size_max 2k; zone small size=4m; }}
             server {{ listen 127.0.0.1:{large}; item_size_max 2m; zone large size=64m; }}
         }}"
    );
    configure(&master, "", &lines);
    master.start();
    let value = "v".repeat(3000);
    let set = format!("set k 0 0 3000\r\n{value}\r\n");
    let refused = Client::connect(small).ask(&set);
    assert_eq!(refused, "SERVER_ERROR object too large for cache\r\n");
    assert_eq!(Client::connect(large).ask(&set), "STORED\r\n");
}

fn servers_of_a_block_speak_tls_and_log_where_they_say(engine: &'static str) {
    let (port, plain, quick) = (free_port(), free_port(), free_port());
    let mut master = Master::new();
    let Some((chain, key)) = certificate(&master.folder, "server") else {
        eprintln!("skipped: openssl is missing");
        return;
    };
    let (of_client, key_of_client) = certificate(&master.folder, "client").unwrap();
    let lines = format!(
        "memcached {{
             ssl_certificate {chain};
             ssl_certificate_key {key};
             server {{
                 listen 127.0.0.1:{port} ssl;
                 ssl_client_certificate {of_client};
                 ssl_verify_client on;
                 error_log @/logs/memcached.log info;
             }}
             server {{ listen 127.0.0.1:{plain}; }}
             server {{ listen 127.0.0.1:{quick} ssl; ssl_handshake_timeout 200ms; }}
         }}"
    );
    configure(&master, engine, &lines);
    master.start();
    let mut client = Client::connect(plain);
    assert_eq!(client.ask("set a 0 0 1\r\nx\r\n"), "STORED\r\n");
    let shown = ["-cert", &of_client, "-key", &key_of_client];
    assert!(ask_by_tls(port, "get a\r\n", &shown).contains("VALUE a 0 1\r\nx\r\n"));
    assert!(!ask_by_tls(port, "get a\r\n", &[]).contains("VALUE"));
    let log = master.folder.join("logs/memcached.log");
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    wait_for("it is logged", || {
        said().contains("client sent no required SSL certificate, client: 127.0.0.1")
    });
    assert!(ask_by_tls(quick, "get a\r\n", &[]).contains("VALUE a 0 1"));
    // Who says nothing is closed where that has a limit, and not yet where it has another.
    let mut silent = TcpStream::connect(("127.0.0.1", quick)).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    let mut waits = TcpStream::connect(("127.0.0.1", port)).unwrap();
    waits
        .set_read_timeout(Some(Duration::from_millis(600)))
        .unwrap();
    assert!(waits.read(&mut [0]).is_err(), "it may still begin");
    drop(waits);
    master.signal("TERM");
    master.wait();
}

support::test_on_each_engine!(servers_of_a_block_speak_tls_and_log_where_they_say);

fn items(number: u32) -> String {
    let item = |key| format!("set key{key} 7 500 4 noreply\r\n{key:04}\r\n");
    (0..number).map(item).collect()
}

/// Waits until a server has this key.
fn wait_for_key(port: u16, key: &str) {
    wait_for(key, || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
            && get(port, key) == format!("VALUE {key} 7 4\r\n")
    });
}

fn items_of_a_zone_with_a_file_outlive_a_restart(engine: &'static str) {
    let port = free_port();
    let mut master = Master::new();
    let folder = master.folder.join("state");
    std::fs::create_dir(&folder).unwrap();
    let lines = |size: &str| {
        format!(
            "user root;
             memcached {{
                 zone kept size={size} state=@/state/items;
                 server {{ listen 127.0.0.1:{port}; }}
             }}"
        )
    };
    configure(&master, engine, &lines("8m"));
    master.start();
    let mut client = Client::connect(port);
    let input = items(5000) + "ms tagged 4 F7 G(news)\r\nword\r\n";
    assert_eq!(client.ask(&input), "HD\r\n");
    assert!(!folder.join("items").exists());
    master.signal("QUIT");
    master.wait();
    assert!(folder.join("items").exists());

    master.start();
    wait_for_key(port, "key4999");
    master.wait_for_text("logs/error.log", "5001 items of memcached were read from");
    assert!(!folder.join("items").exists(), "it cannot be read twice");
    let mut client = Client::connect(port);
    let left: u32 = {
        let told = client.ask("mg key7 t f v\r\n");
        let told = told.strip_prefix("VA 4 t").unwrap().trim_end().to_owned();
        let (left, flags) = told.split_once(' ').unwrap();
        assert_eq!(flags, "f7");
        left.parse().unwrap()
    };
    assert!((400..=500).contains(&left), "{left}");
    assert_eq!(
        Client::connect(port).ask("delete_tag news\r\n"),
        "DELETED 1\r\n"
    );

    // A cache of another size goes on with the items, too.
    configure(&master, engine, &lines("16m"));
    master.signal("HUP");
    let limit = || Client::connect(port).ask("stats settings\r\n");
    wait_for("the larger cache", || {
        limit() == "STAT maxbytes 16777216\r\n"
    });
    wait_for_key(port, "key4999");

    // Killed, the cache is lost and nothing else.
    let before = master.workers();
    for worker in before {
        support::signal(worker, "KILL");
    }
    wait_for("another worker", || {
        try_get(port, "key1").is_ok_and(|answer| answer == "END\r\n")
    });
    master.signal("TERM");
    master.wait();
}

support::test_on_each_engine!(items_of_a_zone_with_a_file_outlive_a_restart);

/// What the one before has had comes when it has ended, and what clients have changed in this one
/// stays changed.
#[test]
fn an_upgraded_program_goes_on_with_the_items() {
    let (port, of_new) = (free_port(), free_port());
    let master = Master::new();
    let folder = master.folder.display().to_string();
    std::fs::create_dir(master.folder.join("state")).unwrap();
    // A program whose parent waits for it does not hand itself over.
    let configure = |more: &str| {
        let lines = format!(
            "daemon on;
             user root;
             pid {folder}/logs/nginx.pid;
             error_log {folder}/logs/error.log notice;
             events {{ }}
             memcached {{
                 zone kept size=8m state={folder}/state/items;
                 server {{ listen 127.0.0.1:{port}; {more} }}
             }}"
        );
        std::fs::write(master.folder.join("nginx.conf"), lines).unwrap();
    };
    configure("");
    assert!(master.command().status().unwrap().success());
    let named = |file: &str| master.read(file).trim().parse::<u32>().ok();
    wait_for("the pid file", || named("logs/nginx.pid").is_some());
    let old = named("logs/nginx.pid").unwrap();
    assert_eq!(
        Client::connect(port).ask(&(items(100) + "mn\r\n")),
        "MN\r\n"
    );
    // Both processes have the first port; which of them takes a connection is not said.
    configure(&format!("listen 127.0.0.1:{of_new};"));
    support::signal(old, "USR2");
    wait_for("the new master", || {
        named("logs/nginx.pid").is_some_and(|pid| pid != old)
    });
    let new = named("logs/nginx.pid").unwrap();
    wait_for("the new process", || {
        TcpStream::connect(("127.0.0.1", of_new)).is_ok()
    });
    // The new process has nothing yet.
    let mut client = Client::connect(of_new);
    assert_eq!(client.ask("get key5\r\n"), "END\r\n");
    assert_eq!(client.ask("delete key5\r\n"), "NOT_FOUND\r\n");
    assert_eq!(client.ask("set key6 7 0 4\r\nmine\r\n"), "STORED\r\n");
    drop(client);
    support::signal(old, "QUIT");
    let read_text = "items of memcached were read from";
    master.wait_for_text("logs/error.log", read_text);
    wait_for_key(port, "key7");
    let mut client = Client::connect(port);
    assert_eq!(client.ask("get key5\r\n"), "END\r\n");
    assert_eq!(client.ask("mg key6 v\r\n"), "VA 4\r\n");
    let mut value = String::new();
    client.0.read_line(&mut value).unwrap();
    assert_eq!(value, "mine\r\n");
    drop(client);
    support::signal(new, "TERM");
    wait_for("the new one ends", || {
        TcpStream::connect(("127.0.0.1", port)).is_err()
    });
}

#[test]
fn servers_of_a_block_ask_for_passwords_each_by_its_own_files() {
    let (text, sasl, open) = (free_port(), free_port(), free_port());
    let mut master = Master::new();
    std::fs::write(master.folder.join("text"), "anna:secret\n").unwrap();
    std::fs::write(master.folder.join("sasl"), "bert:geheim\n").unwrap();
    let lines = format!(
        "memcached {{
             auth_file @/text;
             server {{ listen 127.0.0.1:{text}; }}
             server {{ listen 127.0.0.1:{sasl}; auth_file \"\"; sasl_file @/sasl; }}
             server {{ listen 127.0.0.1:{open}; auth_file \"\"; }}
         }}"
    );
    configure(&master, "", &lines);
    master.start();
    let mut client = Client::connect(text);
    assert_eq!(client.ask("get a\r\n"), "CLIENT_ERROR unauthenticated\r\n");
    let wrong = "CLIENT_ERROR authentication failure\r\n";
    assert_eq!(client.ask("set x 0 0 11\r\nbert geheim\r\n"), wrong);
    assert_eq!(client.ask("set x 0 0 11\r\nanna secret\r\n"), "STORED\r\n");
    assert_eq!(client.ask("set a 0 0 1\r\n1\r\n"), "STORED\r\n");
    assert_eq!(get(open, "a"), "VALUE a 0 1\r\n");

    // By packets, who says nothing is closed.
    let mut stream = TcpStream::connect(("127.0.0.1", sasl)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let packet = |opcode: u8, key: &[u8], value: &[u8]| {
        let mut head = [0; 24];
        (head[0], head[1], head[3]) = (0x80, opcode, key.len() as u8);
        head[11] = (key.len() + value.len()) as u8;
        [&head, key, value].concat()
    };
    let status = |stream: &mut TcpStream| {
        let mut head = [0; 24];
        stream.read_exact(&mut head).unwrap();
        let mut body = vec![0; usize::from(head[11])];
        stream.read_exact(&mut body).unwrap();
        head[7]
    };
    stream
        .write_all(&packet(0x21, b"PLAIN", b"\0anna\0secret"))
        .unwrap();
    assert_eq!(status(&mut stream), 0x20);
    stream
        .write_all(&packet(0x21, b"PLAIN", b"\0bert\0geheim"))
        .unwrap();
    assert_eq!(status(&mut stream), 0);
    stream.write_all(&packet(0x00, b"a", b"")).unwrap();
    assert_eq!(status(&mut stream), 0);
    // Lines are not spoken there.
    let mut lines = TcpStream::connect(("127.0.0.1", sasl)).unwrap();
    lines.set_read_timeout(Some(PATIENCE)).unwrap();
    lines.write_all(b"get a\r\n").unwrap();
    assert_eq!(lines.read(&mut [0; 10]).unwrap_or(0), 0);

    // A reload reads the files again, for those who come then.
    std::fs::write(master.folder.join("text"), "carl:neu\n").unwrap();
    master.signal("HUP");
    wait_for("the other user", || {
        Client::connect(text).ask("set x 0 0 8\r\ncarl neu\r\n") == "STORED\r\n"
    });
    assert_eq!(client.ask("get a\r\n"), "VALUE a 0 1\r\n");
}

fn sessions_are_logged_limited_and_counted(engine: &'static str) {
    let (port, tight, http) = (free_port(), free_port(), free_port());
    let mut master = Master::new();
    let lines = format!(
        "memcached {{
             log_format line '$remote_addr $status $close_reason $protocol $commands \
                 $bytes_received $bytes_sent';
             access_log @/logs/sessions.log line;
             limit_conn_zone $binary_remote_addr zone=each:1m;
             server {{ listen 127.0.0.1:{port}; status_zone first; }}
             server {{
                 listen 127.0.0.1:{tight};
                 limit_conn each 1;
                 status_zone second;
                 access_log @/logs/tight.log line;
                 deny 127.0.0.2;
             }}
         }}
         http {{ server {{
             listen 127.0.0.1:{http};
             location /api {{ api; }}
             location /metrics {{ metrics; }}
         }} }}"
    );
    configure(&master, engine, &lines);
    master.start();
    let mut client = Client::connect(port);
    assert_eq!(client.ask("set a 0 0 1\r\nx\r\n"), "STORED\r\n");
    assert_eq!(client.ask("mn\r\n"), "MN\r\n");
    drop(client);
    master.wait_for_text("logs/sessions.log", "127.0.0.1 200 normal text 2 20 12\n");

    let mut first = Client::connect(tight);
    assert_eq!(first.ask("mn\r\n"), "MN\r\n");
    let refused = Client::connect(tight).ask("");
    assert_eq!(refused, "ERROR Too many open connections\r\n");
    assert_eq!(first.ask("get a\r\n"), "VALUE a 0 1\r\n");
    drop(first);
    wait_for("there is a place again", || {
        Client::connect(tight).ask("mn\r\n") == "MN\r\n"
    });
    master.wait_for_text("logs/tight.log", "127.0.0.1 503 too_many - 0 0 33\n");
    master.wait_for_text("logs/error.log", "limiting connections by zone \"each\"");

    let page = |path: &str| {
        let mut web = TcpStream::connect(("127.0.0.1", http)).unwrap();
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        web.write_all(request.as_bytes()).unwrap();
        let mut page = String::new();
        web.read_to_string(&mut page).unwrap();
        page
    };
    wait_for("the sessions are counted", || {
        page("/api/9/memcached/server_zones/first").contains(
            "\"connections\":1,\"sessions\":{\"2xx\":1,\"4xx\":0,\"5xx\":0,\"total\":1},\
             \"discarded\":0,\"received\":20,\"sent\":12}",
        )
    });
    let second = page("/api/9/memcached/server_zones/second");
    assert!(!second.contains("\"5xx\":0"), "{second}");
    let metrics = page("/metrics");
    for line in [
        "tidegate_memcached_items{zone=\"memcached\"} 1\n",
        "tidegate_memcached_sets_total{zone=\"memcached\"} 1\n",
        "tidegate_memcached_get_hits_total{zone=\"memcached\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    master.signal("TERM");
    master.wait();
}

support::test_on_each_engine!(sessions_are_logged_limited_and_counted);

#[test]
fn keys_of_a_block_are_as_long_as_it_lets_them_be() {
    let (usual, long) = (free_port(), free_port());
    let mut master = Master::new();
    let lines = format!(
        "memcached {{
             server {{ listen 127.0.0.1:{usual}; zone usual size=8m; }}
             server {{ listen 127.0.0.1:{long}; zone long size=8m; key_length_max 65535; }}
         }}"
    );
    configure(&master, "", &lines);
    master.start();
    let key = "k".repeat(65535);
    let set = format!("set {key} 0 0 5\r\nvalue\r\n");
    assert_eq!(Client::connect(long).ask(&set), "STORED\r\n");
    assert_eq!(get(long, &key), format!("VALUE {key} 0 5\r\n"));
    assert_eq!(
        Client::connect(long).ask(&format!("mg {key} s\r\n")),
        "HD s5\r\n"
    );
    let bad = "CLIENT_ERROR bad command line format\r\n";
    assert_eq!(get(long, &format!("{key}k")), bad);
    assert_eq!(
        Client::connect(long).ask(&format!("delete {key}\r\n")),
        "DELETED\r\n"
    );
    let mid = "k".repeat(251);
    assert_eq!(get(usual, &mid), bad);
    assert_eq!(
        Client::connect(long).ask(&format!("touch {mid} 5\r\n")),
        "NOT_FOUND\r\n"
    );
}
