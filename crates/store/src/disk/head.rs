//! The head of an entry's file, which precedes the body.
//!
//! ```text
//!   0  "TIDEGATE"                         zeros until the entry is complete
//!   8  version u32 · checksum of the head u32
//!  16  checksum of the body u32 · offset of the body u32 · length of the body u64
//!  32  lengths of key, group, tags, vary and text, u32 each · flags u32
//!  56  variant
//!  72  times, two copies: each with a sequence number and a checksum (48 bytes)
//! 168  zeros
//! 336  "\nKEY: " key "\n" · group · tags · vary · text
//! ```
//!
//! Numbers are little-endian. The key is at the same offset as in nginx's files (`nginx.rs`), so
//! that `grep` finds it. nginx reads the first eight bytes as a foreign version, treats the entry
//! as missing and replaces it.
//!
//! Times are replaced in place while other threads and processes read the file. Each update
//! overwrites the older copy, so that at least one copy is intact at any time.

use std::ops::Range;

use bytes::{Buf, Bytes};
use crc32fast::Hasher;

use super::id::EntryId;
use super::nginx;

/// Length of the part before the key, as in nginx's files.
pub(super) const FIXED_LENGTH: usize = 336;

/// The text before the key.
pub(super) const KEY_PREFIX: &[u8] = b"\nKEY: ";

/// Maximum length of an entry's head, in bytes.
pub const HEAD_LENGTH_MAX: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"TIDEGATE";
const VERSION: u32 = 1;

const CHECKSUM_AT: usize = 12;
const BODY_AT: Range<usize> = 16..32;
const TIMES_AT: usize = 72;
const TIMES_LENGTH: usize = 48;
const TIMES_END: usize = TIMES_AT + 2 * TIMES_LENGTH;

const HAS_VARIANT: u32 = 1;

/// Why a file is not a valid entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The file is not a regular file, but for instance a link or a pipe.
    NoFile,
    /// The file ends within the head.
    Short,
    /// The file has another version, or was never finished.
    Version,
    /// The lengths in the head are inconsistent.
    Layout,
    /// The checksum of the head, or those of both copies of the times, do not match.
    HeadChecksum,
    /// The entry belongs to another key.
    Key,
    /// An nginx entry with an unsupported head, for instance HTTP/2 frames.
    Form,
    /// The length of the body differs from the head's.
    BodyLength,
    /// The checksum of the body does not match.
    BodyChecksum,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Fault::NoFile => "is not a regular file",
            Fault::Short => "is too small",
            Fault::Version => "version mismatch",
            Fault::Layout => "has an inconsistent head",
            Fault::HeadChecksum => "has a damaged head",
            Fault::Key => "has md5 collision",
            Fault::Form => "has a head in a form that is not read",
            Fault::BodyLength => "has a body of another length than its head says",
            Fault::BodyChecksum => "has a damaged body",
        })
    }
}

/// The times that decide about an entry's freshness. The store keeps them and does not interpret
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryTimes {
    /// Milliseconds since 1970 until which the entry is fresh.
    pub valid_until: i64,
    /// When the response was received, in milliseconds since 1970.
    pub received: i64,
    /// The response's age when it was received, in seconds.
    pub age: u32,
    /// How long after it became stale the entry may be served while it is updated, in seconds.
    pub updating: u32,
    /// How long after it became stale the entry may be served instead of an error, in seconds.
    pub error: u32,
    /// Flags of the caller.
    pub flags: u32,
}

/// The metadata of an entry that is to be stored.
#[derive(Clone, Debug, Default)]
pub struct NewHead {
    /// The key of the entry.
    pub key: Bytes,
    /// A name shared by entries that are purged together. If empty, the key is used.
    pub group: Bytes,
    /// Further names for purging several entries.
    pub tags: Vec<Bytes>,
    /// The response's `Vary` field, in the caller's encoding.
    pub vary: Bytes,
    /// The id of this variant, if the entry has variants.
    pub variant: Option<EntryId>,
    /// The entry's times.
    pub times: EntryTimes,
    /// Data that the caller gets back with a hit.
    pub text: Bytes,
    /// Length of the body, if it is known.
    pub body_length: Option<u64>,
}

