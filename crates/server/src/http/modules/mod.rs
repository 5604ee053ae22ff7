//! One feature a file: its directives, its settings, its handler, its tests.

pub mod access;
pub mod auth_basic;
pub mod auth_request;
pub mod autoindex;
pub mod dav;
pub mod disable_symlinks;
pub mod early_hints;
pub mod flv;
pub mod geo;
pub mod gzip_static;
pub mod index;
pub mod limit_conn;
pub mod limit_req;
pub mod limited;
pub mod map;
pub mod mirror;
pub mod mp4;
pub mod open_file_cache;
pub mod post_action;
pub mod proxy;
pub mod rewrite;
pub mod split_clients;
pub mod static_file;
pub mod stub_status;
pub mod try_files;
pub mod upstream;
