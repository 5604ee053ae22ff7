//! One suite over all engines: what a stream promises must hold whichever kernel is underneath.
//!
//! Both ends of each connection are streams of the runtime under test. What needs a foreign peer or
//! a kernel limit is in `kernel.rs`.

mod common;
mod tasks;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, Write};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::file::File;
use engine::net::{
    Address, Datagram, DatagramSocket, ListenOptions, Listener, Segment, Stream, connect, listen,
};
use engine::select::{Either, either};
use engine::sim::Faults;
use engine::{Buffer, EngineKind, Runtime, Settings, now, sleep, spawn};
use tasks::*;

macro_rules! suite {
    ($($name:ident),* $(,)?) => {
        mod epoll { $(#[test] fn $name() { super::run(engine::EngineKind::Epoll, super::$name) })* }
        mod uring { $(#[test] fn $name() { super::run(engine::EngineKind::Uring, super::$name) })* }
        // Without a queue: what it hands to the kernel's engine.
        mod xdp { $(#[test] fn $name() { super::run(engine::EngineKind::Xdp, super::$name) })* }
        mod sim { $(#[test] fn $name() { super::run(engine::EngineKind::Sim, super::$name) })* }
    };
}

suite!(
    addresses,
    back_pressure,
    blocking_jobs,
    busy_tasks_give_way,
    bytes_arrive_in_order,
    cancelled_receives_lose_nothing,
    connect_is_refused,
    connected_sockets_are_counted_until_they_close,
    connect_times_out_or_waits,
    datagrams_are_answered,
    deadlines,
    dropping_a_stream_forgets_what_was_queued,
    drained_times_out,
    early_bytes_of_many_receives,
    echo,
    files_in_pieces_between_bytes,
    finish_sends_everything,
    finish_times_out,
    finishing_quickly_sends_everything,
    half_close,
    large_file_to_a_slow_reader,
    many_connections,
    many_segments_in_one_send,
    panics_stay_in_their_task,
    pipelined_short_connections,
    posting_from_other_threads,
    reset_is_seen,
    reset_tells_the_address,
    short_file_fails_the_stream,
    shutting_down_ends_a_waiting_receive,
    sleeping_in_order,
    stop_hands_out_what_was_accepted,
    turn_end_runs,
    unix_sockets,
    waking_from_other_threads,
    writing_to_a_closed_peer_fails,
    yielding_lets_others_run,
);

type Test<F> = fn(EngineKind) -> F;

fn run<F: Future<Output = ()>>(kind: EngineKind, test: Test<F>) {
    if kind == EngineKind::Uring && !common::with_io_uring() {
        return;
    }
    if kind != EngineKind::Sim {
        drive(Runtime::new(kind, Settings::default()).unwrap(), test(kind));
        return;
    }
    for seed in 0..4 {
        let runtime = engine::sim::runtime(seed, Faults::default(), Settings::default());
        drive(runtime.unwrap(), test(kind));
    }
}

fn drive(mut runtime: Runtime, test: impl Future<Output = ()>) {
    runtime.block_on(async {
        match either(test, sleep(Duration::from_secs(300))).await {
            Either::First(()) => {}
            Either::Second(()) => panic!("the test takes too long"),
        }
    });
}

/// A listener on a free local address.
fn listener(kind: EngineKind) -> (Listener, Address) {
    let any = Address::Inet("127.0.0.1:0".parse().unwrap());
    if kind == EngineKind::Sim {
        let (socket, address) = engine::sim::listen(any).unwrap();
        return (Listener::new(socket).unwrap(), address);
    }
    let socket = listen(&ListenOptions::new(any)).unwrap();
    let local = rustix::net::getsockname(&socket).unwrap();
    let local: std::net::SocketAddr = local.try_into().unwrap();
    (Listener::new(socket).unwrap(), local.into())
}

/// Both ends of a new connection: the client's and the server's.
async fn pair(kind: EngineKind) -> (Stream, Stream) {
    let (listener, address) = listener(kind);
    let (client, server) = both(connect(&address, None, None), listener.accept()).await;
    (client.unwrap(), server.unwrap())
}

/// Waits for both.
async fn both<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut a, mut b) = (None, None);
    poll_fn(|context| {
        if a.is_none()
            && let Poll::Ready(output) = first.as_mut().poll(context)
        {
            a = Some(output);
        }
        if b.is_none()
            && let Poll::Ready(output) = second.as_mut().poll(context)
        {
            b = Some(output);
        }
        match (a.take(), b.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (first, second) => {
                (a, b) = (first, second);
                Poll::Pending
            }
        }
    })
    .await
}

fn soon() -> Option<Instant> {
    Some(now() + Duration::from_secs(120))
}

async fn read_exactly(stream: &Stream, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < count {
        let buffer = stream.recv(soon()).await.unwrap();
        assert!(
            !buffer.is_empty(),
            "ended after {} of {count} bytes",
            bytes.len()
        );
        bytes.extend_from_slice(&buffer);
    }
    assert_eq!(bytes.len(), count);
    bytes
}

async fn read_to_end(stream: &Stream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let buffer = stream.recv(soon()).await?;
        if buffer.is_empty() {
            return Ok(bytes);
        }
        bytes.extend_from_slice(&buffer);
    }
}

/// Bytes that repeat themselves only after 65,521 of them.
fn pattern(length: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let block: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(65_521.min(length))
    .collect();
    let mut bytes = block.repeat(length / 65_521 + 1);
    bytes.truncate(length);
    bytes
}

/// An unnamed file with this content.
fn file_of(bytes: &[u8]) -> File {
    let thread = std::thread::current().id();
    let name = format!("engine-suite-{}-{thread:?}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut file = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all(bytes).unwrap();
    file.into()
}

async fn echo(kind: EngineKind) {
    let (listener, address) = listener(kind);
    spawn(async move {
        while let Ok(stream) = listener.accept().await {
            spawn(async move {
                loop {
                    let buffer = stream.recv_idle(soon()).await.unwrap();
                    if buffer.is_empty() {
                        return;
                    }
                    stream.push(buffer.into_bytes());
                    stream.start_send();
                }
            });
        }
    });
    for _ in 0..3 {
        let client = connect(&address, None, soon()).await.unwrap();
        for round in 0..20 {
            let message = pattern(round * 100 + 1);
            client.push(Bytes::from(message.clone()));
            client.start_send();
            assert_eq!(read_exactly(&client, message.len()).await, message);
        }
        assert_eq!(client.backlog(), 0);
    }
}

async fn addresses(kind: EngineKind) {
    let (listener, address) = listener(kind);
    let (client, server) = both(connect(&address, None, None), listener.accept()).await;
    let (client, server) = (client.unwrap(), server.unwrap());
    assert_eq!(client.peer(), address);
    assert_eq!(server.local(), address);
    assert_eq!(server.peer(), client.local());
    assert_eq!(server.peer().ip(), address.ip());
    // Options are accepted on any engine.
    client.set_nodelay(true);
    client.set_nopush(true);
    client.set_nopush(false);
}

async fn bytes_arrive_in_order(kind: EngineKind) {
    let (client, server) = pair(kind).await;
    let content = pattern(3_000_000);
    let sending = async {
        for chunk in content.chunks(7001) {
            client.push(Bytes::copy_from_slice(chunk));
            client.drained(200_000).await.unwrap();
        }
        client.shutdown_write();
    };
    let ((), received) = both(sending, read_to_end(&server)).await;
    assert!(received.unwrap() == content);
    assert_eq!(client.sent(), content.len() as u64);
}

async fn back_pressure(kind: EngineKind) {
    let (client, server) = pair(kind).await;
    let total = 40_000_000;
    client.push(Bytes::from(vec![7; total]));
    client.start_send();
    sleep(Duration::from_millis(50)).await;
    assert!(client.backlog() > 0, "no socket holds 40 MB");
    assert_eq!(client.backlog() as u64 + client.sent(), total as u64);
    let done = Rc::new(Cell::new(false));
    let reading = async {
        let mut count = 0;
        while count < total {
            count += server.recv(soon()).await.unwrap().len();
        }
        assert!(done.get() || client.backlog() == 0);
    };
    let draining = async {
        client.drained(0).await.unwrap();
        done.set(true);
    };
    both(reading, draining).await;
}

async fn deadlines(kind: EngineKind) {
    let (client, server) = pair(kind).await;
    let begin = now();
    for ms in [30, 5, 60] {
        let deadline = now() + Duration::from_millis(ms);
        let error = server.recv(Some(deadline)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(now() >= deadline);
    }
    assert!(now() - begin < Duration::from_secs(30));
    // A deadline that has passed still delivers what is there.
    client.push(Bytes::from_static(b"late"));
    client.start_send();
    sleep(Duration::from_millis(100)).await;
    loop {
        match server.recv(Some(now())).await {
            Ok(buffer) => break assert_eq!(&buffer[..], b"late"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::TimedOut),
        }
        sleep(Duration::from_millis(5)).await;
    }
}

async fn cancelled_receives_lose_nothing(kind: EngineKind) {
    let (client, server) = pair(kind).await;
    let content = pattern(200_000);
    let sending = async {
        for chunk in content.chunks(1000) {
            client.push(Bytes::copy_from_slice(chunk));
            client.start_send();
            if chunk[0] % 4 == 0 {
                sleep(Duration::from_millis(1)).await;
            }
        }
        client.drained(0).await.unwrap();
        client.shutdown_write();
    };
    let receiving = async {
        let mut received = Vec::new();
        let mut dropped = 0;
        loop {
            // Drop the future at once, after a while, and let it finish, in turn.
            drop(server.recv_idle(soon()));
            match either(server.recv_idle(soon()), engine::yield_now()).await {
                Either::First(buffer) => {
                    let buffer = buffer.unwrap();
                    if buffer.is_empty() {
                        return (received, dropped);
                    }
                    received.extend_from_slice(&buffer);
                }
                Either::Second(()) => dropped += 1,
            }
        }
    };
    let ((), (received, dropped)) = both(sending, receiving).await;
    assert!(received == content);
    assert!(dropped > 0);
}

async fn early_bytes_of_many_receives(kind: EngineKind) {
    let (client, server) = pair(kind).await;
    // Enough idle receives to have any engine receive by itself, then a flood that nobody reads for
    // a while.
    for _ in 0..3 {
        client.push(Bytes::from_static(b"."));
        client.start_send();
        assert_eq!(server.recv_idle(soon()).await.unwrap().len(), 1);
    }
    let content = pattern(2_000_000);
    client.push(Bytes::from(content.clone()));
    client.start_send();
    client.shutdown_write();
    sleep(Duration::from_millis(50)).await;
    assert!(read_to_end(&server).await.unwrap() == content);
}

async fn datagrams_are_answered(_: EngineKind) {
    let any = Address::Inet("127.0.0.1:0".parse().unwrap());
    let server = DatagramSocket::bind(&any).unwrap();
    let address = server.local().unwrap();
    let answered = Rc::new(Cell::new(0));
    let counter = answered.clone();
    spawn(async move {
        loop {
            let question = server.recv().await.unwrap();
            assert_eq!(question.local, None, "it is bound to one address");
            server.push(question.with(Bytes::copy_from_slice(&question.bytes)));
            server.start_send();
            counter.set(counter.get() + 1);
        }
    });
    let clients: Vec<_> = (0..10)
        .map(|_| DatagramSocket::connect(&address).unwrap())
        .collect();
    for round in 0..20 {
        for (number, client) in clients.iter().enumerate() {
            let message = pattern(round * number * 40);
            client.push(Datagram::new(Bytes::from(message.clone())));
            client.drained().await.unwrap();
            // A receive that is cut short loses nothing.
            drop(client.recv());
            let _ = either(client.recv(), engine::yield_now()).await;
            client.push(Datagram::new(Bytes::from(message.clone())));
            client.drained().await.unwrap();
            let answer = client.recv().await.unwrap();
            assert_eq!(answer.bytes[..], message[..]);
            assert_eq!(answer.peer.map(Address::Inet), Some(address.clone()));
            while let Either::First(more) =
                either(client.recv(), sleep(Duration::from_millis(2))).await
            {
                assert_eq!(more.unwrap().bytes[..], message[..]);
            }
        }
    }
    assert_eq!(answered.get(), 400);
}

async fn half_close(kind: EngineKind) {
    let (client, server) = pair(kind).await;
    client.push(Bytes::from_static(b"question"));
    client.shutdown_write();
    client.push(Bytes::from_static(b"too late"));
    assert_eq!(read_to_end(&server).await.unwrap(), b"question");
    assert!(
        server.recv(None).await.unwrap().is_empty(),
        "the end stays the end"
    );
    server.push(Bytes::from_static(b"answer"));
    server.finish();
    assert_eq!(read_to_end(&client).await.unwrap(), b"answer");
}

async fn finish_sends_everything(kind: EngineKind) {
    finishing_sends_everything(kind, Stream::finish).await;
}

async fn finishing_quickly_sends_everything(kind: EngineKind) {
    finishing_sends_everything(kind, Stream::finish_quickly).await;
}

async fn finishing_sends_everything(kind: EngineKind, finish: fn(Stream)) {
    let content = pattern(5_000_000);
    for sizes in [1, 100_000, 5_000_000] {
        let (client, server) = pair(kind).await;
        server.push(Bytes::copy_from_slice(&content[..sizes]));
        server.push(Bytes::from_static(b"tail"));
        finish(server);
        let received = read_to_end(&client).await.unwrap();
        assert!(received[..sizes] == content[..sizes]);
        assert_eq!(&received[sizes..], b"tail");
    }
    // Nothing queued, and a receive in flight.
    let (client, server) = pair(kind).await;
    assert!(matches!(
        either(server.recv(None), sleep(Duration::from_millis(5))).await,
        Either::Second(())
    ));
    finish(server);
    assert_eq!(read_to_end(&client).await.unwrap(), b"");
}

async fn finish_times_out(kind: EngineKind) {
    let (client, server) = pair(kind).await;
    server.set_send_timeout(Duration::from_millis(80));
    server.push(Bytes::from(vec![1; 40_000_000]));
    server.finish();
    sleep(Duration::from_millis(400)).await;
    // It was closed in the middle: all that comes now is what the sockets held.
    let mut count = 0;
    loop {
        match client.recv(soon()).await {
            Ok(buffer) if buffer.is_empty() => break,
            Ok(buffer) => count += buffer.len(),
            Err(error) => break assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
        }
    }
    assert!(count < 40_000_000);
}

async fn drained_times_out(kind: EngineKind) {
    let (_client, server) = pair(kind).await;
    server.set_send_timeout(Duration::from_millis(50));
    server.push(Bytes::from(vec![1; 40_000_000]));
    let begin = now();
    let error = server.drained(1000).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(now() - begin >= Duration::from_millis(50));
}

async fn dropping_a_stream_forgets_what_was_queued(kind: EngineKind) {
    let (client, server) = pair(kind).await;
    server.push(Bytes::from(vec![1; 40_000_000]));
    server.start_send();
    drop(server);
    let mut count = 0;
    while let Ok(buffer) = client.recv(soon()).await
        && !buffer.is_empty()
    {
        count += buffer.len();
    }
    assert!(count < 40_000_000);
}

async fn reset_is_seen(kind: EngineKind) {
    let (client, server) = pair(kind).await;
    server.reset();
    let error = client.recv(soon()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let again = client.recv(soon()).await.unwrap_err();
    assert_eq!(again.kind(), io::ErrorKind::ConnectionReset);
}

async fn reset_tells_the_address(kind: EngineKind) {
    let (listener, address) = listener(kind);
    let (client, server) = both(connect(&address, None, None), listener.accept()).await;
    let (client, server) = (client.unwrap(), server.unwrap());
    let from = client.local();
    client.push(Bytes::from_static(b"a request"));
    client.drained(0).await.unwrap();
    client.reset();
    while server
        .recv(soon())
        .await
        .is_ok_and(|buffer| !buffer.is_empty())
    {}
    assert_eq!(server.peer(), from);
    assert_eq!(server.local(), address);
}

async fn shutting_down_ends_a_waiting_receive(kind: EngineKind) {
    for abort in [false, true] {
        let (client, server) = pair(kind).await;
        let stopping = async {
            sleep(Duration::from_millis(5)).await;
            if abort {
                server.abort()
            } else {
                server.shutdown_read()
            }
        };
        let (received, ()) = both(server.recv_idle(soon()), stopping).await;
        assert!(received.is_ok_and(|buffer| buffer.is_empty()));
        drop(server);
        let mut end = client.recv(soon()).await;
        if end.as_ref().is_ok_and(|buffer| buffer.is_empty()) {
            // An aborted stream may end in order before it is reset.
            end = client.recv(Some(now() + Duration::from_millis(20))).await;
        }
        assert!(end.is_err() || end.is_ok_and(|buffer| buffer.is_empty()));
    }
}

async fn writing_to_a_closed_peer_fails(kind: EngineKind) {
    let (client, server) = pair(kind).await;
    drop(client);
    let error = loop {
        server.push(Bytes::from(vec![0; 10_000]));
        match server.drained(0).await {
            Ok(()) => sleep(Duration::from_millis(5)).await,
            Err(error) => break error,
        }
    };
    let kinds = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
    assert!(kinds.contains(&error.kind()), "{error}");
    assert!(server.drained(0).await.is_err(), "the error stays");
    server.push(Bytes::from_static(b"into the void"));
    assert_eq!(server.backlog(), 0);
}

async fn connected_sockets_are_counted_until_they_close(kind: EngineKind) {
    let (client, server) = pair(kind).await;
    assert_eq!(engine::net::outgoing(), 1, "one that was accepted is none");
    let (listener, address) = listener(kind);
    let other = connect(&address, None, None).await.unwrap();
    assert_eq!(engine::net::outgoing(), 2);
    drop(other);
    drop(listener);
    assert!(connect(&address, None, soon()).await.is_err());
    assert_eq!(engine::net::outgoing(), 1, "one that failed is none either");
    client.push(Bytes::from_static(b"the last words"));
    client.finish();
    let end = now() + Duration::from_secs(10);
    while engine::net::outgoing() > 0 {
        assert!(now() < end, "it has sent everything");
        drop(server.recv(soon()).await);
        sleep(Duration::from_millis(1)).await;
    }
    drop(server);
    assert_eq!(engine::net::outgoing(), 0);
    let datagrams = DatagramSocket::connect(&address).unwrap();
    assert_eq!(engine::net::outgoing(), 1);
    drop(datagrams);
    assert_eq!(engine::net::outgoing(), 0);
}

async fn connect_is_refused(kind: EngineKind) {
    let (listener, address) = listener(kind);
    drop(listener);
    let error = connect(&address, None, soon()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

async fn connect_times_out_or_waits(kind: EngineKind) {
    // A listener whose queue is full answers nothing: the simulation has one of length zero, real
    // ones are in `kernel.rs`.
    let (listener, address) = listener(kind);
    // Accepted by the kernel although nobody accepts here.
    let stream = connect(&address, None, soon()).await.unwrap();
    drop(stream);
    drop(listener);
}

async fn many_segments_in_one_send(kind: EngineKind) {
    let (client, server) = pair(kind).await;
    let content = pattern(1000 * 37);
    for chunk in content.chunks(37) {
        client.push(Bytes::copy_from_slice(chunk));
    }
    client.push(Bytes::new());
    assert_eq!(client.backlog(), content.len());
    client.finish();
    assert!(read_to_end(&server).await.unwrap() == content);
}

async fn files_in_pieces_between_bytes(kind: EngineKind) {
    let content = pattern(1_000_000);
    let file = file_of(&content);
    let (client, server) = pair(kind).await;
    server.set_sendfile_chunk(64 * 1024);
    let mut expected = Vec::new();
    for (offset, length) in [(0, 1_000_000), (999_999, 1), (5, 100_000), (70_000, 3)] {
        server.push(Bytes::from_static(b"<head>"));
        server.push(Segment::File {
            file: file.clone(),
            offset: offset as u64,
            length,
        });
        expected.extend_from_slice(b"<head>");
        expected.extend_from_slice(&content[offset..offset + length as usize]);
    }
    server.push(Bytes::from_static(b"end"));
    expected.extend_from_slice(b"end");
    server.finish();
    assert!(read_to_end(&client).await.unwrap() == expected);
}

async fn large_file_to_a_slow_reader(kind: EngineKind) {
    let content = pattern(50_000_000);
    let file = file_of(&content);
    let (client, server) = pair(kind).await;
    server.push(Bytes::from_static(b"head"));
    server.push(Segment::File {
        file,
        offset: 0,
        length: content.len() as u64,
    });
    let receiving = async {
        let mut received = Vec::with_capacity(content.len());
        let mut next_pause = 1_000_000;
        loop {
            let buffer = client.recv(soon()).await.unwrap();
            if buffer.is_empty() {
                return received;
            }
            received.extend_from_slice(&buffer);
            if received.len() > next_pause {
                next_pause += 5_000_000;
                sleep(Duration::from_millis(2)).await;
            }
        }
    };
    let sending = async {
        server.drained(0).await.unwrap();
        server.shutdown_write();
    };
    let (received, ()) = both(receiving, sending).await;
    assert_eq!(&received[..4], b"head");
    assert!(received[4..] == content);
}

async fn short_file_fails_the_stream(kind: EngineKind) {
    let file = file_of(&pattern(300_000));
    let (client, server) = pair(kind).await;
    server.push(Segment::File {
        file: file.clone(),
        offset: 0,
        length: 400_000,
    });
    let counting = async {
        let mut count = 0;
        while let Ok(buffer) = client.recv(soon()).await
            && !buffer.is_empty()
        {
            count += buffer.len();
        }
        count
    };
    let failing = async {
        let error = server.drained(0).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        drop(server);
    };
    let (count, ()) = both(counting, failing).await;
    assert_eq!(count, 300_000);
}

async fn pipelined_short_connections(kind: EngineKind) {
    let (listener, address) = listener(kind);
    spawn(async move {
        while let Ok(stream) = listener.accept().await {
            spawn(async move {
                stream.push(Bytes::from(read_exactly(&stream, 2).await));
                stream.push(Bytes::from_static(b"!"));
                stream.finish();
            });
        }
    });
    for _ in 0..50 {
        let client = connect(&address, None, soon()).await.unwrap();
        client.push(Bytes::from_static(b"hi"));
        client.start_send();
        assert_eq!(read_to_end(&client).await.unwrap(), b"hi!");
    }
}

async fn many_connections(kind: EngineKind) {
    const COUNT: usize = 2000;
    let (listener, address) = listener(kind);
    spawn(async move {
        while let Ok(stream) = listener.accept().await {
            spawn(async move {
                while let Ok(buffer) = stream.recv_idle(soon()).await
                    && !buffer.is_empty()
                {
                    stream.push(buffer.into_bytes());
                    stream.start_send();
                }
            });
        }
    });
    let served = Rc::new(Cell::new(0));
    let mut clients = Vec::new();
    for number in 0..COUNT {
        clients.push(Rc::new(connect(&address, None, soon()).await.unwrap()));
        if number % 100 == 99 {
            sleep(Duration::from_millis(1)).await;
        }
    }
    for round in 0..3 {
        for (number, client) in clients.iter().enumerate() {
            let (client, served) = (client.clone(), served.clone());
            spawn(async move {
                let message = format!("{round}:{number}");
                client.push(Bytes::from(message.clone()));
                client.start_send();
                assert_eq!(
                    read_exactly(&client, message.len()).await,
                    message.as_bytes()
                );
                served.set(served.get() + 1);
            });
        }
        while served.get() < (round + 1) * COUNT {
            sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn stop_hands_out_what_was_accepted(kind: EngineKind) {
    let (listener, address) = listener(kind);
    let waiting = async {
        let first = listener.accept().await.unwrap();
        listener.stop();
        let mut rest = 0;
        let error = loop {
            match listener.accept().await {
                Ok(_) => rest += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        drop(first);
        rest
    };
    let connecting = async {
        let mut streams = Vec::new();
        for _ in 0..5 {
            streams.push(connect(&address, None, soon()).await.unwrap());
        }
        streams
    };
    let (rest, streams) = both(waiting, connecting).await;
    assert!(rest <= 4);
    assert_eq!(streams.len(), 5);
}

async fn unix_sockets(kind: EngineKind) {
    if kind == EngineKind::Sim {
        return;
    }
    let path =
        std::env::temp_dir().join(format!("engine-suite-{kind}-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let address = Address::Unix(path.clone());
    let listener = Listener::new(listen(&ListenOptions::new(address.clone())).unwrap()).unwrap();
    let again = listen(&ListenOptions::new(address.clone())).unwrap_err();
    assert_eq!(
        (again.call, again.error.kind()),
        ("bind()", io::ErrorKind::AddrInUse)
    );
    let (client, server) = both(connect(&address, None, soon()), listener.accept()).await;
    let (client, server) = (client.unwrap(), server.unwrap());
    assert_eq!(server.local(), address);
    assert_eq!(server.peer(), Address::Unix("".into()));
    server.push(Segment::File {
        file: file_of(b"from a file"),
        offset: 5,
        length: 6,
    });
    server.finish();
    assert_eq!(read_to_end(&client).await.unwrap(), b"a file");
    drop(client);
    drop(listener);
    std::fs::remove_file(&path).unwrap();
    let error = connect(&address, None, soon()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}

async fn panics_stay_in_their_task(kind: EngineKind) {
    let (client, server) = pair(kind).await;
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    spawn(async move {
        let _owned = server;
        sleep(Duration::from_millis(1)).await;
        panic!("planted");
    });
    assert_eq!(
        read_to_end(&client).await.unwrap(),
        b"",
        "the stream of the panicked task is closed"
    );
    std::panic::set_hook(hook);
    let alive = Rc::new(Cell::new(false));
    let flag = alive.clone();
    spawn(async move { flag.set(true) });
    while !alive.get() {
        sleep(Duration::from_millis(1)).await;
    }
}
