//! `tidegate serve --php` with a real php-fpm: which requests run what, what is never sent, and how
//! pools are found, kept and ended. Servers are started as root, whose workers have no rights, and
//! as a user without any.

mod pools;
mod requests;
mod site;
mod sources;
