//! Compares both engines on patterns made at random: `differential SECONDS [SEED]`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidegate_pattern::differential::{ComparisonOutcome, Source, compare, compare_list};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| {
        arguments
            .next()
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let (seconds, mut state) = (
        number(10),
        number(1_u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
    );
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut counts, mut differences) = (BTreeMap::<String, u64>::new(), 0);
    while Instant::now() < end {
        let bytes: Vec<u8> = (0..24).flat_map(|_| next().to_le_bytes()).collect();
        let (mut source, mut subjects) = (Source::new(&bytes[..96]), Source::new(&bytes[96..]));
        let (caseless, pattern) = (source.caseless(), source.pattern());
        let subject = subjects.subject();
        let lists: Vec<u8> = (0..64).flat_map(|_| next().to_le_bytes()).collect();
        let list = Source::new(&lists).list();
        for end in [4, subject.len()] {
            match compare_list(&list, &subject[..end.min(subject.len())]) {
                Ok(compared) => *counts.entry(format!("list: {compared:?}")).or_default() += 1,
                Err(difference) => {
                    println!("list: {difference}");
                    differences += 1;
                }
            }
        }
        for end in [4, 12, 20, subject.len()] {
            match compare(&pattern, caseless, &subject[..end.min(subject.len())]) {
                Ok(ComparisonOutcome::OnPcre(beyond)) => {
                    *counts.entry(format!("PCRE2: {beyond}")).or_default() += 1
                }
                Ok(compared) => *counts.entry(format!("{compared:?}")).or_default() += 1,
                Err(difference) => {
                    println!("{difference}");
                    differences += 1;
                    break;
                }
            }
        }
    }
    println!("{counts:#?}\n{differences} differences");
    std::process::exit(i32::from(differences > 0));
}
