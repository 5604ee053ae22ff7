//! Parsing of access log lines by their `log_format`, to find the request of a line.
//!
//! A value ends at the first occurrence of the text that follows its variable. The values of two
//! adjacent variables without a text between them cannot be separated, so such formats are not
//! supported.

use super::client::Request;
use super::log;

/// A log format, split into parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::try_configuration) struct Format {
    /// Whether values are escaped as in JSON.
    is_json: bool,
    parts: Vec<FormatPart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FormatPart {
    Text(Vec<u8>),
    Variable(String),
}

/// The values of a line that describe its request.
#[derive(Default)]
struct Values {
    request: Option<Vec<u8>>,
    method: Option<Vec<u8>>,
    uri: Option<Vec<u8>>,
    scheme: Option<Vec<u8>>,
    host: Option<Vec<u8>>,
    host_header: Option<Vec<u8>>,
    referer: Option<Vec<u8>>,
    user_agent: Option<Vec<u8>>,
}

impl Format {
    /// Parses the arguments of `log_format` after the name.
    pub(in crate::try_configuration) fn parse<'a>(words: impl Iterator<Item = &'a [u8]>) -> Format {
        let mut is_json = false;
        let mut text = Vec::new();
        for (index, word) in words.enumerate() {
            if let Some(escape) = word.strip_prefix(b"escape=").filter(|_| index == 0) {
                is_json = escape == b"json";
            } else {
                text.extend_from_slice(word);
            }
        }
        let mut parts = Vec::new();
        let mut rest = &*text;
        while let Some((first, after)) = rest.split_first() {
            if *first == b'$' {
                let (name, behind) = variable(after);
                parts.push(FormatPart::Variable(
                    String::from_utf8_lossy(name).into_owned(),
                ));
                rest = behind;
            } else {
                let end = rest.iter().position(|byte| *byte == b'$');
                let (text, behind) = rest.split_at(end.unwrap_or(rest.len()));
                parts.push(FormatPart::Text(text.to_vec()));
                rest = behind;
            }
        }
        Format { is_json, parts }
    }

    /// The request of a line in this format; `None` if it cannot be repeated, or if the line has
    /// another scheme than `scheme`.
    pub(super) fn request(&self, line: &[u8], scheme: &str) -> Option<Request> {
        let values = self.values(line)?;
        if values
            .scheme
            .is_some_and(|logged| logged != scheme.as_bytes())
        {
            return None;
        }
        let (is_head, target) = match (values.request, values.method, values.uri) {
            (Some(request), ..) => log::request_line(&request)?,
            (None, Some(method), Some(uri)) => log::method_and_target(&method, &uri)?,
            _ => return None,
        };
        let value = |value: Option<Vec<u8>>| value.and_then(log::sendable);
        let host = value(values.host).or_else(|| value(values.host_header));
        Some(Request {
            is_head,
            target,
            host: host.and_then(|host| String::from_utf8(host).ok()),
            referer: value(values.referer),
            user_agent: value(values.user_agent),
        })
    }

    /// The values of a line in this format; `None` if the line does not match.
    fn values(&self, line: &[u8]) -> Option<Values> {
        let mut values = Values::default();
        let mut rest = line;
        let mut parts = self.parts.iter().peekable();
        while let Some(part) = parts.next() {
            let name = match part {
                FormatPart::Text(text) => {
                    rest = rest.strip_prefix(&**text)?;
                    continue;
                }
                FormatPart::Variable(name) => name,
            };
            let end = match parts.peek() {
                None => rest.len(),
                Some(FormatPart::Text(text)) => self.end(rest, text)?,
                Some(FormatPart::Variable(_)) => return None,
            };
            let (value, behind) = rest.split_at_checked(end)?;
            rest = behind;
            let place = match name.as_str() {
                "request" => &mut values.request,
                "request_method" => &mut values.method,
                "request_uri" => &mut values.uri,
                "scheme" => &mut values.scheme,
                "host" => &mut values.host,
                "http_host" => &mut values.host_header,
                "http_referer" => &mut values.referer,
                "http_user_agent" => &mut values.user_agent,
                _ => continue,
            };
            *place = Some(self.unescape(value));
        }
        Some(values)
    }

    /// The end of a value: the first occurrence of the text that follows.
    fn end(&self, text: &[u8], follows: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(rest) = text.get(at..) {
            if rest.starts_with(follows) {
                return Some(at);
            }
            // A quote in a value is escaped with a backslash in JSON, and is `\x22` otherwise.
            let is_escape = self.is_json && rest.first() == Some(&b'\\');
            at += if is_escape { 2 } else { 1 };
        }
        None
    }

    fn unescape(&self, value: &[u8]) -> Vec<u8> {
        if !self.is_json {
            return log::unescape(value);
        }
        let mut out = Vec::with_capacity(value.len());
        let mut rest = value;
        while let Some((byte, after)) = rest.split_first() {
            let (bytes, behind): (&[u8], _) = match after {
                [b'u', b'0', b'0', high, low, behind @ ..] if *byte == b'\\' => {
                    out.extend(log::hexadecimal(*high, *low));
                    (&[], behind)
                }
                [b'n', behind @ ..] if *byte == b'\\' => (b"\n", behind),
                [b'r', behind @ ..] if *byte == b'\\' => (b"\r", behind),
                [b't', behind @ ..] if *byte == b'\\' => (b"\t", behind),
                [b'b', behind @ ..] if *byte == b'\\' => (b"\x08", behind),
                [b'f', behind @ ..] if *byte == b'\\' => (b"\x0c", behind),
                [_, behind @ ..] if *byte == b'\\' => {
                    out.extend(after.first());
                    (&[], behind)
                }
                _ => {
                    out.push(*byte);
                    (&[], after)
                }
            };
            out.extend_from_slice(bytes);
            rest = behind;
        }
        out
    }
}

