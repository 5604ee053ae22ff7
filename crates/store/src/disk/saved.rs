//! Saves the index in a file, so that a new process knows which entries there are, when they were
//! last used, and their groups and tags.
//!
//! The file is `temp/index` below the cache's folder: nginx's cache loader, which deletes unknown
//! files, does not enter a folder of that name. The file is written under a temporary name and
//! renamed, periodically and at an orderly exit.
//!
//! ```text
//! header   "TIDEINDX" · version u32 · size of blocks u32 · levels (4) · orderly u32 · checksum u32
//! chunks   length u32 · checksum u32 · records
//! record   id (16) · blocks u32 · uses u16 · names u8 · tags u8 · age u64, ms [· group u64 · tags u64 …]
//! end      a chunk of length 0
//! ```
//!
//! The saved index is only a hint: opening an entry reveals a missing or changed file. Ages are
//! relative to the time of saving, so that neither a long pause nor a change of the clock makes
//! entries old.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use bytes::{Buf, BufMut, Bytes};
use rustix::io::Errno;

use super::clock::Millis;
use super::error::StoreError;
use super::folder::{CacheFolder, DiskError, read_all, sync, write_all};
use super::id::{EntryId, Levels};
use super::index::{SavedRecord, TagHashes};
use super::store::DiskStore;

const FOLDER: &str = "temp";
const PATH: &str = "temp/index";
const NEW_PATH: &str = "temp/index.new";

const MAGIC: &[u8; 8] = b"TIDEINDX";
const VERSION: u32 = 1;
const HEADER_LENGTH: usize = 28;

/// Size of the levels field in the header, in bytes. Unused bytes are zero.
const LEVELS_FIELD: usize = 4;

/// Maximum number of records in a chunk, and maximum length of a chunk in bytes.
const CHUNK_RECORDS: usize = 4096;
const CHUNK_MAX: usize = 16 << 20;

/// Length of a record without group and tags, in bytes.
const RECORD_LENGTH: usize = 32;

/// The result of loading the saved index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedIndex {
    /// Number of entries restored from it.
    pub entries: u64,
    /// Whether it was saved at an orderly exit and thus lists all entries.
    pub is_orderly: bool,
}

impl DiskStore {
    /// Saves the index. Blocks on the disk. If `is_end` is set and the folder has been scanned, the
    /// saved index is marked as complete; storing another entry removes the mark.
    ///
    /// # Errors
    /// A system call failed. The previously saved index is then unchanged.
    pub fn save_index(&self, is_end: bool, now: Millis) -> Result<(), StoreError> {
        self.save_index_while(|| true, is_end, now).map(drop)
    }

    /// Like [`DiskStore::save_index`], but stops when `goes_on` returns false, which is called
    /// every few thousand entries. Returns whether the index was saved; otherwise the previously
    /// saved index is unchanged.
    ///
    /// # Errors
    /// A system call failed.
    pub fn save_index_while(
        &self,
        goes_on: impl Fn() -> bool,
        is_end: bool,
        now: Millis,
    ) -> Result<bool, StoreError> {
        let Some(folder) = &self.folder else {
            return Ok(true);
        };
        let _saving = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        folder.make_folder(FOLDER)?;
        let file = folder.create_other(NEW_PATH)?;
        let mut at = 0;
        let mut write = |bytes: Vec<u8>| {
            let length = bytes.len() as u64;
            write_all(&file, at, &[bytes.into()])?;
            at += length;
            Ok::<(), StoreError>(())
        };
        // Before the folder has been scanned, the index may be incomplete.
        write(header(folder, is_end && self.is_scanned()))?;
        for number in 0..self.index.shards() {
            let saved = self.index.shard(number).saved();
            for records in saved.chunks(CHUNK_RECORDS) {
                if !goes_on() {
                    folder.unlink_other(NEW_PATH);
                    return Ok(false);
                }
                write(chunk(records, now))?;
            }
        }
        write(chunk(&[], now))?;
        // Syncs before renaming, so that after a power failure the file is complete under its final
        // name.
        sync(&file)?;
        folder.rename_below(NEW_PATH, PATH)?;
        let is_whole = is_end && self.is_scanned();
        self.is_saved_whole.store(is_whole, Ordering::Release);
        Ok(true)
    }

    /// Called when an entry has been stored: the saved index is no longer complete.
    pub(super) fn note_change(&self) {
        if self.is_saved_whole.load(Ordering::Acquire)
            && self.is_saved_whole.swap(false, Ordering::AcqRel)
            && let Some(folder) = &self.folder
        {
            // If marking fails, the next process misses the entry and fetches it again.
            let _ = mark_incomplete(folder);
        }
    }

