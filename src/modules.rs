//! The list of nginx's modules that Tidegate has, for the end of `-V`'s configure arguments.
//!
//! Scripts and test suites read the arguments to find out what a binary supports. nginx builds some
//! modules by default and others on request; so a missing default module is listed as
//! `--without-…`, and an optional module that Tidegate has as `--with-…`. A module is present if
//! its directive is in the directive table and works.

use conf::{Contexts, Effect, Registry};

/// A module of nginx.
struct Module {
    /// The module's name in configure's options.
    name: &'static str,
    /// A directive that only this module has in one of these contexts.
    directive: &'static str,
    contexts: Contexts,
}

const fn module(name: &'static str, directive: &'static str) -> Module {
    let contexts = Contexts::ALL;
    Module {
        name,
        directive,
        contexts,
    }
}

/// A module of `stream`.
const fn stream(name: &'static str, directive: &'static str) -> Module {
    Module {
        contexts: Contexts::STREAM
            .or(Contexts::STREAM_SERVER)
            .or(Contexts::STREAM_UPSTREAM),
        ..module(name, directive)
    }
}

/// Built unless configure is told `--without-NAME`.
const DEFAULT: &[Module] = &[
    module("http_charset_module", "charset"),
    module("http_gzip_module", "gzip"),
    module("http_ssi_module", "ssi"),
    module("http_userid_module", "userid"),
    module("http_access_module", "allow"),
    module("http_auth_basic_module", "auth_basic"),
    module("http_mirror_module", "mirror"),
    module("http_autoindex_module", "autoindex"),
    module("http_geo_module", "geo"),
    module("http_map_module", "map"),
    module("http_split_clients_module", "split_clients"),
    module("http_referer_module", "valid_referers"),
    module("http_rewrite_module", "rewrite"),
    module("http_proxy_module", "proxy_pass"),
    module("http_fastcgi_module", "fastcgi_pass"),
    module("http_uwsgi_module", "uwsgi_pass"),
    module("http_scgi_module", "scgi_pass"),
    module("http_grpc_module", "grpc_pass"),
    module("http_tunnel_module", "tunnel_pass"),
    module("http_memcached_module", "memcached_pass"),
    module("http_limit_conn_module", "limit_conn"),
    module("http_limit_req_module", "limit_req"),
    module("http_empty_gif_module", "empty_gif"),
    module("http_browser_module", "modern_browser"),
    module("http_upstream_hash_module", "hash"),
    module("http_upstream_ip_hash_module", "ip_hash"),
    module("http_upstream_least_conn_module", "least_conn"),
    module("http_upstream_least_time_module", "least_time"),
    module("http_upstream_random_module", "random"),
    module("http_upstream_keepalive_module", "keepalive"),
    module("http_upstream_zone_module", "zone"),
    module("http_upstream_sticky_module", "sticky"),
    module("http-cache", "proxy_cache"),
    stream("stream_access_module", "allow"),
    stream("stream_geo_module", "geo"),
    stream("stream_limit_conn_module", "limit_conn"),
    stream("stream_map_module", "map"),
    stream("stream_pass_module", "pass"),
    stream("stream_return_module", "return"),
    stream("stream_set_module", "set"),
    stream("stream_split_clients_module", "split_clients"),
    stream("stream_upstream_hash_module", "hash"),
    stream("stream_upstream_least_conn_module", "least_conn"),
    stream("stream_upstream_least_time_module", "least_time"),
    stream("stream_upstream_random_module", "random"),
    stream("stream_upstream_zone_module", "zone"),
];

/// Built only when configure is told `--with-NAME`.
const OPTIONAL: &[Module] = &[
    module("threads", "thread_pool"),
    module("http_ssl_module", "ssl_certificate"),
    module("http_v2_module", "http2"),
    module("http_v3_module", "http3"),
    module("http_realip_module", "set_real_ip_from"),
    module("http_addition_module", "add_after_body"),
    module("http_xslt_module", "xslt_stylesheet"),
    module("http_image_filter_module", "image_filter"),
    module("http_sub_module", "sub_filter"),
    module("http_dav_module", "dav_methods"),
    module("http_flv_module", "flv"),
    module("http_mp4_module", "mp4"),
    module("http_gunzip_module", "gunzip"),
    module("http_gzip_static_module", "gzip_static"),
    module("http_auth_request_module", "auth_request"),
    module("http_random_index_module", "random_index"),
    module("http_secure_link_module", "secure_link"),
    module("http_slice_module", "slice"),
    module("http_stub_status_module", "stub_status"),
    module("stream", "stream"),
    stream("stream_ssl_module", "ssl_certificate"),
    stream("stream_ssl_preread_module", "ssl_preread"),
    stream("stream_realip_module", "set_real_ip_from"),
    module("mail", "mail"),
];

/// The configure arguments that describe a program with these directives.
pub(crate) fn configure_arguments(registry: &Registry) -> Vec<String> {
    let without = DEFAULT.iter().filter(|module| !works(module, registry));
    // The debug log level works in every build.
    let always = std::iter::once("--with-debug".to_owned());
    let with = OPTIONAL.iter().filter(|module| works(module, registry));
    without
        .map(|module| format!("--without-{}", module.name))
        .chain(always)
        .chain(with.map(|module| format!("--with-{}", module.name)))
        .collect()
}

fn works(module: &Module, registry: &Registry) -> bool {
    registry
        .find(module.directive)
        .any(|spec| spec.effect == Effect::Works && spec.contexts.intersects(module.contexts))
}
