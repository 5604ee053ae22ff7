//! The filters of responses, one per file.
//!
//! Each is a [`HeadFilter`](http::response::chain::HeadFilter) that registers with the plans of the
//! scopes in which it is on. Compression comes last, and its encoder belongs to the exchange, since
//! it compresses the responses of included subrequests too.

pub mod addition;
pub mod brotli;
pub mod charset;
pub mod coding_family;
pub mod compress;
pub mod compressed;
pub mod gunzip;
pub mod gzip;
pub mod headers;
pub mod slice;
pub mod ssi;
pub mod sub;
pub mod userid;
pub mod zstd;

use bytes::Bytes;
use conf::{Fault, Setter};
use proto::date;

/// A set of media types, as `gzip_types`, `charset_types` and `addition_types` give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaTypes {
    /// Responses of every type (written `*`).
    All,
    /// These types, in lower case.
    These(Box<[Box<[u8]>]>),
}

impl MediaTypes {
    /// Whether the set contains this type.
    pub fn contain(&self, content_type: &[u8]) -> bool {
        match self {
            MediaTypes::All => true,
            MediaTypes::These(names) => names
                .iter()
                .any(|name| name.eq_ignore_ascii_case(content_type)),
        }
    }
}

/// Parses the arguments of `gzip_types` and similar directives, which add to `text/html`.
fn media_types(setter: &Setter<'_>) -> Result<MediaTypes, Fault> {
    let mut names: Vec<Box<[u8]>> = Vec::new();
    if !setter.is_default() {
        names.push(Box::from(&b"text/html"[..]));
    }
    for word in setter.lines().iter().flat_map(|line| &line.args) {
        if &*word.bytes == b"*" {
            return Ok(MediaTypes::All);
        }
        let name: Box<[u8]> = word.bytes.to_ascii_lowercase().into();
        if names.contains(&name) {
            setter.warn(
                word,
                format!("duplicate MIME type \"{}\"", String::from_utf8_lossy(&name)),
            );
        } else {
            names.push(name);
        }
    }
    Ok(MediaTypes::These(names.into()))
}

/// A date as a field's value.
fn date_value(time: i64) -> Bytes {
    let mut text = [0; date::HTTP_LENGTH];
    date::format_http(time, &mut text);
    Bytes::copy_from_slice(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_compared_in_any_case() {
        let types = MediaTypes::These(Box::new([Box::from(&b"text/html"[..])]));
        assert!(types.contain(b"text/html"));
        assert!(types.contain(b"Text/HTML"));
        assert!(!types.contain(b"text/html; charset=utf-8"));
        assert!(!types.contain(b""));
        assert!(MediaTypes::All.contain(b""));
    }
}
