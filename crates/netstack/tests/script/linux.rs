//! The kernel's stack as the subject of a script: through a TUN device in a network namespace of
//! its own, by real time.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use netstack::wire::ipv4::{Packet, Protocol};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::Subject;
use super::language::{self, Call};
use super::packet::{OUR_ADDRESS, PORT, THEIR_ADDRESS, byte_at};

/// How long a call may take that should have an answer.
const PATIENCE: Duration = Duration::from_millis(100);

/// What the kernel does beyond what the scripts are of is turned off.
const OFF: &[&str] = &[
    "tcp_ecn",
    "tcp_early_retrans",
    "tcp_recovery",
    "tcp_frto",
    "tcp_dsack",
    "tcp_invalid_ratelimit",
];

/// The kernel of this namespace, and what the application of a script has of it.
pub(crate) struct Linux {
    device: File,
    start: Instant,
    no_delay: bool,
    listener: Option<TcpListener>,
    stream: Option<TcpStream>,
    written: i64,
    read: i64,
}

impl Linux {
    /// Makes the device; this process must be alone in its network namespace.
    pub(crate) fn new(settings: &language::Settings) -> Linux {
        let device = tun("tun0").expect("a TUN device needs root and /dev/net/tun");
        for command in [
            "ip link set lo up",
            "ip addr add 10.9.0.2/24 dev tun0",
            "ip link set tun0 gso_max_segs 1",
            "ip link set tun0 up",
        ] {
            let mut words = command.split(' ');
            let program = words.next().unwrap_or_default();
            let status = Command::new(program).args(words).status();
            assert!(status.is_ok_and(|status| status.success()), "{command}");
        }
        for name in OFF {
            set(name, "0");
        }
        set("tcp_congestion_control", "reno");
        set("tcp_no_metrics_save", "1");
        let number = |is_on: bool| if is_on { "1" } else { "0" };
        set("tcp_timestamps", number(settings.tcp.timestamps));
        set("tcp_sack", number(settings.tcp.sack));
        set("tcp_window_scaling", number(settings.tcp.window_scale));
        Linux {
            device,
            start: Instant::now(),
            no_delay: settings.tcp.no_delay,
            listener: None,
            stream: None,
            written: 0,
            read: 1,
        }
    }

    fn adopt(&mut self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(self.no_delay)?;
        self.stream = Some(stream);
        Ok(())
    }

    fn stream(&mut self) -> Result<&mut TcpStream, String> {
        self.stream.as_mut().ok_or("no connection".to_owned())
    }

    fn write(&mut self, count: usize) -> Result<usize, String> {
        let bytes: Vec<u8> = (self.written..self.written + count as i64)
            .map(byte_at)
            .collect();
        let taken = self.stream()?.write(&bytes);
        let taken = taken.map_err(|error| error.to_string())?;
        self.written += taken as i64;
        Ok(taken)
    }

    /// What a read of so many bytes gives, in words.
    fn receive(&mut self, count: usize) -> Result<String, String> {
        let mut into = vec![0; count];
        let received = self.stream()?.read(&mut into);
        let count = match received {
            Ok(count) => count,
            Err(error) => return Ok(format!("{:?}", error.kind())),
        };
        let should = (self.read..).map(byte_at);
        if into[..count]
            .iter()
            .zip(should)
            .any(|(is, should)| *is != should)
        {
            return Err("other bytes".to_owned());
        }
        self.read += count as i64;
        Ok(count.to_string())
    }

