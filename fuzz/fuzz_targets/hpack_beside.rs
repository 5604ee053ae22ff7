//! Header compression beside another implementation: what one encodes the other decodes, and of any
//! block both make the same, or both refuse it. `crates/proto/tests/hpack` does the same by seed.
#![no_main]

extern crate proto as tidegate_proto;

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/proto/tests/hpack/beside.rs"]
mod beside;

fuzz_target!(|choices: &[u8]| beside::compare(choices));
