//! Validates the value of `Host`, or the host of an absolute request target, and extracts the
//! server's name. The grammar is nginx's, which is wider than RFC 3986's `host [":" port]`: any
//! registered name of unreserved characters, sub-delimiters and `%`, or unreserved characters,
//! sub-delimiters and colons in brackets.
//!
//! Not here: resolution, matching against `server_name`, and conversion to lower case (see
//! [`Host::has_capitals`]).

use crate::Span;
use crate::byte_table::ByteTable;

/// A valid host. Spans refer to the validated value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The name without its port and without one trailing dot. Includes the brackets of an address
    /// literal.
    pub name: Span,
    /// The port, or 0 if there is none.
    pub port: u16,
    /// Whether the name contains capital letters: virtual servers are looked up by the name in
    /// lower case.
    pub has_capitals: bool,
}

/// The value is not a valid host; the response is 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHost;

/// Validates the value of a `Host` header, or the authority of an absolute target.
///
/// # Errors
/// [`InvalidHost`] for an empty name, two adjacent dots, an invalid byte, an unclosed bracket, or a
/// port that is not a number up to 65535.
pub fn validate(value: &[u8]) -> Result<Host, InvalidHost> {
    let mut host = Host::default();
    let literal = value.first() == Some(&b'[');
    let mut last_dot = None;
    let mut at = usize::from(literal);

    // The name: up to a colon or, for an address literal, up to its closing bracket.
    let mut end = None;
    while let Some(&byte) = value.get(at) {
        let class = CLASS.of(byte);
        // Nearly all bytes are plain, so that this branch is predicted well.
        if class == PLAIN {
            at += 1;
            continue;
        }
        match class {
            CAPITAL => host.has_capitals = true,
            DOT => {
                if last_dot.is_some() && last_dot == at.checked_sub(1) {
                    return Err(InvalidHost);
                }
                last_dot = Some(at);
            }
            PERCENT if !literal => {}
            COLON if literal => {}
            COLON => {
                end = Some(at);
                break;
            }
            BRACKET if literal => {
                at += 1;
                end = Some(at);
                break;
            }
            _ => return Err(InvalidHost),
        }
        at += 1;
    }
    let end = match end {
        Some(end) => end,
        None if literal => return Err(InvalidHost),
        None => value.len(),
    };

    host.port = port(value.get(end..).unwrap_or_default())?;
    let dotted = end > 0 && last_dot == Some(end - 1);
    host.name = Span::new(0, end - usize::from(dotted));
    if host.name.is_empty() {
        Err(InvalidHost)
    } else {
        Ok(host)
    }
}

/// Parses the rest after the name: nothing, or a colon and any number of digits.
fn port(rest: &[u8]) -> Result<u16, InvalidHost> {
    let Some((&colon, digits)) = rest.split_first() else {
        return Ok(0);
    };
    if colon != b':' {
        return Err(InvalidHost);
    }
    let mut port: u16 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return Err(InvalidHost);
        }
        port = port
            .checked_mul(10)
            .and_then(|port| port.checked_add(u16::from(digit - b'0')))
            .ok_or(InvalidHost)?;
    }
    Ok(port)
}

const BAD: u8 = 0;
const PLAIN: u8 = 1;
const CAPITAL: u8 = 2;
const DOT: u8 = 3;
const PERCENT: u8 = 4;
const COLON: u8 = 5;
const BRACKET: u8 = 6;

/// The class of each byte in the grammar.
#[expect(
    clippy::indexing_slicing,
    reason = "the compiler evaluates it, and refuses what lies outside"
)]
static CLASS: ByteTable<u8> = {
    let mut class = [BAD; 256];
    let mut byte = 0;
    while byte < 256 {
        class[byte] = match byte as u8 {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => PLAIN,
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' => PLAIN,
            b'A'..=b'Z' => CAPITAL,
            b'.' => DOT,
            b'%' => PERCENT,
            b':' => COLON,
            b']' => BRACKET,
            _ => BAD,
        };
        byte += 1;
    }
    ByteTable::new(class)
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_nginx_accepts() {
        for (value, name, port, capitals) in [
            ("example.com", "example.com", 0, false),
            ("Example.COM", "Example.COM", 0, true),
            ("example.com.", "example.com", 0, false),
            ("example.com.:8080", "example.com", 8080, false),
            ("example.com:", "example.com", 0, false),
            ("example.com:0", "example.com", 0, false),
            ("example.com:65535", "example.com", 65535, false),
            ("a_b~!$&'()*+,;=%41", "a_b~!$&'()*+,;=%41", 0, false),
            (".example.com", ".example.com", 0, false),
            ("[::1]", "[::1]", 0, false),
            ("[::1]:443", "[::1]", 443, false),
            ("[::FFFF:1.2.3.4]", "[::FFFF:1.2.3.4]", 0, true),
            ("[v1.a]", "[v1.a]", 0, false),
            ("[]", "[]", 0, false),
        ] {
            let host = validate(value.as_bytes()).unwrap_or_else(|_| panic!("{value}"));
            assert_eq!(host.name.of(value.as_bytes()), name.as_bytes(), "{value}");
            assert_eq!((host.port, host.has_capitals), (port, capitals), "{value}");
        }
    }

    #[test]
    fn refuses_what_nginx_refuses() {
        for value in [
            "",
            ".",
            ":80",
            "a..b",
            "a b",
            "a/b",
            "a@b",
            "a:b",
            "a:80:80",
            "a:65536",
            "a:99999999999",
            "a#",
            "a\"",
            "[::1",
            "[::1]x",
            "[::1]80",
            "[a%25eth0]",
            "[a..b]",
            "::1",
            "a\u{7f}",
            "é",
            "a[b]",
            "a]",
        ] {
            assert_eq!(validate(value.as_bytes()), Err(InvalidHost), "{value}");
        }
    }
}
