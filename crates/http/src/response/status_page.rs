//! The short built-in pages for a status without an `error_page`.
//!
//! The text of the pages is nginx's, so that monitoring that reads them continues to work. The name
//! at the bottom is Tidegate's, and follows `server_tokens`.

use bytes::Bytes;

use crate::config::server_tokens::ServerTokens;

/// The page for a status; `None` if nginx sends no page (unknown codes, 204).
///
/// `padded`: whether `msie_padding` applies to the client.
pub fn page(status: u16, tokens: &ServerTokens, padded: bool) -> Option<Bytes> {
    let title = title(status)?;
    let heading = match status {
        494..=497 => "400 Bad Request",
        _ => title,
    };
    let mut page = format!(
        "<html>\r\n<head><title>{title}</title></head>\r\n<body>\r\n<center><h1>{heading}</h1></center>\r\n"
    );
    let detail = match status {
        494 => Some("Request Header Or Cookie Too Large"),
        495 => Some("The SSL certificate error"),
        496 => Some("No required SSL certificate was sent"),
        497 => Some("The plain HTTP request was sent to HTTPS port"),
        _ => None,
    };
    if let Some(detail) = detail {
        page.push_str("<center>");
        page.push_str(detail);
        page.push_str("</center>\r\n");
    }
    page.push_str("<hr><center>");
    page.push_str(tokens.text());
    page.push_str("</center>\r\n</body>\r\n</html>\r\n");
    if padded && status >= 400 {
        for _ in 0..6 {
            page.push_str(PADDING);
        }
    }
    Some(page.into())
}

/// The padding of `msie_padding`: six copies follow an error page for MSIE and Chrome, which hide
/// short pages.
const PADDING: &str = "<!-- a padding to disable MSIE and Chrome friendly error page -->\r\n";

fn title(status: u16) -> Option<&'static str> {
    Some(match status {
        301 => "301 Moved Permanently",
        302 => "302 Found",
        303 => "303 See Other",
        307 => "307 Temporary Redirect",
        308 => "308 Permanent Redirect",
        400 => "400 Bad Request",
        401 => "401 Authorization Required",
        402 => "402 Payment Required",
        403 => "403 Forbidden",
        404 => "404 Not Found",
        405 => "405 Not Allowed",
        406 => "406 Not Acceptable",
        407 => "407 Proxy Authentication Required",
        408 => "408 Request Time-out",
        409 => "409 Conflict",
        410 => "410 Gone",
        411 => "411 Length Required",
        412 => "412 Precondition Failed",
        413 => "413 Request Entity Too Large",
        414 => "414 Request-URI Too Large",
        415 => "415 Unsupported Media Type",
        416 => "416 Requested Range Not Satisfiable",
        421 => "421 Misdirected Request",
        429 => "429 Too Many Requests",
        494 => "400 Request Header Or Cookie Too Large",
        495 => "400 The SSL certificate error",
        496 => "400 No required SSL certificate was sent",
        497 => "400 The plain HTTP request was sent to HTTPS port",
        498 => "404 Not Found",
        500 => "500 Internal Server Error",
        501 => "501 Not Implemented",
        502 => "502 Bad Gateway",
        503 => "503 Service Temporarily Unavailable",
        504 => "504 Gateway Time-out",
        505 => "505 HTTP Version Not Supported",
        507 => "507 Insufficient Storage",
        _ => return None,
    })
}
