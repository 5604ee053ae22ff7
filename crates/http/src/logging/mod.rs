//! The logs and the counters of requests and connections: `access_log` with one line per request
//! ([`access`]), the texts of the error log about clients ([`client`]), the steps of a request
//! ([`debug`]), the fields with which log lines identify their request ([`subject`]), and the
//! counters of `status_zone` ([`zone_meter`]). The log files, and other destinations of lines, are
//! in the crate `logs`.
//!
//! <https://nginx.org/en/docs/http/ngx_http_log_module.html>.

pub mod access;
pub mod body_fault;
pub mod client;
pub mod debug;
pub mod request_log;
pub mod subject;
pub mod zone_meter;