    /// Loads the saved index. Blocks on the disk. Entries that are already in the index are
    /// unchanged.
    ///
    /// A damaged chunk ends the loading; the folder must then be scanned.
    ///
    /// # Errors
    /// The file cannot be read. A missing file is not an error.
    pub fn load_index(&self, now: Millis) -> io::Result<SavedIndex> {
        let Some(folder) = &self.folder else {
            return Ok(SavedIndex::default());
        };
        let file = match folder.open_other(PATH) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(SavedIndex::default()),
            Err(error) => return Err(error.into()),
        };
        let mut file = BufReader::new(File::from(file));
        let mut found = [0; HEADER_LENGTH];
        if !read_exact(&mut file, &mut found)? {
            return Ok(SavedIndex::default());
        }
        let was_orderly = found[..] == header(folder, true);
        if !was_orderly && found[..] != header(folder, false) {
            return Ok(SavedIndex::default());
        }
        let mut saved = Vec::new();
        let is_whole = read_chunks(&mut file, now, &mut saved)?;
        // In the order from the newest, so that each record is inserted at the least recently used
        // end of its shard.
        saved.sort_by_key(|record| std::cmp::Reverse(record.used));
        let mut loaded = SavedIndex {
            entries: 0,
            is_orderly: was_orderly && is_whole,
        };
        for record in saved {
            let (id, blocks) = (record.id, u64::from(record.blocks));
            if self.index.lock_shard(&id).restore(record) {
                self.room.add(blocks);
                loaded.entries += 1;
            }
        }
        if loaded.is_orderly {
            self.is_scanned.store(true, Ordering::Relaxed);
        }
        // Marks the file as incomplete, because this process may be killed later.
        if was_orderly && let Ok(file) = folder.open_other_to_change(PATH) {
            let _ = write_all(&file, 0, &[Bytes::from(header(folder, false))]);
        }
        Ok(loaded)
    }
}

fn header(folder: &CacheFolder, is_orderly: bool) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_LENGTH);
    header.put_slice(MAGIC);
    header.put_u32_le(VERSION);
    header.put_u32_le(u32::try_from(folder.block_size()).unwrap_or(0));
    let lengths = folder.levels().lengths();
    header.put_slice(lengths);
    header.put_bytes(0, LEVELS_FIELD.saturating_sub(lengths.len()));
    header.put_u32_le(is_orderly.into());
    header.put_u32_le(crc32fast::hash(&header));
    header
}

/// The levels of the folder when its index was saved.
pub(super) fn levels(folder: &CacheFolder) -> Option<Levels> {
    let mut header = [0; HEADER_LENGTH];
    let file = folder.open_other(PATH).ok()?;
    let filled = read_all(&file, 0, &mut header).ok()?;
    let (summed, checksum) = header.split_last_chunk::<4>()?;
    let is_whole = filled == HEADER_LENGTH && crc32fast::hash(summed).to_le_bytes() == *checksum;
    let rest = header.strip_prefix(MAGIC).filter(|_| is_whole)?;
    let (version, rest) = rest.split_first_chunk::<4>()?;
    let lengths = rest.get(4..4 + LEVELS_FIELD)?;
    let count = lengths.iter().take_while(|length| **length != 0).count();
    (*version == VERSION.to_le_bytes())
        .then(|| Levels::of(lengths.get(..count)?))
        .flatten()
}

/// The saved index, positioned after its header, and the time of its saving. `None` if there is
/// none, or if it was saved with other levels or another block size.
pub(super) fn open(folder: &CacheFolder) -> io::Result<Option<(File, SystemTime)>> {
    let mut file = match folder.open_other(PATH) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut found = [0; HEADER_LENGTH];
    let is_whole = read_exact(&mut file, &mut found)?;
    let is_of_folder = [true, false].map(|is_orderly| header(folder, is_orderly) == found);
    if !is_whole || !is_of_folder.contains(&true) {
        return Ok(None);
    }
    let saved_at = file.metadata()?.modified()?;
    Ok(Some((file, saved_at)))
}

/// Marks the saved index as incomplete.
pub(super) fn mark_incomplete(folder: &CacheFolder) -> Result<(), DiskError> {
    if open(folder).ok().flatten().is_none() {
        return Ok(());
    }
    let file = folder.open_other_to_change(PATH);
    let file = file.map_err(|error| DiskError::of("openat()", error))?;
    write_all(&file, 0, &[Bytes::from(header(folder, false))])
}

