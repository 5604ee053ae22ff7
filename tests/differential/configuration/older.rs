//! What an older nginx does by other defaults, or does not take, written so that it does what the
//! newest does: a configuration is worth comparing there too.

use super::tree::Line;

/// The first version whose requests to upstreams are of HTTP/1.1 and keep the connection, by
/// default.
pub(super) const NEW_DEFAULTS: [u32; 3] = [1, 29, 7];

/// Variables that came late, with one that is there and that says as much.
const VARIABLES: &[(&str, &str)] = &[
    ("$is_request_port", "$is_args"),
    ("$request_port", "$server_port"),
];

/// The lines for versions before [`NEW_DEFAULTS`].
pub(super) fn older(lines: &mut [Line]) {
    for line in lines.iter_mut() {
        for argument in &mut line.arguments {
            for (late, early) in VARIABLES {
                *argument = argument.replace(late, early);
            }
        }
        match line.name.as_str() {
            "resolver" => line.arguments.retain(|one| !one.starts_with("ipv4=")),
            // Debian's is built without it.
            "aio" if line.arguments == ["on"] => line.arguments = vec![String::from("threads")],
            _ => {}
        }
        let is_http = line.name == "http";
        if line.name == "upstream"
            && let Some(inner) = &mut line.block
        {
            // Names of upstreams are looked up again since 1.27.3.
            inner.retain(|line| !line.name.starts_with("resolver"));
        }
        let Some(inner) = &mut line.block else {
            continue;
        };
        older(inner);
        let sets = |field: Option<&str>| {
            inner.iter().any(|line| {
                let first = line.arguments.first().map(String::as_str);
                line.name == "proxy_set_header" && (field.is_none() || first == field)
            })
        };
        // A scope that sets a field inherits none.
        if (is_http || sets(None)) && !sets(Some("Connection")) {
            inner.push(Line::words("proxy_set_header Connection \"\""));
        }
        if is_http && !inner.iter().any(|line| line.name == "proxy_http_version") {
            inner.push(Line::words("proxy_http_version 1.1"));
        }
    }
}
