//! Cases that failed and passed when they were run again: counted, and remembered from run to run.
//!
//! One such case in a while is a busy machine. The same case in [`IN_A_ROW`] runs in a row is a
//! fault of the case or of Tidegate, and fails the run. The counts lie in the build folder, so a
//! new clone begins at none.

use std::collections::{BTreeMap, BTreeSet};

/// In how many runs in a row a case may be flaky before that is a failure.
const IN_A_ROW: u32 = 3;

/// The counts after this run, as text for the next one, and a finding for each name that was flaky
/// too often.
///
/// `counts` are those after the run before, `flaky` the names of this run. A name that is not flaky
/// any more is forgotten if `ran` says that this run had it.
pub(crate) fn count(
    counts: &str,
    flaky: &BTreeSet<&str>,
    ran: impl Fn(&str) -> bool,
) -> (String, Vec<String>) {
    let mut after: BTreeMap<&str, u32> = counts
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(count, name)| Some((name, count.parse().ok()?)))
        .filter(|(name, _)| flaky.contains(name) || !ran(name))
        .collect();
    for name in flaky {
        *after.entry(name).or_default() += 1;
    }
    let findings = after
        .iter()
        .filter(|(name, count)| **count >= IN_A_ROW && flaky.contains(*name))
        .map(|(name, count)| format!("test {name} ... FAILED: flaky in {count} runs in a row"));
    let findings = findings.collect();
    let text = after
        .iter()
        .map(|(name, count)| format!("{count} {name}\n"))
        .collect();
    (text, findings)
}

/// Fails the run where the counting does not count: this program has no tests of cargo's kind.
pub(crate) fn check_itself() {
    let flaky = BTreeSet::from(["log/bytes on epoll"]);
    let mut counts = String::from("2 gzip/level on epoll\n");
    for run in 1..=IN_A_ROW {
        // This run has the area `log` only.
        let (after, findings) = count(&counts, &flaky, |name| name.starts_with("log/"));
        assert_eq!(findings.len(), usize::from(run == IN_A_ROW));
        counts = after;
    }
    assert_eq!(counts, "2 gzip/level on epoll\n3 log/bytes on epoll\n");
    let (after, findings) = count(&counts, &BTreeSet::new(), |_| true);
    assert_eq!((after.as_str(), findings.len()), ("", 0));
}
