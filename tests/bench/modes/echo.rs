//! `tidegate bench tcp` and `tidegate bench udp`, against their own server and against servers that
//! say something else.

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use support::master::wait_for;
use support::port::free_port;

/// The program behind `bench --serve`, until it is dropped.
struct EchoServer(Child);

impl EchoServer {
    fn start(mode: &str, port: u16, more: &[&str]) -> EchoServer {
        let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["bench", mode, "--serve", &format!("127.0.0.1:{port}")])
            .args(more)
            .stdout(Stdio::null())
            .spawn();
        let server = EchoServer(child.unwrap());
        wait_for("echo server", || {
            bench(mode, port, &["-n", "1", "-c", "1"]).0
        });
        server
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether messages came back, and the report.
fn bench(mode: &str, port: u16, more: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", mode, &format!("127.0.0.1:{port}"), "--json"])
        .args(["--timeout", "300ms"])
        .args(more)
        .output();
    let output = output.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.success(), text)
}

/// The number of a member of the report.
fn member(report: &str, name: &str) -> u64 {
    let (_, behind) = report.split_once(&format!("\"{name}\":")).unwrap();
    let digits = behind.split(|c: char| !c.is_ascii_digit()).next();
    digits.unwrap().parse().unwrap()
}

#[test]
fn messages_come_back_over_tcp() {
    for engine in ["epoll", "io_uring"] {
        let port = free_port();
        let _server = EchoServer::start("tcp", port, &["-t", "2", "--engine", engine]);
        for mode in ["echo", "connect"] {
            let with = [
                "-n", "200", "-c", "8", "-s", "100", "-m", mode, "--engine", engine,
            ];
            let (ok, report) = bench("tcp", port, &with);
            assert!(ok, "{report}");
            assert_eq!(member(&report, "messages"), 200);
            assert_eq!(member(&report, "bytes_received"), 20_000);
            assert_eq!(member(&report, "wrong") + member(&report, "broken"), 0);
        }
        let with = [
            "-n",
            "300",
            "-c",
            "2",
            "-s",
            "70000",
            "-m",
            "throughput",
            "-t",
            "2",
        ];
        let (ok, report) = bench("tcp", port, &with);
        assert!(ok, "{report}");
        assert_eq!(member(&report, "bytes_received"), 21_000_000);
        assert_eq!(member(&report, "bytes_sent"), 21_000_000);
    }
}

#[test]
fn datagrams_come_back() {
    let port = free_port();
    let _server = EchoServer::start("udp", port, &[]);
    for more in [&["-s", "1400"][..], &["--fresh", "-s", "1400"]] {
        let (ok, report) = bench("udp", port, &[&["-n", "200", "-c", "8"], more].concat());
        assert!(ok, "{report}");
        assert_eq!(member(&report, "messages"), 200);
        assert_eq!(member(&report, "bytes_received"), 280_000);
    }
}

#[test]
fn what_does_not_come_back_is_told() {
    let nobody = free_port();
    let (ok, report) = bench("tcp", nobody, &["-n", "3", "-c", "1"]);
    assert!(!ok);
    assert_eq!(member(&report, "broken"), 3);
    // Other bytes.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            let mut bytes = [0; 64];
            if client.read_exact(&mut bytes).is_ok() {
                bytes[63] ^= 1;
                let _ = client.write_all(&bytes);
            }
        }
    });
    let (ok, report) = bench("tcp", port, &["-n", "3", "-c", "1"]);
    assert!(!ok);
    assert_eq!(member(&report, "wrong"), 3, "{report}");
    // Every other datagram is lost.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut bytes = [0; 64];
        let mut is_lost = false;
        while let Ok((count, client)) = socket.recv_from(&mut bytes) {
            is_lost = !is_lost;
            if !is_lost {
                let _ = socket.send_to(&bytes[..count], client);
            }
        }
    });
    let (ok, report) = bench("udp", port, &["-n", "6", "-c", "1"]);
    assert!(ok);
    assert_eq!(
        (member(&report, "messages"), member(&report, "lost")),
        (3, 3)
    );
}

/// A list of clients has a run for each: a line of a table, or of JSON.
#[test]
fn a_list_of_clients_has_a_run_for_each() {
    let port = free_port();
    let _server = EchoServer::start("udp", port, &[]);
    let (ok, report) = bench("udp", port, &["-n", "60", "-c", "1,3,...,7"]);
    assert!(ok, "{report}");
    let clients: Vec<u64> = report.lines().map(|run| member(run, "clients")).collect();
    assert_eq!(clients, [1, 3, 5, 7]);
    assert!(report.lines().all(|run| member(run, "messages") == 60));

    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["bench", "udp", &format!("127.0.0.1:{port}")])
        .args(["-n", "60", "-c", "2,4"])
        .output()
        .unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 3, "{table}");
    assert_eq!((rows[1][0], rows[2][0]), ("2", "4"));
    // Nothing wrong, broken or lost.
    assert!(rows[1..].iter().all(|row| row[5..] == ["0", "0", "0"]));

    let (ok, report) = bench("udp", port, &["-n", "9", "-c", "200000"]);
    assert!(!ok && report.is_empty(), "{report}");
}

/// Two servers beside each other: one that takes its time has less.
#[test]
fn servers_are_put_beside_each_other() {
    for mode in ["tcp", "udp"] {
        let (port, slow) = (free_port(), slow_server(mode));
        let server = EchoServer::start(mode, port, &[]);
        let other = format!("127.0.0.1:{slow}");
        let pid = server.0.id().to_string();
        let own = std::process::id().to_string();
        let with = [
            "--beside",
            &other,
            "--rounds",
            "8",
            "-d",
            "60ms",
            "-c",
            "1",
            "--timeout",
            "2s",
            "--pid-a",
            &pid,
            "--pid-b",
            &own,
        ];
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["bench", mode, &format!("127.0.0.1:{port}")])
            .args(with)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{mode}: {text}");
        assert!(text.starts_with("8 rounds\n"), "{text}");
        let rate = text.lines().find(|line| line.starts_with("messages/s "));
        assert!(rate.unwrap().ends_with("A has more"), "{text}");
        let time = text.lines().find(|line| line.starts_with("message p99 "));
        assert!(time.unwrap().ends_with("B has more"), "{text}");
        assert!(text.contains("\nmessages/CPU s "), "{text}");
        // One of them alone has an answer.
        let nobody = format!("127.0.0.1:{}", free_port());
        let with = ["--beside", &nobody, "--rounds", "1", "-n", "2", "-c", "1"];
        let (ok, report) = bench(mode, port, &with);
        assert!(!ok, "{report}");
        assert!(report.contains("\"too many requests failed\""), "{report}");
        let (ok, report) = bench(mode, port, &["--beside", &other, "-c", "1,2"]);
        assert!(!ok && report.is_empty(), "{report}");
    }
}

/// Says everything back, three milliseconds late; the port.
fn slow_server(mode: &str) -> u16 {
    let pause = || thread::sleep(Duration::from_millis(3));
    if mode == "udp" {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        thread::spawn(move || {
            let mut bytes = [0; 64];
            while let Ok((count, client)) = socket.recv_from(&mut bytes) {
                pause();
                let _ = socket.send_to(&bytes[..count], client);
            }
        });
        return port;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut bytes = [0; 64];
                while client.read_exact(&mut bytes).is_ok() {
                    pause();
                    if client.write_all(&bytes).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}
