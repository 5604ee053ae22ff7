//! Small files in the memory that all threads share: another thread need not read a file that one
//! thread has read, and a thread whose own part is full finds its evicted files here.
//!
//! The key of a file consists of the generation, and of the plan and the path of its request. The
//! value includes the file's metadata as of the time when the file was read. A thread that takes a
//! file from the shared memory checks the file first, as before each use.

use std::os::unix::ffi::OsStrExt;

use bytes::Bytes;
use engine::file::Metadata;
use store::Large;

use super::{Entry, Forms, Key, Origin};
use crate::request::Request;
use crate::response::memory;

/// The length in bytes of the metadata and the text lengths, which precede the texts.
const FIXED: usize = SHORT_AT + 4 * 4 + 3 * 2;

/// The offset of the numbers of four bytes, which follow those of eight bytes. The lengths of the
/// texts follow.
const SHORT_AT: usize = 5 * 8;
const LENGTHS_AT: usize = SHORT_AT + 4 * 4;

/// The key of a file in the shared memory.
pub(crate) fn key_of(generation: u64, key: &Key) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + 8 + 4 + key.1.len());
    bytes.push(memory::FILE);
    bytes.extend_from_slice(&generation.to_le_bytes());
    bytes.extend_from_slice(&key.0.to_le_bytes());
    bytes.extend_from_slice(&key.1);
    bytes
}

/// Stores a file for all threads. A missing file is not stored.
pub(crate) fn put(key: &[u8], entry: &Entry) {
    let Origin::File { metadata, etag } = &entry.origin else {
        return;
    };
    let etag = etag.as_deref().unwrap_or_default();
    let path = entry.path.as_os_str().as_bytes();
    let texts = [path, etag, &entry.content_type];
    let length = FIXED + texts.iter().map(|text| text.len()).sum::<usize>() + entry.body.len();
    let mut value = Large::new(key, length);
    for number in [
        metadata.size,
        metadata.mtime as u64,
        metadata.ctime as u64,
        metadata.inode,
        metadata.device,
    ] {
        value.extend(&number.to_le_bytes());
    }
    for number in [
        metadata.mtime_nanos,
        metadata.ctime_nanos,
        metadata.mode,
        metadata.uid,
    ] {
        value.extend(&number.to_le_bytes());
    }
    for text in texts {
        let Ok(length) = u16::try_from(text.len()) else {
            return;
        };
        value.extend(&length.to_le_bytes());
    }
    texts.iter().for_each(|text| value.extend(text));
    value.extend(&entry.body);
    memory::put(value, 0);
}

/// Takes a copy of a stored file. The file's path counts as not checked.
pub(crate) fn take(request: &Request, key: &Key) -> Option<Entry> {
    let key = key_of(request.local.generation.number, key);
    memory::get(&key, |item| {
        let lent = item.value.lent();
        let bytes = lent.unwrap_or_else(|| Bytes::copy_from_slice(item.value.bytes()));
        read(&bytes)
    })?
}

/// Parses a stored file; `None` if the bytes are malformed.
fn read(bytes: &Bytes) -> Option<Entry> {
    let long = |at: usize| Some(u64::from_le_bytes(*bytes.get(at * 8..)?.first_chunk()?));
    let short = |at: usize| {
        Some(u32::from_le_bytes(
            *bytes.get(SHORT_AT + at * 4..)?.first_chunk()?,
        ))
    };
    let length = |at: usize| {
        Some(u16::from_le_bytes(
            *bytes.get(LENGTHS_AT + at * 2..)?.first_chunk()?,
        ))
    };
    let metadata = Metadata {
        size: long(0)?,
        mtime: long(1)? as i64,
        ctime: long(2)? as i64,
        inode: long(3)?,
        device: long(4)?,
        mtime_nanos: short(0)?,
        ctime_nanos: short(1)?,
        mode: short(2)?,
        uid: short(3)?,
    };
    let path_end = FIXED + usize::from(length(0)?);
    let etag_end = path_end + usize::from(length(1)?);
    let type_end = etag_end + usize::from(length(2)?);
    let path = bytes.get(FIXED..path_end)?;
    let etag = bytes.get(path_end..etag_end)?;
    let content_type = bytes.get(etag_end..type_end)?;
    if (bytes.len() - type_end) as u64 != metadata.size {
        return None;
    }
    Some(Entry {
        path: Request::path_of(path),
        origin: Origin::File {
            metadata,
            etag: (!etag.is_empty()).then(|| Bytes::copy_from_slice(etag)),
        },
        confirmed: None,
        looked_at: None,
        checked_in: None,
        responses: Forms::default(),
        encoded: Vec::new(),
        unmodified: Forms::default(),
        body: bytes.slice(type_end..),
        content_type: Bytes::copy_from_slice(content_type),
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_put_is_read() {
        let metadata = Metadata {
            size: 5,
            mtime: -7,
            mtime_nanos: 8,
            ctime: 9,
            ctime_nanos: 10,
            inode: 11,
            device: 12,
            mode: 13,
            uid: 14,
        };
        for etag in [None, Some(Bytes::from_static(b"\"x\""))] {
            let entry = Entry {
                path: PathBuf::from("/a/file"),
                origin: Origin::File {
                    metadata,
                    etag: etag.clone(),
                },
                confirmed: None,
                looked_at: Some(Duration::from_secs(5)),
                checked_in: None,
                responses: Forms::default(),
                encoded: Vec::new(),
                unmodified: Forms::default(),
                body: Bytes::from_static(b"12345"),
                content_type: Bytes::from_static(b"text/plain"),
            };
            let key = key_of(u64::MAX, &(7, b"/file".to_vec()));
            put(&key, &entry);
            let kept = memory::get(&key, |item| Bytes::copy_from_slice(item.value.bytes()));
            let kept = read(&kept.unwrap()).unwrap();
            let Origin::File {
                metadata: read_metadata,
                etag: read_etag,
            } = kept.origin
            else {
                panic!()
            };
            assert_eq!(format!("{read_metadata:?}"), format!("{metadata:?}"));
            assert_eq!((read_etag, kept.path), (etag, entry.path));
            assert_eq!(
                (kept.body, kept.content_type),
                (entry.body, entry.content_type)
            );
            assert_eq!((kept.confirmed, kept.looked_at), (None, None));
            memory::remove(&key);
        }
    }
}
