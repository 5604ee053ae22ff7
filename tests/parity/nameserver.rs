//! The name server at 127.0.0.1:@DNS@: what it answers is told by the name, so that a case shows
//! what it is about.
//!
//! | name | answer |
//! |---|---|
//! | `up.test` | 127.0.0.1, no IPv6 address |
//! | `both.test` | 127.0.0.1 and ::1 |
//! | `alias.test`, `far.test` | an alias of `up.test` with its address, and alone |
//! | `loop.test` | an alias of itself |
//! | `failing.test`, `refused.test`, `puzzled.test` | SERVFAIL, REFUSED, FORMERR |
//! | `silent.test` | nothing |
//! | `long.test` | cut short over UDP, 127.0.0.1 over TCP |
//! | `forged.test` | wrong identifiers, other questions and torn messages, then 127.0.0.1 |
//! | `torn.test` | nothing but half a message |
//! | `onceN.test` | 127.0.0.1 for one second the first time, later nothing |
//! | any other | NXDOMAIN |

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};

const A: u16 = 1;
const CNAME: u16 = 5;
const AAAA: u16 = 28;

/// A port that is free for UDP may be taken for TCP, so several are tried.
fn bind() -> std::io::Result<(UdpSocket, TcpListener)> {
    const ATTEMPTS: usize = 100;
    let mut attempts = 0;
    loop {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        attempts += 1;
        match TcpListener::bind(udp.local_addr()?) {
            Ok(tcp) => return Ok((udp, tcp)),
            Err(error) if attempts == ATTEMPTS => return Err(error),
            Err(_) => {}
        }
    }
}

/// Starts it over UDP and TCP on the same port, which is returned. Its threads live as long as the
/// test run.
pub(crate) fn start() -> std::io::Result<u16> {
    let (udp, tcp) = bind()?;
    let port = udp.local_addr()?.port();
    std::thread::spawn(move || {
        let mut asked = BTreeSet::new();
        let mut buffer = [0; 512];
        while let Ok((length, client)) = udp.recv_from(&mut buffer) {
            for answer in answers(&buffer[..length], false, &mut asked).unwrap_or_default() {
                let _ = udp.send_to(&answer, client);
            }
        }
    });
    std::thread::spawn(move || {
        for mut stream in tcp.incoming().flatten() {
            let (mut length, mut buffer) = ([0; 2], [0; 512]);
            let _ = stream.read_exact(&mut length);
            let Some(query) = buffer.get_mut(..usize::from(u16::from_be_bytes(length))) else {
                continue;
            };
            let _ = stream.read_exact(query);
            for answer in answers(query, true, &mut BTreeSet::new()).unwrap_or_default() {
                let length = (answer.len() as u16).to_be_bytes();
                let _ = stream.write_all(&[&length[..], &answer].concat());
            }
        }
    });
    Ok(port)
}

/// A question as it came: everything up to the end of the one name, type and class.
struct Query<'a> {
    bytes: &'a [u8],
    name: String,
    kind: u16,
}

impl Query<'_> {
    fn read(bytes: &[u8]) -> Option<Query<'_>> {
        let mut at = 12;
        let mut labels = Vec::new();
        loop {
            let length = usize::from(*bytes.get(at)?);
            at += 1;
            if length == 0 {
                break;
            }
            labels.push(String::from_utf8_lossy(bytes.get(at..at + length)?).into_owned());
            at += length;
        }
        let kind = u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?);
        Some(Query {
            bytes: bytes.get(..at + 4)?,
            name: labels.join("."),
            kind,
        })
    }

    fn answer(&self, flags: u16, records: &[Vec<u8>]) -> Vec<u8> {
        let mut answer = self.bytes.to_vec();
        answer[2..4].copy_from_slice(&(0x8180 | flags).to_be_bytes());
        answer[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
        answer.extend(records.concat());
        answer
    }
}

fn wire(name: &str) -> Vec<u8> {
    let label = |label: &str| [&[label.len() as u8], label.as_bytes()].concat();
    let mut wire: Vec<u8> = name.split('.').flat_map(label).collect();
    wire.push(0);
    wire
}

fn record(name: &str, kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let mut record = wire(name);
    record.extend([kind.to_be_bytes(), 1_u16.to_be_bytes()].concat());
    record.extend(ttl.to_be_bytes());
    record.extend((data.len() as u16).to_be_bytes());
    record.extend(data);
    record
}

fn answers(bytes: &[u8], tcp: bool, asked: &mut BTreeSet<String>) -> Option<Vec<Vec<u8>>> {
    let query = Query::read(bytes)?;
    let name = query.name.as_str();
    let home = |owner: &str, ttl| match query.kind {
        A => vec![record(owner, A, ttl, &[127, 0, 0, 1])],
        _ => Vec::new(),
    };
    let found = query.answer(0, &home(name, 600));
    Some(match name {
        "up.test" => vec![found],
        "both.test" if query.kind == AAAA => {
            let address = std::net::Ipv6Addr::LOCALHOST.octets();
            vec![query.answer(0, &[record(name, AAAA, 600, &address)])]
        }
        "both.test" => vec![found],
        "alias.test" => {
            let mut records = vec![record(name, CNAME, 600, &wire("up.test"))];
            records.extend(home("up.test", 600));
            vec![query.answer(0, &records)]
        }
        "far.test" => vec![query.answer(0, &[record(name, CNAME, 600, &wire("up.test"))])],
        "loop.test" => vec![query.answer(0, &[record(name, CNAME, 600, &wire(name))])],
        "failing.test" => vec![query.answer(2, &[])],
        "refused.test" => vec![query.answer(5, &[])],
        "puzzled.test" => vec![query.answer(1, &[])],
        "silent.test" => Vec::new(),
        "long.test" if !tcp => vec![query.answer(0x200, &[])],
        "long.test" => vec![found],
        "torn.test" => vec![found[..20].to_vec()],
        "forged.test" => {
            let mut other_id = found.clone();
            other_id[0] ^= 0xff;
            let mut other_name = found.clone();
            other_name[13] ^= 1;
            let mut question = found.clone();
            question[2] = 1;
            let torn = found[..found.len() - 3].to_vec();
            vec![Vec::new(), other_id, other_name, question, torn, found]
        }
        _ if name.starts_with("once") => {
            let first = query.kind != A || asked.insert(query.name.clone());
            vec![query.answer(0, &if first { home(name, 1) } else { Vec::new() })]
        }
        _ => vec![query.answer(3, &[])],
    })
}
