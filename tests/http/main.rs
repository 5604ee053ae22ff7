//! Responses that need no upstream, and the filters that they pass: files, access, compression,
//! headers.

mod auth_request;
mod blocking;
mod compression;
mod constant_answers;
mod dav;
mod geoip2;
mod headers_more;
mod parts_of_files;
mod protection;
mod response_memory;
mod segments;
mod video;
