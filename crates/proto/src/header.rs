//! Header field names that the server acts upon, recognised in any case, and the two list forms of values
//! (`a, b` and `a; b`) as nginx searches them.
//!
//! Names that no code here acts upon are [`Known::Other`]; they are found by their text.

macro_rules! known {
    ($($variant:ident $name:literal)*) => {
        /// A header field name that some part of the server looks at.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs)] // The variants are the names themselves.
        pub enum Known {
            $($variant,)*
            /// Any other name.
            #[default]
            Other,
        }

        impl Known {
            /// Every name in lower case with its variant.
            const NAMES: &'static [(&'static str, Known)] = &[$(($name, Known::$variant),)*];

            /// The name in lower case; empty for `Other`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Known::$variant => $name,)*
                    Known::Other => "",
                }
            }

            /// The variant of a name in any case.
            #[inline]
            pub fn from_name(name: &[u8]) -> Known {
                let (Some(row), Some(words)) = (BY_LENGTH.get(name.len()), words(name)) else {
                    return Known::Other;
                };
                let is_name = |candidate: &&Candidate| candidate.is_name(words);
                match row.candidates[..row.count].iter().find(is_name) {
                    Some(candidate) => candidate.known,
                    None => Known::Other,
                }
            }
        }
    };
}

known! {
    Host "host"
    Connection "connection"
    UserAgent "user-agent"
    Accept "accept"
    AcceptEncoding "accept-encoding"
    AcceptLanguage "accept-language"
    Cookie "cookie"
    Referer "referer"
    IfModifiedSince "if-modified-since"
    IfNoneMatch "if-none-match"
    IfUnmodifiedSince "if-unmodified-since"
    IfMatch "if-match"
    IfRange "if-range"
    Range "range"
    ContentLength "content-length"
    ContentType "content-type"
    ContentRange "content-range"
    ContentEncoding "content-encoding"
    ContentDisposition "content-disposition"
    TransferEncoding "transfer-encoding"
    Te "te"
    Trailer "trailer"
    Expect "expect"
    Upgrade "upgrade"
    KeepAlive "keep-alive"
    ProxyConnection "proxy-connection"
    Via "via"
    Authorization "authorization"
    ProxyAuthorization "proxy-authorization"
    ProxyAuthenticate "proxy-authenticate"
    WwwAuthenticate "www-authenticate"
    XForwardedFor "x-forwarded-for"
    XForwardedProto "x-forwarded-proto"
    XRealIp "x-real-ip"
    Origin "origin"
    Depth "depth"
    Destination "destination"
    Overwrite "overwrite"
    Date "date"
    Server "server"
    Status "status"
    LastModified "last-modified"
    ETag "etag"
    Location "location"
    Refresh "refresh"
    SetCookie "set-cookie"
    CacheControl "cache-control"
    Pragma "pragma"
    Expires "expires"
    Age "age"
    AcceptRanges "accept-ranges"
    Vary "vary"
    Link "link"
    XAccelExpires "x-accel-expires"
    XAccelRedirect "x-accel-redirect"
    XAccelLimitRate "x-accel-limit-rate"
    XAccelBuffering "x-accel-buffering"
    XAccelCharset "x-accel-charset"
    Http2Settings "http2-settings"
    SecWebsocketKey "sec-websocket-key"
}

impl Known {
    /// Whether nginx refuses (400) a request that holds this header twice. `Host` is refused as well, with
    /// words of its own.
    #[inline]
    pub fn is_unique(self) -> bool {
        matches!(
            self,
            Known::IfModifiedSince
                | Known::IfUnmodifiedSince
                | Known::IfMatch
                | Known::IfNoneMatch
                | Known::IfRange
                | Known::ContentLength
                | Known::ContentRange
                | Known::TransferEncoding
                | Known::Expect
                | Known::Authorization
                | Known::ProxyAuthorization
        )
    }
}

/// A set of known names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownSet(u64);

// One bit for each name but `Other`, which is never asked for.
const _: () = assert!(Known::Other as u8 <= 63);

