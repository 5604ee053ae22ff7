//! A local certificate authority: it signs certificates for names like `localhost`, which no public
//! authority does. A client that trusts the authority's certificate trusts all that it signs.

use std::io;
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::crypto::CryptoProvider;

use crate::certificate::{Certificate, CertificateError, new_key, parameters};
use crate::order::{Identifier, KeyKind};
use crate::store::StateFolder;

/// The file of the authority's certificate and key.
const FILE: &str = "authority.pem";

/// The file of the certificate alone, for clients that are to trust the authority.
pub const AUTHORITY_CERTIFICATE: &str = "authority.crt";

const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Lifetime of the certificates that the authority signs.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// A local certificate authority, kept in a state folder.
pub struct Authority {
    key: KeyPair,
    /// Whether the authority was newly created.
    pub is_new: bool,
}

impl Authority {
    /// Opens the authority in a folder. Creates a new one if there is none, or if its certificate
    /// expires before a certificate signed now would.
    ///
    /// # Errors
    /// If the folder cannot be read or written.
    pub fn open(folder: &StateFolder, provider: &CryptoProvider) -> io::Result<Authority> {
        let stored = folder.read(FILE)?;
        let stored = stored.and_then(|bytes| Certificate::from_file(&bytes, provider).ok());
        let holds = |known: &Certificate| known.validity.end > SystemTime::now() + LIFETIME;
        if let Some(known) = stored.filter(holds)
            && let Ok(key) = KeyPair::from_pem(&known.key_pem)
        {
            return Ok(Authority { key, is_new: false });
        }
        let key = new_key(KeyKind::Ecdsa256).map_err(io::Error::other)?;
        let parameters = authority().map_err(io::Error::other)?;
        let certificate = parameters.self_signed(&key).map_err(io::Error::other)?;
        let pem = certificate.pem();
        let both = format!("{pem}{}", key.serialize_pem());
        folder.write(FILE, both.as_bytes())?;
        folder.write(AUTHORITY_CERTIFICATE, pem.as_bytes())?;
        Ok(Authority { key, is_new: true })
    }

    /// Signs a certificate for the identifiers. Returns the certificate and its key, both as PEM.
    ///
    /// # Errors
    /// If an identifier cannot be encoded in a certificate.
    pub fn sign(&self, identifiers: &[Identifier]) -> Result<(String, String), CertificateError> {
        let mut parameters = parameters(identifiers, LIFETIME)?;
        parameters.use_authority_key_identifier_extension = true;
        let key = new_key(KeyKind::Ecdsa256)?;
        // `rcgen` needs only the issuer's name and key, not its original certificate.
        let authority = authority()?;
        let issuer = Issuer::from_params(&authority, &self.key);
        let signed = parameters.signed_by(&key, &issuer);
        let signed = signed.map_err(CertificateError::Making)?;
        Ok((signed.pem(), key.serialize_pem()))
    }
}

/// The parameters of the authority's own certificate.
fn authority() -> Result<CertificateParams, CertificateError> {
    let mut authority = parameters(&[], AUTHORITY_LIFETIME)?;
    let name = &mut authority.distinguished_name;
    name.push(DnType::CommonName, "Tidegate local authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(authority)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::tests::provider;

    #[test]
    fn an_authority_is_kept_and_signs() {
        let path = std::env::temp_dir().join(format!("tidegate-authority-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let folder = StateFolder::new(&path);
        let first = Authority::open(&folder, &provider()).unwrap();
        let again = Authority::open(&folder, &provider()).unwrap();
        assert!(first.is_new && !again.is_new);
        assert_eq!(first.key.serialize_pem(), again.key.serialize_pem());

        let names = [
            Identifier::Dns("localhost".into()),
            Identifier::Ip([127, 0, 0, 1].into()),
        ];
        let (chain, key) = again.sign(&names).unwrap();
        let signed = Certificate::from_pem(chain, key, &provider()).unwrap();
        assert!(signed.is_for(&names) && signed.renewal().is_some());
        std::fs::remove_dir_all(&path).unwrap();
    }
}
