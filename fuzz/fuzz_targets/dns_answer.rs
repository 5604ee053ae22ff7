//! Whatever a name server sends: an answer has addresses of the right family, within the bounds,
//! and an alias that is another name than the one that was asked; the query that is written is
//! understood again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proto::dns::{ADDRESSES_MAX, DnsAnswer, Family, HostName, Question, answer, query};

fuzz_target!(|input: (&[u8], bool, &[u8])| {
    let (text, v6, bytes) = input;
    let family = if v6 { Family::V6 } else { Family::V4 };
    // A short name makes it likely that random bytes answer the question.
    let name = HostName::parse(text).or_else(|| HostName::parse(b"a"));
    let Some(name) = name else { return };
    let question = Question { name, family };
    let asked = query(0x1234, &question);
    assert!(asked.len() <= 512);
    // The question as an answer, with the fuzzer's bytes behind it, so that records are reached.
    let mut whole = asked.clone();
    let (flags, rest) = bytes.split_at_checked(6).unwrap_or_default();
    if let [.., _] = flags {
        whole[2] = flags[0];
        whole[3] = flags[1];
        whole[7] = flags[2];
        whole[9] = flags[3];
    }
    whole.extend_from_slice(rest);
    for message in [bytes, &whole] {
        match answer(message, 0x1234, &question) {
            Ok(DnsAnswer::Addresses { addresses, .. }) => {
                assert!(!addresses.is_empty() && addresses.len() <= ADDRESSES_MAX);
                assert!(addresses.iter().all(|address| address.is_ipv6() == v6));
            }
            Ok(DnsAnswer::Alias { name, .. }) => assert_ne!(name, question.name),
            Ok(_) => {}
            Err(rejected) => drop(rejected.to_string()),
        }
    }
});
