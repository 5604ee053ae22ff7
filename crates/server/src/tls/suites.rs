//! Cipher suites, groups and versions by OpenSSL's names, and which of them there are here.
//!
//! <https://docs.openssl.org/master/man1/openssl-ciphers/>. A configuration written for OpenSSL names much
//! that rustls does not have: CBC, DHE, Camellia. Such names choose nothing; a list is an error only
//! where nothing of it remains, as with OpenSSL.

use rustls::crypto::{SupportedKxGroup, aws_lc_rs};
use rustls::{CipherSuite, NamedGroup, SupportedCipherSuite};

/// A cipher suite with what OpenSSL's keywords say of it.
struct Known {
    suite: SupportedCipherSuite,
    /// OpenSSL's name.
    name: &'static str,
    /// Keywords that it answers to.
    keywords: &'static [&'static str],
}

const AES_256: &[&str] = &["AES", "AES256", "AESGCM"];
const AES_128: &[&str] = &["AES", "AES128", "AESGCM"];
const CHACHA: &[&str] = &["CHACHA20"];
/// What every suite here is.
const COMMON: &[&str] = &[
    "ALL",
    "DEFAULT",
    "HIGH",
    "TLSV1.2",
    "ECDHE",
    "EECDH",
    "KECDHE",
    "KEECDH",
    "ECDH",
    "AEAD",
    "FIPS",
    "SUITEB128",
];

/// The suites of TLS 1.2, best first.
static KNOWN: [(Known, &[&str]); 6] = {
    use aws_lc_rs::cipher_suite::{
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 as ECDSA_128,
        TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 as ECDSA_256,
        TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 as ECDSA_CHACHA,
        TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 as RSA_128,
        TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 as RSA_256,
        TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 as RSA_CHACHA,
    };
    const fn known(
        suite: SupportedCipherSuite,
        name: &'static str,
        keywords: &'static [&'static str],
    ) -> Known {
        Known {
            suite,
            name,
            keywords,
        }
    }
    const ECDSA: &[&str] = &["ECDSA", "AECDSA"];
    const RSA: &[&str] = &["RSA", "ARSA"];
    [
        (
            known(ECDSA_256, "ECDHE-ECDSA-AES256-GCM-SHA384", AES_256),
            ECDSA,
        ),
        (known(RSA_256, "ECDHE-RSA-AES256-GCM-SHA384", AES_256), RSA),
        (
            known(ECDSA_128, "ECDHE-ECDSA-AES128-GCM-SHA256", AES_128),
            ECDSA,
        ),
        (known(RSA_128, "ECDHE-RSA-AES128-GCM-SHA256", AES_128), RSA),
        (
            known(ECDSA_CHACHA, "ECDHE-ECDSA-CHACHA20-POLY1305", CHACHA),
            ECDSA,
        ),
        (
            known(RSA_CHACHA, "ECDHE-RSA-CHACHA20-POLY1305", CHACHA),
            RSA,
        ),
    ]
};

/// The suites of TLS 1.3, by the one name that they have.
const TLS13: [(SupportedCipherSuite, &str); 3] = [
    (
        aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
        "TLS_AES_256_GCM_SHA384",
    ),
    (
        aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        "TLS_CHACHA20_POLY1305_SHA256",
    ),
    (
        aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
        "TLS_AES_128_GCM_SHA256",
    ),
];

/// What a list of names comes to.
#[derive(Debug)]
pub struct Chosen<T> {
    /// What of it there is, in the list's order.
    pub found: Vec<T>,
    /// Names that choose nothing here.
    pub missing: Vec<String>,
}

impl<T> Default for Chosen<T> {
    fn default() -> Chosen<T> {
        Chosen {
            found: Vec::new(),
            missing: Vec::new(),
        }
    }
}

/// The suites of TLS 1.2 that a list of OpenSSL's names and keywords chooses: `ssl_ciphers`.
pub fn ciphers(list: &str) -> Chosen<SupportedCipherSuite> {
    let mut chosen: Vec<usize> = Vec::new();
    let mut killed = [false; KNOWN.len()];
    let mut missing = Vec::new();
    let parts = list.split([':', ',', ' ', ';']);
    for part in parts.filter(|part| !part.is_empty() && !part.starts_with('@')) {
        let (operator, name) = match part.split_at_checked(1) {
            Some((first @ ("!" | "-" | "+"), name)) => (first, name),
            _ => ("", part),
        };
        let fitting: Vec<usize> = (0..KNOWN.len()).filter(|at| fits(*at, name)).collect();
        match operator {
            "!" | "-" => {
                chosen.retain(|at| !fitting.contains(at));
                if operator == "!" {
                    for at in fitting {
                        killed[at] = true; // invariant: below `KNOWN.len()`
                    }
                }
            }
            "+" => {
                let (moved, rest): (Vec<usize>, Vec<usize>) =
                    chosen.iter().partition(|at| fitting.contains(at));
                chosen = [rest, moved].concat();
            }
            _ => {
                let is_name = TLS13.iter().any(|(_, known)| *known == name);
                if fitting.is_empty() && !is_name {
                    missing.push(name.to_owned());
                }
                let fresh = fitting.into_iter().filter(|at| !killed[*at]);
                let fresh: Vec<usize> = fresh.filter(|at| !chosen.contains(at)).collect();
                chosen.extend(fresh);
            }
        }
    }
    Chosen {
        found: chosen.into_iter().map(|at| KNOWN[at].0.suite).collect(),
        missing,
    }
}

