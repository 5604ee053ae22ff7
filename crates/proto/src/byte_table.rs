//! Lookup tables with a value for each byte.

/// A value for each byte.
pub(crate) struct ByteTable<T>([T; 256]);

impl<T: Copy> ByteTable<T> {
    pub(crate) const fn new(values: [T; 256]) -> ByteTable<T> {
        ByteTable(values)
    }

    /// The value of a byte.
    #[inline(always)] // heads are parsed with it, byte by byte
    #[expect(clippy::indexing_slicing, reason = "there is a value for each byte")]
    pub(crate) const fn of(&self, byte: u8) -> T {
        self.0[byte as usize]
    }
}
