//! Directives of nginx that are accepted and have no effect here, each with the reason.
//!
//! They tune what Tidegate does not have, or what it decides by itself. `-t` shows a notice.

use conf::{Arity, Contexts, Declared, Setting};

const HTTP: Contexts = Contexts::HTTP;
const HS: Contexts = Contexts::HTTP.or(Contexts::SERVER);
const HSL: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);

macro_rules! accepted {
    ($($name:ident = $directive:literal, $syntax:literal, $contexts:expr, $arity:expr, $reason:literal;)*) => {
        $(static $name: Setting<()> = Setting::new($directive, &[$syntax], |_| Ok(()))
            .contexts($contexts)
            .arity($arity)
            .no_effect($reason)
            .manual("See nginx's manual.");)*

        /// The directives of this file.
        pub const DIRECTIVES: &[&dyn Declared] = &[$(&$name),*];
    };
}

accepted! {
    PCRE_JIT = "pcre_jit", "on | off", Contexts::MAIN, Arity::exactly(1),
        "regular expressions are always compiled to automata";
    DEBUG_POINTS = "debug_points", "abort | stop", Contexts::MAIN, Arity::exactly(1),
        "there are no debug points";
    SERVER_NAMES_HASH_MAX_SIZE = "server_names_hash_max_size", "size", HTTP, Arity::exactly(1),
        "tables size themselves";
    SERVER_NAMES_HASH_BUCKET_SIZE = "server_names_hash_bucket_size", "size", HTTP, Arity::exactly(1),
        "tables size themselves";
    VARIABLES_HASH_MAX_SIZE = "variables_hash_max_size", "size", HTTP, Arity::exactly(1),
        "tables size themselves";
    VARIABLES_HASH_BUCKET_SIZE = "variables_hash_bucket_size", "size", HTTP, Arity::exactly(1),
        "tables size themselves";
    CONNECTION_POOL_SIZE = "connection_pool_size", "size", HS, Arity::exactly(1),
        "there are no memory pools";
    REQUEST_POOL_SIZE = "request_pool_size", "size", HS, Arity::exactly(1),
        "there are no memory pools";
    POSTPONE_OUTPUT = "postpone_output", "size", HSL, Arity::exactly(1),
        "output leaves once a turn of the event loop, whatever its size";
    OUTPUT_BUFFERS = "output_buffers", "number size", HSL, Arity::exactly(2),
        "files that must pass through memory are read in parts of 32 KiB";
    READ_AHEAD = "read_ahead", "size", HSL, Arity::exactly(1),
        "the kernel reads ahead by itself";
    TCP_NOPUSH = "tcp_nopush", "on | off", HSL, Arity::exactly(1),
        "a head and the file after it always leave together";
    SSL_PROTOCOLS = "ssl_protocols", "[SSLv2] [SSLv3] [TLSv1] [TLSv1.1] [TLSv1.2] [TLSv1.3]", HS, Arity::at_least(1),
        "this version has no TLS, and refuses to listen with it";
    SSL_PREFER_SERVER_CIPHERS = "ssl_prefer_server_ciphers", "on | off", HS, Arity::exactly(1),
        "this version has no TLS, and refuses to listen with it";
    SEND_LOWAT = "send_lowat", "size", HSL, Arity::exactly(1),
        "Linux has no low-water mark for sending";
}
