//! The list of all modules, in nginx's order (`auto/modules`). Phases and head filters call the
//! modules from the end of the list.
//!
//! A module that nginx does not have is at the place that its order relative to the others
//! requires. No other file of the crate names modules: the table of all directives and the list of
//! variables are generated from this list.

use framework::compile::Feature;
use http::config::core::{Core, ServerCore};
use http::config::ignored_directives;
use http::files::disable_symlinks;
use http::files::open_file_cache::settings;
use http::handshake::Handshake;
use http::logging::access::AccessLogs;
use http::module::Entry;
use http::part::Modules;
use http::request::Request;
use http::request::body::BodySettings;
use http::response::error_page::ErrorPages;
use http::response::{not_modified, range};
use modules::filters::{
    addition, charset, compress, gunzip, gzip, headers, slice, ssi, sub, userid,
};
use modules::{
    access, acme, api, auth_basic, auth_request, autoindex, browser, dashboard, dav, dav_ext,
    fastcgi, flv, grpc, headers_more, health_check, index, limit_conn, limit_req, memcached,
    metrics, mirror, mp4, otel, post_action, precompressed, proxy, random_index, realip, referer,
    rewrite, scgi, static_file, stub_status, try_files, tunnel, uwsgi,
};
use proxying::{early_hints, upstream};
use rules::{geoip2, keyval};
use transport::resolver::Resolving;
use transport::tls::settings::TlsSettings;
use variables::{geo, map, num_map, process, split_clients};

