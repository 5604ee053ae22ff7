//! Chains from `samples/`. Expected results are those of `openssl verify` of OpenSSL 3.0. If
//! `openssl verify` stops at an error, the expected result is the last error that a callback
//! receives which continues, like nginx's.

use std::time::Duration;

use super::*;
use crate::tls::pem;

/// The certificates in the sample files with these names.
fn read(names: &str, kind: &str) -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tls/chain/samples");
    let file = |name: &str| std::fs::read(format!("{folder}/{name}.{kind}")).unwrap();
    names.split_whitespace().map(file).collect()
}

fn certificates(names: &str) -> Vec<CertificateDer<'static>> {
    let files = read(names, "pem");
    let all = files.iter().map(|file| pem::certificates(file).unwrap());
    all.flatten().collect()
}

/// In the middle of 2030.
const NOW: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1_908_748_800));

/// Validates a chain, the first certificate first; returns the error number, or 0 if it is valid.
fn verify(chain: &str, trusted: &str, lists: &str, depth: usize, purpose: Purpose) -> u8 {
    let lists = read(lists, "crl");
    let lists = lists
        .iter()
        .map(|file| pem::revocation_lists(file).unwrap());
    let lists: Vec<_> = lists.flatten().collect();
    let trust = Trust::new(&certificates(trusted), &lists, depth).unwrap();
    let chain = certificates(chain);
    let (first, others) = chain.split_first().unwrap();
    match trust.verify(first, others, purpose, NOW) {
        Ok(()) => 0,
        Err(reason) => reason.0,
    }
}

fn of_client(chain: &str, trusted: &str, depth: usize) -> u8 {
    verify(chain, trusted, "", depth, Purpose::Client)
}

fn of_server(chain: &str, trusted: &str) -> u8 {
    verify(chain, trusted, "", 1, Purpose::Server)
}

#[test]
fn chains_lead_to_certificates_that_vouch_for_themselves() {
    assert_eq!(of_client("leaf between", "root", 1), 0);
    assert_eq!(of_client("leaf", "root between", 1), 0);
    assert_eq!(of_client("direct", "root", 0), 0);
    assert_eq!(of_client("root", "root", 0), 0);
    assert_eq!(of_client("leaf", "between", 1), 2);
    assert_eq!(of_client("leaf between", "root", 0), 20);
    assert_eq!(of_client("leaf", "root", 1), 21);
    assert_eq!(of_client("direct", "direct", 0), 21);
    assert_eq!(of_client("leaf between root", "direct", 5), 19);
}

/// OpenSSL follows the cycle up to the maximum depth.
#[test]
fn a_chain_has_no_certificate_twice() {
    let path = |trusted: &str| {
        let trust = Trust::new(&certificates(trusted), &[], 100).unwrap();
        let chain = certificates("in_circle circle_b");
        trust.path(&chain[0], &chain[1..], NOW).len()
    };
    assert_eq!(path("circle_a circle_b"), 3);
    assert_eq!(of_client("in_circle", "circle_a circle_b", 100), 2);
    // The self-signed certificate has the name and the key of the first certificate.
    assert_eq!(path("circle_a circle_b circle_root"), 4);
    let trusted = "circle_a circle_b circle_root";
    assert_eq!(of_client("in_circle", trusted, 100), 0);
    assert_eq!(
        of_client("in_circle circle_a circle_b", "circle_root", 100),
        0
    );
    assert_eq!(of_client("in_circle circle_a circle_b", "root", 100), 20);
}

/// Another certificate has the name of the trusted one.
#[test]
fn a_name_is_not_enough() {
    assert_eq!(of_client("mimic", "root", 0), 18);
    assert_eq!(of_client("leaf between", "mimic", 1), 20);
    assert_eq!(of_client("direct", "mimic root", 0), 0);
    assert_eq!(of_client("root", "mimic root", 0), 0);
}

#[test]
fn certificates_have_their_purpose_and_time() {
    assert_eq!(of_server("direct", "root"), 26);
    assert_eq!(of_client("for_servers", "root", 0), 26);
    assert_eq!(of_server("for_servers", "root"), 0);
    assert_eq!(of_client("authority_shown", "root", 0), 0);
    assert_eq!(of_client("odd", "root", 0), 34);
    assert_eq!(of_client("expired", "root", 0), 10);
    assert_eq!(of_client("future", "root", 0), 9);
}

#[test]
fn certificates_of_version_1() {
    assert_eq!(of_client("old_root", "old_root", 0), 0);
    assert_eq!(of_client("old_leaf", "old_root", 0), 0);
    assert_eq!(of_client("old_leaf", "root", 0), 21);
    assert_eq!(of_client("old_root", "root", 0), 18);
    // Its extensions do not say that it may issue certificates.
    assert_eq!(of_client("below_old old_between", "root", 3), 26);
    assert_eq!(of_client("below_old", "root old_between", 3), 26);
}

#[test]
fn authorities_have_limits() {
    assert_eq!(of_client("below_too_deep too_deep", "short", 3), 25);
    assert_eq!(of_client("below_idle idle", "root", 3), 32);
    assert_eq!(of_server("inside", "limited"), 0);
    assert_eq!(of_server("outside", "limited"), 47);
}

#[test]
fn revocation_lists() {
    let check = |chain, lists| verify(chain, "root", lists, 1, Purpose::Client);
    assert_eq!(check("leaf between", "empty between"), 0);
    assert_eq!(check("leaf between", "empty"), 3);
    assert_eq!(check("leaf between", "revoked between"), 23);
    assert_eq!(check("direct", "empty"), 0);
    assert_eq!(check("direct", "stale"), 12);
    assert_eq!(check("direct", "stale empty"), 0);
    assert_eq!(check("direct", "between"), 3);
}

/// A flipped bit anywhere in a certificate makes the chain invalid, and causes no panic.
#[test]
fn no_bit_may_change() {
    let trust = Trust::new(&certificates("root"), &[], 1).unwrap();
    let whole = certificates("leaf between");
    assert_eq!(
        trust.verify(&whole[0], &whole[1..], Purpose::Client, NOW),
        Ok(())
    );
    for at in 0..whole[0].len() {
        let mut changed = whole[0].to_vec();
        changed[at] ^= 0x10;
        let changed = CertificateDer::from(changed);
        let verified = trust.verify(&changed, &whole[1..], Purpose::Client, NOW);
        assert!(verified.is_err(), "byte {at}");
        let cut = CertificateDer::from(&whole[0][..at]);
        assert_eq!(
            trust.verify(&cut, &whole[1..], Purpose::Client, NOW),
            Err(UNSPECIFIED)
        );
    }
}

#[test]
fn names_that_clients_are_told() {
    let names = names(&certificates("root mimic limited root"));
    assert_eq!(names.len(), 2);
}
