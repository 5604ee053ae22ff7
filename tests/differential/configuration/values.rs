//! Random arguments for a directive: from a list of our own if the syntax in the manual does not
//! tell what a value looks like, else generated from that syntax.

use conf::Contexts;

use super::World;
use super::lists;
use super::notation;
use super::table::Directive;
use crate::random::Random;

/// Directives that are never placed at random. The fixed frame of the configuration contains them
/// already, unless the comment says that they are left out of the run altogether.
const FRAME: &[&str] = &[
    "http",
    "events",
    "server",
    "location",
    "listen",
    "server_name",
    "root",
    "alias",
    "if",
    "limit_except",
    "upstream",
    // Load balancing: the two servers that are compared would ask different peers, so the frame
    // fixes which one is asked first.
    "hash",
    "ip_hash",
    "least_conn",
    "least_time",
    "random",
    "p2c",
    "eject_outliers",
    "concurrency_limit",
    "retry_budget",
    "zone",
    "queue",
    "sticky",
    // Left out: the second of the two servers would find the file that the first one has stored.
    "proxy_store",
    "fastcgi_store",
    "uwsgi_store",
    "scgi_store",
    // The frame contains them, since nginx creates these directories in any case.
    "fastcgi_temp_path",
    "uwsgi_temp_path",
    "scgi_temp_path",
    "map",
    "geo",
    "split_clients",
    "limit_req_zone",
    "limit_conn_zone",
    "log_format",
    "charset_map",
    "proxy_pass",
    "fastcgi_pass",
    "uwsgi_pass",
    "scgi_pass",
    "memcached_pass",
    "grpc_pass",
    "return",
    "rewrite",
    "set",
    "break",
    "try_files",
    "empty_gif",
    "flv",
    "mp4",
    "stub_status",
    "random_index",
    "internal",
    "daemon",
    "user",
    "pid",
    "worker_processes",
    "use",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_client_certificate",
    "valid_referers",
    "auth_request",
    // Left out: nginx would need a module file on disk.
    "load_module",
];

/// Whether a directive is placed at random in the scopes.
pub(super) fn is_strewn(name: &str) -> bool {
    !FRAME.contains(&name) && !is_of_caches(name)
}

/// Whether a directive belongs to the content cache: [`caches`](super::caches) places these.
fn is_of_caches(name: &str) -> bool {
    let of_family = |prefix| name.strip_prefix(prefix);
    let known = ["proxy_", "fastcgi_", "uwsgi_", "scgi_"];
    let stem = known.into_iter().find_map(of_family);
    stem.is_some_and(|stem| stem.starts_with("cache") || stem == "no_cache")
}

/// Random arguments that the directive accepts in this context.
pub(super) fn arguments(
    directive: &Directive,
    context: Contexts,
    random: &mut Random,
    world: &World,
) -> Vec<String> {
    let mut listed = DirectiveArguments {
        random,
        world,
        context,
    };
    match listed.text(directive.name) {
        Some(text) => split(&text),
        None if directive.forms.is_empty() => Vec::new(),
        None => {
            let form = directive.forms[random.below(directive.forms.len())];
            notation::draw(form, random, &mut |word, random| value(word, random, world))
        }
    }
}

