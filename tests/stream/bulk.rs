//! Many bytes on one connection: they go through pipes of the kernel, and arrive as they were.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use support::is_nginx;
use support::master::{Master, wait_for};
use support::port::free_port;

use super::{connect, echo, rest, say, sessions, start};

const LENGTH: usize = 24 << 20;

/// Bytes whose place in the stream shows.
fn pattern(from: usize, length: usize) -> Vec<u8> {
    let byte = |at: usize| (at ^ (at >> 8) ^ (at >> 16).wrapping_mul(7)) as u8;
    (from..from + length).map(byte).collect()
}

/// Writes the pattern in pieces of uneven lengths.
fn write_pattern(stream: &mut TcpStream, length: usize) {
    let (mut at, mut step) = (0, 1);
    while at < length {
        step = (step * 7 + 13) % 200_003;
        let piece = pattern(at, step.min(length - at));
        stream.write_all(&piece).unwrap();
        at += piece.len();
    }
}

fn read_pattern(stream: &mut TcpStream, length: usize) {
    let (mut at, mut buffer) = (0, vec![0; 100_000]);
    while at < length {
        let most = buffer.len().min(length - at);
        let count = stream.read(&mut buffer[..most]).unwrap();
        assert!(count > 0, "ended after {at} bytes");
        assert!(
            buffer[..count] == pattern(at, count),
            "wrong behind byte {at}"
        );
        at += count;
    }
}

/// Sends the pattern to each client that has said something, and closes; the port.
fn sender() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            thread::spawn(move || {
                client.read_exact(&mut [0; 2]).unwrap();
                // A client may leave.
                for at in (0..LENGTH).step_by(1 << 20) {
                    if client.write_all(&pattern(at, 1 << 20)).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// How many pipes the worker has.
fn pipes(master: &Master) -> usize {
    let descriptors = |pid: u32| {
        fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten()
    };
    let is_pipe = |path: &std::path::Path| {
        fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("pipe:"))
    };
    let all = master.workers().into_iter().flat_map(descriptors);
    all.filter(|entry| entry.as_ref().is_ok_and(|entry| is_pipe(&entry.path())))
        .count()
}

fn bulk_passes_both_ways_without_copying(engine: &'static str) {
    let upstream = echo();
    let port = free_port();
    let line = format!("server {{ listen 127.0.0.1:{port}; proxy_pass 127.0.0.1:{upstream}; }}");
    let master = start(engine, &line);
    let mut client = connect(port);
    say(&mut client, b"few bytes take no pipe");
    let before = pipes(&master);
    let mut writer = client.try_clone().unwrap();
    let writing = thread::spawn(move || write_pattern(&mut writer, LENGTH));
    read_pattern(&mut client, LENGTH);
    writing.join().unwrap();
    if !is_nginx() {
        assert!(pipes(&master) > before, "{} pipes", before);
    }
    say(&mut client, b"and few bytes again");
    drop(client);
    let count = LENGTH + 22 + 19;
    let to = format!("127.0.0.1:{upstream}");
    assert_eq!(
        sessions(&master, 1),
        [format!(
            "127.0.0.1 TCP 200 {count} {count} {to} {count} {count}"
        )]
    );
}

support::test_on_each_engine!(bulk_passes_both_ways_without_copying);

/// What a pipe holds for a client that leaves is nobody else's.
fn clients_that_leave_in_the_middle_leave_no_bytes_to_others(engine: &'static str) {
    let upstream = sender();
    let port = free_port();
    let line = format!("server {{ listen 127.0.0.1:{port}; proxy_pass 127.0.0.1:{upstream}; }}");
    let _master = start(engine, &line);
    for round in 1..=6 {
        let mut leaves = connect(port);
        leaves.write_all(b"go").unwrap();
        read_pattern(&mut leaves, round << 20);
        let mut stays = connect(port);
        stays.write_all(b"go").unwrap();
        read_pattern(&mut stays, 1 << 20);
        drop(leaves);
        let all = rest(&mut stays);
        assert_eq!(all.len(), LENGTH - (1 << 20));
        assert!(all == pattern(1 << 20, all.len()), "round {round}");
    }
}

support::test_on_each_engine!(clients_that_leave_in_the_middle_leave_no_bytes_to_others);

/// An end that has sent all still gets all, from a client that reads late.
fn bulk_passes_behind_a_half_close(engine: &'static str) {
    let upstream = echo();
    let port = free_port();
    let line = format!(
        "server {{ listen 127.0.0.1:{port}; proxy_pass 127.0.0.1:{upstream};
                   proxy_half_close on; }}"
    );
    let _master = start(engine, &line);
    let mut client = connect(port);
    let mut writer = client.try_clone().unwrap();
    let writing = thread::spawn(move || {
        write_pattern(&mut writer, LENGTH);
        writer.shutdown(Shutdown::Write).unwrap();
    });
    read_pattern(&mut client, 4 << 20);
    thread::sleep(Duration::from_millis(200));
    let all = rest(&mut client);
    writing.join().unwrap();
    assert_eq!(all.len(), LENGTH - (4 << 20));
    assert!(all == pattern(4 << 20, all.len()), "other bytes");
}

support::test_on_each_engine!(bulk_passes_behind_a_half_close);

/// Where no descriptor is left for a pipe, bytes are copied.
fn bulk_passes_while_descriptors_are_used_up(engine: &'static str) {
    if is_nginx() {
        return; // its descriptors are counted otherwise
    }
    let (upstream, waiting) = (echo(), TcpListener::bind("127.0.0.1:0").unwrap());
    let to = waiting.local_addr().unwrap();
    let (port, crowd) = (free_port(), free_port());
    let mut master = Master::new();
    master.configure(&format!(
        "error_log @/logs/info.log info; worker_rlimit_nofile 96;
         events {{ {engine} worker_connections 1000; }}
         stream {{
             server {{ listen 127.0.0.1:{port}; proxy_pass 127.0.0.1:{upstream}; }}
             server {{ listen 127.0.0.1:{crowd}; proxy_pass {to}; }}
         }}"
    ));
    master.start();
    let mut client = connect(port);
    say(&mut client, b"here");
    let mut others = Vec::new();
    let said = "Too many open files";
    while !master.read("logs/info.log").contains(said) && others.len() < 200 {
        others.push(connect(crowd));
        thread::sleep(Duration::from_millis(2));
    }
    wait_for("the last descriptor", || {
        master.read("logs/info.log").contains(said)
    });
    let mut writer = client.try_clone().unwrap();
    let writing = thread::spawn(move || write_pattern(&mut writer, LENGTH));
    read_pattern(&mut client, LENGTH);
    writing.join().unwrap();
}

support::test_on_each_engine!(bulk_passes_while_descriptors_are_used_up);
