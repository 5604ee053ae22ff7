//! The table of README.md: the parts of nginx that work and those that do not yet, by area instead
//! of by module.
//!
//! Counts the directives of the free nginx; docs/compatibility.md lists them all.

use std::fmt::Write;

use conf::Registry;

use server::reference::{self, ReferenceName};

use super::{SupportStatus, here};

/// The lines of README.md that enclose the table.
const BEGIN: &str = "<!-- made by `make docs`: what works -->\n";
const END: &str = "<!-- end of what works -->\n";

/// Names of missing directives that a row shows.
const NAMES_MAX: usize = 4;

/// Each area with nginx's modules that belong to it; `stream_*` means all whose names begin so.
const AREAS: &[(&str, &[&str])] = &[
    (
        "Processes, signals, reload, event loops",
        &[
            "core",
            "epoll",
            "event",
            "event_openssl",
            "event_openssl_cache",
            "event_quic_bpf",
            "google_perftools",
        ],
    ),
    (
        "Servers, locations, rewriting, error pages, maps",
        &[
            "http_browser",
            "http_core",
            "http_degradation",
            "http_geo",
            "http_geoip",
            "http_map",
            "http_referer",
            "http_rewrite",
            "http_split_clients",
            "http_try_files",
        ],
    ),
    (
        "Files, listings, WebDAV, video",
        &[
            "http_autoindex",
            "http_dav",
            "http_empty_gif",
            "http_flv",
            "http_index",
            "http_mp4",
            "http_random_index",
            "http_slice",
        ],
    ),
    (
        "Access, passwords, limits",
        &[
            "http_access",
            "http_auth_basic",
            "http_auth_request",
            "http_limit_conn",
            "http_limit_req",
            "http_realip",
            "http_secure_link",
            "http_userid",
        ],
    ),
    (
        "gzip, header fields, SSI and other filters",
        &[
            "http_addition",
            "http_charset",
            "http_gunzip",
            "http_gzip",
            "http_gzip_static",
            "http_headers",
            "http_image",
            "http_ssi",
            "http_sub",
            "http_xslt",
        ],
    ),
    ("Logs and status", &["http_log", "http_stub_status"]),
    ("TLS", &["http_ssl"]),
    (
        "Reverse proxy over HTTP/1",
        &["http_mirror", "http_proxy", "http_tunnel"],
    ),
    ("Load balancing", &["http_upstream*"]),
    ("HTTP/2 and HTTP/3", &["http_v2", "http_v3"]),
    (
        "FastCGI, uwsgi, SCGI, gRPC, memcached",
        &[
            "http_fastcgi",
            "http_grpc",
            "http_memcached",
            "http_scgi",
            "http_uwsgi",
        ],
    ),
    ("TCP and UDP (`stream`)", &["stream_*"]),
    ("Mail (`mail`)", &["mail_*"]),
    ("Perl", &["http_perl"]),
];

/// README.md with the table regenerated; `None` if the lines that enclose the table are missing.
pub(crate) fn refreshed(readme: &str, registry: &Registry) -> Option<String> {
    let (before, rest) = readme.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!(
        "{before}{BEGIN}\n{}\n{END}{after}",
        table(registry)
    ))
}

fn table(registry: &Registry) -> String {
    let mut table =
        String::from("| | works | accepted, no effect | not yet |\n|---|---|---|---|\n");
    let names = reference::nginx();
    for (title, modules) in AREAS {
        let (mut works, mut accepted, mut missing) = (0, 0, Vec::new());
        let of_area = |known: &&ReferenceName| !known.is_variable && belongs(known.module, modules);
        for known in names.iter().filter(of_area) {
            match here(*known, registry) {
                SupportStatus::Yes(_) | SupportStatus::Variable => works += 1,
                SupportStatus::WithoutEffect(..) => accepted += 1,
                SupportStatus::Later(..) | SupportStatus::NotYet => missing.push(known.name),
            }
        }
        let missing = match (works, missing.len()) {
            (_, 0) => String::new(),
            (0, count) => count.to_string(),
            (_, count) => format!("{count}: {}", named(&missing)),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(table, "| {title} | {works} | {accepted} | {missing} |");
    }
    table
}

/// The first of the names.
fn named(missing: &[&str]) -> String {
    let shown: Vec<String> = missing
        .iter()
        .take(NAMES_MAX)
        .map(|name| format!("`{name}`"))
        .collect();
    match missing.len().checked_sub(NAMES_MAX) {
        None | Some(0) => shown.join(", "),
        Some(_) => format!("{} …", shown.join(", ")),
    }
}

fn belongs(module: &str, modules: &[&str]) -> bool {
    modules
        .iter()
        .any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => module.starts_with(start),
            None => module == *pattern,
        })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::application::registry;

    #[test]
    fn the_table_of_the_readme_is_fresh() {
        let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
        let committed = std::fs::read_to_string(readme).unwrap();
        let fresh = refreshed(&committed, registry()).expect("README.md has a place for it");
        assert!(
            committed == fresh,
            "the table in README.md is stale, `make docs` writes it again"
        );
    }

    #[test]
    fn every_module_is_in_one_area() {
        for known in reference::nginx().iter().filter(|known| !known.is_variable) {
            let areas = AREAS
                .iter()
                .filter(|(_, modules)| belongs(known.module, modules));
            assert_eq!(areas.count(), 1, "{}", known.module);
        }
    }

    #[test]
    fn long_lists_of_missing_names_are_cut() {
        assert_eq!(named(&["a", "b"]), "`a`, `b`");
        assert_eq!(
            named(&["a", "b", "c", "d", "e", "f"]),
            "`a`, `b`, `c`, `d` …"
        );
    }
}
