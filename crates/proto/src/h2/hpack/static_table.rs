//! The static table (RFC 7541, appendix A): fields that both ends know without having sent them.

use super::check::{Faults, Name};
use super::table::Entry;
use crate::header::Known;

/// The index of its last field; those behind it are the dynamic table's.
pub(super) const LAST: usize = FIELDS.len();

/// The index of the first `:status`.
pub(super) const STATUS: usize = 8;

/// Where to find the name whose [`Known`] has a number; 0 where it is not in the table.
static OF_KNOWN: [u8; Known::Other as usize + 1] = {
    let mut indexes = [0; Known::Other as usize + 1];
    let mut place = FIELDS.len();
    while place > 0 {
        // The first of several with one name is what is left.
        if let Name::Field(known) = FIELDS[place - 1].name {
            indexes[known as usize] = place as u8;
        }
        place -= 1;
    }
    indexes[Known::Other as usize] = 0;
    indexes
};

/// Where the names stand that no [`Known`] is for.
static OF_OTHERS: [u8; 9] = [15, 20, 22, 27, 29, 37, 47, 53, 56];

/// The field with an index.
#[inline]
pub(super) fn field(index: usize) -> Option<&'static Entry<'static>> {
    FIELDS.get(index.checked_sub(1)?)
}

/// The first index that has a name; fields' names may be in any case.
pub(super) fn index_of_name(which: Name, name: &[u8]) -> Option<usize> {
    let index = match which {
        Name::Authority => 1,
        Name::Method => 2,
        Name::Path => 4,
        Name::Scheme => 6,
        Name::Status => STATUS as u8,
        Name::Protocol | Name::UnknownPseudo => 0,
        Name::Field(Known::Other) => {
            let is_name = |index: &&u8| {
                let entry = field(usize::from(**index));
                entry.is_some_and(|entry| entry.name_bytes().eq_ignore_ascii_case(name))
            };
            OF_OTHERS.iter().find(is_name).copied().unwrap_or_default()
        }
        Name::Field(known) => OF_KNOWN.get(known as usize).copied().unwrap_or_default(),
    };
    (index != 0).then_some(usize::from(index))
}

/// The index of the field with that value among those with the name that `first` is the first of.
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
    ":authority" "" Name::Authority;
    ":method" "GET" Name::Method;
    ":method" "POST" Name::Method;
    ":path" "/" Name::Path;
    ":path" "/index.html" Name::Path;
    ":scheme" "http" Name::Scheme;
    ":scheme" "https" Name::Scheme;
    ":status" "200" Name::Status;
    ":status" "204" Name::Status;
    ":status" "206" Name::Status;
    ":status" "304" Name::Status;
    ":status" "400" Name::Status;
    ":status" "404" Name::Status;
    ":status" "500" Name::Status;
    "accept-charset" "" Name::Field(Known::Other);
    "accept-encoding" "gzip, deflate" Name::Field(Known::AcceptEncoding);
    "accept-language" "" Name::Field(Known::AcceptLanguage);
    "accept-ranges" "" Name::Field(Known::AcceptRanges);
    "accept" "" Name::Field(Known::Accept);
    "access-control-allow-origin" "" Name::Field(Known::Other);
    "age" "" Name::Field(Known::Age);
    "allow" "" Name::Field(Known::Other);
    "authorization" "" Name::Field(Known::Authorization);
    "cache-control" "" Name::Field(Known::CacheControl);
    "content-disposition" "" Name::Field(Known::ContentDisposition);
    "content-encoding" "" Name::Field(Known::ContentEncoding);
    "content-language" "" Name::Field(Known::Other);
    "content-length" "" Name::Field(Known::ContentLength);
    "content-location" "" Name::Field(Known::Other);
    "content-range" "" Name::Field(Known::ContentRange);
    "content-type" "" Name::Field(Known::ContentType);
    "cookie" "" Name::Field(Known::Cookie);
    "date" "" Name::Field(Known::Date);
    "etag" "" Name::Field(Known::ETag);
    "expect" "" Name::Field(Known::Expect);
    "expires" "" Name::Field(Known::Expires);
    "from" "" Name::Field(Known::Other);
    "host" "" Name::Field(Known::Host);
    "if-match" "" Name::Field(Known::IfMatch);
    "if-modified-since" "" Name::Field(Known::IfModifiedSince);
    "if-none-match" "" Name::Field(Known::IfNoneMatch);
    "if-range" "" Name::Field(Known::IfRange);
    "if-unmodified-since" "" Name::Field(Known::IfUnmodifiedSince);
    "last-modified" "" Name::Field(Known::LastModified);
    "link" "" Name::Field(Known::Link);
    "location" "" Name::Field(Known::Location);
    "max-forwards" "" Name::Field(Known::Other);
    "proxy-authenticate" "" Name::Field(Known::ProxyAuthenticate);
    "proxy-authorization" "" Name::Field(Known::ProxyAuthorization);
    "range" "" Name::Field(Known::Range);
    "referer" "" Name::Field(Known::Referer);
    "refresh" "" Name::Field(Known::Refresh);
    "retry-after" "" Name::Field(Known::Other);
    "server" "" Name::Field(Known::Server);
    "set-cookie" "" Name::Field(Known::SetCookie);
    "strict-transport-security" "" Name::Field(Known::Other);
    "transfer-encoding" "" Name::Field(Known::TransferEncoding);
    "user-agent" "" Name::Field(Known::UserAgent);
    "vary" "" Name::Field(Known::Vary);
    "via" "" Name::Field(Known::Via);
    "www-authenticate" "" Name::Field(Known::WwwAuthenticate);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_says_what_its_text_says() {
        for index in 1..=LAST {
            let field = field(index).unwrap();
            let (name, value) = (field.name_bytes(), field.value_bytes());
            assert_eq!(field.name, Name::of(name));
            assert_eq!(
                Faults::of_name(name).or(Faults::of_value(value)),
                field.faults
            );
            let first = index_of_name(field.name, name).unwrap();
            if !field.name.is_pseudo() {
                let upper = name.to_ascii_uppercase();
                assert_eq!(index_of_name(Name::of(&upper), &upper), Some(first));
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
                index_of_name(Name::of(name.as_bytes()), name.as_bytes()),
                None
            );
        }
    }
}
