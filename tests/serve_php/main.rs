//! `tidegate serve --php` with a real php-fpm: which requests run what, what is never sent, and how pools are found, kept and
//! ended. As root the server's worker is nobody's, so most tests say what both users see.

mod pools;
mod requests;
mod site;
mod sources;
