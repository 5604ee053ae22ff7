//! Clients of QUIC, passed on by the name of their handshake. Their first datagrams are made by
//! rustls's own side of QUIC, split and mixed as browsers do.

use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::crypto::aws_lc_rs::kx_group::{X25519, X25519MLKEM768};
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::quic::{ClientConnection, DirectionalKeys, Keys, Version};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, Side};
use support::PATIENCE;
use support::is_nginx;
use support::port::free_port;

use super::{configure, line_with, reload, sessions, start};

/// The connection ID that the first packets are sent to.
const DESTINATION: &[u8] = b"firstid8";

/// The ClientHello of a client that asks for a name; with a key of ML-KEM it is longer than a
/// datagram.
fn hello(name: &str, version: Version, groups: &[&'static dyn SupportedKxGroup]) -> Vec<u8> {
    let provider = CryptoProvider {
        kx_groups: groups.to_vec(),
        ..aws_lc_rs::default_provider()
    };
    let config = ClientConfig::builder_with_provider(Arc::new(provider));
    let config = config.with_protocol_versions(&[&TLS13]).unwrap();
    let roots = RootCertStore::empty();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h3".to_vec()];
    let name = name.to_owned().try_into().unwrap();
    let client = ClientConnection::new(Arc::new(config), version, name, vec![0x01, 0x01, 0x3c]);
    let mut hello = Vec::new();
    client.unwrap().write_hs(&mut hello);
    hello
}

fn keys(version: Version) -> DirectionalKeys {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().unwrap();
    Keys::initial(
        version,
        suite,
        suite.quic.unwrap(),
        DESTINATION,
        Side::Client,
    )
    .local
}

/// A CRYPTO frame.
fn crypto(offset: usize, content: &[u8]) -> Vec<u8> {
    let number = |number: usize| (number as u16 | 0x4000).to_be_bytes();
    let lengths = [number(offset), number(content.len())].concat();
    [&[6][..], &lengths, content].concat()
}

/// A protected Initial packet that fills a datagram of 1,200 bytes.
fn packet(version: Version, number: u32, mut frames: Vec<u8>) -> Vec<u8> {
    let keys = keys(version);
    let (first, code): (u8, u32) = match version {
        Version::V2 => (0xd3, 0x6b33_43cf),
        _ => (0xc3, 1),
    };
    let mut header = vec![first];
    header.extend_from_slice(&code.to_be_bytes());
    header.push(DESTINATION.len() as u8);
    header.extend_from_slice(DESTINATION);
    header.extend_from_slice(&[0, 0]); // no ID of its own, no token
    let number_at = header.len() + 2;
    let length = 1200 - number_at;
    header.extend_from_slice(&(length as u16 | 0x4000).to_be_bytes());
    header.extend_from_slice(&number.to_be_bytes());
    assert!(frames.len() <= length - 4 - 16);
    frames.resize(length - 4 - 16, 0);
    let tag = keys
        .packet
        .encrypt_in_place(number.into(), &header, &mut frames);
    let tag = tag.unwrap();
    let mut packet = [header, frames, tag.as_ref().to_vec()].concat();
    let (before, behind) = packet.split_at_mut(number_at + 4);
    let (first, rest) = before.split_first_mut().unwrap();
    let number = &mut rest[number_at - 1..];
    keys.header
        .encrypt_in_place(&behind[..16], first, number)
        .unwrap();
    packet
}

/// The datagrams of a client's first flight.
fn first_flight(name: &str, version: Version) -> Vec<Vec<u8>> {
    let hello = hello(name, version, &[X25519MLKEM768, X25519]);
    assert!(hello.len() > 1200);
    let quarter = hello.len() / 4;
    let part = |at: usize| {
        let from = at * quarter;
        let to = if at == 3 { hello.len() } else { from + quarter };
        crypto(from, &hello[from..to])
    };
    vec![
        packet(version, 0, [part(3), part(0)].concat()),
        packet(version, 1, part(2)),
        packet(version, 2, [vec![1], part(1)].concat()),
    ]
}

/// A server behind that keeps what comes.
fn behind() -> (UdpSocket, u16) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

fn receive(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 2048];
    let count = loop {
        match socket.recv(&mut buffer) {
            // A time limit makes the kernel give up where it would begin again.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            received => break received.unwrap(),
        }
    };
    buffer.truncate(count);
    buffer
}

