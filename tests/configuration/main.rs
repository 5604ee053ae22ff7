//! How configurations are read: cases of their own, those of well-known projects and of Debian, and
//! names and places that a configuration leaves to the machine.

mod conftest;
mod debian;
mod default_listen;
mod many_servers;
mod names;
mod sites;