/// The program that wrote an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Tidegate.
    Own,
    /// nginx: the text is the head of an HTTP/1 response or of a CGI program.
    Nginx,
}

/// The metadata of a stored entry. Its parts share one buffer.
#[derive(Clone, Debug)]
pub struct Head {
    /// The key of the entry.
    pub key: Bytes,
    /// See [`NewHead::group`].
    pub group: Bytes,
    pub(super) tags: Bytes,
    /// See [`NewHead::vary`].
    pub vary: Bytes,
    /// See [`NewHead::variant`].
    pub variant: Option<EntryId>,
    /// The entry's times.
    pub times: EntryTimes,
    /// See [`NewHead::text`].
    pub text: Bytes,
    /// Length of the body; `None` only while the entry is being filled.
    pub body_length: Option<u64>,
    /// The program that wrote the entry.
    pub origin: Origin,
}

impl Head {
    /// The tags of the entry.
    pub fn tags(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.tags[..];
        std::iter::from_fn(move || {
            let length = usize::from(rest.try_get_u16_le().ok()?);
            let (tag, behind) = rest.split_at_checked(length)?;
            rest = behind;
            Some(tag)
        })
    }
}

/// The head is longer than [`HEAD_LENGTH_MAX`], or a tag is longer than 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// An encoded head. `finished` adds the length of the body and the checksums.
#[derive(Debug)]
pub(super) struct Encoded {
    fixed: [u8; FIXED_LENGTH],
    rest: Bytes,
    pub(super) head: Head,
}

impl Encoded {
    pub(super) fn new(new: NewHead) -> Result<Encoded, TooLarge> {
        let mut tags = Vec::new();
        for tag in &new.tags {
            let length = u16::try_from(tag.len()).map_err(|_| TooLarge)?;
            tags.extend_from_slice(&length.to_le_bytes());
            tags.extend_from_slice(tag);
        }
        let parts: [&[u8]; 5] = [&new.key, &new.group, &tags, &new.vary, &new.text];
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let body_start = FIXED_LENGTH + KEY_PREFIX.len() + 1 + length;
        if body_start > HEAD_LENGTH_MAX {
            return Err(TooLarge);
        }
        let mut rest = Vec::with_capacity(body_start - FIXED_LENGTH);
        rest.extend_from_slice(KEY_PREFIX);
        let [key, others @ ..] = parts;
        rest.extend_from_slice(key);
        rest.push(b'\n');
        others.iter().for_each(|part| rest.extend_from_slice(part));
        let rest = Bytes::from(rest);

        let fixed = Fixed {
            body_start: body_start as u32,
            lengths: parts.map(|part| part.len() as u32),
            variant: new.variant,
            ..Fixed::default()
        };
        let mut bytes = fixed.encode();
        let times = encode_times(&new.times, 1);
        bytes[TIMES_AT..][..TIMES_LENGTH].copy_from_slice(&times);

        let layout = fixed.layout().map_err(|_| TooLarge)?;
        let [key, group, tags, vary, text] = layout.map(|part| {
            // The ranges of the layout are offsets in the file.
            rest.slice(part.start - FIXED_LENGTH..part.end - FIXED_LENGTH)
        });
        let head = Head {
            key,
            group,
            tags,
            vary,
            variant: new.variant,
            times: new.times,
            text,
            body_length: new.body_length,
            origin: Origin::Own,
        };
        Ok(Encoded {
            fixed: bytes,
            rest,
            head,
        })
    }

    pub(super) fn body_start(&self) -> u64 {
        (FIXED_LENGTH + self.rest.len()) as u64
    }

