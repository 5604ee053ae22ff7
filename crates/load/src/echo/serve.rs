//! An echo server, to run behind a proxy.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::net::{self, Address, DatagramSocket, ListenOptions, Listener, SocketKind, Stream};
use engine::{EngineKind, Runtime, Settings};

use super::TICK;

/// The pause after a failed `accept`.
const PAUSE: Duration = Duration::from_millis(50);

/// An echo server.
#[derive(Clone, Debug)]
pub struct EchoServer {
    /// The listening address.
    pub address: Address,
    /// Whether it serves TCP connections or UDP datagrams.
    pub carries: SocketKind,
    /// Number of threads.
    pub threads: usize,
    /// The engine of the server.
    pub engine: EngineKind,
}

/// Serves until `watch`, which is called twenty times a second, returns false.
///
/// # Errors
/// If the server cannot listen at the address, or if threads or their engines cannot be created.
pub fn serve(server: &EchoServer, mut watch: impl FnMut() -> bool) -> io::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut running = Vec::new();
    for number in 0..server.threads.max(1) {
        let mut options = ListenOptions::new(server.address.clone());
        options.carries = server.carries;
        options.reuseport = server.threads > 1;
        let socket = net::listen(&options).map_err(|failed| failed.error)?;
        let (engine, carries, stop) = (server.engine, server.carries, Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name(format!("echo {number}"))
            .spawn(move || {
                let mut runtime = Runtime::new(engine, Settings::default())?;
                runtime.block_on(async move {
                    match carries {
                        SocketKind::Streams => engine::spawn(accept(Listener::new(socket)?)),
                        SocketKind::Datagrams => {
                            engine::spawn(answer(DatagramSocket::new(socket)?))
                        }
                    }
                    while !stop.load(Ordering::Relaxed) {
                        engine::sleep(TICK).await;
                    }
                    io::Result::Ok(())
                })
            })?;
        running.push(thread);
    }
    while watch() && !running.iter().any(std::thread::JoinHandle::is_finished) {
        std::thread::sleep(TICK);
    }
    stop.store(true, Ordering::Relaxed);
    for thread in running {
        let failed = |_| io::Error::other("a thread of the server has failed");
        thread.join().map_err(failed)??;
    }
    Ok(())
}

async fn accept(listener: Listener) {
    loop {
        match listener.accept().await {
            Ok(stream) => engine::spawn(echo_stream(stream)),
            Err(_) => engine::sleep(PAUSE).await,
        }
    }
}

async fn echo_stream(stream: Stream) {
    stream.set_nodelay(true);
    while let Ok(received) = stream.recv(None).await
        && !received.is_empty()
    {
        stream.push(received.into_bytes());
        stream.start_send();
        if stream.drained(256 << 10).await.is_err() {
            return;
        }
    }
}

async fn answer(socket: DatagramSocket) {
    loop {
        // Errors, such as ICMP messages about earlier echoes, are ignored.
        if let Ok(datagram) = socket.recv().await {
            let ends = datagram.with(());
            socket.push(ends.with(datagram.bytes.into_bytes()));
            socket.start_send();
        }
    }
}
