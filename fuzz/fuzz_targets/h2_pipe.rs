//! HTTP/2: both roles' machines talk through a pipe that splits and delays, as the input says:
//! which requests there are, how bodies are cut and padded, who gives credit, resets or ends what,
//! and when. Neither finds a fault in the other, what one has sent the other has got, and both have
//! the same windows in their books.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|choices: &[u8]| proto::h2::testing::talk(choices));