    /// What the first write of an unfinished entry writes: the head with zeros in place of the
    /// fixed part, so that the file is not yet a valid entry.
    pub(super) fn unfinished(&self) -> [Bytes; 2] {
        [vec![0; FIXED_LENGTH].into(), self.rest.clone()]
    }

    pub(super) fn finished(&mut self, length: u64, checksum: u32) -> [Bytes; 2] {
        let body = &mut self.fixed[BODY_AT];
        body[..4].copy_from_slice(&checksum.to_le_bytes());
        body[8..].copy_from_slice(&length.to_le_bytes());
        let checksum = head_checksum(&self.fixed, &self.rest);
        self.fixed[CHECKSUM_AT..][..4].copy_from_slice(&checksum.to_le_bytes());
        [self.fixed.to_vec().into(), self.rest.clone()]
    }
}

/// The decoded fixed part, without the times.
#[derive(Debug, Default)]
struct Fixed {
    checksum: u32,
    body_checksum: u32,
    body_start: u32,
    body_length: u64,
    /// Lengths of key, group, tags, vary and text.
    lengths: [u32; 5],
    variant: Option<EntryId>,
}

impl Fixed {
    fn encode(&self) -> [u8; FIXED_LENGTH] {
        let mut bytes = Vec::with_capacity(FIXED_LENGTH);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.checksum.to_le_bytes());
        bytes.extend_from_slice(&self.body_checksum.to_le_bytes());
        bytes.extend_from_slice(&self.body_start.to_le_bytes());
        bytes.extend_from_slice(&self.body_length.to_le_bytes());
        for length in self.lengths {
            bytes.extend_from_slice(&length.to_le_bytes());
        }
        let flags = if self.variant.is_some() {
            HAS_VARIANT
        } else {
            0
        };
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(&self.variant.map_or([0; 16], |id| id.0));
        let mut fixed = [0; FIXED_LENGTH];
        fixed[..bytes.len()].copy_from_slice(&bytes);
        fixed
    }

    fn decode(fixed: &[u8; FIXED_LENGTH]) -> Result<Fixed, Fault> {
        let mut rest = fixed.strip_prefix(MAGIC).ok_or(Fault::Version)?;
        if rest.get_u32_le() != VERSION {
            return Err(Fault::Version);
        }
        let mut decoded = Fixed {
            checksum: rest.get_u32_le(),
            body_checksum: rest.get_u32_le(),
            body_start: rest.get_u32_le(),
            body_length: rest.get_u64_le(),
            ..Fixed::default()
        };
        for length in &mut decoded.lengths {
            *length = rest.get_u32_le();
        }
        let flags = rest.get_u32_le();
        let mut variant = [0; 16];
        rest.copy_to_slice(&mut variant);
        decoded.variant = (flags & HAS_VARIANT != 0).then_some(EntryId(variant));
        Ok(decoded)
    }

    /// The ranges of key, group, tags, vary and text in the file.
    fn layout(&self) -> Result<[Range<usize>; 5], Fault> {
        let mut at = FIXED_LENGTH + KEY_PREFIX.len();
        let mut is_key = true;
        let layout = self.lengths.map(|length| {
            let start = at;
            let end = start.saturating_add(length as usize);
            // A line feed follows the key.
            at = end.saturating_add(usize::from(is_key));
            is_key = false;
            start..end
        });
        let is_whole = at == self.body_start as usize && at <= HEAD_LENGTH_MAX;
        is_whole.then_some(layout).ok_or(Fault::Layout)
    }
}

/// The checksum of a head, without the checksum field and the times.
fn head_checksum(fixed: &[u8; FIXED_LENGTH], rest: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&fixed[..CHECKSUM_AT]);
    hasher.update(&fixed[CHECKSUM_AT + 4..TIMES_AT]);
    hasher.update(&fixed[TIMES_END..]);
    hasher.update(rest);
    hasher.finalize()
}

