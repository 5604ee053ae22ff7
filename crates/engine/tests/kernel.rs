//! What only a real kernel shows: full queues, small socket buffers, files that are cold or shrink,
//! several threads.

mod common;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::file::File;
use engine::kernel_tls::{Cipher, SealingKeys, Version};
use engine::net::{
    Address, BoundSocket, Datagram, DatagramSocket, KeepAlive, ListenOptions, Listener, Segment,
    SocketKind, Stream, connect, listen,
};
use engine::select::{Either, either};
use engine::{EngineKind, Runtime, Settings, now, sleep, spawn};
use rustix::net::{AddressFamily, SocketType, sockopt};

macro_rules! kernels {
    ($($name:ident),* $(,)?) => {
        mod epoll { $(#[test] fn $name() { super::$name(engine::EngineKind::Epoll) })* }
        mod uring {
            $(#[test] fn $name() {
                if crate::common::with_io_uring() {
                    super::$name(engine::EngineKind::Uring)
                }
            })*
        }
    };
}

kernels!(
    a_burst_larger_than_the_buffers,
    a_connect_without_an_answer_times_out,
    a_file_that_is_cold,
    a_file_that_shrinks_while_it_is_sent,
    a_runtime_ends_with_everything_in_flight,
    datagrams_answer_from_the_address_that_was_asked,
    datagrams_are_exchanged_whole,
    datagrams_come_in_batches,
    datagrams_leave_with_the_turn,
    datagrams_of_a_socket_that_was_bound_elsewhere,
    datagrams_wait_for_room,
    finish_answers_a_peer_that_sends_on,
    keys_keep_their_place_and_may_be_refused,
    multi_accept_serves_all,
    small_sockets_and_a_linked_close,
    small_sockets_and_a_send_timeout,
    the_kernel_tells_how_bytes_travel,
    threads_share_a_listener,
);

fn runtime(kind: EngineKind) -> Runtime {
    Runtime::new(kind, Settings::default()).unwrap()
}

fn options() -> ListenOptions {
    ListenOptions::new(Address::Inet("127.0.0.1:0".parse().unwrap()))
}

fn local(socket: &OwnedFd) -> SocketAddr {
    rustix::net::getsockname(socket)
        .unwrap()
        .try_into()
        .unwrap()
}

/// Several datagrams, each as it was sent; a socket that nobody listens on; one that is dropped
/// while it is watched.
fn datagrams_are_exchanged_whole(kind: EngineKind) {
    let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = server.local_addr().unwrap();
    let address = Address::Inet(from);
    let lengths = [8, 0, 1, 16_383, 16_384, 16_385, 65_507, 2];
    let content: Vec<u8> = (0..65_507_u32).map(|number| (number % 251) as u8).collect();
    let sent = content.clone();
    let answering = std::thread::spawn(move || {
        let mut buffer = [0; 100];
        for length in lengths {
            let (count, from) = server.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..count], length.to_string().as_bytes());
            server.send_to(&sent[..length], from).unwrap();
        }
    });
    let mut runtime = runtime(kind);
    runtime.block_on(async move {
        let socket = DatagramSocket::connect(&address).unwrap();
        for length in lengths {
            assert!(socket.push(Datagram::new(Bytes::from(length.to_string()))));
            socket.drained().await.unwrap();
            let answer = socket.recv().await.unwrap();
            assert!(answer.bytes[..] == content[..length], "{length}");
            assert_eq!((answer.peer, answer.local), (Some(from), None));
        }

        let silence = sleep(Duration::from_millis(20));
        assert!(matches!(
            either(socket.recv(), silence).await,
            Either::Second(())
        ));
        drop(socket);

        answering.join().unwrap();
        let nobody = DatagramSocket::connect(&address).unwrap();
        nobody.push(Datagram::new(Bytes::from_static(b"anybody?")));
        nobody.drained().await.unwrap();
        let refused = nobody.recv().await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        // What cannot be sent is dropped, and what stands behind it is sent.
        let (ours, theirs) = (any_address("127.0.0.1"), any_address("127.0.0.1"));
        let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
        let to = |length: usize| Datagram {
            bytes: Bytes::from(vec![b'x'; length]),
            peer: inet(&theirs),
            local: None,
        };
        for length in [1, 70_000, 2, 70_000, 3] {
            assert!(ours.push(to(length)));
        }
        let error = ours.drained().await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
        ours.drained().await.unwrap();
        for length in 1..=3 {
            let received = theirs.recv().await.unwrap();
            assert_eq!((received.bytes.len(), received.peer), (length, inet(&ours)));
        }
    });
}

