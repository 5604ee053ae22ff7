//! Clients of a port for TLS whose bytes were damaged on the way: each bit of what several of them
//! say first, and of what they say after the server's answer. None of it panics, and none keeps a
//! connection.
//!
//! The fuzz target `tls_accept` does the same with any bytes.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use engine::net::{Address, Stream};
use engine::select::{Either, either};
use engine::sim::{self, Faults};
use framework::counters::Counters;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, SupportedProtocolVersion};
use support::tls::trust_everybody;

use crate::server::{generation, simulate};

pub(crate) const CERTIFICATE: &[u8] = include_bytes!("../../../../tests/tls/ecdsa.crt");
pub(crate) const KEY: &[u8] = include_bytes!("../../../../tests/tls/ecdsa.key");

const ADDRESS: &str = "10.0.0.1:443";

const CONFIGURATION: &str =
    "error_log /dev/null info; events {} http { access_log off; ssl_early_data on;
    server { listen 10.0.0.1:443 ssl; ssl_certificate /server.crt; ssl_certificate_key /server.key;
             client_header_timeout 5s; location / { return 200 served; } } }";

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Longer than the server's time limits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs clients beside the server, and waits for the server to have done with them.
fn run<F: Future<Output = ()>>(clients: impl FnOnce(Address) -> F) {
    run_by(CONFIGURATION, clients);
}

/// Runs clients beside a server with this configuration, and waits for the server to have done with
/// them.
fn run_by<F: Future<Output = ()>>(configuration: &str, clients: impl FnOnce(Address) -> F) {
    simulate(1, Faults::default(), async || {
        let (generation, ids) = generation(configuration, &Arc::new(AtomicUsize::new(0)));
        let counters = Arc::new(Counters::default());
        let worker = tidegate_server::protocols::worker(generation, 512, Arc::clone(&counters));
        let (socket, address) = sim::listen(Address::Inet(ADDRESS.parse().unwrap())).unwrap();
        worker.listen(vec![((ids[0].clone(), 0), socket)]);
        clients(address).await;
        worker.quit();
        let ended = either(worker.end(), engine::sleep(PATIENCE)).await;
        assert!(matches!(ended, Either::First(_)), "a connection is left");
        assert_eq!(counters.totals().panics, 0);
    });
}

async fn connect(address: &Address) -> Stream {
    let deadline = engine::now() + PATIENCE;
    let connected = engine::net::connect(address, None, Some(deadline)).await;
    connected.unwrap()
}

fn send(stream: &Stream, bytes: &[u8]) {
    stream.push(Bytes::copy_from_slice(bytes));
    stream.start_send();
}

/// What the server says until it ends the connection.
async fn hear(stream: &Stream) -> Vec<u8> {
    let mut answer = Vec::new();
    while let Ok(bytes) = stream.recv(Some(engine::now() + PATIENCE)).await
        && !bytes.is_empty()
    {
        answer.extend_from_slice(&bytes);
    }
    answer
}

fn client(version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let provider = Arc::new(CryptoProvider {
        // A hello with a share of ML-KEM is five times as long.
        kx_groups: vec![aws_lc_rs::kx_group::X25519],
        ..aws_lc_rs::default_provider()
    });
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(trust_everybody(&provider))
        .with_no_client_auth();
    config.enable_early_data = true;
    Arc::new(config)
}

fn begin(config: &Arc<ClientConfig>) -> ClientConnection {
    let name = ServerName::try_from("localhost").unwrap();
    ClientConnection::new(Arc::clone(config), name).unwrap()
}

fn records(tls: &mut ClientConnection) -> Vec<u8> {
    let mut records = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut records).unwrap();
    }
    records
}

/// Says everything that a client says, with this bit of what it says after its hello changed. What
/// the server answers to the request, and how many bytes were said after the hello.
async fn talk(
    address: &Address,
    config: &Arc<ClientConfig>,
    bit: Option<usize>,
) -> (Vec<u8>, usize) {
    let (mut tls, stream) = (begin(config), connect(address).await);
    send(&stream, &records(&mut tls));
    let mut answer = Vec::new();
    let (mut asked, mut said) = (false, 0);
    while let Ok(bytes) = stream.recv(Some(engine::now() + PATIENCE)).await
        && !bytes.is_empty()
    {
        let mut rest = &bytes[..];
        while !rest.is_empty() && matches!(tls.read_tls(&mut rest), Ok(1..)) {
            if tls.process_new_packets().is_err() {
                return (answer, said);
            }
            let _ = tls.reader().read_to_end(&mut answer);
        }
        if !tls.is_handshaking() && !std::mem::replace(&mut asked, true) {
            tls.writer().write_all(REQUEST).unwrap();
        }
        let mut records = records(&mut tls);
        let place = bit.and_then(|bit| (bit / 8).checked_sub(said));
        if let (Some(bit), Some(byte)) = (bit, place.and_then(|place| records.get_mut(place))) {
            *byte ^= 1 << (bit % 8);
        }
        said += records.len();
        send(&stream, &records);
    }
    (answer, said)
}

