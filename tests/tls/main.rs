//! TLS towards clients and upstreams, and certificates by ACME. Beside the tests lie certificates
//! and keys that other tests use as well.

mod acme;
mod clients;
mod floods;
mod kernel;
mod published;
mod stapling;
mod termination;
mod upstreams;
