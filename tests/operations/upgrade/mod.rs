//! One program takes another one's place while it serves: nginx Tidegate's, Tidegate nginx's, and a
//! newer Tidegate an older one's.
//!
//! `NGINX_BINARY` names the nginx, default `/usr/sbin/nginx`. UDP needs one with the module
//! `stream` built in.

mod failures;
mod handover;
mod init_script;
mod load;
mod order;
mod place;
mod state;
mod switch_over;
