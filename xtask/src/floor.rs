//! The floor of a comparison: a server that does nothing but what the kernel cannot be spared. It waits (epoll, edges),
//! receives, and sends bytes that it was given. It parses nothing, keeps no time limits and writes no log, so what it costs
//! is the kernel's way of a request: no server that asks epoll for ordinary sockets can be much cheaper.
//!
//! With `--http2` it speaks as much of HTTP/2 as it takes to answer each request: it looks at the heads of frames, and at nothing
//! else.
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
    "usage: xtask floor --address 127.0.0.1:PORT --response FILE [--batch N | --http2 | --proxy PORT] [--close [--watch]] [--work N]

  --batch N   every receive holds N requests: N responses leave in one send
  --http2     each HEADERS frame of a client is answered with a head and the response as its body, in one frame
  --proxy PORT  what a client sends goes to that port of the loopback, over connections that are kept, and as much as the
              response has comes back
  --close     the connection ends with the response; its request is waited for in the receive, which no server can afford
              that has other clients
  --watch     the connection is watched as any other, and the others are served until its request has come
  --work N    units of computing, of about a nanosecond each, before each send";

/// Events taken in one wait.
const EVENTS_MAX: usize = 512;

/// Runs the command line `floor …`, until it is killed.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let (mut address, mut response, mut batch, mut work) = (None, None, 1, 0);
    let (mut close, mut watch, mut http2, mut upstream) = (false, false, false, None);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--address" => address = arguments.next(),
            "--response" => response = arguments.next(),
            "--batch" => batch = arguments.next().and_then(|n| n.parse().ok()).ok_or(USAGE)?,
            "--http2" => http2 = true,
            "--proxy" => {
                let port = arguments.next().and_then(|port| port.parse().ok());
                upstream = Some(port.ok_or(USAGE)?);
            }
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
    if let Some(upstream) = upstream {
        let served = crate::floor_proxy::serve(address, upstream, response.len());
        return served.map_err(|error| format!("{address}: {error}"));
    }
    let response = match http2 {
        true => response,
        false => response.repeat(batch),
    };
    let answer = FixedReply {
        response: &response,
        work,
        close,
        http2,
    };
    serve(address, &answer, close && !watch).map_err(|error| format!("{address}: {error}"))
}

/// What every receive is answered with.
struct FixedReply<'a> {
    response: &'a [u8],
    work: u64,
    /// The connection ends with it.
    close: bool,
    /// It is the body of a response over HTTP/2.
    http2: bool,
}

/// A connection, and what of a frame has come without its end.
struct Client {
    stream: TcpStream,
    frames: Vec<u8>,
    has_begun: bool,
}

impl Client {
    fn new(stream: TcpStream) -> Client {
        Client {
            stream,
            frames: Vec::new(),
            has_begun: false,
        }
    }
}

/// Bytes of HTTP/2's preface, and of the head of a frame.
const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;

/// Our settings: none but those that hold anyway, and credit that no client uses up.
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x04\x08\0\0\0\0\0\x7f\xff\0\0";

/// Appends a frame of this type, with these flags, on this stream.
fn put_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: &[u8], payload: &[u8]) {
    let length = payload.len() as u32;
    out.extend_from_slice(&length.to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(stream);
    out.extend_from_slice(payload);
}

fn serve(address: &str, answer: &FixedReply<'_>, at_once: bool) -> std::io::Result<()> {
    let listener = TcpListener::bind(address)?;
    rustix::net::listen(&listener, 4096)?;
    let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let place_of = |descriptor: &dyn AsRawFd| descriptor.as_raw_fd() as usize;
    let data_of = |place: usize| EventData::new_u64(place as u64);
    let own = place_of(&listener);
    epoll::add(&waiting, &listener, data_of(own), EventFlags::IN)?;
    let mut connections: Vec<Option<Client>> = Vec::new();
    let mut events = Vec::with_capacity(EVENTS_MAX);
    loop {
        events.clear();
        epoll::wait(&waiting, rustix::buffer::spare_capacity(&mut events), None)?;
        for &epoll::Event { data, .. } in &events {
            let place = data.u64() as usize;
            if place != own {
                if let Some(kept) = connections.get_mut(place)
                    && !kept.as_mut().is_some_and(|client| answer.send(client))
                {
                    *kept = None;
                }
                continue;
            }
            let (stream, _) = listener.accept()?;
            if at_once {
                // Its request is there or comes at once; the connection need never be watched.
                answer.send(&mut Client::new(stream));
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
            connections[place] = Some(Client::new(stream));
        }
    }
}

impl FixedReply<'_> {
    /// Receives once and sends once; false when the connection is over, also because it is to end.
    fn send(&self, client: &mut Client) -> bool {
        let mut input = [0; 16 * 1024];
        let Ok(count @ 1..) = client.stream.read(&mut input) else {
            return false;
        };
        let worked = (0..self.work).fold(1_u64, |number, step| {
            black_box(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step)
        });
        black_box(worked);
        if self.http2 {
            let out = self.answer_frames(client, &input[..count]);
            return client.stream.write_all(&out).is_ok();
        }
        client.stream.write_all(self.response).is_ok() && !self.close
    }

    /// The answers to the frames that have come whole.
    fn answer_frames(&self, client: &mut Client, input: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(4096);
        client.frames.extend_from_slice(input);
        let mut at = 0;
        if !client.has_begun {
            if client.frames.len() < PREFACE {
                return out;
            }
            client.has_begun = true;
            at = PREFACE;
            out.extend_from_slice(SETTINGS);
        }
        while let Some(head) = client.frames.get(at..at + FRAME_HEAD) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let end = at + FRAME_HEAD + length;
            if end > client.frames.len() {
                break;
            }
            match (head[3], head[4]) {
                // HEADERS: `:status: 200` of the static table, and the body.
                (1, _) => {
                    put_frame(&mut out, 1, 4, &head[5..], b"\x88");
                    put_frame(&mut out, 0, 1, &head[5..], self.response);
                }
                // SETTINGS, which want an acknowledgement.
                (4, 0) => put_frame(&mut out, 4, 1, &[0; 4], b""),
                _ => {}
            }
            at = end;
        }
        client.frames.drain(..at);
        out
    }
}