/// Splits a text into words at the spaces outside of quotes.
pub(super) fn split(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut escaped = false;
    for letter in text.chars() {
        match quote {
            None if letter == ' ' => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                continue;
            }
            None if word.is_empty() && (letter == '"' || letter == '\'') => quote = Some(letter),
            Some(open) if letter == open && !escaped => quote = None,
            _ => {}
        }
        escaped = letter == '\\' && !escaped;
        word.push(letter);
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// A random value for a placeholder of the syntax, such as `size`; any other word stands for
/// itself.
fn value(word: &str, random: &mut Random, world: &World) -> String {
    if let Some((word, rest)) = word.split_once('[') {
        // `gzip[=level]`
        let more = rest.trim_end_matches(']');
        return if random.chance(50) {
            format!("{word}{}", value(more, random, world))
        } else {
            String::from(word)
        };
    }
    if let Some((key, kind)) = word.split_once('=')
        && !kind.is_empty()
    {
        return format!("{key}={}", value(kind, random, world));
    }
    let one = |random: &mut Random, list: &[&str]| String::from(random.pick(list));
    match word {
        "size" | "length" => one(random, lists::SIZES),
        "time" | "timeout" | "interval" => one(random, lists::TIMES).replace(' ', ""),
        "number" | "N" => one(random, &["1", "2", "4", "16", "100"]),
        "level" => one(random, &["1", "3", "6", "9"]),
        "code" => one(random, &["403", "404", "429", "503"]),
        "string" | "value" | "text" | "replacement" | "expression" => text(random),
        "$variable" => one(random, &["$own_a", "$own_b"]),
        "mime-type" => one(random, lists::TYPES),
        "field" => one(random, lists::FIELDS),
        "name" => one(random, &["name", "other", "x-y_z"]),
        "uri" => uri(random, world),
        "path" | "file" | "directory" => one(random, &["html", "html/dir", "html/none"]),
        "address" | "CIDR" => one(random, lists::NETWORKS),
        "method" => one(random, &["GET", "POST", "PUT", "DELETE", "PROPFIND"]),
        "regex" => one(random, &["MSIE", "\"^Mozilla/4\"", "curl"]),
        "charset" => one(random, &["utf-8", "koi8-r", "windows-1251"]),
        _ => String::from(word),
    }
}

/// A random text as configurations have it, often with variables.
pub(super) fn text(random: &mut Random) -> String {
    if random.chance(55) {
        String::from(random.pick(lists::VARIABLES))
    } else if random.chance(2) {
        // Line breaks are rare, since they meet a known difference that hides others.
        String::from(lists::BROKEN_TEXT)
    } else {
        String::from(random.pick(lists::TEXTS))
    }
}

/// A random URI of this server: of a file, of a location that the frame defines, or of nothing.
pub(super) fn uri(random: &mut Random, world: &World) -> String {
    let fixed = [
        "/mirror",
        "/auth/ok",
        "/errors/page.html",
        "/none",
        "/added.html",
    ];
    if random.chance(50) && !world.files.is_empty() {
        plain(&world.files[random.below(world.files.len())])
    } else {
        String::from(random.pick(&fixed))
    }
}

/// The URI if it may stand in a configuration without quotes, else one that may.
pub(super) fn plain(uri: &str) -> String {
    if uri.contains([' ', ';', '{', '}', '"', '\'', '\\', '$', '#', '\t', '\n']) {
        String::from("/page.html")
    } else {
        String::from(uri)
    }
}

/// Generates the arguments of directives that have a list of their own.
struct DirectiveArguments<'a> {
    random: &'a mut Random,
    world: &'a World,
    context: Contexts,
}

