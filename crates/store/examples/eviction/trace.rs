//! Traces of requests by a seed: which object is asked for, by number.

/// A trace; see [`Trace::requests`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trace {
    pub(crate) name: &'static str,
    /// How unequal objects are: the one with rank r is asked for as r to the power of minus this.
    pub(crate) exponent: f64,
    /// How many objects there are.
    pub(crate) objects: u32,
    pub(crate) requests: usize,
    /// After so many requests a scan asks once for objects of its own; 0 where none does.
    pub(crate) scan_every: usize,
    /// Objects of a scan.
    pub(crate) scan: u32,
    pub(crate) seed: u64,
}

/// The traces that the store is judged by, with so many objects and five times as many requests:
/// each with scans and without.
pub(crate) fn traces(objects: u32) -> [Trace; 6] {
    let plain = |name, exponent, seed| Trace {
        name,
        exponent,
        objects,
        requests: objects as usize * 5,
        scan_every: 0,
        scan: 0,
        seed,
    };
    let scanned = |name, exponent, seed| Trace {
        scan_every: objects as usize / 5,
        scan: objects / 40,
        ..plain(name, exponent, seed)
    };
    [
        plain("zipf-0.8", 0.8, 1),
        plain("zipf-0.9", 0.9, 3),
        plain("zipf-1.0", 1.0, 2),
        scanned("zipf-0.8-scans", 0.8, 1),
        scanned("zipf-0.9-scans", 0.9, 3),
        scanned("zipf-1.0-scans", 1.0, 2),
    ]
}

impl Trace {
    /// The numbers of the objects that are asked for, in order.
    pub(crate) fn requests(&self) -> Vec<u32> {
        let mut sum = 0.0;
        let ranks = 1..=self.objects;
        let cumulative: Vec<f64> = ranks
            .map(|rank| {
                sum += f64::from(rank).powf(-self.exponent);
                sum
            })
            .collect();
        let mut random = self.seed;
        let mut scanned = self.objects;
        let mut requests = Vec::with_capacity(self.requests);
        while requests.len() < self.requests {
            if self.scan_every > 0 && requests.len() % self.scan_every == self.scan_every - 1 {
                requests.extend(scanned..scanned + self.scan);
                scanned += self.scan;
            }
            let share = next(&mut random) as f64 / u64::MAX as f64;
            let rank = cumulative.partition_point(|until| *until < share * sum);
            requests.push(rank as u32);
        }
        requests
    }
}

/// How many different objects are asked for.
pub(crate) fn footprint(requests: &[u32]) -> usize {
    let last = requests.iter().max().copied().unwrap_or(0);
    let mut seen = vec![false; last as usize + 1];
    requests
        .iter()
        .for_each(|number| seen[*number as usize] = true);
    seen.iter().filter(|is| **is).count()
}

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