fn any_address(ip: &str) -> io::Result<DatagramSocket> {
    DatagramSocket::bind(&SocketAddr::new(ip.parse().unwrap(), 0).into())
}

fn inet(socket: &DatagramSocket) -> Option<SocketAddr> {
    match socket.local().unwrap() {
        Address::Inet(address) => Some(address),
        Address::Unix(_) => None,
    }
}

/// A socket that is bound to all addresses learns which one was asked, and the answer leaves from
/// it: the client, which is connected to that one, would not take it from another.
fn datagrams_answer_from_the_address_that_was_asked(kind: EngineKind) {
    let mut runtime = runtime(kind);
    runtime.block_on(async {
        for (all, asked) in [
            ("0.0.0.0", "127.0.0.2"),
            ("0.0.0.0", "127.1.2.3"),
            ("::", "::1"),
            // IPv4 on a socket of both kinds.
            ("::", "127.0.0.5"),
        ] {
            let Ok(server) = any_address(all) else {
                assert_eq!(all, "::", "a machine without IPv6");
                continue;
            };
            let port = inet(&server).unwrap().port();
            let asked = SocketAddr::new(asked.parse().unwrap(), port);
            let client = DatagramSocket::connect(&asked.into()).unwrap();
            client.push(Datagram::new(Bytes::from_static(b"question")));
            client.drained().await.unwrap();
            let question = server.recv().await.unwrap();
            let canonical = |ip: std::net::IpAddr| ip.to_canonical();
            assert_eq!(question.local.map(canonical), Some(asked.ip()));
            let (peer, from) = (question.peer.unwrap(), inet(&client).unwrap());
            assert_eq!(canonical(peer.ip()), from.ip());
            assert_eq!(peer.port(), from.port());
            server.push(question.with(Bytes::from_static(b"answer")));
            server.start_send();
            let answer = client.recv().await.unwrap();
            assert_eq!(&answer.bytes[..], b"answer");
            assert_eq!(answer.peer, Some(asked));
        }
    });
}

/// As the master binds sockets for the threads: one of two handles is closed, and no longer hears
/// of what the other one gets.
fn datagrams_of_a_socket_that_was_bound_elsewhere(kind: EngineKind) {
    let bound = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let port = bound.local_addr().unwrap().port();
    let bound = BoundSocket::from(OwnedFd::from(bound));
    let mut runtime = runtime(kind);
    runtime.block_on(async {
        let ours = DatagramSocket::new(bound.try_clone().unwrap()).unwrap();
        let asked = SocketAddr::new("127.0.0.3".parse().unwrap(), port);
        let client = DatagramSocket::connect(&asked.into()).unwrap();
        let ask = async || {
            client.push(Datagram::new(Bytes::from_static(b"question")));
            client.drained().await.unwrap();
        };
        let (question, ()) = engine::select::both(ours.recv(), ask()).await;
        assert_eq!(question.unwrap().local, Some(asked.ip()));
        drop(ours);
        let others = DatagramSocket::new(bound).unwrap();
        for _ in 0..3 {
            let (question, ()) = engine::select::both(others.recv(), ask()).await;
            assert_eq!(&question.unwrap().bytes[..], b"question");
        }
        let stream = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(DatagramSocket::new(OwnedFd::from(stream)).is_err());
    });
}

