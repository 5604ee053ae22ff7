//! Are the cases worth anything, and is every directive shown?
//!
//! A directive counts as shown when two cases set it to two values and nginx itself answers
//! differently. Where nginx does not, the cases prove nothing about Tidegate either. Which
//! directives there are is read from the generated docs/directives/README.md. Nothing counts by
//! being named in this file: a case must set in its configuration what it says that it covers, and
//! a test of [`ELSEWHERE`] must set the directive too.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::case::CaseFile;
use crate::transcript::Transcript;

/// Every directive with its page; written by `make docs`.
const TABLE: &str = "docs/directives/README.md";

/// Tests that show directives which no case can: they are ours alone, or take another client, TLS,
/// or several processes.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "tests/operations/tracing/mod.rs",
        "endpoint otel_exporter otel_resource_attr otel_service_name otel_span_attr otel_span_name otel_trace
         otel_trace_context",
    ),
    (
        "tests/operations/tracing/collectors.rs",
        "batch_count batch_size interval trusted_certificate",
    ),
    (
        "tests/tls/acme.rs",
        "accept_terms_of_service account_key acme_certificate acme_issuer announce challenge common_name_in_csr contact
         external_account_key preferred_chain profile ssl_verify state_path uri",
    ),
    (
        "tests/stream/main.rs",
        "proxy_download_rate proxy_half_close proxy_session_time proxy_timeout proxy_upload_rate stream",
    ),
    (
        "tests/stream/mqtt.rs",
        "mqtt mqtt_buffers mqtt_preread mqtt_set_connect",
    ),
    (
        "tests/stream/values.rs",
        "num_map proxy_downstream_buffer proxy_upstream_buffer",
    ),
    (
        "tests/stream/datagrams.rs",
        "proxy_requests proxy_responses",
    ),
    (
        "tests/stream/tls.rs",
        "ssl_alpn ssl_handshake_timeout",
    ),
    (
        "tests/stream/beginnings.rs",
        "preread_buffer_size preread_timeout proxy_protocol_timeout ssl_preread",
    ),
    (
        "tests/stream/behind.rs",
        "proxy_ssl proxy_ssl_alpn",
    ),
    (
        "tests/stream/passing.rs",
        "pass",
    ),
    (
        "tests/stream/memcached_server/block.rs",
        "auth_file item_size_max key_length_max memcached sasl_file",
    ),
    (
        "tests/command_line/parameters.rs",
        "daemon pid worker_cpu_affinity worker_processes",
    ),
    (
        "tests/proxying/application_protocols/fastcgi.rs",
        "fastcgi_catch_stderr fastcgi_hide_header fastcgi_index fastcgi_intercept_errors fastcgi_keep_conn fastcgi_next_upstream
         fastcgi_param fastcgi_pass fastcgi_pass_header fastcgi_pass_request_body fastcgi_pass_request_headers
         fastcgi_request_buffering fastcgi_split_path_info fastcgi_buffer_size",
    ),
    (
        "tests/proxying/application_protocols/directives.rs",
        "fastcgi_bind fastcgi_buffering fastcgi_buffers fastcgi_busy_buffers_size fastcgi_connect_timeout
         fastcgi_force_ranges fastcgi_ignore_client_abort fastcgi_limit_rate
         fastcgi_max_temp_file_size fastcgi_next_upstream_timeout fastcgi_next_upstream_tries fastcgi_read_timeout
         fastcgi_send_timeout fastcgi_store fastcgi_store_access fastcgi_temp_file_write_size fastcgi_temp_path",
    ),
    (
        "tests/proxying/application_protocols/directives.rs",
        "uwsgi_bind uwsgi_buffering uwsgi_buffers uwsgi_busy_buffers_size uwsgi_connect_timeout uwsgi_force_ranges
         uwsgi_ignore_client_abort uwsgi_limit_rate uwsgi_max_temp_file_size
         uwsgi_next_upstream_timeout uwsgi_next_upstream_tries uwsgi_read_timeout uwsgi_send_timeout uwsgi_store
         uwsgi_store_access uwsgi_temp_file_write_size uwsgi_temp_path",
    ),
    (
        "tests/proxying/application_protocols/directives.rs",
        "scgi_bind scgi_buffering scgi_buffers scgi_busy_buffers_size scgi_connect_timeout scgi_force_ranges
         scgi_ignore_client_abort scgi_limit_rate scgi_max_temp_file_size
         scgi_next_upstream_timeout scgi_next_upstream_tries scgi_read_timeout scgi_send_timeout scgi_store
         scgi_store_access scgi_temp_file_write_size scgi_temp_path",
    ),
    (
        "tests/proxying/application_protocols/unframed.rs",
        "uwsgi_buffer_size uwsgi_hide_header uwsgi_intercept_errors uwsgi_modifier1 uwsgi_modifier2 uwsgi_next_upstream uwsgi_param uwsgi_pass
         uwsgi_pass_header uwsgi_pass_request_body uwsgi_pass_request_headers uwsgi_request_buffering uwsgi_string
         scgi_buffer_size scgi_hide_header scgi_intercept_errors scgi_next_upstream scgi_param scgi_pass
         scgi_pass_header scgi_pass_request_body scgi_pass_request_headers scgi_request_buffering",
    ),
    (
        "tests/proxying/application_protocols/memcached.rs",
        "memcached_bind memcached_buffer_size memcached_connect_timeout memcached_gzip_flag memcached_next_upstream
         memcached_next_upstream_timeout memcached_next_upstream_tries memcached_pass memcached_read_timeout",
    ),
    (
        "tests/http2/streams.rs",
        "http2 http2_body_preread_size http2_chunk_size http2_max_concurrent_streams",
    ),
    (
        "tests/http/compression.rs",
        "brotli brotli_buffers brotli_comp_level brotli_min_length brotli_static brotli_types brotli_window
         compress_static_level zstd zstd_buffers zstd_comp_level zstd_min_length zstd_static zstd_types",
    ),
    ("tests/http/response_memory.rs", "response_memory"),
    (
        "tests/caches/cache/mod.rs",
        "proxy_cache_bypass proxy_cache_max_range_offset
         proxy_cache_methods proxy_cache_path
         proxy_no_cache",
    ),
    (
        "tests/caches/cache/mod.rs",
        "fastcgi_cache_bypass fastcgi_cache_max_range_offset fastcgi_cache_methods
         fastcgi_cache_path fastcgi_no_cache",
    ),
    (
        "tests/caches/cache/mod.rs",
        "uwsgi_cache_bypass uwsgi_cache_max_range_offset uwsgi_cache_methods
         uwsgi_cache_path uwsgi_no_cache",
    ),
    (
        "tests/caches/cache/mod.rs",
        "scgi_cache_bypass scgi_cache_max_range_offset scgi_cache_methods
         scgi_cache_path scgi_no_cache",
    ),
    (
        "tests/caches/cache/lock.rs",
        "proxy_cache_lock proxy_cache_lock_age proxy_cache_lock_timeout fastcgi_cache_lock fastcgi_cache_lock_age
         fastcgi_cache_lock_timeout uwsgi_cache_lock uwsgi_cache_lock_age uwsgi_cache_lock_timeout scgi_cache_lock
         scgi_cache_lock_age scgi_cache_lock_timeout",
    ),
    (
        "tests/caches/cache/purge.rs",
        "proxy_cache_purge fastcgi_cache_purge uwsgi_cache_purge scgi_cache_purge",
    ),
    ("tests/caches/cache/files.rs", "proxy_cache_files"),
    (
        "tests/caches/cache/sharing.rs",
        "proxy_cache_credentials proxy_cache_ignore_cookies proxy_cache_lock_max_waiting proxy_cache_max_variants
         proxy_cache_microcache",
    ),
    (
        "tests/caches/cache/semantics.rs",
        "proxy_cache_semantics fastcgi_cache_semantics uwsgi_cache_semantics scgi_cache_semantics",
    ),
    ("tests/proxying/balancing.rs", "eject_outliers p2c retry_budget"),
    ("tests/conf/includes.conftest", "load_module"),
    ("tests/conf/upstreams.conftest", "upstream"),
    (
        "tests/http/dav.rs",
        "dav_ext_lock dav_ext_lock_zone dav_ext_methods",
    ),
    ("tests/operations/confinement.rs", "confine"),
    ("tests/operations/overload.rs", "concurrency_limit"),
    ("tests/operations/generations.rs", "use"),
    (
        "tests/xdp/main.rs",
        "xdp_bypass_firewall xdp_interface xdp_mode xdp_required",
    ),
    ("tests/xdp/watching.rs", "xdp_profile"),
    (
        "tests/http/geoip2.rs",
        "geoip2 geoip2_proxy geoip2_proxy_recursive",
    ),
    (
        "tests/http/headers_more.rs",
        "more_clear_headers more_clear_input_headers more_set_headers more_set_input_headers",
    ),
    ("tests/conf/health_checks.conftest", "state"),
    (
        "tests/proxying/health_checks.rs",
        "body header health_check match require status",
    ),
    (
        "tests/stream/health.rs",
        "expect health_check_timeout send",
    ),
    ("tests/operations/live_api/mod.rs", "api dashboard"),
    ("tests/operations/live_api/counters.rs", "status_zone"),
    ("tests/operations/live_api/pairs.rs", "keyval keyval_zone"),
    ("tests/operations/log_places.rs", "debug_connection"),
    ("tests/operations/metrics.rs", "metrics"),
    (
        "tests/proxying/proxy_buffering.rs",
        "proxy_busy_buffers_size proxy_temp_file_write_size",
    ),
    ("tests/robustness/server.rs", "user"),
    ("tests/robustness/limits.rs", "worker_connections"),
    (
        "tests/robustness/process.rs",
        "env master_process worker_priority worker_rlimit_core worker_shutdown_timeout working_directory",
    ),
    (
        "tests/robustness/proxying.rs",
        "proxy_buffering proxy_request_buffering",
    ),
    ("tests/robustness/reload.rs", "keepalive_min_timeout"),
    (
        "tests/tls/termination.rs",
        "ssl_buffer_size ssl_certificate ssl_certificate_cache ssl_certificate_compression ssl_certificate_key
         ssl_early_data ssl_key_log ssl_object_cache_inheritable ssl_password_file ssl_session_ticket_key
         ssl_session_timeout ssl_stapling_file",
    ),
    (
        "tests/tls/stapling.rs",
        "ssl_ocsp ssl_ocsp_cache ssl_ocsp_responder ssl_stapling ssl_stapling_responder ssl_stapling_verify",
    ),
    ("tests/command_line/try_configuration.rs", "client_body_temp_path"),
    (
        "tests/http2/grpc/endings.rs",
        "grpc_errors grpc_next_upstream_timeout",
    ),
    ("tests/http2/grpc/mod.rs", "grpc_pass"),
    ("tests/http2/grpc/web.rs", "grpc_web"),
    ("tests/http2/http2_upstreams/bad.rs", "grpc_read_timeout"),
    ("tests/http2/http2_upstreams/flow.rs", "grpc_send_timeout"),
    (
        "tests/tls/upstreams.rs",
        "proxy_ssl_certificate proxy_ssl_certificate_cache proxy_ssl_certificate_key proxy_ssl_ciphers
         proxy_ssl_key_log proxy_ssl_password_file proxy_ssl_protocols proxy_ssl_session_reuse
         uwsgi_ssl_certificate uwsgi_ssl_certificate_cache uwsgi_ssl_certificate_key uwsgi_ssl_ciphers
         uwsgi_ssl_key_log uwsgi_ssl_password_file uwsgi_ssl_protocols uwsgi_ssl_session_reuse
         grpc_ssl_certificate_cache grpc_ssl_key_log grpc_ssl_session_reuse",
    ),
    (
        "tests/proxying/upstream_sockets.rs",
        "fastcgi_socket_keepalive fastcgi_socket_rcvbuf fastcgi_socket_sndbuf memcached_socket_keepalive proxy_socket_keepalive
         proxy_socket_rcvbuf proxy_socket_sndbuf scgi_socket_keepalive scgi_socket_rcvbuf scgi_socket_sndbuf grpc_socket_keepalive
         grpc_socket_rcvbuf grpc_socket_sndbuf grpc_connect_timeout tunnel_socket_keepalive
         tunnel_socket_rcvbuf tunnel_socket_sndbuf uwsgi_socket_keepalive uwsgi_socket_rcvbuf uwsgi_socket_sndbuf",
    ),
    ("tests/proxying/upstream_proxy_protocol.rs", "proxy_protocol"),
    ("tests/proxying/tunnel.rs", "tunnel_buffer_size tunnel_send_timeout"),
    (
        "tests/proxying/upstreams.rs",
        "hash ip_hash keepalive least_conn least_time queue random zone",
    ),
    (
        "tests/http/video.rs",
        "mp4_limit_rate mp4_limit_rate_after",
    ),
];