/// Splits a variable's name after its dollar sign from the text that follows.
fn variable(text: &[u8]) -> (&[u8], &[u8]) {
    if let Some(braced) = text.strip_prefix(b"{")
        && let Some(end) = braced.iter().position(|byte| *byte == b'}')
    {
        let (name, rest) = braced.split_at(end);
        return (name, rest.get(1..).unwrap_or_default());
    }
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let end = text.iter().position(|byte| !is_name(byte));
    text.split_at(end.unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Format {
        Format::parse(words.iter().map(|word| word.as_bytes()))
    }

    #[test]
    fn a_format_with_a_host_names_it() {
        let format = parse(&[
            "$host $remote_addr [$time_local] ",
            "\"$request\" ${status} \"$http_referer\" \"$http_user_agent\"",
        ]);
        let line = br#"a.example 127.0.0.1 [22/Nov/2026:01:00:00 +0000] "GET /a\x22 HTTP/2.0" 200 "-" "agent""#;
        let request = format.request(line, "https").unwrap();
        assert_eq!(request.host.as_deref(), Some("a.example"));
        assert_eq!(request.target, b"/a\"");
        assert_eq!(request.referer, None);
        assert_eq!(request.user_agent.as_deref(), Some(&b"agent"[..]));
        assert!(format.request(b"something else", "https").is_none());
    }

    #[test]
    fn lines_of_json_and_of_another_scheme() {
        let format = parse(&[
            "escape=json",
            r#"{"m":"$request_method","u":"$request_uri","h":"$http_host","s":"$scheme","a":"$http_user_agent"}"#,
        ]);
        let line =
            br#"{"m":"HEAD","u":"/?a=\"b","h":"b.example:81","s":"https","a":"x\u0041\\\",y"}"#;
        let request = format.request(line, "https").unwrap();
        assert!(request.is_head);
        assert_eq!(request.target, b"/?a=\"b");
        assert_eq!(request.host.as_deref(), Some("b.example:81"));
        assert_eq!(request.user_agent.as_deref(), Some(&b"xA\\\",y"[..]));
        assert!(format.request(line, "http").is_none());
    }

    #[test]
    fn what_cannot_be_told_apart_is_not_read() {
        assert!(
            parse(&["$host$request"])
                .request(b"aGET / HTTP/1.1", "http")
                .is_none()
        );
        assert!(
            parse(&["$host $status"])
                .request(b"a 200", "http")
                .is_none()
        );
    }
}
