//! What newer versions of nginx do otherwise than the oldest that is compared with, Debian's 1.22. Where a request shows
//! one of these, nothing more is learnt of it there.
//!
//! No user of Tidegate needs these: they stand on no page.

use super::Row;
use crate::compare::Part;
use crate::requests::ODD_HOSTS;

pub(super) const ROWS: &[Row] = &[
    Row {
        sentence: "CONNECT is refused with 400.",
        is: |case, _| case.says("CONNECT "),
    },
    Row {
        sentence: "More names are refused in Host, and no other makes up for them.",
        is: |case, _| {
            let odd = |host: &&str| case.says(&format!("\r\nHost: {host}\r\n"));
            ODD_HOSTS.iter().any(odd) || case.says("://")
        },
    },
    Row {
        sentence: "Variables of a field that comes twice have both values, and some fields may come once only.",
        is: |case, _| case.repeats_a_field(),
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
        is: |case, _| case.answer_repeats_a_field(),
    },
    Row {
        sentence: "Proxy-Connection does not go on to upstreams.",
        is: |case, _| case.says("Proxy-Connection:"),
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
