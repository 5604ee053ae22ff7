//! The floor of a comparison: a server that does nothing but what the kernel cannot be spared. It waits (epoll, edges),
//! receives, and sends bytes that it was given. It parses nothing, keeps no time limits and writes no log, so what it costs
//! is the kernel's way of a request: no server that asks epoll for ordinary sockets can be much cheaper.
//!
//! With `--work` it also computes for each request, always the same: how much slower it is than without is then known.
//!
//! Made for benches/compare and benches/trust; it trusts its client and listens on the loopback only.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use rustix::event::epoll::{self, EventData, EventFlags};

const USAGE: &str =
    "usage: xtask floor --address 127.0.0.1:PORT --response FILE [--batch N] [--close [--watch]] [--work N]

  --batch N   every receive holds N requests: N responses leave in one send
  --close     the connection ends with the response; its request is waited for in the receive, which no server can afford
              that has other clients
  --watch     the connection is watched as any other, and the others are served until its request has come
  --work N    units of computing, of about a nanosecond each, before each send";

/// Events taken in one wait.
const EVENTS_MAX: usize = 512;

/// Runs the command line `floor …`, until it is killed.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let (mut address, mut response, mut batch, mut work) = (None, None, 1, 0);
    let (mut close, mut watch) = (false, false);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--address" => address = arguments.next(),
            "--response" => response = arguments.next(),
            "--batch" => batch = arguments.next().and_then(|n| n.parse().ok()).ok_or(USAGE)?,
            "--close" => close = true,
            "--watch" => watch = true,
            "--work" => work = arguments.next().and_then(|n| n.parse().ok()).ok_or(USAGE)?,
            _ => return Err(USAGE.into()),
        }
    }
    let (address, response) = (address.ok_or(USAGE)?, response.ok_or(USAGE)?);
    if !address.starts_with("127.") {
        return Err(format!("{address} is not of the loopback"));
    }
    let response = std::fs::read(response).map_err(|error| format!("{response}: {error}"))?;
    let response = response.repeat(batch);
    let answer = FixedReply {
        response: &response,
        work,
        close,
    };
    serve(address, &answer, close && !watch).map_err(|error| format!("{address}: {error}"))
}

/// What every receive is answered with.
struct FixedReply<'a> {
    response: &'a [u8],
    work: u64,
    /// The connection ends with it.
    close: bool,
}

fn serve(address: &str, answer: &FixedReply<'_>, at_once: bool) -> std::io::Result<()> {
    let listener = TcpListener::bind(address)?;
    rustix::net::listen(&listener, 4096)?;
    let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let place_of = |descriptor: &dyn AsRawFd| descriptor.as_raw_fd() as usize;
    let data_of = |place: usize| EventData::new_u64(place as u64);
    let own = place_of(&listener);
    epoll::add(&waiting, &listener, data_of(own), EventFlags::IN)?;
    let mut connections: Vec<Option<TcpStream>> = Vec::new();
    let mut events = Vec::with_capacity(EVENTS_MAX);
    loop {
        events.clear();
        epoll::wait(&waiting, rustix::buffer::spare_capacity(&mut events), None)?;
        for &epoll::Event { data, .. } in &events {
            let place = data.u64() as usize;
            if place != own {
                if let Some(kept) = connections.get_mut(place)
                    && !kept.as_mut().is_some_and(|stream| answer.send(stream))
                {
                    *kept = None;
                }
                continue;
            }
            let (mut stream, _) = listener.accept()?;
            if at_once {
                // Its request is there or comes at once; the connection need never be watched.
                answer.send(&mut stream);
                continue;
            }
            if !answer.close {
                stream.set_nodelay(true)?;
            }
            let place = place_of(&stream);
            epoll::add(
                &waiting,
                &stream,
                data_of(place),
                EventFlags::IN | EventFlags::ET,
            )?;
            if place >= connections.len() {
                connections.resize_with(place + 1, || None);
            }
            connections[place] = Some(stream);
        }
    }
}

impl FixedReply<'_> {
    /// Receives once and sends once; false when the connection is over, also because it is to end.
    fn send(&self, stream: &mut TcpStream) -> bool {
        let mut input = [0; 16 * 1024];
        if !matches!(stream.read(&mut input), Ok(1..)) {
            return false;
        }
        let worked = (0..self.work).fold(1_u64, |number, step| {
            black_box(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step)
        });
        black_box(worked);
        stream.write_all(self.response).is_ok() && !self.close
    }
}