/// All modules, in nginx's order.
pub const FEATURES: Modules = Modules(&[
    // nginx's core module of http.
    Entry::of(&[
        http::config::compile::DIRECTIVES,
        http::response::memory::DIRECTIVES,
        rules::server_name::DIRECTIVES,
        Core::DIRECTIVES,
        ServerCore::DIRECTIVES,
        BodySettings::DIRECTIVES,
        ErrorPages::DIRECTIVES,
        http::config::types::Types::DIRECTIVES,
        settings::OpenFileCache::DIRECTIVES,
        Resolving::DIRECTIVES,
        ignored_directives::DIRECTIVES,
        http::http2::OBSOLETE,
        http::config::http3::DIRECTIVES,
    ])
    .tasks(http::config::core::TASKS)
    .variables(&[
        http::variables::core::find,
        process::find,
        transport::client::find,
        transport::proxy_protocol::find,
    ])
    .of_handshakes(&[
        http::handshake::find,
        process::find,
        transport::client::find,
        transport::proxy_protocol::find,
    ]),
    // Part of nginx's core module.
    Entry::module::<disable_symlinks::DisableSymlinks>(),
    Entry::module::<early_hints::EarlyHints>(),
    Entry::module::<post_action::PostAction>(),
    // Early in the list, hence late in its phase: the client's address is known when a challenge is
    // answered.
    Entry::of(&[acme::DIRECTIVES, acme::ISSUER_DIRECTIVES])
        .named(&["ngx_http_acme_module"])
        .variables(&[acme::find])
        .intercepts(&[acme::intercept])
        .prepare(acme::compile)
        .gathers(acme::add)
        .plan(acme::register, acme::SHORTCUTS),
    Entry::module::<AccessLogs>(),
    // Before the groups, hence prepared after them: an exporter may send its spans to a group.
    Entry::of(&[]).prepare(otel::prepare),
    Entry::of(&[upstream::DIRECTIVES, rules::upstream::DIRECTIVES])
        .prepare(upstream::compile)
        .gathers(upstream::add),
    // After the groups, hence prepared before them: the checks of groups are collected before the
    // groups are compiled.
    Entry::of(&[health_check::DIRECTIVES])
        .prepare(health_check::prepare)
        .gathers(health_check::add)
        .plan(health_check::register, &[]),
    Entry::module::<static_file::StaticFile>(),
    Entry::module::<precompressed::Precompressed>().named(&[
        "ngx_http_gzip_static_module",
        "ngx_http_brotli_static_module",
        "ngx_http_zstd_static_module",
    ]),
    Entry::module::<dav::Dav>().named(&["ngx_http_dav_module"]),
    Entry::module::<autoindex::AutoIndex>().named(&["ngx_http_autoindex_module"]),
    Entry::module::<index::Index>(),
    Entry::module::<random_index::RandomIndex>().named(&["ngx_http_random_index_module"]),
    Entry::module::<mirror::Mirror>().named(&["ngx_http_mirror_module"]),
    Entry::module::<try_files::TryFiles>(),
    Entry::module::<auth_request::AuthRequest>().named(&["ngx_http_auth_request_module"]),
    Entry::module::<auth_basic::AuthBasic>().named(&["ngx_http_auth_basic_module"]),
    Entry::module::<access::Access>().named(&["ngx_http_access_module"]),
    Entry::module::<limit_conn::Limits>()
        .named(&["ngx_http_limit_conn_module"])
        .variables(&[limit_conn::find])
        .prepare(limit_conn::compile),
    Entry::module::<limit_req::LimitReq>()
        .named(&["ngx_http_limit_req_module"])
        .variables(&[limit_req::find])
        .prepare(limit_req::compile),
    Entry::module::<realip::RealIp>()
        .named(&["ngx_http_realip_module"])
        .variables(&[realip::find]),
    Entry::of(&[split_clients::DIRECTIVES])
        .named(&["ngx_http_split_clients_module"])
        .prepare(split_clients::compile::<Request>),
    Entry::of(&[geoip2::DIRECTIVES])
        .named(&["ngx_http_geoip2_module"])
        .prepare(geoip2::compile::<Request>),
    Entry::of(&[geo::DIRECTIVES])
        .named(&["ngx_http_geo_module"])
        .prepare(geo::compile::<Request>),
    Entry::of(&[keyval::DIRECTIVES]).prepare(keyval::compile::<Request>),
    Entry::of(&[map::DIRECTIVES])
        .named(&["ngx_http_map_module"])
        .prepare(map::compile::<Request>),
    Entry::of(&[num_map::DIRECTIVES])
        .named(&["ngx_http_num_map_module"])
        .prepare(num_map::compile::<Request>),
    Entry::module::<referer::Referers>()
        .named(&["ngx_http_referer_module"])
        .variables(&[referer::find]),
    // After the blocks above, hence prepared before them: a variable that is assigned by `set`
    // belongs to `set`, even if one of these blocks defines it too.
    Entry::of(&[rewrite::DIRECTIVES])
        .named(&["ngx_http_rewrite_module"])
        .tasks(rewrite::TASKS)
        .prepare(rewrite::define_assigned)
        .plan(rewrite::register, rewrite::SHORTCUTS),
    Entry::of(&[TlsSettings::<Handshake>::DIRECTIVES])
        .named(&["ngx_http_ssl_module"])
        .variables(&[transport::tls::variables::find])
        .of_handshakes(&[transport::tls::variables::find]),
    Entry::of(&[proxy::DIRECTIVES])
        .variables(&[proxy::variables::find, proxying::variables::find])
        .prepare(proxying::cache::prepare)
        .gathers(proxying::cache::add)
        .survey(proxy::survey)
        .plan(proxy::check, &[])
        .recalling_content("proxy_pass", proxy::content),
    Entry::of(&[]).content("proxy_cache_purge", proxy::purge_content),
    Entry::of(&[fastcgi::DIRECTIVES])
        .named(&["ngx_http_fastcgi_module"])
        .variables(&[fastcgi::script_name::find])
        .survey(fastcgi::survey)
        .plan(fastcgi::check, fastcgi::SHORTCUTS)
        .recalling_content("fastcgi_pass", fastcgi::content),
    Entry::of(&[]).content("fastcgi_cache_purge", fastcgi::purge_content),
    Entry::of(&[uwsgi::DIRECTIVES])
        .named(&["ngx_http_uwsgi_module"])
        .survey(uwsgi::survey)
        .plan(uwsgi::check, uwsgi::SHORTCUTS)
        .recalling_content("uwsgi_pass", uwsgi::content),
    Entry::of(&[]).content("uwsgi_cache_purge", uwsgi::purge_content),
    Entry::of(&[scgi::DIRECTIVES])
        .named(&["ngx_http_scgi_module"])
        .survey(scgi::survey)
        .plan(scgi::check, scgi::SHORTCUTS)
        .recalling_content("scgi_pass", scgi::content),
    Entry::of(&[]).content("scgi_cache_purge", scgi::purge_content),
    Entry::of(&[grpc::DIRECTIVES])
        .named(&["ngx_http_grpc_module"])
        .survey(grpc::survey)
        .plan(grpc::check, grpc::SHORTCUTS)
        .content("grpc_pass", grpc::content),
    Entry::of(&[memcached::DIRECTIVES])
        .named(&["ngx_http_memcached_module"])
        .plan(memcached::check, memcached::SHORTCUTS)
        .content("memcached_pass", memcached::content),
    Entry::of(&[tunnel::DIRECTIVES])
        .named(&["ngx_http_tunnel_module"])
        .plan(tunnel::check, &[])
        .content("tunnel_pass", tunnel::content),
    Entry::of(&[static_file::HANDLERS])
        .named(&["ngx_http_empty_gif_module"])
        .content("empty_gif", static_file::empty_gif),
    Entry::module::<browser::Browsers>()
        .named(&["ngx_http_browser_module"])
        .variables(&[browser::find]),
    Entry::module::<modules::secure_link::SecureLink>()
        .named(&["ngx_http_secure_link_module"])
        .variables(&[modules::secure_link::find]),
    Entry::of(&[flv::DIRECTIVES])
        .named(&["ngx_http_flv_module"])
        .content("flv", flv::content),
    Entry::of(&[mp4::HANDLERS, mp4::Mp4::DIRECTIVES])
        .named(&["ngx_http_mp4_module"])
        .content("mp4", mp4::content),
    Entry::of(&[stub_status::DIRECTIVES])
        .named(&["ngx_http_stub_status_module"])
        .variables(&[stub_status::find])
        .content("stub_status", stub_status::content),
    Entry::of(&[metrics::DIRECTIVES])
        .prepare(metrics::meter::prepare)
        .gathers(metrics::meter::add)
        .plan(metrics::meter::register, metrics::meter::SHORTCUTS)
        .content("metrics", metrics::content),
    Entry::of(&[api::DIRECTIVES])
        .prepare(api::prepare)
        .gathers(api::add)
        .plan(api::register, api::SHORTCUTS)
        .content("api", api::content),
    Entry::of(&[dashboard::DIRECTIVES]).content("dashboard", dashboard::content),
    Entry::module::<dav_ext::DavExt>().prepare(dav_ext::compile),
    // Header filters follow.
    Entry::of(&[]).registers(range::register),
    // Several modules use these directives to check whether a client accepts gzip.
    Entry::module::<gzip::Gzip>(),
    Entry::module::<compress::Compression>()
        .named(&[
            "ngx_http_gzip_filter_module",
            "ngx_http_brotli_filter_module",
            "ngx_http_zstd_filter_module",
        ])
        .variables(&[compress::find]),
    Entry::module::<ssi::Ssi>()
        .named(&["ngx_http_ssi_filter_module"])
        .variables(&[ssi::find]),
    Entry::module::<charset::Charset>().named(&["ngx_http_charset_filter_module"]),
    Entry::module::<sub::Sub>().named(&["ngx_http_sub_filter_module"]),
    Entry::module::<addition::Addition>().named(&["ngx_http_addition_filter_module"]),
    Entry::module::<gunzip::Gunzip>().named(&["ngx_http_gunzip_filter_module"]),
    Entry::module::<userid::UserId>()
        .named(&["ngx_http_userid_filter_module"])
        .variables(&[userid::find]),
    Entry::module::<headers::Headers>().lines_in_force(headers::lines_in_force),
    Entry::module::<headers_more::HeadersMore>().named(&["ngx_http_headers_more_filter_module"]),
    Entry::of(&[]).registers(not_modified::register),
    Entry::module::<slice::SliceSize>()
        .named(&["ngx_http_slice_filter_module"])
        .variables(&[slice::find]),
    // Last, like modules that nginx loads dynamically: its work for a request comes before all
    // scripts.
    Entry::of(&[otel::DIRECTIVES])
        .named(&["ngx_otel_module"])
        .tasks(otel::TASKS)
        .variables(&[otel::find])
        .gathers(otel::add)
        .plan(otel::register, otel::SHORTCUTS),
]);

