//! Patterns that run as automata match as PCRE2 does, with the same groups; what PCRE2 takes, our
//! reader takes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pattern::differential::{Source, compare};

fuzz_target!(|input: (bool, &[u8], &[u8])| {
    let (raw, made_of, subject_of) = input;
    let mut source = Source::new(made_of);
    let caseless = source.caseless();
    // Bytes themselves try the reader; patterns made by its grammar try the meaning.
    let pattern = if raw { made_of[..made_of.len().min(64)].to_vec() } else { source.pattern() };
    let subject = Source::new(subject_of).subject();
    if let Err(difference) = compare(&pattern, caseless, &subject) {
        panic!("{difference}");
    }
});
