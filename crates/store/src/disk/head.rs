//! What stands before the body in an entry's file.
//!
//! ```text
//!   0  "TIDEGATE"                         zeros until the entry is whole
//!   8  version u32 · checksum of the head u32
//!  16  checksum of the body u32 · where the body begins u32 · length of the body u64
//!  32  lengths of key, group, tags, vary and text, u32 each · flags u32
//!  56  variant
//!  72  times, twice: each with a sequence number and a checksum (48 bytes)
//! 168  zeros
//! 336  "\nKEY: " key "\n" · group · tags · vary · text
//! ```
//!
//! Numbers are little-endian. The key stands where nginx has it (`nginx.rs`), for those who search
//! a folder with grep; nginx itself reads the first eight bytes as a version that is not its own,
//! takes the entry as missing and replaces it.
//!
//! Times are replaced in place while others read: the older copy is overwritten, so that one of
//! the two is whole whenever the file is read.

use std::ops::Range;

use bytes::{Buf, Bytes};
use crc32fast::Hasher;

use super::id::EntryId;
use super::nginx;

/// Length of what stands before the key, as in nginx's files.
pub(super) const FIXED_LENGTH: usize = 336;

/// What stands before the key.
pub(super) const KEY_PREFIX: &[u8] = b"\nKEY: ";

/// The longest head of an entry, in bytes.
pub const HEAD_LENGTH_MAX: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"TIDEGATE";
const VERSION: u32 = 1;

const CHECKSUM_AT: usize = 12;
const BODY_AT: Range<usize> = 16..32;
const TIMES_AT: usize = 72;
const TIMES_LENGTH: usize = 48;
const TIMES_END: usize = TIMES_AT + 2 * TIMES_LENGTH;

const HAS_VARIANT: u32 = 1;

/// Why a file is not the entry that it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is a link, a pipe or something else that is no file.
    NoFile,
    /// It ends within the head.
    Short,
    /// It is of another version, or has never been finished.
    Version,
    /// Lengths that do not fit together.
    Layout,
    /// The checksum of the head or of its times does not fit.
    HeadChecksum,
    /// It is an entry of another key.
    Key,
    /// An entry of nginx in a form that is not read, such as the frames of HTTP/2.
    Form,
    /// The body is shorter or longer than the head says.
    BodyLength,
    /// The checksum of the body does not fit.
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

/// Until when an entry is good for what. The store keeps these values and judges by none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryTimes {
    /// Milliseconds since 1970 until which the entry is fresh.
    pub valid_until: i64,
    /// Milliseconds since 1970 at which the answer was received.
    pub received: i64,
    /// Seconds that it was old at that time.
    pub age: u32,
    /// Seconds beyond its freshness for which it may be served while it is updated.
    pub updating: u32,
    /// Seconds beyond its freshness for which it may be served instead of an error.
    pub error: u32,
    /// The caller's own of the entry times.
    pub flags: u32,
}

/// What an entry is to be stored with.
#[derive(Clone, Debug, Default)]
pub struct NewHead {
    /// The key of the new head.
    pub key: Bytes,
    /// What entries have in common that are purged together; the key where it is empty.
    pub group: Bytes,
    /// Further names by which entries are purged together.
    pub tags: Vec<Bytes>,
    /// What the variants of the entry differ by, as the caller writes it.
    pub vary: Bytes,
    /// Which of the variants this is.
    pub variant: Option<EntryId>,
    /// The same as [`EntryTimes`], kept in the new head.
    pub times: EntryTimes,
    /// What the caller wants back with a hit.
    pub text: Bytes,
    /// Length of the body, where it is known.
    pub body_length: Option<u64>,
}

/// Who has written an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The entry was written by Tidegate.
    Own,
    /// nginx: the text is the head of an HTTP/1 response or of a CGI program.
    Nginx,
}