    /// Has a call come to what it should, in a while.
    fn until(
        &mut self,
        should: &str,
        call: impl Fn(&mut Linux) -> Result<String, String>,
    ) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let is = call(self)?;
            if is == should {
                return Ok(());
            }
            if is != "WouldBlock" || Instant::now() > deadline {
                return Err(format!("{is} instead of {should}"));
            }
            std::thread::yield_now();
        }
    }

    fn accept(&mut self) -> Result<String, String> {
        let listener = self.listener.as_ref().ok_or("nobody listens")?;
        match listener.accept() {
            Ok((stream, _)) => {
                // A young connection of Linux acknowledges everything at once.
                let quick = sockopt::set_tcp_quickack(&stream, false);
                quick.map_err(|error| error.to_string())?;
                self.adopt(stream).map_err(|error| error.to_string())?;
                Ok("accepted".to_owned())
            }
            Err(error) => Ok(format!("{:?}", error.kind())),
        }
    }

    fn connect(&mut self) -> std::io::Result<()> {
        let socket = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            None,
        )?;
        let to = SocketAddr::from((THEIR_ADDRESS, PORT));
        match rustix::net::connect(&socket, &to) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => self.adopt(socket.into()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Subject for Linux {
    fn advance(&mut self, until: Duration) -> Vec<(Duration, Vec<u8>)> {
        loop {
            let now = self.start.elapsed();
            let left = until.saturating_sub(now);
            let timeout = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            let mut polled = [PollFd::new(&self.device, PollFlags::IN)];
            if rustix::event::poll(&mut polled, Some(&timeout)).unwrap() == 0 {
                return Vec::new();
            }
            let mut packet = vec![0; 2000];
            let length = self.device.read(&mut packet).unwrap();
            packet.truncate(length);
            let is_tcp =
                Packet::parse(&packet).is_ok_and(|packet| packet.protocol == Protocol::Tcp);
            if is_tcp {
                return vec![(self.start.elapsed(), packet)];
            }
        }
    }

    fn take(&mut self, packet: &[u8]) {
        self.device.write_all(packet).unwrap();
    }

    fn call(&mut self, call: &Call) -> Result<(), String> {
        let errs = |error: std::io::Error| error.to_string();
        match call {
            Call::Listen => {
                let listener = TcpListener::bind((OUR_ADDRESS, PORT)).map_err(errs)?;
                listener.set_nonblocking(true).map_err(errs)?;
                self.listener = Some(listener);
                Ok(())
            }
            Call::Connect => self.connect().map_err(errs),
            Call::Accept => self.until("accepted", Linux::accept),
            Call::NothingToAccept => match self.accept()?.as_str() {
                "WouldBlock" => Ok(()),
                other => Err(other.to_owned()),
            },
            Call::Write(count) | Call::WriteSome(_, count) => {
                let taken = self.write(*count)?;
                if taken == *count {
                    Ok(())
                } else {
                    Err(format!("{taken} were taken"))
                }
            }
            Call::Read(count) => {
                let count = *count;
                self.until(&count.to_string(), |linux| linux.receive(count))
            }
            Call::ReadNothing => match self.receive(1)?.as_str() {
                "WouldBlock" => Ok(()),
                other => Err(other.to_owned()),
            },
            Call::ReadEnd => self.until("0", |linux| linux.receive(1)),
            Call::ReadError(reason) => {
                let kind = match reason.as_str() {
                    "Reset" => ErrorKind::ConnectionReset,
                    "Refused" => ErrorKind::ConnectionRefused,
                    _ => ErrorKind::TimedOut,
                };
                self.until(&format!("{kind:?}"), |linux| linux.receive(1))
            }
            Call::Finish => {
                let stream = self.stream()?;
                stream.shutdown(std::net::Shutdown::Write).map_err(errs)
            }
            Call::Release => {
                self.stream = None;
                Ok(())
            }
            Call::Abort => {
                let stream = self.stream()?;
                sockopt::set_socket_linger(&*stream, Some(Duration::ZERO))
                    .map_err(|error| error.to_string())?;
                self.stream = None;
                Ok(())
            }
            Call::KeepAlive(_) => Err("not here".to_owned()),
            // What the kernel holds is not to be seen.
            Call::Gone => Ok(()),
        }
    }

    fn tolerance(&self) -> Duration {
        Duration::from_millis(30)
    }

    fn is_exact(&self) -> bool {
        false
    }
}

fn set(name: &str, value: &str) {
    // Kernels do not have all of them.
    let _ = fs::write(format!("/proc/sys/net/ipv4/{name}"), value);
}

/// Opens a device that carries IP packets.
#[allow(unsafe_code)]
fn tun(name: &str) -> std::io::Result<File> {
    const TUNSETIFF: rustix::ioctl::Opcode = 0x4004_54ca;
    const IFF_TUN: u16 = 1;
    const IFF_NO_PI: u16 = 0x1000;
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    // struct ifreq: the name, then a union that begins with the flags.
    let mut request = [0_u8; 40];
    for (to, from) in request.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    let flags = (IFF_TUN | IFF_NO_PI).to_ne_bytes();
    request[16..18].copy_from_slice(&flags);
    // SAFETY: TUNSETIFF reads one `struct ifreq`, which is 40 bytes long.
    unsafe {
        let setter = rustix::ioctl::Setter::<TUNSETIFF, [u8; 40]>::new(request);
        rustix::ioctl::ioctl(&device, setter)?;
    }
    Ok(device)
}
