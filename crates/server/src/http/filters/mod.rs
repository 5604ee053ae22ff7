//! The filters of responses, one feature a file.
//!
//! Each is a [`HeadFilter`](crate::http::chain::HeadFilter) that registers with the plans of the scopes in which it has
//! something to do. Compression comes last and is given to the exchange, because it compresses what included subrequests send
//! as well.

pub mod addition;
pub mod brotli;
pub mod charset;
pub mod compress;
pub mod gunzip;
pub mod gzip;
pub mod headers;
pub mod slice;
pub mod ssi;
pub mod sub;
#[cfg(test)]
pub(crate) mod testing;
pub mod userid;
pub mod zstd;

use bytes::Bytes;
use conf::{Fault, Setter};
use proto::date;

/// A set of media types, as `gzip_types`, `charset_types` and `addition_types` give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaTypes {
    /// `*`: every response.
    All,
    /// These, in lower case.
    These(Box<[Box<[u8]>]>),
}

impl MediaTypes {
    /// Whether a response of this type is meant.
    pub fn contain(&self, content_type: &[u8]) -> bool {
        match self {
            MediaTypes::All => true,
            MediaTypes::These(names) => names
                .iter()
                .any(|name| name.eq_ignore_ascii_case(content_type)),
        }
    }
}

/// Reads the arguments of `gzip_types` and its like: what is written adds to `text/html`.
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
    use crate::http::chain::Link;
    use crate::http::request::tests::serve;

    /// The chain of a location with these directives, by the names of its links.
    fn chain(directives: &str) -> Vec<String> {
        let text = format!(
            "events {{ }} error_log /dev/null; http {{ access_log off; proxy_temp_path /tmp; \
             client_body_temp_path /tmp; server {{ listen 10.0.0.1:80; {directives} }} }}"
        );
        serve(&text, "GET / HTTP/1.1", async |request| {
            let name = |link: &Link| {
                let shown = format!("{link:?}");
                shown.split(' ').next().unwrap_or_default().to_owned()
            };
            request.plan.phases.filters.iter().map(name).collect()
        })
    }

    #[test]
    fn responses_pass_the_filters_in_the_order_of_nginx() {
        // However a configuration is written, this is the order in which nginx 1.31 has linked them.
        let all = "gzip on; ssi on; sub_filter a b; charset utf-8; add_after_body /x; gunzip on; userid on; \
                   add_header A b; more_set_headers 'C: d'; slice 1k;";
        assert_eq!(
            chain(all),
            [
                "SliceSize(1024)",
                "NotModified",
                "HeadersMore",
                "Headers",
                "UserId",
                "Gunzip",
                "Addition",
                "Sub",
                "Charset",
                "Ssi",
                "Compression",
                "Range"
            ]
        );
        assert_eq!(
            chain("zstd on;"),
            ["NotModified", "Charset", "Compression", "Range"]
        );
    }

    #[test]
    fn what_is_off_is_no_link() {
        let off = "more_set_input_headers 'A: b'; userid log; slice 0; gzip off; expires off;";
        assert_eq!(chain(off), ["NotModified", "Charset", "Range"]);
    }

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
