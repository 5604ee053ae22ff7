//! The table of documented differences: what may differ, and why. It also makes a section of
//! docs/differences.md.
//!
//! A row judges one difference at a time and should know no more than what its sentence tells. Rows
//! about an older nginx are of no interest to users and stand in the table alone.

mod messages;
mod older;
mod requests;
mod responses;
mod upstreams;

use std::path::{Path, PathBuf};

use crate::case::Case;
use crate::compare::Difference;
use crate::requests::Conversation;
use crate::run::{Seen, Transcript};
use crate::verdicts;

/// What stands for a line that one of the two has not logged.
pub(crate) const NO_LINE: &str = "(no such line)";

/// One documented difference.
pub(crate) struct Row {
    /// The sentence of docs/differences.md, with its reason.
    pub(crate) sentence: &'static str,
    /// Whether a difference is this one.
    is: fn(&Case, &Difference) -> bool,
}

/// Every documented difference by what it is in, in the order in which the page has them.
const TABLES: &[&[Row]] = &[
    requests::ROWS,
    responses::ROWS,
    messages::ROWS,
    upstreams::ROWS,
];

/// The version from which on the rows about older ones tell nothing.
const OLDER_UNTIL: [u32; 3] = [1, 29, 7];

/// The heading of the section that the table makes.
const HEADING: &str = "## Found by random configurations";

/// The rows that hold beside this version of nginx.
pub(crate) fn rows(version: [u32; 3]) -> impl Iterator<Item = &'static Row> {
    let older = older::ROWS.iter().filter(move |_| version < OLDER_UNTIL);
    TABLES.iter().copied().flatten().chain(older)
}

/// Parts the differences that no row knows from the numbers of rows that know the others.
pub(crate) fn judge(
    version: [u32; 3],
    configuration: &str,
    conversations: &[Conversation],
    (reference, subject): (&Transcript, &Transcript),
    found: Vec<Difference>,
) -> (Vec<Difference>, Vec<usize>) {
    // What the whole run has left behind is of no single conversation: of the errors of all.
    let silence = Conversation::default();
    let all = |transcript: &Transcript| Seen {
        errors: transcript
            .conversations
            .iter()
            .flat_map(|seen| seen.errors.iter().cloned())
            .collect(),
        ..Seen::default()
    };
    let (all_of_reference, all_of_subject) = (all(reference), all(subject));
    let pairs = reference.conversations.iter().zip(&subject.conversations);
    let turned_at = pairs
        .enumerate()
        .find(|(_, (left, right))| left.upstream.len() != right.upstream.len())
        .map(|(index, _)| index);
    let mut known = Vec::new();
    let mut unknown = Vec::new();
    for difference in found {
        let of_conversation = difference.conversation.and_then(|index| {
            Some(Case {
                configuration,
                conversation: conversations.get(index)?,
                reference: reference.conversations.get(index)?,
                subject: subject.conversations.get(index)?,
                turned: turned_at.is_some_and(|at| at <= index),
            })
        });
        let case = of_conversation.unwrap_or(Case {
            configuration,
            conversation: &silence,
            reference: &all_of_reference,
            subject: &all_of_subject,
            turned: turned_at.is_some(),
        });
        let row = rows(version).position(|row| (row.is)(&case, &difference));
        match row {
            Some(row) => known.push(row),
            None => unknown.push(difference),
        }
    }
    (unknown, known)
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/differences.md")
}

/// The page with the section as the table makes it: the sentences that stand nowhere else on it.
fn fresh(page: &str) -> Option<String> {
    let (before, rest) = page.split_once(HEADING)?;
    let after = rest.find("\n## ").map_or("", |at| &rest[at..]);
    let mut section = format!(
        "{HEADING}\n\nWhat random configurations and requests showed beside the differences above. The list is made from the \
         table of\n`tests/differential`, which fails at any other difference.\n\n"
    );
    let elsewhere = words(&format!("{before}{after}"));
    let of_traffic = TABLES.iter().copied().flatten().map(|row| row.sentence);
    let of_verdicts = verdicts::TABLE.iter().map(|row| row.sentence);
    for sentence in of_traffic.chain(of_verdicts) {
        if !elsewhere.contains(&words(sentence)) {
            section.push_str(&wrapped(sentence));
        }
    }
    Some(format!("{before}{section}{after}"))
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An entry of a list in lines of up to 120 bytes.
fn wrapped(sentence: &str) -> String {
    let mut text = String::from("-");
    let mut length = 1;
    for word in sentence.split_whitespace() {
        if length + 1 + word.len() > 120 {
            text.push_str("\n ");
            length = 1;
        }
        text.push(' ');
        text.push_str(word);
        length += 1 + word.len();
    }
    text.push('\n');
    text
}

/// Fails where docs/differences.md says something else than the table; `write` mends it.
pub(crate) fn check_page(write: bool) -> Result<(), String> {
    let say = |error: std::io::Error| format!("{}: {error}", page().display());
    let text = std::fs::read_to_string(page()).map_err(say)?;
    let fresh = fresh(&text).ok_or(format!("{} has no section {HEADING:?}", page().display()))?;
    match (fresh == text, write) {
        (true, _) => Ok(()),
        (false, true) => std::fs::write(page(), fresh).map_err(say),
        (false, false) => Err(format!(
            "{HEADING:?} in {} is stale, `make docs` writes it again",
            page().display()
        )),
    }
}
