//! The table of all directives: every feature's list, nothing else.

use std::sync::OnceLock;

use conf::{Declared, Registry};
use framework::compile::Feature;

use crate::events::Events;
use crate::http::body::BodySettings;
use crate::http::core::{Core, ServerCore};
use crate::http::error_page::ErrorPages;
use crate::http::filters::{
    addition, brotli, charset, compress, gunzip, gzip, headers, slice, ssi, sub, userid, zstd,
};
use crate::http::modules::{
    access, auth_basic, auth_request, autoindex, browser, dav, dav_ext, disable_symlinks,
    early_hints, flv, index, limit_conn, limit_req, metrics, mirror, mp4, open_file_cache,
    post_action, precompressed, proxy, random_index, realip, referer, rewrite, secure_link,
    static_file, stub_status, try_files, upstream,
};
use crate::http::request::Request;
use crate::log::{AccessLogs, ErrorLog};
use variables::{Find, Found, geo, map, split_clients};

/// The variables of requests that are there without being defined, by module.
pub const VARIABLES: &[Find<Request>] = &[
    crate::variables::core::find,
    crate::variables::core::proxy_protocol::find,
    crate::tls::variables::find,
    realip::find,
    limit_conn::find,
    limit_req::find,
    proxy::variables::find,
    stub_status::find,
    crate::http::modules::acme::find,
    browser::find,
    referer::find,
    secure_link::find,
    userid::find,
    ssi::find,
    compress::find,
    slice::find,
];

/// The variable of requests that is there without being defined, by its name in lower case, without `$`.
pub fn variable(name: &str) -> Option<Found<Request>> {
    VARIABLES.iter().find_map(|find| find(name))
}

/// Every directive of this crate, by module.
pub const TABLES: &[&[&dyn Declared]] = &[
    Events::DIRECTIVES,
    ErrorLog::DIRECTIVES,
    crate::http::compile::DIRECTIVES,
    Core::DIRECTIVES,
    ServerCore::DIRECTIVES,
    BodySettings::DIRECTIVES,
    ErrorPages::DIRECTIVES,
    AccessLogs::DIRECTIVES,
    static_file::Types::DIRECTIVES,
    static_file::HANDLERS,
    stub_status::DIRECTIVES,
    metrics::DIRECTIVES,
    random_index::RandomIndex::DIRECTIVES,
    index::Index::DIRECTIVES,
    autoindex::AutoIndex::DIRECTIVES,
    open_file_cache::OpenFileCache::DIRECTIVES,
    disable_symlinks::DisableSymlinks::DIRECTIVES,
    early_hints::EarlyHints::DIRECTIVES,
    try_files::DIRECTIVES,
    mirror::Mirror::DIRECTIVES,
    dav::Dav::DIRECTIVES,
    dav_ext::ZONE_DIRECTIVES,
    dav_ext::DavExt::DIRECTIVES,
    slice::SliceSize::DIRECTIVES,
    flv::DIRECTIVES,
    mp4::HANDLERS,
    mp4::Mp4::DIRECTIVES,
    access::Access::DIRECTIVES,
    crate::http::modules::acme::DIRECTIVES,
    crate::http::modules::acme::ISSUER_DIRECTIVES,
    crate::http::modules::limit_req::ZONE_DIRECTIVES,
    crate::http::modules::limit_req::LimitReq::DIRECTIVES,
    crate::http::modules::limit_conn::ZONE_DIRECTIVES,
    crate::http::modules::limit_conn::LimitConn::DIRECTIVES,
    crate::http::modules::referer::Referers::DIRECTIVES,
    crate::http::modules::secure_link::SecureLink::DIRECTIVES,
    crate::http::modules::browser::Browsers::DIRECTIVES,
    crate::http::filters::userid::UserId::DIRECTIVES,
    auth_basic::AuthBasic::DIRECTIVES,
    crate::http::modules::realip::RealIp::DIRECTIVES,
    auth_request::AuthRequest::DIRECTIVES,
    rewrite::DIRECTIVES,
    map::DIRECTIVES,
    geo::DIRECTIVES,
    crate::http::modules::geoip2::DIRECTIVES,
    split_clients::DIRECTIVES,
    gzip::Gzip::DIRECTIVES,
    brotli::Brotli::DIRECTIVES,
    zstd::Zstd::DIRECTIVES,
    precompressed::Precompressed::DIRECTIVES,
    gunzip::Gunzip::DIRECTIVES,
    sub::Sub::DIRECTIVES,
    ssi::Ssi::DIRECTIVES,
    charset::Charset::DIRECTIVES,
    headers::Headers::DIRECTIVES,
    crate::http::modules::headers_more::HeadersMore::DIRECTIVES,
    addition::Addition::DIRECTIVES,
    post_action::PostAction::DIRECTIVES,
    proxy::DIRECTIVES,
    &proxy::BUFFER_DIRECTIVES,
    &proxy::SSL_DIRECTIVES,
    upstream::DIRECTIVES,
    crate::resolver::Resolving::DIRECTIVES,
    crate::tls::settings::TlsSettings::DIRECTIVES,
    crate::accepted::DIRECTIVES,
];

