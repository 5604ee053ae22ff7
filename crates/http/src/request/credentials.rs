//! The name and password of an `Authorization: Basic` field (RFC 7617, section 2), as nginx reads
//! them, and the challenge that asks for them.
//!
//! CONNECT addresses a proxy, for which other fields and another status are used (RFC 9110, section
//! 11.7).

use proto::base64::{self, Alphabet};
use proto::header::KnownField;
use proto::method::Method;

use crate::request::Request;

/// The challenge to a client that must authenticate itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The response's status.
    pub status: u16,
    /// The name of the response's field that holds the challenge.
    pub field: &'static str,
}

impl Challenge {
    const OF_SERVER: Challenge = Challenge {
        status: 401,
        field: "WWW-Authenticate",
    };

    const OF_PROXY: Challenge = Challenge {
        status: 407,
        field: "Proxy-Authenticate",
    };

    /// The challenge for a request.
    pub fn of(request: &Request) -> Challenge {
        match request.method {
            Method::Connect => Challenge::OF_PROXY,
            _ => Challenge::OF_SERVER,
        }
    }

    /// Whether a response with this status is a challenge.
    pub fn is_challenge_status(status: u16) -> bool {
        let all = [Challenge::OF_SERVER, Challenge::OF_PROXY];
        all.iter().any(|challenge| challenge.status == status)
    }
}

/// The name and password that a client sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Credentials {
    text: Vec<u8>,
    /// The index of the colon in `text`.
    colon: usize,
}

impl Credentials {
    /// The credentials that a request's field contains, if any.
    pub fn of(request: &Request) -> Option<Credentials> {
        let field = match request.method {
            Method::Connect => KnownField::ProxyAuthorization,
            _ => KnownField::Authorization,
        };
        request.header(field).and_then(Credentials::parse)
    }

    /// Parses a field's value. Returns `None` if the value contains no Basic credentials: another
    /// scheme, malformed Base64, no colon, or no name before the colon.
    pub fn parse(value: &[u8]) -> Option<Credentials> {
        const SCHEME: &[u8] = b"Basic ";
        let (scheme, encoded) = value.split_at_checked(SCHEME.len())?;
        if !scheme.eq_ignore_ascii_case(SCHEME) {
            return None;
        }
        let mut text = Vec::new();
        if !base64::decode(encoded.trim_ascii_start(), Alphabet::Standard, &mut text) {
            return None;
        }
        let colon = memchr::memchr(b':', &text).filter(|at| *at > 0)?;
        Some(Credentials { text, colon })
    }

    /// The user name; never empty.
    pub fn user(&self) -> &[u8] {
        self.text.get(..self.colon).unwrap_or_default()
    }

    /// The password, which ends at the first zero byte as in C.
    pub fn password(&self) -> &[u8] {
        let password = self.text.get(self.colon + 1..).unwrap_or_default();
        password.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from RFC 7617, section 2, and nginx's rules for odd ones.
    #[test]
    fn credentials_are_read_as_nginx_reads_them() {
        let read = |value: &str| {
            let credentials = Credentials::parse(value.as_bytes())?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Some((text(credentials.user()), text(credentials.password())))
        };
        let is = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(
            read("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
            is("Aladdin", "open sesame")
        );
        assert_eq!(read("bAsIc    dGVzdDoxMjPCow=="), is("test", "123£"));
        assert_eq!(read("Basic dGVzdDo"), is("test", "")); // no padding
        assert_eq!(read("Basic dGVzdDo=junk"), is("test", ""));
        assert_eq!(read("Basic dGVzdDphOmI="), is("test", "a:b"));
        assert_eq!(read("Basic dGVzdDphAGI="), is("test", "a")); // "a", zero, "b"
        assert_eq!(read("Basic dGVzdA=="), None); // no colon
        assert_eq!(read("Basic OnNlY3JldA=="), None); // no name
        assert_eq!(read("Basic dGVzd"), None); // five characters
        assert_eq!(read("Basic dGVz!Do="), None);
        assert_eq!(read("Basic "), None);
        assert_eq!(read("Bearer QWxhZGRpbjpvcGVu"), None);
        assert_eq!(read("Bas"), None);
    }
}
