//! Cipher suites, groups and versions by OpenSSL's names, and which of them Tidegate supports.
//!
//! <https://docs.openssl.org/master/man1/openssl-ciphers/>. A configuration written for OpenSSL may
//! name suites that rustls does not support: CBC, DHE, Camellia. Such names select nothing. As with
//! OpenSSL, a list is an error if it selects nothing, or if it is malformed.

use rustls::crypto::{SupportedKxGroup, aws_lc_rs};
use rustls::{CipherSuite, NamedGroup, SupportedCipherSuite};

/// A cipher suite with the OpenSSL keywords that select it.
struct Suite {
    suite: SupportedCipherSuite,
    name: &'static str,
    /// The keywords that select the suite.
    keywords: &'static [&'static str],
}

const AES_256: &[&str] = &["AES", "AES256", "AESGCM", "FIPS"];
const AES_128: &[&str] = &["AES", "AES128", "AESGCM", "FIPS"];
const CHACHA: &[&str] = &["CHACHA20"];
/// Keywords that select every supported suite.
const COMMON: &[&str] = &[
    "ALL", "HIGH", "TLSv1.2", "ECDHE", "EECDH", "kECDHE", "kEECDH", "ECDH",
];

/// OpenSSL keywords that select no supported suite. `RSA` also means RSA key exchange.
const OTHER_KEYWORDS: &[&str] = &[
    "3DES",
    "ADH",
    "AECDH",
    "AESCCM",
    "AESCCM8",
    "ARIA",
    "ARIA128",
    "ARIA256",
    "ARIAGCM",
    "CAMELLIA",
    "CAMELLIA128",
    "CAMELLIA256",
    "CBC",
    "COMPLEMENTOFALL",
    "COMPLEMENTOFDEFAULT",
    "DH",
    "DHE",
    "DSS",
    "EDH",
    "LOW",
    "MD5",
    "MEDIUM",
    "NULL",
    "PSK",
    "RSA",
    "SHA",
    "SHA1",
    "SHA256",
    "SHA384",
    "SRP",
    "SSLv3",
    "TLSv1",
    "TLSv1.0",
    "aDSS",
    "aNULL",
    "aPSK",
    "aSRP",
    "eNULL",
    "kDHE",
    "kDHEPSK",
    "kECDHEPSK",
    "kEDH",
    "kPSK",
    "kRSA",
    "kRSAPSK",
    "kSRP",
];

/// The hyphen-separated parts of OpenSSL's names of unsupported suites.
const PARTS: &[&str] = &[
    "3DES",
    "ADH",
    "AECDH",
    "AES128",
    "AES256",
    "ARIA128",
    "ARIA256",
    "CAMELLIA128",
    "CAMELLIA256",
    "CBC",
    "CBC3",
    "CCM",
    "CCM8",
    "CHACHA20",
    "DES",
    "DHE",
    "DSS",
    "ECDHE",
    "ECDSA",
    "EDE",
    "EDH",
    "GCM",
    "MD5",
    "NULL",
    "POLY1305",
    "PSK",
    "RSA",
    "SHA",
    "SHA256",
    "SHA384",
    "SRP",
];