/// What cases of `stream` cannot show of a directive that stands there, with the reason or the test
/// that does.
const STREAM_ELSEWHERE: &[(&str, &str)] = &[
    (
        "nginx has it in `http` alone, or not at all",
        "concurrency_limit eject_outliers geoip2 p2c proxy_downstream_buffer
         proxy_upstream_buffer proxy_session_time retry_budget sticky",
    ),
    (
        "of NGINX Plus: tests/stream",
        "expect health_check health_check_timeout keyval keyval_zone least_time match mqtt
         mqtt_buffers mqtt_preread mqtt_set_connect num_map queue send state status_zone",
    ),
    (
        "no client can tell: tests/stream/sockets.rs looks at sockets",
        "open_log_file_cache proxy_socket_keepalive proxy_socket_rcvbuf proxy_socket_sndbuf
         tcp_nodelay",
    ),
    (
        "by the code of `http`, whose cases and tests show it",
        "proxy_ssl_certificate_cache proxy_ssl_key_log ssl_certificate_cache
         ssl_certificate_compression ssl_ocsp ssl_ocsp_cache ssl_ocsp_responder ssl_session_ticket_key
         ssl_session_timeout ssl_stapling ssl_stapling_file ssl_stapling_responder ssl_stapling_verify",
    ),
    ("each case stands in them", "server upstream"),
];

