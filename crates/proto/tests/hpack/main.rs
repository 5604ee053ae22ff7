//! HPACK compared with another implementation, by seed.

mod beside;
// The same file as in the crate's own tests.
#[path = "../../src/h2/tests/seeds.rs"]
mod seeds;

use seeds::Seeded;

const COMPARE: Seeded = Seeded {
    length_max: 600,
    run: beside::compare,
};

#[test]
fn both_implementations_agree() {
    COMPARE.each(400);
}

#[test]
#[ignore = "runs for FOR seconds"]
fn both_implementations_agree_for_long() {
    COMPARE.for_long();
}
