//! Lists to draw from: what people write where the notation says `string`, `regex` or `mime-type`.

/// Variables of a request whose values are the same on every run, whenever they are read.
pub(super) const VARIABLES: &[&str] = &[
    "$uri",
    "$document_uri",
    "$request_uri",
    "$args",
    "$query_string",
    "$is_args$args",
    "$arg_a",
    "$arg_page",
    "$host",
    "$http_host",
    "$http_x_test",
    "$http_user_agent",
    "$http_referer",
    "$http_accept_encoding",
    "$request_method",
    "$scheme",
    "$server_name",
    "$server_protocol",
    "$server_port",
    "$remote_addr",
    "$binary_remote_addr",
    "$remote_user",
    "$cookie_a",
    "$cookie_session",
    "$content_type",
    "$content_length",
    "$request_filename",
    "$document_root",
    "$mapped",
    "$region",
    "$network",
    "$variant",
    "$limit_rate",
    "$https",
    "$proxy_add_x_forwarded_for",
    "$invalid_referer",
    "$ancient_browser",
    "$modern_browser",
    "$secure_link",
    "$secure_link_expires",
    "$realip_remote_addr",
    "$http_via",
    "$is_request_port",
    "$request_port",
    "$uid_got",
    "$realpath_root",
    "$nginx_version",
    "$own_a",
];

/// Variables of the answer. What reads them too early keeps what it has read, so they stand only
/// where the answer is there: in the fields that are added to it.
pub(super) const LATE_VARIABLES: &[&str] = &[
    "$status",
    "$folded",
    "$sent_http_content_type",
    "$sent_http_location",
    "$sent_http_etag",
    "$upstream_http_x_test",
    "$upstream_status",
    "$upstream_addr",
    "$proxy_host",
    "$proxy_port",
    "$upstream_cookie_a",
    "$limit_req_status",
    "$limit_conn_status",
    "$request_completion",
    "$gzip_ratio",
    "$body_bytes_sent",
    "$request_length",
];

/// Text that is not a variable alone.
pub(super) const TEXTS: &[&str] = &[
    "text",
    "\"two words\"",
    "'single quotes'",
    "\"\"",
    "\"a \\\"quoted\\\" word\"",
    "a-$uri-b",
    "\"$host: $request_uri\"",
    "pre${arg_a}post",
    "1",
    "0",
    "äöü",
    "\"<b>bold</b>\"",
    "%2F%20",
    "max-age=60",
];

/// A text with a tab and a line break.
pub(super) const BROKEN_TEXT: &str = "\"tab\\tand\\nline\"";

/// Media types.
pub(super) const TYPES: &[&str] = &[
    "text/plain",
    "text/css",
    "application/json",
    "text/xml",
    "image/svg+xml",
    "application/octet-stream",
    "application/javascript",
    "*",
];

/// Names of fields.
pub(super) const FIELDS: &[&str] = &[
    "X-Test",
    "Cache-Control",
    "X-Frame-Options",
    "Set-Cookie",
    "Server",
    "Date",
    "ETag",
    "Last-Modified",
    "Content-Type",
    "Vary",
    "Link",
    "x-lower",
    "X_Under",
    "Accept-Ranges",
    "Location",
    "Content-Encoding",
    "Content-Length",
    "X-Accel-Buffering",
];

/// Fields of requests, for those that go upstream.
pub(super) const REQUEST_FIELDS: &[&str] = &[
    "Host",
    "X-Real-IP",
    "X-Forwarded-For",
    "X-Forwarded-Proto",
    "Accept-Encoding",
    "Connection",
    "Cookie",
    "If-None-Match",
    "X-Test",
    "Range",
    "Authorization",
    "x-lower",
    "Content-Type",
    "TE",
    "Upgrade",
];

