//! The HPACK encoder of a client, with a dynamic table: fields that repeat from request to request
//! are encoded as an index.
//!
//! Responses are encoded without a dynamic table: see [`literal`](super::literal).

use super::check::{Faults, NameKind};
use super::literal::{INDEXED, KEPT, NEVER_INDEXED, NOT_KEPT, SIZE_UPDATE, put_number, put_text};
use super::table::Table;
use super::{FIELD_OVERHEAD, TABLE_SIZE_DEFAULT, static_table};
use crate::header::KnownField;

/// Number of the most recent dynamic table entries that are searched for each field to send.
const SEARCH_MAX: usize = 64;

/// Minimum length of a Cookie value that is indexed, in bytes: an attacker could find a shorter one
/// by guessing, observing whether the guess matches the table (RFC 7541, section 7.1).
const COOKIE_INDEXED_MIN: usize = 20;

/// A field to send.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    /// The name in lower case.
    pub name: &'a [u8],
    /// The value of the field.
    pub value: &'a [u8],
    /// No hop may put the field into a dynamic table (see [`Decoded`](super::Decoded)).
    pub never_indexed: bool,
}

impl<'a> From<(&'a [u8], &'a [u8])> for Field<'a> {
    fn from((name, value): (&'a [u8], &'a [u8])) -> Self {
        Field {
            name,
            value,
            never_indexed: false,
        }
    }
}

/// Encodes the header blocks of one direction of a connection, which must be sent in the order
/// encoded.
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// The maximum table size that we want.
    desired_table_size: usize,
    /// The table's size from the next block on.
    size_next: usize,
    /// The smallest size since the last block (RFC 7541, section 4.2).
    size_least: usize,
}

/// Whether a field is to be indexed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TableUse {
    Yes,
    No,
    Never,
}

/// The result of searching the tables for a field.
enum TableMatch {
    Field(usize),
    Name(usize),
    Nothing,
}

impl Encoder {
    /// An encoder whose dynamic table has a size of `desired_table_size` at most, whatever the peer
    /// allows.
    #[must_use]
    pub fn new(desired_table_size: u32) -> Encoder {
        let mut encoder = Encoder {
            table: Table::new(TABLE_SIZE_DEFAULT),
            desired_table_size: desired_table_size as usize,
            size_next: TABLE_SIZE_DEFAULT,
            size_least: TABLE_SIZE_DEFAULT,
        };
        encoder.set_size_max(TABLE_SIZE_DEFAULT as u32);
        encoder
    }

    /// Sets the peer's SETTINGS_HEADER_TABLE_SIZE. The next block begins with a size update if
    /// necessary.
    pub fn set_size_max(&mut self, size_max: u32) {
        self.size_next = self.desired_table_size.min(size_max as usize);
        self.size_least = self.size_least.min(self.size_next);
    }

    /// Appends a header block with these fields.
    pub fn encode<'a>(&mut self, fields: impl IntoIterator<Item = Field<'a>>, out: &mut Vec<u8>) {
        self.size_updates(out);
        for field in fields {
            self.field(field, out);
        }
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

    /// Writes dynamic table size updates: to the smallest size since the last block, then to the
    /// final one.
    fn size_updates(&mut self, out: &mut Vec<u8>) {
        for size in [self.size_least, self.size_next] {
            if size != self.table.size_max() {
                put_number(size, SIZE_UPDATE, out);
                self.table.set_size_max(size);
            }
        }
        self.size_least = self.size_next;
    }

    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) {
        let Field { name, value, .. } = field;
        let which = NameKind::of(name);
        let keep = self.keep(which, field);
        let index = match self.find(which, field) {
            TableMatch::Field(index) if keep != TableUse::Never => {
                put_number(index, INDEXED, out);
                return;
            }
            TableMatch::Field(index) | TableMatch::Name(index) => index,
            TableMatch::Nothing => 0,
        };
        let kind = match keep {
            TableUse::Yes => KEPT,
            TableUse::No => NOT_KEPT,
            TableUse::Never => NEVER_INDEXED,
        };
        put_number(index, kind, out);
        if index == 0 {
            put_text(name, out);
        }
        put_text(value, out);
        if keep == TableUse::Yes {
            self.table.insert(name, value, which, Faults::NONE);
        }
    }

    fn keep(&self, which: NameKind, field: Field<'_>) -> TableUse {
        if field.never_indexed {
            return TableUse::Never;
        }
        match which {
            NameKind::Field(KnownField::Authorization | KnownField::ProxyAuthorization) => {
                TableUse::Never
            }
            NameKind::Field(KnownField::Cookie) if field.value.len() < COOKIE_INDEXED_MIN => {
                TableUse::Never
            }
            // Values that differ from one message to the next.
            NameKind::Path
            | NameKind::Field(
                KnownField::Age
                | KnownField::ContentLength
                | KnownField::ContentRange
                | KnownField::ETag
                | KnownField::IfModifiedSince
                | KnownField::IfNoneMatch
                | KnownField::IfRange
                | KnownField::LastModified
                | KnownField::Location
                | KnownField::Range
                | KnownField::SetCookie,
            ) => TableUse::No,
            // A larger field would evict most of the others.
            _ => {
                let size = field.name.len() + field.value.len() + FIELD_OVERHEAD;
                if size <= self.table.size_max() / 4 * 3 {
                    TableUse::Yes
                } else {
                    TableUse::No
                }
            }
        }
    }

    fn find(&self, which: NameKind, field: Field<'_>) -> TableMatch {
        let of_static = static_table::index_of_name(which, field.name);
        let value = of_static.and_then(|first| static_table::index_of_value(first, field.value));
        if let Some(index) = value {
            return TableMatch::Field(index);
        }
        let mut of_name = of_static;
        for age in 0..self.table.len().min(SEARCH_MAX) {
            let Some(entry) = self.table.field(age) else {
                break;
            };
            if entry.name != which || entry.name_bytes() != field.name {
                continue;
            }
            let index = static_table::LAST + 1 + age;
            if entry.value_bytes() == field.value {
                return TableMatch::Field(index);
            }
            of_name = of_name.or(Some(index));
        }
        of_name.map_or(TableMatch::Nothing, TableMatch::Name)
    }
}
