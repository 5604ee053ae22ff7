//! Users and their passwords: the file of `-Y` and `-S`, and what clients say to be let in.
//!
//! By lines, `-Y`: `set KEY 0 0 N` and a data block `user password`, as in memcached. By packets,
//! `-S`: SASL's mechanism PLAIN (RFC 4616). Both look into one file with a line `user:password`
//! each; memcached's SASL asks Cyrus' library, which has databases of its own.

use std::fmt;
use std::hint::black_box;

use crate::cache::Protocol;

/// Longest user with password that a client may say, in bytes.
pub(crate) const TOKEN_LENGTH_MAX: u32 = 65535;

/// Longest line of a file, in bytes, as in memcached.
const LINE_LENGTH_MAX: usize = 256;

/// The mechanisms of SASL that there are.
pub(crate) const MECHANISMS: &str = "PLAIN";

/// Users with their passwords.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct UserPasswords(Vec<(Vec<u8>, Vec<u8>)>);

/// How clients say who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthProtocol {
    /// By lines of text.
    Text,
    /// By SASL in packets.
    Sasl,
}

/// How clients of a server say who they are, where a configuration says it: with neither they need
/// not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerAuth {
    /// `auth_file`: who is let in by lines of text.
    pub text: Option<UserPasswords>,
    /// `sasl_file`: who is let in by SASL.
    pub sasl: Option<UserPasswords>,
}

impl ServerAuth {
    /// Whether clients need not say who they are.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.text.is_none() && self.sasl.is_none()
    }

    /// The protocols in which clients can say who they are.
    pub(crate) fn protocol(&self) -> Protocol {
        match (&self.text, &self.sasl) {
            (Some(_), None) => Protocol::Text,
            (None, Some(_)) => Protocol::Binary,
            _ => Protocol::Auto,
        }
    }

    /// Whether a data block `user password` is right; `None` where it is none.
    pub(crate) fn admit_text(&self, block: &[u8]) -> Option<bool> {
        let nobody = UserPasswords::default();
        self.text.as_ref().unwrap_or(&nobody).admit_text(block)
    }

    /// Whether a message of the mechanism PLAIN is right.
    pub(crate) fn admit_plain(&self, message: &[u8]) -> bool {
        self.sasl
            .as_ref()
            .is_some_and(|users| users.admit_plain(message))
    }
}

impl UserPasswords {
    /// Reads a file's lines `user:password`.
    ///
    /// # Errors
    /// The number of a line that has no colon or is longer than 256 bytes, or 0 where there is no
    /// line.
    pub fn parse(text: &[u8]) -> Result<UserPasswords, usize> {
        let mut users = Vec::new();
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let colon = line.iter().position(|byte| *byte == b':');
            match colon {
                Some(colon) if line.len() < LINE_LENGTH_MAX => {
                    let (user, password) = line.split_at(colon);
                    let password = password.get(1..).unwrap_or_default();
                    users.push((user.to_vec(), password.to_vec()));
                }
                _ => return Err(number + 1),
            }
        }
        if users.is_empty() {
            return Err(0);
        }
        Ok(UserPasswords(users))
    }

    /// Whether a user has this password. How long it takes tells nothing of either but lengths.
    fn admit(&self, user: &[u8], password: &[u8]) -> bool {
        let mut admitted = false;
        for (known, secret) in &self.0 {
            admitted |= is_same(known, user) & is_same(secret, password);
        }
        admitted
    }

    /// Whether a data block `user password` is right; `None` where it is none.
    pub(crate) fn admit_text(&self, block: &[u8]) -> Option<bool> {
        let space = block.iter().position(|byte| *byte == b' ')?;
        let (user, password) = block.split_at(space);
        Some(self.admit(user, password.get(1..).unwrap_or_default()))
    }

    /// Whether a message of the mechanism PLAIN is right: who to act as, which must be nobody or
    /// the user, the user and the password, a zero byte between each. A realm behind the user's
    /// name is looked at where the file has one.
    pub(crate) fn admit_plain(&self, message: &[u8]) -> bool {
        let mut parts = message.splitn(3, |byte| *byte == 0);
        let (Some(as_whom), Some(user), Some(password)) =
            (parts.next(), parts.next(), parts.next())
        else {
            return false;
        };
        if !as_whom.is_empty() && as_whom != user {
            return false;
        }
        let bare = user.split(|byte| *byte == b'@').next().unwrap_or_default();
        self.admit(user, password) || (bare != user && self.admit(bare, password))
    }
}

/// Compares all bytes, whichever differ.
fn is_same(secret: &[u8], said: &[u8]) -> bool {
    let bytes = secret.iter().zip(said);
    let difference = bytes.fold(0, |sum, (secret, said)| black_box(sum | (secret ^ said)));
    secret.len() == said.len() && difference == 0
}

impl fmt::Debug for UserPasswords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "passwords of {} users", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_user_a_line() {
        let users = UserPasswords::parse(b"foo:bar\r\nbaaaz:quux:x\n\nlast:one").unwrap();
        assert_eq!(users.admit_text(b"foo bar"), Some(true));
        assert_eq!(users.admit_text(b"foo baz"), Some(false));
        assert_eq!(users.admit_text(b"foo barr"), Some(false));
        assert_eq!(users.admit_text(b"baaaz quux:x"), Some(true));
        assert_eq!(users.admit_text(b"last one"), Some(true));
        assert_eq!(users.admit_text(b"foobar"), None);
        assert_eq!(users.admit_text(b"foo "), Some(false));
        assert!(!format!("{users:?}").contains("bar"));
        assert_eq!(UserPasswords::parse(b"foo:bar\nnonsense\n"), Err(2));
        assert_eq!(UserPasswords::parse(b"\n\n"), Err(0));
        let long = format!("u:{}", "p".repeat(LINE_LENGTH_MAX));
        assert_eq!(UserPasswords::parse(long.as_bytes()), Err(1));
    }

    /// Messages after RFC 4616, section 4.
    #[test]
    fn plain_has_three_parts() {
        let users = UserPasswords::parse(b"tim:tanstaaftanstaaf").unwrap();
        assert!(users.admit_plain(b"\0tim\0tanstaaftanstaaf"));
        assert!(users.admit_plain(b"tim\0tim\0tanstaaftanstaaf"));
        assert!(users.admit_plain(b"\0tim@realm\0tanstaaftanstaaf"));
        assert!(!users.admit_plain(b"Ursel\0tim\0tanstaaftanstaaf"));
        for message in [&b""[..], b"\0tim", b"\0tim\0", b"\0tim\0x", b"\0\0"] {
            assert!(!users.admit_plain(message), "{}", message.escape_ascii());
        }
        let realm = UserPasswords::parse(b"tim@a:secret").unwrap();
        assert!(realm.admit_plain(b"\0tim@a\0secret") && !realm.admit_plain(b"\0tim@b\0secret"));
    }
}
