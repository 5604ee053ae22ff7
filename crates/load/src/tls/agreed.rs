//! The result of a TLS handshake, for reports: the figures of a run depend on it.

use std::fmt;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::CertificateDer;
use rustls::{CipherSuite, CommonState, NamedGroup, ProtocolVersion, SupportedCipherSuite};
use x509_cert::Certificate;
use x509_cert::der::asn1::{ObjectIdentifier, UintRef};
use x509_cert::der::{Decode, Reader, SliceReader};

/// The object identifier of RSA keys: RFC 3279, section 2.3.1.
const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");

/// The object identifier of elliptic-curve keys: RFC 5480, section 2.1.1.
const ELLIPTIC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");

/// The object identifier of Ed25519 keys: RFC 8410, section 3.
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");

/// The curves of RFC 5480, section 2.1.1.1, with their names and sizes in bits.
const CURVES: [(ObjectIdentifier, &str, u32); 3] = [
    (
        ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7"),
        "P-256",
        256,
    ),
    (ObjectIdentifier::new_unwrap("1.3.132.0.34"), "P-384", 384),
    (ObjectIdentifier::new_unwrap("1.3.132.0.35"), "P-521", 521),
];

/// The parameters negotiated in a TLS handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NegotiatedTls {
    /// The version, as OpenSSL writes it: `TLSv1.3`.
    pub version: String,
    /// OpenSSL's name of the cipher suite.
    pub cipher: String,
    /// Size of the cipher's key, in bits.
    pub cipher_bits: u32,
    /// The key exchange group.
    pub group: String,
    /// The type of the server certificate's key, such as `ECDSA P-256`.
    pub key: String,
    /// Size of the server certificate's key, in bits.
    pub key_bits: u32,
}

impl fmt::Display for NegotiatedTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NegotiatedTls {
            version,
            cipher,
            group,
            key,
            ..
        } = self;
        write!(f, "{version}, {cipher}, {group}, certificate of {key}")
    }
}

/// A cheap summary of a handshake, to detect that its result is the same as before.
pub(crate) type Mark = (
    Option<ProtocolVersion>,
    Option<CipherSuite>,
    Option<NamedGroup>,
);

impl NegotiatedTls {
    /// The parameters of a connection whose handshake is complete.
    pub(super) fn of(tls: &UnbufferedClientConnection) -> NegotiatedTls {
        let suite = tls.negotiated_cipher_suite();
        let (key, key_bits) = tls
            .peer_certificates()
            .and_then(|chain| key(chain.first()?))
            .unwrap_or_else(|| ("an unknown kind".to_owned(), 0));
        NegotiatedTls {
            version: match tls.protocol_version() {
                Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "TLSv1.3",
            }
            .to_owned(),
            cipher: suite.map_or_else(String::new, |suite| cipher(&suite)),
            cipher_bits: suite.map_or(0, |suite| cipher_bits(suite.suite())),
            group: mark(tls)
                .2
                .map_or_else(|| "no key exchange".to_owned(), group),
            key,
            key_bits,
        }
    }

    /// Size of the group, in bits, as OpenSSL reports it.
    #[must_use]
    pub fn group_bits(&self) -> u32 {
        match &*self.group {
            "X25519" => 253,
            "P-256" => 256,
            "P-384" => 384,
            _ => 0,
        }
    }
}

pub(super) fn mark(state: &CommonState) -> Mark {
    (
        state.protocol_version(),
        state.negotiated_cipher_suite().map(|suite| suite.suite()),
        state
            .negotiated_key_exchange_group()
            .map(|group| group.name()),
    )
}

/// OpenSSL's name of a cipher suite, such as `ECDHE-RSA-AES256-GCM-SHA384`; for TLS 1.3 the name in
/// the RFC.
pub(super) fn cipher(suite: &SupportedCipherSuite) -> String {
    let name = format!("{:?}", suite.suite());
    if let Some(rest) = name.strip_prefix("TLS13_") {
        return format!("TLS_{rest}");
    }
    let name = name.trim_start_matches("TLS_").replace("_WITH_", "_");
    name.replace("AES_", "AES")
        .replace("POLY1305_SHA256", "POLY1305")
        .replace('_', "-")
}

fn cipher_bits(suite: CipherSuite) -> u32 {
    if format!("{suite:?}").contains("AES_128") {
        128
    } else {
        256
    }
}

pub(super) fn group(group: NamedGroup) -> String {
    match group {
        NamedGroup::secp256r1 => "P-256".to_owned(),
        NamedGroup::secp384r1 => "P-384".to_owned(),
        _ => format!("{group:?}"),
    }
}

/// The type and size of a certificate's key; `None` if it cannot be parsed.
fn key(certificate: &CertificateDer<'_>) -> Option<(String, u32)> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let info = certificate.tbs_certificate().subject_public_key_info();
    match info.algorithm.oid {
        RSA => {
            let mut reader = SliceReader::new(info.subject_public_key.raw_bytes()).ok()?;
            let modulus = reader
                .sequence(|inner| {
                    let modulus = UintRef::decode(inner)?;
                    UintRef::decode(inner)?;
                    Ok::<_, x509_cert::der::Error>(modulus)
                })
                .ok()?;
            let bits = u32::try_from(modulus.as_bytes().len()).ok()? * 8;
            Some((format!("RSA {bits}"), bits))
        }
        ELLIPTIC => {
            let curve: ObjectIdentifier = info.algorithm.parameters.as_ref()?.decode_as().ok()?;
            let (_, name, bits) = CURVES.iter().find(|(known, ..)| *known == curve)?;
            Some((format!("ECDSA {name}"), *bits))
        }
        ED25519 => Some(("Ed25519".to_owned(), 253)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::pem::PemObject;

    #[test]
    fn keys_of_certificates() {
        for (name, expected) in [("ecdsa", ("ECDSA P-256", 256)), ("rsa", ("RSA 2048", 2048))] {
            let path = format!("{}/../../tests/tls/{name}.crt", env!("CARGO_MANIFEST_DIR"));
            let (kind, bits) = key(&CertificateDer::from_pem_file(path).unwrap()).unwrap();
            assert_eq!((&*kind, bits), expected);
        }
        assert_eq!(key(&CertificateDer::from(vec![0x30, 0])), None);
    }
}
