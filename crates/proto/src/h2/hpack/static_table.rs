//! The static table (RFC 7541, appendix A).

use super::check::{Faults, NameKind};
use super::table::Entry;
use crate::header::KnownField;

/// The index of the last entry; higher indexes refer to the dynamic table.
pub(super) const LAST: usize = FIELDS.len();

/// The index of the first `:status` entry.
pub(super) const STATUS: usize = 8;

/// The first index of each [`KnownField`]; 0 if its name is not in the table.
#[expect(
    clippy::indexing_slicing,
    reason = "the compiler evaluates it, and refuses what lies outside"
)]
static OF_KNOWN: [u8; KnownField::Other as usize + 1] = {
    let mut indexes = [0; KnownField::Other as usize + 1];
    let mut place = FIELDS.len();
    while place > 0 {
        // Iterates backwards, so that the first of several entries with the same name remains.
        if let NameKind::Field(known) = FIELDS[place - 1].name {
            indexes[known as usize] = place as u8;
        }
        place -= 1;
    }
    indexes[KnownField::Other as usize] = 0;
    indexes
};

/// The indexes of names that are not a [`KnownField`].
static OF_OTHERS: [u8; 9] = [15, 20, 22, 27, 29, 37, 47, 53, 56];

/// The entry with this index.
#[inline]
pub(super) fn field(index: usize) -> Option<&'static Entry<'static>> {
    FIELDS.get(index.checked_sub(1)?)
}

/// The first index with this name; names of regular fields may be in any case.
pub(super) fn index_of_name(which: NameKind, name: &[u8]) -> Option<usize> {
    let index = match which {
        NameKind::Authority => 1,
        NameKind::Method => 2,
        NameKind::Path => 4,
        NameKind::Scheme => 6,
        NameKind::Status => STATUS as u8,
        NameKind::Protocol | NameKind::UnknownPseudo => 0,
        NameKind::Field(KnownField::Other) => {
            let is_name = |index: &&u8| {
                let entry = field(usize::from(**index));
                entry.is_some_and(|entry| entry.name_bytes().eq_ignore_ascii_case(name))
            };
            OF_OTHERS.iter().find(is_name).copied().unwrap_or_default()
        }
        NameKind::Field(known) => OF_KNOWN.get(known as usize).copied().unwrap_or_default(),
    };
    (index != 0).then_some(usize::from(index))
}

/// The index of the entry with this value, among the entries with the name of entry `first`, which
/// is the first of them.
pub(super) fn index_of_value(first: usize, value: &[u8]) -> Option<usize> {
    let name = field(first)?.name_bytes();
    let of_name = (first..=LAST).map_while(|index| Some((index, field(index)?)));
    of_name
        .take_while(|(_, field)| field.name_bytes() == name)
        .find(|(_, field)| field.value_bytes() == value)
        .map(|(index, _)| index)
}

macro_rules! fields {
    ($($name:literal $value:literal $which:expr;)*) => {
        [$(Entry {
            text: concat!($name, $value).as_bytes(),
            name_length: $name.len(),
            name: $which,
            faults: Faults::NONE,
        },)*]
    };
}

