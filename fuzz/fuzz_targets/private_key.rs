//! Private keys: whatever stands in a file, it loads or fails; what loads signs, and fits no
//! certificate of another.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rustls::SignatureScheme;
use rustls_pki_types::PrivateKeyDer;
use transport::tls::pem::{self, PemError};
use transport::tls::{certificates, provider};

const CERTIFICATE: &[u8] = include_bytes!("../../tests/tls/ecdsa.crt");

const LABELS: [&str; 4] = [
    "PRIVATE KEY",
    "EC PRIVATE KEY",
    "RSA PRIVATE KEY",
    "ENCRYPTED PRIVATE KEY",
];

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, content) = input;
    let file = match LABELS.get(usize::from(kind)) {
        Some(label) => armoured(label, content),
        None => content.to_vec(),
    };
    // Without passwords: with one, an encrypted key may ask for any number of rounds.
    let key = match pem::private_key::<&[u8]>(&file, &[]) {
        Ok(key) => key,
        Err(error) => {
            // A section that we have written is found.
            let known = usize::from(kind) < LABELS.len();
            assert!(!known || matches!(error, PemError::UnknownEncryption | PemError::WrongPassword));
            return;
        }
    };
    if kind < 3 {
        let inside: &[u8] = match &key {
            PrivateKeyDer::Pkcs1(key) => key.secret_pkcs1_der(),
            PrivateKeyDer::Sec1(key) => key.secret_sec1_der(),
            PrivateKeyDer::Pkcs8(key) => key.secret_pkcs8_der(),
            _ => panic!("a kind of its own"),
        };
        assert_eq!(inside, content);
    }
    if let Ok(key) = provider().key_provider.load_private_key(key) {
        let schemes = [
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::ECDSA_NISTP384_SHA384,
            SignatureScheme::RSA_PSS_SHA256,
            SignatureScheme::ED25519,
        ];
        if let Some(signer) = key.choose_scheme(&schemes) {
            let _ = signer.sign(b"message");
        }
    }
    let chain = certificates::chain(CERTIFICATE).expect("a certificate of the tests");
    let _ = certificates::certified_key::<&[u8]>(chain, &file, &[]);
});

/// A section of a PEM file, made without the code under test.
fn armoured(label: &str, content: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    proto::base64::encode(content, &mut text);
    let (begin, end) = (
        format!("-----BEGIN {label}-----\n"),
        format!("\n-----END {label}-----\n"),
    );
    [begin.as_bytes(), &text, end.as_bytes()].concat()
}
