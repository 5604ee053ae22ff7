//! Identifiers of entries: the MD5 of the cache key, and the file's path below the cache's folder
//! as in nginx.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use md5::{Digest, Md5};

/// Length of an id in hexadecimal digits.
pub(super) const HEX_LENGTH: usize = 32;

/// Maximum number of levels of subfolders.
pub(super) const LEVELS_MAX: usize = 3;

/// Maximum length of a level's name, in digits.
pub(super) const LEVEL_LENGTH_MAX: usize = 2;

/// Length of the number at the end of a temporary file's name, in digits.
pub(super) const NUMBER_LENGTH: usize = 10;

/// Maximum length of a path: the levels with their slashes, a name, a dot and a number.
const PATH_LENGTH_MAX: usize = LEVELS_MAX * (LEVEL_LENGTH_MAX + 1) + HEX_LENGTH + 1 + NUMBER_LENGTH;

/// Identifies an entry: the MD5 of its key, or of the request fields that select a variant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId(pub [u8; 16]);

impl EntryId {
    /// The MD5 of the concatenated parts.
    #[must_use]
    pub fn of(parts: &[&[u8]]) -> EntryId {
        let mut digest = Md5::new();
        for part in parts {
            digest.update(part);
        }
        EntryId(digest.finalize().into())
    }

    /// Parses 32 lower-case hexadecimal digits.
    #[must_use]
    pub fn from_hex(digits: &[u8]) -> Option<EntryId> {
        let digits: &[u8; HEX_LENGTH] = digits.try_into().ok()?;
        let mut id = [0; 16];
        for (byte, pair) in id.iter_mut().zip(digits.as_chunks::<2>().0) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(EntryId(id))
    }

    fn hex(&self) -> [u8; HEX_LENGTH] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut hex = [0; HEX_LENGTH];
        for (pair, byte) in hex.as_chunks_mut::<2>().0.iter_mut().zip(self.0) {
            *pair = [
                DIGITS[usize::from(byte >> 4)],
                DIGITS[usize::from(byte & 15)],
            ];
        }
        hex
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hex()
            .iter()
            .try_for_each(|digit| f.write_char(char::from(*digit)))
    }
}

impl fmt::Debug for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The value of a hexadecimal digit as nginx writes it, in lower case.
fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

/// For each level of subfolders, how many of an id's last digits form its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    lengths: [u8; LEVELS_MAX],
    count: usize,
}

/// The text is not a valid list of levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidLevels;

impl FromStr for Levels {
    type Err = InvalidLevels;

    /// Parses lists such as `1:2`: up to three levels of one or two digits each.
    fn from_str(text: &str) -> Result<Levels, InvalidLevels> {
        let mut levels = Levels::default();
        for level in text.split(':') {
            let length = match level {
                "1" => 1,
                "2" => 2,
                _ => return Err(InvalidLevels),
            };
            *levels.lengths.get_mut(levels.count).ok_or(InvalidLevels)? = length;
            levels.count += 1;
        }
        Ok(levels)
    }
}

impl Levels {
    /// Levels with names of these lengths, from the outermost; `None` if a length or their number
    /// is not allowed.
    pub(super) fn of(lengths: &[u8]) -> Option<Levels> {
        let mut levels = Levels::default();
        for length in lengths {
            let is_length = (1..=LEVEL_LENGTH_MAX).contains(&usize::from(*length));
            *levels.lengths.get_mut(levels.count).filter(|_| is_length)? = *length;
            levels.count += 1;
        }
        Some(levels)
    }

    /// Lengths of the levels' names, from the outermost.
    pub(super) fn lengths(&self) -> &[u8] {
        self.lengths.get(..self.count).unwrap_or_default()
    }

    /// The path of an entry, relative to the cache's folder.
    pub(super) fn path(&self, id: &EntryId) -> EntryPath {
        let mut path = EntryPath::default();
        let hex = id.hex();
        let mut end = HEX_LENGTH;
        for length in self.lengths() {
            let start = end.saturating_sub(usize::from(*length));
            path.push(hex.get(start..end).unwrap_or_default());
            path.push(b"/");
            path.folders_end = path.length;
            end = start;
        }
        path.push(&hex);
        path
    }

    /// The path of a temporary file in the folder of its entry.
    pub(super) fn temporary_path(&self, name: TemporaryName) -> EntryPath {
        let mut path = self.path(&name.id);
        path.push(b".");
        let mut divisor = NUMBERS / 10;
        for _ in 0..NUMBER_LENGTH {
            path.push(&[b'0' + (name.number / divisor % 10) as u8]);
            divisor = (divisor / 10).max(1);
        }
        path
    }
}

