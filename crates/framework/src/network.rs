//! Networks and peers named by directives such as `allow`, `geo`, `set_real_ip_from` and
//! `debug_connection`.

use std::net::{IpAddr, Ipv6Addr};

use conf::{Fault, Files, Setter, Word};
use engine::net::Address;

use crate::address::WrittenAddress;

/// `debug_connection`: the peers whose connections are logged at the debug level, whatever their
/// protocol. A part of a generation.
#[derive(Clone, Debug, Default)]
pub struct DebugConnections(pub Peers);

/// nginx's warning about an address with bits beyond its prefix length.
pub fn stray_bits(word: &Word) -> String {
    format!("low address bits of {} are meaningless", word.text())
}

/// A list of peers: addresses, networks, host names, or all clients of Unix sockets. The value of
/// `set_real_ip_from` and `debug_connection`.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    networks: Box<[Cidr]>,
    unix: bool,
}

impl Peers {
    /// The arguments of a directive's lines. Warns, as nginx does, of addresses with bits beyond
    /// the prefix length.
    pub fn words(setter: &Setter<'_>) -> Vec<Word> {
        let words = setter.lines().iter().map(|line| line.argument(0).clone());
        words
            .inspect(|word| {
                if let Some((_, true)) = Cidr::parse(&word.bytes) {
                    setter.warn(word, stray_bits(word));
                }
            })
            .collect()
    }

    /// Parses the arguments, and resolves host names now.
    pub fn compile(words: &[Word], directive: &str, files: &dyn Files) -> Result<Peers, Fault> {
        let (mut networks, mut unix) = (Vec::new(), false);
        for word in words {
            match Cidr::parse(&word.bytes) {
                _ if &*word.bytes == b"unix:" => unix = true,
                Some((cidr, _)) => networks.push(cidr),
                None => {
                    let found = resolve(word, files);
                    if found.is_empty() {
                        let text = format!("host not found in {directive} \"{}\"", word.text());
                        return Err(Fault::at(word, text).while_reading());
                    }
                    networks.extend(found);
                }
            }
        }
        Ok(Peers {
            networks: networks.into(),
            unix,
        })
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && !self.unix
    }

    /// Whether the list contains the peer's address. An IPv4-mapped IPv6 address counts as its IPv4
    /// address.
    pub fn contains(&self, address: &Address) -> bool {
        match address {
            Address::Unix(_) => self.unix,
            Address::Inet(socket) => {
                let ip = socket.ip().to_canonical();
                self.networks.iter().any(|network| network.contains(ip))
            }
        }
    }
}

/// All addresses of a name, as networks of a single address.
fn resolve(word: &Word, files: &dyn Files) -> Vec<Cidr> {
    let written = WrittenAddress {
        name: &word.bytes,
        port: None,
        unix: false,
    };
    let found = written.resolve(files, 1).unwrap_or_default();
    let cidr = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => Cidr::V4 {
            address: ip.into(),
            bits: 32,
        },
        IpAddr::V6(ip) => Cidr::V6 {
            address: ip.into(),
            bits: 128,
        },
    };
    found.iter().filter_map(Address::ip).map(cidr).collect()
}

/// A network: an address and its prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cidr {
    /// A network of IPv4 addresses.
    V4 {
        /// The network's first address.
        address: u32,
        /// The prefix length in bits, 0 to 32.
        bits: u8,
    },
    /// A network of IPv6 addresses.
    V6 {
        /// The network's first address.
        address: u128,
        /// The prefix length in bits, 0 to 128.
        bits: u8,
    },
}

impl Cidr {
    /// Parses `10.0.0.0/8`, `10.1.2.3`, `2001:db8::/32`. The flag says that the address had bits
    /// beyond the prefix length, which are cleared.
    pub fn parse(text: &[u8]) -> Option<(Cidr, bool)> {
        let slash = memchr::memchr(b'/', text);
        let address = parse_address(text.get(..slash.unwrap_or(text.len()))?)?;
        let bits = match slash {
            Some(slash) => Some(parse_bits(text.get(slash + 1..)?)?),
            None => None,
        };
        match address {
            IpAddr::V4(address) => {
                let bits = bits.unwrap_or(32);
                let address = u32::from(address);
                let kept = address & mask_v4(bits)?;
                Some((
                    Cidr::V4 {
                        address: kept,
                        bits,
                    },
                    kept != address,
                ))
            }
            IpAddr::V6(address) => {
                let bits = bits.unwrap_or(128);
                let address = u128::from(address);
                let kept = address & mask_v6(bits)?;
                Some((
                    Cidr::V6 {
                        address: kept,
                        bits,
                    },
                    kept != address,
                ))
            }
        }
    }

