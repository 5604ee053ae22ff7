//! Request targets (RFC 3986, RFC 9112 section 3.2): decoding and normalisation of the path that
//! locations are matched against, and escaping.
//!
//! A path is decoded once, its `.` and `..` segments are removed and, unless `merge_slashes` is
//! off, adjacent slashes are merged. A path that leads above the root, or contains a zero byte or
//! an invalid percent-encoding, is rejected. The order of these steps is nginx's: `%2f` separates
//! segments, `%2e` is a dot, and `%3f`, `%23` and `%25` are ordinary characters.
//!
//! Not here: the syntax of the request line (see [`crate::h1`]), file names, `alias` and `root`.

mod escape;

pub use escape::{Escape, Unescape, escape, escaped_length, unescape, write_html};

use crate::Span;
use crate::byte_table::ByteTable;

/// The target cannot be normalised; the response is 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadUri;

/// The parts of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The query without its `?`, as a span of the raw target; `None` if there is no `?`. A
    /// fragment is not included.
    pub args: Option<Span>,
    /// The path's extension (`html`), as a span of the path; `None` if the last segment has no dot,
    /// or only a leading one.
    pub extension: Option<Span>,
    /// Whether the path contains a `+`, literal or percent-encoded.
    pub plus: bool,
    /// Whether the path in the raw target contains a percent-encoded byte.
    pub quoted: bool,
}

/// Decodes and normalises a target in origin form (`/a/../b?c`), and stores the path in `path`,
/// which is cleared first. An absolute target with an empty path begins with `?` here; its path is
/// `/`.
///
/// The path is never longer than the target plus the slash of an empty path.
///
/// # Errors
/// [`BadUri`] for `..` above the root, `%00`, and `%` without two hexadecimal digits.
pub fn normalise(raw: &[u8], merge_slashes: bool, path: &mut Vec<u8>) -> Result<Parts, BadUri> {
    path.clear();
    path.reserve(raw.len() + 1);
    if raw.first() == Some(&b'?') {
        path.push(b'/');
    }
    let mut parts = Parts::default();
    let mut segment = Segment::Inside;
    let mut extension = None;
    let mut at = 0;
    let mut end = None;
    while let Some(&byte) = raw.get(at) {
        at += 1;
        if is_plain(byte) {
            path.push(byte);
            segment = Segment::Inside;
            continue;
        }
        let (byte, quoted) = match byte {
            b'%' => {
                parts.quoted = true;
                let byte = hex_pair(raw.get(at..at + 2))
                    .filter(|&byte| byte != 0)
                    .ok_or(BadUri)?;
                at += 2;
                (byte, true)
            }
            byte => (byte, false),
        };
        match byte {
            b'/' => segment.end(path, &mut extension, merge_slashes)?,
            b'.' => segment.dot(path, &mut extension),
            b'?' | b'#' if !quoted => {
                end = Some((byte, at));
                break;
            }
            byte => {
                parts.plus |= byte == b'+';
                path.push(byte);
                segment = Segment::Inside;
            }
        }
    }
    segment.finish(path)?;
    if let Some((b'?', start)) = end {
        let query = raw.get(start..).unwrap_or_default();
        let length = memchr::memchr(b'#', query).unwrap_or(query.len());
        parts.args = Some(Span::new(start, start + length));
    }
    parts.extension = extension.map(|start| Span::new(start, path.len()));
    Ok(parts)
}

/// The end of the path so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Segment {
    /// Anything other than the following.
    Inside,
    Slash,
    Dot,
    DotDot,
}

impl Segment {
    /// Handles a slash, which ends a segment and its extension; segments of dots have no extension.
    fn end(
        &mut self,
        path: &mut Vec<u8>,
        extension: &mut Option<usize>,
        merge_slashes: bool,
    ) -> Result<(), BadUri> {
        match self {
            Segment::Inside => {
                path.push(b'/');
                *extension = None;
            }
            Segment::Slash if merge_slashes => {}
            Segment::Slash => path.push(b'/'),
            Segment::Dot => {
                path.pop();
            }
            Segment::DotDot => remove_segment(path)?,
        }
        *self = Segment::Slash;
        Ok(())
    }

    fn dot(&mut self, path: &mut Vec<u8>, extension: &mut Option<usize>) {
        path.push(b'.');
        *self = match self {
            Segment::Slash => Segment::Dot,
            Segment::Dot => Segment::DotDot,
            Segment::Inside => {
                *extension = Some(path.len());
                Segment::Inside
            }
            Segment::DotDot => Segment::Inside,
        };
    }

