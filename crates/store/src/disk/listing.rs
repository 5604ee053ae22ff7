//! A cache's folder for programs that do not serve from it, such as an operator's command line. A
//! server may be running at the same time.
//!
//! Nothing here creates folders, becomes their owner or evicts entries. A running server notices an
//! unlinked file when it next opens it. If no server is running, the saved index is marked as
//! incomplete, so that the next server scans the folder.

use std::io::{self, BufReader, Read as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, SystemTime};

use base::hash::Map;
use bytes::Bytes;
use rustix::fs::{Dir, FileType};
use rustix::io::Errno;

use super::folder::{self, CacheFolder};
use super::head::{self, Fault, HEAD_LENGTH_MAX, Head};
use super::id::{EntryId, LEVEL_LENGTH_MAX, LEVELS_MAX, Levels};
use super::open::BodyCheck;
use super::saved;
use super::scan::{ScanEntry, Walk};

/// How much of a file the first read takes, in bytes.
const FIRST_READ: usize = 4096;

/// A cache's folder that is open for listing.
#[derive(Debug)]
pub struct Listing {
    folder: CacheFolder,
    /// The time since each entry's last use, from the saved index.
    unused: Map<EntryId, Duration>,
}

/// Why a folder cannot be listed.
#[derive(Debug)]
pub enum ListingError {
    /// The folder cannot be opened or read.
    Failed(io::Error),
    /// The folder is not empty, but contains no cache.
    NoCache,
}

impl From<Errno> for ListingError {
    fn from(error: Errno) -> ListingError {
        ListingError::Failed(error.into())
    }
}

impl From<io::Error> for ListingError {
    fn from(error: io::Error) -> ListingError {
        ListingError::Failed(error)
    }
}

/// An entry found in the folder.
#[derive(Debug)]
pub struct ListedEntry {
    /// The entry's id.
    pub id: EntryId,
    /// The path of the entry's file, relative to the folder.
    pub path: String,
    /// Length of the file, in bytes.
    pub length: u64,
    /// The key, if it can be read from the file.
    pub key: Option<Bytes>,
    /// The head, or the reason why the file is not a valid entry.
    pub head: Result<Head, Fault>,
    /// The time since the entry's last use, if it is known. A running server saves the index once a
    /// minute.
    pub unused: Option<Duration>,
}

impl ListedEntry {
    /// Whether the entry is purged by this name: its key or its group, which all slices of a
    /// response share.
    #[must_use]
    pub fn is_named(&self, name: &[u8]) -> bool {
        let group = self.head.as_ref().map_or(&[][..], |head| &head.group);
        self.key.as_deref() == Some(name) || (!group.is_empty() && group == name)
    }

    /// Whether the entry's key starts with `prefix`.
    #[must_use]
    pub fn begins_with(&self, prefix: &[u8]) -> bool {
        self.key.as_ref().is_some_and(|key| key.starts_with(prefix))
    }

    /// Whether the entry has this tag.
    #[must_use]
    pub fn has_tag(&self, tag: &[u8]) -> bool {
        let mut tags = self.head.iter().flat_map(Head::tags);
        tags.any(|known| known == tag)
    }
}

impl Listing {
    /// Opens an existing folder. Blocks on the disk.
    ///
    /// # Errors
    /// See [`ListingError`].
    pub fn open(path: &Path) -> Result<Listing, ListingError> {
        let folder = CacheFolder::open_existing(path, Levels::default())?;
        let levels = match saved::levels(&folder) {
            Some(levels) => levels,
            None => levels_of(&folder)?,
        };
        let folder = folder.with_levels(levels);
        let unused = saved_uses(&folder)?;
        Ok(Listing { folder, unused })
    }

    /// Passes the entries to `seen` until it returns `Break`. Blocks on the disk.
    pub fn visit(&self, mut seen: impl FnMut(ListedEntry) -> ControlFlow<()>) {
        let mut walk = Walk::new(Some(&self.folder));
        while let Some(found) = walk.step(&self.folder) {
            if let Some(ScanEntry::Entry(id)) = found
                && let Ok(listed) = self.listed(id)
                && seen(listed).is_break()
            {
                return;
            }
        }
    }