    /// Whether the network contains an address. IPv4-mapped IPv6 addresses are not converted.
    pub fn contains(self, candidate: IpAddr) -> bool {
        match (self, candidate) {
            (Cidr::V4 { address, bits }, IpAddr::V4(candidate)) => {
                mask_v4(bits).is_some_and(|mask| u32::from(candidate) & mask == address)
            }
            (Cidr::V6 { address, bits }, IpAddr::V6(candidate)) => {
                mask_v6(bits).is_some_and(|mask| u128::from(candidate) & mask == address)
            }
            _ => false,
        }
    }
}

fn mask_v4(bits: u8) -> Option<u32> {
    (bits <= 32).then(|| u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0))
}

fn mask_v6(bits: u8) -> Option<u128> {
    (bits <= 128).then(|| u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0))
}

fn parse_bits(text: &[u8]) -> Option<u8> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Parses an address as nginx does: IPv4 octets may be empty or have leading zeros, and the
/// broadcast address is an error, because nginx uses that value to signal errors.
pub fn parse_address(text: &[u8]) -> Option<IpAddr> {
    if let Some(address) = parse_ipv4(text) {
        return Some(IpAddr::V4(address.into()));
    }
    let text = std::str::from_utf8(text).ok()?;
    text.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

/// Parses a dotted IPv4 address to a number; see [`parse_address`] for the deviations that are
/// accepted.
pub fn parse_ipv4(text: &[u8]) -> Option<u32> {
    let mut address = 0_u32;
    let mut octets = 0;
    for octet in text.split(|&byte| byte == b'.') {
        let mut value = 0_u32;
        for &digit in octet {
            if !digit.is_ascii_digit() {
                return None;
            }
            value = value * 10 + u32::from(digit - b'0');
            if value > 255 {
                return None;
            }
        }
        octets += 1;
        if octets > 4 {
            return None;
        }
        address = address << 8 | value;
    }
    (octets == 4 && address != u32::MAX).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inet(text: &str) -> Address {
        Address::Inet((text.parse::<IpAddr>().unwrap(), 80).into())
    }

    #[test]
    fn networks_are_read_as_nginx_reads_them() {
        let parse = |text: &str| Cidr::parse(text.as_bytes());
        assert_eq!(
            parse("10.1.2.3/8"),
            Some((
                Cidr::V4 {
                    address: 0x0a00_0000,
                    bits: 8
                },
                true
            ))
        );
        assert_eq!(
            parse("10.0.0.0/8"),
            Some((
                Cidr::V4 {
                    address: 0x0a00_0000,
                    bits: 8
                },
                false
            ))
        );
        assert_eq!(
            parse("0.0.0.0/0"),
            Some((
                Cidr::V4 {
                    address: 0,
                    bits: 0
                },
                false
            ))
        );
        assert_eq!(
            parse("::/0"),
            Some((
                Cidr::V6 {
                    address: 0,
                    bits: 0
                },
                false
            ))
        );
        assert_eq!(
            parse("010.0.0.1").map(|found| found.0),
            parse("10.0.0.1").map(|found| found.0)
        );
        for wrong in [
            "10.0.0.0/33",
            "10.0.0/8",
            "10.0.0.256",
            "::/129",
            "",
            "10.0.0.0/",
            "x",
            "255.255.255.255",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn peers_by_address_network_and_socket() {
        let words = |list: &[&str]| -> Vec<Word> {
            let word = |text: &&str| Word {
                bytes: text.as_bytes().into(),
                ..Word::default()
            };
            list.iter().map(word).collect()
        };
        let peers =
            Peers::compile(&words(&["10.0.0.0/8", "::1", "unix:"]), "x", &conf::Disk).unwrap();
        assert!(peers.contains(&inet("10.1.2.3")) && peers.contains(&inet("::ffff:10.1.2.3")));
        assert!(peers.contains(&inet("::1")) && !peers.contains(&inet("11.1.2.3")));
        assert!(peers.contains(&Address::Unix("/a".into())));
        let fault = Peers::compile(&words(&["10.0.0.0/33"]), "x", &conf::Disk).unwrap_err();
        assert_eq!(fault.message, "host not found in x \"10.0.0.0/33\"");
    }
}
