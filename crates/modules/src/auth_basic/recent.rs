//! Caches passwords that were right a moment ago: browsers send them with every request, and a good
//! hash takes many milliseconds.
//!
//! Neither passwords nor their stored hashes are kept, only a digest of both with a secret of this
//! process. If the stored hash changes, so does the digest.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use base::hash::Map;
use sha2::{Digest, Sha256};

/// How long a password that was right is not hashed again.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// Maximum number of passwords that a thread remembers.
const KEPT_MAX: usize = 1024;

/// The digest of a password and the stored hash that it matches.
pub(super) type Proof = [u8; 32];

thread_local! {
    static RECENT: RefCell<Map<Proof, Instant>> = RefCell::default();
}

/// The digest of this password and this stored hash.
pub(super) fn proof(stored: &[u8], password: &[u8]) -> Proof {
    let mut digest = Sha256::new();
    digest.update(secret());
    digest.update((stored.len() as u64).to_le_bytes());
    digest.update(stored);
    digest.update(password);
    digest.finalize().into()
}

/// Whether the password was right a moment ago.
pub(super) fn is_known(proof: &Proof) -> bool {
    RECENT.with_borrow(|recent| {
        let checked = recent.get(proof);
        checked.is_some_and(|checked| engine::now().saturating_duration_since(*checked) < KEPT_FOR)
    })
}

/// Notes that the password is right.
pub(super) fn remember(proof: Proof) {
    RECENT.with_borrow_mut(|recent| {
        let now = engine::now();
        if recent.len() >= KEPT_MAX {
            recent.retain(|_, checked| now.saturating_duration_since(*checked) < KEPT_FOR);
        }
        if recent.len() < KEPT_MAX {
            recent.insert(proof, now);
        }
    });
}

/// A secret of this process. Without the system's entropy, addresses and times are used, which
/// suffices since a digest never leaves the process.
fn secret() -> &'static [u8; 32] {
    static SECRET: OnceLock<[u8; 32]> = OnceLock::new();
    SECRET.get_or_init(|| {
        let mut secret = [0; 32];
        let filled = rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty());
        if filled.is_err() {
            for (index, part) in secret.chunks_mut(8).enumerate() {
                part.copy_from_slice(&base::hash::of(&index.to_le_bytes()).to_le_bytes());
            }
        }
        secret
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_hash_or_password_is_not_known() {
        let known = proof(b"$6$salt$hash", b"secret");
        remember(known);
        assert!(is_known(&proof(b"$6$salt$hash", b"secret")));
        assert!(!is_known(&proof(b"$6$salt$hash", b"Secret")));
        assert!(!is_known(&proof(b"$6$salt$other", b"secret")));
        assert!(!is_known(&proof(b"$6$salt$has", b"hsecret")));
    }
}
