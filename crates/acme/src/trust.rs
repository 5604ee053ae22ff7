//! Which ACME servers are trusted: those with a certificate of given authorities, or all.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// There is no certificate of an authority in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoots;

/// Settings for connections to servers whose certificates come from the authorities in a PEM text;
/// without a text, to servers with any certificate at all.
///
/// # Errors
/// Where the text has no certificate.
pub fn trust(
    provider: &Arc<CryptoProvider>,
    authorities: Option<&[u8]>,
) -> Result<Arc<ClientConfig>, NoRoots> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider));
    // It fails for providers without TLS 1.2 and 1.3, which ours has.
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|_| NoRoots)?;
    let builder = match authorities {
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            let certificates = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
            roots.add_parsable_certificates(certificates);
            if roots.is_empty() {
                return Err(NoRoots);
            }
            builder.with_root_certificates(roots)
        }
        None => {
            let anybody = Anybody(Arc::clone(provider));
            let builder = builder.dangerous();
            builder.with_custom_certificate_verifier(Arc::new(anybody))
        }
    };
    Ok(Arc::new(builder.with_no_client_auth()))
}

/// Takes every certificate (`ssl_verify off`). That the server has its key is checked all the same.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::tests::provider;
    use crate::{Certificate, Identifier};

    #[test]
    fn authorities_are_certificates() {
        let provider = Arc::new(provider());
        assert!(trust(&provider, None).is_ok());
        for text in [
            "",
            "nothing",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            assert_eq!(trust(&provider, Some(text.as_bytes())).err(), Some(NoRoots));
        }
        let names = [Identifier::Dns("a.test".into())];
        let root = Certificate::stand_in(&names, &provider).unwrap();
        let text = format!("{}rubbish\n", root.chain_pem);
        assert!(trust(&provider, Some(text.as_bytes())).is_ok());
    }
}
