//! MD5-crypt by Poul-Henning Kamp: `$1$` of crypt(3), and `$apr1$` of Apache, which only differs in
//! its name.

use md5::{Digest, Md5};

use super::password::append_base64;

/// The number of rounds, which is fixed.
const ROUNDS: u32 = 1000;

/// The number of significant characters of the salt.
const SALT_LENGTH_MAX: usize = 8;

/// The order in which the digest's bytes are encoded, three at a time, the last alone.
const ORDER: [[usize; 3]; 5] = [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]];

/// The hash of a password with the salt of a stored hash. `magic` is the name of the scheme, with
/// which `setting` begins.
pub(super) fn crypt(password: &[u8], setting: &[u8], magic: &[u8]) -> Vec<u8> {
    let salt = setting.get(magic.len()..).unwrap_or_default();
    let length = salt
        .iter()
        .take(SALT_LENGTH_MAX)
        .take_while(|byte| **byte != b'$')
        .count();
    let salt = salt.get(..length).unwrap_or_default();
    let digest = digest(password, salt, magic);
    let mut hash = [magic, salt, b"$"].concat();
    for [high, middle, low] in ORDER {
        // invariant: all indices lie below 16
        let bits =
            u32::from(digest[high]) << 16 | u32::from(digest[middle]) << 8 | u32::from(digest[low]);
        append_base64(bits, 4, &mut hash);
    }
    append_base64(digest[11].into(), 2, &mut hash);
    hash
}

fn digest(password: &[u8], salt: &[u8], magic: &[u8]) -> [u8; 16] {
    let inner = Md5::new()
        .chain_update(password)
        .chain_update(salt)
        .chain_update(password)
        .finalize();
    let mut md5 = Md5::new()
        .chain_update(password)
        .chain_update(magic)
        .chain_update(salt);
    for part in password.chunks(inner.len()) {
        md5.update(inner.get(..part.len()).unwrap_or_default());
    }
    let mut bits = password.len();
    while bits > 0 {
        match bits & 1 {
            1 => md5.update([0]),
            _ => md5.update(password.get(..1).unwrap_or_default()),
        }
        bits >>= 1;
    }
    let mut last: [u8; 16] = md5.finalize().into();
    for round in 0..ROUNDS {
        let (first, second) = match round & 1 {
            1 => (password, &last[..]),
            _ => (&last[..], password),
        };
        let mut md5 = Md5::new().chain_update(first);
        if round % 3 != 0 {
            md5.update(salt);
        }
        if round % 7 != 0 {
            md5.update(password);
        }
        last = md5.chain_update(second).finalize().into();
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from crypt(3) and from `openssl passwd -apr1`.
    #[test]
    fn hashes_are_those_of_other_implementations() {
        for (password, setting, magic) in [
            ("password", "$1$salt$qJH7.N4xYta3aEG/dfqo/0", "$1$"),
            (
                "password",
                "$apr1$abcdefgh$FBwExRW4dCc8aL.OvjpIE1",
                "$apr1$",
            ),
            ("password", "$apr1$salt$Xxd1irWT9ycqoYxGFn4cb.", "$apr1$"),
        ] {
            let hash = crypt(password.as_bytes(), setting.as_bytes(), magic.as_bytes());
            assert_eq!(String::from_utf8(hash).unwrap(), setting);
        }
    }
}