/// Whether a suite answers to a name, or to all of several keywords joined by `+`.
fn fits(at: usize, name: &str) -> bool {
    let Some((known, authentication)) = KNOWN.get(at) else {
        return false;
    };
    if known.name == name || iana_name(known.suite.suite()) == name {
        return true;
    }
    name.split('+').all(|keyword| {
        let keyword = keyword.to_ascii_uppercase();
        [COMMON, known.keywords, authentication]
            .concat()
            .contains(&keyword.as_str())
    })
}

/// The suites of TLS 1.3 that a list names, separated by colons (`Ciphersuites`).
pub fn ciphers_of_tls13(list: &str) -> Chosen<SupportedCipherSuite> {
    let mut chosen = Chosen::default();
    for name in list.split(':').filter(|name| !name.is_empty()) {
        match TLS13.iter().find(|(_, known)| *known == name) {
            Some((suite, _)) => chosen.found.push(*suite),
            None => chosen.missing.push(name.to_owned()),
        }
    }
    chosen
}

/// All suites of TLS 1.3.
pub fn all_of_tls13() -> Vec<SupportedCipherSuite> {
    TLS13.iter().map(|(suite, _)| *suite).collect()
}

/// What IANA calls a suite of TLS 1.2, as OpenSSL also takes it.
fn iana_name(suite: CipherSuite) -> &'static str {
    suite.as_str().unwrap_or_default()
}

/// OpenSSL's name of a suite, as `$ssl_cipher` shows it; `None` for one that is not ours.
pub fn cipher_name(suite: CipherSuite) -> Option<&'static str> {
    let of_tls12 = KNOWN.iter().map(|(known, _)| (known.suite, known.name));
    let mut all = of_tls12.chain(TLS13);
    all.find(|(known, _)| known.suite() == suite)
        .map(|(_, name)| name)
}

/// The groups for the key exchange that a list names, best first: `ssl_ecdh_curve`. `auto` is
/// every group there is.
pub fn groups(list: &str) -> Chosen<&'static dyn SupportedKxGroup> {
    let mut chosen = Chosen::default();
    if list == "auto" {
        chosen.found = super::provider().kx_groups.clone();
        return chosen;
    }
    // OpenSSL 3.5: `?` before a name that may be unknown, `*` before one to send a share for,
    // `/` between tuples.
    let names = list.split([':', '/']).filter(|name| !name.is_empty());
    for name in names.map(|name| name.trim_start_matches(['?', '*'])) {
        let group = group_number(name).and_then(|number| {
            let all = aws_lc_rs::ALL_KX_GROUPS.iter();
            all.copied().find(|group| group.name() == number)
        });
        match group {
            Some(group) => chosen.found.push(group),
            None => chosen.missing.push(name.to_owned()),
        }
    }
    chosen
}

fn group_number(name: &str) -> Option<NamedGroup> {
    Some(match name.to_ascii_lowercase().as_str() {
        "x25519" => NamedGroup::X25519,
        "prime256v1" | "secp256r1" | "p-256" => NamedGroup::secp256r1,
        "secp384r1" | "p-384" => NamedGroup::secp384r1,
        "secp521r1" | "p-521" => NamedGroup::secp521r1,
        "x25519mlkem768" => NamedGroup::X25519MLKEM768,
        "secp256r1mlkem768" => NamedGroup::secp256r1MLKEM768,
        "mlkem768" => NamedGroup::MLKEM768,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Vec<&'static str> {
        let found = ciphers(list).found;
        let name = |suite: &SupportedCipherSuite| cipher_name(suite.suite()).unwrap();
        found.iter().map(name).collect()
    }

    #[test]
    fn names_of_single_ciphers() {
        let list = "ECDHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES128-SHA:ECDHE-ECDSA-CHACHA20-POLY1305";
        assert_eq!(
            names(list),
            [
                "ECDHE-RSA-AES128-GCM-SHA256",
                "ECDHE-ECDSA-CHACHA20-POLY1305"
            ]
        );
        assert_eq!(ciphers(list).missing, ["DHE-RSA-AES128-SHA"]);
        assert_eq!(
            names("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
            ["ECDHE-RSA-AES128-GCM-SHA256"]
        );
    }

    #[test]
    fn keywords_and_operators() {
        assert_eq!(names("HIGH:!aNULL:!MD5").len(), 6);
        assert_eq!(names("ECDHE+AESGCM:!ECDSA").len(), 2);
        assert_eq!(
            names("aRSA:!AES256:-CHACHA20"),
            ["ECDHE-RSA-AES128-GCM-SHA256"]
        );
        let moved = names("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384:+AES128");
        assert_eq!(
            moved,
            ["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"]
        );
        // What is killed does not come back.
        assert!(names("!AES:!CHACHA20:HIGH").is_empty());
        assert_eq!(ciphers("ALL:@STRENGTH").missing, [""; 0]);
    }

    #[test]
    fn curves() {
        let found = |list| -> Vec<NamedGroup> {
            groups(list)
                .found
                .iter()
                .map(|group| group.name())
                .collect()
        };
        assert_eq!(found("auto").first(), Some(&NamedGroup::X25519MLKEM768));
        assert_eq!(
            found("secp384r1:prime256v1:X448"),
            [NamedGroup::secp384r1, NamedGroup::secp256r1]
        );
        assert_eq!(groups("X448").missing, ["X448"]);
    }
}
