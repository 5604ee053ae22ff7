//! Anything done to a TCP/IP stack: segments that are almost right, calls in any order, time in any
//! steps. What must be true of it stands in `crates/netstack/tests/anything/mod.rs`.
#![no_main]

#[path = "../../crates/netstack/tests/anything/mod.rs"]
mod anything;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| anything::run(data));
