//! The server's name in error pages, in `Server` and in variables.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#server_tokens>.

/// `server_tokens`: the form of the server's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerTokens {
    /// The name with its version: `tidegate/VERSION`.
    On,
    /// The name alone, without a version: `tidegate`.
    Off,
    /// As `on`, since there is no build name.
    Build,
    /// nginx's own text, with the nginx version that Tidegate is compatible with. nginx has no such
    /// value.
    Nginx,
    /// nginx's own text without a version: `server_tokens nginx_off`, which nginx does not have.
    NginxOff,
}

pub use variables::process::NGINX_VERSION;

/// The version of this build of Tidegate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

impl ServerTokens {
    /// The text in error pages and `Server`.
    pub fn text(&self) -> &'static str {
        match self {
            ServerTokens::On | ServerTokens::Build => {
                concat!("tidegate/", env!("CARGO_PKG_VERSION"))
            }
            ServerTokens::Off => "tidegate",
            ServerTokens::Nginx => "nginx/1.31.5",
            ServerTokens::NginxOff => "nginx",
        }
    }
}