/// More datagrams than one call takes, in order, and none of them is waited for after the first.
fn datagrams_come_in_batches(kind: EngineKind) {
    let mut runtime = runtime(kind);
    runtime.block_on(async {
        let server = any_address("127.0.0.1").unwrap();
        let client = DatagramSocket::connect(&server.local().unwrap()).unwrap();
        for round in 0..3_usize {
            for number in 0..100_usize {
                let bytes = Bytes::from(format!("{round}:{number}"));
                assert!(client.push(Datagram::new(bytes)));
            }
            assert_eq!(client.start_send(), 0, "a socket holds that");
            let first = server.recv().await.unwrap();
            assert_eq!(&first.bytes[..], format!("{round}:0").as_bytes());
            for number in 1..100 {
                let received = match engine::select::at_once(server.recv()).await {
                    Some(received) => received,
                    // Its share of the turn is used up.
                    None => {
                        engine::yield_now().await;
                        server.recv().await
                    }
                };
                let expected = format!("{round}:{number}");
                assert_eq!(&received.unwrap().bytes[..], expected.as_bytes());
            }
        }
    });
}

/// What several have pushed leaves with the turn, also where the socket goes with it; what the
/// system refuses is told, and the others are sent.
fn datagrams_leave_with_the_turn(kind: EngineKind) {
    let mut runtime = runtime(kind);
    runtime.block_on(async {
        let server = any_address("127.0.0.1").unwrap();
        let client = DatagramSocket::connect(&server.local().unwrap()).unwrap();
        for bytes in [&b"one"[..], &[0; 70_000], b"two"] {
            assert!(client.push(Datagram::new(Bytes::from_static(bytes))));
            client.send_soon();
        }
        assert!(engine::select::at_once(server.recv()).await.is_none());
        engine::yield_now().await;
        for expected in [b"one", b"two"] {
            let received = server.recv().await.unwrap();
            assert_eq!(received.bytes[..], expected[..]);
        }
        let failure = client.take_failure().and_then(|error| error.raw_os_error());
        assert_eq!(failure, Some(90), "EMSGSIZE");
        assert!(client.take_failure().is_none());
        assert!(client.push(Datagram::new(Bytes::from_static(b"last"))));
        client.send_soon();
        drop(client);
        assert_eq!(server.recv().await.unwrap().bytes[..], b"last"[..]);
    });
}

