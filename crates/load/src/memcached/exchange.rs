//! Encodes requests to a memcached server, and parses the responses.

use std::ops::RangeInclusive;

use bytes::{Bytes, BytesMut};

use super::{MemcachedPlan, MemcachedProtocol};

/// Maximum length of a response line, in bytes.
const LINE_MAX: usize = 1024;

/// Length of the header of a binary-protocol packet, in bytes.
const HEAD: usize = 24;

/// Encodes requests according to a plan.
#[derive(Debug)]
pub(super) struct Requests {
    protocol: MemcachedProtocol,
    key_length: usize,
    value: RangeInclusive<usize>,
    expires: u32,
    /// The bytes of the longest value; other values are prefixes of it.
    bytes: Bytes,
    buffer: BytesMut,
}

impl Requests {
    pub(super) fn new(plan: &MemcachedPlan) -> Requests {
        let pattern = b"abcdefghijklmnopqrstuvwxyz0123456789";
        let bytes = pattern.iter().cycle().take(*plan.value.end());
        Requests {
            protocol: plan.protocol,
            key_length: plan.key_length,
            value: plan.value.clone(),
            expires: plan.expires,
            bytes: bytes.copied().collect(),
            buffer: BytesMut::new(),
        }
    }

    /// Length of a key's value, derived from the key.
    fn length(&self, key: u64) -> usize {
        let (least, most) = (*self.value.start() as u64, *self.value.end() as u64);
        let mixed = (key ^ (key >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let drawn = (u128::from(mixed) * u128::from(most - least + 1)) >> 64;
        (least + drawn as u64) as usize
    }

    fn add_key(&mut self, key: u64) {
        let width = self.key_length - 1;
        let text = format!("k{key:0width$}");
        self.buffer.extend_from_slice(text.as_bytes());
    }

    fn add(&mut self, text: &str) {
        self.buffer.extend_from_slice(text.as_bytes());
    }

    /// Appends the header of a binary-protocol packet.
    fn head(&mut self, opcode: u8, extras: usize, value: usize, opaque: u32, with_key: bool) {
        let key = if with_key { self.key_length } else { 0 };
        let body = (extras + key + value) as u32;
        let mut head = [0; HEAD];
        head[0] = 0x80;
        head[1] = opcode;
        head[2..4].copy_from_slice(&(key as u16).to_be_bytes());
        head[4] = extras as u8;
        head[8..12].copy_from_slice(&body.to_be_bytes());
        head[12..16].copy_from_slice(&opaque.to_be_bytes());
        self.buffer.extend_from_slice(&head);
    }

    /// Encodes a get of these keys.
    pub(super) fn get(&mut self, keys: &[u64]) -> Bytes {
        match self.protocol {
            MemcachedProtocol::Text => {
                self.add("get");
                for key in keys {
                    self.add(" ");
                    self.add_key(*key);
                }
                self.add("\r\n");
            }
            MemcachedProtocol::Meta => {
                for key in keys {
                    self.add("mg ");
                    self.add_key(*key);
                    self.add(" v k\r\n");
                }
            }
            MemcachedProtocol::Binary if keys.len() == 1 => {
                self.head(0x0c, 0, 0, 0, true);
                self.add_key(keys.first().copied().unwrap_or(0));
            }
            MemcachedProtocol::Binary => {
                for (place, key) in keys.iter().enumerate() {
                    self.head(0x0d, 0, 0, place as u32, true);
                    self.add_key(*key);
                }
                self.head(0x0a, 0, 0, 0, false);
            }
        }
        self.buffer.split().freeze()
    }

    /// Encodes a set of a key.
    pub(super) fn set(&mut self, key: u64) -> Bytes {
        let length = self.length(key);
        let expires = self.expires;
        match self.protocol {
            MemcachedProtocol::Text => {
                self.add("set ");
                self.add_key(key);
                self.add(&format!(" 0 {expires} {length}\r\n"));
            }
            MemcachedProtocol::Meta => {
                self.add("ms ");
                self.add_key(key);
                self.add(&format!(" {length} T{expires}\r\n"));
            }
            MemcachedProtocol::Binary => {
                self.head(0x01, 8, length, 0, true);
                self.buffer.extend_from_slice(&[0; 4]);
                self.buffer.extend_from_slice(&expires.to_be_bytes());
                self.add_key(key);
            }
        }
        let value = self.bytes.slice(..length);
        self.buffer.extend_from_slice(&value);
        if self.protocol != MemcachedProtocol::Binary {
            self.add("\r\n");
        }
        self.buffer.split().freeze()
    }

    /// The number in a key, if the key is one of ours.
    fn number(&self, key: &[u8]) -> Option<u64> {
        let digits = key.strip_prefix(b"k")?;
        let text = std::str::from_utf8(digits).ok()?;
        text.parse().ok().filter(|_| key.len() == self.key_length)
    }
}

/// The state of a response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AnswerProgress {
    /// The response is not complete yet.
    More,
    /// The response is complete; this many keys had a value.
    Done(u64),
    /// The response is invalid; this is its start.
    Wrong(String),
}

/// The parser of a response that arrives in pieces.
#[derive(Debug)]
pub(super) struct AwaitedAnswer {
    protocol: MemcachedProtocol,
    is_get: bool,
    /// Number of parts of the response that are still missing, if it is known.
    parts: usize,
    hits: u64,
    /// The start of an incomplete line or packet header.
    begin: Vec<u8>,
    /// Number of bytes of a value, including its line end, that are still missing.
    skip: usize,
}

impl Default for AwaitedAnswer {
    fn default() -> AwaitedAnswer {
        AwaitedAnswer {
            protocol: MemcachedProtocol::Text,
            is_get: false,
            parts: 0,
            hits: 0,
            begin: Vec::new(),
            skip: 0,
        }
    }
}

impl AwaitedAnswer {
    /// Starts parsing another response: to a get of this many keys, or to a set.
    pub(super) fn begin(&mut self, protocol: MemcachedProtocol, is_get: bool, keys: usize) {
        *self = AwaitedAnswer {
            protocol,
            is_get,
            parts: keys,
            hits: 0,
            begin: std::mem::take(&mut self.begin),
            skip: 0,
        };
        self.begin.clear();
    }