impl DirectiveArguments<'_> {
    fn one(&mut self, list: &[&str]) -> Option<String> {
        Some(String::from(self.random.pick(list)))
    }

    /// The usual value in 70 of a hundred cases, else one of the others.
    fn mostly(&mut self, usual: &str, others: &[&str]) -> Option<String> {
        if self.random.chance(70) {
            Some(String::from(usual))
        } else {
            self.one(others)
        }
    }

    /// The arguments of a directive; `None` if there is no list for it.
    fn text(&mut self, name: &str) -> Option<String> {
        self.of_main(name)
            .or_else(|| self.of_core(name))
            .or_else(|| self.of_answers(name))
            .or_else(|| self.of_modules(name))
            .or_else(|| self.of_applications(name))
            .or_else(|| self.of_proxy(name))
            .or_else(|| self.of_tls(name))
    }

    /// The main level and `events`: only values that do not disturb the run itself.
    fn of_main(&mut self, name: &str) -> Option<String> {
        match name {
            "env" => self.one(&["HOME", "TZ", "DIFFERENTIAL=1", "EMPTY="]),
            "lock_file" => self.one(&["logs/lock"]),
            "master_process" => self.one(&["on"]),
            "timer_resolution" => self.one(&["100ms", "10ms", "0"]),
            "worker_cpu_affinity" => self.one(&["auto", "01", "auto 01"]),
            "worker_priority" => self.one(&["0", "1", "-1"]),
            "worker_rlimit_core" => self.one(&["0", "1m", "500M"]),
            "worker_rlimit_nofile" => self.one(&["1024", "4096"]),
            "worker_shutdown_timeout" => self.one(&["1s", "5s"]),
            "working_directory" => Some(self.world.prefix.display().to_string()),
            "debug_points" => self.one(&["abort", "stop"]),
            "thread_pool" => self.one(&[
                "default threads=2",
                "other threads=1 max_queue=16",
                "default threads=4 max_queue=0",
            ]),
            "include" => self.one(&["none/*.conf", "empty.conf", "e*y.conf"]),
            "error_log" => self.one(&[
                "logs/error.log info",
                "logs/other.log error",
                "logs/error.log info",
            ]),
            "worker_connections" => self.one(&["256", "512", "1024"]),
            "worker_aio_requests" => self.one(&["8", "32"]),
            "epoll_events" => self.one(&["16", "512"]),
            "accept_mutex_delay" => self.one(&["100ms", "500ms"]),
            "debug_connection" => {
                self.one(&["192.0.2.1", "198.51.100.0/24", "unix:", "2001:db8::1"])
            }
            _ => None,
        }
    }

    fn of_core(&mut self, name: &str) -> Option<String> {
        match name {
            "access_log" => self.one(&[
                "logs/differential.log differential",
                "logs/differential.log differential if=$mapped",
                "off",
                "logs/other.log combined",
                "logs/buffered.log combined buffer=4k flush=1s",
                "logs/$host.log combined",
                "logs/packed.log combined gzip=1 buffer=1k flush=5m",
                "logs/folded.log second if=$folded",
                "logs/plain.log",
            ]),
            "open_log_file_cache" => {
                self.one(&["max=10", "max=100 inactive=20s min_uses=2 valid=1m", "off"])
            }
            "aio" => self.one(&["on", "off", "threads", "threads=default"]),
            "directio" => self.one(&["off", "4k", "1m"]),
            "directio_alignment" => self.one(&["512", "4k"]),
            "output_buffers" | "gzip_buffers" | "gunzip_buffers" => {
                self.one(&["2 32k", "1 4k", "16 8k", "4 512"])
            }
            "sendfile_max_chunk" => self.one(&["0", "64k", "2m"]),
            "read_ahead" | "postpone_output" | "ssi_min_file_chunk" => {
                self.one(&["0", "1k", "1460", "64k"])
            }
            "subrequest_output_buffer_size" => self.one(&["4k", "64k", "1m"]),
            "client_body_buffer_size" => self.one(&["8k", "16k", "1k", "100", "1m"]),
            "client_max_body_size" => self.mostly("1m", &["0", "10", "100", "1k", "64k"]),
            "client_body_temp_path" | "proxy_temp_path" => {
                let kind = if name.starts_with("proxy") {
                    "proxy"
                } else {
                    "body"
                };
                let (levels, folder) = *[("", ""), (" 1", "1"), (" 1 2", "12"), (" 2 2 2", "222")]
                    .get(self.random.below(4))
                    .unwrap_or(&("", ""));
                Some(format!("temp/{kind}{folder}{levels}"))
            }
            "client_body_in_file_only" => self.mostly("off", &["clean", "on"]),
            "client_body_early_read" => self.one(&["$arg_a", "\"\"", "0", "$mapped 1"]),
            "client_header_buffer_size" => self.mostly("1k", &["512", "4k", "100", "32k"]),
            "large_client_header_buffers" => self.mostly("4 8k", &["2 1k", "1 512", "8 16k"]),
            "connection_pool_size" => self.one(&["256", "512"]),
            "request_pool_size" => self.one(&["512", "4k", "1k"]),
            "max_headers" => self.mostly("1000", &["3", "10", "0"]),
            "max_ranges" => self.one(&["0", "1", "2", "100"]),
            "keepalive_disable" => self.one(&["none", "msie6", "safari", "msie6 safari"]),
            "keepalive_requests" => self.mostly("1000", &["0", "1", "2", "3"]),
            "keepalive_time" => self.one(&["1h", "1d"]),
            "keepalive_timeout" if self.context == Contexts::UPSTREAM => {
                self.one(&["60s", "1h", "10s"])
            }
            "keepalive_timeout" => self.mostly("75s", &["0", "10s 10s", "65 60", "20s 0"]),
            "keepalive_min_timeout" => self.one(&["0", "100ms"]),
            "keepalive" => self.one(&["1", "2", "16", "32"]),
            "lingering_time" => self.one(&["1s", "2s"]),
            "lingering_timeout" => self.one(&["500ms", "1s"]),
            "limit_rate" => self.mostly("0", &["10m", "$no_rate"]),
            "limit_rate_after" => self.one(&["0", "1k", "1m", "10m"]),
            "send_lowat" => self.one(&["0"]),
            "open_file_cache" => self.one(&["off", "max=10", "max=1000 inactive=20s", "max=1"]),
            "open_file_cache_min_uses" => self.one(&["1", "2", "5"]),
            "resolver" => {
                let dead = &self.world.dead;
                let more = self
                    .random
                    .pick(&["", " valid=30s", " ipv6=off", " ipv4=on valid=1m"]);
                Some(format!("{dead}{more}"))
            }
            "resolver_timeout" => self.one(&["1s", "2s"]),
            "disable_symlinks" => self.one(&[
                "off",
                "on",
                "if_not_owner",
                "on from=$document_root",
                "if_not_owner from=$document_root",
            ]),
            "default_type" => self.one(&[
                "text/html",
                "text/plain",
                "application/octet-stream",
                "$mapped",
                "\"\"",
                "\"text/html; charset=utf-8\"",
            ]),
            "types_hash_bucket_size"
            | "variables_hash_bucket_size"
            | "map_hash_bucket_size"
            | "server_names_hash_bucket_size"
            | "referer_hash_bucket_size" => self.one(&["128", "256", "512"]),
            "types_hash_max_size"
            | "variables_hash_max_size"
            | "map_hash_max_size"
            | "server_names_hash_max_size"
            | "referer_hash_max_size" => self.one(&["1024", "2048", "4096"]),
            "types" => self.one(&[""]),
            "index" => self.one(&[
                "index.html",
                "index.php index.html",
                "$mapped.html index.html",
                "page.html",
                "index.html /page.html",
                "none.html",
                "dir/ index.html",
                "index.htm index$arg_a.html",
            ]),
            "server_tokens" => self.one(&["on", "off", "build"]),
            "error_page" => {
                let codes = self.random.pick(&[
                    "404",
                    "403 404",
                    "500 502 503 504",
                    "401",
                    "405",
                    "413",
                    "416",
                    "400",
                    "301",
                    "404 403 500",
                    "502 504",
                ]);
                let change = self.random.pick(&["", "", " =", " =200", " =503", " =418"]);
                let uri = uri(self.random, self.world);
                let target = self.random.pick(&[
                    "/errors/page.html",
                    "/errors/page.html",
                    "@fallback",
                    "@fallback",
                    "@proxied",
                    "http://one.example/moved",
                    "/none",
                    "/errors/$status.html",
                    "uri",
                ]);
                let target = if target == "uri" {
                    uri.as_str()
                } else {
                    target
                };
                Some(format!("{codes}{change} {target}"))
            }
            _ => None,
        }
    }

    fn of_answers(&mut self, name: &str) -> Option<String> {
        match name {
            "add_header" | "add_trailer" => {
                let field = self.random.pick(lists::FIELDS);
                let value = if self.random.chance(30) {
                    String::from(self.random.pick(lists::LATE_VARIABLES))
                } else {
                    text(self.random)
                };
                let always = self.random.pick(&["", " always"]);
                Some(format!("{field} {value}{always}"))
            }
            "expires" => self.one(&[
                "off",
                "epoch",
                "max",
                "1h",
                "-1",
                "modified +24h",
                "@15h30m",
                "$mapped",
                "0",
                "modified -1h",
                "30d",
            ]),
            "charset" => self.one(&["utf-8", "koi8-r", "windows-1251", "off", "$charset_of"]),
            "source_charset" => self.one(&["utf-8", "koi8-r", "windows-1251"]),
            "gzip_comp_level" => self.one(&["1", "2", "6", "9"]),
            "gzip_window" => self.one(&["32k", "16k", "4k"]),
            "gzip_hash" => self.one(&["32k", "64k"]),
            "gzip_min_length" => self.one(&["0", "20", "100", "10k"]),
            "gzip_disable" => self.one(&["msie6", "\"MSIE [1-6]\\.\"", "curl wget"]),
            "gzip_http_version" => self.one(&["1.0", "1.1"]),
            "postpone_gzipping" => self.one(&["0", "1k"]),
            "sub_filter" => self.one(&[
                "hello HELLO",
                "\"<b>\" \"<i>\"",
                "e E",
                "</body> \"<!-- $host --></body>\"",
                "$arg_a found",
                "html HTML",
                "\"a b\" \"\"",
                "HeLLo $uri",
            ]),
            "ssi_value_length" => self.one(&["256", "16", "1k"]),
            "userid_domain" => self.one(&["none", "example", ".one.example"]),
            "userid_expires" => self.one(&["off", "max", "1d", "1h"]),
            "userid_flags" => self.one(&[
                "off",
                "secure",
                "httponly",
                "secure httponly samesite=lax",
                "samesite=strict",
                "samesite=none",
            ]),
            "userid_mark" => self.one(&["off", "A", "7", "="]),
            "userid_name" => self.one(&["uid", "session", "a"]),
            "userid_p3p" => self.one(&["none", "\"policyref=\\\"/w3c/p3p.xml\\\"\""]),
            "userid_path" => self.one(&["/", "/dir/"]),
            "userid_service" => self.one(&["1", "127", "4294967295"]),
            "userid" => self.mostly("log", &["on", "off", "v1"]),
            "slice" => self.one(&["0", "1k", "10", "1m"]),
            "early_hints" => self.one(&["$arg_a", "$http_x_test", "0", "\"\"", "$mapped"]),
            "if_modified_since" => self.one(&["off", "exact", "before"]),
            _ => None,
        }
    }

    fn of_modules(&mut self, name: &str) -> Option<String> {
        match name {
            "allow" => self.one(lists::NETWORKS),
            "deny" => self.mostly(
                "192.0.2.1",
                &["all", "127.0.0.1", "10.0.0.0/8", "unix:", "2001:db8::/32"],
            ),
            "auth_basic" => self.mostly("off", &["realm", "\"closed $host\"", "$mapped"]),
            "auth_basic_user_file" => self.mostly("users", &["$mapped.users", "none"]),
            "auth_delay" => self.one(&["0", "10ms", "50ms"]),
            "auth_request_set" => self.one(&[
                "$own_a $upstream_status",
                "$own_b $upstream_http_x_test",
                "$own_a $status",
                "$own_b \"a$uri\"",
            ]),
            "ancient_browser" => self.one(&["netscape4 curl", "MSIE", "\"Lynx/2\" links"]),
            "ancient_browser_value" | "modern_browser_value" => {
                self.one(&["1", "yes", "\"\"", "old"])
            }
            "modern_browser" => self.one(&[
                "msie 5.5",
                "gecko 1.0.0",
                "opera 9.0",
                "safari 413",
                "konqueror 3.0",
                "unlisted",
            ]),
            "autoindex_format" => self.one(&["html", "xml", "json", "jsonp"]),
            "dav_methods" => {
                self.one(&["off", "PUT DELETE MKCOL COPY MOVE", "PUT", "DELETE MKCOL"])
            }
            "dav_access" => self.one(&["user:rw", "user:rw group:r all:r", "group:rw all:r"]),
            "min_delete_depth" => self.one(&["0", "1", "3"]),
            // Zone `slow` is used up by one request for the rest of the run, and no request ever
            // reaches the rate of `fast`, so no result depends on timing.
            "limit_req" => self.one(&[
                "zone=fast burst=100",
                "zone=slow burst=2 nodelay",
                "zone=slow",
                "zone=fast burst=500 nodelay",
                "zone=fast burst=100 delay=50",
                "zone=slow burst=5 delay=5",
            ]),
            "limit_conn" => self.one(&["addresses 20", "names 30", "names 100"]),
            "limit_req_status" | "limit_conn_status" => {
                self.one(&["429", "444", "503", "599", "400"])
            }
            "mirror" => self.one(&["/mirror", "/mirror", "off", "/none"]),
            "post_action" => self.one(&["/mirror", "/auth/ok", "@fallback"]),
            "mp4_buffer_size" => self.one(&["512k", "1k"]),
            "mp4_max_buffer_size" => self.one(&["10m", "1m"]),
            "mp4_limit_rate" => self.one(&["off"]),
            "mp4_limit_rate_after" => self.one(&["60s", "1m"]),
            "real_ip_header" => self.one(&[
                "X-Real-IP",
                "X-Forwarded-For",
                "proxy_protocol",
                "X-Test",
                "Host",
            ]),
            "set_real_ip_from" => self.one(&[
                "127.0.0.1",
                "127.0.0.0/8",
                "10.0.0.0/8",
                "unix:",
                "2001:db8::/32",
            ]),
            "secure_link" => self.one(&["$arg_md5", "$arg_md5,$arg_expires", "$cookie_a"]),
            "secure_link_md5" => {
                self.one(&["\"secret$uri\"", "\"$secure_link_expires$uri secret\""])
            }
            "secure_link_secret" => self.one(&["secret"]),
            "http2" => self.mostly("off", &["on"]),
            "http2_pool_size" => self.one(&["4k", "512"]),
            "http2_recv_buffer_size" => self.one(&["64k", "256k"]),
            "http2_streams_index_size" => self.one(&["32", "64"]),
            "uninitialized_variable_warn" => self.one(&["on", "off"]),
            _ => None,
        }
    }

    /// Directives that only FastCGI, uwsgi, SCGI, memcached or gRPC have; those that they share
    /// with `proxy` take the same arguments as there.
    fn of_applications(&mut self, name: &str) -> Option<String> {
        match name {
            "fastcgi_param" | "uwsgi_param" | "scgi_param" => {
                let field = self.random.pick(lists::REQUEST_FIELDS);
                let value = text(self.random);
                Some(format!("{field} {value}"))
            }
            "fastcgi_index" => self.one(&["index.php", "index.html"]),
            "fastcgi_split_path_info" => self.one(&["^(.+?\\.html)(/.*)?$", "^(/a)(.*)$"]),
            "fastcgi_catch_stderr" => self.one(&["Fatal", "\"PHP message\""]),
            "uwsgi_modifier1" | "uwsgi_modifier2" => self.one(&["0", "5", "255"]),
            "uwsgi_string" => self.one(&["text", "\"\""]),
            "memcached_gzip_flag" => self.one(&["0", "2"]),
            "memcached_next_upstream" => self.one(&[
                "error timeout",
                "off",
                "not_found",
                "invalid_response not_found",
            ]),
            "fastcgi_next_upstream" | "uwsgi_next_upstream" | "scgi_next_upstream" => self.one(&[
                "error timeout",
                "off",
                "http_404 http_500 updating",
                "invalid_header http_403 http_429 non_idempotent",
            ]),
            _ => {
                let prefixes = ["fastcgi_", "uwsgi_", "scgi_", "memcached_", "grpc_"];
                let stem = prefixes
                    .iter()
                    .find_map(|prefix| name.strip_prefix(prefix))?;
                self.of_proxy(&format!("proxy_{stem}"))
            }
        }
    }

    fn of_proxy(&mut self, name: &str) -> Option<String> {
        match name {
            "proxy_bind" => self.one(&["127.0.0.1", "off", "127.0.0.2", "$server_addr"]),
            "proxy_buffer_size" => self.one(&["4k", "8k", "2k"]),
            "proxy_buffers" => self.one(&["8 8k", "16 4k", "32 4k"]),
            "proxy_busy_buffers_size" => self.one(&["8k", "16k"]),
            "proxy_max_temp_file_size" => self.one(&["0", "1m", "1024m"]),
            "proxy_temp_file_write_size" => self.one(&["16k", "64k"]),
            "proxy_connect_timeout" | "proxy_read_timeout" | "proxy_send_timeout" => {
                self.one(&["5s", "10s", "60", "2m"])
            }
            "proxy_headers_hash_bucket_size" => self.one(&["128", "256"]),
            "proxy_headers_hash_max_size" => self.one(&["1024", "2048"]),
            "proxy_hide_header" | "proxy_pass_header" => self.one(&[
                "Server",
                "Date",
                "X-Test",
                "X-Accel-Buffering",
                "ETag",
                "Set-Cookie",
                "Content-Type",
                "x-lower",
            ]),
            "proxy_http_version" => self.one(&["1.0", "1.1"]),
            "proxy_ignore_headers" => self.one(&[
                "X-Accel-Redirect",
                "X-Accel-Expires",
                "Cache-Control Expires",
                "Set-Cookie Vary",
                "X-Accel-Limit-Rate X-Accel-Buffering X-Accel-Charset",
            ]),
            // `HEAD` meets a known difference that hides many others, so it is rare.
            "proxy_method" => self.one(&[
                "POST",
                "$request_method",
                "get",
                "PUT",
                "GET",
                "PATCH",
                "$request_method",
                "OPTIONS",
                "HEAD",
            ]),
            "proxy_next_upstream" => self.one(&[
                "error timeout",
                "off",
                "http_404 http_500 http_502",
                "error timeout http_503 non_idempotent",
                "invalid_header http_403 http_429 http_504",
            ]),
            "proxy_next_upstream_timeout" => self.one(&["0", "10s"]),
            "proxy_next_upstream_tries" => self.one(&["0", "1", "2", "3"]),
            "proxy_redirect" => self.one(&[
                "off",
                "http://one.example/ /",
                "~^http://([^/]+)/(.*)$ /$1/$2",
                "/ /prefix/",
                "http://$host/ https://two.example/",
                "~*\\.HTML$ /x",
            ]),
            "proxy_store_access" => self.one(&["user:rw", "user:rw group:r all:r"]),
            "proxy_limit_rate" => self.one(&["0", "1m", "100k"]),
            "proxy_cookie_path" => self.one(&["/ /deeper/", "off", "~*^/(.*)$ /$1/x", "$uri /y"]),
            "proxy_cookie_domain" => {
                self.one(&["off", "localhost example.org", "~\\.example$ $host"])
            }
            "proxy_cookie_flags" => self.one(&["a secure httponly", "~. samesite=lax", "off"]),
            "proxy_set_body" => self.one(&["fixed", "$request_body", "$args"]),
            "proxy_set_header" => {
                let field = self.random.pick(lists::REQUEST_FIELDS);
                let value = text(self.random);
                Some(format!("{field} {value}"))
            }
            _ => None,
        }
    }

    fn of_tls(&mut self, name: &str) -> Option<String> {
        let name = name
            .strip_prefix("proxy_")
            .or_else(|| name.strip_prefix("uwsgi_"))
            .or_else(|| name.strip_prefix("grpc_"))
            .filter(|name| name.starts_with("ssl_"))
            .unwrap_or(name);
        match name {
            "ssl_certificate" => self.one(&["tls/client.crt"]),
            "ssl_certificate_key" => self.one(&["tls/client.key"]),
            "ssl_certificate_cache" => {
                self.one(&["off", "max=10", "max=100 inactive=30s valid=1m"])
            }
            "ssl_ciphers" => self.one(&[
                "DEFAULT",
                "HIGH:!aNULL:!MD5",
                "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256",
            ]),
            "ssl_conf_command" => self.one(&[
                "Options PrioritizeChaCha",
                "Ciphersuites TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384",
            ]),
            "ssl_crl" => self.one(&["tls/empty.crl"]),
            "ssl_name" => self.one(&["localhost", "$proxy_host", "one.example"]),
            "ssl_password_file" => self.one(&["tls/passwords"]),
            "ssl_protocols" => self.one(&[
                "TLSv1.2",
                "TLSv1.2 TLSv1.3",
                "TLSv1.3",
                "TLSv1 TLSv1.1 TLSv1.2 TLSv1.3",
            ]),
            "ssl_trusted_certificate" => self.one(&["tls/ca.crt"]),
            "ssl_verify_depth" => self.one(&["1", "2", "5"]),
            "ssl_key_log" => self.one(&["logs/keys.log"]),
            "ssl_buffer_size" => self.one(&["4k", "16k", "1400"]),
            "ssl_dhparam" => self.one(&["tls/dhparam.pem"]),
            "ssl_ecdh_curve" => self.one(&[
                "auto",
                "prime256v1",
                "X25519:prime256v1",
                "secp384r1:X25519",
            ]),
            "ssl_ocsp" => self.one(&["off"]),
            "ssl_ocsp_cache" => self.one(&["off", "shared:ocsp:1m"]),
            "ssl_ocsp_responder" | "ssl_stapling_responder" => {
                Some(format!("http://{}/", self.world.dead))
            }
            "ssl_reject_handshake" => self.mostly("off", &["on"]),
            "ssl_session_cache" => self.one(&[
                "off",
                "none",
                "builtin",
                "shared:sessions:1m",
                "builtin:1000 shared:sessions:1m",
            ]),
            "ssl_session_ticket_key" => self.one(&["tls/ticket.key"]),
            "ssl_stapling_file" => self.one(&["tls/later.der"]),
            "ssl_verify_client" => self.mostly("off", &["on", "optional", "optional_no_ca"]),
            _ => None,
        }
    }
}