/// What an entry is stored with. Its parts share one buffer.
#[derive(Clone, Debug)]
pub struct Head {
    /// The key of the head.
    pub key: Bytes,
    /// The same as [`NewHead::group`], kept in the head.
    pub group: Bytes,
    pub(super) tags: Bytes,
    /// The same as [`NewHead::vary`], kept in the head.
    pub vary: Bytes,
    /// The same as [`NewHead::variant`], kept in the head.
    pub variant: Option<EntryId>,
    /// The same as [`EntryTimes`], kept in the head.
    pub times: EntryTimes,
    /// The same as [`NewHead::text`], kept in the head.
    pub text: Bytes,
    /// Length of the body; unknown only while an entry is filled.
    pub body_length: Option<u64>,
    /// Who has written the entry.
    pub origin: Origin,
}

impl Head {
    /// The names by which entries are purged together.
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

/// A head that does not fit: it is longer than [`HEAD_LENGTH_MAX`], or a tag than 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// A head as it stands in a file that is being filled: without its magic, the length of the body
/// and the checksums.
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
            // The layout counts from the file's beginning.
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

    /// What is written first while the length is not known: a file that is no entry yet.
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

/// The fixed part, but for the times.
#[derive(Debug, Default)]
struct Fixed {
    checksum: u32,
    body_checksum: u32,
    body_start: u32,
    body_length: u64,
    /// Of key, group, tags, vary and text.
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

    /// Where key, group, tags, vary and text stand in the file.
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

/// The checksum of a head but for itself and the times.
fn head_checksum(fixed: &[u8; FIXED_LENGTH], rest: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&fixed[..CHECKSUM_AT]);
    hasher.update(&fixed[CHECKSUM_AT + 4..TIMES_AT]);
    hasher.update(&fixed[TIMES_END..]);
    hasher.update(rest);
    hasher.finalize()
}

/// Computes the checksum of a head anew.
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

/// One copy of the times, and its sequence number; nothing where it is not whole.
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

/// The times that hold: those that were written last.
fn current_times(fixed: &[u8; FIXED_LENGTH]) -> Option<(u32, EntryTimes)> {
    let [first, second] = copies(fixed);
    match (first, second) {
        (Some(a), Some(b)) => Some(if a.0 >= b.0 { a } else { b }),
        (first, second) => first.or(second),
    }
}

/// New times for a file with this head: where they are to be written, and what.
pub(super) fn replace_times(head: &[u8], times: &EntryTimes) -> Result<(u64, Bytes), Fault> {
    let fixed = head.first_chunk().ok_or(Fault::Short)?;
    let (sequence, _) = current_times(fixed).ok_or(Fault::HeadChecksum)?;
    let holds = |copy: &Option<(u32, EntryTimes)>| copy.is_some_and(|copy| copy.0 == sequence);
    let place = usize::from(holds(&copies(fixed)[0]));
    let at = TIMES_AT + place * TIMES_LENGTH;
    let bytes = encode_times(times, sequence.wrapping_add(1).max(1));
    Ok((at as u64, bytes.to_vec().into()))
}

/// A head that has been read.
#[derive(Debug)]
pub(super) struct ParsedHead {
    pub(super) head: Head,
    /// Where the body lies in the file.
    pub(super) body: Range<u64>,
    /// nginx's entries have none.
    pub(super) body_checksum: Option<u32>,
}

/// How much of a file must be read for its head, as far as `start` says; at least
/// [`FIXED_LENGTH`] bytes, unless the file is shorter.
pub(super) fn length(start: &[u8]) -> Result<usize, Fault> {
    let fixed = start.first_chunk().ok_or(Fault::Short)?;
    if nginx::is_version(fixed) {
        return nginx::length(fixed);
    }
    let length = Fixed::decode(fixed)?.body_start as usize;
    let is_possible = (FIXED_LENGTH..=HEAD_LENGTH_MAX).contains(&length);
    is_possible.then_some(length).ok_or(Fault::Layout)
}

/// Reads a head. `bytes` begins with all of it, as [`length`] tells; `file_length` is that of the
/// file.
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

/// The key in a head of either kind, for those who look through a folder; what stands behind it is
/// not looked at.
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

    /// nginx takes a file of another version as missing only if it is long enough for the key.
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

    /// Both copies of the times are of the first writing or empty: whichever bit is flipped, what
    /// is read is what was written, or nothing.
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
            // A write that is torn in the middle leaves the former times.
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