static FIELDS: [Entry<'static>; 61] = fields! {
    ":authority" "" NameKind::Authority;
    ":method" "GET" NameKind::Method;
    ":method" "POST" NameKind::Method;
    ":path" "/" NameKind::Path;
    ":path" "/index.html" NameKind::Path;
    ":scheme" "http" NameKind::Scheme;
    ":scheme" "https" NameKind::Scheme;
    ":status" "200" NameKind::Status;
    ":status" "204" NameKind::Status;
    ":status" "206" NameKind::Status;
    ":status" "304" NameKind::Status;
    ":status" "400" NameKind::Status;
    ":status" "404" NameKind::Status;
    ":status" "500" NameKind::Status;
    "accept-charset" "" NameKind::Field(KnownField::Other);
    "accept-encoding" "gzip, deflate" NameKind::Field(KnownField::AcceptEncoding);
    "accept-language" "" NameKind::Field(KnownField::AcceptLanguage);
    "accept-ranges" "" NameKind::Field(KnownField::AcceptRanges);
    "accept" "" NameKind::Field(KnownField::Accept);
    "access-control-allow-origin" "" NameKind::Field(KnownField::Other);
    "age" "" NameKind::Field(KnownField::Age);
    "allow" "" NameKind::Field(KnownField::Other);
    "authorization" "" NameKind::Field(KnownField::Authorization);
    "cache-control" "" NameKind::Field(KnownField::CacheControl);
    "content-disposition" "" NameKind::Field(KnownField::ContentDisposition);
    "content-encoding" "" NameKind::Field(KnownField::ContentEncoding);
    "content-language" "" NameKind::Field(KnownField::Other);
    "content-length" "" NameKind::Field(KnownField::ContentLength);
    "content-location" "" NameKind::Field(KnownField::Other);
    "content-range" "" NameKind::Field(KnownField::ContentRange);
    "content-type" "" NameKind::Field(KnownField::ContentType);
    "cookie" "" NameKind::Field(KnownField::Cookie);
    "date" "" NameKind::Field(KnownField::Date);
    "etag" "" NameKind::Field(KnownField::ETag);
    "expect" "" NameKind::Field(KnownField::Expect);
    "expires" "" NameKind::Field(KnownField::Expires);
    "from" "" NameKind::Field(KnownField::Other);
    "host" "" NameKind::Field(KnownField::Host);
    "if-match" "" NameKind::Field(KnownField::IfMatch);
    "if-modified-since" "" NameKind::Field(KnownField::IfModifiedSince);
    "if-none-match" "" NameKind::Field(KnownField::IfNoneMatch);
    "if-range" "" NameKind::Field(KnownField::IfRange);
    "if-unmodified-since" "" NameKind::Field(KnownField::IfUnmodifiedSince);
    "last-modified" "" NameKind::Field(KnownField::LastModified);
    "link" "" NameKind::Field(KnownField::Link);
    "location" "" NameKind::Field(KnownField::Location);
    "max-forwards" "" NameKind::Field(KnownField::Other);
    "proxy-authenticate" "" NameKind::Field(KnownField::ProxyAuthenticate);
    "proxy-authorization" "" NameKind::Field(KnownField::ProxyAuthorization);
    "range" "" NameKind::Field(KnownField::Range);
    "referer" "" NameKind::Field(KnownField::Referer);
    "refresh" "" NameKind::Field(KnownField::Refresh);
    "retry-after" "" NameKind::Field(KnownField::Other);
    "server" "" NameKind::Field(KnownField::Server);
    "set-cookie" "" NameKind::Field(KnownField::SetCookie);
    "strict-transport-security" "" NameKind::Field(KnownField::Other);
    "transfer-encoding" "" NameKind::Field(KnownField::TransferEncoding);
    "user-agent" "" NameKind::Field(KnownField::UserAgent);
    "vary" "" NameKind::Field(KnownField::Vary);
    "via" "" NameKind::Field(KnownField::Via);
    "www-authenticate" "" NameKind::Field(KnownField::WwwAuthenticate);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_says_what_its_text_says() {
        for index in 1..=LAST {
            let field = field(index).unwrap();
            let (name, value) = (field.name_bytes(), field.value_bytes());
            assert_eq!(field.name, NameKind::of(name));
            assert_eq!(
                Faults::of_name(name).or(Faults::of_value(value)),
                field.faults
            );
            let first = index_of_name(field.name, name).unwrap();
            if !field.name.is_pseudo() {
                let upper = name.to_ascii_uppercase();
                assert_eq!(index_of_name(NameKind::of(&upper), &upper), Some(first));
            }
            assert_eq!(super::field(first).unwrap().name_bytes(), name);
            assert!(first == 1 || super::field(first - 1).unwrap().name_bytes() != name);
            assert_eq!(index_of_value(first, value), Some(index));
            assert_eq!(index_of_value(first, b"another"), None);
        }
        assert!(field(0).is_none() && field(LAST + 1).is_none());
    }

    #[test]
    fn places_that_the_rfc_names() {
        let text = |index| field(index).map(|field| field.text);
        let expected: [(usize, &[u8]); 8] = [
            (1, b":authority"),
            (8, b":status200"),
            (14, b":status500"),
            (16, b"accept-encodinggzip, deflate"),
            (28, b"content-length"),
            (32, b"cookie"),
            (54, b"server"),
            (61, b"www-authenticate"),
        ];
        for (index, name) in expected {
            assert_eq!(text(index), Some(name));
        }
        for name in ["te", "x-own", ":protocol", ":other", ""] {
            assert_eq!(
                index_of_name(NameKind::of(name.as_bytes()), name.as_bytes()),
                None
            );
        }
    }
}