    /// Processes received bytes. Bytes after the end of the response are an error.
    pub(super) fn take(
        &mut self,
        mut bytes: &[u8],
        keys: &[u64],
        requests: &Requests,
    ) -> AnswerProgress {
        loop {
            let skipped = self.skip.min(bytes.len());
            bytes = bytes.get(skipped..).unwrap_or_default();
            self.skip -= skipped;
            if self.skip > 0 {
                return AnswerProgress::More;
            }
            // The last part of the response may have been a value.
            if self.parts == 0 && self.protocol != MemcachedProtocol::Text {
                return self.end(bytes);
            }
            let wanted = match self.protocol {
                MemcachedProtocol::Binary => (HEAD - self.begin.len()).min(bytes.len()),
                _ => match bytes.iter().position(|byte| *byte == b'\n') {
                    Some(end) => end + 1,
                    None => bytes.len(),
                },
            };
            let (part, rest) = bytes.split_at_checked(wanted).unwrap_or_default();
            self.begin.extend_from_slice(part);
            bytes = rest;
            let is_whole = match self.protocol {
                MemcachedProtocol::Binary => self.begin.len() == HEAD,
                _ => self.begin.ends_with(b"\n"),
            };
            if !is_whole {
                return if self.begin.len() > LINE_MAX {
                    self.wrong()
                } else {
                    AnswerProgress::More
                };
            }
            let taken = match self.protocol {
                MemcachedProtocol::Binary => self.head(requests, keys),
                _ => self.line(requests, keys),
            };
            match taken {
                None => return self.wrong(),
                Some(false) => self.begin.clear(),
                Some(true) => {
                    self.begin.clear();
                    if self.skip == 0 {
                        return self.end(bytes);
                    }
                    self.parts = 0;
                }
            }
        }
    }

    fn end(&self, rest: &[u8]) -> AnswerProgress {
        match rest {
            [] => AnswerProgress::Done(self.hits),
            rest => AnswerProgress::Wrong(shown(rest)),
        }
    }

    fn wrong(&self) -> AnswerProgress {
        AnswerProgress::Wrong(shown(&self.begin))
    }

