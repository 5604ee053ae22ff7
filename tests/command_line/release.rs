//! The traffic by which the build for use is laid out (`xtask release`), in a small measure: all of
//! it is answered.

use std::path::Path;

#[test]
fn the_traffic_of_the_build_for_use_is_answered() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let binary = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("release");
    let requests = 320;
    xtask::release::training::run(root, binary, &folder, requests).unwrap();
    // Of those on each engine that a log is kept of, from 15 loads.
    let log = std::fs::read_to_string(folder.join("logs/access.log")).unwrap();
    let statuses = ["200", "204", "206", "301", "302", "304", "404"];
    for status in statuses {
        let count = log.matches(&format!("\" {status} ")).count();
        assert!(count > 0, "no {status} in {} lines", log.lines().count());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