/// A Unix socket whose reader is slow takes only so many; the others follow when it has read, in
/// order. Beyond the bound they are dropped, and dropping the socket while it waits for room is
/// harmless.
fn datagrams_wait_for_room(kind: EngineKind) {
    let path = std::env::temp_dir().join(format!("engine-datagrams-{kind}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let mut runtime = runtime(kind);
    runtime.block_on(async {
        let reader = DatagramSocket::bind(&Address::Unix(path.clone())).unwrap();
        let writer = DatagramSocket::connect(&Address::Unix(path.clone())).unwrap();
        let mut count = 0_u32;
        while writer.push(Datagram::new(count.to_be_bytes().into_iter().collect())) {
            count += 1;
            assert!(count < 1 << 20, "nothing bounds what waits");
        }
        assert!(writer.start_send() > 0);
        let reading = async {
            for number in 0..count {
                let received = reader.recv().await.unwrap();
                assert_eq!(received.bytes[..], number.to_be_bytes());
                assert_eq!(received.peer, None);
            }
        };
        let (drained, ()) = engine::select::both(writer.drained(), reading).await;
        drained.unwrap();
        while writer.push(Datagram::new(Bytes::from(vec![0; 1000]))) {}
        assert!(writer.start_send() > 0);
        drop(writer);
        reader.recv().await.unwrap();
        sleep(Duration::from_millis(5)).await;
    });
    std::fs::remove_file(&path).unwrap();
}

async fn echo(stream: Stream) {
    while let Ok(buffer) = stream.recv_idle(None).await
        && !buffer.is_empty()
    {
        stream.push(buffer.into_bytes());
        stream.start_send();
    }
}

/// What the kernel knows of a connection.
fn the_kernel_tells_how_bytes_travel(kind: EngineKind) {
    let mut runtime = runtime(kind);
    let socket = listen(&options()).unwrap();
    let address = local(&socket);
    runtime.block_on(async {
        let listener = Listener::new(socket).unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        let stream = listener.accept().await.unwrap();
        client.write_all(b"1").unwrap();
        stream.recv(None).await.unwrap();
        let info = stream.tcp_info().unwrap();
        assert!(
            info.rtt > 0 && info.snd_cwnd > 0 && info.rcv_space > 0,
            "{info:?}"
        );
    });
}

fn threads_share_a_listener(kind: EngineKind) {
    let socket = listen(&options()).unwrap();
    let address = local(&socket);
    let served: Arc<[AtomicUsize; 2]> = Arc::default();
    let mut remotes = Vec::new();
    let mut threads = Vec::new();
    for index in 0..2 {
        let (socket, served) = (socket.try_clone().unwrap(), served.clone());
        let (sender, receiver) = std::sync::mpsc::channel();
        threads.push(std::thread::spawn(move || {
            let mut runtime = runtime(kind);
            sender.send(runtime.remote()).unwrap();
            runtime.block_on(async move {
                let listener = Listener::new(socket).unwrap();
                spawn(async move {
                    while let Ok(stream) = listener.accept().await {
                        served[index].fetch_add(1, Ordering::Relaxed);
                        spawn(echo(stream));
                    }
                });
                while !STOPPED.get() {
                    sleep(Duration::from_millis(5)).await;
                }
            });
        }));
        remotes.push(receiver.recv().unwrap());
    }
    thread_local!(static STOPPED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) });
    let mut clients: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    for client in &mut clients {
        client.write_all(b"hello").unwrap();
        client.read_exact(&mut [0; 5]).unwrap();
    }
    let counts = [0, 1].map(|index| served[index].load(Ordering::Relaxed));
    assert_eq!(counts.iter().sum::<usize>(), 200, "{counts:?}");
    for remote in remotes {
        remote.post(Box::new(|| STOPPED.set(true)));
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

fn multi_accept_serves_all(kind: EngineKind) {
    let settings = Settings {
        multi_accept: true,
        ..Settings::default()
    };
    let mut runtime = Runtime::new(kind, settings).unwrap();
    let socket = listen(&options()).unwrap();
    let address = local(&socket);
    runtime.block_on(async {
        let listener = Listener::new(socket).unwrap();
        // All of them wait in the kernel's queue before the first is accepted.
        let mut clients: Vec<TcpStream> = (0..300)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let mut streams = Vec::new();
        while streams.len() < clients.len() {
            streams.push(listener.accept().await.unwrap());
        }
        for (number, stream) in streams.into_iter().enumerate() {
            stream.push(Bytes::from(vec![number as u8]));
            stream.finish();
        }
        sleep(Duration::from_millis(20)).await;
        let mut sum = 0;
        for client in &mut clients {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            sum += usize::from(byte[0]);
        }
        assert_eq!(sum, (0..300).map(|number| number % 256).sum());
    });
}

fn a_burst_larger_than_the_buffers(kind: EngineKind) {
    // Eight connections mean 32 buffers in the ring.
    let settings = Settings {
        connections: 8,
        ..Settings::default()
    };
    let mut runtime = Runtime::new(kind, settings).unwrap();
    let socket = listen(&options()).unwrap();
    let address = local(&socket);
    let clients = std::thread::spawn(move || {
        let mut clients: Vec<TcpStream> = (0..400)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        for round in 0..5_u8 {
            for client in &mut clients {
                client.write_all(&[round; 1000]).unwrap();
            }
            for client in &mut clients {
                let mut bytes = [0; 1000];
                client.read_exact(&mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte == round));
            }
        }
    });
    runtime.block_on(async move {
        let listener = Listener::new(socket).unwrap();
        spawn(async move {
            while let Ok(stream) = listener.accept().await {
                spawn(echo(stream));
            }
        });
        engine::blocking(move || clients.join().unwrap()).await;
    });
}

/// A client with a receive buffer of a few KiB.
fn narrow_client(address: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 2048).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    TcpStream::from(socket)
}