/// Says of which tests the lines are run for other families of directives as well; the file
/// explains itself.
const REPEATED: &str = "tests/repeated-directives.txt";

/// Directives whose values no client can tell apart, with the reason.
const INVISIBLE: &[(&str, &str)] = &[
    ("events http", "blocks, which every configuration has"),
    (
        "sendfile",
        "the same bytes either way; the cases compare them",
    ),
    ("sendfile_max_chunk", "how many bytes leave at once"),
    ("tcp_nodelay", "how bytes are packed into segments"),
    ("tcp_nopush", "the same; tests/http/segments.rs counts them"),
    ("multi_accept", "how many connections are accepted at once"),
    (
        "gunzip_buffers gzip_buffers gzip_no_buffer gzip_window",
        "the memory that (de)compression uses",
    ),
    ("open_log_file_cache", "how many log files stay open"),
    (
        "memcached_send_timeout",
        "how long sending may take: what is sent is a line, which the kernel takes at once",
    ),
    (
        "worker_rlimit_nofile",
        "how many descriptors a process may have; a test of the limit itself sets it for the test",
    ),
];

/// What is missing, one line each. `root` is the repository.
pub(crate) fn findings(root: &Path, files: &[(CaseFile, Transcript)]) -> Vec<String> {
    let mut findings = Vec::new();
    let mut shown: BTreeSet<&str> = BTreeSet::new();
    for (directive, by_value) in &values(files, &mut findings) {
        let texts: BTreeSet<&String> = by_value
            .values()
            .filter_map(|texts| texts.first())
            .collect();
        match (by_value.len(), texts.len()) {
            (0 | 1, _) => findings.push(format!("{directive}: one value only")),
            (_, 0 | 1) => findings.push(format!(
                "{directive}: nginx answers the same for {:?}",
                by_value.keys()
            )),
            _ => drop(shown.insert(directive)),
        }
    }
    let table = std::fs::read_to_string(root.join(TABLE)).unwrap_or_default();
    findings.extend(of_stream(&table, &shown));
    shown.retain(|directive| !directive.starts_with(OF_STREAM));
    let elsewhere = elsewhere(root, &mut findings);
    let invisible: BTreeSet<&str> = INVISIBLE
        .iter()
        .flat_map(|(names, _)| names.split_whitespace())
        .collect();
    let known = with_effect(&table);
    if known.is_empty() {
        findings.push(format!("{TABLE}: names no directive"));
    }
    for directive in &known {
        let (here, there) = (shown.contains(directive), elsewhere.contains(directive));
        match (here || there, invisible.contains(directive)) {
            (false, false) => findings.push(format!(
                "{directive}: no two cases show it, and no test in coverage.rs sets it"
            )),
            (true, true) => findings.push(format!(
                "{directive}: shown, so it is not invisible (coverage.rs)"
            )),
            _ => {}
        }
        if here && there {
            findings.push(format!(
                "{directive}: cases show it, so coverage.rs need not name another test"
            ));
        }
    }
    let names = elsewhere.union(&invisible);
    let unknown = names.filter(|name| !known.contains(*name));
    findings.extend(
        unknown.map(|name| format!("{name}: coverage.rs names no directive with an effect")),
    );
    findings
}