/// What `load_module` may name without a warning: modules whose directives are all here.
const MODULES: &[&str] = &[
    "ngx_http_access_module",
    "ngx_http_acme_module",
    "ngx_http_addition_filter_module",
    "ngx_http_auth_basic_module",
    "ngx_http_auth_request_module",
    "ngx_http_autoindex_module",
    "ngx_http_brotli_filter_module",
    "ngx_http_brotli_static_module",
    "ngx_http_browser_module",
    "ngx_http_charset_filter_module",
    "ngx_http_dav_module",
    "ngx_http_empty_gif_module",
    "ngx_http_flv_module",
    "ngx_http_geo_module",
    "ngx_http_geoip2_module",
    "ngx_http_gunzip_filter_module",
    "ngx_http_gzip_filter_module",
    "ngx_http_gzip_static_module",
    "ngx_http_limit_conn_module",
    "ngx_http_limit_req_module",
    "ngx_http_headers_more_filter_module",
    "ngx_http_map_module",
    "ngx_http_mirror_module",
    "ngx_http_mp4_module",
    "ngx_http_random_index_module",
    "ngx_http_realip_module",
    "ngx_http_referer_module",
    "ngx_http_rewrite_module",
    "ngx_http_secure_link_module",
    "ngx_http_slice_filter_module",
    "ngx_http_split_clients_module",
    "ngx_http_userid_filter_module",
    "ngx_http_ssl_module",
    "ngx_http_stub_status_module",
    "ngx_http_ssi_filter_module",
    "ngx_http_sub_filter_module",
    "ngx_http_zstd_filter_module",
    "ngx_http_zstd_static_module",
];

/// The directives of this crate with those that the caller brings (the process's own).
pub fn registry(others: &'static [&'static [&'static dyn Declared]]) -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let tables: Vec<&'static [&'static dyn Declared]> =
            TABLES.iter().chain(others).copied().collect();
        Registry::new(&tables)
            .with_modules(MODULES)
            .with_elsewhere(crate::reference::ELSEWHERE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use variables::Source;

    /// The names that nginx's page of each module has, one of each list here, and the end of a family's name.
    #[test]
    fn variables_of_every_module() {
        for (name, rest) in [
            ("uri", None),
            ("http_x", Some("x")),
            ("proxy_protocol_addr", None),
            ("proxy_protocol_tlv_alpn", Some("alpn")),
            ("ssl_protocol", None),
            ("realip_remote_port", None),
            ("limit_conn_status", None),
            ("limit_req_status", None),
            ("upstream_status", None),
            ("upstream_http_x", Some("x")),
            ("connections_active", None),
            ("acme_certificate", None),
            ("msie", None),
            ("invalid_referer", None),
            ("secure_link", None),
            ("uid_got", None),
            ("date_gmt", None),
            ("gzip_ratio", None),
            ("slice_range", None),
        ] {
            let found: Vec<_> = VARIABLES.iter().filter_map(|find| find(name)).collect();
            assert_eq!(found.len(), 1, "{name} is of one module");
            let end = match &found[0].source {
                Source::Family(_, rest) => std::str::from_utf8(rest).ok(),
                _ => None,
            };
            assert_eq!(end, rest, "{name}");
        }
    }
}
