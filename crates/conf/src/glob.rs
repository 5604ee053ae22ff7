//! File name patterns of C's `glob()`, which nginx's `include` accepts: `*`, `?`, `[a-z]`,
//! `[!a-z]`, and `\` to escape a byte.
//!
//! A wildcard matches neither `/` nor a `.` at the beginning of a name. Character classes
//! (`[[:alpha:]]`) and equivalence classes are not supported; nor, as in nginx, are braces and `~`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Whether a path is a pattern: whether it holds any of `*?[`.
pub(crate) fn is_pattern(path: &[u8]) -> bool {
    memchr::memchr3(b'*', b'?', b'[', path).is_some()
}

/// The paths that match a pattern, sorted by bytes.
pub(crate) fn expand(pattern: &Path) -> Vec<PathBuf> {
    let pattern = pattern.as_os_str().as_bytes();
    let root: &[u8] = if pattern.starts_with(b"/") { b"/" } else { b"" };
    let mut paths = vec![root.to_vec()];
    let parts: Vec<&[u8]> = pattern.split(|byte| *byte == b'/').collect();
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        paths = if is_pattern(part) {
            paths
                .iter()
                .flat_map(|folder| matching_entries(folder, part))
                .collect()
        } else {
            paths
                .iter()
                .map(|folder| join(folder, &unescape(part)))
                .collect()
        };
    }
    let exists = |path: &PathBuf| path.symlink_metadata().is_ok();
    let mut paths: Vec<PathBuf> = paths.into_iter().map(path_of).filter(exists).collect();
    paths.sort_unstable_by(|one, other| one.as_os_str().cmp(other.as_os_str()));
    paths
}

fn matching_entries(folder: &[u8], pattern: &[u8]) -> Vec<Vec<u8>> {
    let place = if folder.is_empty() {
        PathBuf::from(".")
    } else {
        path_of(folder.to_vec())
    };
    let Ok(entries) = std::fs::read_dir(place) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| fits(pattern, entry.file_name().as_bytes()))
        .map(|entry| join(folder, entry.file_name().as_bytes()))
        .collect()
}

fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if folder.is_empty() || folder.ends_with(b"/") {
        b""
    } else {
        b"/"
    };
    [folder, slash, name].concat()
}

fn path_of(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(&bytes))
}

fn unescape(part: &[u8]) -> Vec<u8> {
    let mut escaped = false;
    let mut keep = |byte: &u8| {
        escaped = *byte == b'\\' && !escaped;
        !escaped
    };
    part.iter().copied().filter(|byte| keep(byte)).collect()
}

/// Whether a pattern matches a whole name.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    if name.starts_with(b".") && !pattern.starts_with(b".") && !pattern.starts_with(b"\\.") {
        return false;
    }
    let (mut pattern, mut name) = (pattern, name);
    // The pattern and the name from which to continue after a mismatch: the last `*` then matches
    // one more byte of the name.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        let step = match pattern.split_first() {
            Some((b'*', after)) => {
                retry = Some((after, name));
                pattern = after;
                continue;
            }
            None if name.is_empty() => return true,
            None => None,
            Some(_) => name
                .split_first()
                .and_then(|(byte, rest)| one(pattern, *byte).map(|after| (after, rest))),
        };
        match (step, retry) {
            (Some((after, rest)), _) => (pattern, name) = (after, rest),
            (None, Some((after, [_, rest @ ..]))) => {
                retry = Some((after, rest));
                (pattern, name) = (after, rest);
            }
            (None, _) => return false,
        }
    }
}

/// Matches the first element of a pattern (a byte, `?` or a set) with a byte. Returns the rest of
/// the pattern, or `None` if the byte does not match.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [b'?', after @ ..] => Some(after),
        [b'[', after @ ..] => match set(after, byte) {
            Some((contained, after)) => contained.then_some(after),
            // Without `]`, the bracket is literal.
            None => (byte == b'[').then_some(after),
        },
        [b'\\', literal, after @ ..] | [literal, after @ ..] => (*literal == byte).then_some(after),
        [] => None,
    }
}

/// Whether a byte is in the set whose text follows the `[`, and the text after the `]`. `None`
/// without a `]`.
fn set(text: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let (negated, mut rest) = match text {
        [b'!' | b'^', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let mut contained = false;
    let mut first = true;
    loop {
        let (low, after) = match rest {
            [b']', after @ ..] if !first => return Some((contained != negated, after)),
            [b'\\', low, after @ ..] | [low, after @ ..] => (*low, after),
            [] => return None,
        };
        first = false;
        (contained, rest) = match after {
            [b'-', high, after @ ..] if *high != b']' => {
                (contained || (low..=*high).contains(&byte), after)
            }
            _ => (contained || low == byte, after),
        };
    }
}