    /// Parses a line. Returns whether it is the last line of the response; `None` if it is invalid.
    fn line(&mut self, requests: &Requests, keys: &[u64]) -> Option<bool> {
        let line = self.begin.strip_suffix(b"\r\n")?;
        let mut words = line.split(|byte| *byte == b' ');
        let name = words.next()?;
        if !self.is_get {
            return matches!(line, b"STORED" | b"HD").then_some(true);
        }
        let is_meta = self.protocol == MemcachedProtocol::Meta;
        let (key, length) = match name {
            b"END" if !is_meta => return Some(true),
            b"EN" if is_meta => {
                self.parts = self.parts.checked_sub(1)?;
                return Some(self.parts == 0);
            }
            b"VALUE" if !is_meta => {
                let (key, _flags, length) = (words.next()?, words.next()?, words.next()?);
                (key, length)
            }
            b"VA" if is_meta => {
                let (length, key) = (words.next()?, words.next()?.strip_prefix(b"k")?);
                (key, length)
            }
            _ => return None,
        };
        let number = requests
            .number(key)
            .filter(|number| keys.contains(number))?;
        let length: usize = std::str::from_utf8(length).ok()?.parse().ok()?;
        if length != requests.length(number) {
            return None;
        }
        self.hits += 1;
        self.skip = length + 2;
        if is_meta {
            self.parts = self.parts.checked_sub(1)?;
            return Some(self.parts == 0);
        }
        Some(false)
    }