/// The modes of Suite B and the suites that they select. A mode must be the first name of the list,
/// and the rest of the list is ignored. A name precedes its prefixes, so that the first match is
/// the longest.
const SUITE_B: [(&str, &str); 4] = [
    ("SUITEB128ONLY", "ECDHE-ECDSA-AES128-GCM-SHA256"),
    ("SUITEB128C2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
    (
        "SUITEB128",
        "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384",
    ),
    ("SUITEB192", "ECDHE-ECDSA-AES256-GCM-SHA384"),
];

/// OpenSSL's reason for refusing a cipher list with an invalid command.
const INVALID_COMMAND: &str = "error:0A000118:SSL routines::invalid command";

/// The suites of TLS 1.2, in order of preference.
static SUITES: [(Suite, &[&str]); 6] = {
    use aws_lc_rs::cipher_suite::{
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 as ECDSA_128,
        TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 as ECDSA_256,
        TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 as ECDSA_CHACHA,
        TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 as RSA_128,
        TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 as RSA_256,
        TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 as RSA_CHACHA,
    };
    const fn suite(
        suite: SupportedCipherSuite,
        name: &'static str,
        keywords: &'static [&'static str],
    ) -> Suite {
        Suite {
            suite,
            name,
            keywords,
        }
    }
    const ECDSA: &[&str] = &["ECDSA", "aECDSA"];
    const RSA: &[&str] = &["aRSA"];
    [
        (
            suite(ECDSA_256, "ECDHE-ECDSA-AES256-GCM-SHA384", AES_256),
            ECDSA,
        ),
        (suite(RSA_256, "ECDHE-RSA-AES256-GCM-SHA384", AES_256), RSA),
        (
            suite(ECDSA_128, "ECDHE-ECDSA-AES128-GCM-SHA256", AES_128),
            ECDSA,
        ),
        (suite(RSA_128, "ECDHE-RSA-AES128-GCM-SHA256", AES_128), RSA),
        (
            suite(ECDSA_CHACHA, "ECDHE-ECDSA-CHACHA20-POLY1305", CHACHA),
            ECDSA,
        ),
        (
            suite(RSA_CHACHA, "ECDHE-RSA-CHACHA20-POLY1305", CHACHA),
            RSA,
        ),
    ]
};

/// The suites of TLS 1.3 with their names. OpenSSL's names are those of IANA.
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

/// The result of parsing a list of names.
#[derive(Debug)]
pub struct SelectedSuites<T> {
    /// The supported entries, in the list's order.
    pub found: Vec<T>,
    /// Names that select nothing.
    pub missing: Vec<String>,
    /// OpenSSL's text for the reason why it refuses the whole list; empty if OpenSSL gives no
    /// reason, `None` if it accepts the list.
    pub refused: Option<String>,
}

impl<T> Default for SelectedSuites<T> {
    fn default() -> SelectedSuites<T> {
        SelectedSuites {
            found: Vec::new(),
            missing: Vec::new(),
            refused: None,
        }
    }
}

/// The suites of TLS 1.2 that a list of OpenSSL's names and keywords selects: `ssl_ciphers`.
pub fn ciphers(list: &str) -> SelectedSuites<SupportedCipherSuite> {
    let suite_b = SUITE_B.iter().find(|(name, _)| list.starts_with(name));
    let list = suite_b.map_or(list, |(_, suites)| suites);
    let mut order = Order::default();
    let list = match list.strip_prefix("DEFAULT") {
        Some(behind) => {
            order.apply(Operator::Add, &(0..SUITES.len()).collect::<Vec<_>>());
            behind
        }
        None => list,
    };
    let mut parts = list.split([':', ',', ' ', ';']);
    let is_malformed = parts.any(|part| order.take(part).is_none());
    SelectedSuites {
        found: order.suites(),
        missing: order.missing,
        refused: is_malformed.then(|| INVALID_COMMAND.to_owned()),
    }
}

/// The operation that a command of a cipher list applies to the suites that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    /// Appends the suites that are not selected yet.
    Add,
    /// `-`: removes the suites.
    Remove,
    /// `!`: removes the suites permanently.
    Kill,
    /// `+`: moves the selected suites to the end.
    Move,
}

/// The selected suites while a list is parsed, as indexes into [`SUITES`].
#[derive(Default)]
struct Order {
    chosen: Vec<usize>,
    killed: [bool; SUITES.len()],
    missing: Vec<String>,
}

