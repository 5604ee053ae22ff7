//! Replacements in a text that comes in pieces are those of a naive search in the whole text.
#![no_main]

use std::sync::Arc;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use modules::filters::sub::search::{Patterns, Replacer};

/// As few letters as this make it likely that strings are found and begin within each other.
const LETTERS: &[u8; 8] = b"aAbBcC<\0";

fuzz_target!(
    |input: (bool, bool, Vec<(Vec<u8>, u8)>, Vec<u8>, Vec<u8>)| {
        let (once, few_letters, mut pairs, sizes, mut text) = input;
        pairs.truncate(16);
        if few_letters {
            let patterns = pairs.iter_mut().map(|(pattern, _)| pattern);
            for byte in patterns.chain([&mut text]).flatten() {
                *byte = LETTERS[usize::from(*byte % 8)];
            }
        }
        let strings = pairs.iter().enumerate();
        let strings = strings.map(|(at, (string, _))| (at, Bytes::copy_from_slice(string)));
        let Some(patterns) = Patterns::new(strings.collect()) else {
            assert!(pairs.iter().all(|(string, _)| string.is_empty()));
            return;
        };
        let patterns = Arc::new(patterns);
        let expected = naive(&pairs, once, &text);
        let replaced = |sizes: &[u8]| replaced(&patterns, &pairs, once, &text, sizes);
        assert_eq!(replaced(&[]), expected);
        assert_eq!(replaced(&[1]), expected);
        assert_eq!(replaced(&sizes), expected);
    }
);

/// What stands for a string: its number and its length of choice.
fn replacement(at: usize, length: u8) -> Vec<u8> {
    vec![b'0' + at as u8; usize::from(length % 4)]
}

/// Replaces in pieces of these sizes, over and over; in one piece if there are none.
fn replaced(
    patterns: &Arc<Patterns>,
    pairs: &[(Vec<u8>, u8)],
    once: bool,
    text: &[u8],
    sizes: &[u8],
) -> Vec<u8> {
    let mut search = Replacer::new(Arc::clone(patterns), once);
    let mut out = Vec::new();
    let mut sizes = sizes.iter().cycle();
    let mut rest = text;
    while !rest.is_empty() {
        let size = sizes.next().map_or(rest.len(), |&size| usize::from(size));
        let (piece, after) = rest.split_at(size.min(rest.len()).max(1));
        rest = after;
        search.apply(
            Bytes::copy_from_slice(piece),
            |at| replacement(at, pairs[at].1).into(),
            |stretch| out.extend_from_slice(&stretch),
        );
    }
    out.extend_from_slice(&search.finish());
    out
}

/// The same by looking at every place of the whole text. Where the text ends within the first
/// string that may stand at a place, the rest is left as it is.
fn naive(pairs: &[(Vec<u8>, u8)], once: bool, text: &[u8]) -> Vec<u8> {
    let (mut out, mut used, mut rest) = (Vec::new(), vec![false; pairs.len()], text);
    while let Some((first, after)) = rest.split_first() {
        let fits = |string: &[u8]| {
            let length = string.len().min(rest.len());
            length > 0 && string[..length].eq_ignore_ascii_case(&rest[..length])
        };
        let found = pairs
            .iter()
            .enumerate()
            .find(|(at, (string, _))| !(once && used[*at]) && fits(string));
        match found {
            Some((_, (string, _))) if string.len() > rest.len() => {
                out.extend_from_slice(rest);
                break;
            }
            Some((at, (string, length))) => {
                used[at] = true;
                out.extend_from_slice(&replacement(at, *length));
                rest = &rest[string.len()..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}
