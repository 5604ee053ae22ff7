//! Escaping and unescaping, with the byte sets that nginx uses for each purpose.

use crate::byte_table::ByteTable;

/// Which bytes are escaped. Control bytes and bytes above 0x7e always are, except that memcached
/// keys may contain the latter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escape {
    /// A path: additionally space, `"`, `#`, `%`, `<`, `>`, `?`, `\`, `^`, backquote, `{`, `|`,
    /// `}`.
    Uri,
    /// A query: as for a path, and `&`, `+` and `;`.
    Args,
    /// A component of a URI: all bytes except letters, digits, `-`, `.`, `_`, `~`.
    Component,
    /// A URI within HTML: as for a path, and `'`, but not `?`.
    Html,
    /// A URI in a `Refresh` header: as for HTML, and `~`, but not `#`, `%` and `}`.
    Refresh,
    /// A memcached key: control bytes, space and `%`.
    Memcached,
}

/// Where unescaping stops, and which bytes remain escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unescape {
    /// Unescapes everything, up to the end.
    All,
    /// Stops after the first `?`, literal or escaped as `%3f`.
    Uri,
    /// Like [`Unescape::Uri`], but unescapes only printable bytes above `%`: others must remain
    /// escaped in a redirect.
    Redirect,
}

/// A set of bytes.
type Set = ByteTable<bool>;

#[expect(
    clippy::indexing_slicing,
    reason = "the compiler evaluates it, and refuses what lies outside"
)]
const fn set(base: &[u8], unreserved_only: bool, high: bool) -> Set {
    let mut set = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let unreserved =
            (byte as u8).is_ascii_alphanumeric() || matches!(byte as u8, b'-' | b'.' | b'_' | b'~');
        set[byte] = byte < 0x20 || (high && byte >= 0x7f) || (unreserved_only && !unreserved);
        byte += 1;
    }
    let mut index = 0;
    while index < base.len() {
        set[base[index] as usize] = true;
        index += 1;
    }
    Set::new(set)
}

static URI: Set = set(b" \"#%<>?\\^`{|}", false, true);
static ARGS: Set = set(b" \"#%&+;<>?\\^`{|}", false, true);
static COMPONENT: Set = set(b"", true, true);
static HTML: Set = set(b" \"#%'<>\\^`{|}", false, true);
static REFRESH: Set = set(b" \"'<>\\^`{|~", false, true);
static MEMCACHED: Set = set(b" %", false, false);

impl Escape {
    fn set(self) -> &'static Set {
        match self {
            Escape::Uri => &URI,
            Escape::Args => &ARGS,
            Escape::Component => &COMPONENT,
            Escape::Html => &HTML,
            Escape::Refresh => &REFRESH,
            Escape::Memcached => &MEMCACHED,
        }
    }
}

/// A hexadecimal digit, for a number below 16.
fn hex_digit(number: u8) -> u8 {
    match number {
        ..10 => b'0' + number,
        _ => b'A' + number - 10,
    }
}

/// Appends `bytes`, with the bytes of the set escaped as `%XX`.
pub fn escape(bytes: &[u8], kind: Escape, out: &mut Vec<u8>) {
    let set = kind.set();
    for &byte in bytes {
        if set.of(byte) {
            out.extend_from_slice(&[b'%', hex_digit(byte >> 4), hex_digit(byte & 15)]);
        } else {
            out.push(byte);
        }
    }
}

/// The number of bytes that [`escape`] would append; equal to the length if nothing is escaped.
pub fn escaped_length(bytes: &[u8], kind: Escape) -> usize {
    let set = kind.set();
    bytes.len() + 2 * bytes.iter().filter(|&&byte| set.of(byte)).count()
}

/// Appends `bytes` unescaped. As in nginx, a `%` without a hexadecimal digit after it is dropped,
/// and a `%` with only one digit after it is dropped together with the next two bytes. Returns the
/// number of bytes read: fewer than all if a `?` ended the unescaping.
pub fn unescape(bytes: &[u8], kind: Unescape, out: &mut Vec<u8>) -> usize {
    let stops = kind != Unescape::All;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        if byte == b'?' && stops {
            out.push(byte);
            return at;
        }
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let Some(&high) = bytes.get(at) else { break };
        at += 1;
        let Some(high_value) = super::hex_digit(high) else {
            out.push(high);
            continue;
        };
        let Some(&low) = bytes.get(at) else { break };
        at += 1;
        let Some(low_value) = super::hex_digit(low) else {
            continue;
        };
        let byte = high_value << 4 | low_value;
        if byte == b'?' && stops {
            out.push(byte);
            return at;
        }
        if kind == Unescape::Redirect && !(byte > b'%' && byte < 0x7f) {
            out.extend_from_slice(&[b'%', high, low]);
        } else {
            out.push(byte);
        }
    }
    at
}

/// Appends text with `<`, `>`, `&` and `"` as character references.
pub fn write_html(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        match byte {
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'&' => out.extend_from_slice(b"&amp;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            byte => out.push(byte),
        }
    }
}