impl KnownSet {
    /// Adds a name.
    #[inline]
    pub fn insert(&mut self, known: Known) {
        self.0 |= 1 << known as u8;
    }

    /// Whether it was added.
    #[inline]
    pub fn contains(self, known: Known) -> bool {
        self.0 & (1 << known as u8) != 0
    }
}

/// The names of one length.
#[derive(Clone, Copy)]
struct Row {
    count: usize,
    candidates: [Candidate; 8],
}

/// A name in the form in which it is compared: as words, in lower case, with the case bits of its letters.
#[derive(Clone, Copy)]
struct Candidate {
    words: [u64; 3],
    case_bits: [u64; 3],
    known: Known,
}

impl Candidate {
    const NONE: Candidate = Candidate {
        words: [0; 3],
        case_bits: [0; 3],
        known: Known::Other,
    };

    /// Setting the case bits of letters' positions alone makes the compare exact for any bytes.
    #[inline]
    fn is_name(&self, words: [u64; 3]) -> bool {
        (words[0] | self.case_bits[0]) == self.words[0]
            && (words[1] | self.case_bits[1]) == self.words[1]
            && (words[2] | self.case_bits[2]) == self.words[2]
    }
}

/// A name of 2 to 24 bytes as words that overlap where its length is no multiple of theirs, so that it is
/// loaded without a loop. Two names of the same length are equal if their words are.
#[inline]
const fn words(name: &[u8]) -> Option<[u64; 3]> {
    const fn pair(first: u64, second: u64, bits: u32) -> u64 {
        first | second << bits
    }
    Some(match name.len() {
        2 | 3 => {
            let (Some(start), Some(end)) = (name.first_chunk::<2>(), name.last_chunk::<2>()) else {
                return None;
            };
            [
                pair(
                    u16::from_le_bytes(*start) as u64,
                    u16::from_le_bytes(*end) as u64,
                    16,
                ),
                0,
                0,
            ]
        }
        4..=8 => {
            let (Some(start), Some(end)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) else {
                return None;
            };
            [
                pair(
                    u32::from_le_bytes(*start) as u64,
                    u32::from_le_bytes(*end) as u64,
                    32,
                ),
                0,
                0,
            ]
        }
        9..=16 => {
            let (Some(start), Some(end)) = (name.first_chunk::<8>(), name.last_chunk::<8>()) else {
                return None;
            };
            [u64::from_le_bytes(*start), u64::from_le_bytes(*end), 0]
        }
        17..=24 => {
            let (Some(start), Some(end)) = (name.first_chunk::<16>(), name.last_chunk::<8>())
            else {
                return None;
            };
            let start = u128::from_le_bytes(*start);
            [start as u64, (start >> 64) as u64, u64::from_le_bytes(*end)]
        }
        _ => return None,
    })
}

/// Names by their length.
static BY_LENGTH: [Row; 24] = {
    let mut table = [Row {
        count: 0,
        candidates: [Candidate::NONE; 8],
    }; 24];
    let mut index = 0;
    while index < Known::NAMES.len() {
        let (name, known) = Known::NAMES[index];
        let name = name.as_bytes();
        let mut letters = [0; 24];
        let mut at = 0;
        while at < name.len() {
            letters[at] = if name[at].is_ascii_lowercase() {
                0x20
            } else {
                0
            };
            at += 1;
        }
        let (letters, _) = letters.split_at(name.len());
        if let (Some(words), Some(case_bits)) = (words(name), words(letters)) {
            let row = &mut table[name.len()];
            row.candidates[row.count] = Candidate {
                words,
                case_bits,
                known,
            };
            row.count += 1;
        }
        index += 1;
    }
    table
};

/// Looks for `name` in a list such as `Cache-Control: private, max-age=1` (`separator` `,`) or
/// `Cookie: a=b; c=d` (`;`): the name alone between separators.
pub fn has_token(value: &[u8], name: &[u8], separator: u8) -> bool {
    items(value, separator).any(|item| strip_name(item, name).is_some_and(<[u8]>::is_empty))
}

