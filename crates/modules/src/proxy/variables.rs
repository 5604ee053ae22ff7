//! Where `proxy_pass` sends a request, and how it tells of the client.
//!
//! <https://nginx.org/en/docs/http/ngx_http_proxy_module.html#variables>.

use std::any::Any;

use framework::address::append_address;
use http::request::Request;
use http::variables::{BuiltinVariable, Evaluate};
use proto::header::KnownField;

use super::Proxy;
use super::target::{ProxyTarget, TARGET};

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

/// The target of a request that has come to a `proxy_pass`, if it has one.
fn shown(request: &Request) -> Option<Option<&ProxyTarget>> {
    if let Some(shown) = request.pass.get(&TARGET) {
        return Some(shown.0.as_deref());
    }
    // What is recalled has not run, and shares no counter with other threads for this.
    let recall = request.plan.phases.recall.as_deref();
    let recall: &dyn Any = recall.filter(|_| request.course.recalled)?;
    let proxy = recall.downcast_ref::<Proxy>()?;
    Some(proxy.fixed_target().map(|target| &**target))
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
