//! The program's own command line: nginx's parameters, and what each subcommand does.

mod certbot;
mod explain;
mod packaging;
mod parameters;
mod release;
mod serve;
mod try_against;
mod try_configuration;
mod tune;