#[test]
fn each_bit_of_a_hello() {
    run(async |address| {
        let mut hellos = Vec::new();
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let config = client(version);
            hellos.push(records(&mut begin(&config)));
            let (answer, _) = talk(&address, &config, None).await;
            assert!(answer.ends_with(b"served"));
            // The session goes on, with a request in the first flight where that can be.
            let mut tls = begin(&config);
            if let Some(mut early) = tls.early_data() {
                early.write_all(REQUEST).unwrap();
            }
            hellos.push(records(&mut tls));
        }
        for hello in &hellos {
            for bit in 0..8 * hello.len() {
                let mut damaged = hello.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let stream = connect(&address).await;
                send(&stream, &damaged);
                stream.shutdown_write();
                hear(&stream).await;
            }
        }
    });
}

#[test]
fn each_bit_of_what_follows_the_servers_answer() {
    run(async |address| {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let mut config = ClientConfig::clone(&client(version));
            config.resumption = rustls::client::Resumption::disabled();
            let config = Arc::new(config);
            let (answer, length) = talk(&address, &config, None).await;
            assert!(answer.ends_with(b"served") && length > 0);
            for bit in 0..8 * length {
                talk(&address, &config, Some(bit)).await;
            }
        }
    });
}

/// What a client damaged is told, where rustls has no words for it: messages that are too long, cut
/// by another record, or made of nothing, after the server's answer.
#[test]
fn an_alert_for_each_failure() {
    let record = |kind: u8, content: &[u8]| {
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[kind, 3, 3], &length[..], content].concat()
    };
    run(async |address| {
        let config = client(&rustls::version::TLS12);
        for second in [
            record(22, &[16, 0xff, 0xff, 0xff]),
            [record(22, &[16, 0, 0, 9, 1]), record(21, &[1, 90])].concat(),
            [record(22, &[16, 0, 0, 9, 1]), record(20, &[1])].concat(),
            [record(22, &[16, 0, 0, 9, 1]), record(23, &[1])].concat(),
            record(22, &[1; 0x4000]),
            record(22, &[]),
        ] {
            let (mut tls, stream) = (begin(&config), connect(&address).await);
            send(&stream, &records(&mut tls));
            engine::sleep(Duration::from_secs(1)).await;
            send(&stream, &second);
            let answer = hear(&stream).await;
            let last = answer.last_chunk::<7>();
            assert!(
                matches!(last, Some([21, 3, _, 0, 2, 2, _])),
                "{second:?}: {last:?}"
            );
        }
    });
}

/// A header of the PROXY protocol, by version 2, of so many bytes.
fn proxy_header(length: usize) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11".to_vec();
    header.extend_from_slice(&((length - 16) as u16).to_be_bytes());
    header.extend_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2, 0, 123, 0, 80]);
    // The rest is padding (PP2_TYPE_NOOP).
    header.push(4);
    header.extend_from_slice(&((length - 31) as u16).to_be_bytes());
    header.resize(length, 0);
    header
}

/// As with nginx it has a bound of its own there, and that of heads is no matter.
#[test]
fn what_a_proxy_tells_before_a_handshake_may_be_long() {
    let listen = "443 ssl proxy_protocol; client_header_buffer_size 64;";
    let configuration = CONFIGURATION.replace("443 ssl;", listen);
    run_by(&configuration, async |address| {
        let config = client(&rustls::version::TLS13);
        for (length, is_taken) in [(40, true), (4096, true), (4097, false)] {
            let stream = connect(&address).await;
            send(&stream, &proxy_header(length));
            send(&stream, &records(&mut begin(&config)));
            stream.shutdown_write();
            let answer = hear(&stream).await;
            assert_eq!(answer.first() == Some(&22), is_taken, "{length}");
        }
    });
}
