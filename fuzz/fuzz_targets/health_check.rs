//! Whatever servers answer in health checks, and whatever is written to be sent to them: what is
//! decided of an answer stays so however much comes, a text fits what it begins alone, and bytes
//! that are written by their numbers are those bytes.
#![no_main]

#[path = "../../crates/stream/src/health_check/answers.rs"]
mod answers;
#[path = "../../crates/stream/src/health_check/protocols.rs"]
mod protocols;

use answers::{Verdict, begins, unescaped};
use libfuzzer_sys::fuzz_target;
use protocols::CheckedProtocol;

const NAMES: [&[u8]; 4] = [b"mysql", b"postgres", b"redis", b"smtp"];

fuzz_target!(|input: (u8, &[u8], &[u8])| {
    let (kind, written, answer) = input;
    // Random bytes seldom begin as an error of PostgreSQL does, with a length that comes.
    let answer = if kind & 0x80 == 0 {
        answer.to_vec()
    } else {
        [b"E\0\0\0", &[kind & 0x7f][..], answer].concat()
    };
    let protocol = NAMES[usize::from(kind) % NAMES.len()];
    let protocol = CheckedProtocol::named(protocol).expect("a known name");
    stays(&answer, |answer| protocol.judge(answer));
    if let Some(greeting) = protocol.greeting(written) {
        assert!(greeting.starts_with(b"PING") || greeting.len() == written.len() + 15);
    }
    let _ = protocol.farewell();
    if let Some(text) = unescaped(written) {
        stays(&answer, |answer| begins(answer, &[&text]));
        let fits = begins(&answer, &[&text]) == Verdict::Fits;
        assert_eq!(fits, answer.starts_with(&text));
        let by_numbers: String = text.iter().map(|byte| format!("\\x{byte:02X}")).collect();
        assert_eq!(unescaped(by_numbers.as_bytes()), Some(text));
    }
});

/// Judges each beginning of an answer: nothing undoes what has been decided.
fn stays(answer: &[u8], judge: impl Fn(&[u8]) -> Verdict) {
    let mut before = Verdict::Undecided;
    for end in 0..=answer.len() {
        let now = judge(&answer[..end]);
        if before != Verdict::Undecided {
            assert_eq!(now, before, "after {end} bytes of {answer:?}");
        }
        before = now;
    }
}