fn narrow_listener() -> (OwnedFd, SocketAddr) {
    let socket = listen(&ListenOptions {
        sndbuf: Some(4096),
        ..options()
    })
    .unwrap();
    let address = local(&socket);
    (socket, address)
}

/// What it has sent beyond the last request lies unread when the connection is closed, which resets
/// it.
fn finish_answers_a_peer_that_sends_on(kind: EngineKind) {
    let socket = listen(&options()).unwrap();
    let address = local(&socket);
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"one").unwrap();
    runtime(kind).block_on(async {
        let listener = Listener::new(socket).unwrap();
        let stream = listener.accept().await.unwrap();
        assert_eq!(&stream.recv_idle(None).await.unwrap()[..], b"one");
        client.write_all(b"two").unwrap();
        stream.push(Bytes::from_static(b"answer"));
        stream.finish();
        while engine::net::finishing() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    });
    let mut received = [0; 6];
    client.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"answer");
}

/// What stands before keys has left when they come to the kernel; where it does not take them,
/// nothing leaves behind them. A socket that has not been prepared takes none, whatever the kernel
/// can.
fn keys_keep_their_place_and_may_be_refused(kind: EngineKind) {
    let socket = listen(&options()).unwrap();
    let mut client = TcpStream::connect(local(&socket)).unwrap();
    runtime(kind).block_on(async {
        let listener = Listener::new(socket).unwrap();
        let stream = listener.accept().await.unwrap();
        let (version, cipher) = (Version::Tls13, Cipher::Aes128Gcm);
        let keys = SealingKeys::new(version, cipher, &[0; 16], &[0; 12], 0).unwrap();
        stream.push(Bytes::from_static(b"in the clear"));
        stream.push(Segment::Keys(keys.into()));
        stream.push(Bytes::from_static(b"secret"));
        let refused = stream.drained(0).await.unwrap_err();
        assert!(refused.raw_os_error().is_some(), "{refused}");
        assert!(stream.drained(0).await.is_err());
    });
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"in the clear");
}

fn small_sockets_and_a_linked_close(kind: EngineKind) {
    let (socket, address) = narrow_listener();
    let client = std::thread::spawn(move || {
        let mut client = narrow_client(address);
        client.write_all(b"request").unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        received
    });
    let mut runtime = runtime(kind);
    let received = runtime.block_on(async move {
        let listener = Listener::new(socket).unwrap();
        let stream = listener.accept().await.unwrap();
        assert_eq!(&stream.recv_idle(None).await.unwrap()[..], b"request");
        for part in 0..20_u8 {
            stream.push(Bytes::from(vec![part; 10_000]));
        }
        stream.finish();
        engine::blocking(move || client.join().unwrap()).await
    });
    let expected: Vec<u8> = (0..20_u8).flat_map(|part| vec![part; 10_000]).collect();
    assert!(received == expected);
}

fn small_sockets_and_a_send_timeout(kind: EngineKind) {
    let (socket, address) = narrow_listener();
    let mut client = narrow_client(address);
    let mut runtime = runtime(kind);
    runtime.block_on(async {
        let listener = Listener::new(socket).unwrap();
        let stream = listener.accept().await.unwrap();
        stream.set_send_timeout(Duration::from_millis(100));
        stream.push(Bytes::from(vec![1; 200_000]));
        stream.finish();
        sleep(Duration::from_millis(400)).await;
        // The number is free: whatever is opened now must stay open.
        let mut files = Vec::new();
        for _ in 0..20 {
            files.push(std::fs::File::open("/dev/null").unwrap());
        }
        sleep(Duration::from_millis(50)).await;
        for file in &files {
            assert!(file.metadata().is_ok());
        }
    });
    let mut received = Vec::new();
    let result = client.read_to_end(&mut received);
    assert!(received.len() < 200_000, "{result:?}");
}

