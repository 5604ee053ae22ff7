//! Reads header blocks (RFC 7541, sections 3 and 6).
//!
//! A block is decoded to its end even if its fields are too many for the caller, or malformed: the
//! table must follow what the other end thinks of it, or no later block could be read.

use super::check::{Faults, NameKind};
use super::integer::Reader;
use super::table::{Entry, Table};
use super::{Error, FIELD_OVERHEAD, TABLE_SIZE_DEFAULT, huffman, static_table};
use crate::Span;

/// Changes of the table's size that a block may begin with: to the smallest one and to the last
/// (RFC 7541, section 4.2).
const SIZE_UPDATES_MAX: usize = 2;

/// A field of a header block, as spans of the bytes that the caller collects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The name of the decoded.
    pub name: Span,
    /// The value, which begins where the name ends.
    pub value: Span,
    /// Which name it is.
    pub which: NameKind,
    /// What is odd about it.
    pub faults: Faults,
    /// The index of the static table that says all of it: 2 is `:method: GET`.
    pub static_index: Option<u8>,
    /// Its sender wants no table to have it, also where it is sent on (RFC 7541, section 7.1.3).
    pub never_indexed: bool,
}

/// What became of a block that could be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodedBlock {
    /// The caller has got every field.
    Whole,
    /// The fields were more than the caller wanted; it has got those before that.
    TooLarge,
}

/// Decodes the header blocks of one direction of a connection, in the order in which they come.
///
/// It keeps what its table holds: twice the table's size at most, no byte while that is empty.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// The largest table that the other end may choose.
    size_max: usize,
    /// The other end has a larger table than it may, and must say in its next block that it is this
    /// size at most.
    size_owed: Option<usize>,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder::new()
    }
}

impl Decoder {
    /// A decoder with the initial dynamic table: empty, with a size of [`TABLE_SIZE_DEFAULT`].
    #[must_use]
    pub fn new() -> Decoder {
        Decoder {
            table: Table::new(TABLE_SIZE_DEFAULT),
            size_max: TABLE_SIZE_DEFAULT,
            size_owed: None,
        }
    }

    /// Takes note of the SETTINGS_HEADER_TABLE_SIZE that we announced, once the other end has
    /// acknowledged it. From then on its table must not be larger.
    pub fn set_size_max(&mut self, size_max: u32) {
        self.size_max = size_max as usize;
        if self.size_max < self.table.size_max() {
            let owed = self.size_owed.unwrap_or(self.size_max);
            self.size_owed = Some(owed.min(self.size_max));
        }
    }

    /// Decodes a whole block. Each field's bytes are appended to `out`, then `sink` is told of it,
    /// and sees `out` as it is.
    ///
    /// Once the fields together are larger than `list_size_max`, each counted with
    /// [`FIELD_OVERHEAD`] (RFC 9113, section 6.5.2), the rest of the block is decoded but not told.
    /// `out` never grows by more than `list_size_max` and the bytes of one field, which has no more
    /// than a table and eight fifths of the block.
    ///
    /// # Errors
    /// Where the block is malformed: no block of the connection can be decoded from then on.
    pub fn decode(
        &mut self,
        block: &[u8],
        list_size_max: usize,
        out: &mut Vec<u8>,
        mut sink: impl FnMut(Decoded, &[u8]),
    ) -> Result<DecodedBlock, Error> {
        let mut rest = Reader(block);
        self.size_updates(&mut rest)?;
        let mut list = List {
            left: Some(list_size_max),
        };
        while let Some(first) = rest.peek() {
            let start = out.len();
            if first & 0x80 != 0 {
                let index = rest.integer(7)?;
                let entry = self.entry(index)?;
                if list.admits(entry.text.len()) {
                    out.extend_from_slice(entry.text);
                    let static_index = (index <= static_table::LAST).then_some(index as u8);
                    sink(decoded(start, &entry, static_index, false), out);
                }
                continue;
            }
            let (prefix, is_kept) = match first {
                0x40.. => (6, true),
                0x20.. => return Err(Error::SizeUpdateLate),
                _ => (4, false),
            };
            let (name_length, name, faults) = self.literal(&mut rest, prefix, out)?;
            let entry = Entry {
                text: out.get(start..).unwrap_or_default(),
                name_length,
                name,
                faults,
            };
            if is_kept {
                let (name, value) = (entry.name_bytes(), entry.value_bytes());
                self.table.insert(name, value, entry.name, faults);
            }
            if list.admits(entry.text.len()) {
                let never_indexed = first & 0x10 != 0 && !is_kept;
                sink(decoded(start, &entry, None, never_indexed), out);
            } else {
                out.truncate(start);
            }
        }
        Ok(match list.left {
            Some(_) => DecodedBlock::Whole,
            None => DecodedBlock::TooLarge,
        })
    }