/// Number of distinct numbers of temporary files.
pub(super) const NUMBERS: u64 = 10_000_000_000;

/// The name of a temporary file: its entry's id and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TemporaryName {
    pub(super) id: EntryId,
    pub(super) number: u64,
}

impl TemporaryName {
    /// Parses names such as `0123456789abcdef0123456789abcdef.0000000001`.
    pub(super) fn parse(name: &[u8]) -> Option<TemporaryName> {
        let (hex, rest) = name.split_at_checked(HEX_LENGTH)?;
        let id = EntryId::from_hex(hex)?;
        let number = rest.strip_prefix(b".")?;
        if number.len() != NUMBER_LENGTH || !number.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number = std::str::from_utf8(number).ok()?.parse().ok()?;
        Some(TemporaryName { id, number })
    }
}

/// A path relative to the cache's folder, stored inline, without a heap allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryPath {
    bytes: [u8; PATH_LENGTH_MAX],
    length: usize,
    folders_end: usize,
}

impl Default for EntryPath {
    fn default() -> EntryPath {
        EntryPath {
            bytes: [0; PATH_LENGTH_MAX],
            length: 0,
            folders_end: 0,
        }
    }
}

impl EntryPath {
    fn push(&mut self, part: &[u8]) {
        let end = self.length + part.len();
        if let Some(room) = self.bytes.get_mut(self.length..end) {
            room.copy_from_slice(part);
            self.length = end;
        }
    }

    pub(super) fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.length).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    /// The innermost folder of the path.
    pub(super) fn parent(&self) -> &str {
        self.folders().last().unwrap_or(".")
    }

    /// The subfolders of the path, from the outermost.
    pub(super) fn folders(&self) -> impl Iterator<Item = &str> {
        let path = self.as_str();
        let ends = path.match_indices('/').map(|(at, _)| at);
        ends.filter(|end| *end < self.folders_end)
            .map(move |end| path.get(..end).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in nginx's documentation of `proxy_cache_path`.
    #[test]
    fn path_is_nginxs() {
        let id = EntryId::from_hex(b"b7f54b2df7773722d382f4809d65029c").unwrap();
        let path = |levels: &str| levels.parse::<Levels>().unwrap().path(&id);
        assert_eq!(
            path("1:2").as_str(),
            "c/29/b7f54b2df7773722d382f4809d65029c"
        );
        assert_eq!(
            path("2:2:1").as_str(),
            "9c/02/5/b7f54b2df7773722d382f4809d65029c"
        );
        let none = Levels::default().path(&id);
        assert_eq!(none.as_str(), "b7f54b2df7773722d382f4809d65029c");
        assert_eq!(none.folders().count(), 0);
        assert_eq!((none.parent(), path("1:2").parent()), (".", "c/29"));
        assert_eq!(path("1:2").folders().collect::<Vec<_>>(), ["c", "c/29"]);
    }

    /// The expected values are from `printf GET | md5sum` and similar commands.
    #[test]
    fn id_is_the_md5_of_the_parts() {
        let id = EntryId::of(&[b"G", b"ET"]);
        assert_eq!(id.to_string(), "7528035a93ee69cedb1dbddb2f0bfcc8");
        assert_eq!(EntryId::from_hex(id.to_string().as_bytes()), Some(id));
        assert_eq!(
            EntryId::from_hex(id.to_string().to_uppercase().as_bytes()),
            None
        );
        assert_eq!(EntryId::from_hex(b"7528"), None);
    }

    #[test]
    fn levels_are_one_or_two_digits() {
        for wrong in ["", "3", "1:", "1:2:1:2", "1:0", "a", "12"] {
            assert_eq!(wrong.parse::<Levels>(), Err(InvalidLevels), "{wrong}");
        }
    }

    #[test]
    fn temporary_names_are_read_as_they_are_written() {
        let name = TemporaryName {
            id: EntryId::of(&[b"key"]),
            number: 1_234_567_890,
        };
        let path = "1:2".parse::<Levels>().unwrap().temporary_path(name);
        let file = path.as_str().rsplit('/').next().unwrap();
        assert!(file.ends_with(".1234567890"));
        assert_eq!(TemporaryName::parse(file.as_bytes()), Some(name));
        assert_eq!(TemporaryName::parse(&file.as_bytes()[1..]), None);
        assert_eq!(TemporaryName::parse(&file.as_bytes()[..42]), None);
        assert_eq!(
            TemporaryName::parse(file.replace('.', "-").as_bytes()),
            None
        );
    }
}