fn temporary(name: &str, length: usize) -> (std::fs::File, Vec<u8>) {
    let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    let mut file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    let content: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
    file.write_all(&content).unwrap();
    (file, content)
}

fn a_file_that_is_cold(kind: EngineKind) {
    let (file, content) = temporary(&format!("engine-cold-{kind}"), 3_000_000);
    file.sync_all().unwrap();
    // Drop it from the page cache, where the file system allows that; elsewhere it stays warm, and
    // the test is easier.
    let advice = rustix::fs::Advice::DontNeed;
    rustix::fs::fadvise(&file, 0, None, advice).unwrap();
    let socket = listen(&options()).unwrap();
    let address = local(&socket);
    let client = std::thread::spawn(move || {
        let mut received = Vec::new();
        TcpStream::connect(address)
            .unwrap()
            .read_to_end(&mut received)
            .unwrap();
        received
    });
    let mut runtime = runtime(kind);
    let received = runtime.block_on(async move {
        let listener = Listener::new(socket).unwrap();
        let stream = listener.accept().await.unwrap();
        let file = File::from(file);
        stream.push(Bytes::from_static(b"head"));
        stream.push(Segment::File {
            file: file.clone(),
            offset: 1,
            length: 2_999_999,
        });
        stream.drained(0).await.unwrap();
        stream.push(file.read_at(2_999_990, 100).await.unwrap());
        stream.finish();
        engine::blocking(move || client.join().unwrap()).await
    });
    assert_eq!(&received[..4], b"head");
    assert!(received[4..3_000_003] == content[1..]);
    assert_eq!(&received[3_000_003..], &content[2_999_990..]);
}

fn a_file_that_shrinks_while_it_is_sent(kind: EngineKind) {
    let (file, _) = temporary(&format!("engine-shrink-{kind}"), 20_000_000);
    let (socket, address) = narrow_listener();
    let mut client = narrow_client(address);
    let mut runtime = runtime(kind);
    runtime.block_on(async {
        let listener = Listener::new(socket).unwrap();
        let stream = listener.accept().await.unwrap();
        let handle = file.try_clone().unwrap();
        stream.push(Segment::File {
            file: file.into(),
            offset: 0,
            length: 20_000_000,
        });
        stream.start_send();
        handle.set_len(100_000).unwrap();
        let reader = std::thread::spawn(move || {
            let mut received = Vec::new();
            let _ = client.read_to_end(&mut received);
            received.len()
        });
        let error = stream.drained(0).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        drop(stream);
        let count = engine::blocking(move || reader.join().unwrap()).await;
        assert!((50_000..20_000_000).contains(&count), "{count}");
    });
}

fn a_connect_without_an_answer_times_out(kind: EngineKind) {
    let socket = listen(&ListenOptions {
        backlog: 0,
        ..options()
    })
    .unwrap();
    let address = local(&socket);
    // The queue holds one; the kernel leaves others without an answer.
    let _filling = TcpStream::connect(address).unwrap();
    let mut runtime = runtime(kind);
    runtime.block_on(async {
        let begin = now();
        let mut timed_out = 0;
        for _ in 0..3 {
            let deadline = now() + Duration::from_millis(60);
            match connect(&address.into(), None, Some(deadline)).await {
                Ok(stream) => std::mem::forget(stream),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                    timed_out += 1;
                }
            }
        }
        assert!(timed_out > 0);
        assert!(now() - begin < Duration::from_secs(30));
    });
}

