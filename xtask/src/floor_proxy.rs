//! The floor of a proxy: it forwards a client's bytes unchanged to the upstream over a persistent
//! connection, and the response unchanged to the client. Each request costs a wait, a receive and a
//! send on each side. No proxy with ordinary sockets can be much cheaper.
//!
//! Made for benches/compare: responses have a known fixed length, and a request arrives in one
//! piece.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use rustix::event::epoll::{self, EventData, EventFlags};

/// Maximum number of events per wait.
const EVENTS_MAX: usize = 512;

/// A connection on either side.
struct FloorEnd {
    stream: TcpStream,
    is_upstream: bool,
    /// The index of the other side's connection during a request.
    other: Option<usize>,
    /// Number of bytes of the response that have not been received yet.
    missing: usize,
}

/// The connections, by their descriptors.
struct Proxy {
    waiting: std::os::fd::OwnedFd,
    ends: Vec<Option<FloorEnd>>,
    idle: Vec<usize>,
    upstream: u16,
    response: usize,
    buffer: Vec<u8>,
}

/// Serves clients at this address and forwards to this upstream port, whose responses have
/// `response` bytes, until it is killed.
pub(crate) fn serve(address: &str, upstream: u16, response: usize) -> std::io::Result<()> {
    let listener = TcpListener::bind(address)?;
    rustix::net::listen(&listener, 4096)?;
    let mut proxy = Proxy {
        waiting: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        ends: Vec::new(),
        idle: Vec::new(),
        upstream,
        response,
        buffer: vec![0; 128 * 1024],
    };
    let own = listener.as_raw_fd() as u64;
    epoll::add(
        &proxy.waiting,
        &listener,
        EventData::new_u64(own),
        EventFlags::IN,
    )?;
    let mut events = Vec::with_capacity(EVENTS_MAX);
    loop {
        events.clear();
        epoll::wait(
            &proxy.waiting,
            rustix::buffer::spare_capacity(&mut events),
            None,
        )?;
        for &epoll::Event { data, .. } in &events {
            if data.u64() == own {
                let (stream, _) = listener.accept()?;
                proxy.add(stream, false)?;
            } else if proxy.pass_on(data.u64() as usize).is_none() {
                proxy.end(data.u64() as usize);
            }
        }
    }
}

impl Proxy {
    /// Adds a connection to epoll. Returns its index.
    fn add(&mut self, stream: TcpStream, is_upstream: bool) -> std::io::Result<usize> {
        stream.set_nodelay(true)?;
        let place = stream.as_raw_fd() as usize;
        let data = EventData::new_u64(place as u64);
        epoll::add(
            &self.waiting,
            &stream,
            data,
            EventFlags::IN | EventFlags::ET,
        )?;
        if place >= self.ends.len() {
            self.ends.resize_with(place + 1, || None);
        }
        self.ends[place] = Some(FloorEnd {
            stream,
            is_upstream,
            other: None,
            missing: 0,
        });
        Ok(place)
    }

    /// Receives once and forwards the bytes; `None` if the connection has ended.
    fn pass_on(&mut self, place: usize) -> Option<()> {
        let end = self.ends.get_mut(place)?.as_mut()?;
        let count = end
            .stream
            .read(&mut self.buffer)
            .ok()
            .filter(|count| *count > 0)?;
        let other = if end.is_upstream {
            end.other?
        } else {
            self.upstream_for(place)?
        };
        let bytes = &self.buffer[..count];
        self.ends
            .get_mut(other)?
            .as_mut()?
            .stream
            .write_all(bytes)
            .ok()?;
        let end = self.ends.get_mut(place)?.as_mut()?;
        if end.is_upstream {
            end.missing = end.missing.saturating_sub(count);
            if end.missing == 0 {
                end.other = None;
                self.idle.push(place);
            }
        }
        Some(())
    }

    /// A connection to the upstream for a client's request: an idle one or a new one.
    fn upstream_for(&mut self, client: usize) -> Option<usize> {
        let place = match self.idle.pop() {
            Some(place) => place,
            None => {
                let stream = TcpStream::connect(("127.0.0.1", self.upstream)).ok()?;
                self.add(stream, true).ok()?
            }
        };
        let end = self.ends.get_mut(place)?.as_mut()?;
        end.other = Some(client);
        end.missing = self.response;
        Some(place)
    }

    fn end(&mut self, place: usize) {
        self.idle.retain(|idle| *idle != place);
        if let Some(end) = self.ends.get_mut(place) {
            *end = None;
        }
    }
}
