//! How long answers are fresh by RFC 9111, and how they may be used then: the rules say of random
//! heads what a second implementation says, which is written plainly from the text.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    proxying::cache::testing::freshness(bytes);
});
