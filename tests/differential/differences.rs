//! The table of documented differences: what may differ, and why. It also makes a section of docs/differences.md.

use crate::compare::{Difference, Part};
use crate::run::{Seen, Transcript};

/// What a row judges by.
pub(crate) struct Case<'a> {
    /// What has been seen of the conversation of the reference and of Tidegate.
    pub(crate) reference: Option<&'a Seen>,
    pub(crate) subject: Option<&'a Seen>,
}

/// One documented difference.
pub(crate) struct Row {
    /// The sentence of docs/differences.md, with its reason.
    pub(crate) sentence: &'static str,
    /// The first version of nginx that answers as Tidegate: the row is for older ones only, and not in docs/differences.md.
    pub(crate) until: Option<[u32; 3]>,
    /// Whether a difference is this one.
    pub(crate) is: fn(&Case, &Difference) -> bool,
}

/// Every documented difference.
pub(crate) const TABLE: &[Row] = &[
    Row {
        sentence: "**100 Continue** is sent when something reads the body. nginx also sends it before it drops a body that no \
                   handler reads, so that the client sends it for nothing.",
        until: None,
        is: |case, difference| {
            difference.part == Part::Status
                && has_interim(case.reference)
                && !has_interim(case.subject)
        },
    },
    Row {
        sentence: "**After a 412.** A failed precondition lets the connection go on, as its head says. nginx announces \
                   `keep-alive` and closes.",
        until: None,
        is: |case, difference| {
            let after_412 = |seen: Option<&Seen>| {
                seen.is_some_and(|seen| {
                    seen.heard
                        .answers
                        .iter()
                        .flatten()
                        .any(|answer| answer.status() == 412)
                })
            };
            (difference.part == Part::Ending || difference.key == "answers")
                && after_412(case.reference)
                && after_412(case.subject)
        },
    },
];

fn has_interim(seen: Option<&Seen>) -> bool {
    seen.is_some_and(|seen| {
        seen.heard
            .answers
            .iter()
            .flatten()
            .any(|answer| answer.status() == 100)
    })
}

/// Parts the differences that no row knows from the numbers of rows that know the others.
pub(crate) fn judge(
    version: [u32; 3],
    (reference, subject): (&Transcript, &Transcript),
    found: Vec<Difference>,
) -> (Vec<Difference>, Vec<usize>) {
    let mut known = Vec::new();
    let unknown = found.into_iter().filter(|difference| {
        let at = |transcript: &'_ Transcript| {
            difference
                .conversation
                .map(|index| index.min(transcript.conversations.len()))
        };
        let case = Case {
            reference: at(reference).and_then(|index| reference.conversations.get(index)),
            subject: at(subject).and_then(|index| subject.conversations.get(index)),
        };
        let holds = |row: &Row| {
            row.until.is_none_or(|until| version < until) && (row.is)(&case, difference)
        };
        let row = TABLE.iter().position(holds);
        known.extend(row);
        row.is_none()
    });
    let unknown = unknown.collect();
    (unknown, known)
}
