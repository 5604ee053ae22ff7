//! Secrets of TLS connections, for tools such as Wireshark: `ssl_key_log`, `proxy_ssl_key_log`.
//!
//! One line per secret, in the format of
//! <https://www.ietf.org/archive/id/draft-ietf-tls-keylogfile-02.html>.

use std::fmt;
use std::sync::Arc;

use logs::LogFile;

/// The log of secrets, written to a file.
pub struct KeyLog(Arc<LogFile>);

impl KeyLog {
    /// A log in this file, which only its owner may read: anyone who can read it can decrypt all
    /// traffic.
    pub fn new(file: Arc<LogFile>) -> KeyLog {
        file.restrict_to_owner();
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