#[cfg(test)]
mod tests {
    use std::any::type_name;
    use std::sync::Arc;

    use http::module::PhaseHandler;
    use variables::Source;

    use super::*;
    use crate::tests::serve;

    /// nginx's modules that do something in a phase, as `auto/modules` of 1.31 lists them, by the
    /// names of ours.
    const NGINX: &[&str] = &[
        "static_file",
        "precompressed",
        "dav",
        "autoindex",
        "index",
        "random_index",
        "mirror",
        "try_files",
        "auth_request",
        "auth_basic",
        "access",
        "limit_conn",
        "limit_req",
        "realip",
    ];

    /// A configuration whose location has something for every module to do.
    const EVERYTHING: &str = "events { } error_log /dev/null; http { access_log off;
        proxy_temp_path /tmp; client_body_temp_path /tmp;
        limit_req_zone $host zone=rates:32k rate=99r/s; limit_conn_zone $host zone=connections:32k;
        server { listen 10.0.0.1:80; set_real_ip_from 10.9.9.9;
            limit_req zone=rates; limit_conn connections 9; allow all;
            auth_basic realm; auth_basic_user_file users; auth_request /ask;
            mirror /copy; try_files $uri =404; dav_ext_methods PROPFIND;
            dav_methods PUT; autoindex on; gzip_static on; location / { random_index on; access_log /dev/null; }
            location /metrics { metrics; } } }";

    /// The module that contains a registered type: the folder or file after the crate's name in the
    /// type's path.
    fn module_of(name: &'static str) -> &'static str {
        name.split("::").nth(1).unwrap_or(name)
    }

    #[test]
    fn phases_run_in_nginx_s_order() {
        let names = |list: &[Arc<dyn PhaseHandler>]| -> Vec<&str> {
            list.iter().map(|handle| module_of(handle.name())).collect()
        };
        serve(EVERYTHING, "GET / HTTP/1.1", async |request| {
            let phases = &request.server.plan.phases;
            let (arrived, preaccess) = (names(&phases.arrived), names(&phases.preaccess));
            assert_eq!(arrived, ["realip"]);
            assert_eq!(preaccess, ["realip", "limit_req", "limit_conn"]);
            let access = phases.access.iter().map(|check| module_of(check.name()));
            let access: Vec<&str> = access.collect();
            assert_eq!(access, ["access", "auth_basic", "auth_request"]);
            let precontent = names(&phases.precontent);
            assert_eq!(precontent, ["dav_ext", "try_files", "mirror"]);
            let files = names(&request.http.plan(0).phases.files);
            let of_files = [
                "dav_ext",
                "random_index",
                "index",
                "autoindex",
                "dav",
                "precompressed",
                "static_file",
            ];
            assert_eq!(files, of_files);
            let location = &request.http.plan(0).phases;
            let endings = location.endings.iter().map(|ending| ending.name());
            // The request is counted before it is logged.
            assert!(endings.eq([
                type_name::<metrics::meter::Metered>(),
                type_name::<AccessLogs>()
            ]));
            for list in [&arrived, &preaccess, &access, &precontent, &files] {
                let of_nginx = NGINX.iter().rev().filter(|name| list.contains(*name));
                let ours = list.iter().filter(|name| NGINX.contains(*name));
                assert!(ours.eq(of_nginx), "{list:?}");
            }
        });
    }

    /// A name that no directive has would be passed over where tasks are listed, and two of one
    /// order would change places with their modules.
    #[test]
    fn tasks_are_done_by_directives() {
        let mut orders = Vec::new();
        for entry in FEATURES.0 {
            let directives = entry.directives.iter().copied().flatten();
            let specs: Vec<_> = directives.map(|declared| declared.spec()).collect();
            for task in entry.tasks {
                for name in task.directives {
                    let is_own = specs
                        .iter()
                        .any(|spec| spec.names().any(|own| own == *name));
                    assert!(is_own, "{name} is of another module");
                }
                let order = (task.kind, task.order);
                assert!(!orders.contains(&order), "{order:?} is taken");
                orders.push(order);
            }
        }
        assert!(orders.len() > 20);
    }

    /// The names that nginx's page of each module has, one of each list here, and the end of a
    /// family's name.
    #[test]
    fn variables_of_every_module() {
        for (name, rest) in [
            ("uri", None),
            ("remote_addr", None),
            ("time_local", None),
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
            let found: Vec<_> = FEATURES.variables().filter_map(|find| find(name)).collect();
            assert_eq!(found.len(), 1, "{name} is of one module");
            let end = match &found[0].source {
                Source::Family(_, rest) => std::str::from_utf8(rest).ok(),
                _ => None,
            };
            assert_eq!(end, rest, "{name}");
        }
    }
}
