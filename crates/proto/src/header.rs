//! Header field names that the server acts upon, recognised in any case, and the two list forms of values
//! (`a, b` and `a; b`) as nginx searches them.
//!
//! Names that nobody here acts upon are [`Known::Other`]; they are found by their text.

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
                let Some(candidates) = BY_LENGTH.get(name.len()) else { return Known::Other };
                for &index in &candidates.indices[..candidates.count] {
                    let (text, known) = Known::NAMES[index as usize];
                    if name.eq_ignore_ascii_case(text.as_bytes()) {
                        return known;
                    }
                }
                Known::Other
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

/// The names of one length, as indices of `Known::NAMES`.
#[derive(Clone, Copy)]
struct Candidates {
    count: usize,
    indices: [u8; 8],
}

/// Names by their length: two or three compares decide.
static BY_LENGTH: [Candidates; 24] = {
    let mut table = [Candidates {
        count: 0,
        indices: [0; 8],
    }; 24];
    let mut index = 0;
    while index < Known::NAMES.len() {
        let entry = &mut table[Known::NAMES[index].0.len()];
        entry.indices[entry.count] = index as u8;
        entry.count += 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_any_case() {
        for &(name, known) in Known::NAMES {
            assert_eq!(Known::from_name(name.as_bytes()), known);
            assert_eq!(Known::from_name(name.to_uppercase().as_bytes()), known);
            assert_eq!(known.name(), name);
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
