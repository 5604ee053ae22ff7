//! How many requests of three traces the store answers at 1 % and 10 % of what they ask for.
//!
//! `cargo run --release --example eviction [FOLDER]`. With a folder each trace is also written
//! there, as a file with a number a line, so that another cache can be given the same; the third
//! column is how many objects that one may hold.

mod replay;
mod trace;

use std::fmt::Write as _;

/// Objects of a trace.
const OBJECTS: u32 = 300_000;

fn main() -> std::io::Result<()> {
    let folder = std::env::args().nth(1);
    println!("trace\tshare\tobjects\thits");
    for trace in trace::traces(OBJECTS) {
        let requests = trace.requests();
        let footprint = trace::footprint(&requests);
        for share in [100, 10] {
            let replayed = replay::replay(&requests, footprint / share);
            let (objects, ratio) = (replayed.objects, replayed.ratio(&requests));
            println!("{}\t1/{share}\t{objects}\t{ratio:.2} %", trace.name);
        }
        if let Some(folder) = &folder {
            let mut lines = String::new();
            for number in &requests {
                let _ = writeln!(lines, "{number}");
            }
            std::fs::write(format!("{folder}/{}.txt", trace.name), lines)?;
        }
    }
    Ok(())
}
