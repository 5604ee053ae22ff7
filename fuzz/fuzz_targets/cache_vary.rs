//! Values of fields that a Vary names: in which lines and with which spaces they come, and by RFC
//! 9111 in which order and case encodings and languages do, makes no other variant.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (kind, bytes) = bytes.split_first().unwrap_or((&0, bytes));
    let names = ["accept-encoding", "accept-language", "accept-charset", "x"];
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    let name = names[usize::from(*kind) % names.len()];
    proxying::cache::testing::values_of_vary(name.as_bytes(), &lines);
});
