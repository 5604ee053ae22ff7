//! Header field names that the server interprets, recognised in any case, and the search in two
//! list forms of values (`a, b` and `a; b`) as in nginx.
//!
//! Names that no code here interprets are [`KnownField::Other`]; they must be compared as text.

macro_rules! known {
    ($($variant:ident $name:literal)*) => {
        /// A header field name that some part of the server interprets.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs)] // The variants are the names themselves.
        pub enum KnownField {
            $($variant,)*
            /// A field that no part of the server interprets.
            #[default]
            Other,
        }

        impl KnownField {
            /// Every name in lower case with its variant.
            const NAMES: &'static [(&'static str, KnownField)] = &[$(($name, KnownField::$variant),)*];

            /// The name in lower case; empty for `Other`.
            pub fn name(self) -> &'static str {
                match self {
                    $(KnownField::$variant => $name,)*
                    KnownField::Other => "",
                }
            }

            /// The variant of a name in any case.
            #[must_use]
            pub fn from_name(name: &[u8]) -> KnownField {
                // The comparison ignores the case bit (0x20), which makes bytes up to the space
                // equal to others, and the space equal to the padding of shorter names.
                if name.iter().any(|byte| *byte <= b' ') {
                    return KnownField::Other;
                }
                let mut bytes = [0; NAME_MAX];
                match bytes.get_mut(..name.len()) {
                    Some(start) => start.copy_from_slice(name),
                    None => return KnownField::Other,
                }
                KnownField::of_words(words(&bytes))
            }

            /// The variant of the name in the first `length` bytes, in any case, which must be
            /// letters, digits and dashes. If the name has at most 16 bytes and at least 16 bytes
            /// follow its beginning, no branch depends on its length.
            #[inline]
            pub(crate) fn at_start(bytes: &[u8], length: usize) -> KnownField {
                match (bytes.first_chunk::<16>(), MASKS.get(length)) {
                    (Some(start), Some(mask)) => {
                        let word = u128::from_le_bytes(*start) & mask;
                        KnownField::of_words([word as u64, (word >> 64) as u64, 0])
                    }
                    _ => KnownField::from_name(bytes.get(..length).unwrap_or_default()),
                }
            }

            #[inline]
            #[expect(clippy::indexing_slicing, reason = "there is a candidate for each slot")]
            fn of_words(words: [u64; 3]) -> KnownField {
                let folded = folded(words);
                let candidate = &TABLE[slot(folded)];
                if candidate.is_name(folded) {
candidate.known
} else {
KnownField::Other
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
    XPad "x-pad"
}

/// A set of known field names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownSet(u64);

// One bit for each name except `Other`, which is never looked up.
const _: () = assert!(KnownField::Other as u8 <= 63);

impl KnownSet {
    /// Names that nginx rejects (400) if they occur twice in a request. A repeated `Host` is
    /// rejected as well, with another log message.
    pub const UNIQUE: KnownSet = KnownSet(0)
        .with(KnownField::IfModifiedSince)
        .with(KnownField::IfUnmodifiedSince)
        .with(KnownField::IfMatch)
        .with(KnownField::IfNoneMatch)
        .with(KnownField::IfRange)
        .with(KnownField::ContentLength)
        .with(KnownField::ContentRange)
        .with(KnownField::TransferEncoding)
        .with(KnownField::Expect)
        .with(KnownField::Authorization)
        .with(KnownField::ProxyAuthorization);

    /// Connection-specific fields, which apply to one connection only. HTTP/2 forbids them (RFC
    /// 9113, section 8.2.2).
    pub const OF_CONNECTION: KnownSet = KnownSet(0)
        .with(KnownField::Connection)
        .with(KnownField::KeepAlive)
        .with(KnownField::ProxyConnection)
        .with(KnownField::TransferEncoding)
        .with(KnownField::Upgrade);

    /// Fields about the framing and routing of a message. They are allowed only in the final head,
    /// neither in trailers (RFC 9110, section 6.5.1) nor in informational responses. HTTP/2 clients
    /// reject a response that has them elsewhere.
    pub const OF_FRAMING: KnownSet = KnownSet::OF_CONNECTION
        .with(KnownField::ContentLength)
        .with(KnownField::Te)
        .with(KnownField::Trailer)
        .with(KnownField::Host);

    /// This set with one more name.
    #[must_use]
    pub const fn with(self, known: KnownField) -> KnownSet {
        KnownSet(self.0 | 1 << known as u8)
    }

    /// Adds the name of a field to the set.
    #[inline]
    pub fn insert(&mut self, known: KnownField) {
        *self = self.with(known);
    }

    /// Removes the name of a field from the set.
    #[inline]
    pub fn remove(&mut self, known: KnownField) {
        self.0 &= !(1 << known as u8);
    }

    /// Whether the set contains a name.
    #[inline]
    pub fn contains(self, known: KnownField) -> bool {
        self.0 & (1 << known as u8) != 0
    }
}

/// Length of the longest name, in bytes.
const NAME_MAX: usize = 24;

/// Masks for the first `index` bytes of 16.
#[expect(
    clippy::indexing_slicing,
    reason = "the compiler evaluates it, and refuses what lies outside"
)]
static MASKS: [u128; 17] = {
    let mut masks = [u128::MAX; 17];
    let mut length = 0;
    while length < 16 {
        masks[length] = (1 << (8 * length)) - 1;
        length += 1;
    }
    masks
};

