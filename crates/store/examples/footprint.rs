//! What a store of so many bytes takes of the machine when twenty times as much is stored, and the
//! longest that one operation takes, by the thread's own time.
//!
//! `cargo run --release --example footprint [MIB]`. The process's memory is counted as the kernel
//! counts it (Pss of `/proc/self/smaps_rollup`).

use std::time::Duration;

use tidegate_store::{Cas, Content, ObjectChange, Settings, Store, Tags, Write};

/// Objects that are stored.
const KEYS: u64 = 1_000_000;

/// How many times the bound they are together.
const TIMES: usize = 20;

fn main() {
    let mib: usize = std::env::args()
        .nth(1)
        .and_then(|mib| mib.parse().ok())
        .unwrap_or(64);
    let limit = mib << 20;
    let before = proportional_set_size();
    let store = Store::new(Settings {
        limit,
        value_max: 1 << 20,
        evicts: true,
    });
    let mean = limit * TIMES / KEYS as usize;
    let value = vec![7; mean * 2];
    let mut longest = Duration::ZERO;
    let mut stored = 0;
    for number in 0..KEYS {
        // Lengths from next to nothing to twice the mean, with a large one now and then.
        let length = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % (mean * 2);
        let key = number.to_le_bytes();
        let begun = thread_time();
        let write = Write {
            content: Content::Copied(&value[..length]),
            flags: 0,
            expires: None,
            cas: Cas::Next,
            marks: 0,
            tags: Tags::None,
        };
        store.update(&key, 1, |_| ObjectChange::Write(write));
        // What was stored a little before is asked for, so that some of it stays.
        let known = number.saturating_sub(number % 977).to_le_bytes();
        let _ = store.get(&known, 1, |item| item.value.len());
        longest = longest.max(thread_time().saturating_sub(begun));
        stored += length + key.len();
    }
    let counts = store.counts();
    let taken = proportional_set_size().saturating_sub(before);
    println!("limit     {limit:>12}");
    println!("stored    {stored:>12}");
    println!("occupied  {:>12}", counts.occupied);
    println!(
        "taken     {taken:>12}  {:.3} of the limit",
        taken as f64 / limit as f64
    );
    println!("objects   {:>12}", counts.objects);
    println!("longest   {:>12?}", longest);
    assert!(counts.occupied <= limit);
}

/// How long this thread has run.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Bytes of memory that count for this process.
fn proportional_set_size() -> usize {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    kib.unwrap_or(0) * 1024
}
