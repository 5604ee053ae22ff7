//! Status lines as in nginx: with its reason phrases, and without one for codes that it does not
//! name.

/// The status line of an informational response with `Link` headers (RFC 8297).
pub const EARLY_HINTS: &[u8] = b"HTTP/1.1 103 Early Hints\r\n";

/// The status line with its line break, such as `HTTP/1.1 200 OK\r\n`, for every code that nginx
/// names. [`write_line`] handles other codes.
pub fn line(status: u16) -> Option<&'static [u8]> {
    macro_rules! lines {
        ($($code:literal $reason:literal)*) => {
            match status {
                $($code => Some(concat!("HTTP/1.1 ", $code, " ", $reason, "\r\n").as_bytes()),)*
                _ => None,
            }
        };
    }
    lines! {
        200 "OK"
        201 "Created"
        202 "Accepted"
        204 "No Content"
        206 "Partial Content"
        301 "Moved Permanently"
        302 "Moved Temporarily"
        303 "See Other"
        304 "Not Modified"
        307 "Temporary Redirect"
        308 "Permanent Redirect"
        400 "Bad Request"
        401 "Unauthorized"
        402 "Payment Required"
        403 "Forbidden"
        404 "Not Found"
        405 "Not Allowed"
        406 "Not Acceptable"
        407 "Proxy Authentication Required"
        408 "Request Time-out"
        409 "Conflict"
        410 "Gone"
        411 "Length Required"
        412 "Precondition Failed"
        413 "Request Entity Too Large"
        414 "Request-URI Too Large"
        415 "Unsupported Media Type"
        416 "Requested Range Not Satisfiable"
        421 "Misdirected Request"
        429 "Too Many Requests"
        500 "Internal Server Error"
        501 "Not Implemented"
        502 "Bad Gateway"
        503 "Service Temporarily Unavailable"
        504 "Gateway Time-out"
        505 "HTTP Version Not Supported"
        507 "Insufficient Storage"
    }
}

/// The reason phrase; empty for a code that nginx does not name.
pub fn reason(status: u16) -> &'static str {
    let Some(line) = line(status) else { return "" };
    line.get("HTTP/1.1 200 ".len()..line.len() - 2)
        .and_then(|text| std::str::from_utf8(text).ok())
        .unwrap_or("")
}

/// Appends the status line of any code. A code without a name is written with at least three
/// digits, a space and an empty reason phrase.
pub fn write_line(status: u16, out: &mut Vec<u8>) {
    match line(status) {
        Some(line) => out.extend_from_slice(line),
        None => out.extend_from_slice(format!("HTTP/1.1 {status:03} \r\n").as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_and_unnamed_codes() {
        assert_eq!(line(200), Some(&b"HTTP/1.1 200 OK\r\n"[..]));
        assert_eq!(line(302), Some(&b"HTTP/1.1 302 Moved Temporarily\r\n"[..]));
        assert_eq!(line(299), None);
        assert_eq!(reason(404), "Not Found");
        assert_eq!(reason(418), "");
        let mut out = Vec::new();
        write_line(299, &mut out);
        write_line(99, &mut out);
        assert_eq!(out, b"HTTP/1.1 299 \r\nHTTP/1.1 099 \r\n");
    }
}