/// How cases name directives of `stream`.
const OF_STREAM: &str = "stream.";

/// Directives of `stream` that no two cases show, and that [`STREAM_ELSEWHERE`] does not name; and
/// those which it names in vain.
fn of_stream(table: &str, shown: &BTreeSet<&str>) -> Vec<String> {
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ["));
    let rows = rows.filter(|row| !row.contains("no effect"));
    let stands_in_stream = |row: &&str| {
        let contexts = row.split('|').nth(1).unwrap_or_default();
        let mut contexts = contexts.split(',').map(str::trim);
        contexts.any(|context| context == "stream" || context.ends_with(" in stream"))
    };
    let known: BTreeSet<&str> = rows
        .filter(stands_in_stream)
        .filter_map(|row| row.split(']').next())
        .collect();
    let elsewhere: BTreeSet<&str> = STREAM_ELSEWHERE
        .iter()
        .flat_map(|(_, names)| names.split_whitespace())
        .collect();
    let is_shown = |name: &str| shown.contains(&*format!("{OF_STREAM}{name}"));
    let missing = known
        .iter()
        .filter(|name| !is_shown(name) && !elsewhere.contains(*name))
        .map(|name| format!("{OF_STREAM}{name}: no two cases show it"));
    let in_vain = elsewhere
        .iter()
        .filter(|name| is_shown(name) || !known.contains(*name))
        .map(|name| format!("{name}: coverage.rs names it for stream in vain"));
    missing.chain(in_vain).collect()
}

/// What nginx answered, by directive and value. Cases that cover what their configuration does not
/// set are findings.
fn values<'a>(
    files: &'a [(CaseFile, Transcript)],
    findings: &mut Vec<String>,
) -> BTreeMap<&'a str, BTreeMap<&'a str, Vec<String>>> {
    let mut values: BTreeMap<&str, BTreeMap<&str, Vec<String>>> = BTreeMap::new();
    for (file, transcript) in files {
        let configuration = [&*file.main, &file.events, &file.http].join("\n");
        for case in &file.cases {
            let Some(text) = transcript.get(&case.name) else {
                continue; // reported by the comparison
            };
            let text = match case.target().filter(|target| target.len() > 1) {
                Some(target) => text.replace(&target, "@TARGET@"),
                None => text.to_string(),
            };
            for (directive, value) in &case.covers {
                let is_set = match directive.strip_prefix(OF_STREAM) {
                    Some(directive) => sets(&file.stream, directive),
                    None => sets(&configuration, directive),
                };
                if !is_set {
                    findings.push(format!(
                        "{}/{}: covers {directive}, which its configuration does not set",
                        file.area, case.name
                    ));
                    continue;
                }
                values
                    .entry(directive)
                    .or_default()
                    .entry(value)
                    .or_default()
                    .push(text.clone());
            }
        }
    }
    values
}

