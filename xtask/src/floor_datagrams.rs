//! The floor of a datagram proxy: it forwards a client's datagrams to the upstream through a socket
//! of the client's own, and the upstream's datagrams to the client. Each datagram costs a receive
//! and a send; several may share one wait. No proxy with ordinary sockets and one socket per client
//! can be much cheaper.
//!
//! Made for benches/stream: clients never expire, and there are no time limits.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use rustix::event::epoll::{self, EventData, EventFlags};

/// Maximum number of events per wait.
const EVENTS_MAX: usize = 512;

/// A client with its socket to the upstream.
struct Way {
    client: SocketAddr,
    upstream: UdpSocket,
}

/// Serves clients at this address and forwards to this upstream port, until it is killed.
pub(crate) fn serve(address: &str, upstream: u16) -> std::io::Result<()> {
    let clients = UdpSocket::bind(address)?;
    clients.set_nonblocking(true)?;
    let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let own = clients.as_raw_fd() as u64;
    epoll::add(&waiting, &clients, EventData::new_u64(own), EventFlags::IN)?;
    let (mut ways, mut places) = (Vec::<Option<Way>>::new(), HashMap::new());
    let mut events = Vec::with_capacity(EVENTS_MAX);
    let mut buffer = vec![0; 65536];
    loop {
        events.clear();
        epoll::wait(&waiting, rustix::buffer::spare_capacity(&mut events), None)?;
        for &epoll::Event { data, .. } in &events {
            let place = data.u64();
            if place != own {
                if let Some(Some(way)) = ways.get(place as usize)
                    && let Some(count) = received(way.upstream.recv(&mut buffer))?
                {
                    clients.send_to(&buffer[..count], way.client)?;
                }
                continue;
            }
            while let Some((count, client)) = received(clients.recv_from(&mut buffer))? {
                let place = match places.get(&client) {
                    Some(place) => *place,
                    None => {
                        let place = begin(&waiting, &mut ways, client, upstream)?;
                        places.insert(client, place);
                        place
                    }
                };
                if let Some(Some(way)) = ways.get(place) {
                    received(way.upstream.send(&buffer[..count]))?;
                }
            }
        }
    }
}

/// Creates a socket to the upstream for a new client. Returns its index.
fn begin(
    waiting: &std::os::fd::OwnedFd,
    ways: &mut Vec<Option<Way>>,
    client: SocketAddr,
    upstream: u16,
) -> std::io::Result<usize> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(("127.0.0.1", upstream))?;
    socket.set_nonblocking(true)?;
    let place = socket.as_raw_fd() as usize;
    let data = EventData::new_u64(place as u64);
    epoll::add(waiting, &socket, data, EventFlags::IN)?;
    if place >= ways.len() {
        ways.resize_with(place + 1, || None);
    }
    ways[place] = Some(Way {
        client,
        upstream: socket,
    });
    Ok(place)
}

/// The result of a call; `None` if nothing was available or an ICMP error was reported.
fn received<T>(result: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match result {
        Ok(received) => Ok(Some(received)),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::ConnectionRefused => Ok(None),
            _ => Err(error),
        },
    }
}
