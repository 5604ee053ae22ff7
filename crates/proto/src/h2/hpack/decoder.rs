//! The HPACK decoder (RFC 7541, sections 3 and 6).
//!
//! A block is decoded to its end even if its fields exceed the caller's limit or are malformed: the
//! dynamic table must stay in step with the peer's encoder, or no later block could be decoded.

use super::check::{Faults, NameKind};
use super::integer::Reader;
use super::table::{Entry, Table};
use super::{Error, FIELD_OVERHEAD, TABLE_SIZE_DEFAULT, huffman, static_table};
use crate::Span;

/// Dynamic table size updates at the beginning of a block: to the smallest size since the last
/// block, and to the final one (RFC 7541, section 4.2).
const SIZE_UPDATES_MAX: usize = 2;

/// A decoded field, as spans of the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The name.
    pub name: Span,
    /// The value, which begins where the name ends.
    pub value: Span,
    /// The name, classified.
    pub which: NameKind,
    /// Faults of name and value.
    pub faults: Faults,
    /// The index of the static table's entry that equals the field, if encoded so: 2 is `:method:
    /// GET`.
    pub static_index: Option<u8>,
    /// The sender forbids indexing, also when the field is forwarded (RFC 7541, section 7.1.3).
    pub never_indexed: bool,
}

/// The outcome of decoding a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodedBlock {
    /// The caller has received every field.
    Whole,
    /// The fields exceed the limit; the caller has received only those within it.
    TooLarge,
}

/// Decodes the header blocks of one direction of a connection, in order.
///
/// Its memory is at most twice the maximum size of the dynamic table, and none while the table is
/// empty.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// The maximum table size that the peer may choose.
    size_max: usize,
    /// We have announced a smaller maximum than the table has: the next block must begin with a
    /// size update to this size or less.
    size_update_due: Option<usize>,
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
            size_update_due: None,
        }
    }

    /// Sets the SETTINGS_HEADER_TABLE_SIZE that we announced, once the peer has acknowledged it:
    /// from then on its table must not be larger.
    pub fn set_size_max(&mut self, size_max: u32) {
        self.size_max = size_max as usize;
        if self.size_max < self.table.size_max() {
            let owed = self.size_update_due.unwrap_or(self.size_max);
            self.size_update_due = Some(owed.min(self.size_max));
        }
    }

    /// Decodes a complete block. Appends the bytes of each field to `out`, then calls `sink` with
    /// the field and all of `out`.
    ///
    /// Once the total size of the fields, with [`FIELD_OVERHEAD`] for each, exceeds `list_size_max`
    /// (RFC 9113, section 6.5.2), the remaining fields are decoded but not reported. `out` grows at
    /// most by `list_size_max` and one field. A field is limited by the sizes of the table and of
    /// the block, of which Huffman decoding makes up to eight fifths.
    ///
    /// # Errors
    /// The block is malformed: no further block of the connection can be decoded.
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

    /// Counter of changes to the dynamic table. If it is the same before and after a block, the
    /// block does not change the table. While the counter keeps that value, an identical block has
    /// the same meaning.
    #[must_use]
    pub fn changes(&self) -> u32 {
        self.table.changes()
    }

    /// Current size of the dynamic table, by RFC 7541, section 4.1.
    #[cfg(test)]
    pub(super) fn table_size(&self) -> usize {
        self.table.size()
    }

    /// Allocated memory of the table, in bytes.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.table.memory()
    }

    /// Reads the dynamic table size updates at the beginning of a block.
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
            self.size_update_due = self.size_update_due.filter(|owed| size > *owed);
            self.table.set_size_max(size);
        }
        match self.size_update_due {
            Some(_) => Err(Error::SizeUpdateMissing),
            None => Ok(()),
        }
    }

    /// Appends the name and the value of a literal field. Returns the length of the name, its kind,
    /// and the faults.
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

    /// The table entry with this index.
    #[inline]
    fn entry(&self, index: usize) -> Result<Entry<'_>, Error> {
        if let Some(age) = index.checked_sub(static_table::LAST + 1) {
            return self.table.field(age).ok_or(Error::IndexOutOfBound);
        }
        static_table::field(index).copied().ok_or(Error::IndexZero)
    }
}

/// The remaining size that a header list may have.
struct List {
    /// `None` once the limit is exceeded.
    left: Option<usize>,
}

impl List {
    /// Counts a field with `length` bytes of name and value; false if the limit is exceeded.
    #[inline]
    fn admits(&mut self, length: usize) -> bool {
        let size = length + FIELD_OVERHEAD;
        self.left = self.left.and_then(|left| left.checked_sub(size));
        self.left.is_some()
    }
}

/// A table entry as a decoded field, whose bytes begin at `start` in the caller's buffer.
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

/// Reads a string, and appends it.
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