    /// How often its table has changed. A block during which this has stayed the same can be
    /// repeated, byte for byte, and says the same for as long as it still is.
    #[must_use]
    pub fn changes(&self) -> u32 {
        self.table.changes()
    }

    /// What its table holds, as the RFC counts it.
    #[cfg(test)]
    pub(super) fn table_size(&self) -> usize {
        self.table.size()
    }

    /// Bytes of memory that its table has taken.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.table.memory()
    }

    /// What the other end says of the table's size at the beginning of a block.
    #[inline]
    fn size_updates(&mut self, rest: &mut Reader<'_>) -> Result<(), Error> {
        let mut updates = 0;
        while rest.peek().is_some_and(|first| first & 0xe0 == 0x20) {
            updates += 1;
            if updates > SIZE_UPDATES_MAX {
                return Err(Error::SizeUpdateRepeated);
            }
            let size = rest.integer(5)?;
            if size > self.size_max {
                return Err(Error::SizeUpdateTooLarge);
            }
            self.size_owed = self.size_owed.filter(|owed| size > *owed);
            self.table.set_size_max(size);
        }
        match self.size_owed {
            Some(_) => Err(Error::SizeUpdateMissing),
            None => Ok(()),
        }
    }

    /// Appends the name and the value of a field that is sent as text: the length of the name,
    /// which it is, and what is odd.
    #[inline]
    fn literal(
        &self,
        rest: &mut Reader<'_>,
        prefix: u32,
        out: &mut Vec<u8>,
    ) -> Result<(usize, NameKind, Faults), Error> {
        let start = out.len();
        let index = rest.integer(prefix)?;
        let (name, faults) = if index == 0 {
            string(rest, out)?;
            let name = out.get(start..).unwrap_or_default();
            (NameKind::of(name), Faults::of_name(name))
        } else {
            let entry = self.entry(index)?;
            out.extend_from_slice(entry.name_bytes());
            (entry.name, entry.faults.of_its_name())
        };
        let value_start = out.len();
        string(rest, out)?;
        let value = out.get(value_start..).unwrap_or_default();
        Ok((
            value_start - start,
            name,
            faults.or(Faults::of_value(value)),
        ))
    }

    /// The field that an index denotes.
    #[inline]
    fn entry(&self, index: usize) -> Result<Entry<'_>, Error> {
        if let Some(age) = index.checked_sub(static_table::LAST + 1) {
            return self.table.field(age).ok_or(Error::IndexOutOfBound);
        }
        static_table::field(index).copied().ok_or(Error::IndexZero)
    }
}

/// How much of a list of fields there may still be.
struct List {
    /// `None` once there was too much.
    left: Option<usize>,
}

impl List {
    /// Counts a field with so many bytes; false where it is not wanted any more.
    #[inline]
    fn admits(&mut self, length: usize) -> bool {
        let size = length + FIELD_OVERHEAD;
        self.left = self.left.and_then(|left| left.checked_sub(size));
        self.left.is_some()
    }
}

/// What to tell of a field whose bytes begin at `start`.
#[inline]
fn decoded(
    start: usize,
    entry: &Entry<'_>,
    static_index: Option<u8>,
    never_indexed: bool,
) -> Decoded {
    let value_start = start + entry.name_length;
    Decoded {
        name: Span::new(start, value_start),
        value: Span::new(value_start, start + entry.text.len()),
        which: entry.name,
        faults: entry.faults,
        static_index,
        never_indexed,
    }
}

/// Appends the text that is next.
#[inline]
fn string(rest: &mut Reader<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
    let is_encoded = rest.peek().is_some_and(|first| first & 0x80 != 0);
    let length = rest.integer(7)?;
    let text = rest.take(length)?;
    if is_encoded {
        return huffman::decode(text, out);
    }
    out.extend_from_slice(text);
    Ok(())
}