/// A location's pattern, with paths that it matches.
pub(super) const PATTERNS: &[(&str, &[&str])] = &[
    ("\\.html$", &["/page.html", "/dir/index.html", "/none.html"]),
    (
        "\\.(gif|jpg|png)$",
        &["/image.gif", "/none.jpg", "/dir/a.png"],
    ),
    ("\\.php$", &["/index.php", "/dir/info.php?x=1"]),
    (
        "^/(?<first>[a-z]+)/(?<rest>.*)$",
        &["/dir/page.html", "/none/x", "/a/"],
    ),
    ("^/v([0-9]+)/", &["/v1/", "/v22/page.html", "/v1/none"]),
    ("/~(\\w+)", &["/~user", "/dir/~user/page.html"]),
    ("\\.txt", &["/plain.txt", "/dir/a.txt.bak", "/none.txt"]),
    ("^/DIR/", &["/DIR/", "/dir/", "/DIR/page.html"]),
    ("(^|/)\\.", &["/.hidden", "/dir/.git/config"]),
    ("\\.(css|js)(\\?|$)", &["/style.css", "/script.js"]),
    ("^/(.*)/$", &["/dir/", "/a/b/c/"]),
    ("%", &["/100%25", "/a%25b.html"]),
];

/// Names of prefix locations.
pub(super) const PREFIXES: &[&str] = &[
    "/a",
    "/a/",
    "/a/b/",
    "/b",
    "/b/c",
    "/dir/",
    "/dir",
    "/app/",
    "/static/",
    "/api/v1/",
    "/x.html",
    "/with%20space/",
    "/über/",
    "/images/",
    "/D",
    "/files/",
    "/o/p/q",
];

/// What a `rewrite` looks for, with paths that it matches and replacements that fit its groups.
pub(super) type Rewrite = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

/// Every such pattern.
pub(super) const REWRITES: &[Rewrite] = &[
    (
        "^/old/(.*)$",
        &["/old/page.html", "/old/"],
        &["/$1", "/new/$1?from=old", "/$1?"],
    ),
    (
        "^(/.*)/index\\.php$",
        &["/dir/index.php"],
        &["$1/", "$1/page.html?"],
    ),
    (
        "^/user/(\\w+)/?$",
        &["/user/alice", "/user/bob/?a=1"],
        &["/page.html?user=$1", "http://one.example/$1", "/$1?$args"],
    ),
    (
        "(.*)\\.xhtml$",
        &["/page.xhtml"],
        &["$1.html", "https://$host$1.html?"],
    ),
    (
        "^/(?<kind>a|b)/x",
        &["/a/x", "/b/x/y"],
        &["/$kind.html", "/dir/$kind?k=$kind"],
    ),
    (
        "/deep//*",
        &["/deep/", "/deep//x"],
        &["/dir/", "/%20x", "/plain.txt"],
    ),
    ("^", &[], &["/page.html", "$uri", "/dir$uri"]),
];

/// Conditions of `if`.
pub(super) const CONDITIONS: &[&str] = &[
    "($request_method = POST)",
    "($arg_a)",
    "($http_x_test ~* \"^(a|b)(.*)\")",
    "(-f $request_filename)",
    "(!-f $request_filename)",
    "(-d $request_filename)",
    "(!-e $request_filename)",
    "(-x $request_filename)",
    "($args ~ page=(\\d+))",
    "($mapped = one)",
    "($region != local)",
    "($cookie_session !~ x)",
    "($host = one.example)",
    "($invalid_referer)",
    "($http_user_agent ~ MSIE)",
    "($uri ~ \"^/(?<head>.)\")",
    "($request_uri !~* %2F)",
    "($arg_a = \"\")",
];

/// Names of servers, exact, with a star, and as patterns.
pub(super) const NAMES: &[&str] = &[
    "one.example",
    "two.example",
    "*.wild.example",
    "www.end.*",
    ".dot.example",
    "~^(?<part>[a-z]+)\\.regex\\.example$",
    "_",
    "\"\"",
    "localhost",
    "127.0.0.1",
    "UPPER.example",
    "sub.wild.example",
    "\"~^x{2,3}\\.example$\"",
    "xn--nchen-kva.example",
];

/// Sizes of buffers and bodies.
pub(super) const SIZES: &[&str] = &[
    "0", "1", "10", "100", "512", "1k", "4k", "8K", "16k", "64k", "1m",
];

/// Times that no request waits for.
pub(super) const TIMES: &[&str] = &["5s", "10s", "30", "1m", "1m 30s", "75s", "1h", "1d"];

/// Addresses and networks.
pub(super) const NETWORKS: &[&str] = &[
    "127.0.0.1",
    "127.0.0.0/8",
    "10.0.0.0/8",
    "192.0.2.1",
    "::1",
    "2001:db8::/32",
    "all",
    "unix:",
    "0.0.0.0/0",
];