/// A name in the form for comparison: words in which the case bit is set in all bytes, including
/// the padding.
#[derive(Clone, Copy)]
#[repr(align(32))] // so that none spans two cache lines
struct Candidate {
    words: [u64; 3],
    known: KnownField,
}

impl Candidate {
    /// An empty slot, which no name equals.
    const NONE: Candidate = Candidate {
        words: [u64::MAX; 3],
        known: KnownField::Other,
    };

    /// Exact for bytes above the space: only the two cases of a letter differ in the case bit
    /// alone.
    #[inline]
    fn is_name(&self, folded: [u64; 3]) -> bool {
        let ([first, second, third], words) = (folded, self.words);
        (first ^ words[0]) | (second ^ words[1]) | (third ^ words[2]) == 0
    }
}

/// Sets the case bit in all bytes.
#[inline]
const fn folded(words: [u64; 3]) -> [u64; 3] {
    const CASE: u64 = 0x2020_2020_2020_2020;
    [words[0] | CASE, words[1] | CASE, words[2] | CASE]
}

#[inline]
const fn words(bytes: &[u8; NAME_MAX]) -> [u64; 3] {
    match bytes.as_chunks::<8>() {
        ([first, second, third], _) => [
            u64::from_le_bytes(*first),
            u64::from_le_bytes(*second),
            u64::from_le_bytes(*third),
        ],
        _ => [0; 3], // not reached: three times eight are 24
    }
}

/// Number of slots of the hash table. The multiplier was found by search: it gives each name a slot
/// of its own, which is checked when the table is built.
const SLOTS: usize = 256;
const MULTIPLIER: u64 = 0x2116_7d8f_cf23_cae9;

/// The slot of a name with the case bit set.
#[inline]
const fn slot(folded: [u64; 3]) -> usize {
    let mixed = folded[0] ^ folded[1].rotate_left(21) ^ folded[2].rotate_left(42);
    (mixed.wrapping_mul(MULTIPLIER) >> (u64::BITS - SLOTS.ilog2())) as usize
}

#[expect(
    clippy::indexing_slicing,
    reason = "the compiler evaluates it, and refuses what lies outside"
)]
static TABLE: [Candidate; SLOTS] = {
    let mut table = [Candidate::NONE; SLOTS];
    let mut index = 0;
    while index < KnownField::NAMES.len() {
        let (name, known) = KnownField::NAMES[index];
        let name = name.as_bytes();
        let mut bytes = [0; NAME_MAX];
        let mut at = 0;
        while at < name.len() {
            bytes[at] = name[at];
            at += 1;
        }
        let words = folded(words(&bytes));
        let candidate = &mut table[slot(words)];
        assert!(
            matches!(candidate.known, KnownField::Other),
            "two names have one slot"
        );
        *candidate = Candidate { words, known };
        index += 1;
    }
    table
};

/// Whether a list such as `Cache-Control: private, max-age=1` (`separator` `,`) or `Cookie: a=b;
/// c=d` (`;`) contains `name` without a value.
pub fn has_token(value: &[u8], name: &[u8], separator: u8) -> bool {
    items(value, separator).any(|item| strip_name(item, name).is_some_and(<[u8]>::is_empty))
}

/// The value of `name=value` in such a list, as in nginx: names are matched in any case, spaces
/// around `=` are allowed, and the value ends at the separator.
pub fn parameter<'a>(value: &'a [u8], name: &[u8], separator: u8) -> Option<&'a [u8]> {
    items(value, separator)
        .find_map(|item| Some(trim_spaces(strip_name(item, name)?.strip_prefix(b"=")?)))
}

/// The items of a list, without leading spaces.
fn items(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    value
        .split(move |&byte| byte == separator)
        .enumerate()
        .map(|(index, item)| {
            // nginx trims spaces after a separator only; a value never begins with a space.
            if index == 0 { item } else { trim_spaces(item) }
        })
}

/// The rest of the item after the name and following spaces.
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

/// A set of field names in any case, known ones and others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameSet {
    known: KnownSet,
    others: Vec<Box<[u8]>>,
}

impl NameSet {
    /// Whether the set contains this name, which has been classified as `known`.
    #[inline]
    #[must_use]
    pub fn contains(&self, known: KnownField, name: &[u8]) -> bool {
        match known {
            KnownField::Other => self
                .others
                .iter()
                .any(|other| other.eq_ignore_ascii_case(name)),
            known => self.known.contains(known),
        }
    }

