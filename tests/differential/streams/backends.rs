//! What sessions are passed on to: servers of TCP and UDP that do the same whatever the order of
//! what comes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};

use crate::run::guarded_port;

/// The ports of all of them.
pub(crate) struct Backends {
    /// Says everything back, and ends when its client does.
    pub(crate) echo: u16,
    /// The same, and speaks first.
    pub(crate) greeter: u16,
    /// Speaks and ends.
    pub(crate) closer: u16,
    /// Takes connections and says nothing.
    pub(crate) deaf: u16,
    /// Says each datagram back.
    pub(crate) datagrams: u16,
    /// Says each twice.
    pub(crate) twice: u16,
    /// Answers none.
    pub(crate) silent: u16,
    /// Where nothing listens, over TCP and UDP.
    pub(crate) dead: u16,
    _guards: Vec<TcpListener>,
}

impl Backends {
    /// Starts them; their threads live as long as the test.
    pub(crate) fn start() -> Backends {
        let mut guards = Vec::new();
        Backends {
            echo: serve(b"", true),
            greeter: serve(b"greetings\n", true),
            closer: serve(b"farewell\n", false),
            deaf: hold(),
            datagrams: answer(1),
            twice: answer(2),
            silent: answer(0),
            dead: guarded_port(&mut guards),
            _guards: guards,
        }
    }
}

fn serve(greeting: &'static [u8], echoes: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || talk(client, greeting, echoes));
        }
    });
    port
}

fn talk(mut client: TcpStream, greeting: &[u8], echoes: bool) {
    let _ = client.set_nodelay(true);
    if client.write_all(greeting).is_err() {
        return;
    }
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        if echoes && client.write_all(&buffer[..count]).is_err() {
            return;
        }
        // One that does not echo has said all, and hears the rest, so that nothing is reset.
        if !echoes {
            let _ = client.shutdown(Shutdown::Write);
        }
    }
}

fn hold() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            std::thread::spawn(move || while let Ok(1..) = client.read(&mut [0; 4096]) {});
        }
    });
    port
}

fn answer(times: usize) -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = socket.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((count, client)) = socket.recv_from(&mut buffer) {
            for _ in 0..times {
                let _ = socket.send_to(&buffer[..count], client);
            }
        }
    });
    port
}
