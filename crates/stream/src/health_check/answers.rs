//! What servers answer in health checks, as it comes: knows no configuration and no session.

/// What is known of an answer as far as it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fits,
    /// What comes next may tell.
    Undecided,
    /// Whatever comes next.
    DoesNotFit,
}

/// Whether the answer begins with one of these texts.
pub(super) fn begins(answer: &[u8], texts: &[&[u8]]) -> Verdict {
    if texts.iter().any(|text| answer.starts_with(text)) {
        Verdict::Fits
    } else if texts.iter().any(|text| text.starts_with(answer)) {
        Verdict::Undecided
    } else {
        Verdict::DoesNotFit
    }
}

/// The bytes that a text stands for, in which `\xHH` is one; `None` where two hexadecimal digits
/// are missing.
pub(super) fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let Some(digits) = rest.strip_prefix(b"x").filter(|_| *first == b'\\') else {
            bytes.push(*first);
            continue;
        };
        let (digits, after) = digits.split_first_chunk::<2>()?;
        let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
        bytes.push((high? << 4 | low?) as u8);
        rest = after;
    }
    Some(bytes)
}
