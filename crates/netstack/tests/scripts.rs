//! Scripts in packetdrill's manner (`script/mod.rs` says how they read), a file for each part of
//! TCP.

#[allow(dead_code)] // The kernel's stack is played to elsewhere.
mod script;

use script::language::Case;
use script::ours::Ours;
use script::{Subject, play_file};

fn ours(case: &Case) -> Box<dyn Subject> {
    Box::new(Ours::new(&case.settings))
}

#[test]
fn connections_begin() {
    play_file("handshake", ours);
}

#[test]
fn connections_end() {
    play_file("ending", ours);
}

#[test]
fn data_come_and_go() {
    play_file("data", ours);
}

#[test]
fn losses_are_mended() {
    play_file("loss", ours);
}
