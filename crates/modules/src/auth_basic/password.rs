//! Stored passwords: the scheme of the hash, and whether a password matches.
//!
//! nginx's own schemes (`$apr1$`, `{PLAIN}`, `{SSHA}`, `{SHA}`), and those of crypt(3) on Linux
//! that are in use: traditional DES, `$1$`, `$2a$` `$2b$` `$2x$` `$2y$`, `$5$`, `$6$`, `$y$`. A
//! hash that crypt(3) rejects matches no password.

use proto::base64::{self, Alphabet};
use sha_crypt::{PasswordVerifier, ShaCrypt};
use sha1::{Digest, Sha1};
use yescrypt::Yescrypt;

use super::{des, md5};

/// The characters of crypt(3)'s own Base64 in the order of their values.
pub(super) const BASE64: &[u8; 64] =
    b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Appends the lowest bits as characters of six bits, the lowest first.
pub(super) fn append_base64(mut bits: u32, characters: usize, out: &mut Vec<u8>) {
    for _ in 0..characters {
        // invariant: the mask leaves an index below 64
        out.push(BASE64[(bits & 63) as usize]);
        bits >>= 6;
    }
}

/// The value of a character of crypt(3)'s Base64.
pub(super) fn value_of(character: u8) -> Option<u32> {
    let value = BASE64.iter().position(|byte| *byte == character)?;
    Some(value as u32)
}

/// The result of comparing a password with a stored hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The password matches the hash.
    Right,
    /// The password does not match the hash.
    Wrong,
    /// The scheme is not supported here; crypt(3) may support it.
    Unknown,
}

/// The scheme of a stored password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `{PLAIN}`: the password itself.
    Plain,
    /// A digest by SHA-1 (`{SHA}`).
    Sha,
    /// `{SSHA}`: SHA-1 with a salt.
    SaltedSha,
    /// `$apr1$`: MD5-crypt with Apache's name.
    Apache,
    /// A hash by MD5-crypt (`$1$`).
    Md5,
    /// `$2a$` and its fixed variants.
    Bcrypt,
    /// A hash by SHA-crypt (`$5$` and `$6$`).
    ShaCrypt,
    /// A hash by yescrypt (`$y$`).
    Yescrypt,
    /// Two characters of salt and eleven of hash.
    Des,
    /// Any other scheme.
    Other,
}

impl Scheme {
    /// The scheme that a stored password names.
    pub fn of(stored: &[u8]) -> Scheme {
        const NAMES: [(&[u8], Scheme); 13] = [
            (b"$apr1$", Scheme::Apache),
            (b"{PLAIN}", Scheme::Plain),
            (b"{SSHA}", Scheme::SaltedSha),
            (b"{SHA}", Scheme::Sha),
            (b"$1$", Scheme::Md5),
            (b"$2a$", Scheme::Bcrypt),
            (b"$2b$", Scheme::Bcrypt),
            (b"$2x$", Scheme::Bcrypt),
            (b"$2y$", Scheme::Bcrypt),
            (b"$5$", Scheme::ShaCrypt),
            (b"$6$", Scheme::ShaCrypt),
            (b"$y$", Scheme::Yescrypt),
            (b"$", Scheme::Other),
        ];
        let named = NAMES.iter().find(|(name, _)| stored.starts_with(name));
        named.map_or(Scheme::Des, |(_, scheme)| *scheme)
    }

    /// Whether hashing takes so long that it would delay other requests.
    pub fn is_expensive(self) -> bool {
        !matches!(
            self,
            Scheme::Plain | Scheme::Sha | Scheme::SaltedSha | Scheme::Other
        )
    }

    /// Checks whether the password matches the stored hash.
    pub fn verify(self, stored: &[u8], password: &[u8]) -> Check {
        let right = match self {
            Scheme::Plain => equal(stored, &[b"{PLAIN}", password].concat()),
            Scheme::Sha => equal(stored, &labelled(b"{SHA}", &Sha1::digest(password))),
            Scheme::SaltedSha => equal(stored, &salted_sha(stored, password)),
            Scheme::Apache => equal(stored, &md5::crypt(password, stored, b"$apr1$")),
            Scheme::Md5 => equal(stored, &md5::crypt(password, stored, b"$1$")),
            Scheme::Des => {
                let hash = des::crypt(password, stored);
                hash.is_some_and(|hash| equal(stored, &hash))
            }
            Scheme::Bcrypt => {
                text(stored).is_some_and(|stored| bcrypt::verify(password, stored).unwrap_or(false))
            }
            Scheme::ShaCrypt => text(stored).is_some_and(|stored| {
                ShaCrypt::default()
                    .verify_password(password, stored)
                    .is_ok()
            }),
            Scheme::Yescrypt => text(stored).is_some_and(|stored| {
                Yescrypt::default()
                    .verify_password(password, stored)
                    .is_ok()
            }),
            Scheme::Other => return Check::Unknown,
        };
        if right { Check::Right } else { Check::Wrong }
    }
}

