//! HPACK, the header compression of HTTP/2 (RFC 7541).
//!
//! A field is encoded as an index into a table that both ends maintain, or as literal strings,
//! optionally Huffman-coded. The [`Decoder`] decodes header blocks. The [`Encoder`] encodes the
//! blocks of a client. [`literal`] encodes fields without reference to the dynamic table, so that
//! one encoded response can be sent on all connections.
//!
//! Not here: frames (the caller joins the parts of a block), and the rules for messages (RFC 9113,
//! section 8). The decoder only reports the [faults](Faults) of each field, which it computes once
//! for every entry of its table.

mod check;
mod decoder;
mod encoder;
mod error;
mod huffman;
mod integer;
pub mod literal;
mod static_table;
mod table;

pub use check::{Faults, NameKind};
pub use decoder::{Decoded, DecodedBlock, Decoder};
pub use encoder::{Encoder, Field};
pub use error::Error;

/// Initial maximum size of a dynamic table, in bytes (RFC 9113, section 6.5.2).
pub const TABLE_SIZE_DEFAULT: usize = 4096;

/// Added to the length of name and value for the size of a field, in a table and in a header list
/// (RFC 7541, section 4.1).
pub const FIELD_OVERHEAD: usize = 32;

#[cfg(test)]
mod tests;
