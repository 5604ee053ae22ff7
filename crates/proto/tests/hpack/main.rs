//! Header compression beside another implementation, by seed.

mod beside;
// As the machines' own tests have them.
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
