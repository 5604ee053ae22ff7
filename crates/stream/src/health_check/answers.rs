//! Tests of health check responses as they are received; independent of the configuration and of
//! sessions.

/// The result for the received part of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fits,
    /// More bytes are needed.
    Undecided,
    /// The response has failed, whatever follows.
    DoesNotFit,
}

/// Whether the response starts with one of these texts.
pub(super) fn begins(answer: &[u8], texts: &[&[u8]]) -> Verdict {
    if texts.iter().any(|text| answer.starts_with(text)) {
        Verdict::Fits
    } else if texts.iter().any(|text| text.starts_with(answer)) {
        Verdict::Undecided
    } else {
        Verdict::DoesNotFit
    }
}

/// The bytes of a text, in which `\xHH` stands for one byte; `None` if two hexadecimal digits are
/// missing.
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
