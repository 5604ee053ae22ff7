//! Where `proxy_pass` sends a request, and how it tells of the client.
//!
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html#variables>.

use framework::address::append_address;
use http::request::Request;
use http::variables::{BuiltinVariable, Evaluate};
use proto::header::KnownField;

use super::target::TARGET;

/// The variable of a name in lower case, without `$`.
pub fn find(name: &str) -> Option<BuiltinVariable> {
    let evaluate: Evaluate = match name {
        "proxy_host" => return Some(BuiltinVariable::computed(proxy_host).assignable()),
        "proxy_port" => return Some(BuiltinVariable::computed(proxy_port).assignable()),
        "proxy_add_x_forwarded_for" => proxy_add_x_forwarded_for,
        _ => return None,
    };
    Some(BuiltinVariable::computed(evaluate))
}

fn proxy_host(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let shown = request.pass.get(&TARGET);
    if let Some(target) = shown.and_then(|shown| shown.0.as_ref()) {
        out.extend_from_slice(&target.host);
    }
    shown.is_some()
}

fn proxy_port(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let shown = request.pass.get(&TARGET);
    if let Some(target) = shown.and_then(|shown| shown.0.as_ref()) {
        out.extend_from_slice(&target.port);
    }
    shown.is_some()
}

/// The client's `X-Forwarded-For` with its address behind it.
fn proxy_add_x_forwarded_for(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let client = &request.client;
    for value in client.all(KnownField::XForwardedFor) {
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
    append_address(request.peer(), out);
    true
}
