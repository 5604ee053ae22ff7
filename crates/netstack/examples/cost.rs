//! What a request and a connection cost the stack of a server, in instructions. Everything else,
//! also the client's stack, is outside of `server_turn`:
//!
//! ```text
//! cargo build --release -p tidegate-netstack --example cost
//! valgrind --tool=callgrind --toggle-collect='*server_turn*' \
//!     target/release/examples/cost kept 1000
//! ```
//!
//! `kept`: so many requests on one connection, each with its response of 1 KB. `short`: so many
//! connections, each with one request, from the SYN to the last acknowledgment.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use bytes::Bytes;
use netstack::tcp::{self, Prebuilt, Secret};
use netstack::wire::ethernet::MacAddress;
use netstack::{
    Addresses, ConnectionId, Event, FRAME_MAX, ListenerId, Neighbouring, Route, Settings, Stack,
    Unlistened,
};

const REQUEST: &[u8] = b"GET /index.html HTTP/1.1\r\nHost: example.com\r\n\r\n";

struct Server {
    stack: Stack,
    listener: ListenerId,
    response: Prebuilt,
    closes: bool,
    left: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// Where the application reads requests to.
    request: [u8; 1024],
}

/// What a server does with the frames that have come: all that is measured.
#[inline(never)]
fn server_turn(server: &mut Server, now: Duration, frames: &[Vec<u8>]) {
    for frame in frames {
        server.stack.handle_frame(now, frame);
    }
    server.stack.handle_timeout(now);
    while let Some(event) = server.stack.poll_event() {
        match event {
            Event::Acceptable(_) => {
                while let Some((id, _)) = server.stack.accept(server.listener) {
                    answer(server, now, id);
                }
            }
            Event::Readable(id) => answer(server, now, id),
            _ => {}
        }
    }
    loop {
        let mut frame = server.spare.pop().unwrap_or_else(|| vec![0; FRAME_MAX]);
        match server.stack.poll_frame(now, &mut frame) {
            Some(length) => {
                frame.truncate(length);
                server.left.push(frame);
            }
            None => {
                server.spare.push(frame);
                break;
            }
        }
    }
}

fn answer(server: &mut Server, now: Duration, id: ConnectionId) {
    while let Ok(Some(count)) = server.stack.receive(id, &mut server.request)
        && count > 0
    {
        let _ = server.stack.send_prebuilt(id, server.response.clone());
        if server.closes {
            server.stack.release(now, id);
        }
    }
}

/// A host that knows its neighbours as it does under AF_XDP, from the kernel.
fn host(number: u8) -> Stack {
    let mut stack = Stack::new(Settings {
        mac: MacAddress([2, 0, 0, 0, 0, number]),
        addresses: Addresses::These(vec![Ipv4Addr::new(10, 0, 0, number)]),
        prefix_length: 24,
        gateway: None,
        neighbouring: Neighbouring::Told,
        tcp: tcp::Settings::default(),
        unlistened: Unlistened::Refuse,
        connections_max: 100_000,
        memory_max: 1 << 30,
        secret: Secret([1, u64::from(number)]),
    });
    stack.set_routes(vec![Route {
        network: Ipv4Addr::new(10, 0, 0, 0),
        prefix_length: 24,
        gateway: None,
    }]);
    for neighbour in [1, 2] {
        let card = MacAddress([2, 0, 0, 0, 0, neighbour]);
        stack.set_neighbour(Ipv4Addr::new(10, 0, 0, neighbour), Some(card));
    }
    stack
}

fn main() {
    let mut words = std::env::args().skip(1);
    let closes = words.next().as_deref() == Some("short");
    let count: usize = words
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(1000);
    let address = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 80);
    let mut stack = host(2);
    let Ok(listener) = stack.listen(address, 100) else {
        return;
    };
    let mut server = Server {
        stack,
        listener,
        response: Prebuilt::new(Bytes::from(vec![b'x'; 1024])),
        closes,
        left: Vec::new(),
        spare: Vec::new(),
        request: [0; 1024],
    };
    let mut client = host(1);
    let mut now = Duration::from_secs(1);
    let mut answered = 0;
    let mut current = client.connect(now, None, address).ok();
    let (mut frame, mut into) = (vec![0; FRAME_MAX], [0; 4096]);
    while answered < count {
        let mut frames = Vec::new();
        while let Some(length) = client.poll_frame(now, &mut frame) {
            frames.push(frame.get(..length).unwrap_or_default().to_vec());
        }
        now += Duration::from_micros(50);
        server_turn(&mut server, now, &frames);
        now += Duration::from_micros(50);
        for mut frame in server.left.drain(..) {
            client.handle_frame(now, &frame);
            frame.resize(FRAME_MAX, 0);
            server.spare.push(frame);
        }
        client.handle_timeout(now);
        while let Some(event) = client.poll_event() {
            match event {
                Event::Connected(id) => {
                    let _ = client.send(id, Bytes::from_static(REQUEST));
                }
                Event::Readable(id) => {
                    let received = client.receive(id, &mut into);
                    if received == Ok(Some(1024)) {
                        answered += 1;
                        if !closes {
                            let _ = client.send(id, Bytes::from_static(REQUEST));
                        }
                    }
                    if closes && client.receive(id, &mut into) == Ok(Some(0)) {
                        client.release(now, id);
                        current = None;
                    }
                }
                _ => {}
            }
        }
        if current.is_none() {
            current = client.connect(now, None, address).ok();
        }
    }
}
