//! The machine that the server runs on.

use std::sync::OnceLock;

/// The machine's name in lower case. Queried once.
pub fn hostname() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .to_ascii_lowercase()
    })
}