    /// Whether the set contains a known name.
    #[inline]
    #[must_use]
    pub fn contains_known(&self, known: KnownField) -> bool {
        self.known.contains(known)
    }

    /// Whether the set contains this name.
    #[must_use]
    pub fn contains_name(&self, name: &[u8]) -> bool {
        self.contains(KnownField::from_name(name), name)
    }
}

impl<'a> FromIterator<&'a [u8]> for NameSet {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(names: I) -> NameSet {
        let mut set = NameSet::default();
        for name in names {
            match KnownField::from_name(name) {
                KnownField::Other => set.others.push(name.to_ascii_lowercase().into()),
                known => set.known.insert(known),
            }
        }
        set
    }
}

/// Whether a byte below 0x0E occurs: a line break, or another control byte, which is very rare in
/// values.
#[inline]
#[must_use]
pub fn has_control(value: &[u8]) -> bool {
    const EACH: u64 = u64::MAX / 255;
    let (words, rest) = value.as_chunks::<8>();
    let below = |word: u64| word.wrapping_sub(EACH * 0x0E) & !word & (EACH * 0x80);
    let found = words.iter().map(|word| below(u64::from_ne_bytes(*word)));
    found.fold(0, |found, word| found | word) != 0 || rest.iter().any(|byte| *byte < 0x0E)
}

/// Appends a field value to a message. Replaces line breaks, which would end the field (RFC 9110,
/// section 5.5), by spaces: variables can contain decoded parts of a request.
#[inline]
pub fn append_value(value: &[u8], out: &mut Vec<u8>) {
    if has_control(value) {
        append_lines(value, out)
    } else {
        out.extend_from_slice(value)
    }
}

/// The slow path of [`append_value`]: replaces each line break by a space.
#[cold]
fn append_lines(value: &[u8], out: &mut Vec<u8>) {
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
        // A line break at any position, next to any byte.
        for length in 1..40 {
            for at in 0..length {
                for beside in [b'a', b'\t', 0, 0x0E, 0x7F, 0x80, 0x8D, 0xFF] {
                    let mut value = vec![beside; length];
                    assert_eq!(sent(&value), value);
                    value[at] = b'\n';
                    let line = sent(&value);
                    value[at] = b' ';
                    assert_eq!(line, value);
                }
            }
        }
    }

    #[test]
    fn a_set_has_names_in_any_case() {
        let set: NameSet = [&b"Date"[..], b"x-own"].into_iter().collect();
        for name in [&b"date"[..], b"DATE", b"X-Own", b"x-own"] {
            assert!(set.contains_name(name));
            assert!(set.contains(KnownField::from_name(name), name));
        }
        for name in [&b"Server"[..], b"x-own2", b"x-ow", b""] {
            assert!(!set.contains_name(name));
        }
        assert!(!NameSet::default().contains_name(b"other"));
    }

    #[test]
    fn every_name_is_found_in_any_case() {
        for &(name, known) in KnownField::NAMES {
            assert_eq!(KnownField::from_name(name.as_bytes()), known);
            assert_eq!(KnownField::from_name(name.to_uppercase().as_bytes()), known);
            assert_eq!(known.name(), name);
            for at in 0..name.len() {
                for byte in 0..=255 {
                    let mut changed = name.as_bytes().to_vec();
                    changed[at] = byte;
                    let same = changed.eq_ignore_ascii_case(name.as_bytes());
                    assert_eq!(
                        KnownField::from_name(&changed) == known,
                        same,
                        "{name} with {byte} at {at}"
                    );
                }
            }
            assert_eq!(name, name.to_lowercase());
            for behind in [0, b' ', b'x', b':'] {
                let longer = [name.as_bytes(), &[behind]].concat();
                assert_ne!(KnownField::from_name(&longer), known, "{name} and {behind}");
            }
            for rest in ["", ":", ": a value that is longer than all names"] {
                let line = [name.to_uppercase().as_bytes(), rest.as_bytes()].concat();
                assert_eq!(
                    KnownField::at_start(&line, name.len()),
                    known,
                    "{name}{rest}"
                );
                assert_ne!(KnownField::at_start(&line, name.len() - 1), known, "{name}");
            }
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
            assert_eq!(
                KnownField::from_name(other.as_bytes()),
                KnownField::Other,
                "{other}"
            );
        }
    }

    #[test]
    fn sets() {
        let mut set = KnownSet::default();
        assert!(!set.contains(KnownField::Host));
        set.insert(KnownField::Host);
        set.insert(KnownField::SecWebsocketKey);
        assert!(
            set.contains(KnownField::Host)
                && set.contains(KnownField::SecWebsocketKey)
                && !set.contains(KnownField::Te)
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
