//! What a store of so many bytes takes of the machine when twenty times as much is stored, while
//! another thread reads, and once its limit has shrunk to an eighth; and the longest that one
//! operation of each thread takes, by the wall clock and by the thread's own time.
//!
//! `cargo run --release --example footprint [MIB]`. The process's memory is counted as the kernel
//! counts it (Pss of `/proc/self/smaps_rollup`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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
    let mut longest = Longest::default();
    let mut stored = 0;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&store, &is_over));
        for number in 0..KEYS {
            // Lengths from next to nothing to twice the mean, with a large one now and then.
            let length = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % (mean * 2);
            let key = number.to_le_bytes();
            let write = Write {
                content: Content::Copied(&value[..length]),
                flags: 0,
                expires: None,
                cas: Cas::Next,
                marks: 0,
                tags: Tags::None,
            };
            longest.time(|| {
                store.update(&key, 1, |_| ObjectChange::Write(write));
                // What was stored a little before is asked for, so that some of it stays.
                let known = number.saturating_sub(number % 977).to_le_bytes();
                let _ = store.get(&known, 1, |item| item.value.len());
            });
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
        assert!(counts.occupied <= limit);
        let mut setter = Longest::default();
        setter.time(|| store.set_limit(limit / 8));
        store.shrink(1);
        let taken = proportional_set_size().saturating_sub(before);
        println!("shrunk    {:>12}", store.counts().occupied);
        println!("taken     {taken:>12}  before the allocator is told");
        is_over.store(true, Ordering::Relaxed);
        println!("writer    {longest}");
        println!("limit set {setter}");
        println!(
            "reader    {}",
            reader.join().expect("the reader has come to its end")
        );
    });
}

/// Reads objects until all is over.
fn read(store: &Store, is_over: &AtomicBool) -> Longest {
    let mut longest = Longest::default();
    let mut copy = Vec::new();
    let mut number = 1_u64;
    while !is_over.load(Ordering::Relaxed) {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let key = ((number >> 33) % KEYS).to_le_bytes();
        longest.time(|| {
            store.get(&key, 1, |item| {
                if item.value.lent().is_none() {
                    copy.clear();
                    copy.extend_from_slice(item.value.bytes());
                }
            })
        });
    }
    longest
}

/// The longest of many operations.
#[derive(Default)]
struct Longest {
    count: u64,
    wall: Duration,
    above_5_ms: u64,
    processor: Duration,
}

impl Longest {
    fn time<R>(&mut self, operation: impl FnOnce() -> R) {
        let (wall, processor) = (Instant::now(), thread_time());
        operation();
        let elapsed = wall.elapsed();
        self.count += 1;
        self.wall = self.wall.max(elapsed);
        self.above_5_ms += u64::from(elapsed > Duration::from_millis(5));
        self.processor = self.processor.max(thread_time().saturating_sub(processor));
    }
}

impl std::fmt::Display for Longest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Longest {
            count,
            wall,
            above_5_ms,
            processor,
        } = self;
        write!(
            f,
            "{count} operations, the longest {wall:?} ({above_5_ms} above 5 ms), {processor:?} of \
             its thread"
        )
    }
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
