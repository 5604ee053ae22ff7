//! The encoding of DNS messages: names with compression, and records (RFC 1035, sections 3.1, 3.2
//! and 4.1).
//!
//! All lengths and pointers come from the sender. Parsing always terminates, with a value or
//! `None`, in time linear in the size of the message, except for names, whose compression pointers
//! are limited in number.

use std::fmt;

/// Maximum length of a name in a message, in bytes: a query must fit into the 512 bytes that every
/// server accepts (RFC 1035, section 4.2.1). As in nginx, the limit of 255 bytes (section 2.3.4) is
/// left to the name server.
const NAME_SIZE_MAX: usize = 512 - HEADER_SIZE - 4;

/// Maximum length of a label, in bytes: the two highest bits of the length mark pointers.
const LABEL_SIZE_MAX: u8 = 63;

/// Limit of compression pointers within one name, as in nginx.
const POINTERS_MAX: usize = 128;

/// Length of a message's header, in bytes.
pub(super) const HEADER_SIZE: usize = 12;

/// A host name: labels of 1 to 63 bytes. Names that differ only in case are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostName(
    /// Each label preceded by its length, in lower case, without the empty label at the end.
    Box<[u8]>,
);

impl HostName {
    /// Parses `www.example.com`, with or without a trailing dot. `None` if the name is invalid.
    pub fn parse(text: &[u8]) -> Option<HostName> {
        let text = text.strip_suffix(b".").unwrap_or(text);
        let mut labels = Vec::with_capacity(text.len() + 1);
        for label in text.split(|byte| *byte == b'.') {
            push(&mut labels, label)?;
        }
        Some(HostName(labels.into()))
    }

    /// Whether this is the root, which is not a host.
    pub(super) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends the name to a message.
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

/// Appends a label to a name; `None` if the label is invalid or the name becomes too long.
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
    /// Without a trailing dot; non-printable bytes are escaped.
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

/// A record, whose data are a range of the message.
pub(super) struct Record {
    pub(super) name: HostName,
    pub(super) kind: u16,
    pub(super) class: u16,
    pub(super) ttl: u32,
    data_at: usize,
    data_length: usize,
}

/// Parses a message sequentially.
pub(super) struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the beginning of a message.
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

    /// The next name. Compression pointers may refer to any part of the message; the reader
    /// continues after the first pointer.
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

    /// The data of a record of this message, if they have this length.
    pub(super) fn data<const COUNT: usize>(&self, record: &Record) -> Option<[u8; COUNT]> {
        let end = record.data_at + record.data_length;
        self.message.get(record.data_at..end)?.try_into().ok()
    }

    /// A reader at the beginning of a record's data.
    pub(super) fn inside(&self, record: &Record) -> Reader<'a> {
        Reader {
            message: self.message,
            at: record.data_at,
        }
    }
}