impl Order {
    /// Applies the text between two separators: usually one command, but further commands may
    /// follow without a separator (`HIGH!aNULL`, `HIGH@STRENGTH`). `None` if OpenSSL refuses the
    /// text.
    fn take(&mut self, part: &str) -> Option<()> {
        let mut rest = part;
        while !rest.is_empty() {
            if let Some(special) = rest.strip_prefix('@') {
                let (name, _) = split_name(special);
                let level = name.strip_prefix("SECLEVEL=");
                let is_level = level.is_some_and(|level| matches!(level.as_bytes(), [b'0'..=b'5']));
                return (name == "STRENGTH" || is_level).then_some(());
            }
            let (operator, names) = match rest.split_at_checked(1) {
                Some(("!", names)) => (Operator::Kill, names),
                Some(("-", names)) => (Operator::Remove, names),
                Some(("+", names)) => (Operator::Move, names),
                _ => (Operator::Add, rest),
            };
            let mut fitting: Vec<usize> = (0..SUITES.len()).collect();
            let mut behind = names;
            loop {
                let (name, next) = split_name(behind);
                if name.is_empty() {
                    return None;
                }
                if !is_known(name) {
                    // Text after a name that OpenSSL does not know is skipped with the name.
                    if operator == Operator::Add && !is_of_tls13(name) {
                        self.missing.push(names.to_owned());
                    }
                    return Some(());
                }
                fitting.retain(|at| fits(*at, name));
                behind = next;
                match next.strip_prefix('+') {
                    Some(further) => behind = further,
                    None => break,
                }
            }
            if operator == Operator::Add && fitting.is_empty() {
                let text = names.strip_suffix(behind).unwrap_or(names);
                self.missing.push(text.to_owned());
            }
            self.apply(operator, &fitting);
            rest = behind;
        }
        Some(())
    }

    fn apply(&mut self, operator: Operator, fitting: &[usize]) {
        match operator {
            Operator::Add => {
                let fresh = fitting.iter().copied();
                // invariant: each index is below `SUITES.len()`
                let fresh = fresh.filter(|at| !self.killed[*at] && !self.chosen.contains(at));
                let fresh: Vec<usize> = fresh.collect();
                self.chosen.extend(fresh);
            }
            Operator::Remove | Operator::Kill => {
                self.chosen.retain(|at| !fitting.contains(at));
                if operator == Operator::Kill {
                    for at in fitting {
                        self.killed[*at] = true; // invariant: below `SUITES.len()`
                    }
                }
            }
            Operator::Move => {
                let (moved, rest): (Vec<usize>, Vec<usize>) =
                    self.chosen.iter().partition(|at| fitting.contains(at));
                self.chosen = [rest, moved].concat();
            }
        }
    }

    fn suites(&self) -> Vec<SupportedCipherSuite> {
        let known = self.chosen.iter().filter_map(|at| SUITES.get(*at));
        known.map(|(known, _)| known.suite).collect()
    }
}

/// The leading name or keyword, and the rest.
fn split_name(text: &str) -> (&str, &str) {
    let is_of_name =
        |character: char| character.is_ascii_alphanumeric() || "-_.=".contains(character);
    let end = text.find(|character| !is_of_name(character));
    text.split_at(end.unwrap_or(text.len()))
}

/// Whether a name or keyword selects the suite with this index.
fn fits(at: usize, name: &str) -> bool {
    SUITES.get(at).is_some_and(|(known, authentication)| {
        known.name == name
            || iana_name(known.suite.suite()) == name
            || COMMON.contains(&name)
            || known.keywords.contains(&name)
            || authentication.contains(&name)
    })
}

/// Whether OpenSSL knows this name of a TLS 1.2 suite, or this keyword.
fn is_known(name: &str) -> bool {
    let is_name = || name.contains('-') && name.split('-').all(|part| PARTS.contains(&part));
    (0..SUITES.len()).any(|at| fits(at, name)) || OTHER_KEYWORDS.contains(&name) || is_name()
}

/// Whether OpenSSL knows all names and keywords that `+` combines in this text.
pub fn are_known(names: &str) -> bool {
    names.split('+').all(is_known)
}

