//! The floor of a comparison: a server with only the unavoidable kernel work. It waits (epoll,
//! edge-triggered), receives, and sends a fixed response. It parses nothing, has no time limits and
//! writes no log, so its cost is the kernel's cost of a request. No server that uses epoll and
//! ordinary sockets can be much cheaper.
//!
//! With `--http2` it implements as much of HTTP/2 as is needed to answer each request: it parses
//! only frame headers. The header blocks of the response and its trailers are given on the command
//! line, so that it can also serve as a gRPC server.
//!
//! With `--work` it also performs a fixed computation for each request, so that its slowdown
//! against a run without it is known.
//!
//! Made for benches/compare and benches/trust; it trusts its client and listens only on loopback
//! addresses.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::RecvFlags;

const USAGE: &str =
    "usage: xtask floor --address 127.0.0.1:PORT --response FILE [--batch N | --http2 [--head HEX] [--trailers HEX] | --proxy PORT [--datagrams]]
                   [--close [--watch]] [--work N]

  --batch N   every receive holds N requests: N responses leave in one send
  --http2     each request is answered, once it has ended, with a head, the response as its body, in one frame, and trailers if there are any
  --head HEX  the header block of that head, where it is to say more than status 200
  --trailers HEX  that of the trailers
  --proxy PORT  what a client sends goes to that port of the loopback, over connections that are kept, and as much as the
              response has comes back
  --datagrams  the same of UDP, with a socket for each client; the response does not count
  --close     the connection ends with the response; its request is waited for in the receive, which no server can afford
              that has other clients
  --watch     the connection is watched as any other, and the others are served until its request has come
  --work N    units of computing, of about a nanosecond each, before each send";

/// Maximum number of events per wait.
const EVENTS_MAX: usize = 512;

/// Runs the command line `floor …`, until it is killed.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let (mut address, mut response, mut batch, mut work) = (None, None, 1, 0);
    let (mut close, mut watch, mut http2, mut upstream) = (false, false, false, None);
    let mut datagrams = false;
    let (mut head, mut trailers) = (HEAD_OK.to_vec(), Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--address" => address = arguments.next(),
            "--response" => response = arguments.next(),
            "--batch" => batch = arguments.next().and_then(|n| n.parse().ok()).ok_or(USAGE)?,
            "--http2" => http2 = true,
            "--head" => head = arguments.next().and_then(bytes_of).ok_or(USAGE)?,
            "--trailers" => trailers = arguments.next().and_then(bytes_of).ok_or(USAGE)?,
            "--proxy" => {
                let port = arguments.next().and_then(|port| port.parse().ok());
                upstream = Some(port.ok_or(USAGE)?);
            }
            "--datagrams" => datagrams = true,
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
        let served = if datagrams {
            crate::floor_datagrams::serve(address, upstream)
        } else {
            crate::floor_proxy::serve(address, upstream, response.len())
        };
        return served.map_err(|error| format!("{address}: {error}"));
    }
    let response = if http2 {
        response
    } else {
        response.repeat(batch)
    };
    let answer = FixedReply {
        response: &response,
        work,
        close,
        http2: http2.then_some(Blocks { head, trailers }),
    };
    serve(address, &answer, close && !watch).map_err(|error| format!("{address}: {error}"))
}

/// The fixed response to every receive.
struct FixedReply<'a> {
    response: &'a [u8],
    work: u64,
    /// Whether the connection is closed after the response.
    close: bool,
    /// For HTTP/2: the header blocks of the response, of which `response` is the body.
    http2: Option<Blocks>,
}

/// The header blocks of an HTTP/2 response.
struct Blocks {
    head: Vec<u8>,
    /// Empty if there are no trailers.
    trailers: Vec<u8>,
}

/// A connection with the bytes of an incomplete frame.
struct Client {
    stream: TcpStream,
    frames: Vec<u8>,
    has_begun: bool,
    /// Bytes of request bodies since the last WINDOW_UPDATE.
    taken: usize,
}

impl Client {
    fn new(stream: TcpStream) -> Client {
        Client {
            stream,
            frames: Vec::new(),
            has_begun: false,
            taken: 0,
        }
    }
}

