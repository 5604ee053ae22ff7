//! The way of a client to a port in the clear that speaks HTTP/1 and HTTP/2: the server's own code
//! in the simulation, from its first byte on. Whatever a client sends, in whatever pieces, nothing
//! panics, the connection ends, and what comes back on one of HTTP/2 are frames.
//!
//! The first byte of an input says whether the preface of HTTP/2 comes first, whether the rest is
//! sent as it is or makes frames, and whether the client then waits or closes; the second says of
//! what size the pieces are.
#![no_main]

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use conf::{Recording, RecordedFiles};
use engine::net::{Address, Listener};
use engine::select::{Either, either};
use engine::sim::{self, Faults};
use framework::compile::Environment;
use framework::counters::Counters;
use framework::generation::Generation;
use logs::Destination;
use libfuzzer_sys::fuzz_target;
use proto::h2::frame::{self, FrameHead, HEAD_LENGTH, Kind, PREFACE, flags};
use proto::h2::hpack::{Encoder, Field};
use server::compile;
use server::features;
use transport::listen::ListenerId;

const ADDRESS: &str = "10.0.0.1:80";
const BEHIND: &str = "10.0.0.9:8080";

const CONFIGURATION: &str = "error_log /dev/null info; events {} http { access_log /dev/null;
    client_header_timeout 5s; client_body_timeout 5s; keepalive_timeout 5s; send_timeout 5s; gzip on; gzip_types *;
    client_body_temp_path /tmp; proxy_temp_path /tmp; client_max_body_size 40k; http2_max_concurrent_streams 5;
    limit_req_zone $server_name zone=limited:1m rate=10r/s;
    server { listen 10.0.0.1:80; http2 on; server_name a.org; http2_body_preread_size 1000;
             location / { return 200 'a response that has some length, to be cut into frames: $request_id $http2'; }
             location /constant { return 200 served; }
             location /slow { limit_rate 10; return 200 'slowly, some bytes a second'; }
             location /behind { proxy_pass http://10.0.0.9:8080; }
             location /unbuffered { proxy_pass http://10.0.0.9:8080; proxy_request_buffering off; proxy_http_version 1.1; }
             location /refused { proxy_pass http://10.0.0.9:1; }
             location /limited { limit_req zone=limited burst=2; return 200 $remote_addr; }
             location /moved { return 301 /elsewhere; } }
    server { listen 10.0.0.1:80; server_name b.org; return 404; } }";

/// How long the server may take to come to an end: longer than its time limits.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long a client waits: longer than the server keeps one that says nothing.
const SILENCE: Duration = Duration::from_secs(100);

fuzz_target!(|input: &[u8]| {
    let Some(([mode, size], rest)) = input.split_first_chunk() else {
        return;
    };
    let mut sent = Vec::new();
    if mode & 1 == 0 {
        sent.extend_from_slice(PREFACE);
    }
    if mode & 2 == 0 {
put_conversation(rest, &mut sent)
} else {
sent.extend_from_slice(rest)
}
    let size = match size {
        0 => usize::MAX,
        size => usize::from(*size) * usize::from(*size),
    };
    run(&sent, size, mode & 4 != 0);
});

/// Sends this to a server in pieces of a size, and waits for it to have done with it.
fn run(sent: &[u8], size: usize, closes: bool) {
    let (generation, ids) = generation();
    let mut runtime = sim::runtime(1, Faults::default(), engine::Settings::default())
        .expect("one runtime at a time");
    runtime.block_on(async {
        behind();
        let counters = Arc::new(Counters::default());
        let worker = server::doors::worker(Arc::clone(generation), 64, Arc::clone(&counters));
        let address = Address::Inet(ADDRESS.parse().expect("an address"));
        let (socket, address) = sim::listen(address).expect("free");
        worker.listen(vec![((ids[0].clone(), 0), socket)]);
        let answer = talk(&address, sent, size, closes).await;
        if sent.starts_with(PREFACE) {
            assert_frames(&answer);
        }
        worker.quit();
        let ended = either(worker.end(), engine::sleep(PATIENCE)).await;
        assert!(matches!(ended, Either::First(_)), "a connection is left");
        assert_eq!(counters.totals().panics, 0);
    });
}

/// What the server says until it ends the connection.
async fn talk(address: &Address, sent: &[u8], size: usize, closes: bool) -> Vec<u8> {
    let deadline = engine::now() + PATIENCE;
    let stream = engine::net::connect(address, None, Some(deadline)).await;
    let stream = stream.expect("the server listens");
    for piece in sent.chunks(size) {
        stream.push(Bytes::copy_from_slice(piece));
        stream.start_send();
        engine::sleep(Duration::from_millis(1)).await;
    }
    if closes {
        stream.shutdown_write();
    }
    let mut answer = Vec::new();
    loop {
        match stream.recv(Some(engine::now() + SILENCE)).await {
            Ok(bytes) if bytes.is_empty() => return answer,
            Ok(bytes) => answer.extend_from_slice(&bytes),
            Err(error) => {
                let silent = error.kind() == std::io::ErrorKind::TimedOut;
                assert!(!silent, "the server keeps a connection that says nothing");
                return answer;
            }
        }
    }
}

/// Whether these are frames that a server sends, the last one perhaps cut by a reset.
fn assert_frames(mut rest: &[u8]) {
    while let Some((head, behind)) = rest.split_first_chunk::<HEAD_LENGTH>() {
        let head = FrameHead::read(head);
        assert!(head.length <= frame::FRAME_SIZE_MAX_DEFAULT, "{head:?}");
        let is_known = matches!(
            head.kind,
            Kind::Data
                | Kind::Headers
                | Kind::Continuation
                | Kind::Settings
                | Kind::Ping
                | Kind::Reset
                | Kind::WindowUpdate
                | Kind::GoAway
        );
        assert!(is_known, "{head:?}");
        rest = behind.get(head.length as usize..).unwrap_or_default();
    }
}

/// The server behind this one: it answers each connection's one request at once.
fn behind() {
    let address = Address::Inet(BEHIND.parse().expect("an address"));
    let (socket, _) = sim::listen(address).expect("free");
    engine::spawn(async move {
        let listener = Listener::new(socket).expect("it listens");
        while let Ok(stream) = listener.accept().await {
            engine::spawn(async move {
                let _ = stream.recv(None).await;
                stream.push(Bytes::from_static(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nbehind",
                ));
                stream.finish();
            });
        }
    });
}

/// Frames as a client may send them, each made of a few bytes; now and then one is odd.
fn put_conversation(mut rest: &[u8], out: &mut Vec<u8>) {
    let mut encoder = Encoder::new(4096);
    let mut next = 1u32;
    while let Some(([action, which, size], behind)) = rest.split_first_chunk() {
        rest = behind;
        let known = next.saturating_sub(2 * (u32::from(*which) % 6) + 2);
        let bytes = behind.get(..usize::from(*size)).unwrap_or(behind);
        let number = u32::from(*size) << (which & 31);
        let ends = u8::from(action & 32 != 0);
        match action % 16 {
            0..=4 => {
                put_head(&mut encoder, next, ends, *which, *size, out);
                next += 2;
            }
            5 | 6 => put(Kind::Data, ends, known, bytes, out),
            7 => {
                let padded = [&[*size][..], bytes, &vec![0; usize::from(*size)]].concat();
                put(Kind::Data, flags::PADDED | ends, known, &padded, out);
            }
            8 => put(Kind::WindowUpdate, 0, known, &number.to_be_bytes(), out),
            9 => put(Kind::WindowUpdate, 0, 0, &number.to_be_bytes(), out),
            10 => put(Kind::Reset, 0, known, &number.to_be_bytes(), out),
            11 => {
                let name = u16::from(which % 10).to_be_bytes();
                let setting = [&name[..], &number.to_be_bytes()].concat();
                put(Kind::Settings, 0, 0, &setting, out);
            }
            12 => put(Kind::Settings, flags::ACK, 0, &[], out),
            13 => put(Kind::Ping, which & 1, 0, b"12345678", out),
            14 => put(Kind::GoAway, 0, 0, &[0; 8], out),
            _ => {
                let kind = FrameHead::read(&[0, 0, 0, which % 18, 0, 0, 0, 0, 0]).kind;
                put(kind, *size, known, bytes, out);
            }
        }
    }
}

fn put(kind: Kind, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    frame::put_head(out, kind, flags, stream, payload.len());
    out.extend_from_slice(payload);
}

/// A request's header block, in one frame or in two.
fn put_head(encoder: &mut Encoder, stream: u32, ends: u8, which: u8, size: u8, out: &mut Vec<u8>) {
    let paths = [
        &b"/"[..],
        b"/constant",
        b"/slow",
        b"/behind",
        b"/unbuffered",
        b"/refused",
        b"/limited",
        b"/moved?a=%20",
    ];
    let methods = [&b"GET"[..], b"POST", b"HEAD", b"PUT"];
    let length = size.to_string();
    let mut fields = vec![
        (&b":method"[..], methods[usize::from(which >> 3) % 4]),
        (b":scheme", b"http"),
        (b":path", paths[usize::from(which) % 8]),
        (
            b":authority",
            if which & 128 == 0 { b"a.org" } else { b"b.org" },
        ),
    ];
    if which & 32 != 0 {
        fields.push((b"content-length", length.as_bytes()));
    }
    if which & 64 != 0 {
        fields.push((b"accept-encoding", b"gzip"));
        fields.push((b"priority", b"u=1, i"));
        fields.push((b"expect", b"100-continue"));
    }
    let mut block = Vec::new();
    encoder.encode(fields.into_iter().map(Field::from), &mut block);
    if size & 1 == 0 {
        return put(
            Kind::Headers,
            ends | flags::END_HEADERS,
            stream,
            &block,
            out,
        );
    }
    let (first, second) = block.split_at(block.len().min(usize::from(size)));
    put(Kind::Headers, ends, stream, first, out);
    put(Kind::Continuation, flags::END_HEADERS, stream, second, out);
}

fn generation() -> &'static (Arc<Generation>, Vec<ListenerId>) {
    static GENERATION: OnceLock<(Arc<Generation>, Vec<ListenerId>)> = OnceLock::new();
    GENERATION.get_or_init(|| {
        let path = Path::new("/nginx.conf");
        let files = RecordedFiles::new(Recording {
            files: vec![(path.into(), CONFIGURATION.into())],
            ..Recording::default()
        });
        let root = Path::new("/");
        let loaded = conf::load(path, root, &[], features::registry(&[]), &files);
        assert!(!loaded.has_errors(), "{:?}", loaded.diagnostics);
        let environment = Environment {
            prefix: root,
            conf_prefix: root,
            files: &files,
            privileged: false,
        };
        let compiled = compile(&loaded.tree, &environment, Destination::Stderr).expect("compiles");
        for log in &compiled.logs {
            log.install(log.open().expect("opens"));
        }
        let ids = compiled.bindings.iter().map(|binding| binding.id.clone());
        let ids = ids.collect();
        (Arc::new(compiled.generation), ids)
    })
}