/// The directives of [`ELSEWHERE`] that the tests named there set. The others are findings.
fn elsewhere(root: &Path, findings: &mut Vec<String>) -> BTreeSet<&'static str> {
    let mut set = BTreeSet::new();
    let repeated = std::fs::read_to_string(root.join(REPEATED)).unwrap_or_default();
    for (file, names) in ELSEWHERE {
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        for name in names.split_whitespace() {
            let mut names = as_written(&repeated, file, name).into_iter();
            if names.any(|name| sets(&text, &name)) {
                set.insert(name);
            } else {
                findings.push(format!("{name}: {file} does not set it"))
            }
        }
    }
    set
}

/// How a test writes the name of a directive: as it is, or as that of the family that is repeated
/// for this one.
fn as_written<'a>(repeated: &str, file: &str, name: &'a str) -> Vec<Cow<'a, str>> {
    let mut names = vec![Cow::Borrowed(name)];
    for line in repeated.lines() {
        let mut words = line.split(' ');
        if words.next() == Some(file)
            && let Some(prefix) = words.next()
        {
            let stems = words.filter_map(|other| name.strip_prefix(other));
            names.extend(stems.map(|stem| Cow::Owned(format!("{prefix}{stem}"))));
        }
    }
    names
}

/// Whether a configuration, or the source of a test with one in it, has a line that sets the
/// directive or parameter. Comments, and names that only stand in a longer word, do not count.
fn sets(text: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let lines = text.lines().map(str::trim_start);
    let lines = lines.filter(|line| !line.starts_with("//") && !line.starts_with('#'));
    lines.into_iter().any(|line| {
        line.match_indices(name).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + name.len()..].chars().next();
            // In a text of Rust, `\n` may stand before it.
            let free = !before.is_some_and(|c| is_word(c) || "$-.`/".contains(c))
                || line[..at].ends_with("\\n");
            free && after.is_none_or(|c| " \t;={\"\\:".contains(c))
        })
    })
}

/// The names in the table of directives that are more than accepted.
fn with_effect(table: &str) -> BTreeSet<&str> {
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ["));
    rows.filter(|row| !row.contains("no effect here") && !row.contains("no effect yet"))
        .filter_map(|row| row.split(']').next())
        .collect()
}

/// For the report: what is deliberately not shown.
pub(crate) fn invisible() -> impl Iterator<Item = String> {
    INVISIBLE
        .iter()
        .map(|(names, reason)| format!("{names}: {reason}"))
}
