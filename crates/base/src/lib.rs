//! Bytes, slab, timer wheel, hash and limits, without anything of Tidegate above it.