    /// Parses a packet header. Returns whether the packet is the last of the response; `None` if it
    /// is invalid.
    fn head(&mut self, requests: &Requests, keys: &[u64]) -> Option<bool> {
        let head: &[u8; HEAD] = self.begin.first_chunk()?;
        let status = u16::from_be_bytes([head[6], head[7]]);
        let body = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let place = u32::from_be_bytes([head[12], head[13], head[14], head[15]]) as usize;
        if head[0] != 0x81 {
            return None;
        }
        self.skip = body;
        match (head[1], status) {
            (0x01, 0) if !self.is_get => Some(true),
            (0x0a, 0) if self.is_get => Some(true),
            (0x0c, 1) => Some(true),
            (opcode @ (0x0c | 0x0d), 0) => {
                let length = requests.length(*keys.get(place)?);
                if body != 4 + requests.key_length + length {
                    return None;
                }
                self.hits += 1;
                Some(opcode == 0x0c)
            }
            _ => None,
        }
    }
}

/// The start of an invalid response, escaped for display.
pub(super) fn shown(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 80;
    let begin = bytes.get(..SHOWN_MAX).unwrap_or(bytes);
    begin.escape_ascii().to_string()
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use engine::EngineKind;
    use engine::net::Address;

    use super::*;
    use crate::memcached::{MemcachedLength, Popularity, Transport};

    pub(in super::super) fn plan(protocol: MemcachedProtocol) -> MemcachedPlan {
        MemcachedPlan {
            address: Address::Unix("".into()),
            transport: Transport::Stream,
            protocol,
            connections: 1,
            threads: 1,
            engine: EngineKind::Epoll,
            length: MemcachedLength::Time(Duration::ZERO),
            gets: 1,
            sets: 1,
            keys: 10,
            key_length: 12,
            keys_a_get: 2,
            value: 3..=3,
            popularity: Popularity::Uniform,
            expires: 60,
            fills: false,
            timeout: Duration::ZERO,
            seed: 1,
        }
    }

    /// Parses a response in one piece and byte by byte, and returns the result.
    fn read(
        protocol: MemcachedProtocol,
        is_get: bool,
        keys: &[u64],
        bytes: &[u8],
    ) -> AnswerProgress {
        let requests = Requests::new(&plan(protocol));
        let mut answer = AwaitedAnswer::default();
        answer.begin(protocol, is_get, keys.len());
        let whole = answer.take(bytes, keys, &requests);
        let mut in_pieces = AnswerProgress::More;
        answer.begin(protocol, is_get, keys.len());
        for byte in bytes.chunks(1) {
            if in_pieces != AnswerProgress::More {
                break;
            }
            in_pieces = answer.take(byte, keys, &requests);
        }
        if !matches!(whole, AnswerProgress::Wrong(_)) {
            assert_eq!(whole, in_pieces);
        }
        whole
    }

    #[test]
    fn lines_of_text() {
        use MemcachedProtocol::Text;
        let mut requests = Requests::new(&plan(Text));
        assert_eq!(
            &*requests.get(&[1, 2]),
            b"get k00000000001 k00000000002\r\n"
        );
        assert_eq!(&*requests.set(1), b"set k00000000001 0 60 3\r\nabc\r\n");
        let one = b"VALUE k00000000001 0 3\r\nabc\r\nEND\r\n";
        assert_eq!(read(Text, true, &[1, 2], one), AnswerProgress::Done(1));
        assert_eq!(read(Text, true, &[1], b"END\r\n"), AnswerProgress::Done(0));
        assert_eq!(read(Text, true, &[1], &one[..30]), AnswerProgress::More);
        assert_eq!(
            read(Text, false, &[1], b"STORED\r\n"),
            AnswerProgress::Done(0)
        );
        for wrong in [
            &b"VALUE k00000000003 0 3\r\nabc\r\nEND\r\n"[..],
            b"VALUE k00000000001 0 4\r\nabcd\r\nEND\r\n",
            b"SERVER_ERROR out of memory\r\n",
            b"END\r\nEND\r\n",
        ] {
            let progress = read(Text, true, &[1, 2], wrong);
            assert!(matches!(progress, AnswerProgress::Wrong(_)), "{progress:?}");
        }
        let refused = read(Text, false, &[1], b"NOT_STORED\r\n");
        assert_eq!(
            refused,
            AnswerProgress::Wrong("NOT_STORED\\r\\n".to_owned())
        );
    }

    #[test]
    fn lines_of_the_meta_protocol() {
        use MemcachedProtocol::Meta;
        let mut requests = Requests::new(&plan(Meta));
        assert_eq!(&*requests.get(&[1]), b"mg k00000000001 v k\r\n");
        assert_eq!(&*requests.set(1), b"ms k00000000001 3 T60\r\nabc\r\n");
        let one = b"EN\r\nVA 3 kk00000000001\r\nabc\r\n";
        assert_eq!(read(Meta, true, &[2, 1], one), AnswerProgress::Done(1));
        assert_eq!(read(Meta, false, &[1], b"HD\r\n"), AnswerProgress::Done(0));
    }

    #[test]
    fn packets() {
        use MemcachedProtocol::Binary;
        let mut requests = Requests::new(&plan(Binary));
        assert_eq!(requests.get(&[1]).len(), 24 + 12);
        assert_eq!(requests.get(&[1, 2]).len(), 2 * (24 + 12) + 24);
        assert_eq!(requests.set(1).len(), 24 + 8 + 12 + 3);
        let packet = |opcode, status, body: &[u8]| {
            let mut head = [0; HEAD];
            (head[0], head[1], head[7], head[11]) = (0x81, opcode, status, body.len() as u8);
            [&head, body].concat()
        };
        let hit = packet(0x0c, 0, b"\0\0\0\0k00000000001abc");
        assert_eq!(read(Binary, true, &[1], &hit), AnswerProgress::Done(1));
        let miss = packet(0x0c, 1, b"k00000000001");
        assert_eq!(read(Binary, true, &[1], &miss), AnswerProgress::Done(0));
        let several = [
            packet(0x0d, 0, b"\0\0\0\0k00000000001abc"),
            packet(0x0a, 0, b""),
        ];
        let several = several.concat();
        assert_eq!(
            read(Binary, true, &[1, 2], &several),
            AnswerProgress::Done(1)
        );
        assert_eq!(
            read(Binary, false, &[1], &packet(0x01, 0, b"")),
            AnswerProgress::Done(0)
        );
        let wrong = packet(0x01, 3, b"Too large.");
        let progress = read(Binary, false, &[1], &wrong);
        assert!(matches!(progress, AnswerProgress::Wrong(_)));
    }

    #[test]
    fn lengths_are_within_their_range_and_differ() {
        let mut plan = plan(MemcachedProtocol::Text);
        plan.value = 50..=500;
        let requests = Requests::new(&plan);
        let lengths: Vec<usize> = (0..10_000).map(|key| requests.length(key)).collect();
        assert!(lengths.iter().all(|length| (50..=500).contains(length)));
        let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
        assert!((265.0..285.0).contains(&mean), "{mean}");
    }
}
