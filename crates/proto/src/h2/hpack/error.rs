//! Why a header block cannot be decoded: one variant per cause, with words for the log.

use std::fmt;

/// A fault of a header block. Every one is the other end's, and ends the connection with
/// COMPRESSION_ERROR: what its table holds from here on is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The block ends within a field.
    Truncated,
    /// The block ends within a number.
    IntegerTruncated,
    /// A number of more than 32 bits, or of more bytes than such a number takes.
    IntegerTooLong,
    /// Index 0, which denotes no field.
    IndexZero,
    /// An index behind the last field of the tables.
    IndexOutOfBound,
    /// A change of the table's size behind a field; it may only stand at the beginning of a block.
    SizeUpdateLate,
    /// A third change of the table's size in one block.
    SizeUpdateRepeated,
    /// A table that is larger than what we announced.
    SizeUpdateTooLarge,
    /// No change to the smaller size that we announced.
    SizeUpdateMissing,
    /// The code that only stands for the end is within a text.
    HuffmanEnd,
    /// More than seven bits follow the last code of a text.
    HuffmanPaddingTooLong,
    /// What follows the last code of a text is not the beginning of the code that stands for the
    /// end.
    HuffmanPadding,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Truncated | Error::IntegerTruncated => "header block with incorrect length",
            Error::IntegerTooLong => "header block with too long number",
            Error::IndexZero => "invalid hpack table index 0",
            Error::IndexOutOfBound => "out of bound hpack table index",
            Error::SizeUpdateLate => "table size update behind a header field",
            Error::SizeUpdateRepeated => "too many table size updates",
            Error::SizeUpdateTooLarge => "invalid table size update",
            Error::SizeUpdateMissing => "header block without table size update",
            Error::HuffmanEnd => "invalid encoded header field: end within a string",
            Error::HuffmanPaddingTooLong => "invalid encoded header field: too long padding",
            Error::HuffmanPadding => "invalid encoded header field: invalid padding",
        })
    }
}
