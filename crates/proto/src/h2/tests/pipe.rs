//! Both ends of a connection, with a pipe that splits and delays the bytes, by seed.

use super::seeds::Seeded;
use crate::h2::testing::talk;

const TALK: Seeded = Seeded {
    length_max: 4000,
    run: talk,
};

#[test]
fn both_ends_agree() {
    TALK.each(500);
}

#[test]
#[ignore = "runs for FOR seconds"]
fn both_ends_agree_for_long() {
    TALK.for_long();
}
