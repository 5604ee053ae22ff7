//! Ranges lie within the representation, are not empty, and are as many as are allowed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::range::{ByteRange, RangeDecision, parse};

fuzz_target!(|input: (u64, Option<u32>, &[u8])| {
    let (size, ranges_max, specs) = input;
    let value = [b"bytes=", specs].concat();
    let check = |range: &ByteRange| assert!(range.start < range.end && range.end <= size);
    match parse(&value, size, ranges_max) {
        RangeDecision::Whole | RangeDecision::Unsatisfiable => {}
        RangeDecision::One(range) => {
            check(&range);
            assert!(ranges_max.is_none_or(|max| max >= 1));
        }
        RangeDecision::Many(ranges) => {
            ranges.iter().for_each(check);
            assert!(ranges.len() >= 2);
            assert!(ranges_max.is_none_or(|max| ranges.len() as u64 <= u64::from(max)));
            assert!(ranges.iter().map(|range| range.len()).sum::<u64>() <= size);
        }
    }
    parse(specs, size, ranges_max);
});
