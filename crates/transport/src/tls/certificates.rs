//! The certificates of a server: loads them once, selects one for a client, and replaces them while
//! the server runs.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use framework::compile::Compiler;
use framework::generation::Generation;
use framework::registry::Registry;
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, SignatureAlgorithm};
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::tls::pem::{self, PemError};
use crate::tls::provider;

/// Why a certificate and its key cannot be used.
#[derive(Debug)]
pub enum LoadError {
    /// The certificate file cannot be used.
    Certificate(PemError),
    /// The key file cannot be used.
    Key(PemError),
    /// The type of the key is not supported.
    UnusableKey(rustls::Error),
    /// The key does not belong to the certificate.
    Mismatch,
}

impl fmt::Display for LoadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Certificate(error) => error.reason("TRUSTED CERTIFICATE").fmt(out),
            LoadError::Key(error) => match error {
                // OpenSSL's key decoders give no more detail.
                PemError::Missing | PemError::Malformed => out.write_str(
                    "error:1E08010C:DECODER routines::unsupported:No supported data to decode. Input type: PEM",
                ),
                error => error.fmt(out),
            },
            LoadError::UnusableKey(error) => error.fmt(out),
            LoadError::Mismatch => out.write_str("key values mismatch"),
        }
    }
}

/// The certificate and its chain from a PEM file.
///
/// # Errors
/// If the file does not contain a certificate.
pub fn chain(file: &[u8]) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    pem::chain(file).map_err(LoadError::Certificate)
}

/// Combines a certificate chain with the private key from a PEM file, decrypted with one of the
/// passwords.
///
/// # Errors
/// If the key cannot be read or used, or does not belong to the certificate.
pub fn certified_key<P: AsRef<[u8]>>(
    chain: Vec<CertificateDer<'static>>,
    key: &[u8],
    passwords: &[P],
) -> Result<Arc<CertifiedKey>, LoadError> {
    let key = pem::private_key(key, passwords).map_err(LoadError::Key)?;
    let key = provider()
        .key_provider
        .load_private_key(key)
        .map_err(LoadError::UnusableKey)?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            Err(LoadError::Mismatch)
        }
        // OpenSSL reads some certificates that rustls does not; the client will check.
        _ => Ok(Arc::new(certified)),
    }
}

/// A certificate that may be replaced while connections are accepted.
#[derive(Debug, Default)]
pub struct Slot(RwLock<Option<Arc<CertifiedKey>>>);

impl Slot {
    /// A slot with a certificate, or an empty one.
    pub fn new(key: Option<Arc<CertifiedKey>>) -> Slot {
        Slot(RwLock::new(key))
    }

    /// Replaces the certificate for handshakes that start from now on.
    pub fn set(&self, key: Option<Arc<CertifiedKey>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = key;
    }

    /// The current certificate.
    pub fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The certificates that servers present: a part of a generation, for monitoring.
#[derive(Debug, Default)]
pub struct ShownCertificates(Vec<(String, Arc<Slot>)>);

impl Registry for ShownCertificates {}

/// What monitoring reports about one certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// The certificate's file, or the value of `ssl_certificate`.
    pub name: String,
    /// The DNS names and addresses for which the certificate is valid, or its subject if it has no
    /// such names.
    pub names: Vec<String>,
    /// The end of the certificate's validity, in seconds since 1970.
    pub not_after: u64,
}

impl ShownCertificates {
    /// Adds a certificate, under its file name or its name in the configuration.
    pub(super) fn add(&mut self, name: String, slot: &Arc<Slot>) {
        self.0.push((name, Arc::clone(slot)));
    }

    /// Facts about each current certificate, once per file.
    pub fn facts(&self) -> Vec<CertificateFacts> {
        let mut facts: Vec<CertificateFacts> = Vec::new();
        for (name, slot) in &self.0 {
            let Some(fact) = slot.current().and_then(|key| fact(name, &key)) else {
                continue;
            };
            if !facts.contains(&fact) {
                facts.push(fact);
            }
        }
        facts
    }
}

fn fact(name: &str, key: &CertifiedKey) -> Option<CertificateFacts> {
    let certificate = x509_cert::Certificate::from_der(key.cert.first()?).ok()?;
    let content = certificate.tbs_certificate();
    let alternatives = content.get_extension::<SubjectAltName>().ok().flatten();
    let alternatives = alternatives.map(|(_, names)| names.0).unwrap_or_default();
    let names = alternatives.iter().filter_map(|name| match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_owned()),
        GeneralName::IpAddress(address) => address_of(address.as_bytes()),
        _ => None,
    });
    let mut names: Vec<String> = names.collect();
    if names.is_empty() {
        names.push(content.subject().to_string());
    }
    Some(CertificateFacts {
        name: name.to_owned(),
        names,
        not_after: content.validity().not_after.to_unix_duration().as_secs(),
    })
}

fn address_of(bytes: &[u8]) -> Option<String> {
    match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?).to_string()),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_string()),
        _ => None,
    }
}

/// Adds the presented certificates to the generation.
pub fn add_shown(compiler: &Compiler<'_>, generation: &mut Generation) {
    generation.add(compiler.registries.take::<ShownCertificates>());
}

/// The certificates of one server, for rustls to choose from.
#[derive(Debug)]
pub struct Resolver(pub Vec<Arc<Slot>>);

impl ResolvesServerCert for Resolver {
    /// Selects the last certificate of a key type that the client can verify: with OpenSSL, a later
    /// certificate replaces an earlier one of its type. ECDSA is preferred to RSA, as it costs both
    /// ends less. If no certificate fits, selects any: rustls then fails the handshake with the
    /// alert for what client and server do not have in common.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = || self.0.iter().rev().filter_map(|slot| slot.current());
        let fitting = current().filter(|certified| {
            let key = &certified.key;
            key.choose_scheme(hello.signature_schemes()).is_some()
        });
        fitting
            .min_by_key(|certified| certified.key.algorithm() == SignatureAlgorithm::RSA)
            .or_else(|| current().next())
    }
}
