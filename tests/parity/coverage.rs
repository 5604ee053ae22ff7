//! Check mode: are the cases worth anything?
//!
//! A directive counts as shown when two cases set it to two values and nginx itself answers differently.
//! Where nginx does not, the cases prove nothing about Tidegate either.

use std::collections::{BTreeMap, BTreeSet};

use crate::case::CaseFile;
use crate::transcript::Transcript;

/// Every directive that the cases must show.
const DIRECTIVES: &str = "
    listen server_name location internal root alias try_files return error_page
    recursive_error_pages satisfy allow deny limit_except rewrite rewrite_log uninitialized_variable_warn if set
    break map hostnames volatile geo split_clients add_before_body add_after_body addition_types auth_request
    auth_request_set auth_basic auth_basic_user_file auth_delay
    limit_req_zone limit_req limit_req_status limit_req_log_level limit_req_dry_run limit_conn_zone limit_conn
    limit_conn_status limit_conn_log_level limit_conn_dry_run valid_referers secure_link secure_link_md5
    secure_link_secret modern_browser ancient_browser modern_browser_value ancient_browser_value userid userid_service
    userid_name userid_domain userid_path userid_expires userid_flags userid_p3p userid_mark index autoindex autoindex_exact_size autoindex_localtime types default_type max_ranges etag
    if_modified_since expires add_header add_trailer charset source_charset override_charset charset_types charset_map
    gzip gzip_vary gzip_proxied gzip_types gzip_comp_level gzip_min_length gzip_disable gzip_http_version gzip_static
    open_file_cache open_file_cache_valid open_file_cache_min_uses open_file_cache_errors limit_rate limit_rate_after
    server_tokens log_not_found log_subrequest proxy_pass proxy_set_header proxy_http_version proxy_connect_timeout
    proxy_read_timeout proxy_send_timeout proxy_pass_request_headers proxy_pass_request_body proxy_method
    access_log log_format error_log client_body_buffer_size client_body_in_file_only client_body_timeout
    client_header_buffer_size client_header_timeout client_max_body_size keepalive_timeout keepalive_requests
    keepalive_disable large_client_header_buffers ignore_invalid_headers underscores_in_headers merge_slashes
    reset_timedout_connection lingering_close lingering_timeout lingering_time absolute_redirect
    server_name_in_redirect port_in_redirect chunked_transfer_encoding msie_padding disable_symlinks
    send_timeout client_body_in_single_buffer empty_gif include
    gunzip sub_filter sub_filter_once sub_filter_last_modified sub_filter_types
    resolver resolver_timeout set_real_ip_from real_ip_header real_ip_recursive
    ssi ssi_last_modified ssi_silent_errors ssi_types ssi_value_length subrequest_output_buffer_size
    random_index msie_refresh early_hints client_body_early_read
    ssl_protocols ssl_ciphers ssl_prefer_server_ciphers ssl_ecdh_curve ssl_conf_command ssl_reject_handshake
    ssl_verify_client ssl_verify_depth ssl_client_certificate ssl_trusted_certificate ssl_crl ssl_session_cache
    ssl_session_tickets
";

/// Directives of the issue whose values no client can tell apart, with the reason.
const INVISIBLE: &str = "
    sendfile              the same bytes either way; the cases compare them
    sendfile_max_chunk    how many bytes leave at once
    tcp_nopush            how bytes are packed into segments
    tcp_nodelay           how bytes are packed into segments
    worker_connections    how many connections at once; benches/idle_memory opens 10,000
    multi_accept          how many connections are accepted at once
    gzip_buffers          the memory that compression uses
    gunzip_buffers        the memory that decompression uses
    output_buffers        the memory that reading uses
    worker_priority worker_rlimit_core working_directory env    the process's own matter; tests/robustness shows them
    directio aio          where bytes are read from
    aio_write             where bytes are written by
    keepalive_min_timeout whom a server that ends or is full closes; tests/robustness shows it
    variables_hash_*      the memory of a table
    types_hash_*          the memory of a table
    proxy_buffering       timing only, for a client that reads
    backlog deferred fastopen rcvbuf sndbuf reuseport so_keepalive bind (of listen)    the socket's own matter
";

/// What is missing, one line each.
pub(crate) fn findings(files: &[(CaseFile, Transcript)]) -> Vec<String> {
    let mut findings = Vec::new();
    let mut shown: BTreeSet<&str> = BTreeSet::new();
    let mut values: BTreeMap<&str, BTreeMap<&str, Vec<String>>> = BTreeMap::new();
    for (file, transcript) in files {
        for case in &file.cases {
            let Some(text) = transcript.get(&case.name) else {
                continue; // reported by the comparison
            };
            let text = match case.target().filter(|target| target.len() > 1) {
                Some(target) => text.replace(&target, "@TARGET@"),
                None => text.to_string(),
            };
            for (directive, value) in &case.covers {
                values
                    .entry(directive)
                    .or_default()
                    .entry(value)
                    .or_default()
                    .push(text.clone());
            }
        }
    }
    for (directive, by_value) in &values {
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
    let wanted = DIRECTIVES
        .split_whitespace()
        .filter(|directive| !shown.contains(directive) && !values.contains_key(directive));
    findings.extend(wanted.map(|directive| format!("{directive}: no case covers it")));
    findings
}

/// For the report: what is deliberately not shown.
pub(crate) fn invisible() -> impl Iterator<Item = &'static str> {
    INVISIBLE
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
}
