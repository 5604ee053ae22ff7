//! The certificates of a server: made once, chosen per client, replaced while the server runs.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, SignatureAlgorithm};

use crate::tls::pem::{self, PemError};
use crate::tls::provider;

/// Why a certificate and its key are of no use.
#[derive(Debug)]
pub enum LoadError {
    /// The file of the certificate could not be used.
    Certificate(PemError),
    /// The file of the key could not be used.
    Key(PemError),
    /// The key is of a kind that is not known here.
    UnusableKey(rustls::Error),
    /// The key is not the certificate's.
    Mismatch,
}

impl fmt::Display for LoadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Certificate(error) => error.reason("TRUSTED CERTIFICATE").fmt(out),
            LoadError::Key(error) => match error {
                // OpenSSL's decoders of keys say no more.
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

/// A certificate with its chain out of a PEM file.
///
/// # Errors
/// Where the file does not hold it.
pub fn chain(file: &[u8]) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    pem::chain(file).map_err(LoadError::Certificate)
}

/// A certificate with its chain, and its key out of a PEM file.
///
/// # Errors
/// Where the file does not hold it, or the two do not fit.
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
        // rustls cannot read every certificate that OpenSSL can; a client will.
        _ => Ok(Arc::new(certified)),
    }
}

/// A place for a certificate that may be replaced while connections are being accepted.
#[derive(Debug, Default)]
pub struct Slot(RwLock<Option<Arc<CertifiedKey>>>);

impl Slot {
    /// A place with a certificate, or an empty one.
    pub fn new(key: Option<Arc<CertifiedKey>>) -> Slot {
        Slot(RwLock::new(key))
    }

    /// Handshakes that begin from now on get this certificate.
    pub fn set(&self, key: Option<Arc<CertifiedKey>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = key;
    }

    /// The certificate that is in force.
    pub fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The certificates of one server, for rustls to choose from.
#[derive(Debug)]
pub struct Resolver(pub Vec<Arc<Slot>>);

impl ResolvesServerCert for Resolver {
    /// The last certificate of a kind whose key the client can check: with OpenSSL, each replaces
    /// the one before it. ECDSA goes before RSA, as it costs both ends less. Without one, any:
    /// rustls then tells the client what they do not have in common.
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
