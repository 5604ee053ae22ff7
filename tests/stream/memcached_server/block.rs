//! The `memcached` block of a configuration: beside HTTP, over reloads, and with rules.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use support::PATIENCE;
use support::engines;
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

fn configure(master: &Master, engine: &str, lines: &str) {
    master.configure(&format!(
        "error_log @/logs/error.log info;\nevents {{ {engine} }}\n{lines}"
    ));
}

fn get(port: u16, key: &str) -> String {
    Client::connect(port).ask(&format!("get {key}\r\n"))
}

#[test]
fn items_of_a_block_outlive_reloads_until_their_cache_changes() {
    for engine in engines::lines() {
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
}

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

#[test]
fn servers_of_a_block_speak_tls_and_log_where_they_say() {
    for engine in engines::lines() {
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
}
