//! `$http2`.

use crate::request::Request;

/// `$http2`: `h2` over TLS, `h2c` in plaintext, empty with another protocol.
pub fn variable(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let name: &[u8] = match (request.client.is_of_fields(), request.is_secure()) {
        (false, _) => return true,
        (true, true) => b"h2",
        (true, false) => b"h2c",
    };
    out.extend_from_slice(name);
    true
}
