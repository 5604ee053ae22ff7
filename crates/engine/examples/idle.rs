//! What an idle keep-alive connection costs: the growth of this process's memory (PSS) with many
//! connections, each after one request, waiting for the next one in a task of about 512 bytes.
//!
//! `idle epoll|uring [CONNECTIONS]`. The clients live in a second process, which this one starts as
//! `idle client ADDRESS CONNECTIONS`.

use std::cell::Cell;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use engine::net::{ListenOptions, Listener, Stream, listen};
use engine::{EngineKind, Runtime, Settings};

/// Connections that are served and closed before the first measurement, so that what is made once
/// is there.
const WARM_UP: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("client") => client(
            arguments.get(1).ok_or("no address")?,
            arguments.get(2).ok_or("no count")?,
        ),
        Some("uring") => serve(EngineKind::Uring, arguments.get(1)),
        _ => serve(EngineKind::Epoll, arguments.get(1)),
    }
}

fn serve(kind: EngineKind, count: Option<&String>) -> Result<(), Box<dyn Error>> {
    let count: usize = count.map_or("10000", String::as_str).parse()?;
    let mut options = ListenOptions::new("127.0.0.1:0".parse::<std::net::SocketAddr>()?.into());
    options.backlog = 4096;
    let socket = listen(&options)?;
    let address: std::net::SocketAddr = rustix::net::getsockname(&socket)?.try_into()?;
    let mut runtime = Runtime::new(
        kind,
        Settings {
            connections: count,
            ..Settings::default()
        },
    )?;
    runtime.block_on(async move {
        let served = Rc::new(Cell::new(0));
        let counter = served.clone();
        let listener = Listener::new(socket)?;
        engine::spawn(async move {
            while let Ok(stream) = listener.accept().await {
                engine::spawn(connection(stream, counter.clone()));
            }
        });
        run_clients(&address.to_string(), WARM_UP, &served)
            .await?
            .finish()?;
        engine::sleep(Duration::from_millis(200)).await;
        let before = pss_bytes()?;
        let clients = run_clients(&address.to_string(), count, &served).await?;
        let after = pss_bytes()?;
        clients.finish()?;
        println!(
            "{kind}: PSS {} KiB before, {} KiB with {count} idle connections: {} bytes each",
            before / 1024,
            after / 1024,
            after.saturating_sub(before) / count,
        );
        Ok(())
    })
}

/// One connection: the record stands for the parser's state and the like that a real server keeps.
async fn connection(stream: Stream, served: Rc<Cell<usize>>) {
    let mut record = [0_u8; 360];
    loop {
        let deadline = engine::now() + Duration::from_secs(75);
        let Ok(buffer) = stream.recv_idle(Some(deadline)).await else {
            return;
        };
        if buffer.is_empty() {
            return;
        }
        for (place, byte) in record.iter_mut().zip(buffer.iter()) {
            *place = *byte;
        }
        stream.push(Bytes::copy_from_slice(&record[..16]));
        stream.start_send();
        served.set(served.get() + 1);
    }
}

struct Clients(std::process::Child);

impl Clients {
    fn finish(mut self) -> std::io::Result<()> {
        drop(self.0.stdin.take());
        self.0.wait().map(drop)
    }
}

/// Starts a process with `count` clients and waits until each has had its answer.
async fn run_clients(
    address: &str,
    count: usize,
    served: &Cell<usize>,
) -> Result<Clients, Box<dyn Error>> {
    served.set(0);
    let mut child = Command::new(std::env::current_exe()?)
        .args(["client", address, &count.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().ok_or("no output")?;
    let mut line = String::new();
    engine::blocking(move || BufReader::new(output).read_line(&mut line)).await?;
    while served.get() < count {
        engine::sleep(Duration::from_millis(10)).await;
    }
    engine::sleep(Duration::from_millis(500)).await;
    Ok(Clients(child))
}

fn client(address: &str, count: &str) -> Result<(), Box<dyn Error>> {
    let mut streams = Vec::new();
    for _ in 0..count.parse()? {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        stream.read_exact(&mut [0; 16])?;
        streams.push(stream);
    }
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// This process's proportional share of memory, in bytes.
fn pss_bytes() -> Result<usize, Box<dyn Error>> {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = rollup
        .lines()
        .find(|line| line.starts_with("Pss:"))
        .ok_or("no Pss")?;
    let kib: usize = line.split_whitespace().nth(1).ok_or("no value")?.parse()?;
    Ok(kib * 1024)
}