/// Fills `memory`; returns false if the file ends before.
fn read_exact(file: &mut impl Read, memory: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(memory) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads chunks of records. Returns whether all were present and valid.
pub(super) fn read_chunks(
    file: &mut impl Read,
    now: Millis,
    saved: &mut Vec<SavedRecord>,
) -> io::Result<bool> {
    loop {
        let mut start = [0; 8];
        if !read_exact(file, &mut start)? {
            return Ok(false);
        }
        let mut start = &start[..];
        let (length, checksum) = (start.get_u32_le() as usize, start.get_u32_le());
        if length > CHUNK_MAX {
            return Ok(false);
        }
        let mut records = vec![0; length];
        if !read_exact(file, &mut records)? || crc32fast::hash(&records) != checksum {
            return Ok(false);
        }
        if length == 0 {
            return Ok(true);
        }
        let mut rest = &records[..];
        while !rest.is_empty() {
            let Some(record) = decode(&mut rest, now) else {
                return Ok(false);
            };
            saved.push(record);
        }
    }
}

fn chunk(saved: &[SavedRecord], now: Millis) -> Vec<u8> {
    let mut records = Vec::with_capacity(saved.len() * (RECORD_LENGTH + 8));
    saved
        .iter()
        .for_each(|record| encode(record, now, &mut records));
    let mut chunk = Vec::with_capacity(records.len() + 8);
    chunk.put_u32_le(u32::try_from(records.len()).unwrap_or(0));
    chunk.put_u32_le(crc32fast::hash(&records));
    chunk.put_slice(&records);
    chunk
}

fn encode(record: &SavedRecord, now: Millis, to: &mut Vec<u8>) {
    // The group and tags of an entry with more tags are read from its file when needed.
    let names = record
        .names
        .as_ref()
        .filter(|names| names.tags.len() <= usize::from(u8::MAX));
    to.put_slice(&record.id.0);
    to.put_u32_le(record.blocks);
    to.put_u16_le(record.uses);
    to.put_u8(names.is_some().into());
    to.put_u8(names.map_or(0, |names| names.tags.len() as u8));
    to.put_u64_le(now.saturating_sub(record.used));
    if let Some(names) = names {
        to.put_u64_le(names.group);
        names.tags.iter().for_each(|tag| to.put_u64_le(*tag));
    }
}

fn decode(from: &mut &[u8], now: Millis) -> Option<SavedRecord> {
    if from.len() < RECORD_LENGTH {
        return None;
    }
    let mut id = [0; 16];
    from.copy_to_slice(&mut id);
    let (blocks, uses) = (from.get_u32_le(), from.get_u16_le());
    let (has_names, tags) = (from.get_u8(), from.get_u8());
    let used = now.saturating_sub(from.get_u64_le());
    let mut names = None;
    if has_names != 0 {
        names = Some(TagHashes {
            group: from.try_get_u64_le().ok()?,
            tags: (0..tags)
                .map(|_| from.try_get_u64_le().ok())
                .collect::<Option<_>>()?,
        });
    }
    Some(SavedRecord {
        id: EntryId(id),
        blocks,
        uses,
        used,
        names,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<SavedRecord> {
        let names = [None, Some(vec![]), Some(vec![1, 2, u64::MAX])];
        let record = |(number, tags): (usize, Option<Vec<u64>>)| SavedRecord {
            id: EntryId::of(&[&[number as u8]]),
            blocks: number as u32,
            uses: 7,
            used: 100 - number as u64,
            names: tags.map(|tags| TagHashes {
                group: 9,
                tags: tags.into(),
            }),
        };
        names.into_iter().enumerate().map(record).collect()
    }

    fn read(bytes: &[u8], now: Millis) -> (bool, Vec<SavedRecord>) {
        let mut saved = Vec::new();
        let is_whole = read_chunks(&mut &bytes[..], now, &mut saved).unwrap();
        (is_whole, saved)
    }

    #[test]
    fn records_come_back_with_their_ages() {
        let bytes = [chunk(&records(), 150), chunk(&[], 150)].concat();
        let (is_whole, saved) = read(&bytes, 1150);
        let mut expected = records();
        expected.iter_mut().for_each(|record| record.used += 1000);
        assert_eq!((is_whole, saved), (true, expected));
        // The new process's clock starts at zero.
        assert_eq!(read(&bytes, 0).1[0].used, 0);
    }

    #[test]
    fn damaged_chunks_are_noticed() {
        let bytes = [chunk(&records(), 150), chunk(&[], 150)].concat();
        for end in 0..bytes.len() {
            assert!(!read(&bytes[..end], 0).0, "{end}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!read(&flipped, 0).0, "{bit}");
        }
    }

    #[test]
    fn entry_with_many_tags_is_saved_without_names() {
        let mut record = records().remove(2);
        record.names = Some(TagHashes {
            group: 1,
            tags: (0..256).collect(),
        });
        let bytes = [chunk(&[record], 150), chunk(&[], 150)].concat();
        assert_eq!(read(&bytes, 150).1[0].names, None);
    }
}
