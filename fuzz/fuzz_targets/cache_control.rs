//! Lines of Cache-Control, of answers and of requests, by RFC 9111 and as nginx has them: each says
//! what a plain reading says.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    proxying::cache::testing::cache_control(&lines);
});
