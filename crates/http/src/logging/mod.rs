//! What is logged of requests and connections: `access_log` with one line per request
//! ([`access`]), the texts of the error log about clients ([`client`]), the steps of a request
//! ([`debug`]), and what all lines say of the request that they are about ([`subject`]); and
//! what is counted of requests by zones ([`zone_meter`]). The logs
//! themselves, and the places that lines go to, are the crate `logs`.
//!
//! <https://nginx.org/en/docs/http/ngx_http_log_module.html>.

pub mod access;
pub mod body_fault;
pub mod client;
pub mod debug;
pub mod request_log;
pub mod subject;
pub mod zone_meter;
