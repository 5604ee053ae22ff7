//! The scripts of `scripts.rs` beside the kernel's stack. Where it does otherwise, `DIFFERENCES`
//! says why, and docs/decisions/netstack.md in more words.

#[allow(dead_code)] // Scripts are played to our stack elsewhere.
mod script;

use std::process::{Command, Stdio};

use script::language::Case;
use script::linux::Linux;
use script::{cases, play};

const FILES: [&str; 4] = ["handshake", "ending", "data", "loss"];

/// Names the case that a child process plays.
const CASE: &str = "NETSTACK_LINUX_CASE";

/// Cases whose time is longer, or whose settings are of our stack alone, are not played.
const SECONDS_MAX: f64 = 4.0;

/// Attempts of a case that should go as with us: the time is real, and the machine may be busy.
const ATTEMPTS: usize = 8;

/// Beginnings of names of the cases that go otherwise with Linux, and how.
const DIFFERENCES: &[(&str, &str)] = &[
    (
        "data and end may come with the last segment of the handshake",
        "the acknowledgment of data that come with it is delayed, also of an end",
    ),
    (
        "a SYN with data",
        "before it is accepted, a connection acknowledges everything at once",
    ),
    (
        "what a router or a host says of a SYN",
        "any message of an unreachable host ends an attempt to connect",
    ),
    (
        "an end follows everything that was sent before it",
        "no segment is longer than half of the largest window that was offered",
    ),
    (
        "data for one that was let go of are reset",
        "the reset acknowledges nothing",
    ),
    (
        "a reset at its place ends",
        "the window is 64,240 bytes, so that a reset at 65,536 is outside of it",
    ),
    (
        "a reset does not end TIME-WAIT",
        "it does, unless tcp_rfc1337 is set",
    ),
    (
        "a new connection takes the place of TIME-WAIT",
        "the numbers of the next connection begin two places further",
    ),
    (
        "or its clock is",
        "the numbers of the next connection begin two places further",
    ),
    (
        "unread data outlive TIME-WAIT's place",
        "the numbers of the next connection begin two places further",
    ),
    (
        "every second segment is acknowledged at once",
        "only if the application has read, so that the window grows",
    ),
    (
        "what is sent while a probe is out stands at its place",
        "a probe is an empty segment one place before the window",
    ),
    (
        "what is sent after a window has shrunk",
        "a smaller window is taken only from a segment that brings news",
    ),
    (
        "a closed window keeps an end back, too",
        "a probe is an empty segment one place before the window",
    ),
    (
        "a window that shrinks is none to send into",
        "a smaller window is taken only from a segment that brings news",
    ),
    (
        "urgent data are data",
        "the last byte before the urgent pointer is taken out of the stream",
    ),
    (
        "a router has a smaller MTU",
        "a message about the place behind what is on its way counts as well",
    ),
    (
        "three duplicates are a loss",
        "the window shrinks by and by (RFC 6937), so that new data go with each duplicate",
    ),
    (
        "segments of long ago are dropped",
        "a segment without clocks is taken all the same",
    ),
    (
        "a duplicate is one only without data",
        "there are no more duplicates than segments on their way",
    ),
    (
        "after a timeout duplicates are of what was sent in vain",
        "slow start grows by all segments that were acknowledged, not by one",
    ),
    (
        "a timeout sends again what was not reported",
        "a probe of the tail (RFC 8985) leaves before the timeout",
    ),
    (
        "the clock that is sent back is that of the segment",
        "every second segment is acknowledged only if the application has read",
    ),
    (
        "with clocks also what was sent again is timed",
        "an echo of what was sent first counts as a round trip",
    ),
];

fn is_played(case: &Case) -> bool {
    let seconds: f64 = case.steps.iter().map(|step| step.delay.as_secs_f64()).sum();
    seconds <= SECONDS_MAX && !case.is_ours_alone
}

/// Plays one case, in a process that has a namespace for itself.
fn play_here(name: &str) {
    let (file, number) = name.split_once(':').unwrap();
    let case = &cases(file)[number.parse::<usize>().unwrap()];
    let mut linux = Linux::new(&case.settings);
    if let Err(what) = play(case, &mut linux) {
        panic!("DIFFERENT: {what}");
    }
}

/// What is different, if anything is.
fn play_there(name: &str, attempts: usize) -> Option<String> {
    let mut last = None;
    for _ in 0..attempts {
        let output = Command::new("unshare")
            .arg("-n")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "linux_does_the_same", "--nocapture"])
            .env(CASE, name)
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap();
        if output.status.success() {
            return None;
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        last = Some(said);
    }
    last
}

#[test]
fn linux_does_the_same() {
    if let Ok(name) = std::env::var(CASE) {
        return play_here(&name);
    }
    let allowed = Command::new("unshare")
        .args(["-n", "test", "-w", "/dev/net/tun"])
        .stderr(Stdio::null())
        .status();
    if !allowed.is_ok_and(|status| status.success()) {
        let is_known = std::env::var_os("TIDEGATE_TEST_WITHOUT_NAMESPACES").is_some();
        assert!(
            is_known,
            "no network namespace with a TUN device can be made here (root, unshare(1), \
             /dev/net/tun); TIDEGATE_TEST_WITHOUT_NAMESPACES=1 skips the test"
        );
        eprintln!("skipped: no network namespace with a TUN device can be made here");
        return;
    }
    let mut wrong = Vec::new();
    let mut played = 0;
    for file in FILES {
        for (number, case) in cases(file).iter().enumerate() {
            if !is_played(case) {
                continue;
            }
            played += 1;
            let known = DIFFERENCES
                .iter()
                .find(|(name, _)| case.name.starts_with(name));
            let attempts = if known.is_some() { 1 } else { ATTEMPTS };
            match (play_there(&format!("{file}:{number}"), attempts), known) {
                (Some(what), None) => wrong.push(format!("{}: {what}", case.name)),
                (None, Some((name, _))) => wrong.push(format!("{name}: Linux does the same")),
                _ => {}
            }
        }
    }
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/decisions/netstack.md"
    );
    let page = std::fs::read_to_string(page).unwrap().replace('\n', " ");
    let missing = DIFFERENCES.iter().filter(|(_, how)| !page.contains(how));
    wrong.extend(missing.map(|(_, how)| format!("docs/decisions/netstack.md lacks: {how}")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(played > 40, "{played} cases");
}