fn a_runtime_ends_with_everything_in_flight(kind: EngineKind) {
    let socket = listen(&options()).unwrap();
    let address = local(&socket);
    let mut clients = Vec::new();
    let begin = Instant::now();
    {
        let mut runtime = runtime(kind);
        assert!(
            Runtime::new(kind, Settings::default()).is_err(),
            "one runtime a thread"
        );
        runtime.block_on(async {
            let listener = Listener::new(socket).unwrap();
            for number in 0..10 {
                let mut client = TcpStream::connect(address).unwrap();
                let stream = listener.accept().await.unwrap();
                client.write_all(b"1").unwrap();
                assert_eq!(stream.recv_idle(None).await.unwrap().len(), 1);
                if number % 2 == 0 {
                    stream.push(Bytes::from(vec![0; 30_000_000]));
                }
                if number % 3 == 0 {
                    stream.finish();
                } else {
                    stream.start_send();
                    spawn(echo(stream));
                }
                clients.push(client);
            }
            spawn(async move {
                let _ = listener.accept().await;
            });
            sleep(Duration::from_millis(10)).await;
        });
    }
    assert!(begin.elapsed() < Duration::from_secs(30));
    for mut client in clients {
        // Every connection was closed with the runtime; what was sent before may still be read.
        client
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let _ = client.read_to_end(&mut Vec::new());
    }
    let error = TcpStream::connect(address).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn listen_options_reach_the_socket() {
    let all = ListenOptions {
        carries: SocketKind::Streams,
        address: Address::Inet("[::]:0".parse().unwrap()),
        backlog: 5,
        reuseport: true,
        deferred: true,
        fastopen: Some(7),
        so_keepalive: Some(KeepAlive::On {
            idle: Some(Duration::from_secs(33)),
            interval: None,
            count: Some(4),
        }),
        rcvbuf: Some(20_000),
        sndbuf: Some(30_000),
        ipv6only: Some(false),
        nodelay: true,
        xdp: false,
    };
    let socket = listen(&all).unwrap();
    assert!(sockopt::socket_reuseport(&socket).unwrap());
    assert!(sockopt::socket_keepalive(&socket).unwrap());
    assert_eq!(
        sockopt::tcp_keepidle(&socket).unwrap(),
        Duration::from_secs(33)
    );
    assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), 4);
    // The kernel doubles what it is asked for.
    assert_eq!(sockopt::socket_recv_buffer_size(&socket).unwrap(), 40_000);
    assert_eq!(sockopt::socket_send_buffer_size(&socket).unwrap(), 60_000);
    assert!(!sockopt::ipv6_v6only(&socket).unwrap());
    assert!(sockopt::tcp_nodelay(&socket).unwrap());

    let same_port = ListenOptions {
        address: local(&socket).into(),
        ..all
    };
    assert!(listen(&same_port).is_ok(), "reuseport");
    let alone = ListenOptions {
        reuseport: false,
        ..same_port
    };
    let error = listen(&alone).unwrap_err();
    assert_eq!(error.call, "bind()");
    assert_eq!(error.error.raw_os_error(), Some(libc::EADDRINUSE));
    assert!(error.to_string().starts_with("bind() failed: "));
}

#[test]
fn files_open_and_tell_about_themselves() {
    let mut runtime = runtime(EngineKind::Epoll);
    runtime.block_on(async {
        let path = std::env::temp_dir().join(format!("engine-file-{}", std::process::id()));
        std::fs::write(&path, b"content").unwrap();
        let (file, metadata) = engine::file::open(&path).await.unwrap();
        assert!(metadata.is_file());
        assert_eq!(metadata.size, 7);
        assert_eq!(engine::file::stat(&path).await.unwrap(), metadata);
        assert_eq!(engine::file::stat_now(&path).unwrap(), metadata);
        assert_eq!(file.metadata().unwrap(), metadata);
        assert_eq!(&file.read_at(3, 100).await.unwrap()[..], b"tent");
        assert_eq!(file.read_at(7, 100).await.unwrap().len(), 0);
        let writable = File::from(std::fs::File::options().write(true).open(&path).unwrap());
        writable
            .write_at(
                7,
                vec![Bytes::from_static(b" "), Bytes::from_static(b"more")],
            )
            .await
            .unwrap();
        assert_eq!(&file.read_at(0, 100).await.unwrap()[..], b"content more");
        assert!(
            engine::file::stat(&std::env::temp_dir())
                .await
                .unwrap()
                .is_dir()
        );
        std::fs::remove_file(&path).unwrap();
        let error = engine::file::open(&path).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(engine::file::stat(&path).await.is_err());
    });
}
