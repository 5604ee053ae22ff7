//! Secrets of connections, for tools such as Wireshark: `ssl_key_log`, `proxy_ssl_key_log`.
//!
//! A line each, as <https://www.ietf.org/archive/id/draft-ietf-tls-keylogfile-02.html> describes
//! them.

use std::fmt;
use std::sync::Arc;

use logs::LogFile;

/// A file that gets them.
pub struct KeyLog(Arc<LogFile>);

impl KeyLog {
    /// A file that only its owner may read: who can, can read all of the traffic.
    pub fn new(file: Arc<LogFile>) -> KeyLog {
        file.keep_secret();
        KeyLog(file)
    }
}

impl fmt::Debug for KeyLog {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("KeyLog")
    }
}

impl rustls::KeyLog for KeyLog {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let mut line = label.as_bytes().to_vec();
        for part in [client_random, secret] {
            line.push(b' ');
            for byte in part {
                line.extend_from_slice(format!("{byte:02x}").as_bytes());
            }
        }
        line.push(b'\n');
        logs::append_line(&self.0, &line);
    }
}
