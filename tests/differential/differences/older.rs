//! What newer versions of nginx do otherwise than the oldest that is compared with, Debian's 1.22.
//! Where a request shows one of these, little more is learnt of it there, nor of those behind it.
//!
//! No user of Tidegate needs these: they stand on no page.

use std::collections::BTreeSet;

use super::Row;
use crate::answers::Act;
use crate::case::Case;
use crate::compare::{Difference, Part};
use crate::requests::ODD_HOSTS;

pub(super) const ROWS: &[Row] = &[
    Row {
        sentence: "CONNECT is refused with 400.",
        is: |case, difference| is_from(case, difference, |text| text.starts_with("CONNECT ")),
    },
    Row {
        sentence: "More names are refused in Host, and no other makes up for them.",
        is: |case, difference| {
            is_from(case, difference, |text| {
                let odd = |host: &&str| text.contains(&format!("\r\nHost: {host}\r\n"));
                let line = text.lines().next().unwrap_or_default();
                ODD_HOSTS.iter().any(odd) || line.contains("://")
            })
        },
    },
    Row {
        sentence: "Variables of a field that comes twice have both values, and some fields may come once only.",
        is: |case, difference| {
            is_from(case, difference, |text| {
                repeats_a_name(text.lines().skip(1))
            })
        },
    },
    Row {
        sentence: "Variables of an answer's field that comes twice have both values.",
        is: |_, difference| {
            let both = format!("{}, ", difference.reference);
            difference.key.starts_with("sent_http_") && difference.subject.starts_with(&both)
        },
    },
    Row {
        sentence: "Of an upstream's fields that come twice the first counts alone.",
        is: |case, difference| {
            is_from(case, difference, |text| {
                let acts = crate::answers::acts(text.as_bytes()).into_iter();
                let mut heads = acts.filter_map(|act| match act {
                    Act::Send(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
                    _ => None,
                });
                heads.any(|head| repeats_a_name(head.lines().skip(1)))
            })
        },
    },
    Row {
        sentence: "Proxy-Connection does not go on to upstreams.",
        is: |case, difference| {
            let of_length = difference.key == "upstream_bytes_sent";
            let without = |text: &str| {
                let lines = text.lines();
                let lines = lines.filter(|line| !line.starts_with("Proxy-Connection:"));
                lines.map(String::from).collect::<Vec<_>>()
            };
            let without_it = difference.part == Part::Upstream
                && without(&difference.reference) == without(&difference.subject);
            case.says("Proxy-Connection:") && (of_length || without_it)
        },
    },
    Row {
        sentence: "The header of the PROXY protocol stands in the log without what comes after it.",
        is: |_, difference| difference.key.contains("broken header"),
    },
    Row {
        sentence: "Fields that `proxy_set_header` sets go to the upstream in another order.",
        is: |_, difference| {
            let sorted = |text: &str| {
                let mut lines: Vec<String> = text.lines().map(String::from).collect();
                lines.sort();
                lines
            };
            difference.part == Part::Upstream
                && sorted(&difference.reference) == sorted(&difference.subject)
        },
    },
    Row {
        sentence: "`gzip_static` and `slice` answer ranges.",
        is: |_, difference| {
            difference.key.replace('_', "-").ends_with("accept-ranges")
                || difference.key == "content-range"
        },
    },
];

/// Whether a difference is in what is seen of the first request of which this is so, or of what
/// comes behind it, or in what an upstream is asked.
fn is_from(case: &Case, difference: &Difference, is: impl Fn(&str) -> bool) -> bool {
    let mut requests = case.requests();
    let first = requests.position(|bytes| is(&String::from_utf8_lossy(&bytes)));
    first.is_some_and(|first| difference.part == Part::Upstream || case.is_from(difference, first))
}

/// Whether two of a head's lines have one name.
fn repeats_a_name<'a>(lines: impl Iterator<Item = &'a str>) -> bool {
    let head = lines.take_while(|line| !line.is_empty());
    let mut names =
        head.filter_map(|line| Some(line.split_once(':')?.0.trim().to_ascii_lowercase()));
    let mut seen = BTreeSet::new();
    names.any(|name| !seen.insert(name))
}