/// The value of `name=value` in such a list, as in nginx: names in any case, spaces around `=` allowed,
/// the value reaches to the separator.
pub fn parameter<'a>(value: &'a [u8], name: &[u8], separator: u8) -> Option<&'a [u8]> {
    items(value, separator)
        .find_map(|item| Some(trim_spaces(strip_name(item, name)?.strip_prefix(b"=")?)))
}

/// The items of a list, without the spaces before each.
fn items(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    value
        .split(move |&byte| byte == separator)
        .enumerate()
        .map(|(index, item)| {
            // nginx trims after a separator only; a value has no space at its beginning anyway.
            if index == 0 { item } else { trim_spaces(item) }
        })
}

/// What follows the name and the spaces after it.
fn strip_name<'a>(item: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = item.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then(|| trim_spaces(rest))
}

fn trim_spaces(mut bytes: &[u8]) -> &[u8] {
    while let Some(rest) = bytes.strip_prefix(b" ") {
        bytes = rest;
    }
    bytes
}

/// Appends a field's value as it is sent. Line breaks, which would end the field (RFC 9110, section
/// 5.5), become spaces: decoded parts of a request get into values by variables.
pub fn append_value(value: &[u8], out: &mut Vec<u8>) {
    let mut rest = value;
    while let Some(at) = memchr::memchr2(b'\r', b'\n', rest) {
        let (line, behind) = rest.split_at(at);
        out.extend_from_slice(line);
        out.push(b' ');
        rest = behind.get(1..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_one_line() {
        let sent = |value: &[u8]| {
            let mut out = Vec::new();
            append_value(value, &mut out);
            out
        };
        assert_eq!(sent(b"a b"), b"a b");
        assert_eq!(sent(b"\ra\r\nb: c\n"), b" a  b: c ");
    }

    #[test]
    fn every_name_is_found_in_any_case() {
        for &(name, known) in Known::NAMES {
            assert_eq!(Known::from_name(name.as_bytes()), known);
            assert_eq!(Known::from_name(name.to_uppercase().as_bytes()), known);
            assert_eq!(known.name(), name);
            for at in 0..name.len() {
                for byte in 0..=255 {
                    let mut changed = name.as_bytes().to_vec();
                    changed[at] = byte;
                    let same = changed.eq_ignore_ascii_case(name.as_bytes());
                    assert_eq!(
                        Known::from_name(&changed) == known,
                        same,
                        "{name} with {byte} at {at}"
                    );
                }
            }
            assert_eq!(name, name.to_lowercase());
        }
        for other in [
            "",
            "x",
            "hos",
            "hostx",
            "content_length",
            "content-lengtg",
            "x-a-name-that-is-much-longer",
        ] {
            assert_eq!(Known::from_name(other.as_bytes()), Known::Other, "{other}");
        }
    }

    #[test]
    fn sets() {
        let mut set = KnownSet::default();
        assert!(!set.contains(Known::Host));
        set.insert(Known::Host);
        set.insert(Known::SecWebsocketKey);
        assert!(
            set.contains(Known::Host)
                && set.contains(Known::SecWebsocketKey)
                && !set.contains(Known::Te)
        );
    }

    #[test]
    fn lists() {
        assert!(has_token(b"private, no-cache", b"no-cache", b','));
        assert!(has_token(b"NO-CACHE ,x", b"no-cache", b','));
        assert!(!has_token(b"no-cachex", b"no-cache", b','));
        assert!(!has_token(b"no-cache=x", b"no-cache", b','));
        assert!(!has_token(b"private", b"no-cache", b','));
        assert_eq!(parameter(b"a=b; cd=e f; g", b"cd", b';'), Some(&b"e f"[..]));
        assert_eq!(parameter(b"a=b;CD = e", b"cd", b';'), Some(&b"e"[..]));
        assert_eq!(parameter(b"a=b; cd", b"cd", b';'), None);
        assert_eq!(parameter(b"a=; b=c", b"a", b';'), Some(&b""[..]));
        assert_eq!(parameter(b"xa=1; a=2", b"a", b';'), Some(&b"2"[..]));
    }
}