    /// Reads an entry. Blocks on the disk.
    fn listed(&self, id: EntryId) -> Result<ListedEntry, Errno> {
        let path = self.folder.levels().path(&id).as_str().to_owned();
        let stat = self.folder.stat_entry(&id)?;
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        let (key, head) = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => self.read(&id, length)?,
            _ => (None, Err(Fault::NoFile)),
        };
        Ok(ListedEntry {
            id,
            path,
            length,
            key,
            head,
            unused: self.unused.get(&id).copied(),
        })
    }

    /// The key and the head from an entry's file.
    fn read(
        &self,
        id: &EntryId,
        length: u64,
    ) -> Result<(Option<Bytes>, Result<Head, Fault>), Errno> {
        let file = self.folder.open_entry(id)?;
        let mut start = vec![0; FIRST_READ];
        let filled = folder::read_all(&file, 0, &mut start)?;
        start.truncate(filled);
        let needed = match head::length(&start) {
            Ok(needed) => needed.min(HEAD_LENGTH_MAX),
            Err(fault) => {
                let key = head::key_of(&start).map(Bytes::copy_from_slice);
                return Ok((key, Err(fault)));
            }
        };
        if needed > filled {
            start.resize(needed, 0);
            let filled = folder::read_all(&file, 0, &mut start)?;
            start.truncate(filled);
        }
        let start = Bytes::from(start);
        let Some(key) = head::key_of(&start).map(|key| start.slice_ref(key)) else {
            return Ok((None, Err(Fault::Short)));
        };
        let parsed = head::parse(&start, &key, length);
        let is_here = |head: &Head| EntryId::of(&[&key]) == *id || head.variant == Some(*id);
        let head = parsed.and_then(|parsed| {
            if is_here(&parsed.head) {
                Ok(parsed.head)
            } else {
                Err(Fault::Key)
            }
        });
        Ok((Some(key), head))
    }

    /// Reads the body of an entry and verifies its checksum. Blocks on the disk. Returns `None` if
    /// there is no checksum, as in entries of nginx.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn check_body(&self, listed: &ListedEntry) -> io::Result<Option<Result<(), Fault>>> {
        let Some(key) = listed.key.as_deref() else {
            return Ok(None);
        };
        let file = self.folder.open_entry(&listed.id)?;
        let mut start = Vec::new();
        let mut reader = std::fs::File::from(file.try_clone()?).take(HEAD_LENGTH_MAX as u64);
        reader.read_to_end(&mut start)?;
        let length = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        let parsed = match head::parse(&start.into(), key, length) {
            Ok(parsed) => parsed,
            Err(fault) => return Ok(Some(Err(fault))),
        };
        let Some(checksum) = parsed.body_checksum else {
            return Ok(None);
        };
        let check = BodyCheck::of(parsed.body, checksum);
        Ok(Some(check.run(&file)?))
    }

    /// Unlinks an entry's file. Blocks on the disk. Returns whether the file existed.
    ///
    /// # Errors
    /// The error of `unlink()`, except for a missing file.
    pub fn unlink(&self, listed: &ListedEntry) -> io::Result<bool> {
        match self.folder.unlink_entry(&listed.id) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the next server scan the folder if no server is running, because the saved index lists
    /// unlinked entries.
    ///
    /// # Errors
    /// The saved index cannot be written.
    pub fn note_unlinked(&self) -> io::Result<()> {
        // A running server holds the lock and saves its own index.
        if self.folder.try_lock() {
            saved::mark_incomplete(&self.folder).map_err(|failure| failure.error())?;
        }
        Ok(())
    }
}

/// The time since each entry's last use, from the saved index.
fn saved_uses(folder: &CacheFolder) -> io::Result<Map<EntryId, Duration>> {
    /// The decoder subtracts ages from the current time. This value is larger than any age.
    const NOW: u64 = u64::MAX;
    let mut uses = Map::default();
    let Some((file, saved_at)) = saved::open(folder)? else {
        return Ok(uses);
    };
    let since = SystemTime::now().duration_since(saved_at);
    let since = since.unwrap_or_default();
    let mut records = Vec::new();
    // The chunks before a damaged chunk are still valid.
    saved::read_chunks(&mut BufReader::new(file), NOW, &mut records)?;
    for record in records {
        let age = Duration::from_millis(NOW - record.used);
        uses.insert(record.id, age + since);
    }
    Ok(uses)
}

/// Derives the levels of a folder without a saved index from its subfolders.
fn levels_of(folder: &CacheFolder) -> Result<Levels, ListingError> {
    let names = names_in(folder, ".")?;
    match lengths_of(folder, "", names.clone(), 0)? {
        Some(lengths) => Levels::of(&lengths).ok_or(ListingError::NoCache),
        None if names.is_empty() => Ok(Levels::default()),
        None => Err(ListingError::NoCache),
    }
}

/// Lengths of the levels' names below this folder, derived from the first entry found; `None` if
/// there is no entry.
fn lengths_of(
    folder: &CacheFolder,
    path: &str,
    names: Vec<String>,
    depth: usize,
) -> Result<Option<Vec<u8>>, ListingError> {
    if names
        .iter()
        .any(|name| EntryId::from_hex(name.as_bytes()).is_some())
    {
        return Ok(Some(Vec::new()));
    }
    if depth == LEVELS_MAX {
        return Ok(None);
    }
    let is_level = |name: &String| {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (1..=LEVEL_LENGTH_MAX).contains(&name.len()) && name.bytes().all(is_digit)
    };
    for name in names.into_iter().filter(is_level) {
        let path = match path {
            "" => name.clone(),
            path => format!("{path}/{name}"),
        };
        let Ok(names) = names_in(folder, &path) else {
            continue;
        };
        if let Some(mut lengths) = lengths_of(folder, &path, names, depth + 1)? {
            lengths.insert(0, name.len() as u8);
            return Ok(Some(lengths));
        }
    }
    Ok(None)
}

/// The names in a folder, without `.` and `..`.
fn names_in(folder: &CacheFolder, path: &str) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::new(folder.open_folder(path)?)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}
