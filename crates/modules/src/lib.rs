//! The HTTP modules of Tidegate, one file per feature: its directives, settings, handler and tests.
//!
//! A module takes part in requests by [registering](http::module::Module) with the plans of scopes.
//! Response filters are in [`filters`].

pub mod access;
pub mod acme;
pub mod api;
pub(crate) mod applications;
pub mod auth_basic;
pub mod auth_request;
pub mod autoindex;
pub mod browser;
pub mod dashboard;
pub mod dav;
pub mod dav_ext;
pub mod fastcgi;
pub mod filters;
pub mod flv;
pub mod grpc;
pub mod headers_more;
pub mod health_check;
pub mod index;
pub mod limit_conn;
pub mod limit_req;
pub mod memcached;
pub mod metrics;
pub mod mirror;
pub mod mp4;
pub mod otel;
pub mod post_action;
pub mod precompressed;
pub mod proxy;
pub mod random_index;
pub mod realip;
pub mod referer;
pub mod rewrite;
pub mod scgi;
pub mod secure_link;
pub mod static_file;
pub mod stub_status;
pub mod try_files;
pub mod tunnel;
pub mod uwsgi;
