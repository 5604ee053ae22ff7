//! Writes header blocks with a table, as a client does: what repeats from request to request
//! becomes an index.
//!
//! Responses are not written so: see [`literal`](super::literal).

use super::check::{Faults, NameKind};
use super::literal::{INDEXED, KEPT, NEVER_INDEXED, NOT_KEPT, SIZE_UPDATE, put_number, put_text};
use super::table::Table;
use super::{FIELD_OVERHEAD, TABLE_SIZE_DEFAULT, static_table};
use crate::header::KnownField;

/// Fields of the table that are looked at for each field to send: the last ones.
const SEARCH_MAX: usize = 64;

/// Shorter cookies could be found out by what guesses do to a table (RFC 7541, section 7.1).
const COOKIE_INDEXED_MIN: usize = 20;

/// A field to send.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    /// The name in lower case.
    pub name: &'a [u8],
    /// The value of the field.
    pub value: &'a [u8],
    /// No table on its way may have it (see [`Decoded`](super::Decoded)).
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

/// Encodes the header blocks of one direction of a connection, which must be sent in that order.
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// The largest table that we want.
    size_wanted: usize,
    /// The size of the table from the next block on.
    size_next: usize,
    /// The smallest size that was asked for since the last block (RFC 7541, section 4.2).
    size_least: usize,
}

/// What a table is to do with a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Yes,
    No,
    Never,
}

/// What the tables have of a field.
enum TableMatch {
    Field(usize),
    Name(usize),
    Nothing,
}

impl Encoder {
    /// An encoder whose dynamic table has a size of `size_wanted` at most, whatever the peer
    /// allows.
    #[must_use]
    pub fn new(size_wanted: u32) -> Encoder {
        let mut encoder = Encoder {
            table: Table::new(TABLE_SIZE_DEFAULT),
            size_wanted: size_wanted as usize,
            size_next: TABLE_SIZE_DEFAULT,
            size_least: TABLE_SIZE_DEFAULT,
        };
        encoder.set_size_max(TABLE_SIZE_DEFAULT as u32);
        encoder
    }

    /// Takes note of the SETTINGS_HEADER_TABLE_SIZE of the other end, which learns from the next
    /// block what becomes of it.
    pub fn set_size_max(&mut self, size_max: u32) {
        self.size_next = self.size_wanted.min(size_max as usize);
        self.size_least = self.size_least.min(self.size_next);
    }

    /// Appends a block with these fields.
    pub fn encode<'a>(&mut self, fields: impl IntoIterator<Item = Field<'a>>, out: &mut Vec<u8>) {
        self.size_updates(out);
        for field in fields {
            self.field(field, out);
        }
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

    /// Tells what became of the table's size: the smallest one, then the last.
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
            TableMatch::Field(index) if keep != Keep::Never => {
                put_number(index, INDEXED, out);
                return;
            }
            TableMatch::Field(index) | TableMatch::Name(index) => index,
            TableMatch::Nothing => 0,
        };
        let kind = match keep {
            Keep::Yes => KEPT,
            Keep::No => NOT_KEPT,
            Keep::Never => NEVER_INDEXED,
        };
        put_number(index, kind, out);
        if index == 0 {
            put_text(name, out);
        }
        put_text(value, out);
        if keep == Keep::Yes {
            self.table.insert(name, value, which, Faults::NONE);
        }
    }

    fn keep(&self, which: NameKind, field: Field<'_>) -> Keep {
        if field.never_indexed {
            return Keep::Never;
        }
        match which {
            NameKind::Field(KnownField::Authorization | KnownField::ProxyAuthorization) => {
                Keep::Never
            }
            NameKind::Field(KnownField::Cookie) if field.value.len() < COOKIE_INDEXED_MIN => {
                Keep::Never
            }
            // What differs from one message to the next.
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
            ) => Keep::No,
            // What would evict most of the others.
            _ => {
                let size = field.name.len() + field.value.len() + FIELD_OVERHEAD;
                if size <= self.table.size_max() / 4 * 3 {
                    Keep::Yes
                } else {
                    Keep::No
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
