//! Data received after a gap, which are kept until the gap is filled and reported by SACK blocks
//! (RFC 2018).

use crate::wire::sequence::Sequence;
use crate::wire::tcp::SackBlocks;

/// Maximum number of blocks of a connection. Data that would add another block are dropped as if
/// lost.
pub(crate) const GAPS_MAX: usize = 256;

/// Memory charged for a block besides its bytes.
const BLOCK_OVERHEAD: usize = 64;

/// Blocks of data received out of order, sorted and disjoint.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    blocks: Vec<Block>,
    /// Number of segments received out of order; orders the blocks by their last growth.
    arrivals: u32,
    occupied: usize,
}

#[derive(Debug)]
struct Block {
    from: Sequence,
    bytes: Vec<u8>,
    grew: u32,
}

impl Block {
    fn end(&self) -> Sequence {
        // A block is at most as long as a window, which is less than 2^31.
        self.from + self.bytes.len() as u32
    }
}

impl Reassembly {
    /// Whether there is no block.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Memory of the blocks, in bytes.
    pub(crate) fn occupied(&self) -> usize {
        self.occupied
    }

    /// Adds the new parts of data that begin at `from`.
    pub(crate) fn insert(&mut self, from: Sequence, data: &[u8]) {
        let end = from + data.len() as u32;
        let first = self.blocks.partition_point(|block| block.end() < from);
        let last = self.blocks.partition_point(|block| block.from <= end);
        self.arrivals = self.arrivals.wrapping_add(1);
        if first == last {
            if self.blocks.len() < GAPS_MAX && !data.is_empty() {
                let block = Block {
                    from,
                    bytes: data.to_vec(),
                    grew: self.arrivals,
                };
                self.blocks.insert(first, block);
            }
        } else {
            self.join(first, last, from, data);
        }
        self.count();
    }

    /// Merges the blocks from `first` up to `last`, excluding `last`, with the data, which touch
    /// all of them.
    fn join(&mut self, first: usize, last: usize, from: Sequence, data: &[u8]) {
        let mut touched = self.blocks.drain(first..last);
        let Some(mut joined) = touched.next() else {
            return;
        };
        let rest: Vec<Block> = touched.collect();
        joined.grew = self.arrivals;
        if from < joined.from {
            let before = data
                .get(..joined.from.since(from) as usize)
                .unwrap_or_default();
            joined.bytes.splice(..0, before.iter().copied());
            joined.from = from;
        }
        append(&mut joined, from, data);
        for block in &rest {
            append(&mut joined, block.from, &block.bytes);
        }
        self.blocks.insert(first, joined);
    }

    /// Removes and returns the data that follow `next`, up to which everything has been received.
    pub(crate) fn take(&mut self, next: Sequence) -> Option<Vec<u8>> {
        while let Some(first) = self.blocks.first()
            && first.from <= next
        {
            let mut block = self.blocks.remove(0);
            let known = next.since(block.from) as usize;
            if known < block.bytes.len() {
                block.bytes.drain(..known);
                self.count();
                return Some(block.bytes);
            }
        }
        self.count();
        None
    }

    /// Drops all blocks.
    pub(crate) fn clear(&mut self) {
        *self = Reassembly::default();
    }

    /// The blocks to report, the most recently grown first (RFC 2018, section 4), at most
    /// `count_max` of them.
    pub(crate) fn report(&self, count_max: usize) -> SackBlocks {
        let mut report = SackBlocks::default();
        let mut before = None;
        for _ in 0..count_max.min(self.blocks.len()) {
            let age = |block: &Block| self.arrivals.wrapping_sub(block.grew);
            let next = self
                .blocks
                .iter()
                .filter(|block| before.is_none_or(|before| age(block) > before))
                .min_by_key(|block| age(block));
            let Some(next) = next else { break };
            before = Some(age(next));
            report.push(next.from, next.end());
        }
        report
    }

    fn count(&mut self) {
        let of = |block: &Block| block.bytes.capacity() + BLOCK_OVERHEAD;
        self.occupied = self.blocks.iter().map(of).sum();
        if self.blocks.is_empty() {
            self.blocks = Vec::new();
        }
    }
}

/// Appends the new part of `data`, which begin at `from`, not after the end of the block.
fn append(block: &mut Block, from: Sequence, data: &[u8]) {
    let known = block.end().since(from) as usize;
    block
        .bytes
        .extend_from_slice(data.get(known..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Sequence = Sequence(u32::MAX - 50);

    fn content() -> Vec<u8> {
        (0..=255).collect()
    }

    fn insert(reassembly: &mut Reassembly, from: u32, to: u32) {
        let all = content();
        reassembly.insert(BASE + from, &all[from as usize..to as usize]);
    }

    fn blocks(reassembly: &Reassembly) -> Vec<(u32, u32)> {
        let report = reassembly.report(4);
        let blocks = report.as_slice().iter();
        blocks
            .map(|(from, to)| (from.0.wrapping_sub(BASE.0), to.0.wrapping_sub(BASE.0)))
            .collect()
    }

    #[test]
    fn every_way_of_overlapping_gives_the_same_bytes() {
        for from in 1..40 {
            for to in from + 1..41 {
                let mut reassembly = Reassembly::default();
                insert(&mut reassembly, 10, 15);
                insert(&mut reassembly, 20, 25);
                insert(&mut reassembly, from, to);
                insert(&mut reassembly, 1, 41);
                assert_eq!(blocks(&reassembly), [(1, 41)]);
                assert_eq!(reassembly.take(BASE), None);
                assert_eq!(reassembly.take(BASE + 3), Some(content()[3..41].to_vec()));
                assert!(reassembly.is_empty());
                assert_eq!(reassembly.occupied(), 0);
            }
        }
    }

    #[test]
    fn the_block_that_grew_last_is_reported_first() {
        let mut reassembly = Reassembly::default();
        insert(&mut reassembly, 10, 20);
        insert(&mut reassembly, 50, 60);
        insert(&mut reassembly, 30, 40);
        assert_eq!(blocks(&reassembly), [(30, 40), (50, 60), (10, 20)]);
        insert(&mut reassembly, 60, 61);
        assert_eq!(blocks(&reassembly), [(50, 61), (30, 40), (10, 20)]);
        insert(&mut reassembly, 20, 30);
        assert_eq!(blocks(&reassembly), [(10, 40), (50, 61)]);
        assert_eq!(reassembly.report(1).as_slice().len(), 1);
    }

    #[test]
    fn gaps_are_bounded_and_what_fills_them_is_not_refused() {
        let mut reassembly = Reassembly::default();
        for number in 0..2 * GAPS_MAX as u32 {
            reassembly.insert(BASE + 2 * number, b"a");
        }
        assert_eq!(reassembly.blocks.len(), GAPS_MAX);
        reassembly.insert(BASE + 1, b"a");
        assert_eq!(reassembly.blocks.len(), GAPS_MAX - 1);
        let occupied_max = GAPS_MAX * (BLOCK_OVERHEAD + 16);
        assert!(reassembly.occupied() < occupied_max);
    }
}
