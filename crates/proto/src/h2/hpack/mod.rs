//! HPACK, the header compression of HTTP/2 (RFC 7541).
//!
//! A field is sent as an index into a table that both ends keep, or as texts, which Huffman codes
//! may shorten. The [`Decoder`] reads whole header blocks, the [`Encoder`] writes those of a
//! client, and [`literal`] writes fields that depend on no connection, so that responses can be
//! prepared once for all.
//!
//! Not here: frames (the caller joins the parts of a block first), and what a request may contain
//! (RFC 9113, section 8): the decoder only tells the [faults](Faults) of each field, for it knows
//! them of every field of its table.

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

/// What the dynamic table of a connection holds at most until its ends agree upon another size (RFC
/// 9113, section 6.5.2).
pub const TABLE_SIZE_DEFAULT: usize = 4096;

/// What a field counts beside the bytes of its name and its value, in a table and in a header list
/// (RFC 7541, section 4.1).
pub const FIELD_OVERHEAD: usize = 32;

#[cfg(test)]
mod tests;
