//! An authority for this machine alone: it signs certificates for names like `localhost`, which no
//! public one does. Who trusts its certificate trusts what it signs.

use std::io;
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::crypto::CryptoProvider;

use crate::certificate::{Certificate, Unusable, new_key, parameters};
use crate::order::{Identifier, KeyKind};
use crate::store::StateFolder;

/// Certificate and key of the authority.
const FILE: &str = "authority.pem";

/// The certificate alone, for clients that are to trust it.
pub const AUTHORITY_CERTIFICATE: &str = "authority.crt";

const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// How long a certificate holds that the authority signs.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// The authority, which is made where a folder has none.
pub struct Authority {
    key: KeyPair,
    /// Whether it was made just now.
    pub is_new: bool,
}

impl Authority {
    /// The authority of a folder. One that ends before what it would sign is replaced.
    ///
    /// # Errors
    /// Where the folder cannot be read or written.
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

    /// A certificate for these, and its key: both PEM.
    ///
    /// # Errors
    /// Where an identifier can stand in no certificate.
    pub fn sign(&self, identifiers: &[Identifier]) -> Result<(String, String), Unusable> {
        let mut parameters = parameters(identifiers, LIFETIME)?;
        parameters.use_authority_key_identifier_extension = true;
        let key = new_key(KeyKind::Ecdsa256)?;
        // The issuer is known by its name and its key, which are those of its certificate.
        let authority = authority()?;
        let issuer = Issuer::from_params(&authority, &self.key);
        let signed = parameters.signed_by(&key, &issuer);
        let signed = signed.map_err(Unusable::Making)?;
        Ok((signed.pem(), key.serialize_pem()))
    }
}

/// What the authority's own certificate says.
fn authority() -> Result<CertificateParams, Unusable> {
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
