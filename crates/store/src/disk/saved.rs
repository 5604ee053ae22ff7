//! The index in a file, so that a process knows after its start what the one before knew: which
//! entries there are, when they were last used, and by which names they are purged.
//!
//! The file is `temp/index` below the folder: nginx's loader, which removes what it does not know,
//! leaves folders of that name alone. It is written beside its place and renamed, now and then and
//! at an orderly end.
//!
//! ```text
//! header   "TIDEINDX" · version u32 · size of blocks u32 · levels (4) · orderly u32 · checksum u32
//! chunks   length u32 · checksum u32 · records
//! record   id (16) · blocks u32 · uses u16 · names u8 · tags u8 · age u64, ms [· group u64 · tags u64 …]
//! end      a chunk of length 0
//! ```
//!
//! Nothing that it says is trusted with more than a look: a file that is not there, or another than
//! it was, is noticed when it is opened. Ages are counted from the time of saving, so that neither
//! a long pause nor a clock that has been set makes entries old.

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

/// Bytes of the header for the lengths of levels, 0 behind the last.
const LEVELS_FIELD: usize = 4;

/// Records of a chunk, and the longest chunk.
const CHUNK_RECORDS: usize = 4096;
const CHUNK_MAX: usize = 16 << 20;

/// Length of a record without names.
const RECORD_LENGTH: usize = 32;

/// What has been read of a saved index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedIndex {
    /// Entries that are known from it.
    pub entries: u64,
    /// Whether it was saved at an orderly end: then it knows all entries.
    pub is_orderly: bool,
}

impl DiskStore {
    /// Saves the index, waiting for the disk. At the end of an orderly process it says that it
    /// knows all entries, unless one is stored after that.
    ///
    /// # Errors
    /// The folder or the disk refuses. The index that was saved before stays as it is then.
    pub fn save_index(&self, is_end: bool, now: Millis) -> Result<(), StoreError> {
        self.save_index_while(|| true, is_end, now).map(drop)
    }

    /// [`DiskStore::save_index`] as long as `goes_on` says so, which is asked every few thousand
    /// entries. Whether it was saved; an index that is given up leaves the one before as it is.
    ///
    /// # Errors
    /// The folder or the disk refuses.
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
        // As long as the folder has not been looked through, the index does not know all of it.
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
        // Where the machine fails, the file has to be whole under the name that it is read by.
        sync(&file)?;
        folder.rename_below(NEW_PATH, PATH)?;
        let is_whole = is_end && self.is_scanned();
        self.is_saved_whole.store(is_whole, Ordering::Release);
        Ok(true)
    }

    /// An entry has been stored: an index that was saved before does not know it.
    pub(super) fn note_change(&self) {
        if self.is_saved_whole.load(Ordering::Acquire)
            && self.is_saved_whole.swap(false, Ordering::AcqRel)
            && let Some(folder) = &self.folder
        {
            // Where that fails the next process fetches it anew.
            let _ = mark_incomplete(folder);
        }
    }

    /// Reads the saved index, waiting for the disk. What is already known stays as it is.
    ///
    /// A chunk that is damaged ends the reading; the folder has to be looked through then.
    ///
    /// # Errors
    /// The file cannot be read. That it is not there is none.
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
        // From the newest: then each takes its place at the end of its shard.
        saved.sort_by_key(|record| std::cmp::Reverse(record.used));
        let mut loaded = SavedIndex {
            entries: 0,
            is_orderly: was_orderly && is_whole,
        };
        for record in saved {
            let (id, blocks) = (record.id, u64::from(record.blocks));
            if self.index.of(&id).restore(record) {
                self.room.add(blocks);
                loaded.entries += 1;
            }
        }
        if loaded.is_orderly {
            self.is_scanned.store(true, Ordering::Relaxed);
        }
        // From now on the file is not of an orderly end: this process may be killed.
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

/// The levels that a folder had when its index was saved.
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

/// The saved index behind its header, and when it was saved; nothing where it is not of this
/// folder.
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

/// Has a saved index say that it may not know what is in the folder.
pub(super) fn mark_incomplete(folder: &CacheFolder) -> Result<(), DiskError> {
    if open(folder).ok().flatten().is_none() {
        return Ok(());
    }
    let file = folder.open_other_to_change(PATH);
    let file = file.map_err(|error| DiskError::of("openat()", error))?;
    write_all(&file, 0, &[Bytes::from(header(folder, false))])
}

/// Fills `memory`; false where the file ends before.
fn read_exact(file: &mut impl Read, memory: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(memory) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads chunks. Whether all are there.
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
    // An entry with more tags is read for its names when it is purged.
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
        // A clock that has begun anew.
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
