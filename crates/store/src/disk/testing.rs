//! Files of entries without a folder, for fuzz targets.

use bytes::Bytes;

use super::head::{self, Encoded, EntryTimes, Fault, Head, NewHead};
use super::saved;

/// The file of an entry; nothing where its head is too long.
#[must_use]
pub fn file(new: NewHead, body: &[u8]) -> Option<Vec<u8>> {
    let mut encoded = Encoded::new(new).ok()?;
    let head = encoded.finished(body.len() as u64, crc32fast::hash(body));
    Some([&head[0], &head[1], body].concat())
}

/// Computes the checksum of a head anew, so that changes to it are read.
pub fn seal(file: &mut [u8]) {
    head::seal(file);
}

/// Reads a file's head, and which part of the file is its body.
///
/// # Errors
/// See [`Fault`].
pub fn parse(file: &Bytes, key: &[u8]) -> Result<(Head, Bytes), Fault> {
    let needed = head::length(file)?;
    if file.len() < needed {
        return Err(Fault::Short);
    }
    let start = file.slice(..needed);
    let parsed = head::parse(&start, key, file.len() as u64)?;
    let body = parsed.body.start as usize..parsed.body.end as usize;
    Ok((parsed.head, file.slice(body)))
}

/// The key in a file's head.
#[must_use]
pub fn key_of(file: &[u8]) -> Option<&[u8]> {
    head::key_of(file)
}

/// Replaces the times in a file.
///
/// # Errors
/// See [`Fault`].
pub fn replace_times(file: &mut [u8], times: &EntryTimes) -> Result<(), Fault> {
    let (at, bytes) = head::replace_times(file, times)?;
    let place = file
        .get_mut(at as usize..)
        .and_then(|rest| rest.get_mut(..bytes.len()));
    place.ok_or(Fault::Short)?.copy_from_slice(&bytes);
    Ok(())
}

/// Reads what follows the header of a saved index. How many entries there are, and whether all of
/// them were read.
#[must_use]
pub fn saved_entries(mut chunks: &[u8], now: super::Millis) -> (usize, bool) {
    let mut entries = Vec::new();
    let is_whole = saved::read_chunks(&mut chunks, now, &mut entries);
    (entries.len(), is_whole.unwrap_or(false))
}
