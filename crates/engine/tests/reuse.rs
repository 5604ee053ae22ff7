//! Numbers of descriptors that change hands while operations on their former owners are still on
//! their way.
//!
//! A test program of its own, and one test at a time: each relies on the kernel giving out the
//! lowest free number.

mod common;

use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use engine::file::File;
use engine::net::{Address, ListenOptions, Listener, Segment, Stream, listen};
use engine::{EngineKind, Runtime, Settings, sleep};

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
    a_file_does_not_go_on_into_the_next_connection,
    a_receive_does_not_take_what_is_for_the_next_owner,
    an_accept_does_not_take_from_the_next_listener,
);

/// More than a Unix socket holds.
const LARGE: usize = 4 << 20;

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number that the next descriptor gets.
fn next_number() -> RawFd {
    std::fs::File::open("/dev/null").unwrap().as_raw_fd()
}

/// A name in the abstract namespace, which needs no file.
fn listening(name: &str, kind: EngineKind) -> (OwnedFd, UnixAddress) {
    let name = format!("tidegate-reuse-{}-{kind}-{name}", std::process::id());
    let address = Address::Unix(PathBuf::from(format!("@{name}")));
    (
        listen(&ListenOptions::new(address)).unwrap(),
        UnixAddress(name),
    )
}

struct UnixAddress(String);

impl UnixAddress {
    fn connect(&self) -> UnixStream {
        use std::os::linux::net::SocketAddrExt;
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&self.0).unwrap();
        UnixStream::connect_addr(&address).unwrap()
    }
}

/// A file of so many bytes `f`, which are in memory.
fn file(length: usize) -> Segment {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let mut file = std::fs::File::from(rustix::fs::memfd_create("reuse", flags).unwrap());
    file.write_all(&vec![b'f'; length]).unwrap();
    Segment::File {
        file: File::from(file),
        offset: 0,
        length: length as u64,
    }
}

async fn accept(listener: &Listener) -> Stream {
    listener.accept().await.unwrap()
}

/// The engine waits until a connection that is half way through a file can be written to. In one
/// turn of the loop that comes true, the connection is dropped, and another one is accepted, which
/// gets its number.
fn a_file_does_not_go_on_into_the_next_connection(kind: EngineKind) {
    let _alone = alone();
    let mut runtime = Runtime::new(kind, Settings::default()).unwrap();
    let (socket, address) = listening("send", kind);
    runtime.block_on(async {
        let listener = Listener::new(socket).unwrap();
        let mut first_client = address.connect();
        let first_number = next_number();
        let first = accept(&listener).await;
        first.push(file(LARGE));
        // The socket is full now, and the engine is to wait for room.
        assert!(first.start_send() > 0);

        let mut second_client = address.connect();
        let mut read = vec![0; LARGE];
        first_client.set_nonblocking(true).unwrap();
        while first_client.read(&mut read).is_ok_and(|count| count > 0) {}
        drop(first);
        let second = accept(&listener).await;
        assert_ne!(
            next_number(),
            first_number,
            "{kind}: the number was not used again"
        );
        sleep(Duration::from_millis(1)).await;
        second_client.set_nonblocking(true).unwrap();
        let stray = second_client.read(&mut read).unwrap_or(0);
        assert_eq!(stray, 0, "{kind}: it got bytes of the first one's file");
        second.push(Bytes::from_static(b"second"));
        second.finish();
        sleep(Duration::from_millis(1)).await;
        let mut received = Vec::new();
        second_client.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"second", "{kind}");
    });
}

/// A receive was asked for and its connection ended in the same turn, with a file that the engine
/// sends at once.
fn a_receive_does_not_take_what_is_for_the_next_owner(kind: EngineKind) {
    let _alone = alone();
    let mut runtime = Runtime::new(kind, Settings::default()).unwrap();
    let (socket, address) = listening("receive", kind);
    runtime.block_on(async {
        let listener = Listener::new(socket).unwrap();
        let mut client = address.connect();
        let number = next_number();
        let stream = accept(&listener).await;
        {
            let mut receive = pin!(stream.recv(None));
            poll_fn(|context| {
                assert!(receive.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        stream.push(file(100));
        stream.finish();
        let given = next_number() == number;
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"for the next owner").unwrap();
        sleep(Duration::from_millis(1)).await;
        ours.set_nonblocking(true).unwrap();
        let mut received = [0; 100];
        let count = ours.read(&mut received).unwrap_or(0);
        assert_eq!(&received[..count], b"for the next owner", "{kind} {given}");
        let mut whole = Vec::new();
        client.read_to_end(&mut whole).unwrap();
        assert_eq!(whole.len(), 100);
    });
}

/// An accept was asked for and its listener dropped in the same turn; the next listener gets its
/// number.
fn an_accept_does_not_take_from_the_next_listener(kind: EngineKind) {
    let _alone = alone();
    let mut runtime = Runtime::new(kind, Settings::default()).unwrap();
    let (socket, _address) = listening("accept", kind);
    let path = std::env::temp_dir().join(format!("tidegate-reuse-{}-{kind}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    runtime.block_on(async {
        let listener = Listener::new(socket).unwrap();
        {
            let mut accepting = pin!(listener.accept());
            poll_fn(|context| {
                assert!(accepting.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        drop(listener);
        let next = UnixListener::bind(&path).unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        sleep(Duration::from_millis(1)).await;
        next.set_nonblocking(true).unwrap();
        assert!(next.accept().is_ok(), "{kind}: the connection was taken");
    });
    let _ = std::fs::remove_file(&path);
}
