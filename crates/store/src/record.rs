//! The format of a record: an object in a segment. A head is followed by key and value, or by the
//! number of an extent. If the object has tags, the tags and their length in two bytes follow the
//! value.
//!
//! The head has 22 bytes, 26 where the object has flags: CAS 8, expiry 4, last use 4, length of the
//! key 2, length of the value 3, marks 1. Records begin at multiples of [`UNIT`].

use crate::Seconds;

/// Alignment of records, in bytes.
pub(crate) const UNIT: usize = 4;

/// Length of a head without flags, in bytes.
const HEAD: usize = 22;

const FLAGS: usize = 4;

const READ: u8 = 1;
const DEAD: u8 = 2;
const HAS_FLAGS: u8 = 4;
const IS_EXTENT: u8 = 8;
/// The first of the three bits for the caller.
const CALLERS: u32 = 4;
const CALLERS_MASK: u8 = 7;
const HAS_TAGS: u8 = 0x80;

const AT_USED: usize = 12;

const AT_MARKS: usize = 21;

/// A parsed head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) cas: u64,
    /// The time of expiry; 0 means never.
    pub(crate) expires: Seconds,
    /// The time of the last read or write.
    pub(crate) used: Seconds,
    pub(crate) key_length: u16,
    /// Length of the value in the record, or the number of its extent.
    pub(crate) value: u32,
    pub(crate) flags: u32,
    /// Whether the object has been read.
    pub(crate) is_read: bool,
    pub(crate) is_dead: bool,
    pub(crate) is_extent: bool,
    /// Whether tags follow the value; the length of the value includes them.
    pub(crate) has_tags: bool,
    /// Three bits for the caller's use.
    pub(crate) marks: u8,
}

impl Head {
    /// Parses the head at the beginning of a record.
    #[inline(always)] // by its fields; as a whole it would be copied through memory
    pub(crate) fn read(record: &[u8]) -> Head {
        let marks = record[AT_MARKS];
        let mut flags = 0;
        if marks & HAS_FLAGS != 0 {
            flags = u32_at(record, HEAD);
        }
        let value = [record[18], record[19], record[20], 0];
        Head {
            cas: u64::from(u32_at(record, 0)) | u64::from(u32_at(record, 4)) << 32,
            expires: u32_at(record, 8),
            used: u32_at(record, 12),
            key_length: u16::from_le_bytes([record[16], record[17]]),
            value: u32::from_le_bytes(value),
            flags,
            is_read: marks & READ != 0,
            is_dead: marks & DEAD != 0,
            is_extent: marks & IS_EXTENT != 0,
            has_tags: marks & HAS_TAGS != 0,
            marks: marks >> CALLERS & CALLERS_MASK,
        }
    }

    /// Writes the head at the beginning of its record.
    pub(crate) fn write(&self, record: &mut [u8]) {
        record[..8].copy_from_slice(&self.cas.to_le_bytes());
        record[8..12].copy_from_slice(&self.expires.to_le_bytes());
        record[12..16].copy_from_slice(&self.used.to_le_bytes());
        record[16..18].copy_from_slice(&self.key_length.to_le_bytes());
        record[18..21].copy_from_slice(&self.value.to_le_bytes()[..3]);
        let mut marks = (self.marks & CALLERS_MASK) << CALLERS;
        for (is_set, mark) in [
            (self.is_read, READ),
            (self.is_dead, DEAD),
            (self.flags != 0, HAS_FLAGS),
            (self.is_extent, IS_EXTENT),
            (self.has_tags, HAS_TAGS),
        ] {
            if is_set {
                marks |= mark;
            }
        }
        record[AT_MARKS] = marks;
        if self.flags != 0 {
            record[HEAD..HEAD + FLAGS].copy_from_slice(&self.flags.to_le_bytes());
        }
    }

    /// Length of the head, after which key and value begin.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        match self.flags {
            0 => HEAD,
            _ => HEAD + FLAGS,
        }
    }

    /// Length of the record in its segment, in bytes.
    pub(crate) fn record_length(&self) -> usize {
        let mut body = 0;
        if !self.is_extent {
            body = usize::from(self.key_length) + self.value as usize;
        }
        (self.length() + body).next_multiple_of(UNIT)
    }

    /// The key of a record without an extent.
    #[inline]
    pub(crate) fn key<'a>(&self, record: &'a [u8]) -> &'a [u8] {
        let begin = self.length();
        &record[begin..begin + usize::from(self.key_length)]
    }

    /// The value of a record without an extent.
    #[inline]
    pub(crate) fn value<'a>(&self, record: &'a [u8]) -> &'a [u8] {
        let begin = self.length() + usize::from(self.key_length);
        &record[begin..begin + self.value as usize]
    }

    /// The time of expiry; `None` means never.
    pub(crate) fn expiry(&self) -> Option<Seconds> {
        (self.expires != 0).then_some(self.expires)
    }

    #[inline]
    pub(crate) fn is_expired(&self, now: Seconds) -> bool {
        self.expires != 0 && self.expires <= now
    }
}

/// Whether a record refers to an extent, which then contains the key.
#[inline]
pub(crate) fn is_extent(record: &[u8]) -> bool {
    record[AT_MARKS] & IS_EXTENT != 0
}

/// Whether a record without an extent has this key; reads only that part of the head.
#[inline]
pub(crate) fn has_key(record: &[u8], key: &[u8]) -> bool {
    let head = &record[..HEAD];
    let mut begin = HEAD;
    if head[AT_MARKS] & HAS_FLAGS != 0 {
        begin += FLAGS;
    }
    let length = usize::from(u16::from_le_bytes([head[16], head[17]]));
    length == key.len() && record[begin..begin + length] == *key
}

/// Marks a record as used; changes only that part of the head.
#[inline]
pub(crate) fn note_use(record: &mut [u8], now: Seconds) {
    record[AT_USED..AT_USED + 4].copy_from_slice(&now.to_le_bytes());
    record[AT_MARKS] |= READ;
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let plain = Head {
            cas: u64::MAX - 3,
            expires: 7,
            used: u32::MAX,
            key_length: 3,
            value: 2,
            flags: 0,
            is_read: true,
            is_dead: false,
            is_extent: false,
            has_tags: false,
            marks: 7,
        };
        let mut record = [0; 40];
        plain.write(&mut record);
        assert_eq!(Head::read(&record), plain);
        assert_eq!(plain.record_length(), 28);
        record[22..27].copy_from_slice(b"keyva");
        assert_eq!(plain.key(&record), b"key");
        assert_eq!(plain.value(&record), b"va");
        let other = Head {
            flags: 0x0102_0304,
            is_read: false,
            is_dead: true,
            is_extent: true,
            has_tags: true,
            marks: 2,
            value: (1 << 24) - 1,
            ..plain
        };
        other.write(&mut record);
        assert_eq!(Head::read(&record), other);
        assert_eq!(other.record_length(), 28);
    }
}