/// Whether a name is a suite of TLS 1.3, which these lists do not select.
fn is_of_tls13(name: &str) -> bool {
    TLS13.iter().any(|(_, known)| *known == name)
}

/// The suites of TLS 1.3 in a colon-separated list (`Ciphersuites`).
pub fn ciphers_of_tls13(list: &str) -> SelectedSuites<SupportedCipherSuite> {
    let mut chosen = SelectedSuites::default();
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

/// The IANA name of a TLS 1.2 suite, which OpenSSL also accepts.
fn iana_name(suite: CipherSuite) -> &'static str {
    suite.as_str().unwrap_or_default()
}

/// OpenSSL's name of a suite, as `$ssl_cipher` shows it; `None` for an unsupported suite.
pub fn cipher_name(suite: CipherSuite) -> Option<&'static str> {
    let of_tls12 = SUITES.iter().map(|(known, _)| (known.suite, known.name));
    let mut all = of_tls12.chain(TLS13);
    all.find(|(known, _)| known.suite() == suite)
        .map(|(_, name)| name)
}

/// The key exchange groups of a list, in order of preference: `ssl_ecdh_curve`.
///
/// A repeated group keeps its first position. As with OpenSSL 3.5, `?` precedes a name that may be
/// unknown, `*` a group to send a key share for, and `-` a group to remove; `/` separates tuples,
/// and `DEFAULT` stands for all groups.
pub fn groups(list: &str) -> SelectedSuites<&'static dyn SupportedKxGroup> {
    let mut chosen = SelectedSuites::default();
    for written in list.split([':', '/']).map(str::trim) {
        let name = written.trim_start_matches(['?', '*', '-']);
        let prefix = written.strip_suffix(name).unwrap_or_default();
        if name == "DEFAULT" {
            chosen.found.clone_from(&super::provider().kx_groups);
            continue;
        }
        let group = group_number(name).and_then(|number| {
            let all = aws_lc_rs::ALL_KX_GROUPS.iter();
            all.copied().find(|group| group.name() == number)
        });
        let is_known = group.is_some() || is_other_group(name);
        if !is_known && (name.is_empty() || !prefix.contains('?')) {
            let reason = match name {
                "" => String::new(),
                _ => format!(
                    "error:0A080106:SSL routines::passed invalid argument:group '{written}' cannot be set"
                ),
            };
            chosen.refused.get_or_insert(reason);
        }
        match group {
            Some(group) if prefix.contains('-') => {
                chosen.found.retain(|found| found.name() != group.name());
            }
            Some(group) => {
                let mut found = chosen.found.iter();
                if !found.any(|found| found.name() == group.name()) {
                    chosen.found.push(group);
                }
            }
            None => chosen.missing.push(name.to_owned()),
        }
    }
    chosen
}