/// Length of HTTP/2's connection preface, and of a frame header, in bytes.
const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;

/// The header block `:status: 200`, an entry of the static table.
const HEAD_OK: &[u8] = b"\x88";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

/// Flags of frames: END_STREAM on DATA and HEADERS, ACK on SETTINGS and PING, END_HEADERS on
/// HEADERS.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// Number of body bytes after which a WINDOW_UPDATE is sent, long before the window is used up.
const TAKEN_MAX: usize = 1 << 24;

/// The server's preface: an empty SETTINGS frame, and a WINDOW_UPDATE for the connection.
const OUR_PREFACE: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x04\x08\0\0\0\0\0\x7f\xff\0\0";

/// Decodes hexadecimal digits.
fn bytes_of(digits: &String) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

/// Appends a frame.
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
                // The request has arrived or will arrive soon, so the connection is never added to
                // epoll.
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
    /// Receives once (for HTTP/2, everything available) and sends the response. Returns false if
    /// the connection has ended or is to be closed.
    fn send(&self, client: &mut Client) -> bool {
        let mut input = [0; 16 * 1024];
        let Ok(mut count @ 1..) = client.stream.read(&mut input) else {
            return false;
        };
        let worked = (0..self.work).fold(1_u64, |number, step| {
            black_box(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step)
        });
        black_box(worked);
        if let Some(blocks) = &self.http2 {
            let mut out = Vec::with_capacity(4096);
            self.answer_frames(client, blocks, &input[..count], &mut out);
            // Epoll is edge-triggered: data beyond a full buffer would cause no further event.
            while count == input.len() {
                count = match rustix::net::recv(&client.stream, &mut input, RecvFlags::DONTWAIT) {
                    Ok((_, more)) => more,
                    Err(_) => 0,
                };
                self.answer_frames(client, blocks, &input[..count], &mut out);
            }
            return client.stream.write_all(&out).is_ok();
        }
        client.stream.write_all(self.response).is_ok() && !self.close
    }

    /// Appends the answers to all complete frames.
    fn answer_frames(&self, client: &mut Client, blocks: &Blocks, input: &[u8], out: &mut Vec<u8>) {
        client.frames.extend_from_slice(input);
        let mut at = 0;
        if !client.has_begun {
            if client.frames.len() < PREFACE {
                return;
            }
            client.has_begun = true;
            at = PREFACE;
            out.extend_from_slice(OUR_PREFACE);
        }
        while let Some(head) = client.frames.get(at..at + FRAME_HEAD) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let end = at + FRAME_HEAD + length;
            if end > client.frames.len() {
                break;
            }
            let (kind, flags, stream) = (head[3], head[4], &head[5..]);
            let payload = &client.frames[at + FRAME_HEAD..end];
            match kind {
                DATA | HEADERS if flags & END_STREAM != 0 => self.put_answer(out, blocks, stream),
                SETTINGS if flags & ACK == 0 => put_frame(out, SETTINGS, ACK, &[0; 4], b""),
                PING if flags & ACK == 0 => put_frame(out, PING, ACK, &[0; 4], payload),
                _ => {}
            }
            client.taken += if kind == DATA { length } else { 0 };
            at = end;
        }
        client.frames.drain(..at);
        if client.taken >= TAKEN_MAX {
            let credit = (client.taken as u32).to_be_bytes();
            put_frame(out, WINDOW_UPDATE, 0, &[0; 4], &credit);
            client.taken = 0;
        }
    }

    /// Appends a complete response.
    fn put_answer(&self, out: &mut Vec<u8>, blocks: &Blocks, stream: &[u8]) {
        put_frame(out, HEADERS, END_HEADERS, stream, &blocks.head);
        if blocks.trailers.is_empty() {
            put_frame(out, DATA, END_STREAM, stream, self.response);
            return;
        }
        put_frame(out, DATA, 0, stream, self.response);
        let flags = END_HEADERS | END_STREAM;
        put_frame(out, HEADERS, flags, stream, &blocks.trailers);
    }
}
