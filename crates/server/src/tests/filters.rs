//! Which filters a response passes, and in which order.

use http::response::chain::Link;

use super::serve;

/// The chain of a location with these directives, by the names of its links.
fn chain(directives: &str) -> Vec<String> {
    let text = format!(
        "events {{ }} error_log /dev/null; http {{ access_log off; proxy_temp_path /tmp; \
         client_body_temp_path /tmp; server {{ listen 10.0.0.1:80; {directives} }} }}"
    );
    serve(&text, "GET / HTTP/1.1", async |request| {
        let name = |link: &Link| {
            let shown = format!("{link:?}");
            shown.split(' ').next().unwrap_or_default().to_owned()
        };
        request.plan.phases.filters.iter().map(name).collect()
    })
}

#[test]
fn responses_pass_the_filters_in_the_order_of_nginx() {
    // However a configuration is written, this is the order in which nginx 1.31 has linked them.
    let all = "gzip on; ssi on; sub_filter a b; charset utf-8; add_after_body /x; gunzip on; userid on; \
               add_header A b; more_set_headers 'C: d'; slice 1k;";
    assert_eq!(
        chain(all),
        [
            "SliceSize(1024)",
            "NotModified",
            "HeadersMore",
            "Headers",
            "UserId",
            "Gunzip",
            "Addition",
            "Sub",
            "Charset",
            "Ssi",
            "Compression",
            "Range"
        ]
    );
    assert_eq!(
        chain("zstd on;"),
        ["NotModified", "Charset", "Compression", "Range"]
    );
}

#[test]
fn what_is_off_is_no_link() {
    let off = "more_set_input_headers 'A: b'; userid log; slice 0; gzip off; expires off;";
    assert_eq!(chain(off), ["NotModified", "Charset", "Range"]);
}
