//! Encodes and parses entries' files without a folder, for fuzz targets.

use bytes::Bytes;

use super::head::{self, Encoded, EntryTimes, Fault, Head, NewHead};
use super::saved;

/// The file of an entry; `None` if its head is too long.
#[must_use]
pub fn file(new: NewHead, body: &[u8]) -> Option<Vec<u8>> {
    let mut encoded = Encoded::new(new).ok()?;
    let head = encoded.finished(body.len() as u64, crc32fast::hash(body));
    Some([&head[0], &head[1], body].concat())
}

/// Recomputes the checksum of a head, so that a modified head is accepted.
pub fn seal(file: &mut [u8]) {
    head::seal(file);
}

/// Parses a file, and returns its head and body.
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

/// The key in the head of a file.
#[must_use]
pub fn key_of(file: &[u8]) -> Option<&[u8]> {
    head::key_of(file)
}

/// Replaces the times in the head of a file.
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

/// Parses the chunks of a saved index. Returns the number of entries, and whether all chunks were
/// valid.
#[must_use]
pub fn saved_entries(mut chunks: &[u8], now: super::Millis) -> (usize, bool) {
    let mut entries = Vec::new();
    let is_whole = saved::read_chunks(&mut chunks, now, &mut entries);
    (entries.len(), is_whole.unwrap_or(false))
}