    fn finish(self, path: &mut Vec<u8>) -> Result<(), BadUri> {
        match self {
            Segment::Dot => {
                path.pop();
                Ok(())
            }
            Segment::DotDot => remove_segment(path),
            Segment::Inside | Segment::Slash => Ok(()),
        }
    }
}

/// Removes `segment/..` from the end of a path, up to the slash before the segment.
fn remove_segment(path: &mut Vec<u8>) -> Result<(), BadUri> {
    let above = path.len().checked_sub(b"/..".len()).ok_or(BadUri)?;
    path.truncate(above);
    let slash = memchr::memrchr(b'/', path).ok_or(BadUri)?;
    path.truncate(slash + 1);
    Ok(())
}

fn hex_pair(digits: Option<&[u8]>) -> Option<u8> {
    match digits? {
        &[high, low] => Some(hex_digit(high)? << 4 | hex_digit(low)?),
        _ => None,
    }
}

fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

/// Whether a byte has no special meaning in a path: it is neither a control byte, nor a space, nor
/// one of `# % + . / ?`.
#[inline]
pub(crate) fn is_plain(byte: u8) -> bool {
    PLAIN.of(byte)
}

#[expect(
    clippy::indexing_slicing,
    reason = "the compiler evaluates it, and refuses what lies outside"
)]
static PLAIN: ByteTable<bool> = {
    let mut plain = [true; 256];
    let mut byte = 0;
    while byte <= 0x20 {
        plain[byte] = false;
        byte += 1;
    }
    plain[0x7f] = false;
    plain[b'#' as usize] = false;
    plain[b'%' as usize] = false;
    plain[b'+' as usize] = false;
    plain[b'.' as usize] = false;
    plain[b'/' as usize] = false;
    plain[b'?' as usize] = false;
    ByteTable::new(plain)
};

/// The extension of a path from a rewrite or a redirect: the text after the last dot of the last
/// segment, unless this dot is the segment's first byte. This is nginx's rule for such paths. The
/// rule of [`normalise`], for paths from clients, differs for segments that begin with two dots.
pub fn extension(path: &[u8]) -> Option<Span> {
    for at in (2..path.len()).rev() {
        match (path.get(at - 1), path.get(at)) {
            (before, Some(b'.')) if before != Some(&b'/') => {
                return Some(Span::new(at + 1, path.len()));
            }
            (_, Some(b'/')) => return None,
            _ => {}
        }
    }
    None
}

/// Splits `uri?args` into the path and the query, if there is a `?`.
pub fn split_args(uri: &[u8]) -> (&[u8], Option<&[u8]>) {
    match memchr::memchr(b'?', uri).and_then(|mark| uri.split_at_checked(mark)) {
        Some((path, query)) => (path, query.get(1..)),
        None => (uri, None),
    }
}

/// The value of `name=` in a query (`$arg_name`); names are matched in any case.
pub fn argument<'a>(args: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    if name.is_empty() {
        return None;
    }
    args.split(|&byte| byte == b'&').find_map(|argument| {
        let (start, rest) = argument.split_at_checked(name.len())?;
        start
            .eq_ignore_ascii_case(name)
            .then(|| rest.strip_prefix(b"="))?
    })
}

/// Parses a URI from an upstream, an include or a header (`X-Accel-Redirect`, SSI): stores the
/// unescaped path in `path`, and returns the query.
///
/// # Errors
/// [`BadUri`] if the URI is empty, begins with `?`, or contains a `..` segment or a zero byte,
/// literal or escaped. (nginx does not detect a `..` directly before the `?`.)
pub fn parse_unsafe<'a>(uri: &'a [u8], path: &mut Vec<u8>) -> Result<Option<&'a [u8]>, BadUri> {
    path.clear();
    let (raw, args) = split_args(uri);
    if raw.is_empty() || has_parent_segment(raw) || raw.contains(&0) {
        return Err(BadUri);
    }
    if raw.contains(&b'%') {
        unescape(raw, Unescape::All, path);
        if has_parent_segment(path) || path.contains(&0) {
            return Err(BadUri);
        }
    } else {
        path.extend_from_slice(raw);
    }
    Ok(args)
}

fn has_parent_segment(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/')
        .any(|segment| segment == b"..")
}

#[cfg(test)]
mod tests;
