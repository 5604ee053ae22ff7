//! Why a header block cannot be decoded: one variant per cause, with log messages.

use std::fmt;

/// A decoding error. Every one is the peer's fault, and is a connection error of type
/// COMPRESSION_ERROR: the state of the dynamic table is unknown afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The block ends within a field.
    Truncated,
    /// The block ends within an integer.
    IntegerTruncated,
    /// An integer of more than 32 bits, or with more bytes than 32 bits need.
    IntegerTooLong,
    /// Index 0, which is invalid.
    IndexZero,
    /// An index beyond the end of the tables.
    IndexOutOfBound,
    /// A dynamic table size update after a field; it is allowed only at the beginning of a block.
    SizeUpdateLate,
    /// A third dynamic table size update in one block.
    SizeUpdateRepeated,
    /// A dynamic table size update beyond the size that we announced.
    SizeUpdateTooLarge,
    /// No dynamic table size update, although we announced a smaller size.
    SizeUpdateMissing,
    /// A Huffman-coded string contains the EOS symbol.
    HuffmanEnd,
    /// Padding of more than eight bits after the last symbol of a Huffman-coded string.
    HuffmanPaddingTooLong,
    /// The padding of a Huffman-coded string is not a prefix of the EOS symbol.
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