/// Recomputes the checksum of a head.
#[cfg(feature = "testing")]
pub(super) fn seal(file: &mut [u8]) {
    let Some((fixed, rest)) = file.split_first_chunk_mut::<FIXED_LENGTH>() else {
        return;
    };
    let Ok(decoded) = Fixed::decode(fixed) else {
        return;
    };
    let length = (decoded.body_start as usize).saturating_sub(FIXED_LENGTH);
    let checksum = head_checksum(fixed, rest.get(..length).unwrap_or(rest));
    fixed[CHECKSUM_AT..][..4].copy_from_slice(&checksum.to_le_bytes());
}

fn encode_times(times: &EntryTimes, sequence: u32) -> [u8; TIMES_LENGTH] {
    let mut bytes = [0; TIMES_LENGTH];
    let mut put = |at: usize, part: &[u8]| bytes[at..][..part.len()].copy_from_slice(part);
    put(4, &sequence.to_le_bytes());
    put(8, &times.valid_until.to_le_bytes());
    put(16, &times.received.to_le_bytes());
    put(24, &times.age.to_le_bytes());
    put(28, &times.updating.to_le_bytes());
    put(32, &times.error.to_le_bytes());
    put(36, &times.flags.to_le_bytes());
    let checksum = crc32fast::hash(&bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Decodes one copy of the times and its sequence number; `None` if its checksum does not match.
fn decode_times(bytes: &[u8; TIMES_LENGTH]) -> Option<(u32, EntryTimes)> {
    let mut rest = &bytes[..];
    let checksum = rest.get_u32_le();
    if checksum != crc32fast::hash(rest) {
        return None;
    }
    let sequence = rest.get_u32_le();
    let times = EntryTimes {
        valid_until: rest.get_i64_le(),
        received: rest.get_i64_le(),
        age: rest.get_u32_le(),
        updating: rest.get_u32_le(),
        error: rest.get_u32_le(),
        flags: rest.get_u32_le(),
    };
    (sequence > 0).then_some((sequence, times))
}

fn copies(fixed: &[u8; FIXED_LENGTH]) -> [Option<(u32, EntryTimes)>; 2] {
    let (copies, _) = fixed[TIMES_AT..TIMES_END].as_chunks::<TIMES_LENGTH>();
    [0, 1].map(|place| copies.get(place).and_then(decode_times))
}

/// The newer valid copy of the times.
fn current_times(fixed: &[u8; FIXED_LENGTH]) -> Option<(u32, EntryTimes)> {
    let [first, second] = copies(fixed);
    match (first, second) {
        (Some(a), Some(b)) => Some(if a.0 >= b.0 { a } else { b }),
        (first, second) => first.or(second),
    }
}

/// Encodes new times for a file with this head. Returns the offset in the file and the bytes.
pub(super) fn replace_times(head: &[u8], times: &EntryTimes) -> Result<(u64, Bytes), Fault> {
    let fixed = head.first_chunk().ok_or(Fault::Short)?;
    let (sequence, _) = current_times(fixed).ok_or(Fault::HeadChecksum)?;
    let holds = |copy: &Option<(u32, EntryTimes)>| copy.is_some_and(|copy| copy.0 == sequence);
    let place = usize::from(holds(&copies(fixed)[0]));
    let at = TIMES_AT + place * TIMES_LENGTH;
    let bytes = encode_times(times, sequence.wrapping_add(1).max(1));
    Ok((at as u64, bytes.to_vec().into()))
}

/// A head that has been parsed.
#[derive(Debug)]
pub(super) struct ParsedHead {
    pub(super) head: Head,
    /// The range of the body in the file.
    pub(super) body: Range<u64>,
    /// `None` for nginx's entries, which have no checksum.
    pub(super) body_checksum: Option<u32>,
}

/// How much of a file must be read to parse its head. `start` must be at least [`FIXED_LENGTH`]
/// bytes, unless the file is shorter.
pub(super) fn length(start: &[u8]) -> Result<usize, Fault> {
    let fixed = start.first_chunk().ok_or(Fault::Short)?;
    if nginx::is_version(fixed) {
        return nginx::length(fixed);
    }
    let length = Fixed::decode(fixed)?.body_start as usize;
    let is_possible = (FIXED_LENGTH..=HEAD_LENGTH_MAX).contains(&length);
    is_possible.then_some(length).ok_or(Fault::Layout)
}

/// Parses a head. `bytes` must contain at least [`length`] bytes of the file; `file_length` is the
/// file's length.
pub(super) fn parse(bytes: &Bytes, key: &[u8], file_length: u64) -> Result<ParsedHead, Fault> {
    let fixed = bytes.first_chunk().ok_or(Fault::Short)?;
    if nginx::is_version(fixed) {
        return nginx::parse(bytes, key, file_length);
    }
    let decoded = Fixed::decode(fixed)?;
    let layout = decoded.layout()?;
    let body_start = decoded.body_start as usize;
    let rest = bytes.get(FIXED_LENGTH..body_start).ok_or(Fault::Short)?;
    if head_checksum(fixed, rest) != decoded.checksum {
        return Err(Fault::HeadChecksum);
    }
    let (_, times) = current_times(fixed).ok_or(Fault::HeadChecksum)?;
    let [key_at, group, tags, vary, text] = layout;
    if bytes.get(key_at.clone()) != Some(key) {
        return Err(Fault::Key);
    }
    let body = body_start as u64..file_length;
    if body.start.checked_add(decoded.body_length) != Some(file_length) {
        return Err(Fault::BodyLength);
    }
    let head = Head {
        key: bytes.slice(key_at),
        group: bytes.slice(group),
        tags: bytes.slice(tags),
        vary: bytes.slice(vary),
        variant: decoded.variant,
        times,
        text: bytes.slice(text),
        body_length: Some(decoded.body_length),
        origin: Origin::Own,
    };
    Ok(ParsedHead {
        head,
        body,
        body_checksum: Some(decoded.body_checksum),
    })
}

/// The key in a head of either format, for walks through a folder. The rest of the head is not
/// validated.
pub(super) fn key_of(bytes: &[u8]) -> Option<&[u8]> {
    let fixed = bytes.first_chunk()?;
    let length = if nginx::is_version(fixed) {
        nginx::key_length(fixed)?
    } else {
        Fixed::decode(fixed).ok()?.lengths[0] as usize
    };
    let rest = bytes.get(FIXED_LENGTH..)?.strip_prefix(KEY_PREFIX)?;
    let (key, behind) = rest.split_at_checked(length)?;
    behind.starts_with(b"\n").then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_head() -> NewHead {
        NewHead {
            key: "http://127.0.0.1/a?b".into(),
            group: "group".into(),
            tags: vec!["one".into(), "".into(), "three".into()],
            vary: "accept-encoding".into(),
            variant: Some(EntryId::of(&[b"gzip"])),
            times: EntryTimes {
                valid_until: 1_700_000_000_123,
                received: -1,
                age: 2,
                updating: 3,
                error: 4,
                flags: 5,
            },
            text: "HTTP/1.1 200 OK\r\n\r\n".into(),
            body_length: None,
        }
    }

    /// The bytes of a finished file with this body.
    fn file(body: &[u8]) -> Vec<u8> {
        let mut encoded = Encoded::new(new_head()).unwrap();
        let head = encoded.finished(body.len() as u64, crc32fast::hash(body));
        [&head[0], &head[1], body].concat()
    }

    fn parsed(file: &[u8]) -> Result<ParsedHead, Fault> {
        let needed = length(file)?;
        if file.len() < needed {
            return Err(Fault::Short);
        }
        let head = Bytes::copy_from_slice(&file[..needed]);
        parse(&head, &new_head().key, file.len() as u64)
    }

    #[test]
    fn head_is_read_as_it_was_written() {
        let parsed = parsed(&file(b"body")).unwrap();
        let (head, new) = (parsed.head, new_head());
        assert_eq!((head.key, head.group), (new.key, new.group));
        assert_eq!((head.vary, head.variant), (new.vary, new.variant));
        assert_eq!((head.text, head.times), (new.text, new.times));
        assert_eq!(head.body_length, Some(4));
        let tags: Vec<&[u8]> = vec![b"one", b"", b"three"];
        let head = Encoded::new(new_head()).unwrap().head;
        assert_eq!(head.tags().collect::<Vec<_>>(), tags);
        assert_eq!(parsed.body.end - parsed.body.start, 4);
        assert_eq!(parsed.body_checksum, Some(crc32fast::hash(b"body")));
    }

    /// nginx treats a file of another version as missing only if the file is long enough for the
    /// key.
    #[test]
    fn nginx_sees_another_version_and_the_key() {
        let file = file(b"");
        let version = u64::from_le_bytes(*file.first_chunk().unwrap());
        assert_ne!(version, 5);
        assert!(file.len() >= 343 + new_head().key.len());
        let line = [KEY_PREFIX, &new_head().key, b"\n"].concat();
        assert!(file[FIXED_LENGTH..].starts_with(&line));
        assert_eq!(key_of(&file), Some(&new_head().key[..]));
    }

    #[test]
    fn file_that_is_cut_off_anywhere_is_no_entry() {
        let file = file(b"body");
        for end in 0..file.len() {
            assert!(parsed(&file[..end]).is_err(), "{end}");
        }
        let longer = [&file[..], b"x"].concat();
        assert_eq!(parsed(&longer).unwrap_err(), Fault::BodyLength);
    }

    /// One copy of the times is valid and the other is empty. Whichever bit is flipped, the file is
    /// either refused or read with the original content.
    #[test]
    fn every_flipped_bit_of_a_head_is_noticed() {
        let file = file(b"body");
        let times = TIMES_AT..TIMES_AT + TIMES_LENGTH;
        let second = times.end..TIMES_END;
        for bit in 0..(file.len() - 4) * 8 {
            let mut flipped = file.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match parsed(&flipped) {
                Err(_) => {}
                Ok(parsed) => {
                    assert!(second.contains(&(bit / 8)), "bit {bit}");
                    assert_eq!(parsed.head.times, new_head().times);
                }
            }
        }
    }

    #[test]
    fn unfinished_file_is_no_entry() {
        let encoded = Encoded::new(new_head()).unwrap();
        let file = encoded.unfinished().concat();
        assert_eq!(file.len() as u64, encoded.body_start());
        assert_eq!(parsed(&file).unwrap_err(), Fault::Version);
    }

    #[test]
    fn times_are_replaced_in_turn_and_one_copy_is_always_whole() {
        let mut file = file(b"body");
        let mut before = new_head().times;
        for number in 0..5 {
            let times = EntryTimes {
                valid_until: number,
                ..before
            };
            let (at, bytes) = replace_times(&file, &times).unwrap();
            let place = &mut file[at as usize..][..bytes.len()];
            // If the write is interrupted in the middle, the previous times stay valid.
            let middle = 8;
            place[..middle].copy_from_slice(&bytes[..middle]);
            assert_eq!(parsed(&file).unwrap().head.times, before);
            file[at as usize..][..bytes.len()].copy_from_slice(&bytes);
            assert_eq!(parsed(&file).unwrap().head.times, times);
            before = times;
        }
    }

    #[test]
    fn too_long_heads_are_refused() {
        let long = NewHead {
            text: vec![b'a'; HEAD_LENGTH_MAX].into(),
            ..new_head()
        };
        assert!(matches!(Encoded::new(long), Err(TooLarge)));
        let tagged = NewHead {
            tags: vec![vec![b'a'; 1 << 16].into()],
            ..new_head()
        };
        assert!(matches!(Encoded::new(tagged), Err(TooLarge)));
    }
}
