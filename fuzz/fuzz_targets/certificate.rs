//! Certificates, from files and from clients: whatever stands in them, they load or fail, and what
//! is said of a client's holds only where a trusted authority has signed it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rustls_pki_types::UnixTime;
use transport::tls::pem;
use transport::tls::verify::{ClientVerification, Mode, CertificateStatus};
use transport::tls::{certificates, names};
use x509_cert::Certificate;
use x509_cert::der::Decode;

/// An authority that has signed nothing of what comes.
const AUTHORITY: &[u8] = include_bytes!("../../tests/tls/ca.crt");
const KEY: &[u8] = include_bytes!("../../tests/tls/ecdsa.key");

fuzz_target!(|input: (bool, &[u8], &[u8])| {
    let (in_pem, first, second) = input;
    let _ = pem::revocation_lists(first);
    let file = if in_pem {
first.to_vec()
} else {
[armoured(first), armoured(second)].concat()
};
    let Ok(chain) = pem::certificates(&file) else {
        return;
    };
    if !in_pem {
        // What stands behind a certificate is cut off.
        assert!(first.starts_with(&chain[0]) && second.starts_with(&chain[1]));
    }
    // The key is another one's, whatever the certificate says.
    if let Ok(chain) = certificates::chain(&file) {
        let _ = certificates::certified_key::<&[u8]>(chain, KEY, &[]);
    }

    let authorities = pem::certificates(AUTHORITY).expect("a certificate");
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000));
    for mode in [Mode::Required, Mode::OptionalNoCa] {
        let trusting = ClientVerification::new(mode, 1, authorities.clone(), Vec::new(), &[]);
        let trusting = trusting.expect("no lists of revoked certificates to refuse");
        assert!(!matches!(
            trusting.verdict(Some(&chain), now),
            CertificateStatus::Good
        ));
        // What is trusted itself may be in order.
        if let Ok(itself) = ClientVerification::new(mode, 1, chain.clone(), Vec::new(), &[]) {
            let _ = itself.verdict(Some(&chain), now);
        }
    }
    for certificate in &chain {
        if let Ok(parsed) = Certificate::from_der(certificate) {
            let mut text = Vec::new();
            names::append_rfc2253(parsed.tbs_certificate().subject(), &mut text);
            names::append_legacy(parsed.tbs_certificate().issuer(), &mut text);
            assert!(text.iter().all(|byte| !byte.is_ascii_control()));
        }
    }
});

/// A section of a PEM file, made without the code under test.
fn armoured(content: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    proto::base64::encode(content, &mut text);
    [b"-----BEGIN CERTIFICATE-----\n", &*text, b"\n-----END CERTIFICATE-----\n"].concat()
}
