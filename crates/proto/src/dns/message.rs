//! The bytes of a message: names with their compression, and records. RFC 1035, sections 3.1, 3.2
//! and 4.1.
//!
//! Every length and every pointer is the sender's: whatever the bytes are, reading them ends with a
//! value or with nothing, in time linear to the message but for names, whose pointers are bounded.

use std::fmt;

/// Longest name in a message, in bytes: what lets its question fit into the 512 bytes that any
/// server takes (RFC 1035, section 4.2.1). That a name has 255 bytes at most (section 2.3.4) is
/// left to the server that is asked, as with nginx.
const NAME_SIZE_MAX: usize = 512 - HEADER_SIZE - 4;

/// Longest label: the two uppermost bits of its length mark pointers.
const LABEL_SIZE_MAX: u8 = 63;

/// Pointers that are followed within one name (nginx's bound).
const POINTERS_MAX: usize = 128;

/// Bytes before the first question.
pub(super) const HEADER_SIZE: usize = 12;

/// The name of a host: labels of 1 to 63 bytes. Equal to itself in any case of letters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostName(
    /// Each label behind its length, in small letters, without the empty one at the end.
    Box<[u8]>,
);

impl HostName {
    /// Reads `www.example.com`, with or without a dot at its end. `None` where it can be no name.
    pub fn parse(text: &[u8]) -> Option<HostName> {
        let text = text.strip_suffix(b".").unwrap_or(text);
        let mut labels = Vec::with_capacity(text.len() + 1);
        for label in text.split(|byte| *byte == b'.') {
            push(&mut labels, label)?;
        }
        Some(HostName(labels.into()))
    }

    /// Whether it is the name of the root, which no host has.
    pub(super) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends it to a message.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
        out.push(0);
    }

    fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || {
            let (length, behind) = rest.split_first()?;
            let (label, behind) = behind.split_at_checked(usize::from(*length))?;
            rest = behind;
            Some(label)
        })
    }
}

/// Adds a label to those of a name, if it is one and the name takes it.
fn push(labels: &mut Vec<u8>, label: &[u8]) -> Option<()> {
    let length = u8::try_from(label.len()).ok()?;
    let fits = labels.len() + label.len() + 2 <= NAME_SIZE_MAX;
    if !fits || !(1..=LABEL_SIZE_MAX).contains(&length) {
        return None;
    }
    labels.push(length);
    labels.extend(label.iter().map(u8::to_ascii_lowercase));
    Some(())
}

impl fmt::Display for HostName {
    /// Without a dot at its end; bytes that are not printable are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, label) in self.labels().enumerate() {
            if index > 0 {
                f.write_str(".")?;
            }
            write!(f, "{}", label.escape_ascii())?;
        }
        Ok(())
    }
}

/// A record, its data still in the message.
pub(super) struct Record {
    pub(super) name: HostName,
    pub(super) kind: u16,
    pub(super) class: u16,
    pub(super) ttl: u32,
    data_at: usize,
    data_length: usize,
}

/// Reads a message from its beginning on.
pub(super) struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Begins at the first byte.
    pub(super) fn new(message: &'a [u8]) -> Reader<'a> {
        Reader { message, at: 0 }
    }

    fn take<const COUNT: usize>(&mut self) -> Option<[u8; COUNT]> {
        let taken = self.message.get(self.at..)?.first_chunk()?;
        self.at += COUNT;
        Some(*taken)
    }

    /// The next two bytes.
    pub(super) fn number16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    /// The next four bytes.
    pub(super) fn number32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    /// The next name. Pointers lead anywhere in the message; what follows is read behind the first
    /// of them.
    pub(super) fn name(&mut self) -> Option<HostName> {
        const POINTER: u8 = 0xc0;
        let mut labels = Vec::new();
        let mut behind = None;
        let mut pointers = 0;
        loop {
            let [length] = self.take()?;
            if length == 0 {
                break;
            }
            if length & POINTER == POINTER {
                let [low] = self.take()?;
                pointers += 1;
                if pointers > POINTERS_MAX {
                    return None;
                }
                behind.get_or_insert(self.at);
                self.at = usize::from(u16::from_be_bytes([length & !POINTER, low]));
                continue;
            }
            let end = self.at + usize::from(length);
            push(&mut labels, self.message.get(self.at..end)?)?;
            self.at = end;
        }
        self.at = behind.unwrap_or(self.at);
        Some(HostName(labels.into()))
    }

    pub(super) fn record(&mut self) -> Option<Record> {
        let name = self.name()?;
        let (kind, class) = (self.number16()?, self.number16()?);
        let ttl = self.number32()?;
        let data_length = usize::from(self.number16()?);
        let data_at = self.at;
        self.at += data_length;
        (self.at <= self.message.len()).then_some(Record {
            name,
            kind,
            class,
            ttl,
            data_at,
            data_length,
        })
    }

    /// The next `count` records.
    pub(super) fn records(&mut self, count: u16) -> Option<Vec<Record>> {
        (0..count).map(|_| self.record()).collect()
    }

    /// The data of a record that was read here, if it has this length.
    pub(super) fn data<const COUNT: usize>(&self, record: &Record) -> Option<[u8; COUNT]> {
        let end = record.data_at + record.data_length;
        self.message.get(record.data_at..end)?.try_into().ok()
    }

    /// Reads on in the data of a record.
    pub(super) fn inside(&self, record: &Record) -> Reader<'a> {
        Reader {
            message: self.message,
            at: record.data_at,
        }
    }
}