fn text(stored: &[u8]) -> Option<&str> {
    std::str::from_utf8(stored).ok()
}

fn labelled(label: &[u8], digest: &[u8]) -> Vec<u8> {
    let mut out = label.to_vec();
    base64::encode(digest, &mut out);
    out
}

/// The digest with the stored salt, which follows the stored digest.
fn salted_sha(stored: &[u8], password: &[u8]) -> Vec<u8> {
    const LABEL: &[u8] = b"{SSHA}";
    const DIGEST_LENGTH: usize = 20;
    let mut decoded = Vec::new();
    let encoded = stored.get(LABEL.len()..).unwrap_or_default();
    let whole = base64::decode(encoded, Alphabet::Standard, &mut decoded);
    let salt = decoded.get(DIGEST_LENGTH..).filter(|_| whole);
    let salt = salt.unwrap_or_default();
    let digest = Sha1::new().chain_update(password).chain_update(salt);
    labelled(LABEL, &[&digest.finalize(), salt].concat())
}

/// Compares in constant time.
fn equal(one: &[u8], other: &[u8]) -> bool {
    let difference = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by crypt(3) of libxcrypt, `openssl passwd` and, for the labelled ones, nginx's suite.
    const STORED: [&str; 12] = [
        "{PLAIN}password",
        "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=",
        "{SSHA}yI6cZwQadOA1e+/f+T+H3eCQQhRzYWx0",
        "$apr1$salt$Xxd1irWT9ycqoYxGFn4cb.",
        "$1$salt$qJH7.N4xYta3aEG/dfqo/0",
        "$2y$05$abcdefghijklmnopqrstuuWG29KuyeAicPCJODk1zjyGvyQUU2awu",
        "$5$saltstring$OH4IDuTlsuTYPdED1gsuiRMyTAwNlRWyA6Xr3I4/dQ5",
        "$6$saltstring$adDbXsJjcDlq2662QPgd.tkSOVmnG9Tt3oXl4HR60SusC3AGjirnDenVZp3DGwLwqy6iYKCzannhaX9DR72nN1",
        "$6$rounds=1234$saltstring$HTiUHYGuz2ikmv1xaKTHxieJWkBJKPiG6T/MJlvPsukwvXPTlAJd4x8nEHbVjx5SJORkplky9i7nqO5A7RFi30",
        "$y$j75$F5Jx5fExrKuPp53xLKQ..1$6Ttv8PR0mzms/.RLVEgTO2JmLY0FDC7Cfd.UUAxsEO8",
        "sa3tHJ3/KuYvI",
        "{SSHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", // no salt
    ];

    fn verify(stored: &str, password: &str) -> Check {
        Scheme::of(stored.as_bytes()).verify(stored.as_bytes(), password.as_bytes())
    }

    #[test]
    fn every_scheme_knows_its_password() {
        for stored in STORED {
            assert_eq!(verify(stored, "password"), Check::Right, "{stored}");
            assert_eq!(verify(stored, "Password"), Check::Wrong, "{stored}");
            assert_eq!(verify(stored, ""), Check::Wrong, "{stored}");
        }
    }

    #[test]
    fn what_is_broken_fits_no_password() {
        for stored in [
            "",
            "*",
            "!locked",
            "$1$",
            "$apr1$",
            "$5$",
            "$5$$",
            "$6$rounds=x$s$h",
            "$2y$",
            "$2y$05$short",
            "$y$",
            "$y$j9T$",
            "{SHA}",
            "{SHA}_____",
            "{SSHA}",
            "{SSHA}Zm9vCg==",
            "plain",
        ] {
            for password in ["", "1", stored] {
                assert_eq!(
                    verify(stored, password),
                    Check::Wrong,
                    "{stored} {password}"
                );
            }
        }
        assert_eq!(
            verify("$gy$j75$F5Jx5fExrKuPp53xLKQ..1$", "x"),
            Check::Unknown
        );
    }
}
