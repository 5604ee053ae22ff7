//! What memcached would make of an item: its size there, and the slab class that it would be in.
//!
//! There are no slabs here; tools that read statistics divide by the size of a class.

/// Bytes of memcached's item head, with its CAS.
const HEAD: usize = 48 + 8;

/// Smallest chunk: a head without a CAS and 48 bytes.
const CHUNK_MIN: usize = 96;

/// Largest chunk of a class that is not the last.
const CHUNK_MAX: usize = 512 * 1024;

/// How many classes there are, with class 0, which has no items.
pub(crate) const CLASSES: usize = classes();

/// The chunk of each class. The last one takes whatever is larger, too.
pub(crate) static CHUNKS: [usize; CLASSES] = chunks();

/// What an item with these lengths and flags takes in memcached. That is what `-I` is compared
/// with.
pub(crate) fn item_size(key: usize, flags: u32, value: usize) -> usize {
    const LINE_BREAK: usize = 2;
    const ZERO: usize = 1;
    let flags = if flags == 0 { 0 } else { 4 };
    HEAD + key + ZERO + flags + value + LINE_BREAK
}

/// The next chunk: memcached's factor of 1.25, rounded up to eight bytes.
const fn next(chunk: usize) -> usize {
    (chunk * 5 / 4).next_multiple_of(8)
}

const fn classes() -> usize {
    let (mut class, mut chunk) = (1, CHUNK_MIN);
    while chunk < CHUNK_MAX {
        chunk = next(chunk);
        class += 1;
    }
    class + 1
}

const fn chunks() -> [usize; CLASSES] {
    let mut chunks = [0; CLASSES];
    let (mut class, mut chunk) = (1, CHUNK_MIN);
    while class < CLASSES {
        chunks[class] = chunk;
        chunk = next(chunk);
        class += 1;
    }
    chunks
}

/// The number of the class, from 1.
pub(crate) fn class_of(size: usize) -> usize {
    CHUNKS
        .partition_point(|chunk| *chunk < size)
        .clamp(1, CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_memcached() {
        // `stats items` of memcached 1.6.18 for `set a 5 0 3`.
        assert_eq!(item_size(1, 5, 3), 67);
        assert_eq!(class_of(67), 1);
        assert_eq!(class_of(96), 1);
        assert_eq!(class_of(97), 2);
        // Its t/evictions.t has values of 66,560 bytes in class 31.
        assert_eq!(class_of(item_size(4, 0, 66_560)), 31);
        assert_eq!(class_of(1 << 30), CLASSES - 1);
        assert_eq!(class_of(CHUNKS[CLASSES - 2] + 1), CLASSES - 1);
    }
}
