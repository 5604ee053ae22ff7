//! Running out of descriptors. A test program of its own, because the limit is the process's.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use engine::net::{ListenOptions, Listener, listen};
use engine::{EngineKind, Runtime, Settings};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn accepting_goes_on_when_there_are_descriptors_again() {
    for kind in [EngineKind::Epoll, EngineKind::Uring] {
        if kind != EngineKind::Uring || common::with_io_uring() {
            runs_out(kind);
        }
    }
}

fn runs_out(kind: EngineKind) {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let socket = listen(&ListenOptions::new(any.into())).unwrap();
    let address: SocketAddr = rustix::net::getsockname(&socket)
        .unwrap()
        .try_into()
        .unwrap();
    let mut runtime = Runtime::new(kind, Settings::default()).unwrap();
    let before = getrlimit(Resource::Nofile);

    let mut clients: Vec<TcpStream> = (0..6)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    runtime.block_on(async {
        let listener = Listener::new(socket).unwrap();
        let highest = clients
            .iter()
            .map(std::os::fd::AsRawFd::as_raw_fd)
            .max()
            .unwrap() as u64;
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(highest + 3),
                maximum: before.maximum,
            },
        )
        .unwrap();
        let mut accepted = Vec::new();
        let error = loop {
            match listener.accept().await {
                Ok(stream) => accepted.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{kind}");
        assert!(accepted.len() < clients.len(), "{kind}");
        // It stays that way, and costs one error each time it is tried, not a spinning loop.
        assert!(listener.accept().await.is_err());
        // The one that has waited for longest is told; there is nothing to tell it with but what
        // was kept for that.
        assert!(listener.shed_connection(b"turned away"));
        let mut told = clients.remove(accepted.len());
        let mut answer = Vec::new();
        told.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"turned away", "{kind}");
        drop(told);
        setrlimit(Resource::Nofile, before).unwrap();
        engine::sleep(Duration::from_millis(5)).await;
        while accepted.len() < clients.len() {
            accepted.push(listener.accept().await.unwrap());
        }
        for stream in accepted {
            stream.push(Bytes::from_static(b"served"));
            stream.finish();
        }
        engine::sleep(Duration::from_millis(5)).await;
    });
    for client in &mut clients {
        let _ = client.write(b"x");
        let mut answer = [0; 6];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"served");
    }
}