fn client(port: u16) -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

fn a_name_in_the_first_datagrams_chooses_the_server(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let ((one, one_port), (other, other_port)) = (behind(), behind());
    let [port, said, tight] = [(); 3].map(|()| free_port());
    let master = start(
        engine,
        &format!(
            "map $ssl_preread_server_name $there {{
                 one.test {one_port}; default {other_port}; }}
             ssl_preread on;
             server {{ listen 127.0.0.1:{port} udp; proxy_pass 127.0.0.1:$there; }}
             server {{ listen 127.0.0.1:{said} udp; preread_timeout 300ms;
                 return \"$ssl_preread_server_name $ssl_preread_protocol \
                     $ssl_preread_alpn_protocols\"; }}
             server {{ listen 127.0.0.1:{tight} udp; preread_buffer_size 1100;
                 return small; }}"
        ),
    );
    for version in [Version::V1, Version::V2] {
        for (name, server) in [("one.test", &one), ("two.test", &other)] {
            let client = client(port);
            let flight = first_flight(name, version);
            for datagram in &flight {
                client.send(datagram).unwrap();
            }
            client.send(b"\xe0 in 0-RTT").unwrap();
            for datagram in &flight {
                assert!(receive(server) == *datagram, "another datagram");
            }
            assert_eq!(receive(server), b"\xe0 in 0-RTT");
        }
        let hello = hello("said.test", version, &[X25519]);
        let client = client(said);
        client.send(&packet(version, 0, crypto(0, &hello))).unwrap();
        assert_eq!(receive(&client), b"said.test TLSv1.3 h3");
    }
    // What is no QUIC, or no packet of a client, has no name.
    let hello = hello("a.test", Version::V1, &[X25519]);
    let whole = packet(Version::V1, 0, crypto(0, &hello));
    let mut broken = whole.clone();
    broken[600] ^= 1;
    for datagram in [&b"hello"[..], b"", &whole[..1199], &broken] {
        let client = client(port);
        client.send(datagram).unwrap();
        assert_eq!(receive(&other), datagram);
    }
    // A client that says a part of it and no more, and one that says too much.
    let client = client(said);
    client
        .send(&first_flight("a.test", Version::V1)[0])
        .unwrap();
    assert!(
        sessions(&master, 3)
            .iter()
            .any(|line| line.contains(" UDP 200 0 1200 - "))
    );
    let client = self::client(tight);
    client
        .send(&packet(Version::V1, 0, crypto(0, &hello[..100])))
        .unwrap();
    let line = line_with(&master, "preread buffer full");
    assert!(
        line.contains("while prereading client data, udp client: 127.0.0.1"),
        "{line}"
    );
}

support::test_on_each_engine!(a_name_in_the_first_datagrams_chooses_the_server);

/// A client and a server that are not ours, each of which is found by name, and a reload between
/// their streams.
fn aioquic_is_passed_by_name_over_a_reload(engine: &'static str) {
    if is_nginx() {
        return;
    }
    let root = env!("CARGO_MANIFEST_DIR");
    let packages = format!("{root}/target/tools/quic-clients");
    if !std::path::Path::new(&packages).join("aioquic").is_dir() {
        eprintln!("aioquic is not installed (tests/install-packages): skipped");
        return;
    }
    let [front, first, second] = [(); 3].map(|()| free_port());
    let lines = format!(
        "map $ssl_preread_server_name $behind {{ a.example 127.0.0.1:{first};
             default 127.0.0.1:{second}; }}
         server {{ listen 127.0.0.1:{front} udp; ssl_preread on; proxy_pass $behind; }}"
    );
    let master = start(engine, &lines);
    let mut clients = Command::new("python3");
    clients.arg(format!("{root}/tests/stream/quic_clients.py"));
    clients.args([front, first, second].map(|port| port.to_string()));
    clients.args(["crt", "key"].map(|kind| format!("{root}/tests/tls/ecdsa.{kind}")));
    clients.env("PYTHONPATH", &packages);
    clients.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut clients = clients.spawn().unwrap();
    let mut said = BufReader::new(clients.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "half");
    configure(&master, engine, &format!("{lines} log_format more x;"));
    reload(&master);
    clients.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "done");
    assert!(clients.wait().unwrap().success());
}

support::test_on_each_engine!(aioquic_is_passed_by_name_over_a_reload);
