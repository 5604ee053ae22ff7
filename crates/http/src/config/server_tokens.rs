//! How the server names itself: in pages, in `Server` and in variables.
//!
//! <https://nginx.org/en/docs/http/ngx_http_core_module.html#server_tokens>.

/// `server_tokens`: the text that names us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerTokens {
    /// The name with its version: `tidegate/VERSION`.
    On,
    /// The name alone, without a version: `tidegate`.
    Off,
    /// As `on`: there is no build name to add.
    Build,
    /// nginx's own text, with the version that we are compatible with (ours).
    Nginx,
    /// nginx's own text without a version (ours: `server_tokens nginx_off`).
    NginxOff,
}

pub use variables::process::NGINX_VERSION;

/// The version of this build of Tidegate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

impl ServerTokens {
    /// The name as pages and `Server` show it.
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
