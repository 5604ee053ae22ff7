//! Variables about the process and the current time, which every kind of context has.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#variables>

use framework::host::hostname;

use crate::write::{decimal, seconds, text};
use crate::{BuiltinVariable, Evaluate};

/// The version of nginx that is the reference for compatibility.
pub const NGINX_VERSION: &str = "1.31.5";

/// The built-in variable with this name, in lower case and without `$`.
pub fn find<C>(name: &str) -> Option<BuiltinVariable<C>> {
    let evaluate: Evaluate<C> = match name {
        "hostname" => |_, out| text(hostname(), out),
        "msec" => |_, out| seconds(engine::wall(), out),
        "nginx_version" => |_, out| text(NGINX_VERSION, out),
        "pid" => |_, out| decimal(std::process::id().into(), out),
        "time_iso8601" => |_, out| {
            logs::with_now(|now| out.extend_from_slice(&now.iso8601));
            true
        },
        "time_local" => |_, out| {
            logs::with_now(|now| out.extend_from_slice(&now.local));
            true
        },
        _ => return None,
    };
    Some(BuiltinVariable::computed(evaluate))
}