/// Whether OpenSSL 3.5 knows a group that Tidegate does not support.
fn is_other_group(name: &str) -> bool {
    const OTHERS: &[&str] = &[
        "b-163",
        "b-233",
        "b-283",
        "b-409",
        "b-571",
        "brainpoolp256r1",
        "brainpoolp256r1tls13",
        "brainpoolp384r1",
        "brainpoolp384r1tls13",
        "brainpoolp512r1",
        "brainpoolp512r1tls13",
        "ffdhe2048",
        "ffdhe3072",
        "ffdhe4096",
        "ffdhe6144",
        "ffdhe8192",
        "k-163",
        "k-233",
        "k-283",
        "k-409",
        "k-571",
        "mlkem1024",
        "mlkem512",
        "mlkem768",
        "p-192",
        "p-224",
        "prime192v1",
        "secp160k1",
        "secp160r1",
        "secp160r2",
        "secp192k1",
        "secp192r1",
        "secp224k1",
        "secp224r1",
        "secp256k1",
        "secp256r1mlkem768",
        "secp384r1mlkem1024",
        "sect163k1",
        "sect163r1",
        "sect163r2",
        "sect193r1",
        "sect193r2",
        "sect233k1",
        "sect233r1",
        "sect239k1",
        "sect283k1",
        "sect283r1",
        "sect409k1",
        "sect409r1",
        "sect571k1",
        "sect571r1",
        "secp384r1",
        "secp521r1",
        "p-384",
        "p-521",
        "x448",
    ];
    OTHERS.contains(&name.to_ascii_lowercase().as_str())
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
    fn groups_named_again_stay_where_they_were() {
        let groups = groups("P-256:X25519:prime256v1:x25519:secp384r1");
        let names: Vec<_> = groups.found.iter().map(|group| group.name()).collect();
        use rustls::NamedGroup::{X25519, secp256r1, secp384r1};
        assert_eq!(names, [secp256r1, X25519, secp384r1]);
        assert!(groups.refused.is_none() && groups.missing.is_empty());
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
        assert_eq!(names("HIGH!aRSA"), names("ECDSA"));
        assert_eq!(names("DEFAULT@SECLEVEL=1").len(), 6);
        assert_eq!(names("FIPS").len(), 4);
        assert_eq!(names("SUITEB128ONLY"), ["ECDHE-ECDSA-AES128-GCM-SHA256"]);
        // `RSA` means RSA key exchange; keywords are case-sensitive.
        assert_eq!(names("HIGH:!RSA").len(), 6);
        assert!(names("high:RSA:foo:DEFAULT").is_empty());
        // A suite removed with `!` is not selected again.
        assert!(names("!AES:!CHACHA20:HIGH").is_empty());
        assert_eq!(ciphers("ALL:@STRENGTH").missing, [""; 0]);
    }

    /// The expectations are from OpenSSL 3.0.
    #[test]
    fn lists_of_ciphers_that_are_refused() {
        for list in [
            "#",
            "HIGH:#",
            "HIGH#",
            "HIGH:!",
            "HIGH:@",
            "HIGH:@FOO",
            "HIGH:@SECLEVEL=9",
            "HIGH|A",
            "DEFAULT#",
            "HIGH:aNULL+?",
            "HIGH:MD5#",
            "HIGH:DHE-RSA-AES128-SHA#",
            "HIGH:!aNULL#",
            "HIGH:+HIGH#",
        ] {
            assert_eq!(
                ciphers(list).refused.as_deref(),
                Some(INVALID_COMMAND),
                "{list}"
            );
        }
        for list in [
            "HIGH:A#",
            "A:B#",
            "HIGH:a+#",
            "HIGH:foo/bar",
            "HIGH:@STRENGTH#",
            "HIGH:@SECLEVEL=2",
            "HIGH:aNULL+A#",
            "HIGH;",
            ":",
            "HIGH:=A",
            "HIGH:DEFAULT#",
            "SUITEB128#",
        ] {
            assert_eq!(ciphers(list).refused, None, "{list}");
        }
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
        assert_eq!(found("DEFAULT").first(), Some(&NamedGroup::X25519MLKEM768));
        assert_eq!(
            found("secp384r1:prime256v1:X448"),
            [NamedGroup::secp384r1, NamedGroup::secp256r1]
        );
        assert_eq!(groups("X448").missing, ["X448"]);
        assert_eq!(
            found("*X25519:?foo:P-256/P-384:-P-256"),
            [NamedGroup::X25519, NamedGroup::secp384r1]
        );
        for list in [
            "X25519:foo",
            "X25519:prime256v1#",
            "P-256:",
            "P-256::X25519",
            "",
            "auto",
        ] {
            assert!(groups(list).refused.is_some(), "{list}");
        }
        for list in ["X25519:?foo", " P-256 : X448 ", "ffdhe2048:K-571"] {
            assert_eq!(groups(list).refused, None, "{list}");
        }
    }
}
