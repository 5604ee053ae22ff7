//! Variables of `proxy_pass`: the target of a request, and the client's forwarded address.
//!
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html#variables>.

use std::any::Any;

use framework::address::append_address;
use http::request::Request;
use http::variables::{BuiltinVariable, Evaluate};
use proto::header::KnownField;

use super::Proxy;
use super::target::{ProxyTarget, TARGET};

/// The variable with this name (in lower case, without `$`).
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
    let shown = shown(request);
    if let Some(target) = shown.flatten() {
        out.extend_from_slice(&target.host);
    }
    shown.is_some()
}

fn proxy_port(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let shown = shown(request);
    if let Some(target) = shown.flatten() {
        out.extend_from_slice(&target.port);
    }
    shown.is_some()
}

/// The target that the variables show: outer `None` before any `proxy_pass`, inner `None` without a
/// target.
fn shown(request: &Request) -> Option<Option<&ProxyTarget>> {
    if let Some(shown) = request.pass.get(&TARGET) {
        return Some(shown.0.as_deref());
    }
    // A cache hit from memory has not run the handler, so its fixed target is looked up here, which
    // needs no counter shared between threads.
    let recall = request.plan.phases.recall.as_deref();
    let recall: &dyn Any = recall.filter(|_| request.routing.recalled)?;
    let proxy = recall.downcast_ref::<Proxy>()?;
    Some(proxy.fixed_target().map(|target| &**target))
}

/// The client's `X-Forwarded-For` with its address appended.
fn proxy_add_x_forwarded_for(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let client = &request.client;
    for value in client.all(KnownField::XForwardedFor) {
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
    append_address(request.peer(), out);
    true
}
